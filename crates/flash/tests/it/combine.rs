//! When sections merge, the buffer of the lower one goes into that of the upper one if it fits, and is not written.

use crate::common::{BLOCK_BYTES, Random, Rig, hash, options};
use pumice_device::{FaultPlan, FaultyMedium};
use pumice_flash::{Durability, Layout, LayoutOptions, Mappings, OpenOptions};
use pumice_index::Mapping;
use std::sync::Arc;

const KEYS: u64 = 3_000;
/// The bits of a note that name a virtual place: an object counts there, and not in its block.
const MARK: u32 = (1 << 9) - 1;

fn open(medium: &Arc<FaultyMedium>, policy: &str) -> Rig {
    let layout = LayoutOptions::new(Layout::Ripq, Some(policy), Some(0.1), None).unwrap();
    let options = OpenOptions {
        layout,
        buffers_max: 24,
        ..options(Durability::Process)
    };
    Rig::open(medium, KEYS, &options)
}

/// Sets, hits and deletes of keys whose popularity moves on, so that sections come and go.
fn step(rig: &Rig, random: &mut Random, n: u64) {
    let near = (n / 40 + random.below(300)) % KEYS;
    let any = random.below(KEYS);
    match random.below(12) {
        0..3 => drop(rig.set(any, 200 + random.below(3_000) as usize)),
        3..5 => drop(rig.set_again(near, 200 + random.below(3_000) as usize)),
        5 => rig.delete(any),
        6..9 => rig.hit(near),
        _ => rig.hit(any),
    }
}

#[test]
fn what_stands_in_a_buffer_whose_section_merges_is_there_and_is_not_written_twice() {
    let (mut seen, mut moved, mut raised_moved) = (0, 0, 0);
    for policy in ["slru-3", "gdsf-3"] {
        let medium = Arc::new(FaultyMedium::new(6 << 20, 5, FaultPlan::default()));
        let rig = open(&medium, policy);
        let mut random = Random(11);
        let mapping = |n| rig.index.with(hash(n), |shard| shard.mapping(hash(n)));
        let mappings = || (0..KEYS).map(mapping).collect::<Vec<_>>();
        let (mut before, mut places) = (rig.store().counts(), mappings());
        for n in 0..30_000 {
            step(&rig, &mut random, n);
            rig.settle();
            let counts = rig.store().counts();
            let is_combined = counts.combined_blocks > before.combined_blocks;
            if is_combined && counts.reclaimed_blocks == before.reclaimed_blocks {
                seen += 1;
                let now = mappings();
                let place = |mapping: &Option<Mapping>| mapping.map(|mapping| mapping.location);
                let mut changed: Vec<_> = places.iter().zip(&now).collect();
                changed.retain(|(before, now)| place(before) != place(now));
                let gone = changed.iter().filter(|(_, now)| now.is_none()).count();
                assert!(gone <= 1, "{gone} objects went, of which a delete takes one");
                // Where an object counts did not change, but for the one that was set.
                let note = |mapping: &Option<Mapping>| mapping.map(|mapping| mapping.note);
                let others = changed.iter().filter(|(before, now)| note(before) != note(now));
                assert!(others.count() <= 1, "{policy}, step {n}");
                let raised = changed.iter().filter_map(|(_, now)| note(now));
                raised_moved += raised.filter(|note| note & MARK != 0).count();
                moved += changed.len().saturating_sub(1);
                let readable = (0..KEYS).filter(|n| rig.index.location(*n).is_some());
                assert!(
                    readable.clone().all(|n| rig.get(n).is_some()),
                    "{policy}, step {n}"
                );
                assert_eq!(counts.survivors, before.survivors, "none counts as written again");
            }
            if is_combined {
                rig.check_blocks();
            }
            (before, places) = (rig.store().counts(), mappings());
        }
        let counts = rig.store().counts();
        println!(
            "{policy}: {} merged, {} combined of {} sealed; so far {moved} objects moved, {raised_moved} raised",
            counts.merged_blocks, counts.combined_blocks, counts.sealed_blocks
        );
        assert!(counts.combined_blocks > 0, "{policy}: some fit");
        assert!(counts.merged_blocks > counts.combined_blocks, "not all fit");
    }
    assert!(
        seen >= 10 && moved > 3 * seen && raised_moved > 0,
        "{seen} seen, {moved} moved"
    );
}
