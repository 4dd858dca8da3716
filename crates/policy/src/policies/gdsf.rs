//! Greedy-Dual-Size-Frequency with the frequency capped at L (RIPQ, section 4.1): Lowest + min(L, n) / s for the n-th
//! access to an object of s bytes. Every miss costs the same, so small objects stay longer and object-wise hits are many.
//!
//! What is lowest in the queue rises as objects are evicted, and takes the place of ageing. The textbook's form, without a
//! cap, is [`crate::GreedyDual`].

use crate::priority::{Hit, Policy, Priority};

#[derive(Debug)]
pub(super) struct Gdsf {
    accesses_max: u32,
}

impl Gdsf {
    pub(super) fn new(accesses_max: u32) -> Self {
        Gdsf { accesses_max }
    }

    fn priority(&self, accesses: u32, size: u64, lowest: f64) -> Priority {
        let accesses = f64::from(accesses.min(self.accesses_max));
        Priority::Absolute(lowest + accesses / size.max(1) as f64)
    }
}

impl Policy for Gdsf {
    fn name(&self) -> String {
        format!("gdsf-{}", self.accesses_max)
    }

    fn is_absolute(&self) -> bool {
        true
    }

    fn accesses_max(&self) -> u32 {
        self.accesses_max
    }

    fn on_insert(&self, size: u64, lowest: f64) -> Priority {
        self.priority(1, size, lowest)
    }

    fn on_hit(&self, hit: &Hit) -> Option<Priority> {
        Some(self.priority(hit.accesses, hit.size, hit.lowest))
    }

    /// With few accesses counted it is much like LRU. From three on a smaller θ saves few writes, and loses large objects.
    fn theta(&self) -> f64 {
        match self.accesses_max {
            1 => 0.6,
            2 => 0.5,
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequency_counts_up_to_the_cap_and_size_divides_it() {
        let policy = Gdsf::new(2);
        assert_eq!(policy.on_insert(4, 10.0), Priority::Absolute(10.25));
        for (accesses, value) in [(2, 10.5), (3, 10.5), (4, 10.5)] {
            let hit = Hit {
                position: 0.5,
                accesses,
                size: 4,
                lowest: 10.0,
            };
            assert_eq!(policy.on_hit(&hit), Some(Priority::Absolute(value)));
        }
    }
}
