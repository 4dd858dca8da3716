//! What a write that hits does to an object's place, and what a reclaim reads and keeps.

use crate::common::{BLOCK_BYTES, Rig, hash, options};
use pumice_blocks::Durability;
use pumice_flash::{LayoutName, LayoutOptions, Mappings, OpenOptions};
use pumice_testkit::{FaultPlan, FaultyMedium};
use std::collections::HashSet;
use std::sync::Arc;

const KEYS: u64 = 6_000;
const LEN: usize = 2_000;

fn open(layout: LayoutOptions) -> Rig {
    let medium = Arc::new(FaultyMedium::new(4 << 20, 3, FaultPlan::default()));
    let options = OpenOptions {
        layout,
        buffers_max: 12,
        ..options(Durability::Off)
    };
    Rig::open(&medium, KEYS, &options)
}

fn ripq(theta: f64) -> LayoutOptions {
    LayoutOptions::new(LayoutName::Ripq, Some("slru-3"), Some(0.2), Some(theta)).unwrap()
}

fn set_all(rig: &Rig, keys: std::ops::Range<u64>) {
    for n in keys {
        assert!(rig.set(n, LEN).is_some(), "key {n}");
        rig.settle();
    }
}

fn position(rig: &Rig, n: u64) -> f64 {
    let mapping = rig.index.with(hash(n), |shard| shard.find(hash(n)).live());
    let mapping = mapping.unwrap_or_else(|| panic!("key {n} is not there"));
    rig.store().order.position(mapping).expect("ripq has a queue")
}

#[test]
fn a_write_that_hits_puts_the_object_at_its_increased_priority() {
    let rig = open(ripq(1.0));
    // The cache has long been full, so that new objects go to a third of the queue.
    set_all(&rig, 0..4_000);
    assert!(rig.store().counts().reclaimed_blocks > 10);
    let sunk = (0..4_000).filter(|n| rig.index.location(*n).is_some());
    let sunk: Vec<u64> = sunk.filter(|n| position(&rig, *n) < 0.25).take(12).collect();
    assert_eq!(sunk.len(), 12);
    for (at, n) in sunk.into_iter().enumerate() {
        if rig.index.location(n).is_none() {
            continue;
        }
        let is_again = at % 2 == 0;
        let stored = if is_again {
            rig.set_again(n, LEN)
        } else {
            rig.set(n, LEN)
        };
        assert!(stored.is_some());
        rig.settle();
        let at = position(&rig, n);
        // Between insertion points it goes to the nearer, half a section of 0.2 to 0.4 away at most.
        let wanted = if is_again { 2.0 / 3.0 } else { 1.0 / 3.0 };
        assert!((at - wanted).abs() < 0.21, "key {n} at {at}, again {is_again}");
        assert_eq!(at > 0.5, is_again, "key {n} at {at}");
    }
    rig.check_blocks();
}

#[test]
fn what_was_raised_is_kept_where_it_stands_above_what_theta_leaves_out() {
    // One hit raises to two thirds, and what is there at the lowest block's turn has sunk from there.
    let kept = |theta| {
        let rig = open(ripq(theta));
        set_all(&rig, 0..3_000);
        let before = rig.store().counts();
        for n in 3_000..KEYS {
            assert!(rig.set(n, LEN).is_some());
            rig.hit(n);
            rig.settle();
        }
        rig.check_blocks();
        let counts = rig.store().counts();
        let again = |counts: &pumice_flash::FlashCounts| counts.survivors - counts.survivors_unraised;
        again(&counts) - again(&before)
    };
    let (all, some, none) = (kept(1.0), kept(0.6), kept(0.2));
    println!("{all} {some} {none}");
    assert!(all > 500 && some < all && none == 0, "{all} {some} {none}");
}

#[test]
fn a_reclaim_reads_what_it_moves_and_little_else() {
    // Of 32 that came one after the other, which is about a block, the first so many are raised.
    let read = |raised: u64| {
        let rig = open(ripq(1.0));
        set_all(&rig, 0..3_000);
        let before = rig.store().counts();
        for n in 3_000..KEYS {
            assert!(rig.set(n, LEN).is_some());
            if n % 32 < raised {
                rig.hit(n);
            }
            rig.settle();
        }
        let counts = rig.store().counts();
        let moved = counts.survivor_bytes - before.survivor_bytes;
        let read = counts.reclaim_read_bytes - before.reclaim_read_bytes;
        let blocks = counts.reclaimed_blocks - before.reclaimed_blocks;
        println!("{raised} of 32: {moved} bytes moved of {blocks} blocks, {read} read");
        (moved, read, blocks)
    };
    let (moved, none, blocks) = read(0);
    assert_eq!((moved, none), (0, 0), "nothing stays");
    assert!(blocks > 40, "{blocks}");
    // One of 2,000 bytes lies in one or two sectors of 4 KiB; those beside each other are read in one piece.
    for (raised, times) in [(1, 4.5), (16, 1.5), (32, 1.2)] {
        let (moved, read, blocks) = read(raised);
        assert!(moved > 60_000 * raised, "{moved}");
        assert!((read as f64) < moved as f64 * times, "{read} for {moved}");
        assert!(read <= blocks * BLOCK_BYTES, "{read} of {blocks} blocks");
    }
}

#[test]
fn what_left_the_queue_of_sipq_is_a_hit_until_its_block_goes() {
    let layout = LayoutOptions::new(LayoutName::Sipq, Some("lru"), None, Some(0.3)).unwrap();
    let rig = open(layout);
    set_all(&rig, 0..1_500);
    assert_eq!(rig.store().counts().reclaimed_blocks, 0, "all is there");
    let queue: HashSet<_> = rig.store().order.virtual_keys().into_iter().collect();
    let outside: Vec<u64> = (0..1_500).filter(|n| !queue.contains(&hash(*n))).collect();
    assert!(
        outside.len() > 800 && outside[0] == 0,
        "{} of 1,500",
        outside.len()
    );
    // A hit brings it back into the queue, and so through the next reclaim; what was not hit goes with its block.
    let (hit, others) = outside[..200].split_at(100);
    for n in hit {
        assert!(rig.get(*n).is_some(), "key {n} is on flash");
    }
    set_all(&rig, 2_000..2_560);
    assert!(rig.store().counts().reclaimed_blocks > 5);
    let there = |keys: &[u64]| keys.iter().filter(|n| rig.index.location(**n).is_some()).count();
    assert_eq!((there(hit), there(others)), (100, 0));
    rig.check_blocks();
}
