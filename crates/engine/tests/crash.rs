//! A crash at every write and every log append of a short workload: what comes back is the last value, or nothing.

mod common;

use common::{Entry, Model, Random, Rig, Weights, check_get, key, step};
use pumice::{CacheOptions, FlashWrite, HashLimit};
use pumice_device::{CrashPoint, FaultPlan, FaultyDevice, FaultyMedium};
use pumice_world::ManualClock;
use std::sync::Arc;

const KEYS: u64 = 80;

fn options(dram_bytes: usize) -> CacheOptions {
    CacheOptions {
        dram_bytes,
        block_bytes: Some(64 << 10),
        item_bytes_max: 200 << 10,
        ..CacheOptions::default()
    }
}

fn weights() -> Weights {
    Weights {
        get: 10,
        set: 40,
        large: 4,
        delete: 8,
        append: 6,
        touch: 4,
        flush: 1,
        tick: 1,
    }
}

/// Steps until the medium has crashed or `steps` are done.
fn run_until_crash(
    rig: &Rig<FaultyDevice>,
    medium: &FaultyMedium,
    model: &mut Model,
    random: &mut Random,
    steps: u64,
) {
    for n in 0..steps {
        step(rig, model, random, &weights(), n, KEYS, false);
        if medium.is_crashed() {
            return;
        }
    }
}

/// Reads every key: the newest or (if the last step was hit) the one before is legal, and nothing else. What is missing, or
/// turned out to be the older one, is what the model holds from then on.
fn reconcile(rig: &Rig<FaultyDevice>, model: &mut Model, what: &str) -> u64 {
    let now = rig.clock_secs();
    let mut served = 0;
    for n in 0..KEYS {
        let got = rig.run(rig.cache.get(&rig.cx, &key(n)));
        let legal = |entry: Option<&Entry>| {
            entry
                .filter(|e| e.meta.expiry == 0 || e.meta.expiry > now)
                .cloned()
        };
        let (newest, older) = (
            legal(model.live.get(&n)),
            legal(model.before.get(&n).and_then(Option::as_ref)),
        );
        match got {
            None => {
                model.live.remove(&n);
            }
            Some(object) => {
                served += 1;
                let got = Entry {
                    value: object.to_vec(),
                    meta: object.meta(),
                };
                let known = Some(&got) == newest.as_ref() || Some(&got) == older.as_ref();
                assert!(
                    known,
                    "{what}: key {n} came back as {:?}; newest {:?}, before {:?}",
                    String::from_utf8_lossy(&got.value[..got.value.len().min(40)]),
                    newest.map(|e| String::from_utf8_lossy(&e.value[..e.value.len().min(40)]).into_owned()),
                    older.map(|e| String::from_utf8_lossy(&e.value[..e.value.len().min(40)]).into_owned()),
                );
                model.live.insert(n, got);
            }
        }
    }
    served
}

fn crash_everywhere(seed: u64, dram_bytes: usize, flash_write: FlashWrite, flash_bytes: u64, steps: u64) {
    crash_everywhere_with(
        seed,
        CacheOptions {
            flash_write,
            ..options(dram_bytes)
        },
        flash_bytes,
        steps,
    );
}

fn crash_everywhere_with(seed: u64, options: CacheOptions, flash_bytes: u64, steps: u64) {
    let (mut crashes, mut served) = (0u64, 0u64);
    for point in 1.. {
        let medium = Arc::new(FaultyMedium::new(
            flash_bytes,
            seed,
            FaultPlan {
                delay: true,
                ..FaultPlan::default()
            },
        ));
        let clock = Arc::new(ManualClock::new(1_000));
        let mut model = Model::default();
        let mut random = Random(seed);
        let device = || FaultyDevice::new(Arc::clone(&medium));
        let rig = Rig::open(device(), Arc::clone(&clock), options);
        let crash = Some(CrashPoint::WriteOrAppend(point));
        medium.set_plan(FaultPlan {
            crash,
            delay: true,
            ..FaultPlan::default()
        });
        run_until_crash(&rig, &medium, &mut model, &mut random, steps);
        let crashed = medium.is_crashed();
        if !crashed {
            medium.crash();
        }
        drop(rig);
        medium.restart();
        crashes += 1;

        // Now and then recovery itself crashes, and starts over.
        if point % 3 == 0 {
            let crash = Some(CrashPoint::WriteOrAppend(1 + point % 5));
            medium.set_plan(FaultPlan {
                crash,
                delay: true,
                ..FaultPlan::default()
            });
            if let Ok(rig) = Rig::try_open(device(), Arc::clone(&clock), options) {
                drop(rig);
            }
            if !medium.is_crashed() {
                medium.crash();
            }
            medium.restart();
        }
        medium.set_plan(FaultPlan {
            delay: true,
            ..FaultPlan::default()
        });
        let rig = Rig::open(device(), Arc::clone(&clock), options);
        assert!(!rig.recovered.discarded, "point {point}: {:?}", rig.recovered);
        served += reconcile(&rig, &mut model, &format!("seed {seed}, crash at {point}"));
        rig.check();
        // Life goes on, and a second kill must not bring back what the first start left out.
        for n in 0..30 {
            step(&rig, &mut model, &mut random, &weights(), 10_000 + n, KEYS, false);
        }
        rig.check();
        drop(rig);
        medium.crash();
        medium.restart();
        let rig = Rig::open(device(), Arc::clone(&clock), options);
        model.before.clear();
        reconcile(
            &rig,
            &mut model,
            &format!("seed {seed}, second start after a crash at {point}"),
        );
        for n in 0..KEYS {
            check_get(&rig, &mut model, n, options.hash_limit == HashLimit::default());
        }
        if !crashed {
            break;
        }
    }
    println!("seed {seed}: {crashes} crash points, {served} objects served after them");
    assert!(
        crashes > 20 && served > crashes,
        "{crashes} crashes, {served} served: the test proves nothing"
    );
}

#[test]
fn a_crash_at_every_write_brings_back_only_last_values() {
    crash_everywhere(1, 2 << 20, FlashWrite::Insertion, 2 << 20, 300);
}

#[test]
fn a_crash_at_every_write_without_a_dram_tier() {
    crash_everywhere(2, 0, FlashWrite::Insertion, 2 << 20, 300);
}

#[test]
fn a_crash_at_every_write_when_flash_is_written_on_eviction() {
    crash_everywhere(3, 640 << 10, FlashWrite::Eviction, 2 << 20, 800);
}

#[test]
fn a_small_log_makes_checkpoints_and_they_survive_crashes_too() {
    // 1 MiB of flash has a log of 512 records, so that checkpoints happen every 128.
    crash_everywhere(4, 1 << 20, FlashWrite::Insertion, 1 << 20, 500);
}

#[test]
fn keys_that_share_a_mapping_bring_back_no_older_value_of_each_other() {
    for seed in 5..9 {
        let options = CacheOptions {
            hash_limit: HashLimit(5),
            ..options(640 << 10)
        };
        crash_everywhere_with(seed, options, 2 << 20, 300);
    }
}
