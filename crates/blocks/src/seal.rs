//! Writing blocks: a full one with its footer, and the beginning of one that fills slowly.
//!
//! # Prefixes
//!
//! A prefix ends with a whole sector and is never changed: the next piece begins behind it, and the block is sealed by a write of what
//! follows. When it is on the device a log record says how far it reaches, in which generation of its block. A start that finds no
//! footer of that generation asks the owner for the entries of the pieces up to there, and writes the footer. An owner that finds the end
//! by itself (`Restore::finds_ends`) logs the first prefix of a block alone: so a flush of the device need not write the log.
//!
//! So a piece in a prefix counts as flash from the moment its write begins: its death is logged afterwards, and a death before is logged
//! by the thread that writes the prefix:
//!
//! ```text
//! flush 1  prefix_end = end                        (begin_prefix)
//! flush 2  for each entry, under its lock: dead? log    (the owner)
//! flush 3  write, log the prefix                   (write_prefix)
//! set 1    under the lock: entry below prefix_end? log
//! set 2    the key leads to the new copy
//! ```
//! A death before the lock's turn in flush 2 is found there; one after it sees flush 1.
//!
//! # Steps
//!
//! A device that passes the bytes of a whole block answers no read meanwhile. So a block is written step by step, the next when the one
//! before is done, and reads come in between. A step is as long as what was appended during the one before, at least [`STEP_BYTES`]: so
//! blocks are written as fast as they are filled. Each other block that is being written makes it four times as long, since buffers get
//! short. No timer is needed: the shortest steps, one at a time, come to two fifths of what an NVMe drive writes.
//!
//! What somebody waits for is one write: a prefix, and what is left of a block once [`Blocks::write_out`] waits for it.
//!
//! # Holes
//!
//! A write into a hole of the device file makes the file system note where the bytes are, and a flush then waits for the note, too. So an owner
//! that waits for a prefix fills the hole first, with zeros for a MiB of prefixes ([`Blocks::fill_hole`]). That costs each part of a
//! new file a second write, once.

use crate::block::{Composed, OpenBlock, Prefix};
use crate::blocks::{Blocks, Durability, add};
use crate::footer::encode_footer;
use crate::log::Logged;
use crate::log::{Kind, PrefixMark};
use crate::owner::{Contents, Owner, SealEnd, Tenant};
use crate::pool::State;
use crate::work::{Shared, Task, Work};
use pumice_device::{Device, SECTOR_BYTES};
use pumice_memory::Buffer;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of the shortest step. A drive that writes 2.7 GB/s passes them in 12 µs, and a read of it takes 67 µs:
/// by the model of `nvme` the 99th percentile of reads is 1.1 to 1.2 times as long while blocks are written, with 64 KiB 1.3 times.
pub const STEP_BYTES: usize = 32 << 10;
/// Most bytes of a hole that are filled at once.
const HOLE_BYTES: usize = 1 << 20;

impl<O: Owner> Blocks<O> {
    /// Writes the block of a piece of work, which is a [`Task::Seal`].
    ///
    /// Order on the device: the whole block step by step, the footer's end in the last; then (with `power`) a flush. A crash before the
    /// last write is complete leaves no valid trailer for this sequence, and the block counts for nothing.
    pub async fn seal<D: Device<Buf = O::Buf>>(
        &self,
        device: &D,
        tenant: &impl Tenant<O>,
        now: u32,
        work: Work<O>,
    ) {
        let Task::Seal(block) = work.task() else {
            unreachable!("called for this task only")
        };
        let block = Arc::clone(block);
        // What was written before is not written again, and nothing of this block may reach the device when it is another's.
        self.wait_for(|pool| !pool.flushing.contains(&block.id)).await;
        // Once, and what is written is the same each time: a write whose future was dropped may still be under way.
        let composed = block.composed.get_or_init(|| self.compose(tenant, now, &block));
        let end = match &composed.trailer {
            None => SealEnd::Empty,
            Some(trailer) => {
                let footer_len = u32::try_from(trailer.footer_len()).expect("shorter than a block");
                let written = self.write_block(device, &block).await;
                let info = &self.blocks[block.id as usize];
                info.note_write(written.is_ok());
                match written {
                    Ok(()) => {
                        info.footer_len.store(footer_len, Ordering::Relaxed);
                        add(&self.totals.sealed_blocks, 1);
                        SealEnd::Written
                    }
                    Err(error) => {
                        tracing::error!("writing block {}: {error}", block.id);
                        add(&self.totals.write_errors, 1);
                        tenant.failed();
                        SealEnd::Failed(self.journal.append(
                            device,
                            Kind::Reclaim,
                            block.id.into(),
                            block.sequence,
                        ))
                    }
                }
            }
        };
        tenant.settle(&block, end, &composed.entries);
        let (id, buffer) = (block.id, Arc::clone(&block.buffer));
        // The last reference to the block but that of the work, which ends first: a task that is woken finds the buffer free.
        drop(block);
        // All in one step: a search for a victim finds the block in each of its places or in none, and a checkpoint that finds
        // it open finds its log position too.
        work.finish(|pool| {
            pool.buffers.push(buffer);
            if end == SealEnd::Written {
                self.blocks[id as usize].set_state(State::Sealed);
            } else {
                self.give_back(pool, id);
            }
            tenant.file(pool, id, end);
            self.open.lock().retain(|open| open.id != id);
        });
    }

