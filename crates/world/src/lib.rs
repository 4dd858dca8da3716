//! Seams to the world outside the engine: time, somewhere to run background work and computations, seeded random numbers, and the figures
//! that rooms give.
//!
//! The rooms `flash`, `index`, `tier` and `engine` name no runtime, start no thread and never ask the
//! operating system for the time. They are futures over what this crate describes, so that `serve` can
//! run them on one event loop per core and `replay` on one deterministic executor.

mod clock;
mod executor;
mod figures;
mod offload;
mod random;

pub use clock::{Clock, ManualClock, SystemClock};
pub use executor::{Executor, LocalSpawner};
pub use figures::{Cell, Figure, Kind};
pub use offload::{Job, Offload};
pub use random::{MIX_STEP, Random, mix64};

use std::future::Future;
use std::pin::Pin;

/// A background task: it runs on the thread that spawned it and reports through shared state.
pub type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Runs background work on the current thread.
///
/// Contract: every spawned task is polled to its end unless the whole executor is dropped; tasks are never
/// moved to another thread; `spawn` only queues, it never polls the task before it returns.
pub trait Spawner {
    /// Queues `task` on the current thread's executor.
    fn spawn(&self, task: Task);
}
