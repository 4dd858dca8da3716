//! Computations that leave the event loop.

/// A computation. It reports through what it captures.
pub type Job = Box<dyn FnOnce() + Send>;

/// Runs computations on other threads.
///
/// Contract: every job is run to its end, also after the future that waits for it was dropped; `run` only queues.
pub trait Offload: Send + Sync {
    /// Whether a computation over so many bytes is worth the way to another thread and back, while `others` of its kind wait or run: a processor
    /// is free, and this thread has something else to do. A hint, which may be outdated at once.
    fn pays(&self, bytes: usize, others: usize) -> bool;
    /// Queues a job.
    fn run(&self, job: Job);
}
