//! Everything that the testkit has, on the small store.

use crate::toy::Toy;
use crate::{Copies, Durable, OnlyCopy};
use pumice_testkit::{FaultPlan, FaultyDevice, FaultyMedium};
use pumice_testkit::{Load, Store, calm, crash_at_every_write, power_cuts, store_tests, swarms};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

store_tests!(Copies);

#[test]
fn no_fault_brings_a_wrong_value_back() {
    swarms::<Copies>(0..60);
}

#[test]
fn no_fault_and_no_power_cut_brings_a_wrong_value_back() {
    let all = swarms::<Durable>(0..60);
    assert!(all.power_cuts > 100 && all.lost_in_power_cuts > 100);
}

#[test]
fn what_is_committed_with_power_survives_power_cuts() {
    let totals = power_cuts::<Durable>(
        Load {
            steps: 150,
            ..Load::small(5)
        },
        60,
    );
    println!("{totals:?}");
    assert!(
        totals.power_cuts > 50 && totals.lost_in_power_cuts > 40,
        "{totals:?}"
    );
    assert!(totals.seen.owed > 1_000 && totals.forgotten == 0, "{totals:?}");
}

#[test]
fn a_clean_stop_leaves_everything() {
    let medium = Arc::new(FaultyMedium::new(1 << 20, 3, FaultPlan::default()));
    let device = || FaultyDevice::new(Arc::clone(&medium));
    let mut store = Copies::open(device()).unwrap();
    for key in 0..60 {
        assert!(store.set(key, key * 7));
        store.settle();
    }
    store.close().unwrap();
    let mut store = Copies::open(device()).unwrap();
    assert!(!store.has_forgotten());
    for key in 0..60 {
        assert_eq!(store.get(key), Some(key * 7), "key {key}");
    }
    store.check();
}

/// Looks for a free buffer at the moment when it wakes.
struct Sees {
    toy: Arc<Toy>,
    has_buffer: AtomicBool,
}

impl Wake for Sees {
    fn wake(self: Arc<Self>) {
        let has_buffer = self.toy.base.has_buffer(&self.toy.base.shared.pool.lock());
        self.has_buffer.store(has_buffer, Ordering::Relaxed);
    }
}

/// On another thread its reader goes on at once.
#[test]
fn a_buffer_is_free_before_anyone_who_waits_for_one_is_woken() {
    let medium = Arc::new(FaultyMedium::new(4 << 20, 3, calm()));
    let mut store = Copies::open(FaultyDevice::new(medium)).unwrap();
    while store.set(store.version % 50, 1) {}
    let toy = Arc::clone(&store.toy);
    let sees = Arc::new(Sees {
        toy: Arc::clone(&toy),
        has_buffer: AtomicBool::new(false),
    });
    let waker = Waker::from(Arc::clone(&sees));
    let mut waits = pin!(toy.base.wait_for(|pool| toy.base.has_buffer(pool)));
    while waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        store.turn();
    }
    assert!(sees.has_buffer.load(Ordering::Relaxed));
}

#[test]
fn a_store_with_the_only_copy_loses_nothing_to_a_crash_either() {
    let totals = crash_at_every_write::<OnlyCopy>(Load {
        stride: 7,
        ..Load::small(4)
    });
    assert!(totals.crashes > 90 && totals.seen.owed > 400, "{totals:?}");
}

/// What became of a value that was on the device when a change of it found no room in the log, or an append that fails, and of the store
/// after a crash: `(change made, value after it, records lost, start forgot everything)`.
fn after_a_change<S>(
    fill: impl Fn(&mut S),
    figures: impl Fn(&S) -> u64,
    fails: bool,
) -> (bool, Option<u64>, u64, bool)
where
    S: Store,
{
    let medium = Arc::new(FaultyMedium::new(1 << 20, 5, FaultPlan::default()));
    let open = || S::open(FaultyDevice::new(Arc::clone(&medium))).unwrap();
    let mut store = open();
    for key in 0..40 {
        assert!(store.set(key, key));
        store.settle();
    }
    assert!(store.is_on_device(3));
    fill(&mut store);
    if fails {
        medium.set_plan(FaultPlan {
            append_error: 1.0,
            ..FaultPlan::default()
        });
    }
    let is_made = store.set(3, 100);
    let lost = figures(&store);
    medium.set_plan(FaultPlan::default());
    store.settle();
    medium.crash();
    drop(store);
    medium.restart();
    let mut store = open();
    (is_made, store.get(3), lost, store.has_forgotten())
}

#[test]
fn what_a_full_log_means_the_owner_decides() {
    // The new value was in DRAM alone, so a crash leaves none.
    let fill = |store: &mut OnlyCopy| assert!(store.log_nothing(u64::MAX) > 100);
    let kept = after_a_change(fill, |store| store.lost_records(), false);
    assert_eq!(kept, (true, None, 0, false), "a checkpoint makes room");
    let fill = |store: &mut Copies| assert!(store.log_nothing(u64::MAX) > 100);
    let copies = after_a_change(fill, |store| store.lost_records(), false);
    assert!(copies.0 && copies.2 == 1, "{copies:?}");
}

#[test]
fn what_a_failed_append_means_the_owner_decides() {
    let kept = after_a_change(|_: &mut OnlyCopy| (), |store| store.lost_records(), true);
    assert_eq!(kept, (false, Some(3), 0, false), "the change is refused");
    let copies = after_a_change(|_: &mut Copies| (), |store| store.lost_records(), true);
    assert!(copies.0 && copies.1.is_none() && copies.2 == 1, "{copies:?}");
}
