//! Everything that the testkit has, on the small store.

use crate::toy::ToyStore;
use pumice_device::{FaultPlan, FaultyDevice, FaultyMedium};
use pumice_testkit::{Load, Store, crash_at_every_write, crash_within_starts, swarm};
use std::sync::Arc;

fn load(seed: u64) -> Load {
    Load {
        seed,
        capacity: 1 << 20,
        keys: 100,
        steps: 400,
        stride: 1,
    }
}

#[test]
fn a_crash_at_every_write_leaves_what_was_on_the_device() {
    let totals = crash_at_every_write::<ToyStore>(Load { stride: 3, ..load(1) });
    println!("{totals:?}");
    assert!(totals.crashes > 200 && totals.seen.owed > 1_000, "{totals:?}");
}

#[test]
fn crashes_within_starts_lose_nothing_more() {
    let totals = crash_within_starts::<ToyStore>(load(2), 20);
    println!("{totals:?}");
    assert!(totals.crashes > 100 && totals.seen.owed > 200, "{totals:?}");
}

#[test]
fn no_fault_brings_a_wrong_value_back() {
    let (mut hits, mut faults, mut forgotten) = (0, 0, 0);
    for seed in 0..60 {
        let totals = swarm::<ToyStore>(load(seed), 5);
        hits += totals.seen.hits;
        faults += totals.faults;
        forgotten += totals.forgotten;
    }
    println!("{hits} hits, {faults} faults, {forgotten} starts that forgot everything");
    assert!(hits > 300 && faults > 2_000 && forgotten > 0);
}

#[test]
fn a_clean_stop_leaves_everything() {
    let medium = Arc::new(FaultyMedium::new(1 << 20, 3, FaultPlan::default()));
    let device = || FaultyDevice::new(Arc::clone(&medium));
    let mut store = ToyStore::open(device()).unwrap();
    for key in 0..60 {
        assert!(store.set(key, key * 7));
        store.settle();
    }
    store.close().unwrap();
    let mut store = ToyStore::open(device()).unwrap();
    assert!(!store.has_forgotten());
    for key in 0..60 {
        assert_eq!(store.get(key), Some(key * 7), "key {key}");
    }
    store.check();
}

#[test]
fn a_buffer_is_free_before_anyone_who_waits_for_one_is_woken() {
    let plan = FaultPlan {
        delay: true,
        ..FaultPlan::default()
    };
    let medium = Arc::new(FaultyMedium::new(4 << 20, 3, plan));
    let mut store = ToyStore::open(FaultyDevice::new(medium)).unwrap();
    assert!(store.finds_the_buffer_free());
}
