//! A checkpoint that a start cannot read, or that was given up because its superblock could not be written. The one before it and the
//! log make up for it, but not for a record that could not be stored: then the start begins empty.

use crate::common::dying::{KEYS, Run, calm, serve_from_dram};
use crate::common::{KINDS, Rig, key, of_kind};
use pumice::{CacheOptions, Durability, IndexOptions};
use pumice_blocks::geometry::LOG_RECORD_BYTES;
use pumice_blocks::superblock::{SlotContent, Superblock};
use pumice_device::{Device, SECTOR_BYTES};
use pumice_testkit::{FaultPlan, FaultyDevice};
use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

fn superblocks(run: &Run) -> [Superblock; 2] {
    let device = FaultyDevice::new(Arc::clone(&run.medium));
    [0, SECTOR_BYTES as u64].map(|offset| {
        let mut sector = vec![0; SECTOR_BYTES];
        device.read_log(offset, &mut sector).unwrap();
        match Superblock::decode(&sector) {
            SlotContent::Valid(superblock) => superblock,
            other => panic!("{other:?}"),
        }
    })
}

fn superblock(run: &Run) -> Superblock {
    superblocks(run)
        .into_iter()
        .max_by_key(|slot| slot.generation)
        .unwrap()
}

/// Deletes those of the keys that are there and are one record, which is a record of the log each: those of slices would make checkpoints
/// due. Returns which.
fn delete(rig: &Rig<FaultyDevice>, keys: Range<u64>) -> Vec<u64> {
    keys.filter(|n| rig.get(&key(*n)).is_some_and(|value| value.len() < 10_000))
        .filter(|n| rig.run(rig.cache.delete(&rig.cx, &key(*n))))
        .collect()
}

/// Damages the newest checkpoint and starts again, after a crash unless the stop was clean.
fn lose_checkpoint(run: &Run) -> Rig<FaultyDevice> {
    let superblock = superblock(run);
    let newest = superblock.checkpoints[0];
    assert_ne!(newest.id, 0);
    run.medium.crash();
    run.medium.restart();
    run.medium.set_plan(calm());
    run.medium
        .rot_at(superblock.geometry.block_offset(newest.first_block) + 10);
    run.open()
}

/// No record is stored until the next plan.
fn without_log(run: &Run) {
    let geometry = superblock(run).geometry;
    let log = geometry.log_offset..geometry.log_offset + geometry.log_slots * LOG_RECORD_BYTES;
    run.medium.set_plan(FaultPlan {
        bad_appends: vec![log],
        ..calm()
    });
}

/// Makes a checkpoint due.
fn fill_log(run: &Run, rig: &Rig<FaultyDevice>) {
    log_records(rig, superblock(run).geometry.log_slots / 4 + 2);
}

/// A delayed flush is one record, however often it is put off.
fn log_records(rig: &Rig<FaultyDevice>, count: u64) {
    for at in 0..count {
        rig.cache.flush_all(&rig.cx, Some(1_000_000 + at as u32));
    }
}

/// Deletes with records or without, a checkpoint after that, and no way to read it.
fn delete_before_a_lost_checkpoint(kind: u64, records: bool) -> Rig<FaultyDevice> {
    let mut run = Run::new(kind, of_kind(kind));
    let rig = run.filled();
    if !records {
        without_log(&run);
    }
    let deleted = delete(&rig, 0..KEYS / 2);
    assert!(deleted.len() > 10, "kind {kind}: {} objects", deleted.len());
    run.medium.set_plan(calm());
    fill_log(&run, &rig);
    rig.settle();
    let counts = rig.cache.stats().blocks;
    // Of large objects that are superseded, records make one due sooner under some kinds.
    assert!(counts.checkpoints >= 1 && (counts.log_failures == 0) == records);
    drop(rig);
    let rig = lose_checkpoint(&run);
    for n in deleted {
        assert_eq!(rig.get(&key(n)), None, "kind {kind}, key {n}");
    }
    rig
}