    fn compose(&self, tenant: &impl Tenant<O>, now: u32, block: &OpenBlock<O>) -> Composed<O::Entry> {
        let Contents { entries, own } = tenant.compose(block, block.finish());
        let trailer = own.map(|own| {
            let (footer, trailer) =
                encode_footer(self.cache_id, block.id, block.sequence, now, own, &entries);
            block.put_footer(&footer);
            trailer
        });
        Composed { entries, trailer }
    }

    async fn write_block<D: Device<Buf = O::Buf>>(&self, device: &D, block: &OpenBlock<O>) -> io::Result<()> {
        let block_bytes = usize::try_from(self.geometry.block_bytes).expect("at most 256 MiB");
        // Its beginning may be there already.
        let mut at = block.written();
        add(&self.totals.written_bytes, (block_bytes - at) as u64);
        block.sent.store(block_bytes, Ordering::Relaxed);
        let mut buffered = self.buffered_bytes();
        while at < block_bytes {
            let before = std::mem::replace(&mut buffered, self.buffered_bytes());
            let appended = buffered.saturating_sub(before).next_multiple_of(SECTOR_BYTES);
            let step = appended.max(self.step_bytes);
            let others = self.shared.pool.lock().sealing.saturating_sub(1);
            let step = match block.is_awaited.load(Ordering::Relaxed) {
                true => block_bytes,
                false => step.saturating_mul(1 << (2 * others).min(16)),
            };
            let range = at..at + step.min(block_bytes - at);
            at = range.end;
            let offset = self.geometry.block_offset(block.id) + range.start as u64;
            self.shared
                .write(device, offset, Arc::clone(&block.buffer), range)
                .await?;
        }
        if self.durability == Durability::Power {
            self.shared.sync(device).await?;
        }
        Ok(())
    }

