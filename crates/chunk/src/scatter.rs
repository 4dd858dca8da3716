//! A bijection from addresses to buckets and remainders.

use pumice_world::mix64;

/// Rounds. After four, each half was moved twice by the other.
const ROUNDS: u64 = 4;

/// Spreads addresses over buckets, and inverts that: a Feistel network. An address is split into two halves, by division by the number of
/// buckets; each round adds to one half a hash of the other, modulo the half's range. That is a bijection for any number of buckets and of
/// remainders, powers of two or not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scatter {
    buckets: u64,
    remainders: u64,
    seed: u64,
}

impl Scatter {
    /// For addresses below `addresses`, over `buckets` buckets.
    pub(crate) fn new(addresses: u64, buckets: u64, seed: u64) -> Self {
        let buckets = buckets.max(1);
        Self {
            buckets,
            remainders: addresses.div_ceil(buckets).max(1),
            seed,
        }
    }

    /// Remainders are below this.
    pub(crate) fn remainders(&self) -> u64 {
        self.remainders
    }

    /// The number that a round adds to a half of `range` values, given the `other` half.
    fn step(&self, round: u64, other: u64, range: u64) -> u64 {
        mix64(self.seed ^ other.wrapping_mul(ROUNDS).wrapping_add(round)) % range
    }

    /// Bucket and remainder of an address.
    pub(crate) fn split(&self, address: u64) -> (u64, u64) {
        let (mut bucket, mut remainder) = (address % self.buckets, address / self.buckets);
        for round in 0..ROUNDS {
            if round % 2 == 0 {
                remainder = (remainder + self.step(round, bucket, self.remainders)) % self.remainders;
            } else {
                bucket = (bucket + self.step(round, remainder, self.buckets)) % self.buckets;
            }
        }
        (bucket, remainder)
    }

    /// The address for which [`Scatter::split`] returns `bucket` and `remainder`.
    pub(crate) fn join(&self, mut bucket: u64, mut remainder: u64) -> u64 {
        for round in (0..ROUNDS).rev() {
            if round % 2 == 0 {
                let step = self.step(round, bucket, self.remainders);
                remainder = (remainder + self.remainders - step) % self.remainders;
            } else {
                let step = self.step(round, remainder, self.buckets);
                bucket = (bucket + self.buckets - step) % self.buckets;
            }
        }
        remainder * self.buckets + bucket
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_address_has_its_own_bucket_and_remainder(addresses in 1u64..5_000, buckets in 1u64..300, seed: u64) {
            let scatter = Scatter::new(addresses, buckets, seed);
            let mut seen = std::collections::HashSet::new();
            for address in 0..addresses {
                let (bucket, remainder) = scatter.split(address);
                prop_assert!(bucket < buckets && remainder < scatter.remainders());
                prop_assert!(seen.insert((bucket, remainder)));
                prop_assert_eq!(scatter.join(bucket, remainder), address);
            }
        }

        #[test]
        fn the_largest_volumes_go_there_and_back(address in 0u64..1 << 48, buckets in 1u64..1 << 32, seed: u64) {
            let scatter = Scatter::new(1 << 48, buckets, seed);
            let (bucket, remainder) = scatter.split(address);
            prop_assert_eq!(scatter.join(bucket, remainder), address);
        }
    }

    /// Addresses in use are seldom spread evenly: the start of a volume, or every 64th chunk. Buckets must fill evenly for these, too.
    #[test]
    fn runs_and_strides_spread_over_all_buckets() {
        let (addresses, buckets) = (1 << 22, 1 << 10);
        let scatter = Scatter::new(addresses, buckets, 7);
        for stride in [1, 2, 64, 1 << 10, 3_000] {
            let mut counts = vec![0u32; buckets as usize];
            let used = (addresses / stride).min(64 * buckets);
            for n in 0..used {
                counts[scatter.split(n * stride).0 as usize] += 1;
            }
            let mean = used as f64 / buckets as f64;
            // Six standard deviations of a Poisson distribution.
            let bound = mean + 6.0 * mean.sqrt() + 1.0;
            let most = *counts.iter().max().unwrap();
            assert!(
                f64::from(most) <= bound,
                "stride {stride}: {most} in one bucket, {mean} on average"
            );
        }
    }
}
