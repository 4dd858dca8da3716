//! The engine for where io_uring is refused: threads that do positioned reads and writes.

use super::table::{Request, Table};
use locks::{Condvar, Mutex};
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

struct Job {
    request: Request,
    key: usize,
    completions: Arc<Completions>,
}

// SAFETY: the pointers of a request stay valid until its result is reported (`Table::start_next`), or for ever where nobody waits for
// that (`FileDevice` leaks its table then), and until then only the thread that runs the job touches what a read fills.
unsafe impl Send for Job {}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closing: bool,
    /// Whether a job may never end.
    hangs: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
}

/// The threads of one file; they end when it is dropped, which waits for them unless a handle has [left](PoolClient::leave) its jobs.
pub(super) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts `threads` threads that do I/O on `file`.
    pub(super) fn new(file: &Arc<OwnedFd>, threads: usize) -> io::Result<Self> {
        let mut pool = Self {
            shared: Arc::default(),
            threads: Vec::new(),
        };
        for index in 0..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let file = Arc::clone(file);
            let thread = std::thread::Builder::new()
                .name(format!("flash-io-{index}"))
                .spawn(move || run(&shared, &file))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// A pool that starts nothing that it is given.
    #[cfg(test)]
    pub(super) fn without_threads() -> Self {
        Self {
            shared: Arc::default(),
            threads: Vec::new(),
        }
    }

    /// A handle's connection to the threads.
    pub(super) fn connect(&self) -> PoolClient {
        PoolClient {
            shared: Arc::clone(&self.shared),
            completions: Arc::default(),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let hangs = {
            let mut queue = self.shared.queue.lock();
            queue.closing = true;
            queue.hangs
        };
        self.shared.filled.notify_all();
        if hangs {
            return;
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, file: &OwnedFd) {
    while let Some(job) = next(shared) {
        let result = perform(file, job.request);
        job.completions.push(job.key, result);
    }
}

/// Waits for a job, and tells its handle that it is begun with; `None` where there will be no more.
fn next(shared: &Shared) -> Option<Job> {
    let mut queue = shared.queue.lock();
    let job = loop {
        if let Some(job) = queue.jobs.pop_front() {
            break job;
        }
        if queue.closing {
            return None;
        }
        shared.filled.wait(&mut queue);
    };
    drop(queue);
    job.completions.begin(job.key);
    Some(job)
}

/// Bytes moved, or a negated error number, as io_uring reports it.
fn perform(file: &OwnedFd, request: Request) -> i32 {
    let result = match request {
        Request::Read { to, len, offset } => {
            // SAFETY: valid and initialised memory of that length that nobody else touches until the result is
            // reported (`Table::start_next`).
            let to = unsafe { std::slice::from_raw_parts_mut(to, len) };
            rustix::io::pread(file, to, offset)
        }
        Request::Write { from, len, offset } => {
            // SAFETY: valid memory of that length until the result is reported; the writer's contract says that
            // nobody changes it meanwhile.
            let from = unsafe { std::slice::from_raw_parts(from, len) };
            rustix::io::pwrite(file, from, offset)
        }
        Request::Sync => rustix::fs::fdatasync(file).map(|()| 0),
    };
    match result {
        Ok(bytes) => i32::try_from(bytes).expect("pieces are far below 2 GiB"),
        Err(error) => -error.raw_os_error(),
    }
}

/// What the threads have to say to one handle.
#[derive(Default)]
struct News {
    /// Jobs that a thread has begun with.
    begun: Vec<usize>,
    results: Vec<(usize, i32)>,
}

/// News on their way back to one handle.
#[derive(Default)]
struct Completions {
    news: Mutex<News>,
    arrived: Condvar,
    event: OnceLock<Arc<OwnedFd>>,
}

impl Completions {
    fn begin(&self, key: usize) {
        self.news.lock().begun.push(key);
    }

    fn push(&self, key: usize, result: i32) {
        let first = {
            let mut news = self.news.lock();
            news.results.push((key, result));
            news.results.len() == 1
        };
        self.arrived.notify_one();
        // A turn takes all results, so only the first of them needs a signal.
        if first && let Some(event) = self.event.get() {
            signal(event);
        }
    }
}

/// Adds 1 to an eventfd.
#[expect(
    clippy::host_endian_bytes,
    reason = "an eventfd counts in the machine's own integers"
)]
pub(super) fn signal(event: &OwnedFd) {
    // Fails only where the count is at its end, and then the event is signalled anyway.
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

/// One handle's side of a [`Pool`].
pub(super) struct PoolClient {
    shared: Arc<Shared>,
    completions: Arc<Completions>,
}

impl PoolClient {
    /// Hands everything that may start to the threads.
    pub(super) fn start(&self, table: &mut Table) {
        let mut queue = self.shared.queue.lock();
        let mut started = 0;
        while let Some((key, request)) = table.start_next() {
            queue.jobs.push_back(Job {
                request,
                key,
                completions: Arc::clone(&self.completions),
            });
            started += 1;
        }
        drop(queue);
        for _ in 0..started {
            self.shared.filled.notify_one();
        }
    }

    /// Reports what is done; with `wait`, waits for at least one result.
    pub(super) fn collect(&self, table: &mut Table, wait: bool, path: &Path) {
        let News { begun, results } = {
            let mut news = self.completions.news.lock();
            while wait && news.results.is_empty() {
                self.completions.arrived.wait(&mut news);
            }
            std::mem::take(&mut *news)
        };
        begun.into_iter().for_each(|key| table.begin(key));
        for (key, result) in results {
            table.report(key, result, path);
        }
    }

    /// Nobody waits for the results of this handle's jobs any more, of which some may never end. What they work on stays valid.
    pub(super) fn leave(&self) {
        self.shared.queue.lock().hangs = true;
    }

    /// Signals `event` when results arrive, from now on.
    pub(super) fn set_event(&self, event: &Arc<OwnedFd>) {
        let _ = self.completions.event.set(Arc::clone(event));
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::Work;
    use super::*;
    use crate::{AlignedBuf, Buffer};

    /// What waits for a thread is not lost, however long others keep the threads busy.
    #[test]
    fn a_job_is_with_the_device_when_a_thread_begins_with_it() {
        let pool = Pool::without_threads();
        let client = pool.connect();
        let mut table = Table::new(8);
        for offset in [0, 4096] {
            table.add(Work::Read(AlignedBuf::with_len(4096)), offset, 4096);
        }
        client.start(&mut table);
        let job = next(&pool.shared).expect("two wait");
        let mut answers = 0;
        let mut seconds = |count: u32| {
            (0..count).find_map(|_| {
                answers += 1;
                client.collect(&mut table, false, Path::new("flash"));
                table.tick(1, answers).pop()
            })
        };
        assert_eq!(seconds(8), None);
        let lost = seconds(1).expect("no answer for 8 s");
        assert_eq!((lost.offset, lost.secs), (0, 8));
        assert_eq!(seconds(20), None, "the other was not begun");
        job.completions.push(job.key, 4096);
        next(&pool.shared).expect("the other");
        assert_eq!(seconds(8), None);
        assert_eq!(seconds(1).expect("no answer for 8 s").offset, 4096);
    }
}
