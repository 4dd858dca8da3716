//! Where each read goes: what the scheduler sets, and all threads ask.

use super::Side;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What each read asks, and all threads share.
#[derive(Debug)]
pub struct Switch {
    /// `load_admit` times 2^32.
    threshold: AtomicU64,
    data_admit: AtomicBool,
}

impl Default for Switch {
    fn default() -> Self {
        Self::new(1.0, true)
    }
}

/// `load_admit` 1 as a threshold.
const ALL: u64 = 1 << 32;
/// In the threshold: the next hit goes to the device that has fewer.
const ASK: u64 = 1 << 63;

impl Switch {
    /// A switch that stands so.
    pub fn new(load_admit: f64, data_admit: bool) -> Self {
        let switch = Self {
            threshold: AtomicU64::new(0),
            data_admit: AtomicBool::new(false),
        };
        switch.set(load_admit, data_admit);
        switch
    }

    /// Where a hit is read, by 32 uniform bits.
    #[inline]
    pub fn route(&self, random: u32) -> Side {
        let threshold = self.threshold.load(Ordering::Relaxed);
        if threshold > ALL {
            return self.route_asked(random, threshold);
        }
        if u64::from(random) < threshold {
            Side::Upper
        } else {
            Side::Lower
        }
    }

    /// Of all threads that see the question one has it.
    #[cold]
    fn route_asked(&self, random: u32, threshold: u64) -> Side {
        let plain = threshold & !ASK;
        let taken = self
            .threshold
            .compare_exchange(threshold, plain, Ordering::Relaxed, Ordering::Relaxed);
        let is_upper = match taken {
            Ok(_) => plain < ALL / 2,
            Err(_) => u64::from(random) < plain,
        };
        if is_upper { Side::Upper } else { Side::Lower }
    }

    /// Sends a single hit to the device that has fewer.
    pub(super) fn ask(&self) {
        self.threshold.fetch_or(ASK, Ordering::Relaxed);
    }

    /// The share of hits that go to the upper device.
    pub fn load_admit(&self) -> f64 {
        (self.threshold.load(Ordering::Relaxed) & !ASK) as f64 / ALL as f64
    }

    /// Whether data may be copied to the upper device.
    #[inline]
    pub fn data_admit(&self) -> bool {
        self.data_admit.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, load_admit: f64, data_admit: bool) {
        let threshold = (load_admit.clamp(0.0, 1.0) * ALL as f64).round() as u64;
        self.threshold.store(threshold, Ordering::Relaxed);
        self.data_admit.store(data_admit, Ordering::Relaxed);
    }
}
