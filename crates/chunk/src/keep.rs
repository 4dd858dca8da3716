//! The choice of contents that a reclaim keeps.

/// A content of the blocks that are reclaimed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Candidate {
    /// Its length on flash, in bytes.
    pub bytes: u32,
    /// Sum of the worth of all addresses mapped to it, see [`Candidate::refer`]; 0 = none.
    pub worth: f32,
}

impl Candidate {
    /// Counts an address mapped to this content. `age` is its position in its bucket, from 0, the newest, to less than 1. It adds 2 in the
    /// newer half and 1 in the older, and up to 1/4 more the newer it is.
    ///
    /// Source: AustereCache counts references so, with 2 and 1 for the two halves; the last part is ours.
    pub fn refer(&mut self, age: f32) {
        self.worth += if age < 0.5 { 2.0 } else { 1.0 };
        self.worth += (1.0 - age) / 4.0;
    }
}

/// Chooses the contents with the most worth for each byte, of at most `bytes_max` bytes together. Returns their numbers in rising order.
/// Cost: a sort of the candidates.
pub fn choose(candidates: &[Candidate], bytes_max: u64) -> Vec<usize> {
    let mut wanted: Vec<usize> = (0..candidates.len())
        .filter(|number| candidates[*number].worth > 0.0)
        .collect();
    let value = |number: usize| candidates[number].worth / candidates[number].bytes.max(1) as f32;
    wanted.sort_by(|a, b| value(*b).total_cmp(&value(*a)).then(a.cmp(b)));
    let mut left = bytes_max;
    wanted.retain(|number| {
        let bytes = u64::from(candidates[*number].bytes);
        let fits = bytes <= left;
        left -= if fits { bytes } else { 0 };
        fits
    });
    wanted.sort_unstable();
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidate(bytes: u32, ages: &[f32]) -> Candidate {
        let mut candidate = Candidate { bytes, worth: 0.0 };
        ages.iter().for_each(|age| candidate.refer(*age));
        candidate
    }

    #[test]
    fn what_more_and_newer_addresses_lead_to_is_kept() {
        let candidates = [
            candidate(100, &[]),
            candidate(100, &[0.9]),
            candidate(100, &[0.1]),
            candidate(100, &[0.9, 0.8, 0.7]),
            candidate(100, &[0.6]),
        ];
        assert_eq!(choose(&candidates, 100), [3]);
        assert_eq!(choose(&candidates, 200), [2, 3]);
        assert_eq!(choose(&candidates, 300), [2, 3, 4]);
        assert_eq!(
            choose(&candidates, 10_000),
            [1, 2, 3, 4],
            "nothing that no address leads to"
        );
        assert_eq!(choose(&candidates, 99), [0usize; 0]);
    }

    #[test]
    fn a_byte_counts_not_a_content() {
        let candidates = [
            candidate(1_000, &[0.1, 0.1]),
            candidate(400, &[0.1]),
            candidate(400, &[0.2]),
        ];
        assert_eq!(choose(&candidates, 1_000), [1, 2]);
    }

    proptest! {
        #[test]
        fn nothing_left_out_is_worth_more_than_what_was_kept(
            candidates in prop::collection::vec((1u32..5_000, 0u8..6), 0..200), bytes_max in 0u64..200_000,
        ) {
            let candidates: Vec<Candidate> = (candidates.into_iter())
                .map(|(bytes, worth)| Candidate { bytes, worth: worth.into() }).collect();
            let kept = choose(&candidates, bytes_max);
            let bytes: u64 = kept.iter().map(|number| u64::from(candidates[*number].bytes)).sum();
            prop_assert!(bytes <= bytes_max);
            prop_assert!(kept.is_sorted_by(|a, b| a < b));
            let value = |n: usize| candidates[n].worth / candidates[n].bytes as f32;
            for left in (0..candidates.len()).filter(|n| !kept.contains(n) && candidates[*n].worth > 0.0) {
                // It would not fit beside those that are worth more.
                let better: u64 = kept.iter().filter(|n| value(**n) >= value(left)).map(|n| u64::from(candidates[*n].bytes)).sum();
                prop_assert!(better + u64::from(candidates[left].bytes) > bytes_max, "{left} was left out");
            }
        }
    }
}
