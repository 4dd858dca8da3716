//! Keeps log appends from blocking a worker: a file system that is frozen for a snapshot stops whoever writes to it, in the kernel, until it
//! is thawed.
//!
//! A freeze stops writes first and faults of mapped pages after another grace period of the kernel: 8 ms or more were measured. So where
//! a write of no bytes has just succeeded, copies into mapped pages do not block for the next [`LEASE`]. A thread makes such
//! writes as long as there are appends. An append while one is under way, or after none, is made by that thread, and waited for until the
//! device counts as timed out; who can wait without holding anything up does so before ([`Gate::wait`]).

use crate::Overdue;
use locks::{Condvar, Mutex};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long appends do not block after a write that did not.
const LEASE: Duration = Duration::from_millis(6);
/// How often the lease is renewed. Each time costs some 20 µs of a core, so that it is no more often than the lease wants.
const RENEWAL: Duration = Duration::from_millis(2);
/// Renewals without an append between, after which there are none.
const IDLE_RENEWALS: u32 = 25;

/// Writes bytes at an offset, maybe none, and may block.
type Write = Box<dyn Fn(&[u8], u64) -> io::Result<()> + Send>;

struct Append {
    offset: u64,
    bytes: Vec<u8>,
    done: SyncSender<io::Result<()>>,
}

#[derive(Default)]
struct Asked {
    appends: VecDeque<Append>,
    /// Whether a lease is wanted, and by whom.
    lease: bool,
    wakers: Vec<Waker>,
    closing: bool,
}

struct State {
    start: Instant,
    /// Whether the last write that the thread has begun has succeeded.
    is_open: AtomicBool,
    /// Nanoseconds since the start.
    leased_until: AtomicU64,
    /// Whether anything was appended since the last renewal.
    is_used: AtomicBool,
    asked: Mutex<Asked>,
    is_asked: Condvar,
    /// Writes begun and ended by the thread.
    begun: AtomicU64,
    ended: AtomicU64,
    /// Seconds that a write may take; 0 = any time.
    patience: AtomicU32,
    /// Whether nothing is expected of the device any more.
    is_given_up: AtomicBool,
}

/// See the module's text.
pub(super) struct Gate {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

impl Gate {
    pub(super) fn new(write: Write) -> io::Result<Self> {
        let state = Arc::new(State {
            start: Instant::now(),
            is_open: AtomicBool::new(false),
            leased_until: AtomicU64::new(0),
            is_used: AtomicBool::new(false),
            asked: Mutex::default(),
            is_asked: Condvar::new(),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            patience: AtomicU32::new(0),
            is_given_up: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&state);
        let thread = std::thread::Builder::new().name("flash-log".to_owned());
        Ok(Self {
            state,
            thread: Some(thread.spawn(move || of_thread.run(&write))?),
        })
    }

    /// Whether a copy into a mapped page does not block now; cheap.
    pub(super) fn is_open(&self) -> bool {
        let state = &*self.state;
        if !state.is_used.load(Ordering::Relaxed) {
            state.is_used.store(true, Ordering::Relaxed);
        }
        // The clock tells where the thread got no processor for some milliseconds.
        state.is_open.load(Ordering::Acquire) && state.now_ns() < state.leased_until.load(Ordering::Acquire)
    }

    /// Has the thread write, and waits for it.
    ///
    /// # Errors
    /// What the system said, or [`Overdue`] after as many seconds as the last [`Gate::tick`] allows.
    pub(super) fn append(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (done, result) = sync_channel(1);
        self.state.ask(|asked| {
            asked.appends.push_back(Append {
                offset,
                bytes: bytes.to_vec(),
                done,
            });
        });
        let mut secs = 0;
        loop {
            // By single seconds: a process that was stopped loses no more than one.
            match result.recv_timeout(Duration::from_secs(1)) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Disconnected) => return Err(io::ErrorKind::BrokenPipe.into()),
                Err(RecvTimeoutError::Timeout) => secs += 1,
            }
            let patience = self.state.patience.load(Ordering::Relaxed);
            if self.state.is_given_up.load(Ordering::Relaxed) || patience != 0 && secs > patience {
                return Err(overdue(offset, bytes.len(), patience).into());
            }
        }
    }

    /// What to wait for until appends do not block; `None` where they do not.
    pub(super) fn wait(&self) -> Option<GateWait> {
        let state = &self.state;
        let is_open = self.is_open() || state.is_given_up.load(Ordering::Relaxed);
        (!is_open).then(|| GateWait {
            state: Arc::clone(state),
            since: state.begun.load(Ordering::Acquire),
        })
    }

    /// Passes a second, with what the caller found under way a second ago and since how many; see [`Device::tick`](crate::Device::tick).
    pub(super) fn tick(&self, patience: u32, seen: (u64, u32)) -> ((u64, u32), Option<Overdue>) {
        let state = &self.state;
        let ended = state.ended.load(Ordering::Acquire);
        let is_under_way = state.begun.load(Ordering::Acquire) > ended;
        let secs = match seen {
            (before, secs) if is_under_way && before == ended => secs + 1,
            _ => 0,
        };
        if patience > 0 {
            state.patience.store(patience, Ordering::Relaxed);
        }
        let is_late = is_under_way && secs > patience || patience == 0;
        if !is_late || state.is_given_up.swap(true, Ordering::AcqRel) {
            return ((ended, secs), None);
        }
        state.wake();
        ((ended, secs), is_under_way.then(|| overdue(0, 0, patience)))
    }
}

