//! Composing and writing a full block.

use crate::block::{Composed, OpenBlock};
use crate::footer::{Ending, FooterEntry};
use crate::store::{BlockInfo, Durability, FlashStore, SlotKind, State, Task, Work, add};
use crate::{Gone, Mappings};
use pumice_blocks::footer::encode_footer;
use pumice_blocks::log::Kind;
use pumice_device::Device;
use pumice_index::Location;
use pumice_memory::Buffer;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How sealing a block ended.
enum Sealed {
    /// It is on the device.
    Written,
    /// Nothing in it was live: nothing was written.
    Empty,
    /// The device failed.
    Failed,
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
        match work.task() {
            Task::Seal(_) => self.perform_seal(device, mappings, now, work).await,
            Task::Flush(block) => {
                if let Err(error) = self.write_prefix(device, mappings, now, block).await {
                    tracing::error!("writing the beginning of block {}: {error}", block.id);
                    add(&self.counters.write_errors, 1);
                    // The seal writes these bytes again; where that fails too, it drops the block.
                    self.retire_one(block.id);
                }
                work.finish(|_| {});
            }
            Task::Reclaim => {
                self.reclaim(device, mappings, now, work.claim()).await;
                work.finish(|_| {});
            }
            Task::EarlyReclaim => {
                self.reclaim_early(device, mappings, now, work.claim(), 0).await;
                work.finish(|_| {});
            }
            Task::WriteMappings(write) => {
                self.write_mappings(device, write).await;
                work.finish(|_| {});
                self.take_back_blocks();
            }
            Task::TakeOut => {
                self.perform_take_out(device, mappings).await;
                work.finish(|_| {});
            }
            Task::Reorganise(due) => {
                self.reorganise(device, mappings, due).await;
                work.finish(|_| {});
            }
            Task::Checkpoint => {
                let written = self.checkpoint(device, mappings, now, false).await;
                let failed_at = match written {
                    Ok(()) => 0,
                    Err(error) => {
                        tracing::warn!("checkpoint: {error}");
                        self.counters.log_records.load(Ordering::Relaxed).max(1)
                    }
                };
                self.checkpoint_failed_at.store(failed_at, Ordering::Relaxed);
                work.finish(|_| {});
            }
        }
    }

    /// Writes the block of a piece of work.
    pub(crate) async fn perform_seal<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
        work: Work<B>,
    ) {
        let Task::Seal(block) = work.task() else {
            unreachable!("called for this task only")
        };
        // What was written before is not written again, and nothing of this block may reach the device when it is another's.
        self.wait_for(|structure| !structure.flushing.contains(&block.id))
            .await;
        let end = self.seal(device, mappings, now, block).await;
        self.end_block(work, &end);
    }

    /// Order on the device: the whole block, footer included, in one write; then (with `power`) a flush. A crash before
    /// the write is complete leaves no valid trailer for this sequence, and the block counts for nothing.
    async fn seal<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
        block: &Arc<OpenBlock<B>>,
    ) -> Sealed {
        // Once, and what is written is the same each time: a write that was given up may still be under way.
        let composed = block.composed.get_or_init(|| self.compose(mappings, now, block));
        let Some(trailer) = &composed.trailer else {
            self.settle_slots(block.id, Some(&composed.entries));
            return Sealed::Empty;
        };
        let info = &self.blocks[block.id as usize];
        let written = self.write_block(device, block).await;
        info.note_write(written.is_ok());
        let Err(error) = written else {
            info.footer_len
                .store(trailer.footer_len() as u32, Ordering::Relaxed);
            info.expiry_max
                .store(Ending::of(trailer).expiry_max, Ordering::Relaxed);
            info.filled.store(composed.filled, Ordering::Relaxed);
            self.shrink_slots(block.id);
            add(&self.counters.sealed_blocks, 1);
            return Sealed::Written;
        };
        tracing::error!("writing block {}: {error}", block.id);
        add(&self.counters.write_errors, 1);
        // What the device holds now is undefined, so nothing in this life of the block may ever count.
        self.append_log(device, Kind::Reclaim, u64::from(block.id), block.sequence);
        info.is_leaving.store(true, Ordering::Release);
        for entry in &composed.entries {
            mappings.drop_copy(entry.hash, self.location(block.id, entry), Gone::Lost);
        }
        self.settle_slots(block.id, Some(&composed.entries));
        Sealed::Failed
    }

    /// Strikes what has died, and adds the footer. The block has been `sealing` since before this: what dies from here on is
    /// logged.
    fn compose<M: Mappings>(&self, mappings: &M, now: u32, block: &OpenBlock<B>) -> Composed {
        let mut entries = block.finish();
        let filled = entries.iter().map(|entry| u64::from(entry.len)).sum();
        let lives = |entry: &FooterEntry| {
            let location = self.location(block.id, entry);
            mappings.with(entry.hash, |shard| !shard.is_dead(entry.hash, location))
        };
        // With slots all stay, because their numbers are those of the slots.
        if self.slot_kind == SlotKind::None {
            entries.retain(lives);
        }
        let trailer = entries.iter().any(lives).then(|| {
            let position = self.position_of_block(block.id);
            let own = Ending::new(&entries, position).encode();
            let (footer, trailer) =
                encode_footer(self.cache_id, block.id, block.sequence, now, own, &entries);
            block.put_footer(&footer);
            trailer
        });
        Composed {
            entries,
            trailer,
            filled,
        }
    }

    async fn write_block<D: Device<Buf = B>>(&self, device: &D, block: &OpenBlock<B>) -> io::Result<()> {
        let block_bytes = usize::try_from(self.geometry.block_bytes).expect("at most 256 MiB");
        // What it begins with may be there already.
        let range = block.written()..block_bytes;
        let offset = self.geometry.block_offset(block.id) + range.start as u64;
        add(&self.counters.written_bytes, range.len() as u64);
        self.shared
            .write(device, offset, Arc::clone(&block.buffer), range)
            .await?;
        if self.durability() == Durability::Power {
            self.shared.sync(device).await?;
        }
        Ok(())
    }

    fn end_block(&self, work: Work<B>, end: &Sealed) {
        let Task::Seal(block) = work.task() else {
            unreachable!("called for this task only")
        };
        let (id, sequence, buffer) = (block.id, block.sequence, Arc::clone(&block.buffer));
        let info = &self.blocks[id as usize];
        if !matches!(end, Sealed::Written) {
            info.live.store(0, Ordering::Relaxed);
            if self.mapping_log.get().is_some() {
                // No mapping on flash leads to this life of the block any more.
                info.sequence.store(0, Ordering::Release);
            }
            self.leave_order(id);
        }
        let blocks = &self.blocks;
        // All in one step: who looks for a victim finds the block in each of its places or in none, and a checkpoint that finds
        // it open finds its log position too.
        work.finish(|structure| {
            structure.buffers.push(buffer);
            match end {
                Sealed::Written => {
                    info.set_state(State::Sealed);
                    // Blocks written at the same time end in any order; the queue is by sequence.
                    let at = structure
                        .queue
                        .partition_point(|b| blocks[*b as usize].sequence.load(Ordering::Relaxed) < sequence);
                    structure.queue.insert(at, id);
                    self.note_early_victim(info);
                }
                Sealed::Empty | Sealed::Failed => self.give_back(structure, id),
            }
            self.open.lock().retain(|open| open.id != id);
        });
    }

    /// Notes whether a block that counts as sealed from now on may go before the lowest. Not earlier: whoever looked for a victim
    /// meanwhile would not find the block, and take the note away.
    fn note_early_victim(&self, info: &BlockInfo) {
        // A change, although of nothing: of this and a death at the same time, the later one sees what the other did.
        let live = info.live.fetch_add(0, Ordering::AcqRel);
        if info.expiry_max.load(Ordering::Relaxed) != u32::MAX || self.is_early_victim(info, live) {
            self.has_early_victims.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn location(&self, block: u32, entry: &FooterEntry) -> Location {
        Location {
            offset: self.geometry.block_offset(block) + u64::from(entry.offset),
            len: entry.len,
        }
    }
}
