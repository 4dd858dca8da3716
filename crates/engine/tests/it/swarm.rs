//! The whole engine under all faults of the simulated device together: which of them there are, how often, and which operations, is drawn
//! anew for each life of the cache, none included. Starts happen on a failing device, too. A wrong value never comes of it.
//!
//! A test that fails prints its seed, which is all that it depends on: `PUMICE_SEED=n cargo test -p pumice --test swarm` repeats it.

use crate::common;

use crate::common::after_crash::live;
use crate::common::{KINDS, Model, Random, Rig, Weights, check_get, of_kind};
use pumice::{AdmissionOptions, CacheOptions, FlashWrite, HashLimit, Rule};
use pumice_device::{CrashPoint, FaultCounts, FaultPlan, FaultyDevice, FaultyMedium};
use pumice_world::ManualClock;
use std::sync::Arc;

const KEYS: u64 = 200;
const LIVES: u64 = 5;
const STEPS: u64 = 250;

/// A probability: often none, else anything from seldom to often.
fn chance(random: &mut Random, most: f64) -> f64 {
    match random.below(5) {
        0 => most,
        1 => most / 4.0,
        2 => most / 20.0,
        _ => 0.0,
    }
}

/// What goes wrong in one life. Death is for the last one: a device that died and comes back does not know what was changed meanwhile.
fn plan(random: &mut Random, is_last: bool) -> FaultPlan {
    let crash = (random.below(2) == 0).then(|| CrashPoint::WriteOrAppend(1 + random.below(300)));
    FaultPlan {
        crash: crash.filter(|_| !is_last),
        lost_write: chance(random, 0.2),
        write_error: chance(random, 0.2),
        append_error: chance(random, 0.02),
        misdirected_write: chance(random, 0.2),
        no_space: chance(random, 0.1),
        bit_rot: chance(random, 0.2),
        log_bit_rot: chance(random, 0.05),
        read_error: chance(random, 0.2),
        delay: random.below(8) != 0,
        slow: chance(random, 0.3),
        dies_at: (is_last && random.below(3) == 0).then(|| 1 + random.below(400)),
        hangs_at: (is_last && random.below(3) == 0).then(|| 1 + random.below(400)),
        ..FaultPlan::default()
    }
}

fn options(random: &mut Random) -> CacheOptions {
    let mut options = CacheOptions {
        dram_bytes: [0, 640 << 10, 2 << 20][random.below(3) as usize],
        ..of_kind(random.below(KINDS))
    };
    if random.below(4) == 0 {
        options.flash_write = FlashWrite::Eviction;
    }
    // What is refused meets crashes, starts and large objects.
    if random.below(2) == 0 {
        options.admission = AdmissionOptions {
            rule: Rule::Random(0.5),
            // While flash fills chance lets everything in.
            object_bytes_max: 10 << 10,
            ..AdmissionOptions::default()
        };
    }
    // Keys that share mappings.
    if random.below(6) == 0 {
        options.hash_limit = HashLimit(5);
    }
    options
}

fn look(rig: &Rig<FaultyDevice>, model: &mut Model, options: &CacheOptions, what: &str) {
    common::after_crash::reconcile(rig, model, KEYS, what, |model, n| {
        // Of keys that share a mapping one hides the other, and does not for ever.
        if options.hash_limit == HashLimit::default() {
            model.lost(n, options.index);
        }
    });
    model.before.clear();
}

/// Some lives under faults. Returns hits and what was injected.
fn survive(seed: u64) -> (u64, FaultCounts) {
    let mut random = Random(seed);
    let options = options(&mut random);
    let medium = Arc::new(FaultyMedium::new(4 << 20, seed, FaultPlan::default()));
    let device = || FaultyDevice::new(Arc::clone(&medium));
    let clock = Arc::new(ManualClock::new(1_000));
    let mut model = Model::default();
    for life in 0..LIVES {
        let is_last = life + 1 == LIVES;
        let plan = plan(&mut random, is_last);
        let mut rig = None;
        if random.below(2) == 0 {
            // A start may fail on a failing device, or crash. Then it is tried again, on one that works.
            let crash = (random.below(2) == 0).then(|| CrashPoint::WriteOrAppend(1 + random.below(12)));
            medium.set_plan(FaultPlan {
                crash,
                dies_at: None,
                hangs_at: None,
                ..plan.clone()
            });
            rig = Rig::try_open(device(), Arc::clone(&clock), options).ok();
            if rig.is_none() || medium.is_crashed() {
                rig = None;
                medium.crash();
                medium.restart();
            }
        }
        let calm = FaultPlan {
            delay: plan.delay,
            ..FaultPlan::default()
        };
        medium.set_plan(calm);
        let rig = rig.unwrap_or_else(|| Rig::open(device(), Arc::clone(&clock), options));
        look(&rig, &mut model, &options, &format!("seed {seed}, life {life}"));
        rig.check();
        medium.set_plan(plan.clone());
        let weights = Weights::random(&mut random);
        live(
            &rig,
            &mut model,
            &mut random,
            &weights,
            life * 1_000..life * 1_000 + STEPS,
            KEYS,
            || medium.is_crashed(),
        );
        if !medium.is_crashed() {
            model.before.clear();
            for n in 0..KEYS {
                check_get(&rig, &mut model, n, false);
            }
            rig.check();
        }
        drop(rig);
        medium.crash();
        medium.restart();
    }
    (model.hits, medium.counts())
}

fn survive_all(seeds: impl Iterator<Item = u64>) {
    let (mut hits, mut all) = (0, FaultCounts::default());
    for seed in seeds {
        println!("PUMICE_SEED={seed}");
        let (seen, counts) = survive(seed);
        hits += seen;
        all.lost_writes += counts.lost_writes;
        all.write_errors += counts.write_errors;
        all.append_errors += counts.append_errors;
        all.misdirected_writes += counts.misdirected_writes;
        all.no_space_errors += counts.no_space_errors;
        all.rotten_bits += counts.rotten_bits;
        all.read_errors += counts.read_errors;
        all.slow += counts.slow;
        all.dead_operations += counts.dead_operations;
        all.torn_writes += counts.torn_writes;
        all.torn_appends += counts.torn_appends;
    }
    println!("{hits} hits, {all:?}");
    let least = [
        all.lost_writes,
        all.write_errors,
        all.append_errors,
        all.misdirected_writes,
        all.no_space_errors,
        all.rotten_bits,
        all.read_errors,
        all.slow,
        all.dead_operations,
        all.torn_writes,
    ];
    assert!(
        hits > 1_000 && least.iter().all(|count| *count > 5),
        "{hits} hits, {all:?}"
    );
}

#[test]
fn any_faults_together_bring_nothing_wrong() {
    match std::env::var("PUMICE_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
    {
        Some(seed) => println!("{:?}", survive(seed)),
        None => survive_all(0..160),
    }
}

#[test]
#[ignore = "seeds that nobody has chosen: minutes"]
fn any_faults_together_of_any_seed_bring_nothing_wrong() {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let first = u64::from(since.unwrap_or_default().subsec_nanos()) << 10;
    survive_all(first..first + 1_000);
}
