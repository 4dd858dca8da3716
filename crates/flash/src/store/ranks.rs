//! Absolute priorities as positions: the histogram, and which priority a key has in it.
//!
//! An increase takes the old priority out of the histogram, so it must be known. It is kept for a sample of the keys: those
//! whose hash is below a bound, which halves when they become too many. Weights in the histogram are those of the sample.

use super::hashes::ByHash;
use pumice_policy::{Bin, QuantileHistogram};

/// Bins of the histogram (κ).
const BINS: usize = 256;
/// What stands below this share of the bytes does not hold the lowest priority down.
///
/// The paper takes the lowest bin's lower edge. A section has one insertion point, so objects of the lowest priorities stand up to
/// half a section too high, and long outlive their turn; taken as the lowest they stop the ageing, and what is left is an
/// order by size alone (gdsf-1 on sizes from 600 to 8,192 bytes: 4.5 points below its twin, none with this). More than
/// 0.01 puts too many new objects beside the head where sizes differ by a thousand times: at 0.03 a CDN's load loses 7 points.
const STALE_SHARE: f64 = 0.01;
/// Keys in the sample, at most.
const SAMPLE_MAX: usize = 1 << 16;

pub(crate) struct Ranks {
    histogram: QuantileHistogram,
    /// Value and bytes by hash.
    sample: ByHash<(f64, u64)>,
    /// Hashes are in the sample if their lower bits, mixed, are below this.
    bound: u64,
    /// What new priorities are added to; never falls.
    lowest: f64,
}

/// Ranks as they are kept on flash.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SavedRanks {
    /// Whose values they are, as a checksum of the policy's name.
    pub(crate) policy: u32,
    pub(crate) lowest: f64,
    pub(crate) bins: Vec<Bin>,
    pub(crate) bound: u64,
    /// Hash, value, bytes.
    pub(crate) sample: Vec<(u64, f64, u64)>,
}

impl Ranks {
    pub(crate) fn new() -> Self {
        Self {
            histogram: QuantileHistogram::new(BINS),
            sample: ByHash::default(),
            bound: u64::MAX,
            lowest: 0.0,
        }
    }

    /// Ranks as they were saved, unless the values are those of another policy.
    pub(crate) fn restore(saved: &SavedRanks, policy: u32) -> Self {
        let histogram = QuantileHistogram::from_bins(BINS, saved.lowest, saved.bins.iter().copied());
        match histogram.filter(|_| !saved.bins.is_empty() && saved.policy == policy) {
            Some(histogram) => Self {
                histogram,
                sample: saved
                    .sample
                    .iter()
                    .map(|(hash, value, bytes)| (*hash, (*value, *bytes)))
                    .collect(),
                bound: saved.bound,
                lowest: saved.lowest,
            },
            None => Self::new(),
        }
    }

    pub(crate) fn save(&self, policy: u32) -> SavedRanks {
        let mut sample: Vec<_> = self
            .sample
            .iter()
            .map(|(hash, (value, bytes))| (*hash, *value, *bytes))
            .collect();
        sample.sort_unstable_by_key(|(hash, ..)| *hash);
        SavedRanks {
            policy,
            lowest: self.lowest,
            bins: self.histogram.bins().collect(),
            bound: self.bound,
            sample,
        }
    }

    pub(crate) fn lowest(&self) -> f64 {
        self.lowest
    }

    fn note_lowest(&mut self) {
        let lowest = self.histogram.value_at(STALE_SHARE);
        self.lowest = self.lowest.max(self.histogram.lowest()).max(lowest);
    }

    /// The share of the bytes below a value.
    pub(crate) fn position(&self, value: f64) -> f64 {
        self.histogram.quantile(value)
    }

    fn is_sampled(&self, hash: u64) -> bool {
        hash.wrapping_mul(0x9E37_79B9_7F4A_7C15) <= self.bound
    }

