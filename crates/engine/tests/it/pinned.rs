//! Readers that keep what they found for long: what pins the memory of the DRAM tier costs no other object its place.

use crate::common::{Rig, key, value};
use pumice::{Access, CacheOptions, Lookup, Object};
use pumice_device::{AlignedBuf, MemDevice, MemMedium};
use pumice_world::ManualClock;
use std::sync::Arc;

const LEN: usize = 10_000;

fn in_dram(rig: &Rig<MemDevice>, n: u64) -> Option<Object<AlignedBuf>> {
    match rig.cache.lookup(&rig.cx, &key(n), Access::Peek) {
        Lookup::Known(object) => object.filter(|object| !object.pins_block()),
        Lookup::Read(_) => None,
    }
}

fn set(rig: &Rig<MemDevice>, n: u64) {
    assert!(rig.set(&key(n), &value(n, 0, LEN)));
    rig.settle();
}

#[test]
fn what_stands_beside_an_object_that_is_kept_stays() {
    let options = CacheOptions {
        dram_bytes: 16 << 20,
        ..CacheOptions::default()
    };
    let device = MemDevice::new(Arc::new(MemMedium::new(256 << 20)));
    let rig = Rig::open(device, Arc::new(ManualClock::new(1_000)), options);
    (0..2_000).for_each(|n| set(&rig, n));
    let there: Vec<u64> = (0..2_000).filter(|n| in_dram(&rig, *n).is_some()).collect();
    assert!(there.len() > 100, "{}", there.len());
    // One object of every segment is among them.
    let mut kept: Vec<_> = there
        .iter()
        .step_by(2)
        .map(|n| in_dram(&rig, *n).expect("is there"))
        .collect();
    (2_000..4_000).for_each(|n| set(&rig, n));
    let stayed = there.iter().filter(|n| in_dram(&rig, **n).is_some()).count();
    assert_eq!(stayed, there.len());
    for object in &mut kept {
        object.detach();
    }
    // Copies pin nothing.
    (4_000..8_000).for_each(|n| set(&rig, n));
    let stayed = there.iter().filter(|n| in_dram(&rig, **n).is_some()).count();
    assert_eq!(stayed, 0);
    for (n, object) in there.iter().step_by(2).zip(&kept) {
        assert!(object.to_vec() == value(*n, 0, LEN), "{n}");
    }
    drop(kept);
    rig.check();
}
