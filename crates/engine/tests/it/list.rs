//! Listings against a plain map: each live object once, whatever tier, block or buffer it stands in.

use crate::common::{Model, Random, Rig, Weights, cascade, cascade_layouts, key, ripq, sipq, step, value};
use pumice::{CacheOptions, FlashWrite, Found, HashLimit, IndexOptions, LayoutOptions, Listed, Lookup, Meta};
use pumice_device::{MemDevice, MemMedium, Payload};
use pumice_world::ManualClock;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

type MemRig = Rig<MemDevice>;

fn open(options: CacheOptions, flash_bytes: u64) -> MemRig {
    let device = MemDevice::new(Arc::new(MemMedium::new(flash_bytes)));
    Rig::open(device, Arc::new(ManualClock::new(1_000)), options)
}

/// A whole listing; `between` runs between its pieces.
fn list(rig: &MemRig, mut between: impl FnMut(u64)) -> Vec<Listed> {
    let mut listing = rig.cache.begin_listing();
    let (mut found, mut steps) = (Vec::new(), 0);
    loop {
        let before = found.len();
        let goes_on = rig.run(rig.cache.list(&rig.cx, &mut listing, &mut found));
        assert!(
            found.len() - before <= 2_000,
            "a piece of {}",
            found.len() - before
        );
        if !goes_on {
            return found;
        }
        steps += 1;
        assert!(steps < 1_000_000, "it does not end");
        between(steps);
    }
}

/// Every object of the map that is there, with its version, where that is to be had, and the length of its value. Looking leaves it
/// where it is.
fn expected(rig: &MemRig, model: &Model, keys: u64) -> HashMap<Vec<u8>, (Option<u64>, u64)> {
    let mut expected = HashMap::new();
    for n in 0..keys {
        let found = match rig.cache.peek(&rig.cx, &key(n)) {
            Lookup::Hit(object) => Found::Hit(object),
            Lookup::Large(large) => Found::Large(large),
            Lookup::Flash(flash) => rig.run(rig.cache.finish(&rig.cx, &key(n), flash)),
            Lookup::Miss => Found::Miss,
        };
        let told = match found {
            Found::Hit(object) => (Some(object.version()), object.value_len() as u64),
            Found::Large(large) => (None, large.value_len()),
            Found::Miss => continue,
        };
        let entry = model.at(n, rig.clock_secs()).expect("a hit is in the map");
        assert_eq!(told.1, entry.value.len() as u64);
        expected.insert(key(n), told);
    }
    expected
}

fn every_kind() -> Vec<(LayoutOptions, IndexOptions)> {
    let full = [LayoutOptions::default(), ripq(), sipq()].map(|layout| (layout, IndexOptions::Full));
    let on_flash = cascade_layouts().map(|layout| (layout, cascade()));
    full.into_iter().chain(on_flash).collect()
}

fn options(layout: LayoutOptions, index: IndexOptions) -> CacheOptions {
    CacheOptions {
        layout,
        index,
        dram_bytes: 1 << 20,
        buffers_max: 16,
        ..CacheOptions::default()
    }
}

/// Random operations on about as much as the device, then a listing while nothing else runs.
#[test]
fn a_quiet_listing_has_each_object_once() {
    for (number, (layout, index)) in every_kind().into_iter().enumerate() {
        for (seed, flash_write, dram_bytes) in [
            (1, FlashWrite::Insertion, 1 << 20),
            (2, FlashWrite::Eviction, 1 << 20),
            (3, FlashWrite::Insertion, 0),
        ] {
            let options = CacheOptions {
                flash_write,
                dram_bytes,
                ..options(layout, index)
            };
            println!("{seed}: {options:?}");
            let keys = 6_000;
            // Pages of four mappings take most of a small device.
            let flash_bytes = if index == IndexOptions::Full {
                4 << 20
            } else {
                6 << 20
            };
            let rig = open(options, flash_bytes);
            let (mut model, mut random) = (Model::default(), Random(seed * 100 + number as u64));
            let weights = Weights {
                get: 30,
                set: 60,
                large: 1,
                delete: 4,
                append: 4,
                touch: 4,
                flush: 0,
                tick: 1,
            };
            for n in 0..8_000 {
                step(&rig, &mut model, &mut random, &weights, n, keys, false);
            }
            rig.settle();
            let found = list(&rig, |_| {});
            let mut expected = expected(&rig, &model, keys);
            assert!(expected.len() > 150, "{} objects", expected.len());
            let (mut seen, mut strays) = (HashSet::new(), 0);
            for listed in &found {
                let name = String::from_utf8_lossy(&listed.key);
                assert!(seen.insert(&listed.key), "{name} is listed twice");
                match expected.remove(&listed.key) {
                    Some((version, value_len)) => assert_eq!(
                        (version.unwrap_or(listed.version), value_len),
                        (listed.version, listed.value_len)
                    ),
                    None => strays += 1,
                }
            }
            // A cascade index may have lost a mapping of what a reclaim would find again.
            let strays_max = if index == IndexOptions::Full {
                0
            } else {
                found.len() / 50
            };
            assert!(strays <= strays_max, "{strays} of {} are not there", found.len());
            assert_eq!(expected.len(), 0, "these are not listed");
        }
    }
}

