//! That a device was taken out is remembered: on the device, or beside it; and what happens where neither can be.

use crate::common::dying::{KEYS, Run, calm, dying, serve_from_dram};
use crate::common::{KINDS, Rig, key, of_kind};
use pumice::{CacheOptions, Durability};
use pumice_device::{FaultPlan, FaultyDevice};
use std::sync::Arc;

/// Only its blocks cannot be read, or written, any more: then the device itself carries the mark, and no note is needed.
#[test]
fn a_device_that_can_be_marked_is_marked() {
    for kind in 0..KINDS {
        for reads in [true, false] {
            let mut run = Run::new(kind, of_kind(kind));
            let rig = run.filled();
            let bad = f64::from(u8::from(reads));
            let plan = FaultPlan {
                read_error: bad,
                write_error: 1.0 - bad,
                note_error: 1.0,
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
            assert_eq!(run.medium.counts().notes, 0);
        }
    }
}

/// Neither the device nor the place beside it can be written. The server goes on and tries again, and a stop says what to do.
#[test]
fn what_cannot_be_remembered_is_tried_again_and_said() {
    let mut run = Run::new(3, of_kind(0));
    let rig = run.filled();
    run.die(
        &rig,
        FaultPlan {
            note_error: 1.0,
            ..dying(5)
        },
    );
    run.steps(&rig, 50);
    assert!(!rig.cache.flash_failure().expect("it is out").remembered);
    let error = rig.run(rig.cache.close(&rig.cx)).unwrap_err();
    assert!(error.to_string().contains("--reformat"), "{error}");
    // The place beside it works again: a second later it is noted.
    run.medium.set_plan(dying(1));
    run.clock.advance_secs(2);
    run.steps(&rig, 1);
    rig.settle();
    assert!(rig.cache.flash_failure().expect("it is out").remembered);
    rig.run(rig.cache.close(&rig.cx)).unwrap();
    let rig = run.kill_and_heal(rig);
    assert!(rig.recovered.discarded);
}

/// With durability `power` a reply is a promise that needs a place to be kept.
#[test]
fn with_durability_power_nothing_is_answered_that_cannot_be_remembered() {
    let options = CacheOptions {
        durability: Durability::Power,
        ..of_kind(0)
    };
    let run = Run::new(4, options);
    let rig = run.open();
    rig.set(&key(1), b"old");
    run.medium.set_plan(FaultPlan {
        note_error: 1.0,
        ..dying(1)
    });
    for n in 0..2_000 {
        rig.set(&key(n), &[7; 300]);
        rig.settle();
    }
    assert!(rig.cache.flash_failure().is_some());
    let error = rig.run(rig.cache.commit(&rig.cx)).unwrap_err();
    assert!(error.to_string().contains("stored nowhere"), "{error}");
    run.medium.set_plan(dying(1));
    run.clock.advance_secs(1);
    let _ = rig.run(rig.cache.commit(&rig.cx));
    rig.settle();
    rig.run(rig.cache.commit(&rig.cx)).expect("now it is noted");
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
        run.medium.set_plan(FaultPlan {
            note_error: 1.0,
            volatile,
            ..dying(3)
        });
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

/// What the tests above look for is there to be found: where nothing can be remembered, what was deleted meanwhile comes back.
#[test]
fn without_mark_and_note_deleted_objects_would_come_back() {
    let mut run = Run::new(7, of_kind(0));
    let rig = run.filled();
    run.die(
        &rig,
        FaultPlan {
            note_error: 1.0,
            ..dying(1)
        },
    );
    for n in 0..KEYS {
        rig.run(rig.cache.delete(&rig.cx, &key(n)));
        assert_eq!(rig.get(&key(n)), None);
    }
    let rig = run.kill_and_heal(rig);
    let back = (0..KEYS).filter(|n| rig.get(&key(*n)).is_some()).count();
    assert!(back > 50, "{back} of {KEYS}");
}

/// A place that cannot be looked at may hold a note: the start is refused, and changes nothing.
#[test]
fn a_start_that_cannot_look_for_the_note_is_refused() {
    let mut run = Run::new(8, of_kind(0));
    let rig = run.filled();
    run.die(&rig, dying(1));
    for n in 0..KEYS {
        rig.run(rig.cache.delete(&rig.cx, &key(n)));
    }
    assert!(rig.cache.flash_failure().expect("it is out").remembered);
    drop(rig);
    run.medium.crash();
    run.medium.restart();
    let unreadable = FaultPlan {
        notes_unreadable: true,
        ..calm()
    };
    run.medium.set_plan(unreadable.clone());
    let open = |options| {
        let device = FaultyDevice::new(Arc::clone(&run.medium));
        Rig::try_open(device, Arc::clone(&run.clock), options)
    };
    let Err(refused) = open(run.options) else {
        panic!("it trusts the device");
    };
    let said = refused.to_string();
    assert!(
        said.contains("permission denied") && said.contains("--reformat"),
        "{said}"
    );
    run.medium.set_plan(calm());
    let rig = open(run.options).expect("the note can be read");
    assert!(rig.recovered.discarded, "{:?}", rig.recovered);
    drop(rig);
    run.medium.set_plan(unreadable);
    let reformat = CacheOptions {
        reformat: true,
        ..run.options
    };
    assert!(open(reformat).expect("nothing is trusted").recovered.formatted);
}

/// Of the two places for the mark one is bad: the other has it, flushed, although that alone does not count.
#[test]
fn what_can_be_marked_of_a_device_is_marked() {
    for bad in [0..1, 4_096..4_097] {
        let mut run = Run::new(9, of_kind(0));
        let rig = run.filled();
        let plan = FaultPlan {
            read_error: 1.0,
            note_error: 1.0,
            bad_appends: vec![bad.clone()],
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
