//! A record in the middle of the log that cannot be read: what it voided is not known, so the next start begins empty.

use crate::common::dying::{KEYS, Run};
use crate::common::{KINDS, key, of_kind};
use pumice_blocks::geometry::{Geometry, LOG_RECORD_BYTES};
use pumice_device::Device;
use pumice_testkit::FaultyDevice;
use std::sync::Arc;

#[test]
fn nothing_that_was_deleted_comes_back_through_a_hole_in_the_log() {
    for kind in 0..KINDS {
        let mut run = Run::new(kind, of_kind(kind));
        let rig = run.filled();
        rig.settle();
        let there: Vec<u64> = (0..KEYS).filter(|n| rig.get(&key(*n)).is_some()).collect();
        assert!(there.len() >= 20, "kind {kind}: {} objects", there.len());
        let geometry = Geometry::plan(run.medium.capacity(), 64 << 10).unwrap();
        let records = || {
            let mut log = vec![0; (geometry.log_slots * LOG_RECORD_BYTES) as usize];
            let device = FaultyDevice::new(Arc::clone(&run.medium));
            device.read_log(geometry.log_offset, &mut log).unwrap();
            log
        };
        let before = records();
        let deleted = &there[..20];
        for n in deleted {
            assert!(rig.run(rig.cache.delete(&rig.cx, &key(*n))));
        }
        let after = records();
        let len = LOG_RECORD_BYTES as usize;
        let pairs = before.chunks(len).zip(after.chunks(len));
        let written: Vec<u64> = (0..)
            .zip(pairs)
            .filter(|(_, (before, after))| before != after)
            .map(|(slot, _)| slot)
            .collect();
        assert!(written.len() >= 20, "kind {kind}: each is logged");
        run.medium.crash();
        drop(rig);
        run.medium.restart();
        let hole = written[written.len() / 2];
        // A start mends a single wrong bit.
        for byte in [8, 9] {
            run.medium
                .rot_at(geometry.log_offset + hole * LOG_RECORD_BYTES + byte);
        }
        let rig = run.open();
        assert!(rig.recovered.discarded, "kind {kind}: {:?}", rig.recovered);
        for n in deleted {
            assert_eq!(rig.get(&key(*n)), None, "kind {kind}, key {n}");
        }
    }
}
