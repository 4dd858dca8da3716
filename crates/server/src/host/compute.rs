//! Threads that compute fingerprints and compress while an event loop goes on, as long as there are more processors than busy event loops.

use locks::Mutex;
use pumice_world::{Job, Offload};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Fewer bytes are computed before another thread has woken.
const BYTES_MIN: usize = 16 << 10;
/// Jobs for each free processor: one that runs, and the next.
const JOBS: usize = 2;

/// What event loops and threads share.
pub struct Jobs {
    given: Sender<Option<Job>>,
    /// In order; a thread ends with the first that is none.
    queue: Mutex<Receiver<Option<Job>>>,
    threads: usize,
    processors: usize,
    /// Event loops that have something to do.
    busy: AtomicUsize,
    /// Jobs that have not ended.
    jobs: AtomicUsize,
}

impl Jobs {
    /// For so many processors; nobody takes a job yet.
    pub fn new(processors: usize) -> Self {
        let (given, queue) = channel();
        Self {
            given,
            queue: Mutex::new(queue),
            // An event loop has to do as much again for a chunk itself.
            threads: processors / 2,
            processors,
            busy: AtomicUsize::new(0),
            jobs: AtomicUsize::new(0),
        }
    }

    /// Whether anybody takes jobs.
    pub fn has_threads(&self) -> bool {
        self.threads > 0
    }

    /// An event loop has something to do.
    pub fn wake(&self) {
        self.busy.fetch_add(1, Ordering::Relaxed);
    }

    /// An event loop waits.
    pub fn park(&self) {
        self.busy.fetch_sub(1, Ordering::Relaxed);
    }

    fn give(&self, job: Option<Job>) {
        // Both ends are of `self`.
        let _ = self.given.send(job);
    }

    /// Runs jobs until there will be no more.
    fn work(&self) {
        loop {
            let next = self.queue.lock().recv();
            let Ok(Some(job)) = next else { return };
            job();
            self.jobs.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Offload for Jobs {
    fn pays(&self, bytes: usize, others: usize) -> bool {
        let free = self.processors.saturating_sub(self.busy.load(Ordering::Relaxed));
        bytes >= BYTES_MIN && others > 0 && self.jobs.load(Ordering::Relaxed) < JOBS * free.min(self.threads)
    }

    fn run(&self, job: Job) {
        self.jobs.fetch_add(1, Ordering::Relaxed);
        self.give(Some(job));
    }
}

/// The threads; they end when it is dropped, after the last job.
pub struct ComputeThreads {
    jobs: Arc<Jobs>,
    threads: Vec<JoinHandle<()>>,
}

impl ComputeThreads {
    /// Starts a thread for every two processors.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub fn start(processors: usize) -> io::Result<Self> {
        let jobs = Arc::new(Jobs::new(processors));
        let mut this = Self {
            jobs,
            threads: Vec::new(),
        };
        for index in 0..this.jobs.threads {
            let jobs = Arc::clone(&this.jobs);
            let named = std::thread::Builder::new().name(format!("pumice-compute-{index}"));
            this.threads.push(named.spawn(move || jobs.work())?);
        }
        Ok(this)
    }

    /// Takes jobs.
    pub fn jobs(&self) -> Arc<Jobs> {
        Arc::clone(&self.jobs)
    }
}

impl Drop for ComputeThreads {
    fn drop(&mut self) {
        self.threads.iter().for_each(|_| self.jobs.give(None));
        for thread in self.threads.drain(..) {
            // A panic was reported already.
            let _ = thread.join();
        }
    }
}
