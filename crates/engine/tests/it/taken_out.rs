//! A device that fails for good is taken out: DRAM serves alone, nobody sees an error, the books balance, and where its superblocks can
//! still be written, no later start serves what was deleted or replaced meanwhile.

use crate::common::dying::{KEYS, Run, calm, dying, serve_from_dram};
use crate::common::{KINDS, Model, key, of_kind, value};
use pumice::{CacheOptions, Durability};
use pumice_blocks::geometry::Geometry;
use pumice_testkit::FaultPlan;

/// It dies in any of its operations: reading, sealing, reclaiming, moving, checkpointing, appending to the log.
#[test]
fn whenever_it_dies_nothing_comes_back_that_it_missed() {
    for kind in 0..KINDS {
        for point in (1..120).step_by(7) {
            let mut run = Run::new(kind * 1_000 + point, of_kind(kind));
            let rig = run.filled();
            run.die(&rig, dying(point));
            serve_from_dram(&mut run, &rig);
            let failure = rig.cache.flash_failure().expect("it is out");
            assert!(!failure.remembered, "a dead device cannot be marked: {failure:?}");
            if point % 2 == 0 {
                let error = rig.run(rig.cache.close(&rig.cx)).unwrap_err();
                assert!(error.to_string().contains("--reformat"), "{error}");
            }
            run.options.reformat = true;
            run.options.random[0] += 1;
            let rig = run.kill_and_heal(rig);
            run.options.reformat = false;
            assert!(
                rig.recovered.formatted && rig.recovered.objects == 0,
                "{:?}",
                rig.recovered
            );
            for n in 0..KEYS {
                assert_eq!(rig.get(&key(n)), None, "kind {kind}, point {point}, key {n}");
            }
            run.model = Model::default();
            // It is a cache as any other from here on.
            run.steps(&rig, 200);
            rig.check();
            let rig = run.kill_and_heal(rig);
            assert!(!rig.recovered.discarded, "{:?}", rig.recovered);
            run.compare(&rig);
        }
    }
}

/// A device that fails many operations, but not so many in a row, stays.
#[test]
fn a_device_that_fails_now_and_then_stays() {
    let mut run = Run::new(5, of_kind(1));
    let rig = run.filled();
    run.medium.set_plan(FaultPlan {
        read_error: 0.3,
        write_error: 0.3,
        ..calm()
    });
    (0..100).for_each(|_| run.churn(&rig));
    assert_eq!(rig.cache.flash_failure(), None);
    assert!(run.compare(&rig) > 50);
    rig.check();
    let counts = run.medium.counts();
    assert!(counts.read_errors + counts.write_errors > 20, "{counts:?}");
}

/// Where there is no DRAM tier, or none for objects of such a length, what is set is gone at once, and nobody is told off.
#[test]
fn without_a_tier_for_them_sets_succeed_and_are_misses() {
    for kind in 0..KINDS {
        let options = CacheOptions {
            dram_bytes: 0,
            ..of_kind(kind)
        };
        let mut run = Run::new(kind, options);
        let rig = run.filled();
        run.die(&rig, dying(20));
        rig.settle();
        run.model = Model::default();
        run.steps(&rig, 200);
        for n in 0..KEYS {
            assert_eq!(rig.get(&key(n)), None);
        }
        rig.check();
        assert_eq!(rig.cache.stats().resident_entries, 0);
    }
}

/// Two blocks that cannot be read are two blocks, however often they are asked for in turn.
#[test]
fn two_bad_blocks_are_not_a_bad_device() {
    let run = Run::new(9, of_kind(0));
    let rig = run.open();
    (0..50).for_each(|n| assert!(rig.set(&key(n), &value(n, 0, 2_000))));
    rig.run(rig.cache.close(&rig.cx)).unwrap();
    drop(rig);
    let rig = run.open();
    let blocks = rig.cache.stats().blocks_sealed;
    assert!((2..4).contains(&blocks), "{blocks}");
    run.medium.set_plan(FaultPlan {
        read_error: 1.0,
        ..calm()
    });
    // By turns of one and another.
    for n in 0..20 {
        assert_eq!(rig.get(&key(n)), None);
        assert_eq!(rig.get(&key(49 - n)), None);
    }
    let counts = run.medium.counts();
    assert!(counts.read_errors >= 30, "{counts:?}");
    assert_eq!(rig.cache.flash_failure(), None);
    rig.check();
}

/// Nobody changes anything, and nobody stops the server: it is remembered all the same.
#[test]
fn what_only_gets_find_out_is_remembered_at_once() {
    for kind in 0..KINDS {
        let mut run = Run::new(kind, of_kind(kind));
        let rig = run.filled();
        rig.settle();
        run.medium.set_plan(FaultPlan {
            read_error: 1.0,
            ..calm()
        });
        (0..KEYS).for_each(|n| drop(rig.get(&key(n))));
        rig.run_background();
        let failure = rig.cache.flash_failure().expect("it is out");
        assert!(failure.remembered, "kind {kind}: {failure:?}");
    }
}

