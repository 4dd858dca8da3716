//! Checkpoints: a snapshot of all mappings, so that a restart reads little and the log can be cut.
//!
//! A checkpoint is a stream of bytes in ordinary blocks, chained by their headers. It is fuzzy: shards are dumped one
//! after the other while requests go on, each with the log position at its dump.
//!
//! # Order, and what a crash leaves
//! 1. Note, under one lock, which blocks are sealed or open, the next sequence, and the log position from which records
//!    matter. Blocks sealed later are found by their trailers.
//! 2. Write the stream. Crash: the superblock still names the checkpoints before, whose blocks are untouched.
//! 3. (With `power`) flush, then write the superblock; to both slots where it is marked `discard` and was not. Crash: one of its two
//!    slots is valid, either is consistent.
//! 4. Free the blocks of the checkpoint before the last, and forget the log records that only it needed. Where a record could not be
//!    stored since the last, those of the last too: a start that had to go back to it would find alive what that record voids.

mod format;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use format::{KEYS_BATCH, Overview};
pub(crate) use reader::ReadObjects;

use crate::Mappings;
use crate::layout::Layout;
use crate::store::{Durability, FlashStore, SavedKey, SavedRanks, State, add};
use pumice_blocks::chain::{BlockRole, BlockRow, Head, NO_BLOCK};
use pumice_blocks::superblock::CheckpointRef;
use pumice_device::Device;
use pumice_memory::Buffer;
use std::io;
use std::sync::atomic::Ordering;
use writer::StreamWriter;

