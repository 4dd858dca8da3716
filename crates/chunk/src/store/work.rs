//! Background work.

use super::ChunkStore;
use super::open::describe;
use super::owner::Chunks;
use super::reclaim::Reclaim;
use super::seal::Sealer;
use crate::place::Place;
use pumice_blocks::{State, Task, Work};
use pumice_device::{Device, Overdue};
use pumice_memory::Buffer;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// A checkpoint is due when one block of so many was sealed since the last.
const CHECKPOINT_PART: u64 = 8;

impl<B: Buffer> ChunkStore<B> {
    /// Whether there may be work to take. Cost: one load.
    pub fn has_work(&self) -> bool {
        self.base.has_work()
    }

    /// Claims a piece of background work, if any is due. Pass it to [`ChunkStore::perform`]; if dropped, it is due again.
    pub fn take_work(&self) -> Option<Work<Chunks<B>>> {
        if self.base.is_out() {
            return self.base.take_failure_work();
        }
        let mut pool = self.base.shared.pool.lock();
        if let Some(write) = self.base.take_write(&mut pool) {
            return Some(write);
        }
        let is_busy = pool.checkpointing || pool.own.is_reclaiming;
        let sequence = |block| self.appender.sequence(block);
        let (is_reclaim_due, mut is_uncovered) = pool.own.is_due(pool.free.len(), &self.room, sequence);
        is_uncovered &= self.keeps;
        // The checkpoint that the log needs goes before a reclaim, which logs, too.
        if !is_busy && is_reclaim_due && !is_uncovered && !self.base.journal.wants_checkpoint(false) {
            let order = &mut pool.own.order;
            let victims = order.drain(..self.room.batch.min(order.len())).collect();
            pool.own.is_reclaiming = true;
            return Some(self.base.claim(&mut pool, Task::Own(victims)));
        }
        let part = u64::from(self.base.geometry.blocks) / CHECKPOINT_PART;
        let is_due = self.base.sealed_since_checkpoint() > part.max(4) || is_uncovered;
        if !is_busy && self.base.journal.wants_checkpoint(is_due) {
            pool.checkpointing = true;
            return Some(self.base.claim(&mut pool, Task::Checkpoint));
        }
        self.base.shared.has_work.store(false, Ordering::Release);
        None
    }

    /// Begins no reclaim before the next [`ChunkStore::tick`]: dirty chunks of the victims cannot be cleaned.
    pub fn pause_reclaims(&self) {
        self.base.shared.pool.lock().own.is_paused = true;
    }

    /// Writes down the time, where the next start is to know it. To be called each second.
    pub fn note_alive<D: Device<Buf = B>>(&self, device: &D, now: u32) {
        if self.notes_life && self.base.journal.should_note_alive(now) {
            self.base.journal.note_alive(device, now);
        }
    }

    /// Counts a second of the time `now`: what was appended in an earlier one is written, and a reclaim that failed is tried again.
    pub fn tick(&self, now: u32) {
        if !self.keeps {
            return;
        }
        self.base.flush_aged(now);
        let mut pool = self.base.shared.pool.lock();
        if std::mem::take(&mut pool.own.is_paused) {
            self.base.shared.has_work.store(true, Ordering::Release);
        }
    }

    /// Performs a piece of work. `now` is the Unix time in seconds.
    pub async fn perform<D: Device<Buf = B>>(&self, device: &D, now: u32, work: Work<Chunks<B>>) {
        match work.task() {
            Task::Seal(_) => {
                let sealer = Sealer { store: self, device };
                return self.base.seal(device, &sealer, now, work).await;
            }
            Task::Flush(block) => {
                if let Err(error) = self.appender.write_beginning(device, block, now).await {
                    let reason = format!("writing the beginning of block {}: {error}", block.id);
                    self.base.shared.take_out(reason);
                }
            }
            Task::Checkpoint => {
                if let Err(error) = self.checkpoint(device, now, None).await {
                    self.base.journal.note_checkpoint_failure(&error);
                }
            }
            Task::TakeOut if self.dirty() > 0 => {
                // The next start finds what is durable.
                self.base.shared.keep_after_failure().await;
                self.base.shared.note_given_up();
            }
            Task::TakeOut => {
                describe(&mut self.base.journal.superblock.lock(), false, false);
                // Writers wait for the outcome, and ask whether the fence is durable.
                let _ = self.base.journal.remember_failure(device).await;
                // Nothing on the device counts any more.
                let mut mapped = self.addresses.lock();
                self.appender.forget_all();
                mapped.index.clear();
                self.fingerprints.lock().clear();
                drop(mapped);
                self.base.shared.note_given_up();
            }
            Task::Own(victims) => {
                let kept = Reclaim::new(self, device, victims).run().await;
                return work.finish(|pool| pool.own.order.extend(kept));
            }
        }
        work.finish(|_| {});
    }

