//! Absolute priorities as positions: the histogram, and which priority a key has in it.
//!
//! An increase takes the old priority out of the histogram, so it must be known. It is kept for a sample of the keys (section 4 of the
//! RIPQ paper). Positions are shares of bytes, so a key's chance to be in the sample is its bytes over a threshold, and each that is
//! counts as the threshold or, if it has more, as its own bytes: a few large objects then weigh what they are, not what chance makes
//! of them. The threshold doubles when the keys become too many for all there are.

use crate::layout::hashes::ByHash;
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
/// Slots of the sample's table, of which seven in eight can be used: to begin with, as many as it grows to whatever share of the keys is
/// in it, and at most (13 KB, 51 KB and 1.6 MB). Half as many cost gdsf-3 up to 0.3 points of hits on caches of some thousand objects,
/// twice as many won 0.1, with gdsf-1 on one trace 0.2 on average.
const SLOTS: [usize; 3] = [512, 2048, 65_536];
/// Between the last two it grows while at most one key in so many is in it, and there are so many for each slot at least: it takes at most
/// 25 / 8 bytes for a key, and half of that most of the time.
const KEYS_PER_SAMPLED: u64 = 32;
const KEYS_PER_SLOT_MIN: u64 = 8;

pub(crate) struct Ranks {
    histogram: QuantileHistogram,
    /// Value and bytes by hash, in a table of so many slots.
    sample: ByHash<(f64, u64)>,
    slots: usize,
    threshold: Threshold,
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
    /// In bytes.
    pub(crate) threshold: u64,
    /// Hash, value, bytes.
    pub(crate) sample: Vec<(u64, f64, u64)>,
}

impl Ranks {
    pub(crate) fn new() -> Self {
        Self {
            histogram: QuantileHistogram::new(BINS),
            sample: ByHash::default(),
            slots: SLOTS[0],
            threshold: Threshold(0),
            lowest: 0.0,
        }
    }

    /// Ranks as they were saved, unless the values are those of another policy, or not as [`save`](Self::save) makes them.
    pub(crate) fn restore(saved: &SavedRanks, policy: u32) -> Self {
        let histogram = QuantileHistogram::from_bins(BINS, saved.lowest, saved.bins.iter().copied());
        let (Some(histogram), Some(threshold)) = (
            histogram.filter(|_| !saved.bins.is_empty() && saved.policy == policy),
            Threshold::of(saved.threshold),
        ) else {
            return Self::new();
        };
        if saved.sample.len() > SLOTS[2] / 8 * 7 {
            return Self::new();
        }
        // With room for more: a table that is full at once might drop half of the keys.
        let slots = (saved.sample.len() * 8).div_ceil(5).next_power_of_two();
        let slots = slots.clamp(SLOTS[0], SLOTS[2]);
        // The threshold and the bins go together: neither changes here.
        let mut ranks = Self {
            histogram,
            threshold,
            lowest: saved.lowest,
            slots,
            sample: table(slots),
        };
        let sample = saved.sample.iter();
        ranks
            .sample
            .extend(sample.map(|(hash, value, bytes)| (*hash, (*value, *bytes))));
        ranks
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
            threshold: self.threshold.bytes(),
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

    /// A key has this value from now on.
    pub(crate) fn put(&mut self, hash: u64, value: f64, bytes: u64) {
        let mut is_changed = self.forget(hash);
        if self.threshold.takes(hash, bytes) {
            self.make_room();
            is_changed = true;
        }
        // Making room may have raised the threshold.
        if self.threshold.takes(hash, bytes) {
            self.sample.insert(hash, (value, bytes));
            self.histogram.insert(value, self.threshold.weight(bytes));
        }
        if is_changed {
            self.note_lowest();
        }
    }

    /// The keys whose values are known.
    pub(crate) fn sampled(&self) -> impl Iterator<Item = u64> + '_ {
        self.sample.keys().copied()
    }

    /// A key is gone.
    pub(crate) fn take(&mut self, hash: u64) {
        if self.forget(hash) {
            self.note_lowest();
        }
    }

    fn forget(&mut self, hash: u64) -> bool {
        let Some((value, bytes)) = self.sample.remove(&hash) else {
            return false;
        };
        self.histogram.remove(value, self.threshold.weight(bytes));
        true
    }