fn overdue(offset: u64, len: usize, secs: u32) -> Overdue {
    Overdue {
        name: "log append",
        offset,
        len,
        secs,
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.state.ask(|asked| asked.closing = true);
        let is_given_up = self.state.is_given_up.load(Ordering::Acquire);
        if let Some(thread) = self.thread.take().filter(|_| !is_given_up) {
            let _ = thread.join();
        }
    }
}

impl State {
    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn ask(&self, ask: impl FnOnce(&mut Asked)) {
        ask(&mut self.asked.lock());
        self.is_asked.notify_one();
    }

    fn wake(&self) {
        let wakers = std::mem::take(&mut self.asked.lock().wakers);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn run(&self, write: &Write) {
        let mut idle = IDLE_RENEWALS;
        while let Some(append) = self.next(&mut idle) {
            let (offset, bytes) = append
                .as_ref()
                .map_or((0, &[][..]), |append| (append.offset, &append.bytes));
            self.is_open.store(false, Ordering::Release);
            self.begun.fetch_add(1, Ordering::AcqRel);
            let begun = self.now_ns();
            let result = write(bytes, offset);
            if result.is_ok() {
                self.leased_until
                    .store(begun + LEASE.as_nanos() as u64, Ordering::Release);
                self.is_open.store(true, Ordering::Release);
            }
            self.ended.fetch_add(1, Ordering::AcqRel);
            if let Some(append) = append {
                // Whoever asked may have given it up.
                let _ = append.done.send(result);
            }
            self.wake();
        }
    }

    /// What to write next, which may be nothing but a renewal; `None` at the end.
    fn next(&self, idle: &mut u32) -> Option<Option<Append>> {
        let mut asked = self.asked.lock();
        loop {
            if asked.closing {
                return None;
            }
            if let Some(append) = asked.appends.pop_front() {
                *idle = 0;
                return Some(Some(append));
            }
            if std::mem::take(&mut asked.lease) {
                *idle = 0;
                return Some(None);
            }
            if *idle >= IDLE_RENEWALS {
                self.is_open.store(false, Ordering::Release);
                self.is_asked.wait(&mut asked);
            } else if self.is_asked.wait_for(&mut asked, RENEWAL).timed_out() {
                let is_used = self.is_used.swap(false, Ordering::Relaxed);
                *idle = if is_used { 0 } else { *idle + 1 };
                return Some(None);
            }
        }
    }
}

/// Ready when a write that began after this did not block, or nothing is expected of the device any more.
pub(super) struct GateWait {
    state: Arc<State>,
    /// Writes begun before.
    since: u64,
}

impl Future for GateWait {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let state = &*self.state;
        let mut asked = state.asked.lock();
        if state.ended.load(Ordering::Acquire) > self.since || state.is_given_up.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        asked.lease = true;
        asked.wakers.push(context.waker().clone());
        state.is_asked.notify_one();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::mpsc;

    /// A gate whose writes block until `release` says so, and what is written.
    fn blocked() -> (Gate, mpsc::Sender<()>, Arc<Mutex<Vec<u64>>>) {
        let (release, wait) = mpsc::channel();
        let written = Arc::new(Mutex::new(Vec::new()));
        let of_thread = Arc::clone(&written);
        let write: Write = Box::new(move |bytes, offset| {
            wait.recv().map_err(io::Error::other)?;
            if !bytes.is_empty() {
                of_thread.lock().push(offset);
            }
            Ok(())
        });
        (Gate::new(write).unwrap(), release, written)
    }

    fn poll(wait: Pin<&mut GateWait>) -> Poll<()> {
        wait.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_write_that_blocks_holds_nobody_up_for_longer_than_the_patience() {
        let (gate, release, written) = blocked();
        assert!(!gate.is_open());
        let mut wait = pin!(gate.wait().expect("nothing was written yet"));
        assert!(poll(wait.as_mut()).is_pending());
        while gate.state.begun.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        let mut seen = (u64::MAX, 0);
        for _ in 0..2 {
            let (now, ended) = gate.tick(1, seen);
            assert!(ended.is_none() && poll(wait.as_mut()).is_pending());
            seen = now;
        }
        let ended = gate.tick(1, seen).1.expect("it is late");
        assert_eq!((ended.name, ended.secs), ("log append", 1));
        assert!(poll(wait.as_mut()).is_ready() && gate.wait().is_none());
        let error = gate.append(7, b"x").unwrap_err();
        assert!(Overdue::is(&error), "{error}");
        assert!(written.lock().is_empty());
        drop(release);
    }

    #[test]
    fn a_write_opens_the_gate_for_a_while() {
        let (gate, release, written) = blocked();
        for _ in 0..100 {
            release.send(()).unwrap();
        }
        gate.append(7, b"x").unwrap();
        assert_eq!(*written.lock(), [7]);
        let wait = gate.wait();
        if let Some(wait) = wait {
            let mut wait = pin!(wait);
            while poll(wait.as_mut()).is_pending() {
                std::thread::yield_now();
            }
        }
        // It closes again; a renewal that is under way may open it once more.
        while gate.wait().is_none() {
            std::thread::yield_now();
        }
    }
}
