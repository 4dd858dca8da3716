//! Prefixes of active blocks: what has waited in a buffer for the flush interval is written before its block is full.
//!
//! A prefix ends with a whole sector and is never changed: the next record begins behind it, and the block is sealed by a write of what
//! follows. When it is on the device a log record says how far it reaches, in which life of its block. A start that finds no
//! footer of that life reads the records' headers up to there, and writes the footer.
//!
//! So a record in a prefix counts as flash from the moment its write begins: with index `full` what dies there afterwards is logged
//! ([`FlashStore::invalidate`]), and what had died before is logged by whoever writes the prefix:
//!
//! ```text
//! flush 1  prefix_end = end
//! flush 2  for each record, under its shard's lock: dead? log
//! flush 3  write, log the prefix
//! set 1    under the shard's lock: record below prefix_end? log
//! set 2    map the key to the new copy
//! ```
//! A death before the shard's turn in flush 2 is found there; one after it sees flush 1.

use super::{Durability, FlashStore, State, add, give_turn};
use crate::Mappings;
use crate::block::OpenBlock;
use crate::log::LogKind;
use crate::reclaim::ENTRIES_PER_TURN;
use pumice_blocks::log::{Kind, PrefixMark};
use pumice_device::{Device, SECTOR_BYTES};
use pumice_memory::Buffer;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl<B: Buffer> FlashStore<B> {
    /// Notes how old what is in buffers is, and makes it due to be written where that is the flush interval. To be called each second.
    pub fn flush_aged(&self, now: u32) {
        let seen = self.looked_at.swap(now, Ordering::Relaxed);
        let mut old = self.open.lock().clone();
        old.retain(|block| {
            let since = block.unwritten_since(seen);
            since.is_some_and(|since| now.saturating_sub(since) >= self.flush_interval_secs)
        });
        // Without a log no start would find it.
        if self.flush_interval_secs == 0 || self.durability == Durability::Off || self.is_out() {
            return;
        }
        let mut structure = self.shared.structure.lock();
        for block in old {
            let is_taken = structure.flushing.contains(&block.id)
                || structure.to_flush.iter().any(|other| other.id == block.id);
            if !is_taken && self.blocks[block.id as usize].state() == State::Active {
                structure.to_flush.push(block);
                self.shared.has_work.store(true, Ordering::Release);
            }
        }
    }

    /// For how many seconds the oldest object that was to go to flash had been in a buffer alone when it was last looked, up to one too
    /// many.
    pub fn unwritten_secs(&self) -> u32 {
        let now = self.looked_at.load(Ordering::Relaxed);
        let open = self.open.lock();
        let since = open.iter().filter_map(|block| block.unwritten_since(now)).min();
        since.map_or(0, |since| now.saturating_sub(since))
    }

    /// Writes what an active block begins with. A piece of work: one at a time for each block.
    pub(crate) async fn write_prefix<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
        block: &OpenBlock<B>,
    ) -> io::Result<()> {
        let info = &self.blocks[block.id as usize];
        let prefix = {
            // A block begins to be sealed under this lock, and is not written before this has ended. One that died before is another
            // life's by now.
            let mut order = self.order.lock();
            let is_this_life = info.sequence.load(Ordering::Acquire) == block.sequence;
            if info.state() != State::Active || !is_this_life {
                return Ok(());
            }
            let prefix = block.begin_prefix();
            if prefix.is_none() {
                self.retire_open(&mut order, block.id);
                self.rebalance(&mut order);
            }
            prefix
        };
        let Some(prefix) = prefix else { return Ok(()) };
        let (start, end) = (prefix.range.start, prefix.range.end);
        // A checkpoint keeps the log from here on, as long as the block has no footer.
        block
            .sealing_position
            .fetch_min(self.log.position(), Ordering::Release);
        info.prefix_end.store(end as u32, Ordering::Release);
        block.wait_for_prefix(&prefix);
        if self.mapping_log.get().is_none() {
            for (at, entry) in prefix.entries.iter().enumerate() {
                if at % ENTRIES_PER_TURN == ENTRIES_PER_TURN - 1 {
                    give_turn().await;
                }
                let location = self.location(block.id, entry);
                mappings.with(entry.hash, |shard| {
                    if shard.is_dead(entry.hash, location) {
                        self.append_log(device, LogKind::Void, entry.hash, entry.version + 1);
                    }
                });
            }
        }
        add(&self.counters.prefix_writes, 1);
        add(&self.counters.prefix_padding_bytes, prefix.padding as u64);
        add(&self.counters.written_bytes, (end - start) as u64);
        let offset = self.geometry.block_offset(block.id) + start as u64;
        let written = self
            .shared
            .write(device, offset, Arc::clone(&block.buffer), prefix.range.clone());
        written.await?;
        let mark = PrefixMark {
            block: block.id,
            end_sectors: (end / SECTOR_BYTES) as u16,
            own: self.position_of_block(block.id),
        };
        self.append_log(device, Kind::Prefix, mark.encode(), block.sequence);
        if self.durability == Durability::Power {
            self.shared.sync(device).await?;
        }
        block.note_written(&prefix, now);
        Ok(())
    }
}
