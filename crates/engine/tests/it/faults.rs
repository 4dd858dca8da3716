//! The engine on a device that fails: reads that rot or fail, writes that get lost, go astray or fail, logs that cannot be appended,
//! operations that are late, no space, death, power cuts. What is damaged is a miss and is counted; a wrong value never.
//! A test that fails prints the seed that it failed with.

use crate::common::after_crash::live;
use crate::common::{
    Entry, KINDS, Model, Random, Rig, Weights, check_get, drops_all, given_meta, key, of_kind, step,
};
use pumice::{CacheOptions, Durability};
use pumice_device::{CrashPoint, FaultPlan, FaultyDevice, FaultyMedium};
use pumice_world::ManualClock;
use std::collections::HashMap;
use std::sync::Arc;

const KEYS: u64 = 300;

/// Random operations under `plan`, with kills between them. Returns hits and what was injected.
fn survive(seed: u64, plan: FaultPlan) -> (u64, pumice_device::FaultCounts) {
    println!("seed {seed}, {plan:?}");
    let mut random = Random(seed);
    let medium = Arc::new(FaultyMedium::new(4 << 20, seed, FaultPlan::default()));
    let clock = Arc::new(ManualClock::new(1_000));
    let mut model = Model::default();
    let (mut reclaimed, mut moved) = (0, 0);
    for life in 0..6 {
        // Starts happen on a device that works; what it holds may be damaged all the same.
        medium.set_plan(FaultPlan {
            delay: true,
            ..FaultPlan::default()
        });
        let rig = Rig::open(
            FaultyDevice::new(Arc::clone(&medium)),
            Arc::clone(&clock),
            of_kind(seed),
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
                None => model.lost(n, of_kind(seed).index),
            }
        }
        rig.check();
        medium.set_plan(FaultPlan {
            delay: true,
            ..plan.clone()
        });
        // Every other life reclaims: large objects come and go, and nothing is flushed that could be moved.
        let weights = match life % 2 {
            0 => Weights::random(&mut random),
            _ => Weights {
                get: 20,
                touch: random.below(3),
                tick: random.below(2),
                ..Weights::churn()
            },
        };
        live(
            &rig,
            &mut model,
            &mut random,
            &weights,
            life * 2_000..life * 2_000 + if life % 2 == 0 { 400 } else { 1_500 },
            KEYS,
            || false,
        );
        for n in 0..KEYS {
            check_get(&rig, &mut model, n, false);
        }
        rig.check();
        let counts = rig.cache.stats().flash;
        (reclaimed, moved) = (reclaimed + counts.reclaimed_blocks, moved + counts.survivors);
        drop(rig);
        medium.crash();
        medium.restart();
    }
    let gives_all_up = drops_all(&of_kind(seed).layout);
    assert!(
        reclaimed > 100 && (moved > 5 || gives_all_up),
        "seed {seed}: {reclaimed} blocks reclaimed, {moved} objects moved: it proves nothing"
    );
    (model.hits, medium.counts())
}

/// Some seeds write little; of two seeds of a kind one writes enough, and all together much.
fn check_injected(injected: &[u64; KINDS as usize]) {
    let all: u64 = injected.iter().sum();
    assert!(
        injected.iter().all(|count| *count > 1) && all > 5 * KINDS,
        "{injected:?}"
    );
}

