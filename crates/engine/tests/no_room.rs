//! Neither tier has room: what is to get another expiry or another mark stays as it was.

mod common;

use common::{Rig, key};
use pumice::{Action, CacheOptions, Meta, Outcome, Reads, RejectReason};
use pumice_device::{MemDevice, MemMedium};
use pumice_world::ManualClock;
use std::sync::Arc;

#[test]
fn an_object_whose_mark_cannot_be_written_stays() {
    let options = CacheOptions {
        dram_bytes: 0,
        buffers_max: 2,
        ..CacheOptions::default()
    };
    let device = MemDevice::new(Arc::new(MemMedium::new(16 << 20)));
    let rig = Rig::open(device, Arc::new(ManualClock::new(1_000)), options);
    // Nothing is written meanwhile, so both buffers fill up.
    let mut count = 0;
    while rig.set(&key(count), &[7; 300]) {
        count += 1;
        assert!(count < 10_000, "buffers are bounded");
    }
    let marked = Meta {
        marks: 1,
        expiry: 5_000,
        ..Meta::default()
    };
    let mut seen = Vec::new();
    for n in 0..count {
        let name = key(n);
        let update = rig.cache.update(&rig.cx, &name, Reads::ALL, |object| {
            seen.push(object.map(|object| object.version()));
            Action::SetMeta(marked)
        });
        assert_eq!(
            rig.run_without_turn(update),
            Outcome::Rejected(RejectReason::NoRoom),
            "{n}"
        );
    }
    rig.settle();
    for n in 0..count {
        let object = rig.run(rig.cache.get(&rig.cx, &key(n))).expect("it stays");
        assert_eq!(Some(object.version()), seen[n as usize], "{n}");
        assert_eq!((object.meta().marks & 1, object.expiry()), (0, 0));
    }
    let name = key(0);
    let update = rig
        .cache
        .update(&rig.cx, &name, Reads::ALL, |_| Action::SetMeta(marked));
    assert!(
        matches!(rig.run(update), Outcome::Stored { .. }),
        "there is room now"
    );
    rig.check();
}
