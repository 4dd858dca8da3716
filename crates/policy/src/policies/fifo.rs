//! FIFO: in at the top, and a hit changes nothing.

use crate::priority::{Hit, Policy, Priority};

#[derive(Debug)]
pub(super) struct Fifo;

impl Policy for Fifo {
    fn name(&self) -> String {
        "fifo".into()
    }

    fn is_absolute(&self) -> bool {
        false
    }

    fn accesses_max(&self) -> u32 {
        1
    }

    fn on_insert(&self, _size: u64, _lowest: f64) -> Priority {
        Priority::Relative(1.0)
    }

    fn on_hit(&self, _hit: &Hit) -> Option<Priority> {
        None
    }
}
