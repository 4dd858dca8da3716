//! The engine on a device that fails: reads that rot or fail, writes that get lost, go astray or fail, logs that cannot be appended,
//! operations that are late, no space, death, power cuts. What is damaged is a miss and is counted; a wrong value never.
//! A test that fails prints the seed that it failed with.

use crate::common::dying::{Run, calm, dying, volatile};
use crate::common::{KINDS, Weights, check_get, drops_all, key, of_kind};
use pumice::{CacheOptions, Durability};
use pumice_testkit::{CrashPoint, FaultCounts, FaultPlan};
use std::collections::HashMap;

const KEYS: u64 = 300;

/// Random operations under `plan`, with kills between them. Returns hits and what was injected.
fn survive(seed: u64, plan: &FaultPlan) -> (u64, FaultCounts) {
    println!("{plan:?}");
    let mut run = Run::on(4 << 20, seed, of_kind(seed));
    let options = run.options;
    let (mut reclaimed, mut moved) = (0, 0);
    for life in 0..6 {
        // Starts happen on a device that works; what it holds may be damaged all the same.
        run.medium.set_plan(calm());
        let rig = run.open();
        // What the crash took is gone for good: from here on a key that was missing must stay so.
        run.model.before.clear();
        let what = format!("seed {seed}, life {life}");
        run.reconcile_with(&rig, KEYS, &what, |model, n| model.lost(n, options.index));
        rig.check();
        run.medium.set_plan(plan.clone());
        // Every other life reclaims: large objects come and go, and nothing is flushed that could be moved.
        let steps = if life % 2 == 0 { 400 } else { 1_500 };
        run.weights = match life % 2 {
            0 => Weights::random(&mut run.random),
            _ => Weights {
                get: 20,
                touch: run.random.below(3),
                tick: run.random.below(2),
                ..Weights::churn()
            },
        };
        run.live(&rig, life * 2_000..life * 2_000 + steps, KEYS);
        for n in 0..KEYS {
            check_get(&rig, &mut run.model, n, false);
        }
        rig.check();
        let counts = rig.cache.stats().flash;
        (reclaimed, moved) = (reclaimed + counts.reclaimed_blocks, moved + counts.survivors);
        drop(rig);
        run.medium.crash();
        run.medium.restart();
    }
    let gives_all_up = drops_all(&options.layout);
    assert!(
        reclaimed > 100 && (moved > 0 || gives_all_up),
        "seed {seed}: {reclaimed} blocks reclaimed, {moved} objects moved: it proves nothing"
    );
    (run.model.hits, run.medium.counts())
}

/// The same with so many seeds for each kind, of which each has hits and at least `least` of the faults that `count` counts. Of the seeds of
/// a kind one writes enough, and all together much.
fn survive_all(seeds: u64, plan: FaultPlan, count: fn(&FaultCounts) -> u64, least: u64) {
    let mut injected = [0; KINDS as usize];
    for seed in 0..seeds * KINDS {
        let (hits, counts) = survive(seed, &plan);
        assert!(hits > 50 && count(&counts) >= least, "{hits} hits, {counts:?}");
        injected[(seed % KINDS) as usize] += count(&counts);
    }
    let all: u64 = injected.iter().sum();
    assert!(
        least > 0 || injected.iter().all(|count| *count > 1) && all > 5 * KINDS,
        "{injected:?}"
    );
}

#[test]
fn rotten_reads_are_misses() {
    let plan = FaultPlan {
        bit_rot: 0.2,
        ..calm()
    };
    survive_all(1, plan, |counts| counts.rotten_bits, 6);
}

#[test]
fn failing_reads_are_misses() {
    let plan = FaultPlan {
        read_error: 0.2,
        ..calm()
    };
    survive_all(1, plan, |counts| counts.read_errors, 6);
}

#[test]
fn lost_writes_lose_objects_and_bring_none_back() {
    let plan = FaultPlan {
        lost_write: 0.2,
        ..calm()
    };
    survive_all(2, plan, |counts| counts.lost_writes, 0);
}

#[test]
fn failing_writes_lose_objects_and_bring_none_back() {
    let plan = FaultPlan {
        write_error: 0.2,
        ..calm()
    };
    survive_all(2, plan, |counts| counts.write_errors, 0);
}

#[test]
fn a_log_that_cannot_be_appended_empties_the_cache_rather_than_lie() {
    let plan = FaultPlan {
        append_error: 0.05,
        ..calm()
    };
    survive_all(2, plan, |counts| counts.append_errors, 1);
}

#[test]
fn misdirected_writes_lose_objects_and_bring_none_back() {
    let plan = FaultPlan {
        misdirected_write: 0.2,
        ..calm()
    };
    survive_all(2, plan, |counts| counts.misdirected_writes, 0);
}

