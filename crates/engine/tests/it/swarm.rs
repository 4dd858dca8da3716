//! The whole engine under all faults of the simulated device together: which of them there are, how often, and which operations, is drawn
//! anew for each life of the cache, none included. Starts happen on a failing device, too. A wrong value never comes of it.
//!
//! A test that fails prints its seed, which is all that it depends on: `PUMICE_SEED=n cargo test -p pumice --test it swarm::` repeats it.

use crate::common::dying::Run;
use crate::common::{KINDS, Random, Rig, Weights, check_get, of_kind};
use pumice::{AdmissionOptions, CacheOptions, FlashWrite, HashLimit, Rule};
use pumice_testkit::any_faults;
use pumice_testkit::{CrashPoint, FaultCounts, FaultPlan, FaultyDevice};

const KEYS: u64 = 200;
const LIVES: u64 = 5;
const STEPS: u64 = 250;

/// What goes wrong in one life. Death is for the last one: a device that died and comes back does not know what was changed meanwhile.
fn plan(random: &mut Random, is_last: bool) -> FaultPlan {
    let plan = any_faults(random);
    FaultPlan {
        crash: plan.crash.filter(|_| !is_last),
        dies_at: (is_last && random.below(3) == 0).then(|| 1 + random.below(400)),
        hangs_at: (is_last && random.below(3) == 0).then(|| 1 + random.below(400)),
        ..plan
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

fn look(run: &mut Run, rig: &Rig<FaultyDevice>, what: &str) {
    let options = run.options;
    run.reconcile_with(rig, KEYS, what, |model, n| {
        // Of keys that share a mapping one hides the other, and does not for ever.
        if options.hash_limit == HashLimit::default() {
            model.lost(n, options.index);
        }
    });
}

/// Some lives under faults. Returns hits and what was injected.
fn survive(seed: u64) -> (u64, FaultCounts) {
    let mut random = Random(seed);
    let mut run = Run::on(4 << 20, seed, options(&mut random));
    run.random = random;
    for life in 0..LIVES {
        let is_last = life + 1 == LIVES;
        let plan = plan(&mut run.random, is_last);
        let mut rig = None;
        if run.random.below(2) == 0 {
            // A start may fail on a failing device, or crash. Then it is tried again, on one that works.
            let crash =
                (run.random.below(2) == 0).then(|| CrashPoint::WriteOrAppend(1 + run.random.below(12)));
            run.medium.set_plan(FaultPlan {
                crash,
                dies_at: None,
                hangs_at: None,
                ..plan.clone()
            });
            rig = run.try_open().ok();
            if rig.is_none() || run.medium.is_crashed() {
                rig = None;
                run.medium.crash();
                run.medium.restart();
            }
        }
        run.medium.set_plan(FaultPlan {
            delay: plan.delay,
            ..FaultPlan::default()
        });
        let rig = rig.unwrap_or_else(|| run.open());
        look(&mut run, &rig, &format!("seed {seed}, life {life}"));
        rig.check();
        run.medium.set_plan(plan);
        run.weights = Weights::random(&mut run.random);
        run.live(&rig, life * 1_000..life * 1_000 + STEPS, KEYS);
        if !run.medium.is_crashed() {
            run.model.before.clear();
            for n in 0..KEYS {
                check_get(&rig, &mut run.model, n, false);
            }
            rig.check();
        }
        drop(rig);
        run.medium.crash();
        run.medium.restart();
    }
    (run.model.hits, run.medium.counts())
}

fn survive_all(seeds: impl Iterator<Item = u64>) {
    let (mut hits, mut counts) = (0, Vec::new());
    for seed in seeds {
        println!("PUMICE_SEED={seed}");
        let (seen, injected) = survive(seed);
        hits += seen;
        counts.push(injected);
    }
    type Count = fn(&FaultCounts) -> u64;
    let kinds: [(&str, Count); 10] = [
        ("lost writes", |counts| counts.lost_writes),
        ("failed writes", |counts| counts.write_errors),
        ("failed appends", |counts| counts.append_errors),
        ("misdirected writes", |counts| counts.misdirected_writes),
        ("writes without space", |counts| counts.no_space_errors),
        ("rotten bits", |counts| counts.rotten_bits),
        ("failed reads", |counts| counts.read_errors),
        ("late operations", |counts| counts.slow),
        ("operations after death", |counts| counts.dead_operations),
        ("torn writes", |counts| counts.torn_writes),
    ];
    let all = kinds.map(|(name, count)| (name, counts.iter().map(count).sum::<u64>()));
    println!("{hits} hits, {all:?}");
    assert!(
        hits > 1_000 && all.iter().all(|(_, count)| *count > 5),
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
