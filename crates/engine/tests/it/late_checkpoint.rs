//! A checkpoint that begins late: the log, which keeps what the one before it needs, has little room then.

use crate::common::{KINDS, Rig, key, of_kind};
use pumice::{Action, CacheOptions, IndexOptions, Outcome};
use pumice_device::{MemDevice, MemMedium};
use pumice_world::ManualClock;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;

/// Deletes objects, none of which is on flash alone; background work does not go on meanwhile.
fn delete(rig: &Rig<MemDevice>, keys: Range<u64>) {
    for n in keys {
        let name = key(n);
        let update = rig.cache.update(&rig.cx, &name, |_| Action::Delete);
        assert_eq!(rig.poll_once(update), Some(Outcome::Deleted), "{n}");
    }
}

fn open(kind: u64) -> Rig<MemDevice> {
    let mut options = CacheOptions {
        dram_bytes: 8 << 20,
        ..of_kind(kind)
    };
    if let IndexOptions::Cascade(index) = &mut options.index {
        // Pages of 4 mappings each would take the room of the objects.
        index.page_entries = 338;
    }
    // The log has 1,024 records.
    let device = MemDevice::new(Arc::new(MemMedium::new(4 << 20)));
    let rig = Rig::open(device, Arc::new(ManualClock::new(1_000)), options);
    for n in 0..2_000 {
        assert!(rig.set(&key(n), &[7; 500]));
        if n % 20 == 0 {
            rig.settle();
        }
    }
    rig.settle();
    rig
}

#[test]
fn a_checkpoint_that_began_late_is_followed_by_another_before_the_log_is_full() {
    for kind in 0..KINDS {
        let rig = open(kind);
        let counts = || rig.cache.stats().blocks;
        delete(&rig, 0..300);
        rig.settle();
        let first = counts().checkpoints;
        assert!(first > 0, "kind {kind}");
        // The next one is due after 256, and begins after 800.
        delete(&rig, 300..1_100);
        rig.settle();
        assert!(counts().checkpoints > first, "kind {kind}");
        for n in (1_100..1_900).step_by(20) {
            delete(&rig, n..n + 20);
            rig.settle();
        }
        assert_eq!(counts().log_failures, 0, "kind {kind}: {:?}", counts());
        assert!(counts().log_records > 1_500, "kind {kind}: {:?}", counts());
        rig.check();
    }
}

/// Until a checkpoint has made room changes wait: a device that is slower than its log fills costs time, not the cache.
#[test]
fn where_the_log_is_nearly_full_changes_wait_for_the_checkpoint() {
    for kind in 0..KINDS {
        let rig = open(kind);
        let mut waited = 0;
        for n in 0..1_900 {
            if let Some(wait) = rig.cache.change_wait(&rig.cx) {
                let mut wait = pin!(wait);
                assert!(
                    rig.poll_once(wait.as_mut()).is_none(),
                    "kind {kind}: {n} need not wait"
                );
                rig.run(wait);
                waited += 1;
            }
            delete(&rig, n..n + 1);
        }
        assert!((1..20).contains(&waited), "kind {kind}: {waited}");
        let counts = rig.cache.stats().blocks;
        assert_eq!(counts.log_failures, 0, "kind {kind}: {counts:?}");
        rig.check();
    }
}
