//! Listings against a plain map: each object in the DRAM tier once.

use crate::common::{Model, Random, Rig, Weights, cascade, cascade_layouts, key, ripq, sipq, step, value};
use pumice::{CacheOptions, FlashWrite, HashLimit, IndexOptions, LayoutOptions, Listed, Listing, Meta};
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
    let mut listing = Listing::default();
    let (mut found, mut steps) = (Vec::new(), 0);
    loop {
        let before = found.len();
        let goes_on = rig.cache.list(&rig.cx, &mut listing, &mut found);
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

/// Every object of the map that the DRAM tier has, with its version and the length of its value.
fn expected(rig: &MemRig, model: &Model, keys: u64) -> HashMap<Vec<u8>, (u64, u64)> {
    let mut expected = HashMap::new();
    for n in 0..keys {
        let located = rig.cache.locate(&rig.cx, &key(n));
        let Some(known) = located
            .filter(|at| at.in_dram_tier)
            .and_then(|located| located.known)
        else {
            continue;
        };
        let Some(entry) = model.at(n, rig.clock_secs()) else {
            continue;
        };
        assert_eq!(known.value_len, entry.value.len() as u64);
        expected.insert(key(n), (known.version, known.value_len));
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
        for flash_write in [FlashWrite::Insertion, FlashWrite::Eviction] {
            let options = CacheOptions {
                flash_write,
                dram_bytes: 4 << 20,
                ..options(layout, index)
            };
            println!("{options:?}");
            let keys = 6_000;
            // Pages of four mappings take most of a small device.
            let flash_bytes = if index.kind().is_authoritative() {
                4 << 20
            } else {
                6 << 20
            };
            let rig = open(options, flash_bytes);
            let (mut model, mut random) = (Model::default(), Random(100 + number as u64));
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
            let mut expected = expected(&rig, &model, keys);
            assert!(expected.len() > 150, "{} objects", expected.len());
            let mut seen = HashSet::new();
            for listed in list(&rig, |_| {}) {
                let name = String::from_utf8_lossy(&listed.key);
                assert!(seen.insert(listed.key.clone()), "{name} is listed twice");
                assert_eq!(
                    expected.remove(&listed.key),
                    Some((listed.version, listed.value_len)),
                    "{name}"
                );
            }
            assert_eq!(expected.len(), 0, "these are not listed");
        }
    }
}

/// Sets, hits and reclaims go on between the pieces: what stays in DRAM is never missing.
#[test]
fn a_listing_misses_nothing_that_stays() {
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
    let options = CacheOptions {
        dram_bytes: 8 << 20,
        ..options(LayoutOptions::default(), IndexOptions::Full)
    };
    let rig = open(options, 64 << 20);
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
    assert_eq!(found[1].bytes(), 19 + 5 + 5);
    rig.cache.flush_all(&rig.cx, None);
    assert_eq!(list(&rig, |_| {}), []);
}

/// What is on flash alone is not listed, and what was hit there is, with its hit.
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
    assert_eq!(found.len(), 50);
    assert!(found.iter().all(|listed| listed.is_used));
}

/// Keys that share all hash bits: each is listed if a get finds it.
#[test]
fn keys_with_the_same_hash_are_told_apart() {
    let rig = open(
        CacheOptions {
            dram_bytes: 4 << 20,
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
