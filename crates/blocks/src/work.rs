//! Background work: pieces that were claimed, and the tasks that wait for their end.

use crate::block::OpenBlock;
use crate::fence::Health;
use crate::geometry::Geometry;
use crate::owner::{Claim, Owner};
use crate::pool::Pool;
use locks::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

/// What outlives a borrow of the store, so that work that is dropped can be put back.
pub struct Shared<O: Owner> {
    /// The pool. Its lock comes after all locks of the owner but that of an open block.
    pub pool: Mutex<Pool<O>>,
    /// Whether there may be work to take.
    pub has_work: AtomicBool,
    pub(crate) health: Health,
}

impl<O: Owner> Shared<O> {
    pub(crate) fn new(pool: Pool<O>, geometry: Geometry) -> Self {
        Self {
            pool: Mutex::new(pool),
            has_work: AtomicBool::new(true),
            health: Health::new(geometry),
        }
    }

    /// Changes the pool and wakes the tasks that wait for a change.
    pub fn change<R>(&self, change: impl FnOnce(&mut Pool<O>) -> R) -> R {
        let (result, waiters) = {
            let mut pool = self.pool.lock();
            let result = change(&mut pool);
            self.has_work.store(true, Ordering::Release);
            (result, std::mem::take(&mut pool.waiters))
        };
        waiters.into_iter().for_each(Waker::wake);
        result
    }

    /// Waits until `ready` says so; it is asked again whenever a piece of background work has ended.
    pub async fn wait_for(&self, mut ready: impl FnMut(&mut Pool<O>) -> bool) {
        std::future::poll_fn(|cx| {
            let mut pool = self.pool.lock();
            if ready(&mut pool) {
                return Poll::Ready(());
            }
            pool.waiters.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// Lets other tasks of the thread run.
pub async fn give_turn() {
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

/// In round `at` of a loop: lets other tasks run after each `rounds`.
pub async fn turn_after(at: usize, rounds: usize) {
    if at % rounds == rounds - 1 {
        give_turn().await;
    }
}

/// A piece of background work. Whoever drops it before its end, or the future that performs it, gives it back: it is due again, for
/// whoever asks next.
pub struct Work<O: Owner> {
    task: Option<Task<O>>,
    claim: Claim,
    shared: Arc<Shared<O>>,
}

/// What there is to do.
pub enum Task<O: Owner> {
    /// Compose and write a full block.
    Seal(Arc<OpenBlock<O>>),
    /// Write the beginning of an active block.
    Flush(Arc<OpenBlock<O>>),
    /// Write a checkpoint.
    Checkpoint,
    /// The device was fenced: persist that, or leave it; drop what leads to it.
    TakeOut,
    /// The owner's.
    Own(O::Task),
}

impl<O: Owner> Work<O> {
    /// Counts a piece of work as under way.
    pub fn claim_of(shared: &Arc<Shared<O>>, pool: &mut Pool<O>, task: Task<O>) -> Self {
        pool.in_flight += 1;
        pool.claims += 1;
        Self {
            task: Some(task),
            claim: pool.claims,
            shared: Arc::clone(shared),
        }
    }

    /// What is to be done.
    pub fn task(&self) -> &Task<O> {
        self.task.as_ref().expect("taken only at the end")
    }

    /// Its number.
    pub fn claim(&self) -> Claim {
        self.claim
    }

    /// Ends the work; `change` is made in the same step.
    pub fn finish(mut self, change: impl FnOnce(&mut Pool<O>)) {
        let task = self.task.take().expect("taken only here");
        let left = self.shared.change(|pool| {
            pool.release(&task);
            change(pool);
            // A block's buffer is free before a task that waits for one is woken. What the owner's work holds may take locks that come
            // before this one when it is dropped.
            (!matches!(task, Task::Seal(_) | Task::Flush(_))).then_some(task)
        });
        drop(left);
    }
}

impl<O: Owner> Drop for Work<O> {
    fn drop(&mut self) {
        let Some(task) = self.task.take() else { return };
        let left = self.shared.change(|pool| {
            pool.release(&task);
            match task {
                Task::Seal(block) => pool.to_seal.push_front(block),
                // Due again when the age of its block is checked next.
                Task::Flush(_) | Task::Checkpoint => {}
                Task::TakeOut => self.shared.health.set_due(),
                Task::Own(task) => return O::put_back(&mut pool.own, self.claim, task),
            }
            None
        });
        drop(left);
    }
}

impl<O: Owner> Pool<O> {
    fn release(&mut self, task: &Task<O>) {
        self.in_flight -= 1;
        match task {
            Task::Seal(_) => self.sealing -= 1,
            Task::Flush(block) => self.flushing.retain(|id| *id != block.id),
            Task::Checkpoint => self.checkpointing = false,
            Task::TakeOut => {}
            Task::Own(task) => O::task_ended(&mut self.own, task),
        }
    }
}
