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

/// A sleep ends up to so late: where the kernel may add 50 µs of slack, and the processor has to wake up. The rest is waited for awake.
const AWAKE: Duration = Duration::from_micros(100);

impl Timeline for RealTime {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn wait_until(&self, ns: u64) {
        let left = Duration::from_nanos(ns.saturating_sub(self.now_ns()));
        if let Some(asleep) = left.checked_sub(AWAKE) {
            std::thread::sleep(asleep);
        }
        while self.now_ns() < ns {
            std::hint::spin_loop();
        }
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
