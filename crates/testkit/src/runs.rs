//! Runs: lives of a store that end with a crash.

use crate::model::{Model, Seen};
use crate::plans::{any_faults, calm, crash_at, volatile};
use crate::{FaultPlan, FaultyDevice, FaultyMedium, Inspection, Store};
use pumice_device::Device;
use pumice_world::{Random, mix64};
use std::sync::Arc;

/// Crashes of one start: each does what is left, so that the number of points goes down to none.
const STARTS_MAX: u64 = 400;
/// Bytes in a row that cannot be read.
const BAD_BYTES: u64 = 64 << 10;

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

impl Load {
    /// A hundred keys on 1 MiB.
    pub fn small(seed: u64) -> Self {
        Self {
            seed,
            capacity: 1 << 20,
            keys: 100,
            steps: 400,
            stride: 1,
        }
    }
}

/// Makes tests of a kind of store whose values are copies: small runs that each kind should have.
#[macro_export]
macro_rules! store_tests {
    ($store:ty) => {
        #[test]
        fn a_crash_at_every_write_leaves_what_was_on_the_device() {
            let load = $crate::Load {
                stride: 3,
                ..$crate::Load::small(1)
            };
            let totals = $crate::crash_at_every_write::<$store>(load);
            println!("{totals:?}");
            assert!(
                totals.crashes > 200 && totals.seen.owed > 1_000,
                "{totals:?}"
            );
        }

        #[test]
        fn crashes_within_starts_lose_nothing_more() {
            let totals = $crate::crash_within_starts::<$store>($crate::Load::small(2), 20);
            println!("{totals:?}");
            assert!(totals.crashes > 100 && totals.seen.owed > 200, "{totals:?}");
        }

        #[test]
        fn an_inspection_names_every_changed_byte_that_counts() {
            let load = $crate::Load {
                stride: 7,
                ..$crate::Load::small(6)
            };
            let totals = $crate::inspect_names_damage::<$store>(load);
            println!("{totals:?}");
            assert!(totals.faults > 1_000);
        }
    };
}

/// What a run has seen, for a test to see that it proves something.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Crashes, power cuts included.
    pub crashes: u64,
    /// Power cuts.
    pub power_cuts: u64,
    /// Writes and appends that they undid, in whole or in part.
    pub lost_in_power_cuts: u64,
    /// What comparisons saw after them.
    pub seen: Seen,
    /// Starts that forgot everything.
    pub forgotten: u64,
    /// Faults that were injected, crashes apart.
    pub faults: u64,
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.crashes += other.crashes;
        self.power_cuts += other.power_cuts;
        self.lost_in_power_cuts += other.lost_in_power_cuts;
        self.add(other.seen);
        self.forgotten += other.forgotten;
        self.faults += other.faults;
    }
}

impl Totals {
    fn add(&mut self, seen: Seen) {
        self.seen.hits += seen.hits;
        self.seen.owed += seen.owed;
    }
}

