//! Runs: lives of a store that end with a crash.

use crate::Store;
use crate::model::{Model, Seen};
use pumice_device::{CrashPoint, FaultPlan, FaultyDevice, FaultyMedium};
use pumice_world::Random;
use std::sync::Arc;

/// Crashes of one start: each does what is left, so that the number of points goes down to none.
const STARTS_MAX: u64 = 400;

/// A workload.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Draws everything.
    pub seed: u64,
    /// Bytes of the device.
    pub capacity: u64,
    /// Keys are below this.
    pub keys: u64,
    /// Steps of a life.
    pub steps: u64,
    /// Every how many points; 1 = each.
    pub stride: u64,
}

/// What a run has seen, for a test to see that it proves something.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Crashes.
    pub crashes: u64,
    /// What comparisons saw after them.
    pub seen: Seen,
    /// Starts that forgot everything.
    pub forgotten: u64,
    /// Faults that were injected, crashes apart.
    pub faults: u64,
}

impl Totals {
    fn add(&mut self, seen: Seen) {
        self.seen.hits += seen.hits;
        self.seen.owed += seen.owed;
    }
}

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

fn open<S: Store>(medium: &Arc<FaultyMedium>, what: &str) -> S {
    S::open(FaultyDevice::new(Arc::clone(medium))).unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// Steps until the device has crashed or they are done. What is on the device afterwards, and stays, is owed.
fn live<S: Store>(
    store: &mut S,
    medium: &FaultyMedium,
    model: &mut Model,
    random: &mut Random,
    load: &Load,
    what: &str,
) {
    for _ in 0..load.steps {
        // Most changes go to a few keys, so that blocks die at different rates.
        let key = match random.below(4) {
            0 => random.below(load.keys),
            _ => random.below(load.keys.div_ceil(5)),
        };
        if random.below(5) == 0 {
            store.delete(key);
            model.delete(key);
        } else {
            let value = random.next_u64();
            let is_there = store.set(key, value);
            model.set(key, value, is_there);
        }
        match random.below(6) {
            0 => store.settle(),
            1..4 => store.turn(),
            _ => {}
        }
        model.forget_given_up(store);
        if medium.is_crashed() {
            return;
        }
        model.check_get(store, random.below(load.keys), what);
        model.forget_given_up(store);
        if medium.is_crashed() {
            return;
        }
        model.look(store);
    }
}

/// A crash at each write and each append of a workload, one after the other. What comes back is the last value, or nothing; and what was
/// on the device comes back. After each the store lives on, and crashes once more: what the first start left out must not come back.
///
/// # Panics
/// Where that is not so.
pub fn crash_at_every_write<S: Store>(load: Load) -> Totals {
    let mut totals = Totals::default();
    for point in (1..).step_by(usize::try_from(load.stride).expect("small")) {
        let what = format!("seed {}, crash at {point}", load.seed);
        let medium = Arc::new(FaultyMedium::new(load.capacity, load.seed, calm()));
        let (mut model, mut random) = (Model::default(), Random(load.seed));
        let mut store: S = open(&medium, &what);
        medium.set_plan(crash_at(point));
        live(&mut store, &medium, &mut model, &mut random, &load, &what);
        let is_reached = medium.is_crashed();
        if !is_reached {
            medium.crash();
        }
        model.forget_given_up(&mut store);
        drop(store);
        medium.restart();
        medium.set_plan(calm());
        let mut store: S = open(&medium, &what);
        assert!(!store.has_forgotten(), "{what}: it starts empty");
        totals.add(model.compare(&mut store, load.keys, false, &what));
        store.check();
        let again = Load { steps: 60, ..load };
        live(&mut store, &medium, &mut model, &mut random, &again, &what);
        medium.crash();
        model.forget_given_up(&mut store);
        drop(store);
        medium.restart();
        let mut store: S = open(&medium, &what);
        totals.add(model.compare(&mut store, load.keys, false, &format!("{what}, and once more")));
        totals.crashes += 2;
        if !is_reached {
            break;
        }
    }
    totals
}

/// Lives that end with a crash, each followed by crashes within the start: at each of its writes and appends, until it gets through.
///
/// # Panics
/// Where a value is wrong or one that must be there is not, where a start forgets everything, or never gets through.
pub fn crash_within_starts<S: Store>(load: Load, lives: u64) -> Totals {
    let mut totals = Totals::default();
    let medium = Arc::new(FaultyMedium::new(load.capacity, load.seed, calm()));
    let (mut model, mut random) = (Model::default(), Random(load.seed));
    for life in 0..lives {
        let what = format!("seed {}, life {life}", load.seed);
        let mut is_through = life == 0;
        for point in 1.. {
            if is_through {
                break;
            }
            assert!(point < STARTS_MAX, "{what}: a start that never ends");
            medium.set_plan(crash_at(point));
            let opened = S::open(FaultyDevice::new(Arc::clone(&medium)));
            is_through = !medium.is_crashed();
            drop(opened);
            medium.crash();
            medium.restart();
            totals.crashes += u64::from(!is_through);
        }
        medium.set_plan(calm());
        let mut store: S = open(&medium, &what);
        assert!(!store.has_forgotten(), "{what}: it starts empty");
        totals.add(model.compare(&mut store, load.keys, false, &what));
        store.check();
        medium.set_plan(crash_at(40 + random.below(250)));
        live(&mut store, &medium, &mut model, &mut random, &load, &what);
        if !medium.is_crashed() {
            medium.crash();
        }
        model.forget_given_up(&mut store);
        drop(store);
        medium.restart();
        totals.crashes += 1;
    }
    totals
}

/// A probability: often none, else anything from seldom to often.
fn chance(random: &mut Random, most: f64) -> f64 {
    match random.below(5) {
        0 => most,
        1 => most / 4.0,
        2 => most / 20.0,
        _ => 0.0,
    }
}

/// Some lives under all faults together, each with its own: nothing need be there, and nothing wrong is. Starts happen on a failing device,
/// too.
///
/// # Panics
/// Where a value is wrong.
pub fn swarm<S: Store>(load: Load, lives: u64) -> Totals {
    let mut totals = Totals::default();
    let medium = Arc::new(FaultyMedium::new(load.capacity, load.seed, FaultPlan::default()));
    let (mut model, mut random) = (Model::default(), Random(load.seed));
    for life in 0..lives {
        let what = format!("seed {}, life {life}", load.seed);
        let crash = (random.below(2) == 0).then(|| CrashPoint::WriteOrAppend(1 + random.below(300)));
        let plan = FaultPlan {
            crash,
            lost_write: chance(&mut random, 0.2),
            write_error: chance(&mut random, 0.2),
            append_error: chance(&mut random, 0.02),
            misdirected_write: chance(&mut random, 0.2),
            no_space: chance(&mut random, 0.1),
            bit_rot: chance(&mut random, 0.2),
            log_bit_rot: chance(&mut random, 0.05),
            read_error: chance(&mut random, 0.2),
            delay: random.below(8) != 0,
            slow: chance(&mut random, 0.3),
            ..FaultPlan::default()
        };
        medium.set_plan(plan);
        let opened = S::open(FaultyDevice::new(Arc::clone(&medium)));
        if let Ok(mut store) = opened {
            totals.forgotten += u64::from(store.has_forgotten());
            model.owe_nothing();
            totals.add(model.compare(&mut store, load.keys, true, &what));
            live(&mut store, &medium, &mut model, &mut random, &load, &what);
        }
        medium.crash();
        medium.restart();
        totals.crashes += 1;
    }
    let counts = medium.counts();
    totals.faults = counts.lost_writes
        + counts.rotten_bits
        + counts.read_errors
        + counts.write_errors
        + counts.append_errors
        + counts.misdirected_writes
        + counts.no_space_errors;
    totals
}
