//! Background work.

use super::seal::Sealer;
use super::{ChunkStore, Chunks, Sealed, Starts};
use pumice_blocks::{Pool, State, Task, Work};
use pumice_device::{Device, Overdue};
use pumice_memory::Buffer;
use std::sync::atomic::Ordering;

/// A checkpoint is due when this part of the blocks was sealed since the last.
const CHECKPOINT_PART: u64 = 16;

impl<B: Buffer> ChunkStore<B> {
    /// Whether there may be work to take; cheap.
    pub fn has_work(&self) -> bool {
        self.base.has_work()
    }

    /// Claims a piece of background work, if any is due: [`ChunkStore::perform`] it.
    pub fn take_work(&self) -> Option<Work<Chunks<B>>> {
        if self.base.is_out() {
            return self.base.take_failure_work();
        }
        if let Some(seal) = self.base.take_seal() {
            return Some(seal);
        }
        let mut pool = self.base.shared.pool.lock();
        let is_busy = pool.checkpointing || pool.own.is_reclaiming;
        if !is_busy && let Some(victims) = self.victims(&mut pool) {
            pool.own.is_reclaiming = true;
            return Some(self.base.claim(&mut pool, Task::Own(victims)));
        }
        let part = u64::from(self.base.geometry.blocks) / CHECKPOINT_PART;
        let is_due = self.base.sealed_since_checkpoint() > part.max(4);
        if !is_busy && self.base.wants_checkpoint(is_due) {
            pool.checkpointing = true;
            return Some(self.base.claim(&mut pool, Task::Checkpoint));
        }
        self.base.shared.has_work.store(false, Ordering::Release);
        None
    }

    /// The blocks that are to be reclaimed now.
    fn victims(&self, pool: &mut Pool<Chunks<B>>) -> Option<Vec<u32>> {
        let is_due = pool.free.len() <= self.spare() + 1;
        let Sealed { order, .. } = &mut pool.own;
        (is_due && !order.is_empty()).then(|| order.drain(..self.batch().min(order.len())).collect())
    }

    /// Performs a piece of work. `now` is the Unix time in seconds.
    pub async fn perform<D: Device<Buf = B>>(&self, device: &D, now: u32, work: Work<Chunks<B>>) {
        match work.task() {
            Task::Seal(_) => {
                let sealer = Sealer { store: self, device };
                return self.base.seal(device, &sealer, now, work).await;
            }
            // The flush interval is 0.
            Task::Flush(_) => {}
            Task::Checkpoint => {
                if let Err(error) = self.checkpoint(device, now, None).await {
                    self.base.note_checkpoint_failure(&error);
                }
            }
            Task::TakeOut => {
                // Writers that wait for it ask whether it is remembered.
                let _ = self.base.remember_failure(device).await;
                self.forget_all();
                self.base.note_given_up();
            }
            Task::Own(victims) => self.reclaim(device, victims).await,
        }
        work.finish(|_| {});
    }

    /// Nothing leads to the device any more.
    fn forget_all(&self) {
        let mut maps = self.maps.lock();
        self.close_active(&mut maps);
        maps.lba.clear();
        maps.fp.clear();
        maps.starts.fill_with(Starts::default);
    }

    /// Waits until a fill would find room, or nothing is under way that would make any. Somebody else performs the work that is due.
    pub async fn wait_for_room(&self) {
        let spare = self.spare();
        self.base
            .wait_for(|pool| {
                let has_room = pool.free.len() > spare && self.base.has_buffer(pool);
                has_room || pool.in_flight == 0
            })
            .await;
    }

    /// Waits, where a write would find the log nearly full, until a checkpoint has made room in it, or none is under way.
    pub async fn wait_for_log(&self) {
        if self.base.is_log_short() {
            self.base.wait_for_log().await;
        }
    }

    /// Seconds without an answer that the device has, for [`Device::tick`], after it was taken out; `None` while it is in use.
    pub fn patience_when_out(&self, now: u32) -> Option<u32> {
        self.base.is_out().then(|| self.base.patience_when_out(now))
    }

    /// An operation has timed out, as [`Device::tick`] has found, maybe one that nothing waits for: the device is taken out.
    pub fn saw_overdue(&self, overdue: Overdue) {
        self.base.saw_overdue(overdue);
    }

    /// Ends the store, so that the next start finds all of it: to be called when no request is under way, the volume was flushed, and all
    /// regions are clear. Background work that other threads have begun goes on there. Of a device that was taken out the next start
    /// finds nothing. `modified` is the time of the volume's last change.
    ///
    /// # Errors
    /// What the device said: the next start finds what a crash leaves.
    pub async fn close<D: Device<Buf = B>>(
        &self,
        device: &D,
        now: u32,
        modified: u64,
    ) -> std::io::Result<()> {
        // A reclaim that another thread has begun opens blocks: until there is none of either.
        loop {
            self.close_active(&mut self.maps.lock());
            while let Some(work) = self.take_work() {
                self.perform(device, now, work).await;
            }
            self.base.quiesce().await;
            let is_open = self.maps.lock().active.is_some();
            if !is_open && !self.has_work() {
                break;
            }
        }
        if self.base.is_out() {
            return match self.base.is_remembered() {
                true => Ok(()),
                false => Err(std::io::Error::other(
                    "the cache device was taken out, and its superblocks cannot say so: what is on it is to be discarded",
                )),
            };
        }
        self.checkpoint(device, now, Some(modified)).await
    }

    /// Checks that the indexes lead to blocks that count, and blocks are where they should be.
    ///
    /// # Panics
    /// Where that is not so.
    pub fn check_invariants(&self) {
        let maps = self.maps.lock();
        let is_there = |block: u32| {
            let state = self.base.blocks[block as usize].state();
            matches!(
                state,
                State::Active | State::Sealing | State::Sealed | State::Reclaiming
            )
        };
        for bucket in 0..maps.lba.buckets() {
            maps.lba.visit(bucket, |slot, _| {
                let place = slot.place;
                assert!(is_there(place.block), "chunk {} leads to {place:?}", slot.address);
                assert!(place.number < maps.starts[place.block as usize].len(), "{slot:?}");
            });
        }
        for bucket in 0..maps.fp.buckets() {
            maps.fp
                .visit(bucket, |_, place| assert!(is_there(place.block), "{place:?}"));
        }
        for id in &self.base.shared.pool.lock().free {
            assert_eq!(self.base.blocks[*id as usize].state(), State::Free);
            assert_eq!(maps.starts[*id as usize].len(), 0, "block {id}");
        }
    }
}
