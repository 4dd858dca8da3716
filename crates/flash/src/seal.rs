//! Composing and writing a full block.

use crate::block::OpenBlock;
use crate::footer::encode_footer;
use crate::store::{Durability, FlashStore, State, Work, add};
use crate::{Gone, Mappings};
use pumice_device::Device;
use pumice_index::Location;
use pumice_memory::Buffer;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl<B: Buffer> FlashStore<B> {
    /// Does a piece of background work to its end. `now` is the Unix time in seconds.
    pub async fn perform<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
        work: Work<B>,
    ) {
        match work {
            Work::Seal(block) => self.seal(device, mappings, now, block).await,
            Work::Reclaim => {
                self.reclaim(device, mappings, now).await;
                self.work_done(|structure| {
                    structure.reclaiming = false;
                    structure.in_flight -= 1;
                });
            }
            Work::Checkpoint => {
                if let Err(error) = self.checkpoint(device, mappings, now, false).await {
                    tracing::warn!("checkpoint: {error}");
                    let wanted = self.counters.log_records.load(Ordering::Relaxed).max(1);
                    self.checkpoint_failed_at.store(wanted, Ordering::Relaxed);
                } else {
                    self.checkpoint_failed_at.store(0, Ordering::Relaxed);
                }
                self.work_done(|structure| {
                    structure.checkpointing = false;
                    structure.in_flight -= 1;
                });
            }
        }
    }

    /// Order on the device: the whole block, footer included, in one write; then (with `power`) a flush. A crash before
    /// the write is complete leaves no valid trailer for this sequence, and the block counts for nothing.
    async fn seal<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
        block: Arc<OpenBlock<B>>,
    ) {
        let info = &self.blocks[block.id as usize];
        let mut entries = block.finish();
        let filled: u64 = entries.iter().map(|e| u64::from(e.len)).sum();
        let location = |entry: &crate::footer::FooterEntry| Location {
            offset: self.geometry.block_offset(block.id) + u64::from(entry.offset),
            len: entry.len,
        };
        // Dead objects are struck. The block has been `sealing` since before this: what dies from here on is logged.
        entries.retain(|entry| mappings.with(entry.hash, |shard| shard.is_live(entry.hash, location(entry))));
        if entries.is_empty() {
            self.end_block(block, State::Free, false);
            return;
        }
        let (footer, trailer) = encode_footer(self.cache_id, block.id, block.sequence, now, &entries);
        block.put_footer(&footer);
        let block_bytes = usize::try_from(self.geometry.block_bytes).expect("at most 256 MiB");
        add(&self.counters.written_bytes, self.geometry.block_bytes);
        let offset = self.geometry.block_offset(block.id);
        let mut written = device
            .write(offset, Arc::clone(&block.buffer), 0..block_bytes)
            .await;
        if written.is_ok() && self.durability() == Durability::Power {
            written = device.sync().await;
        }
        match written {
            Ok(()) => {
                info.footer_len
                    .store(trailer.footer_len() as u32, Ordering::Relaxed);
                info.expiry_max.store(trailer.expiry_max, Ordering::Relaxed);
                info.filled.store(filled, Ordering::Relaxed);
                add(&self.counters.sealed_blocks, 1);
                self.end_block(block, State::Sealed, true);
            }
            Err(error) => {
                tracing::error!("writing block {}: {error}", block.id);
                add(&self.counters.write_errors, 1);
                // What the device holds now is undefined, so nothing in this life of the block may ever count.
                self.append_log(
                    device,
                    crate::LogKind::Reclaim,
                    u64::from(block.id),
                    block.sequence,
                );
                for entry in &entries {
                    mappings.drop_copy(entry.hash, location(entry), Gone::Lost);
                }
                self.end_block(block, State::Free, false);
            }
        }
    }

    fn end_block(&self, block: Arc<OpenBlock<B>>, state: State, queue: bool) {
        let (id, sequence) = (block.id, block.sequence);
        self.blocks[id as usize].set_state(state);
        // Its buffer is free before anyone who waits for one is woken.
        self.release(block);
        let blocks = &self.blocks;
        self.work_done(|structure| {
            structure.in_flight -= 1;
            if queue {
                // Blocks written at the same time end in any order; the queue is by sequence.
                let at = structure
                    .queue
                    .partition_point(|b| blocks[*b as usize].sequence.load(Ordering::Relaxed) < sequence);
                structure.queue.insert(at, id);
            } else {
                structure.free.push_back(id);
            }
        });
    }
}
