//! Objects of every size a block can hold, and objects that expire, under the layouts that keep some.

use crate::common::{Rig, drops_all, key, ripq};
use pumice::{CacheOptions, LayoutName, LayoutOptions, Meta};
use pumice_device::{MemDevice, MemMedium, Payload};
use pumice_world::ManualClock;
use std::sync::Arc;

const BLOCK_BYTES: u64 = 64 << 10;
/// The longest header of a record, and its key.
const HEAD_BYTES: usize = 37 + 8;

fn open(medium: &Arc<MemMedium>, clock: &Arc<ManualClock>, layout: LayoutOptions) -> Rig<MemDevice> {
    let options = CacheOptions {
        dram_bytes: 0,
        block_bytes: Some(BLOCK_BYTES),
        buffers_max: 12,
        layout,
        ..CacheOptions::default()
    };
    Rig::open(MemDevice::new(Arc::clone(medium)), Arc::clone(clock), options)
}

fn sipq() -> LayoutOptions {
    LayoutOptions::new(LayoutName::Sipq, Some("slru-3"), None, Some(0.6)).unwrap()
}

fn name(n: usize) -> Vec<u8> {
    format!("{n:08}").into_bytes()
}

fn value(n: usize) -> Vec<u8> {
    (0..n).map(|at| (at * 7 + n) as u8).collect()
}

/// From nothing to the longest record, one byte more, which is stored in slices, and more than a block.
fn lens() -> Vec<usize> {
    let record_max = BLOCK_BYTES as usize / 4;
    let edges = (record_max - HEAD_BYTES - 40)..(record_max - HEAD_BYTES + 40);
    let mut lens = vec![0, 1, 2, 15, 16, 17, 4095, 4096, 4097, 65_535, 65_536, 100_000];
    lens.extend(edges);
    lens
}

/// Headers, padding, footers, checkpoints, the log, and what is kept free; the division of the device is that of a large one.
#[test]
fn of_a_flash_full_of_objects_of_300_bytes_less_than_a_fifth_holds_none() {
    let flash = 64 << 20;
    let (medium, clock) = (Arc::new(MemMedium::new(flash)), Arc::new(ManualClock::new(1_000)));
    let rig = open(&medium, &clock, ripq());
    let bytes = |n: usize| 292 + n % 16;
    let objects = flash as usize * 3 / 2 / 300;
    for n in 0..objects {
        assert!(rig.set(&name(n), &[7; 300][..bytes(n) - 8]));
        if n % 50 == 0 {
            rig.settle();
        }
    }
    rig.settle();
    let there = rig.cache.stats().flash_items as usize;
    let held: usize = (0..16).map(bytes).sum::<usize>() * there / 16;
    let share = 1.0 - held as f64 / flash as f64;
    println!("{:.1} % of the flash hold no bytes of objects", share * 100.0);
    assert!(share <= 0.19, "{share}");
}

#[test]
fn objects_of_every_size_are_read_back_moved_and_found_again() {
    for layout in [LayoutOptions::default(), ripq(), sipq()] {
        let (medium, clock) = (
            Arc::new(MemMedium::new(8 << 20)),
            Arc::new(ManualClock::new(1_000)),
        );
        let rig = open(&medium, &clock, layout);
        let is_there = |rig: &Rig<MemDevice>, len: usize, when: &str| {
            let found = rig.get(&name(len));
            assert_eq!(found, Some(value(len)), "{layout:?}: {len} bytes, {when}");
        };
        for len in lens() {
            let stored =
                rig.run(
                    rig.cache
                        .store(&rig.cx, &name(len), Payload::Bytes(&value(len)), Meta::default()),
                );
            assert!(stored.is_ok(), "{layout:?}: {len} bytes");
            rig.settle();
            is_there(&rig, len, "just set");
        }
        if !drops_all(&layout) {
            // Others push them out again and again, and hits keep them.
            for round in 0..30 {
                for n in 0..150 {
                    rig.set(&key(round * 150 + n), &[3; 1_500]);
                    rig.settle();
                }
                lens()
                    .into_iter()
                    .for_each(|len| is_there(&rig, len, "after others"));
            }
            let counts = rig.cache.stats().flash;
            assert!(
                counts.reclaimed_blocks > 30 && counts.survivors > 100,
                "{counts:?}"
            );
        }
        rig.check();
        rig.run(rig.cache.close(&rig.cx)).unwrap();
        drop(rig);
        let rig = open(&medium, &clock, layout);
        lens()
            .into_iter()
            .for_each(|len| is_there(&rig, len, "after a restart"));
        rig.check();
    }
}

#[test]
fn a_block_whose_objects_have_expired_goes_before_the_lowest() {
    for layout in [LayoutOptions::default(), ripq(), sipq()] {
        let (medium, clock) = (
            Arc::new(MemMedium::new(4 << 20)),
            Arc::new(ManualClock::new(1_000)),
        );
        let rig = open(&medium, &clock, layout);
        let set = |n: u64, expiry: u32| {
            let meta = Meta {
                expiry,
                ..Meta::default()
            };
            let stored = rig.cache.set(&rig.cx, &key(n), Payload::Bytes(&[5; 1_400]), meta);
            assert!(stored.is_ok());
            rig.settle();
        };
        // Until half of the blocks are full; then some of which each object expires, but for the first and the last; then until few are free.
        let mut next = 0;
        let sealed = || rig.cache.stats().blocks_sealed;
        let free = || rig.cache.stats().blocks_free;
        let half = free() / 2;
        while free() > half {
            set(next, 0);
            next += 1;
        }
        let (before, first) = (sealed(), next);
        while sealed() < before + 6 {
            set(next, 1_010);
            next += 1;
        }
        let mortal = first..next;
        while rig.cache.stats().flash.reclaimed_blocks == 0 && free() > 6 {
            set(next, 0);
            next += 1;
        }
        assert_eq!(rig.cache.stats().flash.reclaimed_blocks, 0, "{layout:?}");
        clock.advance_secs(20);
        let last = next;
        while rig.cache.stats().flash.reclaimed_blocks < 3 {
            set(next, 0);
            next += 1;
        }
        let lost = (0..last).filter(|n| !mortal.contains(n) && rig.get(&key(*n)).is_none());
        assert_eq!(lost.count(), 0, "{layout:?}: blocks of what has expired go first");
        assert!(mortal.clone().all(|n| rig.get(&key(n)).is_none()));
        rig.check();
    }
}
