//! A hot set: a share of the requests goes to a share of the keys, all alike within the set and outside.
//!
//! As YCSB's hotspot distribution (Cooper et al., "Benchmarking cloud serving systems with YCSB", SoCC 2010).

use super::parts::{Parts, required};
use pumice_world::Random;

/// Draws ranks 1..=keys, of which the first `hot_keys` are the hot set.
#[derive(Debug, Clone)]
pub(super) struct Hotspot {
    pub(super) keys: u64,
    hot_keys: u64,
    share: f64,
}

impl Hotspot {
    pub(super) const PARTS: [&str; 3] = ["keys", "hot", "share"];

    pub(super) fn from_parts(parts: &Parts<'_>) -> Result<Self, String> {
        let keys = required("keys", parts.keys()?)?;
        let hot = parts.decimal("hot", 0.0, 1.0)?.unwrap_or(0.2);
        let share = parts.decimal("share", 0.0, 1.0)?.unwrap_or(0.8);
        let hot_keys = (hot * keys as f64).round() as u64;
        if hot_keys == 0 && share > 0.0 {
            return Err(format!("`hot={hot}` of {keys} keys is no key"));
        }
        if hot_keys >= keys && share < 1.0 {
            return Err(format!(
                "`hot={hot}` of {keys} keys is all of them, and none are left for the other requests"
            ));
        }
        Ok(Hotspot {
            keys,
            hot_keys,
            share,
        })
    }

    #[inline]
    pub(super) fn draw(&self, random: &mut Random) -> u64 {
        if random.next_f64() < self.share {
            1 + random.below(self.hot_keys)
        } else {
            1 + self.hot_keys + random.below(self.keys - self.hot_keys)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pearson;

    fn hotspot(text: &str) -> Result<Hotspot, String> {
        Hotspot::from_parts(&Parts::parse(text, &Hotspot::PARTS)?)
    }

    #[test]
    fn the_hot_set_gets_its_share_and_all_are_alike_within() {
        let hotspot = hotspot("keys=50,hot=0.3,share=0.9").unwrap();
        let mut random = Random(1);
        let mut counts = [0u32; 50];
        for _ in 0..100_000 {
            counts[hotspot.draw(&mut random) as usize - 1] += 1;
        }
        let weights: Vec<f64> = (0..50)
            .map(|rank| if rank < 15 { 0.9 / 15.0 } else { 0.1 / 35.0 })
            .collect();
        // For 49 degrees of freedom it exceeds 94.6 once in ten thousand seeds, and the seed is fixed.
        let statistic = pearson(&weights, &counts);
        assert!(statistic < 94.6, "{statistic}");
    }

    #[test]
    fn a_set_without_keys_for_its_requests_is_refused() {
        for (text, what) in [
            ("keys=2,hot=0.1", "no key"),
            ("keys=2,hot=0.9", "all of them"),
            ("keys=1", "no key"),
            ("hot=0.5", "`keys` is missing"),
            ("keys=9,hot=1.5", "hot from 0 to 1"),
            ("keys=9,share=-1", "share from 0 to 1"),
        ] {
            let found = hotspot(text).unwrap_err();
            assert!(found.contains(what), "{text}: {found}");
        }
        for text in ["keys=1,hot=1,share=1", "keys=5,hot=0,share=0"] {
            let hotspot = hotspot(text).unwrap();
            let mut random = Random(1);
            assert!((0..100).all(|_| (1..=5).contains(&hotspot.draw(&mut random))));
        }
    }
}
