//! Offsets against the numbers that they were made of.

use proptest::prelude::*;
use pumice_chunk::Offsets;
use pumice_world::Random;

proptest! {
    #[test]
    fn each_number_comes_back(mut numbers in prop::collection::vec(any::<u32>(), 0..2_000), shift in 0u32..31) {
        numbers.iter_mut().for_each(|number| *number >>= shift);
        numbers.sort_unstable();
        numbers.dedup();
        let offsets = Offsets::new(&numbers).unwrap();
        prop_assert_eq!(offsets.len() as usize, numbers.len());
        prop_assert_eq!(&offsets.iter().collect::<Vec<_>>(), &numbers);
        prop_assert_eq!(offsets.get(offsets.len()), None);
        let last = numbers.last().map_or(0, |last| u64::from(*last));
        for (more, higher) in [(0, 0), (1, 0), (0, 1), (300, 7_000)] {
            let (len, last) = (u64::from(offsets.len()) + more, last + higher);
            prop_assert!(offsets.heap_bytes() <= Offsets::heap_bytes_max(len, last), "{len} numbers up to {last}");
        }
    }
}

#[test]
fn numbers_that_do_not_rise_are_refused() {
    assert!(Offsets::new(&[1, 2, 2]).is_none());
    assert!(Offsets::new(&[3, 2]).is_none());
    assert!(Offsets::new(&[]).unwrap().is_empty());
}

/// Chunks of 32 KiB, compressed to between an eighth and the whole, in a block of 16 MiB, in units of 16 bytes.
#[test]
fn an_offset_takes_some_fourteen_bits() {
    let mut random = Random(1);
    let (mut numbers, mut at) = (Vec::new(), 0);
    while at < (16 << 20) / 16 {
        numbers.push(at);
        at += 256 + random.below(1_792) as u32;
    }
    let bits = Offsets::new(&numbers).unwrap().heap_bytes() as f64 * 8.0 / numbers.len() as f64;
    assert!(bits < 14.0, "{bits}");
}
