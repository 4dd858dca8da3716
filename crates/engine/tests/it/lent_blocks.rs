//! Blocks that a cascade index borrows for its pages while a checkpoint is being written: after a crash they are pages still.

use crate::common::{Random, Rig, key, value};
use pumice::{CacheOptions, CascadeOptions, IndexOptions};
use pumice_testkit::{FaultPlan, FaultyDevice, FaultyMedium};
use pumice_world::ManualClock;
use std::sync::Arc;

const FLASH_BYTES: u64 = 32 << 20;
const KEYS: u64 = 60_000;
/// Sets for each get, which lets background work go on: many, so that they are made while a checkpoint is written.
const SETS_PER_GET: u64 = 100;
const CRASHES: u64 = 60;

#[test]
fn no_partition_is_forgotten_after_a_crash() {
    let options = CacheOptions {
        dram_bytes: 0,
        block_bytes: Some(64 << 10),
        // Small pages, so that blocks for them are borrowed often.
        index: IndexOptions::Cascade(CascadeOptions {
            tier1_min: 16,
            tier1_share: 0.05,
            page_entries: 24,
        }),
        ..CacheOptions::default()
    };
    let plan = FaultPlan {
        delay: true,
        slow: 0.2,
        ..FaultPlan::default()
    };
    let medium = Arc::new(FaultyMedium::new(FLASH_BYTES, 1, plan));
    let clock = Arc::new(ManualClock::new(1_000));
    let mut random = Random(1);
    let (mut step, mut found) = (0, 0);
    for crash in 0..CRASHES {
        let rig = Rig::open(
            FaultyDevice::new(Arc::clone(&medium)),
            Arc::clone(&clock),
            options,
        );
        for _ in 0..KEYS / 10 {
            found += u64::from(rig.get(&key(random.below(KEYS))).is_some());
        }
        rig.settle();
        assert_eq!(
            rig.cache.stats().cascade.forgotten,
            0,
            "start after {crash} crashes"
        );
        // What is named by the checkpoint that has just been written is what was there while it was.
        let before = rig.cache.stats().blocks.checkpoints;
        while rig.cache.stats().blocks.checkpoints == before {
            if !rig.set(&key(random.below(KEYS)), &value(step, step, 250)) {
                rig.settle();
            }
            if step % SETS_PER_GET == 0 {
                rig.get(&key(random.below(KEYS)));
            }
            step += 1;
        }
        medium.crash();
        drop(rig);
        medium.restart();
    }
    assert!(
        found > CRASHES * KEYS / 40,
        "{found} found: the test proves nothing"
    );
}