    /// All keys are gone.
    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }

    pub(crate) fn dram_bytes(&self) -> u64 {
        let slot = size_of::<(u64, (f64, u64))>() + 1;
        let slots = if self.sample.capacity() == 0 {
            0
        } else {
            self.slots
        };
        (slots * slot + self.histogram.bins().count() * size_of::<Bin>()) as u64
    }

    /// Makes room for one more key, so that the table does not grow by itself.
    ///
    /// A key that goes may leave its slot unusable until the table is made anew. That is done when no slot is left; more than five
    /// eighths full then, it becomes larger, or, where it may not, half of the keys go. So there is room for a quarter of the slots' keys
    /// or more until it is done again.
    fn make_room(&mut self) {
        if self.sample.len() < self.sample.capacity() {
            return;
        }
        while self.sample.len() > self.slots / 8 * 5 && self.threshold < Threshold::MAX {
            let may_grow = self.slots < SLOTS[1]
                || (self.slots < SLOTS[2] && self.keys() >= KEYS_PER_SAMPLED * self.sample.len() as u64);
            if may_grow {
                self.slots *= 2;
            } else {
                self.raise_threshold();
            }
        }
        self.rebuild();
    }

    /// Makes the table anew, with as many slots as it is to have.
    fn rebuild(&mut self) {
        let mut sample = table(self.slots);
        sample.extend(self.sample.drain());
        self.sample = sample;
    }

    /// Makes the table smaller where there are few keys by now for as many slots: objects became larger, or less. Now and then.
    pub(crate) fn shrink(&mut self) {
        let slots = self.slots;
        while self.slots > SLOTS[1] && self.keys() < KEYS_PER_SLOT_MIN * self.slots as u64 {
            self.slots /= 2;
            while self.sample.len() > self.slots / 8 * 5 && self.threshold < Threshold::MAX {
                self.raise_threshold();
            }
        }
        if self.slots < slots {
            self.rebuild();
        }
    }

    /// How many keys there are, those that are not in the sample too, by the sample's account.
    fn keys(&self) -> u64 {
        let keys = |bytes: &u64| self.threshold.weight(*bytes) / (*bytes).max(1);
        self.sample.values().map(|(_, bytes)| keys(bytes)).sum()
    }

    /// Doubles the threshold. Keys that it leaves out go, the others weigh what they weigh under it.
    fn raise_threshold(&mut self) {
        let (was, threshold) = (self.threshold, Threshold(self.threshold.0 + 1));
        let histogram = &mut self.histogram;
        self.sample.retain(|hash, (value, bytes)| {
            let stays = threshold.takes(*hash, *bytes);
            let (old, new) = (was.weight(*bytes), threshold.weight(*bytes));
            if !stays || old != new {
                histogram.remove(*value, old);
            }
            if stays && old != new {
                histogram.insert(*value, new);
            }
            stays
        });
        self.threshold = threshold;
    }
}

fn table(slots: usize) -> ByHash<(f64, u64)> {
    ByHash::with_capacity_and_hasher(slots / 8 * 7, Default::default())
}

/// The bytes from which on a key is in the sample for sure, as a power of two.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct Threshold(u32);

impl Threshold {
    /// No object has as many.
    const MAX: Self = Self(40);

    /// What was kept as bytes.
    fn of(bytes: u64) -> Option<Self> {
        let threshold = Self(bytes.trailing_zeros());
        (bytes.is_power_of_two() && threshold <= Self::MAX).then_some(threshold)
    }

    fn bytes(self) -> u64 {
        1 << self.0
    }

    /// Whether a key is in the sample: those of half the bytes are half of the time, by their hashes. A key that is goes when the
    /// threshold rises and never comes.
    fn takes(self, hash: u64, bytes: u64) -> bool {
        let hash = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        u128::from(hash) < u128::from(bytes.max(1)) << (64 - self.0)
    }

