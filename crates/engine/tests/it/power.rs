//! With durability `power`, what was answered holds after a power cut also where its log record could not be stored: what the answer
//! stands on then, the mark in the superblocks, is flushed first.

use crate::common::dying::{KEYS, Run, volatile};
use crate::common::{KINDS, Rig, key, of_kind};
use pumice::{CacheOptions, Durability};
use pumice_blocks::geometry::{Geometry, LOG_RECORD_BYTES};
use pumice_testkit::{FaultPlan, FaultyDevice};

fn power(kind: u64) -> CacheOptions {
    CacheOptions {
        durability: Durability::Power,
        ..of_kind(kind)
    }
}

fn geometry(run: &Run) -> Geometry {
    Geometry::plan(run.medium.capacity(), 64 << 10).unwrap()
}

fn cut_power(run: &Run, rig: Rig<FaultyDevice>) -> Rig<FaultyDevice> {
    drop(rig);
    run.medium.cut_power();
    run.medium.restart();
    run.medium.set_plan(volatile());
    run.open()
}

/// A cache whose objects are on flash, with nothing left to flush.
fn flushed(seed: u64, kind: u64) -> (Run, Rig<FaultyDevice>) {
    let mut run = Run::new(seed, power(kind));
    run.medium.set_plan(volatile());
    let rig = run.filled();
    rig.run(rig.cache.commit(&rig.cx)).unwrap();
    (run, rig)
}

/// Deletes a few of the objects that are there, with an answer; returns which.
fn delete_some(rig: &Rig<FaultyDevice>) -> Vec<u64> {
    let mut deleted = Vec::new();
    for n in 0..KEYS {
        if rig.get(&key(n)).is_some() && deleted.len() < 5 {
            assert!(rig.run(rig.cache.delete(&rig.cx, &key(n))));
            deleted.push(n);
        }
    }
    rig.run(rig.cache.commit(&rig.cx)).expect("it is answered");
    deleted
}

#[test]
fn a_delete_whose_record_cannot_be_stored_holds() {
    for kind in 0..KINDS {
        for seed in 0..6 {
            let (run, rig) = flushed(seed, kind);
            let geometry = geometry(&run);
            let log = geometry.log_offset..geometry.log_offset + geometry.log_slots * LOG_RECORD_BYTES;
            run.medium.set_plan(FaultPlan {
                bad_appends: vec![log],
                ..volatile()
            });
            let deleted = delete_some(&rig);
            assert!(deleted.len() == 5 && run.medium.counts().append_errors > 0);
            assert_eq!(rig.cache.flash_failure(), None, "it is marked, and stays in use");
            let rig = cut_power(&run, rig);
            for n in deleted {
                assert_eq!(rig.get(&key(n)), None, "kind {kind}, seed {seed}, key {n}");
            }
        }
    }
}

/// A log with no room for another record fails no operation of the device.
#[test]
fn a_delete_for_whose_record_there_is_no_room_holds() {
    for seed in 0..12 {
        let (run, rig) = flushed(seed, 0);
        // Checkpoints, which would make room, cannot be written.
        let everywhere = 0..run.medium.capacity();
        run.medium.set_plan(FaultPlan {
            bad_writes: [everywhere].into(),
            ..volatile()
        });
        let usage = || {
            let stats = rig.cache.stats();
            (stats.log_used, stats.log_slots)
        };
        // A delayed flush is one record, however often it is put off.
        for at in usage().0..usage().1 {
            rig.cache.flush_all(&rig.cx, Some(1_000_000 + at as u32));
        }
        rig.run(rig.cache.commit(&rig.cx)).unwrap();
        assert_eq!(usage().0, usage().1, "it is full");
        assert_eq!(rig.cache.stats().blocks.log_failures, 0);
        let deleted = delete_some(&rig);
        assert!(deleted.len() == 5 && rig.cache.stats().blocks.log_failures >= 5);
        let rig = cut_power(&run, rig);
        for n in deleted {
            assert_eq!(rig.get(&key(n)), None, "seed {seed}, key {n}");
        }
    }
}
