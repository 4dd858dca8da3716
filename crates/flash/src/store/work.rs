//! Background work: what is due, who has taken it, and who waits for its end.

use super::health::Health;
use super::{FlashStore, SlotKind, State, Structure};
use crate::block::OpenBlock;
use crate::mapping_log::{BLOCKS_LEFT, Due, PendingWrite};
use crate::reclaim::FREE_CRITICAL;
use parking_lot::Mutex;
use pumice_blocks::geometry::Geometry;
use pumice_memory::Buffer;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

/// What outlives a borrow of the store, so that work that is given up can be put back.
pub(crate) struct Shared<B> {
    pub(crate) structure: Mutex<Structure<B>>,
    pub(crate) has_work: AtomicBool,
    pub(super) health: Health,
}

impl<B> Shared<B> {
    pub(super) fn new(structure: Structure<B>, geometry: Geometry) -> Self {
        Self {
            structure: Mutex::new(structure),
            has_work: AtomicBool::new(true),
            health: Health::new(geometry),
        }
    }

    /// Changes the structure and wakes who waits for a change.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Structure<B>) -> R) -> R {
        let (result, waiters) = {
            let mut structure = self.structure.lock();
            let result = change(&mut structure);
            self.has_work.store(true, Ordering::Release);
            (result, std::mem::take(&mut structure.waiters))
        };
        waiters.into_iter().for_each(Waker::wake);
        result
    }
}

/// Blocks that are reclaimed at the same time, at most: what a reclaim waits for is mostly the device.
const RECLAIMS_MAX: u64 = 8;
/// Blocks that are reclaimed at the same time have at most so many bytes together, since their footers are in DRAM, each at
/// most a fifth of its block. One block may be larger.
const RECLAIM_BLOCKS_BYTES_MAX: u64 = 8 << 20;

/// A device has so many blocks for each that is made free ahead of need.
const BLOCKS_PER_RECLAIM_AHEAD: usize = 100;
/// With two-phase reclaim a device of fewer blocks has one free block less ahead of need: it needs them for objects.
const SMALL_BLOCKS: u32 = 32;

/// The number of a piece of work.
pub(crate) type Claim = u64;