#[test]
fn rotten_reads_are_misses() {
    for seed in 0..KINDS {
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
    for seed in 0..KINDS {
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
    let mut injected = [0; KINDS as usize];
    for seed in 0..2 * KINDS {
        let (hits, counts) = survive(
            seed,
            FaultPlan {
                lost_write: 0.2,
                ..FaultPlan::default()
            },
        );
        assert!(hits > 50, "{hits} hits, {counts:?}");
        injected[(seed % KINDS) as usize] += counts.lost_writes;
    }
    check_injected(&injected);
}

#[test]
fn failing_writes_lose_objects_and_bring_none_back() {
    let mut injected = [0; KINDS as usize];
    for seed in 0..2 * KINDS {
        let (hits, counts) = survive(
            seed,
            FaultPlan {
                write_error: 0.2,
                ..FaultPlan::default()
            },
        );
        assert!(hits > 50, "{hits} hits, {counts:?}");
        injected[(seed % KINDS) as usize] += counts.write_errors;
    }
    check_injected(&injected);
}

#[test]
fn a_log_that_cannot_be_appended_empties_the_cache_rather_than_lie() {
    for seed in 0..2 * KINDS {
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
    for seed in 0..2 * KINDS {
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

#[test]
fn misdirected_writes_lose_objects_and_bring_none_back() {
    let mut injected = [0; KINDS as usize];
    for seed in 0..2 * KINDS {
        let (hits, counts) = survive(
            seed,
            FaultPlan {
                misdirected_write: 0.2,
                ..FaultPlan::default()
            },
        );
        assert!(hits > 50, "{hits} hits, {counts:?}");
        injected[(seed % KINDS) as usize] += counts.misdirected_writes;
    }
    check_injected(&injected);
}

#[test]
fn a_device_without_space_loses_objects_and_brings_none_back() {
    let mut injected = [0; KINDS as usize];
    for seed in 0..2 * KINDS {
        let (hits, counts) = survive(
            seed,
            FaultPlan {
                no_space: 0.2,
                ..FaultPlan::default()
            },
        );
        assert!(hits > 50, "{hits} hits, {counts:?}");
        injected[(seed % KINDS) as usize] += counts.no_space_errors;
    }
    check_injected(&injected);
}

#[test]
fn operations_that_are_late_change_nothing_but_time() {
    for seed in 0..2 * KINDS {
        let (hits, counts) = survive(
            seed,
            FaultPlan {
                slow: 0.3,
                ..FaultPlan::default()
            },
        );
        assert!(hits > 50 && counts.slow > 50, "{hits} hits, {counts:?}");
    }
}

/// From its death on a device answers nothing but errors; the cache goes on with what DRAM has, and stops without waiting for ever.
#[test]
fn a_device_that_dies_leaves_a_cache_that_answers() {
    for seed in 0..3 * KINDS {
        println!("seed {seed}");
        let mut random = Random(seed);
        let medium = Arc::new(FaultyMedium::new(4 << 20, seed, FaultPlan::default()));
        let clock = Arc::new(ManualClock::new(1_000));
        let mut model = Model::default();
        let rig = Rig::open(FaultyDevice::new(Arc::clone(&medium)), clock, of_kind(seed));
        medium.set_plan(FaultPlan {
            delay: true,
            dies_at: Some(1 + random.below(150)),
            ..FaultPlan::default()
        });
        let weights = Weights::random(&mut random);
        for n in 0..1_200 {
            step(&rig, &mut model, &mut random, &weights, n, KEYS, false);
        }
        // Some of these loads ask it for little.
        let more = (KEYS..KEYS + 2_000).take_while(|_| medium.counts().dead_operations == 0);
        more.for_each(|n| {
            rig.set(&key(n), &[1; 2_000]);
        });
        for n in 0..KEYS {
            check_get(&rig, &mut model, n, false);
        }
        rig.check();
        let counts = medium.counts();
        assert!(counts.dead_operations > 0, "seed {seed}: {counts:?}");
        let before = model.hits;
        for n in 0..50 {
            rig.set(&key(n), b"short");
            model.live.remove(&n);
            let got = rig.get(&key(n));
            assert!(
                got.is_none() || got.as_deref() == Some(b"short"),
                "seed {seed}, key {n}: {got:?}"
            );
            model.hits += u64::from(got.is_some());
        }
        assert!(
            model.hits > before + 40,
            "seed {seed}: DRAM answers {}",
            model.hits - before
        );
        rig.run(rig.cache.close(&rig.cx))
            .expect_err("its superblocks cannot say that it is out");
    }
}

/// What keys held since what was last made durable.
type Since = HashMap<u64, Vec<Option<Entry>>>;

/// After a power cut a key holds what it held last, or anything since what was made durable, or nothing. The model takes that over, and
/// the number of objects that are there is returned.
fn reconcile(rig: &Rig<FaultyDevice>, model: &mut Model, since: &mut Since, options: &CacheOptions) -> u64 {
    let (now, mut served) = (rig.clock_secs(), 0);
    for n in 0..KEYS {
        let Some(object) = rig.run(rig.cache.get(&rig.cx, &key(n))) else {
            model.lost(n, options.index);
            continue;
        };
        let got = Entry {
            value: object.to_vec(),
            meta: given_meta(&object),
        };
        served += 1;
        let before = since.remove(&n).unwrap_or_default();
        let legal: Vec<Entry> = (model.live.get(&n).cloned().into_iter())
            .chain(before.into_iter().flatten())
            .filter(|entry| entry.meta.expiry == 0 || entry.meta.expiry > now)
            .collect();
        let Some(entry) = legal.iter().find(|entry| **entry == got) else {
            let head = |value: &[u8]| String::from_utf8_lossy(&value[..value.len().min(30)]).into_owned();
            let legal: Vec<_> = legal.iter().map(|entry| head(&entry.value)).collect();
            panic!("key {n} is {}, and may be {legal:?} or missing", head(&got.value));
        };
        model.live.insert(n, entry.clone());
    }
    since.clear();
    served
}

/// With durability `power`, what was answered before a power cut holds after it: no older value, and nothing that was deleted.
#[test]
fn power_cuts_bring_nothing_back_that_was_replaced_durably() {
    let (mut served, mut lost) = (0, 0);
    for seed in 0..40 {
        println!("seed {seed}");
        let options = CacheOptions {
            durability: Durability::Power,
            ..of_kind(seed)
        };
        let mut random = Random(seed);
        let medium = Arc::new(FaultyMedium::new(4 << 20, seed, FaultPlan::default()));
        let clock = Arc::new(ManualClock::new(1_000));
        let (mut model, mut since) = (Model::default(), Since::new());
        let calm = FaultPlan {
            delay: true,
            volatile: true,
            ..FaultPlan::default()
        };
        for life in 0..8 {
            medium.set_plan(calm.clone());
            let device = FaultyDevice::new(Arc::clone(&medium));
            let rig = Rig::open(device, Arc::clone(&clock), options);
            served += reconcile(&rig, &mut model, &mut since, &options);
            rig.check();
            // Some cuts come while something is written, some between.
            let crash = (life % 4 != 3).then(|| CrashPoint::WriteOrAppend(1 + random.below(400)));
            medium.set_plan(FaultPlan {
                crash,
                ..calm.clone()
            });
            let weights = Weights::random(&mut random);
            for n in 0..400 {
                let number = life * 1_000 + n;
                step(&rig, &mut model, &mut random, &weights, number, KEYS, false);
                for (n, entry) in model.before.drain() {
                    since.entry(n).or_default().push(entry);
                }
                // Replies are given together, after this.
                let is_due = n % 10 == 9;
                if is_due && rig.run(rig.cache.commit(&rig.cx)).is_ok() {
                    since.clear();
                }
                if medium.is_crashed() {
                    break;
                }
            }
            drop(rig);
            medium.cut_power();
            medium.restart();
        }
        lost += medium.counts().lost_in_power_cuts;
    }
    println!("{served} objects served after power cuts that undid {lost} writes and appends");
    assert!(served > 2_000 && lost > 100, "{served}, {lost}");
}

/// What a start cannot read no later one has: so it reads twice.
#[test]
fn a_read_that_fails_once_costs_a_start_no_block() {
    let (mut errors, mut unread) = (0, 0);
    for seed in 0..20 {
        let medium = Arc::new(FaultyMedium::new(4 << 20, seed, FaultPlan::default()));
        let clock = Arc::new(ManualClock::new(1_000));
        let open = || Rig::try_open(FaultyDevice::new(Arc::clone(&medium)), clock.clone(), of_kind(0));
        let rig = open().unwrap();
        for n in 0..600 {
            rig.set(&key(n), &[7; 2_000]);
            rig.settle();
        }
        drop(rig);
        medium.crash();
        medium.restart();
        medium.set_plan(FaultPlan {
            read_error: 0.2,
            ..FaultPlan::default()
        });
        let before = medium.counts().read_errors;
        unread += open().map_or(0, |rig| rig.recovered.tally.unread_blocks);
        errors += medium.counts().read_errors - before;
    }
    assert!(
        errors > 100 && unread * 3 < errors,
        "{unread} blocks lost to {errors} errors"
    );
}
