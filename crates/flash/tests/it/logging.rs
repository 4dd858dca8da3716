//! Which deaths are logged, and what follows where a record could not be stored.

use crate::common::{Rig, hash, options};
use pumice_blocks::{Durability, State};
use pumice_index::{Location, Superseded};
use pumice_testkit::{FaultPlan, FaultyMedium};
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn rig() -> (Arc<FaultyMedium>, Rig) {
    let medium = Arc::new(FaultyMedium::new(2 << 20, 1, FaultPlan::default()));
    let mut rig = Rig::open(&medium, 10, &options(Durability::Process));
    rig.auto_kick = false;
    (medium, rig)
}

#[test]
fn a_death_is_logged_where_a_start_could_find_the_copy() {
    let (_medium, rig) = rig();
    // The second stands behind the first, so its place in the block is not 0.
    assert!(rig.set(1, 1_000).is_some() && rig.set(2, 1_000).is_some());
    let known = rig.index.mapping_of(2);
    let store = rig.store();
    let Location { offset, .. } = known.location;
    let id = store.geometry.block_of(offset).unwrap();
    let info = &store.blocks[id as usize];
    let at = u32::try_from(offset - store.geometry.block_offset(id)).unwrap();
    let is_logged = |known, may_be_more| {
        let superseded = Superseded {
            known,
            may_be_more,
            is_mapped: false,
        };
        let before = store.totals.log_records.load(Ordering::Relaxed);
        store.log_void(&rig.device, hash(2), &superseded, 100);
        store.totals.log_records.load(Ordering::Relaxed) - before == 1
    };
    assert!(at > 0 && info.state() == State::Active);
    for (written, is_on_device) in [(0, false), (at, false), (at + 1, true), (2 * at, true)] {
        info.prefix_end.store(written, Ordering::Release);
        assert_eq!(is_logged(Some(known), false), is_on_device, "{written} of {at}");
        assert!(is_logged(Some(known), true), "an older one may be there");
    }
    info.prefix_end.store(0, Ordering::Release);
    assert!(is_logged(None, true) && !is_logged(None, false));
    let free = store.shared.pool.lock().free[0];
    let nowhere = Location {
        offset: store.geometry.block_offset(free),
        ..known.location
    };
    let nowhere = pumice_index::Mapping {
        location: nowhere,
        ..known
    };
    assert!(!is_logged(Some(nowhere), false), "the block is free");
    store.close_block(store.find_open(id).unwrap());
    assert!(is_logged(Some(known), false), "it is being written");
}

#[test]
fn a_record_that_is_not_stored_marks_a_device_that_works_and_no_other() {
    for is_out in [false, true] {
        let (medium, rig) = rig();
        if is_out {
            rig.store().shared.take_out("a test".to_owned());
        }
        medium.set_plan(FaultPlan {
            bad_appends: std::iter::once(rig.store().geometry.log_offset..u64::MAX).collect(),
            ..FaultPlan::default()
        });
        let superseded = Superseded {
            known: None,
            may_be_more: true,
            is_mapped: false,
        };
        rig.store().log_void(&rig.device, hash(1), &superseded, 100);
        let lost = rig.store().totals.log_failures.load(Ordering::Relaxed);
        let is_marked = rig.store().journal.superblock.lock().discard;
        assert_eq!((lost, is_marked), if is_out { (0, false) } else { (1, true) });
    }
}
