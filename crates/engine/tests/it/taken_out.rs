//! A device that fails for good is taken out: DRAM serves alone, nobody sees an error, the books balance, and whatever becomes of the
//! process, no later start serves what was deleted or replaced meanwhile.

use crate::common::dying::{KEYS, Run, calm, dying, serve_from_dram};
use crate::common::{KINDS, Model, key, of_kind, value};
use pumice::CacheOptions;
use pumice_device::FaultPlan;

/// It dies in any of its operations: reading, sealing, reclaiming, moving, checkpointing, appending to the log.
#[test]
fn whenever_it_dies_nothing_comes_back_that_it_missed() {
    let (mut points, mut notes) = (0, 0);
    for kind in 0..KINDS {
        for point in (1..120).step_by(7) {
            let mut run = Run::new(kind * 1_000 + point, of_kind(kind));
            let rig = run.filled();
            run.die(&rig, dying(point));
            serve_from_dram(&mut run, &rig);
            let failure = rig.cache.flash_failure().expect("it is out");
            assert!(failure.remembered, "{failure:?}");
            let rig = if point % 2 == 0 {
                rig.run(rig.cache.close(&rig.cx))
                    .expect("the next start will know");
                run.kill_and_heal(rig)
            } else {
                run.kill_and_heal(rig)
            };
            assert!(
                rig.recovered.discarded && rig.recovered.objects == 0,
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
            assert!(!rig.recovered.discarded, "the note is of the cache before");
            run.compare(&rig);
            (points, notes) = (points + 1, notes + run.medium.counts().notes);
        }
    }
    println!("{points} points, {notes} notes");
    assert_eq!(notes, points, "a dead device cannot be marked");
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
