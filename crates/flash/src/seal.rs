//! What background work does, and what a full block is composed of.

use crate::block::OpenBlock;
use crate::footer::{Ending, FooterEntry};
use crate::layout::NotePlace;
use crate::store::{BlockInfo, FlashStore, Objects, Pool, Task, Work};
use crate::{Gone, Mappings};
use pumice_blocks::Task::{Checkpoint, Flush, Own, Seal, TakeOut};
use pumice_blocks::{Contents, SealEnd, Tenant, add};
use pumice_device::Device;
use pumice_index::{Known, Location, Mapping};
use pumice_memory::Buffer;
use std::sync::atomic::Ordering;

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
        match work.task() {
            Seal(_) => return self.perform_seal(device, mappings, now, work).await,
            Flush(block) => {
                if let Err(error) = self.flush_block(device, mappings, now, block).await {
                    tracing::error!("writing the beginning of block {}: {error}", block.id);
                    add(&self.totals.write_errors, 1);
                    // The seal writes these bytes again; where that fails too, it drops the block.
                    self.retire_one(block.id);
                }
            }
            Own(Task::Reclaim) => self.reclaim(device, mappings, now, work.claim()).await,
            Own(Task::EarlyReclaim) => self.reclaim_early(device, mappings, now, work.claim(), 0).await,
            Own(Task::WriteMappings(write)) => {
                self.write_mappings(device, write).await;
                work.finish(|_| {});
                return self.take_back_blocks();
            }
            Own(Task::Reorganise(due)) => self.reorganise(device, mappings, due).await,
            Checkpoint => {
                if let Err(error) = self.checkpoint(device, mappings, now, false).await {
                    self.note_checkpoint_failure(&error);
                }
            }
            TakeOut => {
                if let Err(error) = self.remember_failure(device).await {
                    tracing::error!(
                        "the superblocks of the flash device that was taken out cannot be written: {error}; start the next with \
                         --reformat, or what is deleted from now on may be served again"
                    );
                }
                mappings.give_up_all();
                self.note_given_up();
                self.forget_order();
                self.retire_active();
                self.shared.change(|_| ());
            }
        }
        work.finish(|_| {});
    }

    /// Writes the block of a piece of work.
    pub(crate) async fn perform_seal<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
        work: Work<B>,
    ) {
        let sealer = Sealer {
            store: self,
            device,
            mappings,
        };
        self.seal(device, &sealer, now, work).await;
    }

    /// Notes whether a block that counts as sealed from now on may go before the lowest. Not earlier: whoever looked for a victim
    /// meanwhile would not find the block, and take the note away.
    fn note_early_victim(&self, info: &BlockInfo) {
        // A read-modify-write of zero, not a load: against a concurrent `note_death` exactly one side sees the other's value and sets
        // the flag.
        let live = info.live.fetch_add(0, Ordering::AcqRel);
        if info.expiry_max.load(Ordering::Relaxed) != u32::MAX || self.is_early_victim(info, live) {
            self.has_early_victims.store(true, Ordering::Relaxed);
        }
    }

    /// A mapping to an object that a footer lists.
    pub(crate) fn mapping(&self, block: u32, entry: &FooterEntry) -> Mapping {
        Mapping {
            location: self.location(block, entry),
            note: self.ground().mapping_bits(entry.number),
        }
    }

    pub(crate) fn location(&self, block: u32, entry: &FooterEntry) -> Location {
        Location {
            offset: self.geometry.block_offset(block) + u64::from(entry.offset),
            len: entry.len,
        }
    }
}

/// A store with its mappings, while one of its blocks is sealed.
struct Sealer<'a, B: Buffer, D, M> {
    store: &'a FlashStore<B>,
    device: &'a D,
    mappings: &'a M,
}

impl<B: Buffer, D: Device<Buf = B>, M: Mappings> Tenant<Objects<B>> for Sealer<'_, B, D, M> {
    /// Drops from the footer what has died.
    fn compose(&self, block: &OpenBlock<B>, mut entries: Vec<FooterEntry>) -> Contents<FooterEntry> {
        let store = self.store;
        let lives = |entry: &FooterEntry| {
            let location = store.location(block.id, entry);
            self.mappings.with(entry.hash, |shard| {
                shard.known(entry.hash, location) != Known::Dead
            })
        };
        // With slots all stay, because their numbers are those of the slots.
        if store.notes != NotePlace::Slot {
            entries.retain(lives);
        }
        let own = entries
            .iter()
            .any(lives)
            .then(|| Ending::new(&entries, store.position_of_block(block.id)).encode());
        Contents { entries, own }
    }

    fn settle(&self, block: &OpenBlock<B>, end: SealEnd, entries: &[FooterEntry]) {
        let store = self.store;
        let info = &store.blocks[block.id as usize];
        if end == SealEnd::Written {
            let expiry_max = Ending::new(entries, 0).expiry_max;
            info.expiry_max.store(expiry_max, Ordering::Relaxed);
            info.filled.store(block.piece_bytes(), Ordering::Relaxed);
            return store.shrink_slots(block.id);
        }
        if let SealEnd::Failed(logged) = end {
            store.make_up_for(self.device, logged);
            info.is_leaving.store(true, Ordering::Release);
            for entry in entries {
                self.mappings
                    .drop_copy(entry.hash, store.mapping(block.id, entry), Gone::Lost);
            }
        }
        store.settle_slots(block.id, Some(entries));
        info.live.store(0, Ordering::Relaxed);
        if !store.is_authoritative() {
            // No mapping on flash leads to this generation of the block any more.
            info.sequence.store(0, Ordering::Release);
        }
        store.leave_order(block.id);
    }

    fn file(&self, pool: &mut Pool<B>, block: u32, end: SealEnd) {
        if end != SealEnd::Written {
            return;
        }
        let blocks = &self.store.blocks;
        let sequence_of = |id: u32| blocks[id as usize].sequence.load(Ordering::Relaxed);
        // Blocks written at the same time end in any order; the queue is by sequence.
        let queue = &mut pool.own.queue;
        let at = queue.partition_point(|other| sequence_of(*other) < sequence_of(block));
        queue.insert(at, block);
        self.store.note_early_victim(&blocks[block as usize]);
    }
}
