//! Large objects: sets of one key at once, changes that lose, and what they leave behind.

use crate::common;

use crate::common::Rig;
use futures_util::future::join;
use pumice::{Action, CacheOptions, LayoutOptions, Meta, Outcome, Permits};
use pumice_device::{CountingDevice, Device as _, DeviceCounters, MemDevice, MemMedium, Payload};
use pumice_testkit::calm;
use pumice_testkit::{FaultPlan, FaultyDevice, FaultyMedium};
use pumice_world::ManualClock;
use std::future::Future as _;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

const LEN: usize = 150_000;

fn rig() -> Rig<MemDevice> {
    let device = MemDevice::new(Arc::new(MemMedium::new(32 << 20)));
    let options = CacheOptions {
        dram_bytes: 4 << 20,
        block_bytes: Some(256 << 10),
        ..CacheOptions::default()
    };
    Rig::open(device, Arc::new(ManualClock::new(1_000)), options)
}

fn value(byte: u8) -> Vec<u8> {
    (0..LEN).map(|at| byte.wrapping_add((at / 1000) as u8)).collect()
}

#[test]
fn two_sets_of_one_large_key_at_once_leave_one_whole_object() {
    let rig = rig();
    for round in 0..20u8 {
        let (a, b) = (value(2 * round), value(2 * round + 1));
        let store = |v| rig.cache.store(&rig.cx, b"key", v, Meta::default());
        let both = rig.run(join(store(Payload::Bytes(&a)), store(Payload::Bytes(&b))));
        assert!(both.0.is_ok() && both.1.is_ok(), "{both:?}");
        let found = rig.get(b"key").expect("one of them stands");
        assert!(found == a || found == b);
        rig.check();
    }
}

#[test]
fn a_change_that_loses_leaves_the_winner_whole_and_no_slices() {
    let rig = rig();
    assert!(rig.set(b"key", &value(0)));
    rig.settle();
    let mut asked = 0;
    let outcome = rig.run(rig.cache.update(&rig.cx, b"key", |object| {
        asked += 1;
        if asked == 1 {
            // Another client sets the key between the look and the change.
            let set = rig
                .cache
                .set(&rig.cx, b"key", Payload::Bytes(&value(7)), Meta::default());
            assert!(set.is_ok());
            return Action::Store {
                value: value(9),
                meta: Meta::default(),
            };
        }
        assert_eq!(object.map(pumice::Object::value_len), Some(LEN));
        Action::Keep
    }));
    assert_eq!((outcome, asked), (Outcome::Kept, 2));
    assert_eq!(rig.get(b"key"), Some(value(7)));
    assert!(rig.run(rig.cache.delete(&rig.cx, b"key")));
    rig.check();
    assert_eq!(
        rig.cache.books().resident(),
        (0, 0),
        "slices of a loser or of the replaced object stayed"
    );
}

#[test]
fn large_objects_leave_half_a_slice_of_a_block_empty_and_stay_whole() {
    for layout in [LayoutOptions::default(), common::ripq()] {
        let device = MemDevice::new(Arc::new(MemMedium::new(32 << 20)));
        let options = CacheOptions {
            dram_bytes: 8 << 20,
            block_bytes: Some(256 << 10),
            layout,
            ..CacheOptions::default()
        };
        let rig = Rig::open(device, Arc::new(ManualClock::new(1_000)), options);
        let lens: Vec<usize> = (0..160).map(|n| 70_000 + n * 7_919 % 90_000).collect();
        let name = |n: usize| format!("key{n}").into_bytes();
        for (n, len) in lens.iter().enumerate() {
            let value: Vec<u8> = (0..*len).map(|at| (at / 100 + n) as u8).collect();
            let payload = Payload::Bytes(&value);
            let stored = rig.run(rig.cache.store(&rig.cx, &name(n), payload, Meta::default()));
            assert!(stored.is_ok());
        }
        rig.settle();
        let (flash, blocks) = (rig.cache.stats().flash, rig.cache.stats().blocks);
        let written = blocks.sealed_blocks * (256 << 10);
        let share = flash.appended_bytes as f64 / written as f64;
        // Slices of a sixteenth of a block: a thirty-second of each stays empty, and footers take some.
        assert!(
            blocks.sealed_blocks > 40 && share > 0.95,
            "{share} of {written} bytes"
        );
        for (n, len) in lens.iter().enumerate() {
            let found = rig.get(&name(n)).expect("flash has room for all");
            assert!(found.len() == *len && (0..*len).all(|at| found[at] == (at / 100 + n) as u8));
        }
        rig.check();
    }
}

