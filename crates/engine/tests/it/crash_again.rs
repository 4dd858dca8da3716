//! Crashes while a start recovers from a crash: at every write and every append of it, one after the other, until it gets through. What
//! comes back is the last value, or nothing; under every layout and index.

use crate::common::dying::{Run, calm, crash_at};
use crate::common::{Weights, cascade, cascade_layouts, check_get, ripq, sipq};
use pumice::{CacheOptions, IndexOptions, LayoutOptions};

const KEYS: u64 = 80;
const FLASH_BYTES: u64 = 2 << 20;
/// Crashes of one recovery. Each start after a crash does what is left, so the number of points goes down to none.
const AGAIN_MAX: u64 = 400;

/// Lives of a cache, each ended by a crash, and each start by crashes of its own. Returns how many of those there were, and how many objects
/// came back after them.
fn crash_again_and_again(seed: u64, options: CacheOptions) -> (u64, u64) {
    let mut run = Run::on(FLASH_BYTES, seed, options);
    let (mut crashes, mut served) = (0, 0);
    for life in 0..10 {
        let mut point = 1;
        let mut found = None;
        while life > 0 && point < AGAIN_MAX {
            run.medium.set_plan(crash_at(point));
            let opened = run.try_open();
            let is_through = !run.medium.is_crashed();
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
            run.medium.crash();
            run.medium.restart();
            if is_through {
                break;
            }
            crashes += 1;
            point += 1;
        }
        assert!(point < AGAIN_MAX, "seed {seed}: a start that never ends");
        run.medium.set_plan(calm());
        let rig = run.open();
        let what = format!("seed {seed}, life {life}, after {point} starts");
        assert!(!rig.recovered.discarded, "{what}: {:?}", rig.recovered);
        assert!(
            found.is_none_or(|found| found == rig.recovered.objects),
            "{what}: {found:?}, {:?}",
            rig.recovered
        );
        served += run.reconcile(&rig, KEYS, &what);
        rig.check();
        run.medium.set_plan(crash_at(40 + run.random.below(250)));
        run.weights = Weights {
            set: 40,
            delete: 8,
            ..Weights::random(&mut run.random)
        };
        run.live(&rig, life * 1_000..life * 1_000 + 400, KEYS);
        if !run.medium.is_crashed() {
            run.model.before.clear();
            run.medium.crash();
        }
        drop(rig);
        run.medium.restart();
    }
    run.medium.set_plan(calm());
    let rig = run.open();
    served += run.reconcile(&rig, KEYS, &format!("seed {seed}, at the end"));
    for n in 0..KEYS {
        check_get(&rig, &mut run.model, n, options.index.kind().is_authoritative());
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
