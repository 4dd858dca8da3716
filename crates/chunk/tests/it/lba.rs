//! The LBA-index against a map of queues, both ways.

use proptest::prelude::*;
use pumice_chunk::{BUCKET_SLOTS, LbaIndex, Place, PlaceBits, Slot};
use pumice_world::Random;
use std::collections::{BTreeMap, HashMap};

const BLOCKS: u32 = 1_000;
const NUMBERS: u32 = 5_000;

fn place(random: &mut Random) -> Place {
    Place {
        block: random.below(BLOCKS.into()) as u32,
        number: random.below(NUMBERS.into()) as u32,
    }
}

fn index(addresses: u64, capacity: u64) -> LbaIndex {
    LbaIndex::new(addresses, capacity, PlaceBits::new(BLOCKS, NUMBERS), 99).unwrap()
}

/// All mappings, the newest of each bucket first.
fn all(index: &LbaIndex) -> Vec<(usize, Slot)> {
    let mut slots = Vec::new();
    for bucket in 0..index.buckets() {
        index.visit(bucket, |_| true, |slot, _| slots.push((bucket, slot)));
    }
    slots
}

/// A mapping, with when it was used last.
#[derive(Clone, Copy)]
struct Mapping {
    place: Place,
    used: u64,
    is_dirty: bool,
}

#[derive(Default)]
struct Model {
    mapped: BTreeMap<u64, Mapping>,
    time: u64,
}

