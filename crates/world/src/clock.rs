//! Time as the engine sees it: absolute seconds for expiry, monotonic nanoseconds for latency.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Tells the time.
///
/// Contract: both readings never fall; `now_secs` is the Unix time in seconds as it was known when the clock
/// was made plus the monotonic time since, so a wall clock that is set back or forth later changes no expiry.
pub trait Clock: Send + Sync + 'static {
    /// The Unix time in seconds (valid until 2106).
    fn now_secs(&self) -> u32;
    /// Nanoseconds since an arbitrary start.
    fn monotonic_ns(&self) -> u64;
    /// From now on the clock shows at least `secs`: the highest time that a cache device has recorded. Clocks that
    /// somebody else sets ignore it.
    fn not_before(&self, secs: u32) {
        let _ = secs;
    }
}

/// The wall clock at start plus monotonic time.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
    start_unix_secs: AtomicU32,
    behind_secs: u32,
}

/// No machine's clock is believed to show more, in Unix seconds: the first of 2100. Expiries have 32 bits.
const LATEST: u32 = 4_102_444_800;

impl SystemClock {
    /// Starts a clock that never shows less than `not_before_secs`, the highest time a cache device has recorded.
    pub fn new(not_before_secs: u32) -> Self {
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| u32::try_from(d.as_secs()).unwrap_or(LATEST).min(LATEST));
        Self {
            start: Instant::now(),
            start_unix_secs: AtomicU32::new(wall.max(not_before_secs)),
            behind_secs: not_before_secs.saturating_sub(wall),
        }
    }

    /// By how much the wall clock was less than what the clock must show.
    pub fn behind_secs(&self) -> u32 {
        self.behind_secs
    }
}

impl Clock for SystemClock {
    fn now_secs(&self) -> u32 {
        let passed = u32::try_from(self.start.elapsed().as_secs()).unwrap_or(u32::MAX);
        self.start_unix_secs
            .load(Ordering::Relaxed)
            .saturating_add(passed)
    }

    fn not_before(&self, secs: u32) {
        self.start_unix_secs.fetch_max(secs, Ordering::Relaxed);
    }

    fn monotonic_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A clock that only moves when told to: for tests and replay.
#[derive(Debug, Default)]
pub struct ManualClock {
    secs: AtomicU32,
    nanos: AtomicU64,
}

impl ManualClock {
    /// A clock that shows `secs`.
    pub fn new(secs: u32) -> Self {
        Self {
            secs: AtomicU32::new(secs),
            nanos: AtomicU64::new(0),
        }
    }

    /// Moves the clock forward by `secs` seconds.
    pub fn advance_secs(&self, secs: u32) {
        self.secs.fetch_add(secs, Ordering::Relaxed);
        self.nanos
            .fetch_add(u64::from(secs) * 1_000_000_000, Ordering::Relaxed);
    }

    /// Moves the clock forward by `ns` nanoseconds.
    pub fn advance_ns(&self, ns: u64) {
        let before = self.nanos.fetch_add(ns, Ordering::Relaxed);
        let secs = (before + ns) / 1_000_000_000 - before / 1_000_000_000;
        self.secs
            .fetch_add(u32::try_from(secs).unwrap_or(u32::MAX), Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now_secs(&self) -> u32 {
        self.secs.load(Ordering::Relaxed)
    }

    fn monotonic_ns(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed)
    }
}
