//! Where an erase unit of the drive holds several blocks, full ones wait for others near them in the queue, and are written with them.

use crate::common::{BLOCK_BYTES, Random, Rig, options, ripq};
use pumice_device::{FaultPlan, FaultyMedium};
use pumice_flash::{Durability, FlashCounts, LayoutOptions, OpenOptions};
use std::sync::Arc;

const KEYS: u64 = 4_000;
const UNIT: u64 = 4;

fn open(medium: &Arc<FaultyMedium>, layout: LayoutOptions, buffers_max: usize) -> Rig {
    let options = OpenOptions {
        layout,
        buffers_max,
        erase_unit_bytes: UNIT * BLOCK_BYTES,
        ..options(Durability::Process)
    };
    Rig::open(medium, KEYS, &options)
}

fn medium() -> Arc<FaultyMedium> {
    Arc::new(FaultyMedium::new(12 << 20, 5, FaultPlan::default()))
}

/// Sets, hits and deletes; whether what was to be set was refused.
fn step(rig: &Rig, random: &mut Random) -> bool {
    let n = random.below(KEYS);
    match random.below(8) {
        0..4 => {
            let len = 200 + random.below(6_000) as usize;
            return rig.set_again(n, len).is_none();
        }
        4 => rig.delete(n),
        _ => rig.hit(random.below(KEYS / 8)),
    }
    false
}

/// Objects that are mapped and cannot be read, wherever they stand.
fn unreadable(rig: &Rig) -> usize {
    (0..KEYS)
        .filter(|n| rig.index.location(*n).is_some() && rig.get(*n).is_none())
        .count()
}

#[test]
fn full_blocks_are_held_and_written_by_the_unit() {
    for policy in ["slru-3", "gdsf-3"] {
        let medium = medium();
        let layout = LayoutOptions::new(ripq().layout, Some(policy), Some(0.1), None).unwrap();
        let rig = open(&medium, layout, 48);
        let mut random = Random(7);
        let (mut held_most, mut together) = (0, 0);
        let mut before = rig.store().counts();
        for n in 0..20_000 {
            assert!(!step(&rig, &mut random), "step {n} is refused");
            rig.settle();
            let (held, counts) = (rig.store().held_blocks(), rig.store().counts());
            held_most = held_most.max(held);
            let of = |count: fn(&FlashCounts) -> u64| count(&counts) - count(&before);
            let (sealed, grouped) = (
                of(|counts| counts.sealed_blocks),
                of(|counts| counts.grouped_blocks),
            );
            // What is written is a group each time, or what was left of a unit that others had begun.
            assert!(
                sealed <= grouped,
                "step {n}: {sealed} written, {grouped} in groups"
            );
            together += u64::from(grouped >= UNIT);
            before = counts;
            if n % 500 == 0 {
                assert_eq!(unreadable(&rig), 0, "{policy}, step {n}");
                rig.check_blocks();
                rig.store().check_order();
                rig.check_seats();
            }
        }
        let counts = rig.store().counts();
        println!("{policy}: {held_most} held at most, {together} whole units, {counts:?}");
        assert!(
            held_most >= 8 && together > 100 && counts.reclaimed_blocks > 300,
            "{policy}: {held_most} held at most, {together} whole units"
        );
        // A clean stop writes what is held.
        assert!(rig.store().held_blocks() > 0);
        rig.store().retire_active();
        rig.settle();
        // What could not be combined with a block that is written too is held once more.
        rig.store().retire_active();
        rig.settle();
        assert_eq!(
            (rig.store().held_blocks(), rig.store().unsealed_backlog()),
            (0, 0)
        );
        assert_eq!(unreadable(&rig), 0, "{policy}");
    }
}

#[test]
fn what_is_held_leaves_sections_their_buffers() {
    let medium = medium();
    // The fewest with which two units may be held: 11 are for sections.
    let rig = open(&medium, ripq(), 11 + 8);
    let mut random = Random(3);
    let mut held_most = 0;
    for n in 0..20_000 {
        let is_refused = step(&rig, &mut random);
        held_most = held_most.max(rig.store().held_blocks());
        rig.settle();
        assert!(!is_refused, "step {n}");
    }
    // The one that is too many goes at once.
    assert_eq!(held_most, 8);
    assert_eq!(unreadable(&rig), 0);
}

#[test]
fn nothing_is_held_where_there_is_no_choice() {
    // Too few buffers for two units beside those of sections, blocks as large as a unit, and neither a multiple of the other.
    for (buffers_max, unit_bytes, is_aligned) in [
        (18, UNIT * BLOCK_BYTES, false),
        (48, BLOCK_BYTES, true),
        (48, 3 * BLOCK_BYTES / 2, false),
        (48, 3 * BLOCK_BYTES / 4, false),
    ] {
        let medium = medium();
        let options = OpenOptions {
            layout: ripq(),
            buffers_max,
            erase_unit_bytes: unit_bytes,
            ..options(Durability::Process)
        };
        let rig = Rig::open(&medium, KEYS, &options);
        let mut random = Random(3);
        for _ in 0..3_000 {
            step(&rig, &mut random);
            rig.settle();
            assert_eq!(rig.store().held_blocks(), 0);
        }
        let counts = rig.store().counts();
        assert!(
            counts.sealed_blocks > 20 && counts.grouped_blocks == 0,
            "{counts:?}"
        );
        assert_eq!(counts.padding_bytes > 0, is_aligned, "{counts:?}");
    }
}
