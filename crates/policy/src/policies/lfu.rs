//! Least frequently used with dynamic ageing (Arlitt et al. 2000, LFU-DA), counting to 4: Lowest + min(n, 4) for the n-th
//! access, whatever the size.
//!
//! What is lowest in the queue rises as objects are evicted; without it, objects that were once used often would never
//! leave, for the count has so few steps.

use crate::priority::{Hit, Policy, Priority};

const ACCESSES_MAX: u32 = 4;

#[derive(Debug)]
pub(super) struct Lfu;

impl Policy for Lfu {
    fn name(&self) -> String {
        "lfu".into()
    }

    fn is_absolute(&self) -> bool {
        true
    }

    fn accesses_max(&self) -> u32 {
        ACCESSES_MAX
    }

    fn on_insert(&self, _size: u64, lowest: f64) -> Priority {
        Priority::Absolute(lowest + 1.0)
    }

    fn on_hit(&self, hit: &Hit) -> Option<Priority> {
        Some(Priority::Absolute(
            hit.lowest + f64::from(hit.accesses.min(ACCESSES_MAX)),
        ))
    }
}