/// Sets, hits and evictions go on between the pieces: what stays is never missing, and nothing is listed that never was.
#[test]
fn a_listing_misses_nothing_that_stays() {
    // A segment that is evicted has no more items than the small pages of the cascade index find memory for at once.
    const VALUE: usize = 240;
    for (layout, index) in every_kind() {
        for flash_write in [FlashWrite::Insertion, FlashWrite::Eviction] {
            let options = CacheOptions {
                flash_write,
                ..options(layout, index)
            };
            println!("{options:?}");
            // So much flash that nothing is reclaimed.
            let rig = open(options, 64 << 20);
            let stays = 8_000;
            for n in 0..stays {
                assert!(rig.set(&key(n), &value(n, 0, VALUE)));
                if n % 16 == 0 {
                    rig.settle();
                }
            }
            rig.settle();
            let mut random = Random(7);
            let found = list(&rig, |at| {
                for _ in 0..4 {
                    // Up to DRAM, and others down to flash.
                    let n = random.below(stays);
                    assert_eq!(rig.get(&key(n)), Some(value(n, 0, VALUE)), "{n} stays");
                    assert!(rig.set(&key(stays + random.below(5_000)), &value(at, at, VALUE)));
                }
                rig.settle();
            });
            let mut counts: HashMap<Vec<u8>, u32> = HashMap::new();
            for listed in found {
                *counts.entry(listed.key).or_default() += 1;
            }
            for n in 0..stays {
                let count = counts.remove(&key(n)).unwrap_or(0);
                let most = if flash_write == FlashWrite::Insertion {
                    1
                } else {
                    2
                };
                assert!((1..=most).contains(&count), "{n} is listed {count} times");
            }
            assert_eq!(counts.len(), 0, "what came after the beginning is left out");
        }
    }
}

/// A device that is written anew again and again while the listing goes on: it ends, and says nothing that is not so.
#[test]
fn a_listing_ends_while_everything_is_reclaimed() {
    for (layout, index) in every_kind() {
        println!("{layout:?} {index:?}");
        let rig = open(options(layout, index), 8 << 20);
        let keys = 30_000;
        let mut versions: HashMap<Vec<u8>, Vec<u64>> = HashMap::new();
        let mut random = Random(3);
        let mut set = |n: u64| {
            let set = rig.cache.set(
                &rig.cx,
                &key(n),
                Payload::Bytes(&value(n, 0, 400)),
                Meta::default(),
            );
            if let Ok(version) = set {
                versions.entry(key(n)).or_default().push(version);
            }
        };
        for n in 0..keys {
            set(n);
            if n % 32 == 0 {
                rig.settle();
            }
        }
        let before = rig.cache.stats().flash.reclaimed_blocks;
        let found = list(&rig, |_| {
            for _ in 0..25 {
                let n = random.below(keys);
                set(n);
                rig.get(&key(random.below(keys)));
            }
            rig.settle();
        });
        let reclaimed = rig.cache.stats().flash.reclaimed_blocks - before;
        assert!(reclaimed > 10, "{reclaimed} blocks were reclaimed");
        assert!(found.len() > 200, "{} listed", found.len());
        for listed in found {
            let known = versions
                .get(&listed.key)
                .is_some_and(|versions| versions.contains(&listed.version));
            assert!(
                known && listed.value_len == value(0, 0, 400).len() as u64,
                "{listed:?}"
            );
        }
        rig.check();
    }
}

