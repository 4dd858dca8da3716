//! Key popularity by groups of equal weight, as CacheBench's `FastDiscreteDistribution` draws it.
//!
//! A sample of production keys comes as buckets: so many keys, so much weight in all, from the most to the least popular.
//! In that order the keys are cut into 2048 groups of equal weight, so that a draw is two uniform ones: a group, and a key
//! in it. A key that is heavier than a group is named by all groups that it covers whole; lighter keys that share a
//! group become alike. Memory: 32 KiB. Cost: O(1) per draw.

use pumice_world::Random;

/// log2 of the number of groups.
const GROUP_BITS: u32 = 11;
const GROUPS: u64 = 1 << GROUP_BITS;
/// Fractional bits of a [`Spread`].
const SPREAD_BITS: u32 = 40;

/// A sample: how many keys have how much weight.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    /// Keys up to the end of each bucket.
    keys: Vec<u64>,
    /// Weight up to there.
    weight: Vec<f64>,
}

impl Sample {
    /// Most keys in a sample.
    pub(super) const MAX_KEYS: u64 = 1 << 40;

    /// A sample of `buckets` keys each, with `weights`, whose sum is positive. The error says what is wrong with the
    /// buckets.
    pub(super) fn new(buckets: &[u64], weights: &[f64]) -> Result<Self, String> {
        if buckets.len() != weights.len() {
            return Err(format!(
                "has {} entries and popularityWeights {}; they must be as many",
                buckets.len(),
                weights.len()
            ));
        }
        let mut sample = Sample {
            keys: Vec::new(),
            weight: Vec::new(),
        };
        let (mut keys, mut weight) = (0u64, 0.0);
        for (index, (&bucket, &bucket_weight)) in buckets.iter().zip(weights).enumerate() {
            if bucket == 0 && bucket_weight > 0.0 {
                return Err(format!("entry {index} has a weight but no keys"));
            }
            keys = keys.saturating_add(bucket);
            weight += bucket_weight;
            if keys > Self::MAX_KEYS {
                return Err(format!("has more than {} keys", Self::MAX_KEYS));
            }
            sample.keys.push(keys);
            sample.weight.push(weight);
        }
        Ok(sample)
    }

    /// Keys in the sample: at least 1.
    pub(super) fn keys(&self) -> u64 {
        self.keys.last().copied().unwrap_or(0)
    }

    /// The number of keys before the point where `share` of the weight is, for shares in [0, 1).
    fn keys_before(&self, share: f64) -> u64 {
        let point = share * self.weight.last().copied().unwrap_or(0.0);
        let bucket = self.weight.partition_point(|&weight| weight <= point);
        let bucket = bucket.min(self.weight.len() - 1);
        let (keys, weight) = match bucket {
            0 => (0, 0.0),
            _ => (self.keys[bucket - 1], self.weight[bucket - 1]),
        };
        let (more_keys, more_weight) = (self.keys[bucket] - keys, self.weight[bucket] - weight);
        let part = (point - weight) / more_weight * more_keys as f64;
        // Rounding must lead neither out of the bucket nor out of the sample.
        (keys + (part as u64).min(more_keys.saturating_sub(1))).min(self.keys() - 1)
    }
}

/// How sampled keys become the keys of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyGen {
    /// Groups grow or shrink with the pool: every key of it occurs, and a sampled key's weight is shared by the keys that it
    /// becomes.
    Scaled,
    /// Each sampled key becomes one key (`useLegacyKeyGen`).
    Legacy,
}

/// A factor of keys per sampled key, in fixed point. Different numbers stay different if it is 1 or more.
#[derive(Debug, Clone, Copy)]
struct Spread(u128);

impl Spread {
    fn new(keys: u64, sampled: u64) -> Self {
        Spread((u128::from(keys) << SPREAD_BITS) / u128::from(sampled.max(1)))
    }

    #[inline]
    fn of(self, number: u64) -> u64 {
        ((u128::from(number) * self.0) >> SPREAD_BITS) as u64
    }
}

#[derive(Debug, Clone, Copy)]
struct Group {
    first: u64,
    count: u64,
}

/// Draws numbers below the number of keys of a pool; lower ones are more popular.
#[derive(Debug, Clone)]
pub(super) struct Popularity {
    groups: Vec<Group>,
    /// Applied to what is drawn.
    spread: Option<Spread>,
    ranks: u64,
}

impl Popularity {
    /// The popularity of `sample` in a pool of `keys`, at least 1.
    pub(super) fn new(sample: &Sample, keys: u64, key_gen: KeyGen) -> Self {
        let sampled = sample.keys();
        let scaled = |number: u64| match key_gen {
            KeyGen::Legacy => number,
            KeyGen::Scaled => (u128::from(number) * u128::from(keys) / u128::from(sampled.max(1))) as u64,
        };
        let start = |group: u64| match group {
            GROUPS => sampled,
            _ => sample.keys_before(group as f64 / GROUPS as f64),
        };
        let groups = (0..GROUPS).map(|group| {
            let first = start(group);
            // A group within one key names that key.
            let end = start(group + 1).max(first + 1);
            let (first, end) = (scaled(first), scaled(end));
            Group {
                first,
                count: end.saturating_sub(first).max(1),
            }
        });
        Popularity {
            groups: groups.collect(),
            spread: (key_gen == KeyGen::Legacy).then(|| Spread::new(keys, sampled)),
            ranks: match key_gen {
                KeyGen::Legacy => keys.min(sampled),
                KeyGen::Scaled => keys,
            },
        }
    }

