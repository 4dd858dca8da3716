//! Neither tier has room: what is to be changed stays as it was until there is some, and then is changed.

use crate::common::{Rig, key};
use futures_util::future::join;
use pumice::{Action, CacheOptions, Meta, Object, Outcome, RejectReason};
use pumice_device::{MemDevice, MemMedium};
use pumice_world::ManualClock;
use std::sync::Arc;

/// A cache without a DRAM tier whose buffers are all full, and how many objects are in it.
fn full() -> (Rig<MemDevice>, u64) {
    let options = CacheOptions {
        dram_bytes: 0,
        buffers_max: 2,
        ..CacheOptions::default()
    };
    let device = MemDevice::new(Arc::new(MemMedium::new(16 << 20)));
    let rig = Rig::open(device, Arc::new(ManualClock::new(1_000)), options);
    // Nothing is written meanwhile.
    let mut count = 0;
    while rig.set(&key(count), &[7; 300]) {
        count += 1;
        assert!(count < 10_000, "buffers are bounded");
    }
    (rig, count)
}

const MARKED: Meta = Meta {
    flags: 0,
    marks: 1,
    expiry: 5_000,
};

const REPLACED: Meta = Meta {
    flags: 7,
    marks: 0,
    expiry: 0,
};

/// What an object is changed to: every other gets a new value.
fn change(n: u64) -> Action {
    if n.is_multiple_of(2) {
        Action::SetMeta(MARKED)
    } else {
        Action::Store {
            value: vec![8; 300],
            meta: REPLACED,
        }
    }
}

/// Flags, expiry, mark and first byte of an object.
fn seen(rig: &Rig<MemDevice>, n: u64) -> Option<(u32, u32, u8, u8)> {
    let object = rig.run(rig.cache.get(&rig.cx, &key(n)))?;
    let meta = object.meta();
    Some((meta.flags, meta.expiry, meta.marks & 1, object.to_vec()[0]))
}

#[test]
fn a_change_that_waits_for_room_has_changed_nothing() {
    let (rig, count) = full();
    for n in 0..count {
        let name = key(n);
        let update = rig.cache.update(&rig.cx, &name, |_| change(n));
        assert!(rig.poll_once(update).is_none(), "{n} does not wait");
    }
    rig.settle();
    for n in 0..count {
        assert_eq!(seen(&rig, n), Some((0, 0, 0, 7)), "{n}");
    }
    rig.check();
}

#[test]
fn a_change_is_made_when_there_is_room() {
    let (rig, count) = full();
    for n in 0..count {
        let name = key(n);
        let update = rig.cache.update(&rig.cx, &name, |_| change(n));
        let outcome = rig.run(update);
        assert!(matches!(outcome, Outcome::Stored { .. }), "{n}: {outcome:?}");
    }
    for n in 0..count {
        let changed = if n.is_multiple_of(2) {
            (0, 5_000, 1, 7)
        } else {
            (7, 0, 0, 8)
        };
        assert_eq!(seen(&rig, n), Some(changed), "{n}");
    }
    rig.check();
}

#[test]
fn changes_that_wait_do_not_pin_what_they_wait_for() {
    let (rig, count) = full();
    for (a, b) in [(0, count - 1), (1, count - 2)] {
        // One object of either buffer, and both are shown to clients after the change.
        let names = [key(a), key(b)];
        let mut shown = [None, None];
        let [first, last] = &mut shown;
        let one = rig.cache.update(&rig.cx, &names[0], |object| {
            *first = object.cloned();
            change(a)
        });
        let other = rig.cache.update(&rig.cx, &names[1], |object| {
            *last = object.cloned();
            change(b)
        });
        let outcomes = rig.run(join(one, other));
        assert!(
            matches!(outcomes, (Outcome::Stored { .. }, Outcome::Stored { .. })),
            "{outcomes:?}"
        );
        for object in shown.iter().flatten() {
            assert_eq!(object.to_vec(), [7; 300]);
        }
        drop(shown);
        // Full again, and nothing is written.
        for n in count.. {
            if !rig.set(&key(n), &[9; 300]) {
                break;
            }
        }
    }
    rig.check();
}

#[test]
fn a_change_that_nothing_makes_room_for_is_refused() {
    let (rig, count) = full();
    // An object from each buffer, in the hands of a reader that is in no hurry.
    let kept: Vec<_> = [0, count - 1]
        .iter()
        .map(|n| rig.run(rig.cache.get(&rig.cx, &key(*n))).expect("is there"))
        .collect();
    assert!(kept.iter().all(Object::pins_block));
    for n in 0..count {
        let name = key(n);
        let update = rig.cache.update(&rig.cx, &name, |_| change(n));
        assert_eq!(rig.run(update), Outcome::Rejected(RejectReason::NoRoom), "{n}");
        assert_eq!(seen(&rig, n), Some((0, 0, 0, 7)), "{n}");
    }
    drop(kept);
    let name = key(0);
    let update = rig.cache.update(&rig.cx, &name, |_| change(0));
    let outcome = rig.run(update);
    assert!(matches!(outcome, Outcome::Stored { .. }), "{outcome:?}");
    rig.check();
}