impl<B: Buffer> FlashStore<B> {
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
        self.prune_ranks(mappings).await;
        let sealed = self.counters.sealed_blocks.load(Ordering::Relaxed);
        self.sealed_at_checkpoint.store(sealed, Ordering::Relaxed);
        let failures = self.counters.log_failures.load(Ordering::Acquire);
        let number = self.begin_mapping_checkpoint();
        let (head, overview, failure_may_count) = self.head(mappings);
        let id = self
            .superblock
            .lock()
            .checkpoints
            .iter()
            .map(|c| c.id)
            .max()
            .unwrap_or(0)
            + 1;
        let mut writer = StreamWriter::new(self, device, mappings, now, id);
        let mut bytes = Vec::new();
        head.encode(&mut bytes);
        overview.encode(&mut bytes);
        writer.write(&bytes).await?;
        let mut is_whole = true;
        for shard in 0..mappings.shards() {
            bytes.clear();
            bytes.extend_from_slice(&[0; 16]);
            let (position, count) = mappings.with_shard(shard, |shard| {
                shard.dump(&mut bytes);
                is_whole &= shard.cascade().is_none_or(|shard| !shard.is_blank());
                let count = (bytes.len() - 16) / shard.entry_bytes();
                (self.log.position(), count as u64)
            });
            bytes[..8].copy_from_slice(&position.to_le_bytes());
            bytes[8..16].copy_from_slice(&count.to_le_bytes());
            writer.write(&bytes).await?;
        }
        if self.layout().layout == Layout::Sipq {
            self.write_keys(&mut writer).await?;
        }
        if self.mapping_log.get().is_some() {
            self.write_invalidated(clean && is_whole, &mut writer).await?;
            self.write_slots(&mut writer).await?;
        }
        writer.finish().await?;
        self.flush_mappings(device).await?;
        if self.durability() == Durability::Power {
            self.shared.sync(device).await?;
        }
        // From here to where the blocks are noted nothing is waited for: what the superblock names is never given back.
        let (blocks, total) = writer.into_parts();
        let newest = CheckpointRef {
            id,
            first_block: blocks[0],
            len: total,
            log_start: head.log_start,
        };
        let previous = {
            let mut superblock = self.superblock.lock();
            let before = *superblock;
            superblock.clean = clean;
            // A record that could not be stored is made good by this checkpoint, unless it came after a dump, or voids what
            // the footer of a block lists that is still on its way.
            let has_failed = self.counters.log_failures.load(Ordering::Acquire) != failures;
            superblock.discard = self.durability() == Durability::Off || has_failed || failure_may_count;
            // Without all records since the checkpoint before nobody can go back to it.
            let previous = if before.discard || superblock.discard {
                CheckpointRef::default()
            } else {
                before.checkpoints[0]
            };
            superblock.checkpoints = [newest, previous];
            superblock.saw(now);
            let is_written = self.write_superblock(device, &mut superblock);
            if !is_written {
                *superblock = before;
                self.write_superblock_again(device, &mut superblock);
            } else if superblock.discard && !before.discard {
                // A mark is in both slots, as where a record fails: a start that finds this one unreadable would go by the other, and
                // take what it names for whole. One of the two will do where the other cannot be written.
                self.insist_on_superblock(device, &mut superblock);
            }
            is_written.then_some(previous)
        };
        let Some(previous) = previous else {
            self.shared
                .change(|structure| structure.checkpoint_dropped.extend(blocks));
            // Until then a power cut may leave the superblock that failed, and it names them.
            if self.durability() == Durability::Power {
                self.shared.sync(device).await?;
            }
            self.free_dropped_checkpoints();
            return Err(io::Error::other("the superblock could not be written"));
        };
        {
            let mut structure = self.shared.structure.lock();
            let [newest, older] = &mut structure.checkpoint_blocks;
            let mut dropped = std::mem::replace(older, std::mem::replace(newest, blocks));
            if previous.id == 0 {
                dropped.append(older);
            }
            structure.checkpoint_dropped.extend(dropped);
        }
        if self.durability() == Durability::Power {
            self.shared.sync(device).await?;
        }
        let needed = if previous.id == 0 {
            head.log_start
        } else {
            previous.log_start
        };
        self.log.truncate(head.log_start, needed);
        add(&self.counters.checkpoints, 1);
        self.note_mapping_checkpoint(number, previous.id == 0);
        self.free_dropped_checkpoints();
        Ok(())
    }

    fn free_dropped_checkpoints(&self) {
        let dropped = std::mem::take(&mut self.shared.structure.lock().checkpoint_dropped);
        self.free_checkpoint_blocks(dropped);
    }

    /// The keys of the virtual cache, from the lowest. What moves between two batches may be in both or in neither; at a clean
    /// stop nothing moves.
    async fn write_keys<D: Device<Buf = B>, M: Mappings>(
        &self,
        writer: &mut StreamWriter<'_, B, D, M>,
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&self.layout().policy_checksum().to_le_bytes());
        if let Some(keys) = &self.order.lock().virtual_cache {
            format::encode_fill(keys.fill(), &mut bytes);
        }
        let mut below = 0;
        loop {
            let batch: Vec<SavedKey> = match &self.order.lock().virtual_cache {
                Some(keys) => keys.save_from(below).take(format::KEYS_BATCH).collect(),
                None => Vec::new(),
            };
            below += batch.iter().map(|key| u64::from(key.bytes)).sum::<u64>();
            bytes.extend_from_slice(&(batch.len() as u32).to_le_bytes());
            batch.iter().for_each(|key| format::encode_key(key, &mut bytes));
            writer.write(&bytes).await?;
            bytes.clear();
            if batch.is_empty() {
                return Ok(());
            }
        }
    }

    /// What was invalidated lately, where that `counts` at the next start: after a clean stop nothing is added, and no partition has
    /// forgotten mappings of which these filters do not know. Else it says that nothing is known.
    async fn write_invalidated<D: Device<Buf = B>, M: Mappings>(
        &self,
        counts: bool,
        writer: &mut StreamWriter<'_, B, D, M>,
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        if !counts {
            format::encode_invalidated(u64::MAX, 0, &mut bytes);
            return writer.write(&bytes).await;
        }
        // A reclaim that makes room for the checkpoint would drop filters.
        let saved = self.invalidated.lock().take();
        format::encode_invalidated(saved.known_from, saved.filters.len(), &mut bytes);
        writer.write(&bytes).await?;
        for filter in saved.filters {
            bytes.clear();
            format::encode_filter(&filter, &mut bytes);
            writer.write(&bytes).await?;
        }
        Ok(())
    }

    /// The slots of sealed blocks.
    async fn write_slots<D: Device<Buf = B>, M: Mappings>(
        &self,
        writer: &mut StreamWriter<'_, B, D, M>,
    ) -> io::Result<()> {
        let mut bytes = vec![self.slot_kind.bits() as u8];
        for (id, info) in (0..).zip(&*self.blocks) {
            {
                let slots = info.slots.lock();
                if info.state() == State::Sealed && slots.len() > 0 {
                    format::encode_slots(id, &slots, &mut bytes);
                }
            }
            writer.write(&bytes).await?;
            bytes.clear();
        }
        bytes.extend_from_slice(&NO_BLOCK.to_le_bytes());
        writer.write(&bytes).await
    }

    /// Gives up the checkpoint before the newest, so that no later start can fall back to it.
    pub(crate) fn forget_previous_checkpoint<D: Device>(&self, device: &D) {
        {
            let mut superblock = self.superblock.lock();
            superblock.checkpoints[1] = CheckpointRef::default();
            // To both slots: where one cannot be read, and the newest checkpoint neither, the other would lead to the one before.
            if !(0..2).all(|_| self.write_superblock(device, &mut superblock)) {
                drop(superblock);
                self.distrust(device);
                return;
            }
        }
        let covered = self.log.last_checkpoint();
        self.log.truncate(covered, covered);
        let blocks = std::mem::take(&mut self.shared.structure.lock().checkpoint_blocks[1]);
        self.free_checkpoint_blocks(blocks);
    }

    /// The head of a checkpoint that begins now, and whether a log record that could not be stored concerns a block that is
    /// still open.
    fn head<M: Mappings>(&self, mappings: &M) -> (Head, Overview, bool) {
        // Before the locks below: shards come first in the lock order.
        let entry_bytes = mappings.with_shard(0, |shard| shard.entry_bytes());
        let order = self.order.lock();
        let structure = self.shared.structure.lock();
        let (places, ranks) = order.ranked.as_ref().map_or_else(
            || (self.save_kept(), SavedRanks::default()),
            |ranked| {
                (
                    ranked.queue.save().collect(),
                    ranked.ranks.save(self.layout().policy_checksum()),
                )
            },
        );
        let open = self.open.lock();
        // A block that is sealing was composed, or will be, with what was live at its own moment: records since then count.
        let log_start = open
            .iter()
            .map(|block| block.sealing_position.load(Ordering::Acquire))
            .fold(self.log.position(), u64::min);
        let failed_below = self.log_failed_below.load(Ordering::Acquire);
        let failure_may_count = open
            .iter()
            .any(|block| block.sealing_position.load(Ordering::Acquire) < failed_below);
        let rows = self
            .blocks
            .iter()
            .map(|info| BlockRow {
                sequence: info.sequence.load(Ordering::Relaxed),
                role: match info.state() {
                    State::Sealed => BlockRole::Sealed,
                    State::Active | State::Sealing => BlockRole::Open,
                    State::Free | State::Reclaiming | State::Checkpoint | State::Mappings | State::Bad => {
                        BlockRole::Other
                    }
                },
                footer_len: info.footer_len.load(Ordering::Relaxed),
                own: info.expiry_max.load(Ordering::Relaxed),
            })
            .collect();
        let head = Head {
            next_sequence: structure.next_sequence,
            log_start,
            rows,
        };
        let overview = Overview {
            flush_at: self.flush_at(),
            shards: u32::try_from(mappings.shards()).expect("few shards"),
            entry_bytes: u32::try_from(entry_bytes).expect("about ten"),
            places,
            ranks,
        };
        (head, overview, failure_may_count)
    }
}