/// Only its blocks cannot be read, or written, any more: then the superblocks say so.
#[test]
fn a_device_that_can_be_marked_is_marked() {
    for kind in 0..KINDS {
        for reads in [true, false] {
            let mut run = Run::new(kind, of_kind(kind));
            let rig = run.filled();
            let capacity = run.medium.capacity();
            let blocks = Geometry::plan(capacity, 64 << 10).unwrap().data_offset..capacity;
            let plan = FaultPlan {
                read_error: f64::from(u8::from(reads)),
                bad_writes: if reads { Vec::new() } else { [blocks].into() },
                ..calm()
            };
            run.die(&rig, plan);
            let reason = rig.cache.flash_failure().expect("it is out").reason;
            let what = if reads {
                "reads of 8 blocks"
            } else {
                "writes of 8 blocks"
            };
            assert!(reason.starts_with(what), "{reason}");
            serve_from_dram(&mut run, &rig);
            let rig = run.kill_and_heal(rig);
            assert!(rig.recovered.discarded, "{:?}", rig.recovered);
        }
    }
}

/// With durability `power` a reply is a promise that needs a place to be kept.
#[test]
fn with_durability_power_nothing_is_answered_that_its_superblocks_cannot_say() {
    let options = CacheOptions {
        durability: Durability::Power,
        ..of_kind(0)
    };
    let run = Run::new(4, options);
    let rig = run.open();
    rig.set(&key(1), b"old");
    run.medium.set_plan(dying(1));
    for n in 0..2_000 {
        rig.set(&key(n), &[7; 300]);
        rig.settle();
    }
    assert!(rig.cache.flash_failure().is_some());
    let error = rig.run(rig.cache.commit(&rig.cx)).unwrap_err();
    assert!(error.to_string().contains("--reformat"), "{error}");
}

/// With durability `off` the device says from the start that a crash empties the cache, also after a clean stop before.
#[test]
fn with_durability_off_the_mark_is_there_before_it_is_needed() {
    for volatile in [false, true] {
        let options = CacheOptions {
            durability: Durability::Off,
            ..of_kind(0)
        };
        let mut run = Run::new(6, options);
        run.medium.set_plan(FaultPlan { volatile, ..calm() });
        let rig = run.open();
        run.steps(&rig, 300);
        rig.run(rig.cache.close(&rig.cx)).unwrap();
        drop(rig);
        let rig = run.open();
        assert!(
            rig.recovered.clean && rig.recovered.objects > 0,
            "{:?}",
            rig.recovered
        );
        run.medium.set_plan(FaultPlan { volatile, ..dying(3) });
        run.steps(&rig, 300);
        drop(rig);
        if volatile {
            run.medium.cut_power();
        } else {
            run.medium.crash();
        }
        run.medium.restart();
        run.medium.set_plan(calm());
        let rig = run.open();
        assert!(rig.recovered.discarded, "{:?}", rig.recovered);
    }
}

/// Known: where its superblocks cannot be written, what was deleted meanwhile comes back with the device.
#[test]
fn without_a_mark_deleted_objects_come_back() {
    let mut run = Run::new(7, of_kind(0));
    let rig = run.filled();
    run.die(&rig, dying(1));
    for n in 0..KEYS {
        rig.run(rig.cache.delete(&rig.cx, &key(n)));
        assert_eq!(rig.get(&key(n)), None);
    }
    let rig = run.kill_and_heal(rig);
    let back = (0..KEYS).filter(|n| rig.get(&key(*n)).is_some()).count();
    assert!(back > 50, "{back} of {KEYS}");
}

/// Of the two places for the mark one is bad: the other has it, flushed, although that alone does not count.
#[test]
fn what_can_be_marked_of_a_device_is_marked() {
    for bad in [0..1, 4_096..4_097] {
        let mut run = Run::new(9, of_kind(0));
        let rig = run.filled();
        let plan = FaultPlan {
            read_error: 1.0,
            bad_writes: vec![bad.clone()],
            volatile: true,
            ..calm()
        };
        run.die(&rig, plan);
        run.steps(&rig, 20);
        assert!(!rig.cache.flash_failure().expect("it is out").remembered);
        drop(rig);
        run.medium.cut_power();
        run.medium.restart();
        run.medium.set_plan(calm());
        let rig = run.open();
        assert!(rig.recovered.discarded, "{bad:?}: {:?}", rig.recovered);
    }
}

/// A kill right after the first answer that the device does not know of.
#[test]
fn the_first_answer_comes_when_it_is_remembered() {
    for kind in 0..KINDS {
        let mut run = Run::new(kind, of_kind(kind));
        let rig = run.filled();
        rig.settle();
        run.medium.set_plan(FaultPlan {
            read_error: 1.0,
            ..calm()
        });
        let mut names = (0..KEYS).map(key);
        while rig.cache.flash_failure().is_none() {
            let name = names.next().expect("it is out before the last");
            assert_eq!(rig.get(&name), None);
        }
        assert!(
            !rig.cache.flash_failure().expect("it is out").remembered,
            "that is still to come"
        );
        assert!(rig.set(&key(KEYS - 1), b"new"));
        rig.run(rig.cache.commit(&rig.cx)).expect("it is answered");
        let rig = run.kill_and_heal(rig);
        assert!(rig.recovered.discarded, "kind {kind}: {:?}", rig.recovered);
    }
}
