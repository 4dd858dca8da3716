//! Background work: what is due, who has taken it, and who waits for its end.

use super::FlashStore;
use crate::objects::{OpenBlock, Pool, Task, Work};
use pumice_blocks::State;
use pumice_blocks::Task::{Checkpoint, Own};
use pumice_memory::Buffer;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Blocks that are reclaimed at the same time, at most: what a reclaim waits for is mostly the device.
const RECLAIMS_MAX: u64 = 8;
/// Blocks that are reclaimed at the same time have at most so many bytes together, since their footers are in DRAM, each at
/// most a fifth of its block. One block may be larger.
const RECLAIM_BLOCKS_BYTES_MAX: u64 = 8 << 20;

/// A device has so many blocks for each that is made free ahead of need.
const BLOCKS_PER_RECLAIM_AHEAD: usize = 100;

impl<B: Buffer> FlashStore<B> {
    /// The next piece of background work, for [`FlashStore::perform`].
    pub fn take_work(&self) -> Option<Work<B>> {
        if self.is_out() {
            return self.take_failure_work();
        }
        if let Some(pages) = self.mapping_pages() {
            pages.take_back();
        }
        let work = self
            .take_mapping_write()
            .or_else(|| self.take_block_work())
            .or_else(|| self.take_reorganisation());
        // What came while this looked elsewhere.
        let is_pending = || {
            self.shared.is_failure_due() || self.mapping_pages().is_some_and(|pages| pages.log.is_pending())
        };
        if work.is_none() && is_pending() {
            self.shared.has_work.store(true, Ordering::Release);
        }
        work
    }

    /// Whether nothing more may be begun for now.
    fn is_busy(&self) -> bool {
        self.lockstep && self.shared.pool.lock().in_flight > 0
    }

    // The mapping log's lock comes before that of the pool, so its work is taken without the latter.

    fn take_mapping_write(&self) -> Option<Work<B>> {
        if self.is_busy() {
            return None;
        }
        let write = self.mapping_pages()?.log.take_full()?;
        let mut pool = self.shared.pool.lock();
        Some(self.claim(&mut pool, Own(Task::WriteMappings(write))))
    }

    fn take_reorganisation(&self) -> Option<Work<B>> {
        let pages = self.mapping_pages()?;
        if self.is_busy() || std::mem::replace(&mut self.shared.pool.lock().own.reorganising, true) {
            return None;
        }
        let due = pages.log.take_due();
        let mut pool = self.shared.pool.lock();
        let Some(due) = due else {
            pool.own.reorganising = false;
            return None;
        };
        Some(self.claim(&mut pool, Own(Task::Reorganise(due))))
    }

    fn take_block_work(&self) -> Option<Work<B>> {
        loop {
            let mut pool = self.shared.pool.lock();
            if self.lockstep && pool.in_flight > 0 {
                return None;
            }
            if let Some(work) = self.take_write(&mut pool) {
                return Some(work);
            }
            if pool.own.reclaiming < self.reclaims_max() && self.wants_reclaim(&pool) {
                pool.own.reclaiming += 1;
                return Some(self.claim(&mut pool, Own(Task::Reclaim)));
            }
            if let Some(position) = self.held_log(&pool) {
                drop(pool);
                self.retire_older(position);
                pool = self.shared.pool.lock();
                if !pool.to_seal.is_empty() {
                    continue;
                }
                // What is being written asks again when it is done.
                self.shared.has_work.store(false, Ordering::Release);
                return None;
            }
            if !pool.checkpointing && pool.own.ready.is_empty() && self.is_checkpoint_due() {
                pool.checkpointing = true;
                return Some(self.claim(&mut pool, Checkpoint));
            }
            self.shared.has_work.store(false, Ordering::Release);
            return None;
        }
    }

    /// Where a checkpoint is due, but a block has been open for so long that the log would have to be kept from then on: the
    /// position before which a block must not have been opened.
    fn held_log(&self, pool: &Pool<B>) -> Option<u64> {
        if pool.checkpointing || !self.is_checkpoint_due() {
            return None;
        }
        let oldest = self
            .journal
            .log
            .position()
            .saturating_sub(self.geometry.log_slots / 8);
        let open = self.open.lock();
        // With index `full` what is being written has its footer soon, and is not waited for.
        let waits_for_footer = !self.is_authoritative();
        let mut open = open
            .iter()
            .filter(|block| waits_for_footer || self.blocks[block.id as usize].state() == State::Active);
        let is_old = |block: &Arc<OpenBlock<B>>| block.sealing_position.load(Ordering::Acquire) < oldest;
        open.any(is_old).then_some(oldest)
    }

    /// Claims the right to reclaim the oldest block whatever is free, for a host that needs the DRAM of its mappings. `None`
    /// where a reclaim is under way, where there is nothing to reclaim, or where no block was sealed since the last such
    /// claim: what one block's mappings held is enough for about as many new ones as a block has.
    pub fn take_early_reclaim(&self) -> Option<Work<B>> {
        self.claim_early_reclaim(true)
    }

    pub(crate) fn claim_early_reclaim(&self, seldom: bool) -> Option<Work<B>> {
        let mut pool = self.shared.pool.lock();
        if self.is_out() || pool.own.reclaiming > 0 || !pool.own.has_victim() {
            return None;
        }
        if seldom {
            let sealed = self.totals.sealed_blocks.load(Ordering::Relaxed);
            if pool.own.early_at == Some(sealed) {
                return None;
            }
            pool.own.early_at = Some(sealed);
        }
        pool.own.reclaiming += 1;
        Some(self.claim(&mut pool, Own(Task::EarlyReclaim)))
    }

    /// How many blocks may be reclaimed at the same time.
    pub(crate) fn reclaims_max(&self) -> usize {
        let fit = RECLAIM_BLOCKS_BYTES_MAX / self.geometry.block_bytes;
        usize::try_from(fit.clamp(1, RECLAIMS_MAX)).expect("small")
    }

    /// Below so many free blocks there are reclaims: the reserve, and some ahead of need, so that nobody waits for one.
    pub(crate) fn blocks_kept_free(&self) -> usize {
        // In lockstep each reclaim is done before the next request, and none is needed ahead.
        let ahead = match self.lockstep {
            true => 0,
            false => (self.geometry.blocks as usize / BLOCKS_PER_RECLAIM_AHEAD).min(self.reclaims_max()),
        };
        (self.geometry.reserved as usize + ahead).max(self.order.wants.free_blocks)
    }

    /// Whether there are more free blocks than reclaims keep: what is written now takes nothing's place.
    pub fn is_filling(&self) -> bool {
        let pool = self.shared.pool.lock();
        pool.free.len() + pool.own.victims.len() > self.blocks_kept_free()
    }

    /// Whether too few blocks are free. One that is being reclaimed counts as free.
    pub(crate) fn wants_reclaim(&self, pool: &Pool<B>) -> bool {
        let free = pool.free.len() + pool.own.victims.len();
        let wanted = self.blocks_kept_free() + usize::from(pool.own.mappings_want_block);
        !self.is_out() && (!pool.own.ready.is_empty() || (free < wanted && pool.own.has_victim()))
    }
}
