//! Crashes while a start recovers from a crash: at every write and every append of it, one after the other, until it gets through. What
//! comes back is the last value, or nothing; under every layout and index.

use crate::common;

use crate::common::after_crash::live;
use crate::common::{Model, Random, Rig, Weights, cascade, cascade_layouts, check_get, ripq, sipq};
use pumice::{CacheOptions, IndexOptions, LayoutOptions};
use pumice_device::{CrashPoint, FaultPlan, FaultyDevice, FaultyMedium};
use pumice_world::ManualClock;
use std::sync::Arc;

const KEYS: u64 = 80;
const FLASH_BYTES: u64 = 2 << 20;
/// Crashes of one recovery. Each start after a crash does what is left, so the number of points goes down to none.
const AGAIN_MAX: u64 = 400;

fn calm() -> FaultPlan {
    FaultPlan {
        delay: true,
        ..FaultPlan::default()
    }
}

fn crash_at(point: u64) -> FaultPlan {
    FaultPlan {
        crash: Some(CrashPoint::WriteOrAppend(point)),
        ..calm()
    }
}

/// What comes back is the newest value or that of before the step that was hit. What is missing is gone.
fn reconcile(rig: &Rig<FaultyDevice>, model: &mut Model, what: &str) -> u64 {
    let served =
        common::after_crash::reconcile(rig, model, KEYS, what, |model, n| drop(model.live.remove(&n)));
    model.before.clear();
    served
}

/// Lives of a cache, each ended by a crash, and each start by crashes of its own. Returns how many of those there were, and how many objects
/// came back after them.
fn crash_again_and_again(seed: u64, options: CacheOptions) -> (u64, u64) {
    let mut random = Random(seed);
    let medium = Arc::new(FaultyMedium::new(FLASH_BYTES, seed, calm()));
    let device = || FaultyDevice::new(Arc::clone(&medium));
    let clock = Arc::new(ManualClock::new(1_000));
    let mut model = Model::default();
    let (mut crashes, mut served) = (0, 0);
    for life in 0..10 {
        let mut point = 1;
        let mut found = None;
        while life > 0 && point < AGAIN_MAX {
            medium.set_plan(crash_at(point));
            let opened = Rig::try_open(device(), Arc::clone(&clock), options);
            let is_through = !medium.is_crashed();
            // A start that was crashed after it had looked at everything. With a cascade index what it drops is not counted.
            if let Some(rig) = opened
                .as_ref()
                .ok()
                .filter(|_| options.index.kind().is_authoritative())
            {
                let before = found.replace(rig.recovered.objects);
                assert!(
                    before.is_none_or(|before| before == rig.recovered.objects),
                    "seed {seed}, life {life}"
                );
            }
            drop(opened);
            medium.crash();
            medium.restart();
            if is_through {
                break;
            }
            crashes += 1;
            point += 1;
        }
        assert!(point < AGAIN_MAX, "seed {seed}: a start that never ends");
        medium.set_plan(calm());
        let rig = Rig::open(device(), Arc::clone(&clock), options);
        let what = format!("seed {seed}, life {life}, after {point} starts");
        assert!(!rig.recovered.discarded, "{what}: {:?}", rig.recovered);
        assert!(
            found.is_none_or(|found| found == rig.recovered.objects),
            "{what}: {found:?}, {:?}",
            rig.recovered
        );
        served += reconcile(&rig, &mut model, &what);
        rig.check();
        medium.set_plan(crash_at(40 + random.below(250)));
        let weights = Weights {
            set: 40,
            delete: 8,
            ..Weights::random(&mut random)
        };
        live(
            &rig,
            &mut model,
            &mut random,
            &weights,
            life * 1_000..life * 1_000 + 400,
            KEYS,
            || medium.is_crashed(),
        );
        if !medium.is_crashed() {
            model.before.clear();
            medium.crash();
        }
        drop(rig);
        medium.restart();
    }
    medium.set_plan(calm());
    let rig = Rig::open(device(), clock, options);
    served += reconcile(&rig, &mut model, &format!("seed {seed}, at the end"));
    for n in 0..KEYS {
        check_get(&rig, &mut model, n, options.index.kind().is_authoritative());
    }
    rig.check();
    (crashes, served)
}

fn under(layouts: &[LayoutOptions], index: IndexOptions) {
    for (at, layout) in (0..).zip(layouts) {
        let (mut crashes, mut served) = (0, 0);
        for seed in 0..4 {
            let options = CacheOptions {
                dram_bytes: if seed % 2 == 0 { 0 } else { 2 << 20 },
                block_bytes: Some(64 << 10),
                item_bytes_max: 200 << 10,
                buffers_max: 10,
                layout: *layout,
                index,
                flush_interval_secs: 3,
                ..CacheOptions::default()
            };
            let (crashed, found) = crash_again_and_again(100 * at + seed, options);
            crashes += crashed;
            served += found;
        }
        println!(
            "{:?}: {crashes} crashes of starts, {served} objects after them",
            layout.layout
        );
        assert!(
            crashes > 100 && served > 300,
            "{:?}: {crashes} crashes, {served} served: the test proves nothing",
            layout.layout
        );
    }
}

#[test]
fn a_crash_at_every_write_of_a_start_brings_nothing_back() {
    under(&[LayoutOptions::default(), ripq(), sipq()], IndexOptions::Full);
}

#[test]
fn a_crash_at_every_write_of_a_start_under_a_cascade_index_brings_nothing_back() {
    under(&cascade_layouts(), cascade());
}