    #[inline]
    pub(super) fn draw(&self, random: &mut Random) -> u64 {
        let group = self.groups[(random.next_u64() >> (64 - GROUP_BITS)) as usize];
        let number = group.first + random.below(group.count);
        match self.spread {
            None => number,
            Some(spread) => spread.of(number),
        }
    }

    /// How many different numbers occur.
    pub(super) fn ranks(&self) -> u64 {
        self.ranks
    }

    /// The number with a rank, from 0.
    pub(super) fn number_of_rank(&self, rank: u64) -> u64 {
        match self.spread {
            Some(spread) if spread.0 >= 1 << SPREAD_BITS => spread.of(rank),
            _ => rank,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pearson;

    fn counts(popularity: &Popularity, keys: usize, draws: u32) -> Vec<u32> {
        let mut random = Random(6);
        let mut counts = vec![0; keys];
        for _ in 0..draws {
            counts[popularity.draw(&mut random) as usize] += 1;
        }
        counts
    }

    #[test]
    fn keys_are_drawn_by_their_weights() {
        // Weights that fill whole groups: 2048 = 1024 + 2 × 256 + 512 keys in one group each.
        let sample = Sample::new(&[1, 2, 512], &[1024.0, 512.0, 512.0]).unwrap();
        let popularity = Popularity::new(&sample, 515, KeyGen::Scaled);
        let mut weights = vec![1.0; 515];
        weights[0] = 1024.0;
        weights[1..3].fill(256.0);
        // For 514 degrees of freedom it exceeds 642 once in ten thousand seeds, and the seed is fixed.
        let statistic = pearson(&weights, &counts(&popularity, 515, 200_000));
        assert!(statistic < 642.0, "{statistic}");
        assert_eq!(popularity.ranks(), 515);
    }

    #[test]
    fn a_heavy_key_is_named_by_several_groups_and_keeps_its_weight() {
        let sample = Sample::new(&[1, 100_000], &[0.3, 0.7]).unwrap();
        let popularity = Popularity::new(&sample, sample.keys(), KeyGen::Scaled);
        let naming = popularity
            .groups
            .iter()
            .filter(|group| group.first == 0 && group.count == 1);
        assert_eq!(naming.count(), (0.3 * 2048.0) as usize);
        let counts = counts(&popularity, 100_001, 100_000);
        assert!((29_500..30_500).contains(&counts[0]), "{}", counts[0]);
        assert!(
            counts[1..].iter().all(|&count| count < 12),
            "a light key became heavy"
        );
    }

    #[test]
    fn a_larger_pool_shares_a_keys_weight_or_spreads_the_keys() {
        let sample = Sample::new(&[1, 9], &[1024.0, 1024.0]).unwrap();
        let scaled = Popularity::new(&sample, 100, KeyGen::Scaled);
        let found = counts(&scaled, 100, 100_000);
        assert!(
            found.iter().all(|&count| count > 0),
            "a key of the pool never occurs"
        );
        let hottest: u32 = found[..10].iter().sum();
        assert!((49_000..51_000).contains(&hottest), "{hottest}");
        assert!(found[..10].iter().all(|&count| (4_500..5_500).contains(&count)));

        let legacy = Popularity::new(&sample, 100, KeyGen::Legacy);
        let found = counts(&legacy, 100, 100_000);
        let occurring: Vec<usize> = (0..100).filter(|&number| found[number] > 0).collect();
        assert_eq!(occurring, (0..10).map(|rank| rank * 10).collect::<Vec<_>>());
        assert!((49_000..51_000).contains(&found[0]), "{}", found[0]);
        assert_eq!(legacy.ranks(), 10);
        assert_eq!(legacy.number_of_rank(7), 70);
    }

    #[test]
    fn a_smaller_pool_merges_neighbours() {
        let sample = Sample::new(&[1, 999], &[1.0, 1.0]).unwrap();
        for key_gen in [KeyGen::Scaled, KeyGen::Legacy] {
            let popularity = Popularity::new(&sample, 10, key_gen);
            let found = counts(&popularity, 10, 20_000);
            assert!(found.iter().all(|&count| count > 700), "{key_gen:?}: {found:?}");
            assert_eq!(popularity.ranks(), 10);
            let one = Popularity::new(&sample, 1, key_gen);
            assert_eq!(counts(&one, 1, 100), [100]);
        }
    }

    #[test]
    fn extreme_samples_stay_in_range() {
        let huge = 1u64 << 40;
        let samples: [(&[u64], &[f64]); 4] = [
            (&[huge], &[1e300]),
            (&[1, huge - 1], &[1e-300, 1e300]),
            (&[5, 0, 7, 3], &[0.0, 0.0, 1.0, 0.0]),
            (&[3, 0], &[5e-324, 0.0]),
        ];
        for (buckets, weights) in samples {
            let sample = Sample::new(buckets, weights).unwrap();
            for keys in [1, 3, huge] {
                for key_gen in [KeyGen::Scaled, KeyGen::Legacy] {
                    let popularity = Popularity::new(&sample, keys, key_gen);
                    let mut random = Random(6);
                    for _ in 0..2000 {
                        assert!(popularity.draw(&mut random) < keys);
                    }
                    assert!(popularity.number_of_rank(popularity.ranks() - 1) < keys);
                }
            }
        }
    }
}