impl Model {
    fn stamp(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    /// Whether there is no room for another address in a bucket without an eviction, and the clean address there that was used longest ago.
    fn full(&self, buckets: &HashMap<u64, usize>, of: u64) -> (bool, Option<u64>) {
        let same = (self.mapped.iter()).filter(|(address, _)| buckets.get(address) == buckets.get(&of));
        let same: Vec<_> = same.collect();
        let clean = same.iter().filter(|(_, mapping)| !mapping.is_dirty);
        let oldest = clean.min_by_key(|(_, mapping)| mapping.used);
        (same.len() == BUCKET_SLOTS, oldest.map(|(address, _)| **address))
    }

    fn get(&self, address: u64) -> Option<Slot> {
        let mapping = self.mapped.get(&address)?;
        Some(Slot {
            address,
            place: mapping.place,
            is_dirty: mapping.is_dirty,
        })
    }

    fn check(&self, index: &LbaIndex) {
        let found = all(index);
        assert_eq!(found.len(), self.mapped.len());
        assert_eq!(index.len(), self.mapped.len() as u64);
        let mut before: Option<(usize, u64)> = None;
        for (bucket, slot) in found {
            let used = self.mapped[&slot.address].used;
            assert_eq!(Some(slot), self.get(slot.address));
            assert_eq!(index.get(slot.address), Some(slot));
            if let Some((_, newer)) = before.filter(|(former, _)| *former == bucket) {
                assert!(newer > used, "bucket {bucket} is out of order at {slot:?}");
            }
            before = Some((bucket, used));
        }
        let mut dirty = Vec::new();
        (0..index.buckets()).for_each(|bucket| index.visit_dirty(bucket, |slot| dirty.push(slot)));
        assert_eq!(index.dirty(), dirty.len() as u64);
        let expected = self.mapped.values().filter(|mapping| mapping.is_dirty);
        assert_eq!(dirty.len(), expected.count());
        assert!(dirty.iter().all(|slot| slot.is_dirty));
    }
}

fn run(addresses: u64, capacity: u64, seed: u64, steps: u32) {
    let mut index = index(addresses, capacity);
    // An address' bucket is where an otherwise empty index shows it.
    let mut buckets = HashMap::new();
    for address in 0..addresses {
        index.insert(address, Place { block: 0, number: 0 }, false);
        buckets.insert(address, all(&index)[0].0);
        index.clear();
    }
    let (mut model, mut random) = (Model::default(), Random(seed));
    for _ in 0..steps {
        let address = random.below(addresses);
        match random.below(10) {
            0..5 => {
                let (place, is_dirty) = (place(&mut random), random.below(3) == 0);
                let is_new = !model.mapped.contains_key(&address);
                let (is_full, oldest) = model.full(&buckets, address);
                let has_room = !is_new || !is_full || oldest.is_some();
                assert_eq!(index.has_room(address), has_room);
                assert_eq!(index.has_free_slot(address), !is_new || !is_full);
                let evicted = index.insert(address, place, is_dirty);
                let expected = oldest.filter(|_| is_new && is_full);
                assert_eq!(evicted, expected.and_then(|address| model.get(address)));
                if let Some(slot) = evicted {
                    model.mapped.remove(&slot.address);
                }
                let used = model.stamp();
                let mapping = Mapping {
                    place,
                    used,
                    is_dirty,
                };
                if has_room {
                    model.mapped.insert(address, mapping);
                }
            }
            5..7 => {
                let used = model.stamp();
                assert_eq!(index.touch(address), model.get(address));
                if let Some(mapping) = model.mapped.get_mut(&address) {
                    mapping.used = used;
                }
            }
            7 => {
                assert_eq!(index.remove(address), model.get(address));
                model.mapped.remove(&address);
            }
            8 => {
                let place = model.get(address).map_or(place(&mut random), |slot| slot.place);
                let other = Place {
                    block: place.block ^ 1,
                    ..place
                };
                assert!(!index.clean(address, other));
                let was_dirty = model.get(address).is_some_and(|slot| slot.is_dirty);
                assert_eq!(index.clean(address, place), was_dirty);
                if let Some(mapping) = model.mapped.get_mut(&address) {
                    mapping.is_dirty = false;
                }
            }
            _ => {
                let to = place(&mut random);
                let from = index.get(address).map_or(to, |slot| slot.place);
                let other = Place {
                    block: from.block ^ 1,
                    ..from
                };
                assert!(!index.replace(address, other, to));
                assert_eq!(
                    index.replace(address, from, to),
                    model.mapped.contains_key(&address)
                );
                if let Some(mapping) = model.mapped.get_mut(&address) {
                    mapping.place = to;
                }
            }
        }
    }
    model.check(&index);
    for address in 0..addresses {
        assert_eq!(index.get(address), model.get(address));
    }
    // What is dumped gives the same index again.
    let (mut bytes, buckets) = (Vec::new(), 0..index.buckets());
    index.dump(buckets.clone(), &mut bytes);
    let (lens, slots) = bytes.split_at(index.buckets());
    let mut again = self::index(addresses, capacity);
    let has = |place: Place| place.block < BLOCKS && place.number < NUMBERS;
    assert!(again.load(buckets.clone(), lens, slots, has));
    assert_eq!(all(&again), all(&index));
    assert_eq!(again.dirty(), index.dirty());
    assert!(model.mapped.is_empty() || !again.load(buckets.clone(), lens, slots, |_| false));
    assert!(
        slots.is_empty() || !again.load(buckets.clone(), lens, &slots[1..], has),
        "a byte is missing"
    );
    // Slots of ones only have no place.
    let ones = vec![0xff; slots.len()];
    assert!(slots.is_empty() || !again.load(buckets.clone(), lens, &ones, has));
    assert!(!again.load(
        buckets,
        &vec![129; index.buckets()],
        &vec![0; 200 * 8 * index.buckets()],
        has
    ));
    for bucket in 0..index.buckets() {
        index.retain(bucket, |place| place.block % 2 == 0);
    }
    model.mapped.retain(|_, mapping| mapping.place.block % 2 == 0);
    model.check(&index);
    for bucket in 0..index.buckets() {
        index.retain_addresses(bucket, |address| address % 2 == 0);
    }
    model
        .mapped
        .retain(|address, mapping| address % 2 == 0 || mapping.is_dirty);
    model.check(&index);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn an_lru_queue_of_each_bucket_is_what_it_holds(
        addresses in 1u64..1_500, capacity in 1u64..700, seed: u64,
    ) {
        run(addresses, capacity, seed, 3_000);
    }
}

#[test]
fn an_address_beyond_the_volume_is_never_mapped() {
    let mut index = index(500, 500);
    assert_eq!(index.get(500), None);
    assert_eq!(index.touch(u64::MAX), None);
    assert_eq!(index.remove(501), None);
    let place = Place { block: 1, number: 1 };
    assert!(!index.replace(500, place, place));
    assert!(index.is_empty());
}

/// A volume of 8 TiB in chunks of 32 KiB, a quarter of it mapped, 512 GiB of flash in blocks of 128 MiB.
#[test]
fn a_slot_of_a_large_volume_takes_five_bytes() {
    let (addresses, capacity) = (1 << 28, 1 << 26);
    let bits = PlaceBits::new(4096, 1 << 14);
    let dram_bytes = LbaIndex::dram_bytes_for(addresses, capacity, bits).unwrap();
    let each = dram_bytes as f64 / capacity as f64;
    assert!((5.0..5.02).contains(&each), "{each}");
}

#[test]
fn what_is_promised_is_what_is_taken() {
    for (addresses, capacity) in [(1, 1), (1_000, 10_000), (1 << 20, 1 << 14), (1 << 40, 1 << 12)] {
        let bits = PlaceBits::new(BLOCKS, NUMBERS);
        let index = index(addresses, capacity);
        assert_eq!(
            LbaIndex::dram_bytes_for(addresses, capacity, bits).unwrap(),
            index.dram_bytes()
        );
        let slots = index.buckets() * BUCKET_SLOTS;
        assert!(slots as u64 >= capacity.min(addresses));
        let heap = index.dram_bytes() - size_of::<LbaIndex>() as u64;
        // A word stands behind the last slot.
        assert_eq!(heap, (index.buckets() + slots * index.slot_bytes() + 8) as u64);
    }
}

#[test]
fn slots_wider_than_64_bits_are_refused() {
    let bits = PlaceBits::new(u32::MAX, u32::MAX);
    let error = LbaIndex::new(1 << 40, 1, bits, 0).err().unwrap();
    assert_eq!(error.bits, 40 + 64 + 1);
    assert!(LbaIndex::dram_bytes_for(1 << 40, 1, bits).is_err());
}

/// A large volume in one bucket: remainders are longer than the part of a slot that a search compares first.
#[test]
fn remainders_of_more_than_16_bits_are_compared_whole() {
    let mut index = index(1 << 24, 128);
    let mut random = Random(5);
    let mut mapped = HashMap::new();
    while mapped.len() < 100 {
        let (address, place) = (random.below(1 << 24), place(&mut random));
        index.insert(address, place, false);
        mapped.insert(address, place);
    }
    assert_eq!(index.buckets(), 1);
    for _ in 0..50_000 {
        let address = random.below(1 << 24);
        let place = index.get(address).map(|slot| slot.place);
        assert_eq!(place, mapped.get(&address).copied());
    }
    assert!(
        mapped
            .iter()
            .all(|(address, place)| index.get(*address).map(|slot| slot.place) == Some(*place))
    );
}
