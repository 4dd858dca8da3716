//! Segmented LRU on one queue: L segments of equal bytes, in at the top of the lowest, and a hit goes to the top of the
//! next segment up. With one segment it is LRU.
//!
//! The segments have no borders of their own: what stands in a segment is what has a position in it, so objects sink from
//! one into the next as others are put above them. What was never hit can only have sunk from where it was put in: it is
//! of the lowest segment, wherever it stands. (The insertion point of a layout may be above that, and the object with it; and what came
//! while the cache filled was put in at the top, and is raised by a first hit only from below the next segment's top.)

use crate::priority::{Hit, Policy, Priority};

/// Accesses when an object is hit for the first time: its insertion is one.
const FIRST_HIT: u32 = 2;

#[derive(Debug)]
pub(super) struct Slru {
    segments: u32,
    is_lru: bool,
}

impl Slru {
    pub(super) fn new(segments: u32) -> Self {
        assert!(segments > 0, "an SLRU has segments");
        Slru {
            segments,
            is_lru: false,
        }
    }

    /// The one with one segment, under its own name.
    pub(super) fn lru() -> Self {
        Slru {
            segments: 1,
            is_lru: true,
        }
    }
}

impl Policy for Slru {
    fn name(&self) -> String {
        if self.is_lru {
            "lru".into()
        } else {
            format!("slru-{}", self.segments)
        }
    }

    fn is_absolute(&self) -> bool {
        false
    }

    /// The first hit must look different from those after it.
    fn accesses_max(&self) -> u32 {
        if self.segments > 1 { FIRST_HIT + 1 } else { 1 }
    }

    fn on_insert(&self, _size: u64, _lowest: f64) -> Priority {
        Priority::Relative(1.0 / f64::from(self.segments))
    }

    fn on_hit(&self, hit: &Hit) -> Option<Priority> {
        let segments = f64::from(self.segments);
        let segment = match hit.accesses {
            FIRST_HIT => 1.0,
            _ => (hit.position * segments).ceil(),
        };
        Some(Priority::Relative(((segment + 1.0) / segments).min(1.0)))
    }

    /// Of LRU much has sunk nearly as far as what was not raised, and is written again to go soon.
    fn theta(&self) -> f64 {
        if self.segments > 1 { 1.0 } else { 0.75 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hit_goes_to_the_top_of_the_next_segment() {
        let policy = Slru::new(3);
        assert_eq!(policy.on_insert(10, 0.0), Priority::Relative(1.0 / 3.0));
        for (position, segments) in [(0.01, 2.0), (0.33, 2.0), (0.34, 3.0), (0.67, 3.0), (0.99, 3.0)] {
            let hit = Hit {
                position,
                accesses: 3,
                size: 10,
                lowest: 0.0,
            };
            assert_eq!(
                policy.on_hit(&hit),
                Some(Priority::Relative(segments / 3.0)),
                "from {position}"
            );
        }
    }

    #[test]
    fn what_is_hit_for_the_first_time_is_of_the_lowest_segment() {
        let first = |policy: &Slru, accesses| {
            policy.on_hit(&Hit {
                position: 0.34,
                accesses,
                size: 10,
                lowest: 0.0,
            })
        };
        let slru = Slru::new(3);
        assert_eq!(slru.accesses_max(), 3, "a second hit must look different");
        assert_eq!(first(&slru, 2), Some(Priority::Relative(2.0 / 3.0)));
        assert_eq!(first(&slru, 3), Some(Priority::Relative(1.0)));
        assert_eq!(Slru::lru().accesses_max(), 1, "there is no segment above");
    }
}
