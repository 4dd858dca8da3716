//! A deterministic single-threaded executor: tasks run in the order in which they became ready.
//!
//! `replay` and the tests run the engine on it. Where nothing is ready it asks the caller's `park` to wait for
//! the device, so the order of events depends on the device's completions only where work overlaps;
//! [`Executor::run_until_idle`] between requests removes even that.

use crate::{Spawner, Task};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

#[derive(Default)]
struct Ready {
    queue: Mutex<VecDeque<usize>>,
}

struct TaskWaker {
    id: usize,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.ready
                .queue
                .lock()
                .expect("no task panics while it queues itself")
                .push_back(self.id);
        }
    }
}

struct Slot {
    task: Option<Task>,
    waker: Arc<TaskWaker>,
}

#[derive(Default)]
struct Shared {
    spawned: RefCell<Vec<Task>>,
}

/// Queues tasks on an [`Executor`] of the same thread.
#[derive(Clone, Default)]
pub struct LocalSpawner {
    shared: Rc<Shared>,
}

impl Spawner for LocalSpawner {
    fn spawn(&self, task: Task) {
        self.shared.spawned.borrow_mut().push(task);
    }
}

/// The executor; see the module's text.
#[derive(Default)]
pub struct Executor {
    spawner: LocalSpawner,
    ready: Arc<Ready>,
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<usize>>,
}

impl Executor {
    /// An executor without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// The handle that queues background tasks here.
    pub fn spawner(&self) -> LocalSpawner {
        self.spawner.clone()
    }

    /// Whether every task has ended.
    pub fn is_idle(&self) -> bool {
        self.spawner.shared.spawned.borrow().is_empty()
            && self.slots.borrow().len() == self.free.borrow().len()
    }

    /// Runs `future` to its end, and background tasks whenever it waits. `park` is called when no task can run;
    /// it must block until the device has completed something, and fail where nothing can ever complete.
    ///
    /// # Errors
    /// What `park` returned.
    pub fn block_on<T, E>(
        &self,
        future: impl Future<Output = T>,
        mut park: impl FnMut() -> Result<(), E>,
    ) -> Result<T, E> {
        let mut future = pin!(future);
        let woken = Arc::new(MainWaker(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&woken));
        loop {
            if woken.0.swap(false, Ordering::AcqRel)
                && let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker))
            {
                return Ok(value);
            }
            if !self.turn() && !woken.0.load(Ordering::Acquire) {
                park()?;
            }
        }
    }

    /// Runs background tasks until none is left.
    ///
    /// # Errors
    /// What `park` returned.
    pub fn run_until_idle<E>(&self, mut park: impl FnMut() -> Result<(), E>) -> Result<(), E> {
        while !self.is_idle() {
            if !self.turn() {
                park()?;
            }
        }
        Ok(())
    }

    /// Polls each task that is ready now, once; false if none was.
    fn turn(&self) -> bool {
        let spawned = std::mem::take(&mut *self.spawner.shared.spawned.borrow_mut());
        let mut ran = !spawned.is_empty();
        for task in spawned {
            self.admit(task);
        }
        let batch = std::mem::take(
            &mut *self
                .ready
                .queue
                .lock()
                .expect("no task panics while it queues itself"),
        );
        for id in batch {
            ran = true;
            let (task, waker) = {
                let mut slots = self.slots.borrow_mut();
                let slot = &mut slots[id];
                slot.waker.queued.store(false, Ordering::Release);
                (slot.task.take(), Arc::clone(&slot.waker))
            };
            let Some(mut task) = task else { continue };
            let waker = Waker::from(waker);
            let done = task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
            if done {
                drop(task);
                self.free.borrow_mut().push(id);
            } else {
                self.slots.borrow_mut()[id].task = Some(task);
            }
        }
        ran
    }

    fn admit(&self, task: Task) {
        let id = self.free.borrow_mut().pop();
        let mut slots = self.slots.borrow_mut();
        let id = id.unwrap_or(slots.len());
        // A fresh waker each time: a late wake-up of the slot's former task then finds no task or a harmless poll.
        let waker = Arc::new(TaskWaker {
            id,
            queued: AtomicBool::new(true),
            ready: Arc::clone(&self.ready),
        });
        let slot = Slot {
            task: Some(task),
            waker,
        };
        if id == slots.len() {
            slots.push(slot);
        } else {
            slots[id] = slot;
        }
        self.ready
            .queue
            .lock()
            .expect("no task panics while it queues itself")
            .push_back(id);
    }
}

impl Drop for Executor {
    /// Drops the tasks that have not started: each may hold a spawner, and that would hold the tasks.
    fn drop(&mut self) {
        let spawned = self.spawner.shared.spawned.take();
        drop(spawned);
    }
}

struct MainWaker(AtomicBool);

impl Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_task_that_never_started_is_dropped_with_the_executor() {
        let held = Rc::new(());
        let executor = Executor::new();
        let (spawner, kept) = (executor.spawner(), Rc::clone(&held));
        executor
            .spawner()
            .spawn(Box::pin(async move { drop((spawner, kept)) }));
        drop(executor);
        assert_eq!(Rc::strong_count(&held), 1);
    }

    #[test]
    fn runs_background_tasks_while_the_main_future_waits() {
        let executor = Executor::new();
        let spawner = executor.spawner();
        let flag = Rc::new(Cell::new(0));
        let seen = Rc::clone(&flag);
        let result = executor.block_on(
            async move {
                for _ in 0..3 {
                    let flag = Rc::clone(&seen);
                    spawner.spawn(Box::pin(async move { flag.set(flag.get() + 1) }));
                }
                std::future::poll_fn(|cx| {
                    if seen.get() == 3 {
                        return Poll::Ready(seen.get());
                    }
                    cx.waker().wake_by_ref();
                    Poll::Pending
                })
                .await
            },
            || Err("nothing can wake this"),
        );
        assert_eq!(result, Ok(3));
        assert!(executor.is_idle());
    }

    #[test]
    fn a_future_that_nothing_wakes_asks_to_park() {
        let executor = Executor::new();
        let result = executor.block_on(std::future::pending::<()>(), || Err("stuck"));
        assert_eq!(result, Err("stuck"));
    }
}
