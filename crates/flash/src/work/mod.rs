//! Background work: what is done with blocks while requests go on. Each file is a task; [`FlashStore::take_work`] says what is due.

mod checkpoint;
mod prefix;
mod reclaim;
mod reorganise;
mod room;
mod seal;
mod survivors;

use crate::Mappings;
use crate::footer::FooterEntry;
use crate::objects::{Task, Work};
use crate::store::FlashStore;
use pumice_blocks::Task::{Checkpoint, Flush, Own, Seal, TakeOut};
use pumice_blocks::add;
use pumice_device::Device;
use pumice_memory::Buffer;
use std::io;

/// Entries between the one whose memory is asked for and the one in work.
const PREFETCH_DISTANCE: usize = 8;

/// Asks for what a later entry of a footer will need; hashes are all over the index, so each would wait for memory.
fn prefetch_ahead<M: Mappings>(mappings: &M, entries: &[FooterEntry], at: usize) {
    if let Some(later) = entries.get(at + PREFETCH_DISTANCE) {
        mappings.prefetch(later.hash);
    }
}

/// Who does a piece of work, and with what.
struct Worker<'a, B: Buffer, D, M> {
    store: &'a FlashStore<B>,
    device: &'a D,
    mappings: &'a M,
    /// Unix time in seconds.
    now: u32,
}

impl<B: Buffer> FlashStore<B> {
    /// Does a piece of background work to its end. `now` is the Unix time in seconds. Where this future is dropped before
    /// that, the work is due again.
    pub async fn perform<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
        work: Work<B>,
    ) {
        self.worker(device, mappings, now).perform(work).await;
    }

    /// Writes a checkpoint. `clean`: nothing will change after it, and the superblock says so.
    ///
    /// # Errors
    /// What the device said, or that the snapshot would take too much of it; the checkpoints before stay good.
    pub async fn checkpoint<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
        clean: bool,
    ) -> io::Result<()> {
        self.worker(device, mappings, now).checkpoint(clean).await
    }

    fn worker<'a, D, M>(&'a self, device: &'a D, mappings: &'a M, now: u32) -> Worker<'a, B, D, M> {
        Worker {
            store: self,
            device,
            mappings,
            now,
        }
    }
}

impl<B: Buffer, D: Device<Buf = B>, M: Mappings> Worker<'_, B, D, M> {
    async fn perform(&self, work: Work<B>) {
        match work.task() {
            Seal(_) => return self.perform_seal(work).await,
            Flush(block) => {
                if let Err(error) = self.flush_block(block).await {
                    tracing::error!("writing the beginning of block {}: {error}", block.id);
                    add(&self.store.totals.write_errors, 1);
                    // The seal writes these bytes again; where that fails too, it drops the block.
                    let mut order = self.store.order.change();
                    if order.open.iter().any(|open| open.id == block.id) {
                        self.store.retire_open(&mut order, block.id);
                    }
                }
            }
            Own(Task::Reclaim) => self.reclaim(work.claim()).await,
            Own(Task::EarlyReclaim) => self.reclaim_early(work.claim(), 0).await,
            Own(Task::WriteMappings(write)) => {
                let pages = self.store.mapping_pages().expect("they are to be written");
                pages.write(self.device, write).await;
                work.finish(|_| {});
                return pages.take_back();
            }
            Own(Task::Reorganise(due)) => self.reorganise(due).await,
            Checkpoint => {
                if let Err(error) = self.checkpoint(false).await {
                    self.store.journal.note_checkpoint_failure(&error);
                }
            }
            TakeOut if self.store.shared.is_given_up() => {
                // It did not answer before. Where it does not either now, that was said.
                if self.store.journal.remember_failure(self.device).await.is_ok() {
                    tracing::info!(
                        "the superblocks of the flash device that was taken out say so now: the next start begins without it"
                    );
                }
            }
            TakeOut => {
                if let Err(error) = self.store.journal.remember_failure(self.device).await {
                    tracing::error!(
                        "the superblocks of the flash device that was taken out cannot be written: {error}; start the next with \
                         --reformat, or what is deleted from now on may be served again"
                    );
                }
                self.mappings.give_up_all();
                self.store.shared.note_given_up();
                self.store.order.forget_all();
                self.store.retire_active();
                self.store.shared.change(|_| ());
            }
        }
        work.finish(|_| {});
    }
}