    /// A key has this value from now on.
    pub(crate) fn put(&mut self, hash: u64, value: f64, bytes: u64) {
        if !self.is_sampled(hash) {
            return;
        }
        if let Some((old, bytes)) = self.sample.insert(hash, (value, bytes)) {
            self.histogram.remove(old, bytes);
        }
        self.histogram.insert(value, bytes);
        if self.sample.len() > SAMPLE_MAX {
            self.halve();
        }
        self.note_lowest();
    }

    /// The keys whose values are known.
    pub(crate) fn sampled(&self) -> impl Iterator<Item = u64> + '_ {
        self.sample.keys().copied()
    }

    /// A key is gone.
    pub(crate) fn take(&mut self, hash: u64) {
        if let Some((value, bytes)) = self.sample.remove(&hash) {
            self.histogram.remove(value, bytes);
            self.note_lowest();
        }
    }

    /// All keys are gone.
    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }

    pub(crate) fn dram_bytes(&self) -> u64 {
        let entry = size_of::<(u64, (f64, u64))>() + 1;
        (self.sample.capacity() * entry + self.histogram.bins().count() * size_of::<Bin>()) as u64
    }

    fn halve(&mut self) {
        self.bound /= 2;
        let sample = std::mem::take(&mut self.sample);
        for (hash, (value, bytes)) in sample {
            if self.is_sampled(hash) {
                self.sample.insert(hash, (value, bytes));
            } else {
                self.histogram.remove(value, bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_of_many_keys_says_the_same_and_stays_small() {
        let mut ranks = Ranks::new();
        // Values in no order, so that the sample, which goes by hash, is one of values too.
        let value = |key: u64| (key.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 40) as f64 + 1.0;
        let keys = 400_000u64;
        for key in 0..keys {
            ranks.put(key.wrapping_mul(0xD6E8_FEB8_6659_FD93), value(key), 100);
        }
        assert!(ranks.sample.len() <= SAMPLE_MAX && ranks.sample.len() > SAMPLE_MAX / 3);
        for share in [0.1, 0.5, 0.9] {
            let position = ranks.position(share * f64::from(1 << 24));
            assert!((position - share).abs() < 0.03, "{position} for {share}");
        }
        let saved = ranks.save(7);
        let same = Ranks::restore(&saved, 7);
        assert_eq!(same.position(1e6), ranks.position(1e6));
        assert_eq!(same.save(7), saved);
        assert_eq!(
            Ranks::restore(&saved, 8).sample.len(),
            0,
            "another policy's values mean nothing"
        );
        for key in 0..keys {
            ranks.take(key.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        }
        assert_eq!(
            (ranks.histogram.total(), ranks.sample.len()),
            (0, 0),
            "counters return to zero"
        );
    }

    #[test]
    fn what_little_stays_behind_does_not_hold_the_lowest_down() {
        let mut ranks = Ranks::new();
        // A few objects that never leave, and many that come and go with rising values.
        (0..5).for_each(|key| ranks.put(key, 1.0, 10));
        let mut was = 0.0;
        for key in 5..20_000u64 {
            ranks.put(key, 1.0 + key as f64, 10);
            if key >= 1_005 {
                ranks.take(key - 1_000);
            }
            assert!(ranks.lowest() >= was, "it fell");
            was = ranks.lowest();
        }
        assert!((18_900.0..19_200.0).contains(&was), "{was}");
        assert_eq!(Ranks::restore(&ranks.save(7), 7).lowest(), was);
    }

    #[test]
    fn a_key_that_is_raised_leaves_its_old_value() {
        let mut ranks = Ranks::new();
        for key in 0..1_000 {
            ranks.put(key, 1.0 + key as f64, 10);
        }
        for key in 0..500 {
            ranks.put(key, 2_000.0, 10);
        }
        assert_eq!(ranks.histogram.total(), 10_000);
        assert!(ranks.position(750.0) < 0.3, "{}", ranks.position(750.0));
    }
}
