//! What is counted of requests, by each handle for itself, and the sum of it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Which device a read goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The performance device, which has some of the data.
    Upper,
    /// The capacity device, which has all of it.
    Lower,
}

impl Side {
    /// The other device.
    pub(super) fn other(self) -> Self {
        match self {
            Self::Upper => Self::Lower,
            Self::Lower => Self::Upper,
        }
    }
}

/// Buckets of a doubling, as a power of two: a bucket is 3 % of its times wide at most.
const FINE_BITS: u32 = 5;
/// Times from here on, about 18 minutes, count in the last bucket.
const LONGEST_BITS: u32 = 40;
const BUCKETS: usize = ((LONGEST_BITS - FINE_BITS + 1) as usize) << FINE_BITS;

fn bucket_of(ns: u64) -> usize {
    let ns = ns.min((1 << LONGEST_BITS) - 1);
    // Below 2^FINE_BITS each time has a bucket of its own.
    let doubling = ns.max(1 << FINE_BITS).ilog2() - FINE_BITS;
    ((u64::from(doubling) << FINE_BITS) + (ns >> doubling)) as usize
}

/// The least time of a bucket, and the least above it.
fn bounds_of(bucket: usize) -> (u64, u64) {
    let (bucket, fine) = (bucket as u64, 1u64 << FINE_BITS);
    let doubling = (bucket >> FINE_BITS).saturating_sub(1);
    let number = bucket - (doubling << FINE_BITS);
    debug_assert!(number < 2 * fine);
    (number << doubling, (number + 1) << doubling)
}

/// How many requests took how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram(Vec<u64>);

impl Default for Histogram {
    fn default() -> Self {
        Self(vec![0; BUCKETS])
    }
}

impl Histogram {
    /// Counts one.
    pub fn add(&mut self, ns: u64) {
        self.0[bucket_of(ns)] += 1;
    }

    /// The time that this share of all was not above; 0 where there is none. Between the bounds of a bucket its times count as even.
    pub fn quantile(&self, share: f64) -> f64 {
        let all: u64 = self.0.iter().sum();
        let wanted = share * all as f64;
        let mut below = 0.0;
        for (bucket, &count) in self.0.iter().enumerate() {
            let count = count as f64;
            if count > 0.0 && below + count >= wanted {
                let (least, above) = bounds_of(bucket);
                return least as f64 + (above - least) as f64 * (wanted - below) / count;
            }
            below += count;
        }
        0.0
    }

    /// What was counted since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let pairs = self.0.iter().zip(&before.0);
        Self(pairs.map(|(now, before)| now.saturating_sub(*before)).collect())
    }
}

/// What one handle counts: one thread at a time writes, any thread reads it.
#[derive(Debug)]
pub struct Meter {
    hits: AtomicU64,
    misses: AtomicU64,
    reads: [AtomicU64; 2],
    read_latency_ns: [AtomicU64; 2],
    writes: AtomicU64,
    outstanding: AtomicU64,
    /// Time by outstanding requests, up to `last_ns`.
    outstanding_ns: AtomicU64,
    last_ns: AtomicU64,
    latencies: Box<[AtomicU64]>,
}

impl Default for Meter {
    fn default() -> Self {
        Self::new()
    }
}

/// Adds as the only writer: no locked instruction.
fn add(cell: &AtomicU64, more: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl Meter {
    /// Nothing was counted yet.
    pub fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            hits: zero(),
            misses: zero(),
            reads: [zero(), zero()],
            read_latency_ns: [zero(), zero()],
            writes: zero(),
            outstanding: zero(),
            outstanding_ns: zero(),
            last_ns: zero(),
            latencies: (0..Histogram::default().0.len()).map(|_| zero()).collect(),
        }
    }

    /// A read of something that the upper device has, wherever it is sent.
    pub fn hit(&self) {
        add(&self.hits, 1);
    }

    /// A read of something that it has not.
    pub fn miss(&self) {
        add(&self.misses, 1);
    }

    /// A request begins, a read or a write. Exactly one of [`end_read`](Meter::end_read), [`end_write`](Meter::end_write) and
    /// [`abandon`](Meter::abandon) follows.
    pub fn begin(&self, now_ns: u64) {
        self.pass(now_ns);
        add(&self.outstanding, 1);
    }

    /// A read is done.
    pub fn end_read(&self, side: Side, begun_ns: u64, now_ns: u64) {
        let took = now_ns.saturating_sub(begun_ns);
        self.abandon(now_ns);
        add(&self.latencies[bucket_of(took)], 1);
        add(&self.read_latency_ns[side as usize], took);
        add(&self.reads[side as usize], 1);
    }

    /// A write is done.
    pub fn end_write(&self, begun_ns: u64, now_ns: u64) {
        self.abandon(now_ns);
        add(&self.latencies[bucket_of(now_ns.saturating_sub(begun_ns))], 1);
        add(&self.writes, 1);
    }

    /// A request came to nothing: it failed, or nobody waits for it any more.
    pub fn abandon(&self, now_ns: u64) {
        self.pass(now_ns);
        add(&self.outstanding, u64::MAX);
    }

    /// Requests that are done.
    pub fn completions(&self) -> u64 {
        let [upper, lower] = self.reads.each_ref().map(|cell| cell.load(Ordering::Relaxed));
        upper + lower + self.writes.load(Ordering::Relaxed)
    }

    fn pass(&self, now_ns: u64) {
        let passed = now_ns.saturating_sub(self.last_ns.load(Ordering::Relaxed));
        let outstanding = self.outstanding.load(Ordering::Relaxed);
        add(&self.outstanding_ns, outstanding.wrapping_mul(passed));
        add(&self.last_ns, passed);
    }
}

