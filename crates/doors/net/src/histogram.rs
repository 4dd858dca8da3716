//! Latency histograms: fixed, log-linear, written by one worker and read by any thread.
//!
//! 8 buckets for each power of two, so a quantile is off by at most 12.5 %. From 64 ns to 68 s; the first and the last bucket count values
//! outside. Memory: 240 buckets of 8 bytes. Cost of recording: a few shifts and two unshared atomic stores.

use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets per power of two, as a power of two.
const SUB_BITS: u32 = 3;
/// The first bucket starts at `2^MIN_BITS` ns; lower values count in it.
const MIN_BITS: u32 = 6;
/// The last bucket ends at `2^MAX_BITS` ns; higher values count in it.
const MAX_BITS: u32 = 36;
const BUCKETS: usize = ((MAX_BITS - MIN_BITS) << SUB_BITS) as usize;

/// A counter that one thread writes and others read: an increment is a plain load and store.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`. Only the counter's own worker may call this; increments of two threads would be lost.
    pub fn add(&self, count: u64) {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(count);
        self.0.store(sum, Ordering::Relaxed);
    }

    /// The count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl pumice_world::Cell for Counter {
    fn total(&self) -> u64 {
        self.get()
    }
}

/// A histogram of nanoseconds, written by one thread.
#[derive(Debug)]
pub struct Histogram {
    buckets: [Counter; BUCKETS],
    sum_ns: Counter,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: std::array::from_fn(|_| Counter::default()),
            sum_ns: Counter::default(),
        }
    }
}

fn bucket_of(ns: u64) -> usize {
    let ns = ns.clamp(1 << MIN_BITS, (1 << MAX_BITS) - 1);
    let bits = ns.ilog2();
    let sub = (ns >> (bits - SUB_BITS)) & ((1 << SUB_BITS) - 1);
    (((bits - MIN_BITS) << SUB_BITS) as usize) + sub as usize
}

/// The first value beyond a bucket.
fn upper_bound_ns(bucket: usize) -> u64 {
    let bits = MIN_BITS + (bucket >> SUB_BITS) as u32;
    let sub = (bucket & ((1 << SUB_BITS) - 1)) as u64;
    (1 << bits) + ((sub + 1) << (bits - SUB_BITS))
}

impl Histogram {
    /// Counts `count` operations that took `ns` each. Only the histogram's own worker may call this.
    pub fn record(&self, ns: u64, count: u64) {
        self.buckets[bucket_of(ns)].add(count);
        self.sum_ns.add(ns.saturating_mul(count));
    }

    /// Adds what was counted so far to `snapshot`.
    pub fn add_to(&self, snapshot: &mut HistogramSnapshot) {
        for (sum, bucket) in snapshot.counts.iter_mut().zip(&self.buckets) {
            *sum += bucket.get();
        }
        snapshot.sum_ns = snapshot.sum_ns.wrapping_add(self.sum_ns.get());
    }
}

/// The sum of one or more histograms at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramSnapshot {
    counts: Vec<u64>,
    sum_ns: u64,
}

impl Default for HistogramSnapshot {
    fn default() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            sum_ns: 0,
        }
    }
}

impl HistogramSnapshot {
    /// Operations counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of their nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The nanoseconds that a fraction `quantile` (0 to 1) of the operations did not exceed, rounded up to the bucket's bound; 0 if none
    /// were counted.
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        let count = self.count();
        if count == 0 {
            return 0;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a rank in 1..=count, as exact as a quantile has to be"
        )]
        let rank = ((quantile.clamp(0.0, 1.0) * count as f64).ceil() as u64).clamp(1, count);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper_bound_ns(bucket);
            }
        }
        upper_bound_ns(BUCKETS - 1)
    }

    /// Upper bounds in nanoseconds with the number of operations below each, two per power of two: for a Prometheus
    /// histogram.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        /// Buckets from one bound to the next.
        const HALF: usize = 1 << (SUB_BITS - 1);
        let mut seen = 0;
        self.counts.chunks(HALF).enumerate().map(move |(half, counts)| {
            seen += counts.iter().sum::<u64>();
            (upper_bound_ns((half + 1) * HALF - 1), seen)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        for ns in [
            64,
            65,
            71,
            72,
            100,
            127,
            128,
            1000,
            123_456,
            1 << 35,
            (1 << 36) - 1,
        ] {
            let bucket = bucket_of(ns);
            assert!(ns < upper_bound_ns(bucket), "{ns}");
            assert!(bucket == 0 || ns >= upper_bound_ns(bucket - 1), "{ns}");
        }
        assert_eq!(bucket_of(0), 0);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_off_by_at_most_an_eighth() {
        let histogram = Histogram::default();
        for us in 1..=1000 {
            histogram.record(us * 1000, 1);
        }
        let mut snapshot = HistogramSnapshot::default();
        histogram.add_to(&mut snapshot);
        assert_eq!(snapshot.count(), 1000);
        assert_eq!(snapshot.sum_ns(), 500_500_000);
        for (quantile, exact) in [(0.5, 500_000), (0.99, 990_000), (1.0, 1_000_000), (0.0, 1000)] {
            let found = snapshot.quantile_ns(quantile);
            assert!(
                found >= exact && found <= exact + exact / 8 + 1,
                "{quantile}: {found}"
            );
        }
        assert_eq!(snapshot.cumulative().last(), Some((1 << 36, 1000)));
        let bounds: Vec<u64> = snapshot.cumulative().map(|(bound, _)| bound).collect();
        assert!(
            bounds.windows(2).all(|pair| pair[1] * 2 <= pair[0] * 3),
            "{bounds:?}"
        );
    }

    #[test]
    fn an_empty_histogram_has_no_quantiles() {
        assert_eq!(HistogramSnapshot::default().quantile_ns(0.99), 0);
    }
}