    /// Bytes in all blocks that are buffers still.
    fn buffered_bytes(&self) -> usize {
        self.open.lock().iter().map(|block| block.end()).sum()
    }

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
        old.into_iter().for_each(|block| self.flush_now(block));
    }

    /// Makes the beginning of a block due to be written, if the block is being filled.
    fn flush_now(&self, block: Arc<OpenBlock<O>>) {
        let mut pool = self.shared.pool.lock();
        if !pool.is_flushing(block.id) && self.blocks[block.id as usize].state() == State::Active {
            pool.to_flush.push(block);
            self.shared.has_work.store(true, Ordering::Release);
        }
    }

    /// Waits until all pieces appended before are on the device, or the device is fenced. Other tasks perform the work: a
    /// [`Task::Flush`] of the active block that writes nothing must close the block. Pieces of a block that could not be written count as
    /// written, unless its owner fences the device.
    pub async fn write_out(&self) {
        let open: Vec<_> = (self.open.lock().iter())
            .map(|block| (block.id, block.sequence, block.end()))
            .collect();
        for (id, sequence, end) in open {
            let unwritten = || {
                let open = self.find_open(id).filter(|open| open.sequence == sequence);
                open.filter(|open| open.written() < end && !self.is_out())
            };
            while let Some(block) = unwritten() {
                let is_active = || self.blocks[id as usize].state() == State::Active;
                block.is_awaited.store(!is_active(), Ordering::Relaxed);
                self.flush_now(block);
                self.wait_for(|pool| unwritten().is_none() || (is_active() && !pool.is_flushing(id)))
                    .await;
            }
        }
    }

    /// Whether a piece that is not on the device yet is wanted, or a full block is not there: its pieces are not looked at.
    pub fn has_unwritten(&self, is_wanted: impl Fn(&O::Entry) -> bool) -> bool {
        // In this order: what is composed meanwhile is not active any more.
        let open = self.open.lock();
        (open.iter()).any(|block| block.has_unwritten(&is_wanted) || !self.is_active(block))
    }

    /// Bytes sent to the device since it was opened, log and superblocks included, and bytes in block buffers that are not sent yet.
    pub fn sent_bytes(&self) -> u64 {
        let open = self.open.lock();
        let buffered = open.iter().map(|block| block.unsent_bytes() as u64);
        self.totals.written_bytes.load(Ordering::Relaxed) + buffered.sum::<u64>()
    }

    /// Seconds for which the oldest piece had been in a buffer alone at the last check, up to one too many.
    pub fn unwritten_secs(&self) -> u32 {
        let now = self.looked_at.load(Ordering::Relaxed);
        let open = self.open.lock();
        let since = open.iter().filter_map(|block| block.unwritten_since(now)).min();
        since.map_or(0, |since| now.saturating_sub(since))
    }

    /// Whether a block is still being filled, in the generation that it was taken in.
    pub fn is_active(&self, block: &OpenBlock<O>) -> bool {
        let info = &self.blocks[block.id as usize];
        let is_this = info.sequence.load(Ordering::Acquire) == block.sequence;
        info.state() == State::Active && is_this
    }

    /// Deaths in a prefix that was begun ([`OpenBlock::begin_prefix`]) are logged from here on; flush 1. Waits for threads that are
    /// between reserving and publishing, which is short.
    pub fn begin_prefix(&self, block: &OpenBlock<O>, prefix: &Prefix<O::Entry>) {
        // A checkpoint keeps the log from here on, as long as the block has no footer.
        block
            .sealing_position
            .fetch_min(self.journal.log.position(), Ordering::Release);
        let info = &self.blocks[block.id as usize];
        info.prefix_end.store(prefix.range.end as u32, Ordering::Release);
        block.wait_for_prefix(prefix);
    }

    /// Writes a prefix, and logs it; flush 3. `own` are the owner's bits of the log record. Where that is not stored, a start finds
    /// the prefix only if the block is sealed before. `None`: there is no record, and a start finds the prefix if the one before was found and the
    /// owner [finds ends](crate::recovery::Restore::finds_ends).
    ///
    /// Where there is no record, though there ought to be one, the next prefix or the seal writes these bytes again.
    ///
    /// # Errors
    /// What the device said. The seal writes these bytes again.
    pub async fn write_prefix<D: Device<Buf = O::Buf>>(
        &self,
        device: &D,
        block: &OpenBlock<O>,
        prefix: &Prefix<O::Entry>,
        own: Option<u16>,
        now: u32,
    ) -> io::Result<Logged> {
        let (start, end) = (prefix.range.start, prefix.range.end);
        add(&self.totals.prefix_writes, 1);
        add(&self.totals.prefix_padding_bytes, prefix.padding as u64);
        add(&self.totals.written_bytes, (end - start) as u64);
        block.sent.store(end, Ordering::Relaxed);
        let offset = self.geometry.block_offset(block.id) + start as u64;
        self.shared
            .write(device, offset, Arc::clone(&block.buffer), prefix.range.clone())
            .await?;
        let mark = |own| PrefixMark {
            block: block.id,
            end_sectors: (end / SECTOR_BYTES) as u16,
            own,
        };
        let logged = match own {
            Some(own) => self
                .journal
                .append(device, Kind::Prefix, mark(own).encode(), block.sequence),
            None => {
                self.journal.wants_sync();
                Logged::Stored
            }
        };
        self.journal.commit(device).await?;
        if matches!(logged, Logged::Stored | Logged::Off) {
            block.note_written(prefix, now);
        }
        Ok(logged)
    }

    /// Fills the hole of the device file where a prefix is to be written, if there is one, and what follows of it. For a prefix that is to be
    /// durable, before [`Blocks::write_prefix`]. Errors show there. The device is fenced if the future is dropped meanwhile: the
    /// zeros may still come, over what is written later.
    pub async fn fill_hole<D: Device<Buf = O::Buf>>(
        &self,
        device: &D,
        block: &OpenBlock<O>,
        prefix: &Prefix<O::Entry>,
    ) {
        let Range { start, end } = prefix.range;
        if end <= block.filled.load(Ordering::Relaxed) || end - start >= HOLE_BYTES {
            return;
        }
        let block_bytes = usize::try_from(self.geometry.block_bytes).expect("at most 256 MiB");
        let offset = block.device_offset + start as u64;
        if !device.is_hole(offset) {
            // Blocks are filled from their start on, so the rest may be one still.
            return block.filled.store(end, Ordering::Relaxed);
        }
        let len = HOLE_BYTES.min(block_bytes - start);
        add(&self.totals.written_bytes, len as u64);
        let under_way = UnderWay(&self.shared);
        let zeros = Arc::new(O::Buf::with_len(len));
        // A failure is counted, and the prefix says whether the device takes it.
        let _ = self.shared.write(device, offset, zeros, 0..len).await;
        std::mem::forget(under_way);
        block.filled.store(start + len, Ordering::Relaxed);
    }
}

/// Fences the device when it is dropped.
struct UnderWay<'a, O: Owner>(&'a Shared<O>);

impl<O: Owner> Drop for UnderWay<'_, O> {
    fn drop(&mut self) {
        self.0.take_out("a write of zeros was abandoned".to_owned());
    }
}