fn open<S: Store>(medium: &Arc<FaultyMedium>, what: &str) -> S {
    S::open(FaultyDevice::new(Arc::clone(medium))).unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// What the store's readers say of a device that is not failing.
fn inspect<S: Store>(medium: &Arc<FaultyMedium>, what: &str) -> Result<Inspection, String> {
    medium.set_plan(FaultPlan::default());
    inspect_failing::<S>(medium, what)
}

fn inspect_failing<S: Store>(medium: &Arc<FaultyMedium>, what: &str) -> Result<Inspection, String> {
    let before = medium.counts();
    let inspection = S::inspect(FaultyDevice::new(Arc::clone(medium)));
    let after = medium.counts();
    assert_eq!(
        (before.writes, before.appends),
        (after.writes, after.appends),
        "{what}: the inspection writes"
    );
    inspection
}

/// Inspects a device after a crash, which is no damage.
fn inspect_after_crash<S: Store>(medium: &Arc<FaultyMedium>, what: &str) {
    let inspection = inspect::<S>(medium, what).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(
        inspection.problems.is_empty(),
        "{what}: {:#?}",
        inspection.problems
    );
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
    // Each change, or some together.
    let commit = match S::SURVIVES_POWER_CUTS {
        true => [1, 8][random.below(2) as usize],
        false => 0,
    };
    for _ in 0..load.steps {
        // A crash of the process may undo the change that it interrupts; a power cut what was not committed.
        if commit == 0 || random.below(commit) == 0 && store.commit() {
            model.settle();
        }
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
/// on the device comes back. After each the store lives on, and crashes once more: what the first start left out must not come back. An
/// inspection finds nothing wrong.
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
        inspect_after_crash::<S>(&medium, &what);
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
        inspect_after_crash::<S>(&medium, &format!("{what}, and once more"));
        medium.set_plan(calm());
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
            inspect_after_crash::<S>(&medium, &what);
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

/// Lives that end with a power cut: what was committed counts, and what was on the device is there.
///
/// # Panics
/// Where that is not so.
pub fn power_cuts<S: Store>(load: Load, lives: u64) -> Totals {
    const { assert!(S::SURVIVES_POWER_CUTS) };
    let mut totals = Totals::default();
    let medium = Arc::new(FaultyMedium::new(load.capacity, load.seed, volatile()));
    let (mut model, mut random) = (Model::default(), Random(load.seed));
    let mut store: S = open(&medium, "the first start");
    for life in 0..lives {
        let what = format!("seed {}, life {life}", load.seed);
        live(&mut store, &medium, &mut model, &mut random, &load, &what);
        medium.cut_power();
        model.forget_given_up(&mut store);
        drop(store);
        medium.restart();
        // Log records that nobody waited for may leave a hole.
        let _ = inspect::<S>(&medium, &what);
        medium.set_plan(volatile());
        store = open(&medium, &what);
        if store.has_forgotten() {
            totals.forgotten += 1;
            model.owe_nothing();
        }
        totals.add(model.compare(&mut store, load.keys, false, &what));
        store.check();
        totals.power_cuts += 1;
    }
    totals.crashes = totals.power_cuts;
    totals.lost_in_power_cuts = medium.counts().lost_in_power_cuts;
    totals
}

/// A changed bit in each `stride`-th byte of what says what is there, one after the other, on a device that was stopped clean: an
/// inspection finds something wrong, and nothing before. Faults are the bits.
///
/// # Panics
/// Where that is not so.
pub fn inspect_names_damage<S: Store>(load: Load) -> Totals {
    let what = format!("seed {}", load.seed);
    let medium = Arc::new(FaultyMedium::new(load.capacity, load.seed, calm()));
    let (mut model, mut random) = (Model::default(), Random(load.seed));
    let mut store: S = open(&medium, &what);
    live(&mut store, &medium, &mut model, &mut random, &load, &what);
    store.close().unwrap_or_else(|error| panic!("{what}: {error}"));
    let whole = inspect::<S>(&medium, &what).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(whole.problems.is_empty(), "{what}: {:#?}", whole.problems);
    let device = FaultyDevice::new(Arc::clone(&medium));
    let stride = usize::try_from(load.stride).expect("small");
    let mut totals = Totals::default();
    for offset in whole.metadata.into_iter().flatten().step_by(stride) {
        let mut byte = [0];
        device.read_log(offset, &mut byte).expect("a device that works");
        medium.rot_at(offset);
        let damaged = inspect::<S>(&medium, &what);
        let is_named = damaged.is_ok_and(|damaged| !damaged.problems.is_empty());
        assert!(is_named, "{what}: a changed bit of byte {offset} is not named");
        device.append_log(offset, &byte).expect("a device that works");
        totals.faults += 1;
    }
    totals
}

/// Some lives under all faults together, each with its own: nothing need be there, and nothing wrong is. Starts happen on a failing device,
/// too. Half of the lives of a store that survives power cuts end with one. Inspections of what is left come to an end.
///
/// # Panics
/// Where a value is wrong.
pub fn swarm<S: Store>(load: Load, lives: u64) -> Totals {
    let mut totals = Totals::default();
    let medium = Arc::new(FaultyMedium::new(load.capacity, load.seed, FaultPlan::default()));
    let (mut model, mut random) = (Model::default(), Random(load.seed));
    for life in 0..lives {
        let what = format!("seed {}, life {life}", load.seed);
        let plan = FaultPlan {
            volatile: S::SURVIVES_POWER_CUTS,
            ..any_faults(&mut random)
        };
        let _ = inspect::<S>(&medium, &what);
        // Not by the medium's choice, so that what follows is the same with it and without.
        let bad = mix64(load.seed + life) % load.capacity;
        medium.set_plan(FaultPlan {
            bad_ranges: std::iter::once(bad..bad + BAD_BYTES).collect(),
            ..FaultPlan::default()
        });
        let _ = inspect_failing::<S>(&medium, &what);
        medium.set_plan(plan);
        let opened = S::open(FaultyDevice::new(Arc::clone(&medium)));
        if let Ok(mut store) = opened {
            totals.forgotten += u64::from(store.has_forgotten());
            model.owe_nothing();
            totals.add(model.compare(&mut store, load.keys, true, &what));
            live(&mut store, &medium, &mut model, &mut random, &load, &what);
        }
        if S::SURVIVES_POWER_CUTS && random.below(2) == 0 {
            medium.cut_power();
            totals.power_cuts += 1;
        } else {
            medium.crash();
        }
        medium.restart();
        totals.crashes += 1;
    }
    let counts = medium.counts();
    totals.lost_in_power_cuts = counts.lost_in_power_cuts;
    totals.faults = counts.lost_writes
        + counts.rotten_bits
        + counts.read_errors
        + counts.write_errors
        + counts.append_errors
        + counts.misdirected_writes
        + counts.no_space_errors;
    totals
}

/// [`swarm`] with these seeds, of small loads.
///
/// # Panics
/// Where a value is wrong, or little was seen.
pub fn swarms<S: Store>(seeds: impl IntoIterator<Item = u64>) -> Totals {
    let mut all = Totals::default();
    for seed in seeds {
        all += swarm::<S>(Load::small(seed), 5);
    }
    println!("{all:?}");
    assert!(all.seen.hits > 300 && all.faults > 2_000 && all.forgotten > 0);
    all
}