/// Lets other tasks of the thread run.
pub(crate) async fn give_turn() {
    let mut given = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut given, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A piece of background work, to be given to [`FlashStore::perform`]. Whoever drops it before its end, or the future that
/// performs it, gives it back: it is due again, for whoever asks next.
pub struct Work<B: Buffer> {
    task: Option<Task<B>>,
    claim: Claim,
    shared: Arc<Shared<B>>,
}

pub(crate) enum Task<B: Buffer> {
    /// Compose and write a full block.
    Seal(Arc<OpenBlock<B>>),
    /// Write what an active block begins with.
    Flush(Arc<OpenBlock<B>>),
    /// Make blocks free until enough are.
    Reclaim,
    /// Make one block free whatever is free.
    EarlyReclaim,
    /// Write a snapshot of the mappings.
    Checkpoint,
    /// Write pages of mappings.
    WriteMappings(PendingWrite<B>),
    /// Merge the pages of a partition.
    Reorganise(Due<B>),
    /// Say in the superblocks that the device was taken out, and give up what is on it.
    TakeOut,
}

impl<B: Buffer> Work<B> {
    pub(crate) fn task(&self) -> &Task<B> {
        self.task.as_ref().expect("taken only at the end")
    }

    pub(crate) fn claim(&self) -> Claim {
        self.claim
    }

    /// Ends the work; `change` is made in the same step.
    pub(crate) fn finish(mut self, change: impl FnOnce(&mut Structure<B>)) {
        let task = self.task.take().expect("taken only here");
        let left = self.shared.change(|structure| {
            structure.release(&task);
            change(structure);
            // A block's buffer is free before anyone who waits for one is woken. What is for mappings has a lock of its own, which
            // comes before this one.
            (!matches!(task, Task::Seal(_) | Task::Flush(_))).then_some(task)
        });
        drop(left);
    }
}

impl<B: Buffer> Drop for Work<B> {
    fn drop(&mut self) {
        let Some(task) = self.task.take() else { return };
        let left = self.shared.change(|structure| {
            structure.release(&task);
            match task {
                Task::Seal(block) => structure.to_seal.push_front(block),
                Task::Reclaim | Task::EarlyReclaim => structure.give_up_victims(self.claim),
                Task::TakeOut => self.shared.health.set_due(),
                // What they hold knows what to do when it is dropped, outside this lock.
                other => return Some(other),
            }
            None
        });
        drop(left);
    }
}

impl<B: Buffer> Structure<B> {
    fn release(&mut self, task: &Task<B>) {
        self.in_flight -= 1;
        match task {
            Task::Seal(_) => self.sealing -= 1,
            Task::Flush(block) => self.flushing.retain(|id| *id != block.id),
            Task::Reclaim | Task::EarlyReclaim => self.reclaiming -= 1,
            Task::Checkpoint => self.checkpointing = false,
            Task::WriteMappings(_) | Task::TakeOut => {}
            Task::Reorganise(_) => self.reorganising = false,
        }
    }

    /// Victims whose reclaim was broken off are the next ones again, for what they were chosen for.
    fn give_up_victims(&mut self, claim: Claim) {
        let ready = &mut self.ready;
        self.victims.retain(|victim| {
            let stays = victim.claim != claim;
            if !stays {
                ready.push_front((victim.id, victim.how));
            }
            stays
        });
    }
}

impl<B: Buffer> FlashStore<B> {
    /// Whether [`FlashStore::take_work`] may have something; cheap.
    pub fn has_work(&self) -> bool {
        self.shared.has_work.load(Ordering::Acquire)
    }

    /// The next piece of background work, for [`FlashStore::perform`].
    pub fn take_work(&self) -> Option<Work<B>> {
        if self.is_out() {
            return self.take_failure_work();
        }
        self.take_back_blocks();
        let work = self
            .take_mapping_write()
            .or_else(|| self.take_block_work())
            .or_else(|| self.take_reorganisation());
        // What came while this looked elsewhere.
        let is_pending =
            || self.shared.health.is_due() || self.mapping_log.get().is_some_and(|log| log.is_pending());
        if work.is_none() && is_pending() {
            self.shared.has_work.store(true, Ordering::Release);
        }
        work
    }

    /// Whether nothing more may be begun for now.
    fn is_busy(&self) -> bool {
        self.lockstep && self.shared.structure.lock().in_flight > 0
    }

    // The mapping log's lock comes before that of the structure, so its work is taken without the latter.

    fn take_mapping_write(&self) -> Option<Work<B>> {
        if self.is_busy() {
            return None;
        }
        let write = self.mapping_log.get()?.take_full()?;
        let mut structure = self.shared.structure.lock();
        Some(self.claim(&mut structure, Task::WriteMappings(write)))
    }

    fn take_reorganisation(&self) -> Option<Work<B>> {
        let log = self.mapping_log.get()?;
        if self.is_busy() || std::mem::replace(&mut self.shared.structure.lock().reorganising, true) {
            return None;
        }
        let due = log.take_due();
        let mut structure = self.shared.structure.lock();
        let Some(due) = due else {
            structure.reorganising = false;
            return None;
        };
        Some(self.claim(&mut structure, Task::Reorganise(due)))
    }

    fn take_block_work(&self) -> Option<Work<B>> {
        loop {
            let mut structure = self.shared.structure.lock();
            if self.lockstep && structure.in_flight > 0 {
                return None;
            }
            if let Some(block) = structure.to_seal.pop_front() {
                structure.sealing += 1;
                return Some(self.claim(&mut structure, Task::Seal(block)));
            }
            if let Some(block) = structure.to_flush.pop() {
                structure.flushing.push(block.id);
                return Some(self.claim(&mut structure, Task::Flush(block)));
            }
            if structure.reclaiming < self.reclaims_max() && self.wants_reclaim(&structure) {
                structure.reclaiming += 1;
                return Some(self.claim(&mut structure, Task::Reclaim));
            }
            if let Some(position) = self.held_log(&structure) {
                drop(structure);
                self.retire_older(position);
                structure = self.shared.structure.lock();
                if !structure.to_seal.is_empty() {
                    continue;
                }
                // What is being written asks again when it is done.
                self.shared.has_work.store(false, Ordering::Release);
                return None;
            }
            if !structure.checkpointing && structure.ready.is_empty() && self.wants_checkpoint() {
                structure.checkpointing = true;
                return Some(self.claim(&mut structure, Task::Checkpoint));
            }
            self.shared.has_work.store(false, Ordering::Release);
            return None;
        }
    }

    /// Claims a block that is to be written, if there is one.
    pub(crate) fn take_seal(&self) -> Option<Work<B>> {
        let mut structure = self.shared.structure.lock();
        let block = structure.to_seal.pop_front()?;
        structure.sealing += 1;
        Some(self.claim(&mut structure, Task::Seal(block)))
    }

    pub(super) fn claim(&self, structure: &mut Structure<B>, task: Task<B>) -> Work<B> {
        structure.in_flight += 1;
        structure.claims += 1;
        Work {
            task: Some(task),
            claim: structure.claims,
            shared: Arc::clone(&self.shared),
        }
    }

    /// Where a checkpoint is due, but a block has been open for so long that the log would have to be kept from then on: the
    /// position before which a block must not have been opened.
    fn held_log(&self, structure: &Structure<B>) -> Option<u64> {
        if structure.checkpointing || !self.wants_checkpoint() {
            return None;
        }
        let oldest = self.log.position().saturating_sub(self.geometry.log_slots / 8);
        let open = self.open.lock();
        // With index `full` what is being written has its footer soon, and is not waited for.
        let has_pages = self.mapping_log.get().is_some();
        let mut open = open
            .iter()
            .filter(|block| has_pages || self.blocks[block.id as usize].state() == State::Active);
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
        let mut structure = self.shared.structure.lock();
        if self.is_out() || structure.reclaiming > 0 || !has_victim(&structure) {
            return None;
        }
        if seldom {
            let sealed = self.counters.sealed_blocks.load(Ordering::Relaxed);
            if structure.early_at == Some(sealed) {
                return None;
            }
            structure.early_at = Some(sealed);
        }
        structure.reclaiming += 1;
        Some(self.claim(&mut structure, Task::EarlyReclaim))
    }

    /// How many blocks may be reclaimed at the same time.
    pub(crate) fn reclaims_max(&self) -> usize {
        let fit = RECLAIM_BLOCKS_BYTES_MAX / self.geometry.block_bytes;
        usize::try_from(fit.clamp(1, RECLAIMS_MAX)).expect("small")
    }

    /// Blocks beyond the reserve that are made free ahead of need, so that nobody waits for a reclaim. In lockstep each is
    /// done before the next request, and none is needed.
    fn reclaims_ahead(&self) -> usize {
        if self.lockstep {
            return 0;
        }
        self.reclaims_max()
            .min(self.geometry.blocks as usize / BLOCKS_PER_RECLAIM_AHEAD)
    }

    /// Below so many free blocks there are reclaims.
    pub(crate) fn blocks_kept_free(&self) -> usize {
        let wanted = self.geometry.reserved as usize + self.reclaims_ahead();
        // Victims that are to be moved must be chosen before too little is free for that, and what is moved may open a block of its
        // own.
        match self.slot_kind {
            SlotKind::Hit if self.geometry.blocks < SMALL_BLOCKS => wanted.max(FREE_CRITICAL + 1),
            SlotKind::Hit => wanted.max(FREE_CRITICAL + 2),
            _ => wanted,
        }
    }

    /// Whether too few blocks are free. One that is being reclaimed counts as free.
    pub(crate) fn wants_reclaim(&self, structure: &Structure<B>) -> bool {
        let free = structure.free.len() + structure.victims.len();
        let mut wanted = self.blocks_kept_free();
        if structure.mappings_want_block {
            wanted = wanted.max(BLOCKS_LEFT) + 1;
        }
        !self.is_out() && (!structure.ready.is_empty() || (free < wanted && has_victim(structure)))
    }

    /// Waits until `ready` says so; it is asked again whenever a piece of background work has ended.
    pub(crate) async fn wait_for(&self, mut ready: impl FnMut(&mut Structure<B>) -> bool) {
        std::future::poll_fn(|cx| {
            let mut structure = self.shared.structure.lock();
            if ready(&mut structure) {
                return Poll::Ready(());
            }
            structure.waiters.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Waits until no background work is under way.
    pub async fn quiesce(&self) {
        self.wait_for(|structure| structure.in_flight == 0).await;
    }

    /// Waits until some background work has ended, if any is under way.
    pub async fn wait_for_progress(&self) {
        // Another piece may have begun before this is asked again.
        let ended = |structure: &Structure<B>| structure.claims - structure.in_flight as u64;
        let before = {
            let structure = self.shared.structure.lock();
            if structure.in_flight == 0 {
                return;
            }
            ended(&structure)
        };
        let sealed = self.counters.sealed_blocks.load(Ordering::Relaxed);
        self.wait_for(|structure| {
            ended(structure) > before || self.counters.sealed_blocks.load(Ordering::Relaxed) > sealed
        })
        .await;
    }

    /// Whether no background work is under way.
    pub fn is_idle(&self) -> bool {
        self.shared.structure.lock().in_flight == 0
    }
}

/// Whether there is a block to reclaim.
fn has_victim<B>(structure: &Structure<B>) -> bool {
    !structure.ready.is_empty() || !structure.queue.is_empty()
}