#[test]
fn the_checkpoint_before_it_counts() {
    for kind in 0..KINDS {
        let rig = delete_before_a_lost_checkpoint(kind, true);
        assert!(!rig.recovered.discarded, "kind {kind}: {:?}", rig.recovered);
        let hits = (KEYS / 2..KEYS).filter(|n| rig.get(&key(*n)).is_some()).count();
        assert!(hits > 10, "kind {kind}: {hits} hits");
    }
}

#[test]
fn the_checkpoint_before_it_does_not_count_where_a_record_is_missing_since() {
    for kind in 0..KINDS {
        let rig = delete_before_a_lost_checkpoint(kind, false);
        assert!(rig.recovered.discarded, "kind {kind}: {:?}", rig.recovered);
    }
}

/// What a start could not read must not come back at a later one, whichever superblock that one can read.
#[test]
fn after_a_crash_neither_superblock_leads_to_a_checkpoint_from_before() {
    for kind in 0..KINDS {
        let mut run = Run::new(kind, of_kind(kind));
        let rig = run.filled();
        fill_log(&run, &rig);
        rig.settle();
        let before = superblock(&run).checkpoints[0].id;
        assert_ne!(before, 0);
        drop(rig);
        run.medium.crash();
        run.medium.restart();
        run.medium.set_plan(calm());
        let _rig = run.open();
        for superblock in superblocks(&run) {
            let [newest, older] = superblock.checkpoints.map(|checkpoint| checkpoint.id);
            assert!(
                newest != 0 && newest != before && older == 0,
                "kind {kind}: {newest}, {older}"
            );
        }
    }
}

/// With durability `off` there is no log at all.
#[test]
fn without_a_log_no_other_checkpoint_counts() {
    for kind in 0..KINDS {
        let options = CacheOptions {
            durability: Durability::Off,
            ..of_kind(kind)
        };
        let mut run = Run::new(kind, options);
        let rig = run.filled();
        let deleted = delete(&rig, 0..KEYS);
        assert!(deleted.len() > 20, "kind {kind}: {} objects", deleted.len());
        rig.run(rig.cache.close(&rig.cx)).unwrap();
        drop(rig);
        let rig = lose_checkpoint(&run);
        assert!(rig.recovered.discarded, "kind {kind}: {:?}", rig.recovered);
        for n in deleted {
            assert_eq!(rig.get(&key(n)), None, "kind {kind}, key {n}");
        }
    }
}

/// An append that fails may have been done all the same: then the device has the superblock that the cache has given up.
#[test]
fn a_superblock_that_failed_to_be_written_does_not_count() {
    let mut failed = 0;
    for seed in 0..4 * KINDS {
        let mut run = Run::new(seed, of_kind(seed));
        let rig = run.filled();
        without_log(&run);
        let mut deleted = delete(&rig, 0..KEYS / 2);
        run.medium.set_plan(calm());
        fill_log(&run, &rig);
        run.medium.set_plan(FaultPlan {
            append_error: 0.5,
            ..calm()
        });
        rig.settle();
        if rig.cache.stats().blocks.checkpoints > 0 {
            continue;
        }
        failed += 1;
        without_log(&run);
        // Too few for the next checkpoint to be due.
        deleted.extend(delete(&rig, KEYS / 2..KEYS / 2 + 50));
        assert_eq!(rig.cache.stats().blocks.checkpoints, 0);
        drop(rig);
        run.medium.crash();
        run.medium.restart();
        run.medium.set_plan(calm());
        let rig = run.open();
        assert!(rig.recovered.discarded, "seed {seed}: {:?}", rig.recovered);
        for n in deleted {
            assert_eq!(rig.get(&key(n)), None, "seed {seed}, key {n}");
        }
    }
    assert!(failed > KINDS, "{failed} checkpoints failed");
}

/// The log can be written, the superblock cannot: what a start would find there nobody knows.
#[test]
fn a_device_whose_superblocks_cannot_be_written_is_taken_out() {
    for kind in 0..KINDS {
        let mut run = Run::new(kind, of_kind(kind));
        let rig = run.filled();
        fill_log(&run, &rig);
        let slots = 0..2 * SECTOR_BYTES as u64;
        run.medium.set_plan(FaultPlan {
            bad_appends: vec![slots],
            ..calm()
        });
        rig.settle();
        let failure = rig.cache.flash_failure().expect("it is out");
        assert_eq!(failure.reason, "its superblocks cannot be written", "kind {kind}");
        serve_from_dram(&mut run, &rig);
        let rig = run.kill_and_heal(rig);
        assert!(rig.recovered.discarded, "kind {kind}: {:?}", rig.recovered);
    }
}

