//! The FP-index against lists, both ways.

use proptest::prelude::*;
use pumice_chunk::{BUCKET_SLOTS, FpIndex, Place, PlaceBits};
use pumice_world::{Random, mix64};
use std::collections::VecDeque;

const BLOCKS: u32 = 1_000;
const NUMBERS: u32 = 5_000;

fn bits() -> PlaceBits {
    PlaceBits::new(BLOCKS, NUMBERS)
}

fn all(index: &FpIndex) -> Vec<(usize, u16, Place)> {
    let mut slots = Vec::new();
    for bucket in 0..index.buckets() {
        index.visit(bucket, |tag, place| slots.push((bucket, tag, place)));
    }
    slots
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// One bucket, so that the list says all: what was put there is found, the newest first, until 128 others came.
    #[test]
    fn a_bucket_is_a_queue_of_what_came_last(seed: u64, hashes in 1u64..400) {
        let mut index = FpIndex::new(1, bits()).unwrap();
        let mut model: VecDeque<(u64, Place)> = VecDeque::new();
        let mut random = Random(seed);
        for step in 0..1_500u32 {
            let hash = mix64(random.below(hashes));
            let place = Place { block: step % BLOCKS, number: random.below(NUMBERS.into()) as u32 };
            if random.below(4) == 0 {
                let known = model.iter().position(|(other, _)| *other == hash);
                let place = known.map_or(place, |at| model[at].1);
                prop_assert_eq!(index.remove(hash, place), known.is_some());
                known.map(|at| model.remove(at));
            } else {
                let lost = index.insert(hash, place);
                let full = (model.len() == BUCKET_SLOTS).then(|| model.pop_back().unwrap().1);
                prop_assert_eq!(lost, full);
                model.push_front((hash, place));
            }
        }
        for hash in (0..hashes).map(mix64) {
            let found: Vec<Place> = index.candidates(hash).collect();
            // Others may have the same tag, and nothing that is there is missed.
            let same: Vec<Place> = (model.iter()).filter(|(other, _)| *other == hash).map(|(_, place)| *place).collect();
            let wanted = found.iter().filter(|place| same.contains(place)).count();
            prop_assert_eq!(wanted, same.len());
        }
        let order: Vec<Place> = model.iter().map(|(_, place)| *place).collect();
        prop_assert_eq!(all(&index).into_iter().map(|(_, _, place)| place).collect::<Vec<_>>(), order);
    }
}

#[test]
fn nearly_all_of_what_fits_is_found_and_nearly_nothing_else() {
    let mut index = FpIndex::new(100_000, bits()).unwrap();
    let place = |n: u64| Place {
        block: (n % 1_000) as u32,
        number: (n / 1_000) as u32,
    };
    let mut lost = 0;
    for n in 0..90_000 {
        lost += u64::from(index.insert(mix64(n), place(n)).is_some());
    }
    let found = (0..90_000).filter(|n| index.candidates(mix64(*n)).any(|found| found == place(*n)));
    assert_eq!(found.count() as u64, 90_000 - lost);
    assert_eq!(index.len(), 90_000 - lost);
    assert!(
        lost < 1_500,
        "{lost} of 90,000 lost in buckets that are nine tenths full"
    );
    // 115 slots of 16 bits: 0.18 % of searches.
    assert_eq!(index.slot_bytes(), 5);
    let wrong: usize = (100_000..200_000)
        .map(|n| index.candidates(mix64(n)).count())
        .sum();
    assert!((60..400).contains(&wrong), "{wrong} of 100,000 strangers found");
}

#[test]
fn what_is_dumped_gives_the_same_index_again() {
    let mut index = FpIndex::new(1_000, bits()).unwrap();
    for n in 0..2_000u32 {
        index.insert(
            mix64(n.into()),
            Place {
                block: n % 1_000,
                number: n,
            },
        );
    }
    let (mut bytes, buckets) = (Vec::new(), 0..index.buckets());
    index.dump(buckets.clone(), &mut bytes);
    let (lens, slots) = bytes.split_at(index.buckets());
    let mut again = FpIndex::new(1_000, bits()).unwrap();
    assert!(!again.load(buckets.clone(), lens, slots, |place| place.block != 7));
    assert!(again.load(buckets, lens, slots, |place| place.block < BLOCKS));
    let shown = all(&index);
    assert_eq!(all(&again), shown);
    for bucket in 0..again.buckets() {
        again.retain(bucket, |place| place.block >= 500);
    }
    let kept: Vec<_> = shown
        .into_iter()
        .filter(|(_, _, place)| place.block >= 500)
        .collect();
    assert!(!kept.is_empty());
    assert_eq!(all(&again), kept);
    again.clear();
    assert!(again.is_empty());
}

#[test]
fn what_is_promised_is_what_is_taken() {
    for capacity in [1, 128, 129, 1 << 20] {
        let index = FpIndex::new(capacity, bits()).unwrap();
        assert_eq!(
            FpIndex::dram_bytes_for(capacity, bits()).unwrap(),
            index.dram_bytes()
        );
        assert!((index.buckets() * BUCKET_SLOTS) as u64 >= capacity);
    }
    let wide = PlaceBits::new(u32::MAX, u32::MAX);
    assert_eq!(FpIndex::new(1, wide).err().unwrap().bits, 76);
}