#[test]
fn slices_are_read_several_at_once() {
    let medium = FaultyMedium::new(8 << 20, 1, FaultPlan::default());
    let medium = Arc::new(medium);
    let counters = Arc::new(DeviceCounters::new());
    let device = CountingDevice::new(FaultyDevice::new(Arc::clone(&medium)), Arc::clone(&counters));
    let options = CacheOptions {
        dram_bytes: 0,
        block_bytes: Some(64 << 10),
        ..CacheOptions::default()
    };
    let rig = Rig::open(device, Arc::new(ManualClock::new(1_000)), options);
    let name = b"key";
    let value: Vec<u8> = (0..400_000u32).flat_map(u32::to_le_bytes).take(600_000).collect();
    let stored = rig.run(
        rig.cache
            .store(&rig.cx, name, Payload::Bytes(&value), Meta::default()),
    );
    assert!(stored.is_ok());
    // The end of it stands in a buffer until more has come.
    for n in 0..40 {
        assert!(rig.set(&common::key(n), &[7; 10_000]));
        rig.settle();
    }
    // From here on an operation is under way until a turn of the device.
    medium.set_plan(calm());
    let mut get = pin!(rig.cache.get(&rig.cx, name));
    let mut context = Context::from_waker(Waker::noop());
    let (mut before, mut most) = (counters.snapshot().reads, 0);
    let object = loop {
        if let Poll::Ready(object) = get.as_mut().poll(&mut context) {
            break object;
        }
        let now = counters.snapshot().reads;
        (before, most) = (now, most.max(now - before));
        rig.cx.device.turn(true).unwrap();
    };
    assert!(object.expect("flash has room for it").to_vec() == value);
    assert_eq!(most, 8, "reads that were begun between two turns");
    medium.set_plan(FaultPlan::default());
    rig.check();
}

/// Notes what is asked for.
struct Noted<'a>(&'a std::cell::RefCell<Vec<usize>>);

impl Permits for Noted<'_> {
    type Permit = ();
    type Refusal = std::convert::Infallible;

    async fn take(&mut self, bytes: usize) -> Result<(), Self::Refusal> {
        self.0.borrow_mut().push(bytes);
        Ok(())
    }
}

#[test]
fn an_update_has_permits_for_what_it_reads_and_reads_no_slices() {
    let rig = rig();
    let asked = std::cell::RefCell::new(Vec::new());
    let update = |len, action: Action| {
        let mut permits = Noted(&asked);
        let update = rig.cache.update_within(&rig.cx, b"key", &mut permits, |object| {
            assert_eq!(object.map(pumice::Object::value_len), Some(len));
            action.clone()
        });
        let Ok((outcome, ())) = rig.run(update);
        outcome
    };
    assert!(rig.set(b"key", &value(0)[..60_000]));
    assert_eq!(update(60_000, Action::Keep), Outcome::Kept);
    assert_eq!(asked.take(), [16 << 10, 60_000]);
    assert!(rig.set(b"key", &value(0)));
    let meta = Meta {
        flags: 5,
        expiry: 0,
        marks: 3,
    };
    assert!(matches!(
        update(LEN, Action::SetMeta(meta)),
        Outcome::Stored { .. }
    ));
    assert_eq!(rig.get(b"key"), Some(value(0)), "touching keeps the slices");
    assert_eq!(update(LEN, Action::Delete), Outcome::Deleted);
    assert_eq!(asked.take(), [16 << 10, 16 << 10]);
    assert_eq!(rig.get(b"key"), None);
    rig.check();
    assert_eq!(rig.cache.books().resident(), (0, 0));
}
