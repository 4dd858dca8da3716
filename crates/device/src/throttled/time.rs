//! Time as a throttled device has it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Tells the time, and waits.
pub trait Timeline: Send + Sync + 'static {
    /// Nanoseconds since an arbitrary start; never falls.
    fn now_ns(&self) -> u64;

    /// Returns when [`now_ns`](Timeline::now_ns) is at least `ns`. Blocks the thread.
    fn wait_until(&self, ns: u64);
}

/// The time that passes.
#[derive(Debug)]
pub struct RealTime(Instant);

impl RealTime {
    /// A timeline that starts now.
    pub fn new() -> Self {
        Self(Instant::now())
    }
}

impl Default for RealTime {
    fn default() -> Self {
        Self::new()
    }
}

impl Timeline for RealTime {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn wait_until(&self, ns: u64) {
        let left = ns.saturating_sub(self.now_ns());
        // A sleep may end some microseconds late, never early.
        std::thread::sleep(Duration::from_nanos(left));
    }
}

/// Time that passes only where something waits for it.
#[derive(Debug, Default)]
pub struct VirtualTime(AtomicU64);

impl VirtualTime {
    /// A timeline that stands at 0.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Timeline for VirtualTime {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn wait_until(&self, ns: u64) {
        self.0.fetch_max(ns, Ordering::Relaxed);
    }
}
