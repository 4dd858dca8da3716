//! The one generator of random numbers. Its randomness stays the same for good: results name a seed, so the sequence belongs to the format of results and
//! not to a dependency.

/// What the counter of SplitMix64 grows by: 2^64 divided by the golden ratio, made odd.
pub const MIX_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) after one step of its counter: a bijection of
/// 64-bit numbers that spreads neighbours over the whole range.
#[inline]
pub fn mix64(number: u64) -> u64 {
    let z = number.wrapping_add(MIX_STEP);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// SplitMix64: a seeded generator of 64-bit numbers, whose sequence is fixed by its first state, the seed.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next number, uniform over all 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let number = mix64(self.0);
        self.0 = self.0.wrapping_add(MIX_STEP);
        number
    }

    /// The next number, uniform in [0, 1), a multiple of 2^-53.
    #[inline]
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// True with probability `p`; draws only where there is something to decide.
    pub fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && self.next_f64() <= p
    }

    /// The next number, uniform below `bound`, which is not 0 (0 is taken as 1).
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        // Lemire's multiplication; the part of the range that would favour some numbers is drawn again. That part is
        // shorter than the bound, so that its length, a division, is seldom needed.
        let bound = bound.max(1);
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            let (high, low) = ((product >> 64) as u64, product as u64);
            if low >= bound || low >= bound.wrapping_neg() % bound {
                return high;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        // First outputs of SplitMix64 for seed 1234567, as in the algorithm's public test vectors.
        let mut random = Random(1_234_567);
        let drawn = [random.next_u64(), random.next_u64(), random.next_u64()];
        assert_eq!(
            drawn,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn bounded_numbers_are_uniform() {
        let mut random = Random(1);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[random.below(7) as usize] += 1;
        }
        assert!(
            counts.iter().all(|&count| (9_600..10_400).contains(&count)),
            "{counts:?}"
        );
    }
}
