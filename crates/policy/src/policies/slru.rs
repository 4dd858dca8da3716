//! Segmented LRU on one queue: L segments of equal bytes, in at the top of the lowest, and a hit goes to the top of the
//! next segment up. With one segment it is LRU.
//!
//! The segments have no borders of their own: what stands in a segment is what has a position in it, so objects sink from
//! one into the next as others are put above them.

use crate::priority::{Hit, Policy, Priority};

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

    fn accesses_max(&self) -> u32 {
        1
    }

    fn on_insert(&self, _size: u64, _lowest: f64) -> Priority {
        Priority::Relative(1.0 / f64::from(self.segments))
    }

    fn on_hit(&self, hit: &Hit) -> Option<Priority> {
        let segments = f64::from(self.segments);
        let segment = (hit.position * segments).ceil();
        Some(Priority::Relative(((segment + 1.0) / segments).min(1.0)))
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
                accesses: 1,
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
}
