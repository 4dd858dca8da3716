//! What a worker is given, and what it gives back.

use super::feed::Feed;
use crate::schedule::Schedule;
use crate::stats::Stats;
use crate::target::Target;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Whether operations wait for each other.
#[derive(Clone, Debug)]
pub enum Pace {
    /// A connection starts the next when one has ended.
    Closed,
    /// They arrive by a schedule, and wait where all connections are busy; latency counts from the arrival.
    Open(Schedule),
}

/// A stretch of a run. Times are nanoseconds of the run's clock.
pub struct Phase {
    /// What is done.
    pub feed: Feed,
    /// When.
    pub pace: Pace,
    /// Requests under way per connection at most.
    pub depth: usize,
    /// When it begins.
    pub begin: u64,
    /// From when on operations are counted; at `stop` no more are started.
    pub start: u64,
    /// The end.
    pub stop: u64,
    /// Operations that may yet be started from `start` on.
    pub budget: Option<Arc<AtomicI64>>,
    /// Whether the end does not come by time, so that a server that is gone ends the phase.
    pub needs_server: bool,
}

impl Phase {
    /// No phase at all.
    pub(super) fn nothing() -> Self {
        Phase {
            feed: Feed::Empty,
            pace: Pace::Closed,
            depth: 0,
            begin: 0,
            start: 0,
            stop: 0,
            budget: None,
            needs_server: false,
        }
    }
}

/// What a thread's last phase was like.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Its counts.
    pub stats: Stats,
    /// When it last worked off replies that counted.
    pub last_counted: u64,
    /// How long of it its CPU time was watched: all but the part of a turn.
    pub watched: Duration,
    /// CPU time of the thread in the time watched.
    pub cpu: Duration,
    /// Time of that stretch in which it waited without sleeping.
    pub spun: Duration,
    /// How long the oldest arrival that was not sent at the end had waited.
    pub behind: Duration,
    /// Requests whose reply never came.
    pub lost: u64,
}

/// How far a thread has come, for others to see.
#[derive(Debug, Default)]
pub struct Progress {
    /// Requests answered.
    pub answered: AtomicU64,
    /// Answers that were wrong.
    pub wrong: AtomicU64,
    failed: AtomicBool,
}

impl Progress {
    /// The thread cannot go on.
    pub fn fail(&self) {
        self.failed.store(true, Relaxed);
    }

    /// Whether the thread cannot go on.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }
}

/// What a worker is made with.
pub struct WorkerOptions {
    /// The run's clock.
    pub clock: Instant,
    /// The server.
    pub target: Target,
    /// How long a reply may take, and a connection.
    pub timeout: Duration,
    /// Connections of this thread.
    pub connections: usize,
    /// Bytes that a reply may well have.
    pub receive_bytes: usize,
}