    /// Waits until a fill would find room, or no background work is under way that would make room. Another task performs that work.
    pub async fn wait_for_room(&self) {
        self.base
            .wait_for(|pool| {
                let has_room = pool.free.len() > self.room.spare && self.base.has_buffer(pool);
                has_room || pool.in_flight == 0
            })
            .await;
    }

    /// Whether all chunks of a range could enter while nothing else leaves: blocks are free that no reclaim or checkpoint has made so, and a
    /// slot of the index for each chunk.
    pub fn has_free_room(&self, chunks: Range<u64>) -> bool {
        let mapped = self.addresses.lock();
        // A reclaim begins with one block above the spare ones, and frees a batch; a checkpoint frees those of an older one.
        let made = self.room.spare + 1 + self.room.batch + self.room.checkpoint;
        let has_blocks = self.base.shared.pool.lock().free.len() > made;
        has_blocks && chunks.into_iter().all(|chunk| mapped.index.has_free_slot(chunk))
    }

    /// Waits until a change may append `records` to the log; false if there is no room, and no checkpoint can make any. Another task writes
    /// the checkpoint.
    pub async fn wait_for_log(&self, records: u64) -> bool {
        self.base.journal.wait_for_room(records).await
    }

    /// Counts a second of a fenced device, and returns the deadline in seconds for [`Device::tick`]; `None` while it is in use.
    pub fn tick_when_out(&self, now: u32) -> Option<u32> {
        self.base
            .shared
            .is_out()
            .then(|| self.base.shared.tick_when_out(now))
    }

    /// Fences the device after an operation has timed out, as [`Device::tick`] reports.
    pub fn saw_overdue(&self, overdue: Overdue) {
        self.base.shared.saw_overdue(overdue);
    }

    /// Closes the store, so that the next start finds all of it. Call it when no request is under way, the volume is flushed and no region
    /// is marked. Background work of other threads goes on there. After a fence the next start finds nothing. `modified` gives the time of the
    /// volume's last change, once no work is under way.
    ///
    /// # Errors
    /// An error of the device. The next start is then one after a crash.
    pub async fn close<D: Device<Buf = B>>(
        &self,
        device: &D,
        now: u32,
        modified: impl FnOnce() -> std::io::Result<u64>,
    ) -> std::io::Result<()> {
        // A reclaim of another thread opens blocks: repeat until there is neither a reclaim nor an open block.
        // Reclaims would wait for dirty chunks to be cleaned, and there is room for a checkpoint without them.
        self.base.shared.pool.lock().own.is_paused = self.keeps;
        loop {
            self.appender.close();
            while let Some(work) = self.take_work() {
                self.perform(device, now, work).await;
            }
            self.base.quiesce().await;
            if !self.appender.is_open() && !self.has_work() {
                break;
            }
        }
        if self.base.is_out() {
            return match self.base.shared.is_remembered() {
                true => Ok(()),
                false => Err(std::io::Error::other(
                    "the cache device was taken out, and its superblocks cannot say so: what is on it is to be discarded",
                )),
            };
        }
        describe(&mut self.base.journal.superblock.lock(), self.dirty() > 0, false);
        self.checkpoint(device, now, Some(modified()?)).await
    }

    /// Checks that the indexes name contents of blocks in use only, and that free blocks have none.
    ///
    /// # Panics
    /// If that is not so.
    pub fn check_invariants(&self) {
        let mapped = self.addresses.lock();
        if self.base.is_out() {
            return;
        }
        let is_there = |block: u32| {
            let state = self.base.blocks[block as usize].state();
            matches!(
                state,
                State::Active | State::Sealing | State::Sealed | State::Reclaiming
            )
        };
        for bucket in 0..mapped.index.buckets() {
            let is_content =
                |place: Place| is_there(place.block) && place.number < self.appender.contents_of(place.block);
            mapped.index.visit(
                bucket,
                |place| !is_content(place),
                |slot, _| panic!("chunk {} leads to {:?}", slot.address, slot.place),
            );
        }
        let contents = self.fingerprints.lock();
        for bucket in 0..contents.buckets() {
            contents.visit(bucket, |_, place| assert!(is_there(place.block), "{place:?}"));
        }
        drop(contents);
        let free: Vec<u32> = self.base.shared.pool.lock().free.iter().copied().collect();
        for id in free {
            assert_eq!(self.base.blocks[id as usize].state(), State::Free);
            assert_eq!(self.appender.contents_of(id), 0, "block {id}");
        }
    }
}