/// The sum of all handles' counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads of something that the upper device has, wherever they were sent.
    pub hits: u64,
    /// Reads of something that it has not.
    pub misses: u64,
    /// Reads done, by the device that answered: upper, lower.
    pub reads: [u64; 2],
    /// Their latencies together.
    pub read_latency_ns: [u64; 2],
    /// Writes done.
    pub writes: u64,
    /// Requests under way.
    pub outstanding: u64,
    /// The integral of that over time.
    pub outstanding_ns: u64,
    /// Latencies of what is done.
    pub latencies: Histogram,
}

impl Counts {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Nothing again.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Adds what a handle has counted. Its numbers are read one by one while it may count on: they can be off by a request or two.
    pub fn add(&mut self, meter: &Meter, now_ns: u64) {
        let get = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        self.hits += get(&meter.hits);
        self.misses += get(&meter.misses);
        for side in 0..2 {
            self.reads[side] += get(&meter.reads[side]);
            self.read_latency_ns[side] =
                self.read_latency_ns[side].wrapping_add(get(&meter.read_latency_ns[side]));
        }
        self.writes += get(&meter.writes);
        let outstanding = get(&meter.outstanding);
        self.outstanding += outstanding;
        let since = now_ns.saturating_sub(get(&meter.last_ns));
        let area = get(&meter.outstanding_ns).wrapping_add(outstanding.wrapping_mul(since));
        self.outstanding_ns = self.outstanding_ns.wrapping_add(area);
        for (sum, cell) in self.latencies.0.iter_mut().zip(&meter.latencies) {
            *sum += get(cell);
        }
    }

    /// Requests done.
    pub fn completions(&self) -> u64 {
        self.reads[0] + self.reads[1] + self.writes
    }

    /// What was counted since `before`; what is under way is what it was at the end.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        // A difference of sums that were read while handles counted may be below 0, by little.
        let less = |now: u64, before: u64| {
            let difference = now.wrapping_sub(before);
            if difference > 1 << 63 { 0 } else { difference }
        };
        let each = |now: [u64; 2], before: [u64; 2]| [less(now[0], before[0]), less(now[1], before[1])];
        Self {
            hits: less(self.hits, before.hits),
            misses: less(self.misses, before.misses),
            reads: each(self.reads, before.reads),
            read_latency_ns: each(self.read_latency_ns, before.read_latency_ns),
            writes: less(self.writes, before.writes),
            outstanding: self.outstanding,
            outstanding_ns: less(self.outstanding_ns, before.outstanding_ns),
            latencies: self.latencies.since(&before.latencies),
        }
    }

    /// Mean latency of the reads that one device answered; `None` where there was none.
    pub fn mean_read_ns(&self, side: Side) -> Option<f64> {
        let reads = self.reads[side as usize];
        (reads > 0).then(|| self.read_latency_ns[side as usize] as f64 / reads as f64)
    }

    /// The share of reads that the upper device could have served; `None` where nothing was read.
    pub fn hit_ratio(&self) -> Option<f64> {
        let reads = self.hits + self.misses;
        (reads > 0).then(|| self.hits as f64 / reads as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_within_the_bounds_of_its_bucket() {
        let mut last = 0;
        for bits in 0..64 {
            for ns in [1u64 << bits, (1 << bits) + (1 << bits) / 3, (1 << bits) - 1] {
                let bucket = bucket_of(ns);
                let (least, above) = bounds_of(bucket);
                let ns = ns.min((1 << LONGEST_BITS) - 1);
                assert!((least..above).contains(&ns), "{ns}: {least} to {above}");
                assert!((above - least) * 32 <= least.max(32), "{ns}: {least} to {above}");
                last = last.max(bucket);
            }
        }
        assert!(last < Histogram::default().0.len());
    }

    #[test]
    fn quantiles_are_near() {
        let mut histogram = Histogram::default();
        (1..=10_000u64).for_each(|n| histogram.add(n * 100));
        for share in [0.5, 0.9, 0.99] {
            let found = histogram.quantile(share) / (share * 1_000_000.0);
            assert!((0.99..1.01).contains(&found), "{share}: {found}");
        }
        assert_eq!(Histogram::default().quantile(0.99), 0.0);
        let empty = histogram.since(&histogram);
        assert_eq!(empty, Histogram::default());
    }

    #[test]
    fn outstanding_requests_count_by_their_time() {
        let meter = Meter::new();
        meter.begin(100);
        meter.begin(200);
        meter.end_read(Side::Lower, 100, 300);
        let mut counts = Counts::new();
        counts.add(&meter, 400);
        // 100 with one, 100 with two, and since then 100 with one.
        assert_eq!((counts.outstanding, counts.outstanding_ns), (1, 400));
        assert_eq!(
            (counts.completions(), counts.mean_read_ns(Side::Lower)),
            (1, Some(200.0))
        );
        meter.end_write(200, 500);
        meter.begin(500);
        meter.abandon(600);
        let mut later = Counts::new();
        later.add(&meter, 1_000);
        assert_eq!(
            (later.outstanding, later.outstanding_ns, meter.completions()),
            (0, 600, 2)
        );
        assert_eq!(later.since(&counts).writes, 1);
        later.clear();
        assert_eq!(later, Counts::new());
    }
}