/// A checkpoint that has to reclaim blocks for itself has noted them as sealed ones before, and there may be no record that says otherwise.
#[test]
fn blocks_that_a_last_checkpoint_took_are_no_others() {
    for (durability, has_log) in [
        (Durability::Process, true),
        (Durability::Process, false),
        (Durability::Off, true),
    ] {
        let mut reclaimed = 0;
        for kind in 0..KINDS {
            let mut options = CacheOptions {
                durability,
                dram_bytes: 2 << 20,
                ..of_kind(kind)
            };
            if let IndexOptions::Cascade(index) = &mut options.index {
                // Pages of 4 mappings each would take more than the device.
                index.page_entries = 338;
            }
            let run = Run::new(kind, options);
            let rig = run.open();
            // The shorter they are, the larger is the checkpoint.
            for n in 0..70_000 {
                rig.set(&key(n), b"short");
                if n % 100 == 0 {
                    rig.settle();
                }
            }
            rig.check();
            let hits = |rig: &Rig<_>| (0..70_000).filter(|n| rig.get(&key(*n)).is_some()).count();
            let hits_before = hits(&rig);
            if !has_log {
                without_log(&run);
            }
            let before = rig.cache.stats().flash.reclaimed_blocks;
            rig.run(rig.cache.close(&rig.cx)).unwrap();
            reclaimed += rig.cache.stats().flash.reclaimed_blocks - before;
            drop(rig);
            run.medium.set_plan(calm());
            let rig = run.open();
            assert!(rig.recovered.clean, "kind {kind}: {:?}", rig.recovered);
            rig.check();
            let after = hits(&rig);
            // A cascade index takes dead copies for live ones, and keeps them.
            let finds_all = options.index.kind().is_authoritative();
            assert!(
                after > if finds_all { hits_before / 10 * 9 } else { 0 },
                "kind {kind}: {after} of {hits_before} objects"
            );
            rig.check();
        }
        assert!(reclaimed > 0, "{durability:?}: no checkpoint had to reclaim");
    }
}

/// While this checkpoint was written, blocks were open that a record may concern which could not be stored: so it marks the cache. Both
/// slots say so before the blocks of the checkpoint before are used again, which only one of them does not name.
#[test]
fn a_mark_that_a_checkpoint_makes_is_in_both_slots() {
    let mut marks = 0;
    for kind in 0..KINDS {
        let mut run = Run::new(kind, of_kind(kind));
        let rig = run.filled();
        // A log that is full stands where the first record did that it had no room for.
        log_records(&rig, superblock(&run).geometry.log_slots + 2);
        assert!(superblock(&run).discard, "kind {kind}");
        rig.settle();
        assert!(!superblock(&run).discard, "kind {kind}");
        // Blocks that are full there, and are being written when the next checkpoint begins.
        for n in KEYS..KEYS + 200 {
            rig.set(&key(n), &[7; 2_000]);
        }
        fill_log(&run, &rig);
        let checkpoints = || rig.cache.stats().blocks.checkpoints;
        let before = checkpoints();
        let Ok(()) = rig.executor.run_until_idle::<Infallible>(|| {
            rig.cx.device.turn(true).unwrap();
            let slots = superblocks(&run);
            // Where full blocks are held a second checkpoint is marked as well, and need not say so again.
            if checkpoints() == before + 1 && slots.iter().any(|slot| slot.discard) {
                marks += 1;
                assert!(slots.iter().all(|slot| slot.discard), "kind {kind}: {slots:?}");
                let names = |slot: &Superblock| slot.checkpoints.map(|checkpoint| checkpoint.id);
                assert_eq!(names(&slots[0]), names(&slots[1]), "kind {kind}");
            }
            Ok(())
        });
        assert!(checkpoints() > before, "kind {kind}");
    }
    assert!(marks > 0);
}