/// What DRAM keeps of an object whose block went while the listing was under way.
#[test]
fn what_flash_has_lost_meanwhile_is_listed_from_dram() {
    let rig = open(
        CacheOptions {
            dram_bytes: 4 << 20,
            ..options(LayoutOptions::default(), IndexOptions::Full)
        },
        8 << 20,
    );
    let hot: Vec<u64> = (0..200).collect();
    for n in &hot {
        assert!(rig.set(&key(*n), &value(*n, 0, 300)));
    }
    let touch = || {
        for n in &hot {
            rig.get(&key(*n));
        }
    };
    let (mut at, mut written) = (1_000, 0);
    let found = list(&rig, |step| {
        // As soon as it has begun, the device is written over, and the hot ones stay in DRAM.
        while step == 1 && written < 24_000 {
            assert!(rig.set(&key(at), &value(at, 0, 700)));
            (at, written) = (at + 1, written + 1);
            if written % 64 == 0 {
                touch();
                rig.settle();
            }
        }
    });
    for n in &hot {
        assert!(rig.get(&key(*n)).is_some(), "{n} is in DRAM");
        let count = found.iter().filter(|listed| listed.key == key(*n)).count();
        assert_eq!(count, 1, "{n}");
    }
    let counts = rig.cache.stats().flash;
    assert!(counts.reclaimed_blocks > 100, "{counts:?}");
}

#[test]
fn marks_sizes_and_expiry_are_told() {
    let rig = open(options(LayoutOptions::default(), IndexOptions::Full), 64 << 20);
    let set = |name: &[u8], len: usize, expiry: u32| {
        let meta = Meta {
            expiry,
            ..Meta::default()
        };
        let value = vec![7; len];
        let stored = rig.cache.store(&rig.cx, name, Payload::Bytes(&value), meta);
        rig.run(stored).expect("there is room")
    };
    let small = set(b"small", 5, 0);
    let large = set(b"large", 900_000, 0);
    // In DRAM, which the other has gone through.
    let used = set(b"used", 0, 5_000);
    set(b"over", 5, 1_010);
    assert!(rig.get(b"used").is_some());
    rig.clock.advance_secs(10);
    let mut found = list(&rig, |_| {});
    found.sort_by(|a, b| a.key.cmp(&b.key));
    let one = |key: &[u8], version, expiry, value_len, is_used| Listed {
        key: key.to_vec(),
        version,
        expiry,
        value_len,
        is_used,
    };
    assert_eq!(
        found,
        [
            one(b"large", large, 0, 900_000, false),
            one(b"small", small, 0, 5, false),
            one(b"used", used, 5_000, 0, true),
        ]
    );
    assert_eq!(found[1].bytes(), 36 + 5 + 5);
    rig.cache.flush_all(&rig.cx, None);
    assert_eq!(list(&rig, |_| {}), []);
}

/// What is on flash does not know of its hits; its item in DRAM does.
#[test]
fn a_hit_on_flash_is_told() {
    let medium = Arc::new(MemMedium::new(16 << 20));
    let clock = Arc::new(ManualClock::new(1_000));
    let options = options(LayoutOptions::default(), IndexOptions::Full);
    let reopen = || Rig::open(MemDevice::new(Arc::clone(&medium)), Arc::clone(&clock), options);
    let rig = reopen();
    for n in 0..100 {
        assert!(rig.set(&key(n), &value(n, 0, 300)));
    }
    rig.run(rig.cache.close(&rig.cx)).unwrap();
    drop(rig);
    let rig = reopen();
    for n in 0..50 {
        assert!(rig.get(&key(n)).is_some());
    }
    let found = list(&rig, |_| {});
    assert_eq!(found.len(), 100);
    for n in 0..100 {
        let listed = found
            .iter()
            .find(|listed| listed.key == key(n))
            .expect("it is there");
        assert_eq!(listed.is_used, n < 50, "{n}");
    }
}

/// Keys that share all hash bits: each is listed if a get finds it.
#[test]
fn keys_with_the_same_hash_are_told_apart() {
    for dram_bytes in [0, 4 << 20] {
        let rig = open(
            CacheOptions {
                dram_bytes,
                hash_limit: HashLimit(0),
                ..options(LayoutOptions::default(), IndexOptions::Full)
            },
            16 << 20,
        );
        for n in 0..300 {
            rig.set(&key(n), &value(n, 0, 50));
        }
        rig.settle();
        let mut found: Vec<Vec<u8>> = list(&rig, |_| {}).into_iter().map(|listed| listed.key).collect();
        let mut there: Vec<Vec<u8>> = (0..300).map(key).filter(|key| rig.get(key).is_some()).collect();
        found.sort();
        there.sort();
        assert_eq!(found, there);
        assert!(!there.is_empty());
    }
}
