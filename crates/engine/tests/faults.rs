//! The engine on a device that fails: reads that rot or fail, writes that get lost or fail, logs that cannot be appended.
//! What is damaged is a miss and is counted; a wrong value never.

mod common;

use common::{Model, Random, Rig, Weights, cascade, cascade_layouts, check_get, key, ripq, sipq, step};
use pumice::CacheOptions;
use pumice_device::{FaultPlan, FaultyDevice, FaultyMedium};
use pumice_world::ManualClock;
use std::sync::Arc;

const KEYS: u64 = 300;

fn options() -> CacheOptions {
    CacheOptions {
        dram_bytes: 1 << 20,
        block_bytes: Some(64 << 10),
        item_bytes_max: 200 << 10,
        ..CacheOptions::default()
    }
}

fn of_layout(seed: u64) -> CacheOptions {
    let mut options = options();
    match seed % 8 {
        layout @ 3..8 => {
            options.index = cascade();
            options.layout = cascade_layouts()[layout as usize - 3];
            options.buffers_max = 10;
        }
        1 => (options.layout, options.buffers_max) = (ripq(), 10),
        2 => options.layout = sipq(),
        _ => {}
    }
    options
}

/// Random operations under `plan`, with kills between them. Returns hits and what was injected.
fn survive(seed: u64, plan: FaultPlan) -> (u64, pumice_device::FaultCounts) {
    let mut random = Random(seed);
    let medium = Arc::new(FaultyMedium::new(4 << 20, seed, FaultPlan::default()));
    let clock = Arc::new(ManualClock::new(1_000));
    let mut model = Model::default();
    for life in 0..6 {
        // Starts happen on a device that works; what it holds may be damaged all the same.
        medium.set_plan(FaultPlan {
            delay: true,
            ..FaultPlan::default()
        });
        let rig = Rig::open(
            FaultyDevice::new(Arc::clone(&medium)),
            Arc::clone(&clock),
            of_layout(seed),
        );
        // What the crash took is gone for good: from here on a key that was missing must stay so.
        for n in 0..KEYS {
            let got = rig.run(rig.cache.get(&rig.cx, &key(n)));
            match got {
                Some(object) => assert_eq!(
                    Some(&object.to_vec()),
                    model.at(n, rig.clock_secs()).map(|e| &e.value),
                    "seed {seed}, life {life}, key {n}"
                ),
                None => model.lost(n, of_layout(seed).index),
            }
        }
        rig.check();
        medium.set_plan(FaultPlan {
            delay: true,
            ..plan.clone()
        });
        let weights = Weights::random(&mut random);
        for n in 0..400 {
            step(
                &rig,
                &mut model,
                &mut random,
                &weights,
                life * 1_000 + n,
                KEYS,
                false,
            );
        }
        for n in 0..KEYS {
            check_get(&rig, &mut model, n, false);
        }
        rig.check();
        drop(rig);
        medium.crash();
        medium.restart();
    }
    (model.hits, medium.counts())
}

#[test]
fn rotten_reads_are_misses() {
    for seed in 0..8 {
        let (hits, counts) = survive(
            seed,
            FaultPlan {
                bit_rot: 0.2,
                ..FaultPlan::default()
            },
        );
        assert!(hits > 50 && counts.rotten_bits > 5, "{hits} hits, {counts:?}");
    }
}

#[test]
fn failing_reads_are_misses() {
    for seed in 0..8 {
        let (hits, counts) = survive(
            seed,
            FaultPlan {
                read_error: 0.2,
                ..FaultPlan::default()
            },
        );
        assert!(hits > 50 && counts.read_errors > 5, "{hits} hits, {counts:?}");
    }
}

#[test]
fn lost_writes_lose_objects_and_bring_none_back() {
    for seed in 0..12 {
        let (hits, counts) = survive(
            seed,
            FaultPlan {
                lost_write: 0.2,
                ..FaultPlan::default()
            },
        );
        assert!(hits > 50 && counts.lost_writes > 2, "{hits} hits, {counts:?}");
    }
}

#[test]
fn failing_writes_lose_objects_and_bring_none_back() {
    for seed in 0..12 {
        let (hits, counts) = survive(
            seed,
            FaultPlan {
                write_error: 0.2,
                ..FaultPlan::default()
            },
        );
        assert!(hits > 50 && counts.write_errors > 2, "{hits} hits, {counts:?}");
    }
}

#[test]
fn a_log_that_cannot_be_appended_empties_the_cache_rather_than_lie() {
    for seed in 0..12 {
        let (hits, counts) = survive(
            seed,
            FaultPlan {
                append_error: 0.05,
                ..FaultPlan::default()
            },
        );
        assert!(hits > 50 && counts.append_errors > 0, "{hits} hits, {counts:?}");
    }
}

#[test]
fn everything_at_once() {
    for seed in 0..12 {
        let plan = FaultPlan {
            bit_rot: 0.05,
            read_error: 0.05,
            lost_write: 0.05,
            write_error: 0.05,
            append_error: 0.01,
            ..FaultPlan::default()
        };
        let (hits, _) = survive(seed, plan);
        assert!(hits > 20, "{hits} hits");
    }
}