    /// What a key in the sample counts as, in bytes.
    fn weight(self, bytes: u64) -> u64 {
        bytes.max(self.bytes())
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
        // One in 32 is 12,500.
        assert!(
            (6_000..=14_336).contains(&ranks.sample.len()),
            "{}",
            ranks.sample.len()
        );
        assert_eq!(ranks.slots, 16_384);
        assert!(ranks.sample.capacity() <= 14_336, "the table grew by itself");
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
    fn keys_that_come_and_go_do_not_make_the_table_grow() {
        let mut ranks = Ranks::new();
        for key in 0..1_000_000u64 {
            ranks.put(key.wrapping_mul(0xD6E8_FEB8_6659_FD93), 1.0 + key as f64, 10);
            if let Some(old) = key.checked_sub(100_000) {
                ranks.take(old.wrapping_mul(0xD6E8_FEB8_6659_FD93));
            }
            assert!(ranks.sample.capacity() <= ranks.slots / 8 * 7);
        }
        // One in 32 of them is 3,125, for which 4,096 slots do; each is known, and none that is gone.
        assert!(
            ranks.slots <= 8_192 && ranks.threshold.bytes() <= 128 * 10,
            "{}",
            ranks.slots
        );
        let kept = (900_000..1_000_000u64)
            .filter(|key| ranks.threshold.takes(key.wrapping_mul(0xD6E8_FEB8_6659_FD93), 10))
            .count();
        assert_eq!(kept, ranks.sample.len());
        assert_eq!(kept as u64 * ranks.threshold.bytes(), ranks.histogram.total());
        assert!((900_000..1_100_000).contains(&ranks.histogram.total()));
        assert!(ranks.dram_bytes() < 25 * 8_192 + 20_000);
    }

    #[test]
    fn positions_are_shares_of_bytes_however_sizes_differ() {
        // Sizes from 16 bytes to 1 MiB, as many bytes in each doubling, and values that go against them.
        let key = |at: u64| at.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let bytes = |at: u64| 16u64 << (at.wrapping_mul(0x2545_F491_4F6C_DD1D).leading_zeros().min(16));
        let value = |at: u64| ((at * 31) % 1_009) as f64 + 1e6 / bytes(at) as f64;
        let keys = 200_000u64;
        let mut ranks = Ranks::new();
        (0..keys).for_each(|at| ranks.put(key(at), value(at), bytes(at)));
        let total: u64 = (0..keys).map(bytes).sum();
        for share in [0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98] {
            let value_there = ranks.histogram.value_at(share);
            let below: u64 = (0..keys).filter(|at| value(*at) <= value_there).map(bytes).sum();
            let exact = below as f64 / total as f64;
            let position = ranks.position(value_there);
            assert!((position - exact).abs() < 0.02, "{position} for {exact}");
        }
        // One that becomes smaller may leave the sample, and leaves nothing of itself.
        (0..keys).for_each(|at| ranks.put(key(at), value(at), 16));
        (0..keys).for_each(|at| ranks.take(key(at)));
        assert_eq!((ranks.histogram.total(), ranks.sample.len()), (0, 0));
    }

    #[test]
    fn objects_that_become_larger_and_fewer_leave_a_smaller_table_that_is_restored_as_it_was() {
        let key = |at: u64| at.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let sum = |ranks: &Ranks| {
            let weights = ranks.sample.values();
            weights
                .map(|(_, bytes)| ranks.threshold.weight(*bytes))
                .sum::<u64>()
        };
        let mut ranks = Ranks::new();
        (0..400_000).for_each(|at| ranks.put(key(at), 1.0 + (at % 1_000) as f64, 100));
        let slots = ranks.slots;
        (0..400_000).for_each(|at| {
            ranks.take(key(at));
            if at % 8 == 0 {
                ranks.put(key(400_000 + at), 1.0 + (at % 1_000) as f64, 800);
            }
        });
        for is_small in [false, true] {
            if is_small {
                ranks.shrink();
                assert!(ranks.slots < slots, "{}", ranks.slots);
            }
            assert!(ranks.sample.len() > 600, "{}", ranks.sample.len());
            let saved = ranks.save(7);
            let mut restored = Ranks::restore(&saved, 7);
            assert_eq!(restored.save(7), saved);
            assert_eq!(restored.histogram.total(), sum(&restored));
            assert!(restored.slots <= 2 * ranks.slots);
            assert_eq!(sum(&ranks), ranks.histogram.total());
            let position = restored.position(500.5);
            assert!((position - 0.5).abs() < 0.06, "{position}");
            // What was restored goes as it would have gone.
            (0..800_000).for_each(|at| restored.take(key(at)));
            assert_eq!((restored.histogram.total(), restored.sample.len()), (0, 0));
        }
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