#[test]
fn a_device_without_space_loses_objects_and_brings_none_back() {
    let plan = FaultPlan {
        no_space: 0.2,
        ..calm()
    };
    survive_all(2, plan, |counts| counts.no_space_errors, 0);
}

#[test]
fn operations_that_are_late_change_nothing_but_time() {
    let plan = FaultPlan { slow: 0.3, ..calm() };
    survive_all(2, plan, |counts| counts.slow, 51);
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
            ..calm()
        };
        let (hits, _) = survive(seed, &plan);
        assert!(hits > 20, "{hits} hits");
    }
}

/// From its death on a device answers nothing but errors; the cache goes on with what DRAM has, and stops without waiting for ever.
#[test]
fn a_device_that_dies_leaves_a_cache_that_answers() {
    for seed in 0..3 * KINDS {
        let mut run = Run::new(seed, of_kind(seed));
        let rig = run.open();
        run.medium.set_plan(dying(1 + run.random.below(150)));
        run.live(&rig, 0..1_200, KEYS);
        // Some of these loads ask it for little.
        let more = (KEYS..KEYS + 2_000).take_while(|_| run.medium.counts().dead_operations == 0);
        more.for_each(|n| {
            rig.set(&key(n), &[1; 2_000]);
        });
        for n in 0..KEYS {
            check_get(&rig, &mut run.model, n, false);
        }
        rig.check();
        let counts = run.medium.counts();
        assert!(counts.dead_operations > 0, "seed {seed}: {counts:?}");
        let before = run.model.hits;
        for n in 0..50 {
            rig.set(&key(n), b"short");
            run.model.live.remove(&n);
            let got = rig.get(&key(n));
            assert!(
                got.is_none() || got.as_deref() == Some(b"short"),
                "seed {seed}, key {n}: {got:?}"
            );
            run.model.hits += u64::from(got.is_some());
        }
        assert!(
            run.model.hits > before + 40,
            "seed {seed}: DRAM answers {}",
            run.model.hits - before
        );
        rig.run(rig.cache.close(&rig.cx))
            .expect_err("its superblocks cannot say that it is out");
    }
}

/// With durability `power`, what was answered before a power cut holds after it: no older value, and nothing that was deleted.
#[test]
fn power_cuts_bring_nothing_back_that_was_replaced_durably() {
    let (mut served, mut lost) = (0, 0);
    for seed in 0..40 {
        let options = CacheOptions {
            durability: Durability::Power,
            ..of_kind(seed)
        };
        let mut run = Run::on(4 << 20, seed, options);
        // What keys held since what was last made durable.
        let mut since = HashMap::<u64, Vec<_>>::new();
        for life in 0..8 {
            run.medium.set_plan(volatile());
            let rig = run.open();
            run.model.before = std::mem::take(&mut since);
            let what = format!("seed {seed}, life {life}");
            served += run.reconcile_with(&rig, KEYS, &what, |model, n| model.lost(n, options.index));
            rig.check();
            // Some cuts come while something is written, some between.
            let crash = (life % 4 != 3).then(|| CrashPoint::WriteOrAppend(1 + run.random.below(400)));
            run.medium.set_plan(FaultPlan { crash, ..volatile() });
            run.weights = Weights::random(&mut run.random);
            for n in 0..400 {
                let number = life * 1_000 + n;
                run.live(&rig, number..number + 1, KEYS);
                for (n, entries) in run.model.before.drain() {
                    since.entry(n).or_default().extend(entries);
                }
                // Replies are given together, after this.
                let is_due = n % 10 == 9;
                if is_due && rig.run(rig.cache.commit(&rig.cx)).is_ok() {
                    since.clear();
                }
                if run.medium.is_crashed() {
                    break;
                }
            }
            drop(rig);
            run.medium.cut_power();
            run.medium.restart();
        }
        lost += run.medium.counts().lost_in_power_cuts;
    }
    println!("{served} objects served after power cuts that undid {lost} writes and appends");
    assert!(served > 2_000 && lost > 100, "{served}, {lost}");
}

/// What a start cannot read no later one has: so it reads twice.
#[test]
fn a_read_that_fails_once_costs_a_start_no_block() {
    let (mut errors, mut unread) = (0, 0);
    for seed in 0..20 {
        let run = Run::on(4 << 20, seed, of_kind(0));
        run.medium.set_plan(FaultPlan::default());
        let rig = run.open();
        for n in 0..600 {
            rig.set(&key(n), &[7; 2_000]);
            rig.settle();
        }
        drop(rig);
        run.medium.crash();
        run.medium.restart();
        run.medium.set_plan(FaultPlan {
            read_error: 0.2,
            ..FaultPlan::default()
        });
        let before = run.medium.counts().read_errors;
        unread += run.try_open().map_or(0, |rig| rig.recovered.tally.unread_blocks);
        errors += run.medium.counts().read_errors - before;
    }
    assert!(
        errors > 100 && unread * 3 < errors,
        "{unread} blocks lost to {errors} errors"
    );
}
