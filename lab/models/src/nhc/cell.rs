//! Runs of one cell, and what is said of them.

use super::model::{Arrivals, Control, Model};
use super::options::{CellOptions, Load};
use pumice_nhc::{Balance, Counts, Literal, Scheduler, Side, fixed_split, paper};
use serde::Serialize;

/// Requests of a run at a fixed setting that counts, of one of the grid, and before either.
const LONG: u64 = 200_000;
const SHORT: u64 = 30_000;
const AHEAD: u64 = 6_000;
/// Requests of a third of a run of the scheduler, at least, for each that may be under way: its windows are as long as there are many.
const TRIALS: u64 = 230;
/// `load_admit` of the grid goes by as much.
const GRID: u64 = 50;
/// N1 clients come to this share of the most.
const NEARLY_ALL: f64 = 0.95;
/// The paper's algorithm measures a setting for this long; its text does not say for how long.
const LITERAL_NS: u64 = 10_000_000;
/// The paper's algorithm runs for so long, or so many requests.
const LITERAL_RUN: (u64, u64) = (6_000_000_000, 4_000_000);
/// Latency balancing changes its mind every 200 ms, or where that is sooner, in the time of so many requests.
const BALANCE_REQUESTS: f64 = 5_000.0;
/// Settled is a second's mean at this share of the best split.
const SETTLED: f64 = 0.95;
/// How finely time is looked at after a change.
const BIN_NS: u64 = 10_000_000;
/// Hits are back within so much.
const NEAR: f64 = 0.02;

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Requests done in a second.
    pub per_second: f64,
    /// Mean response time, in nanoseconds.
    pub mean_ns: f64,
    /// Its 99th percentile.
    pub p99_ns: f64,
    /// The share of reads that the upper device had.
    pub hits: Option<f64>,
    /// The share of reads that it served.
    pub upper: f64,
    /// The mean of `load_admit`.
    pub load_admit: f64,
    /// `data_admit` at the end.
    pub data_admit: bool,
    /// Arrivals refused, of an open load.
    pub refused: u64,
}

/// The paper's formulas, of what these devices can do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Formulas {
    /// Reads a second of the upper device.
    pub upper: f64,
    /// Reads a second of the lower device.
    pub lower: f64,
    /// A cache, one request at a time.
    pub cache_one: f64,
    /// A cache, many at a time.
    pub cache_many: f64,
    /// A split by what the devices can do, one request at a time.
    pub split_one: f64,
    /// The same, many at a time.
    pub split_many: f64,
}

/// How a change in the middle was followed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Changed {
    /// The best split after it.
    pub best: Figures,
    /// Seconds until a second's mean is at 95 % of the new best split and stays there; `None`: not in the time there was.
    pub settled_seconds: Option<f64>,
    /// Seconds until hits are within 2 points of those before, where keys were replaced.
    pub refilled_seconds: Option<f64>,
    /// The same under classic caching.
    pub classic_refilled_seconds: Option<f64>,
}

/// All of a cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellReport {
    /// The performance device.
    pub upper: String,
    /// The capacity device.
    pub lower: String,
    /// How much was asked for.
    pub load: String,
    /// The share of hits asked for.
    pub hits: f64,
    /// The share of reads.
    pub reads: f64,
    /// Bytes of a request.
    pub bytes: u64,
    /// What was to be best.
    pub objective: String,
    /// Seed.
    pub seed: u64,
    /// Fewest clients with which classic caching comes to 95 % of its most.
    pub n1: u64,
    /// That most, in requests a second.
    pub classic_most: f64,
    /// The paper's formulas.
    pub formulas: Formulas,
    /// Classic caching.
    pub classic: Figures,
    /// The best split.
    pub best: Figures,
    /// The scheduler.
    pub nhc: Figures,
    /// A fixed split by what the devices can do.
    pub fixed: Option<Figures>,
    /// Latency balancing.
    pub balance: Option<Figures>,
    /// The paper's algorithm as it is written.
    pub literal: Option<Figures>,
    /// Speed of NHC over that of the best split: of response times, the other way round.
    pub nhc_to_best: f64,
    /// The same over classic caching.
    pub nhc_to_classic: f64,
    /// The best split over classic caching.
    pub best_to_classic: f64,
    /// The 99th percentile of NHC over that of classic caching: smaller is better.
    pub p99_to_classic: f64,
    /// NHC over latency balancing.
    pub nhc_to_balance: Option<f64>,
    /// The change, if one was asked for.
    pub changed: Option<Changed>,
}

/// What happened between two times.
fn figures(model: &Model<'_>, since: &Counts, since_ns: u64, before: (f64, u64)) -> Figures {
    let counts = model.counts().since(since);
    let seconds = (model.now() - since_ns).max(1) as f64 / 1e9;
    let done = counts.completions();
    let reads = (counts.reads[0] + counts.reads[1]).max(1) as f64;
    Figures {
        per_second: done as f64 / seconds,
        mean_ns: counts.outstanding_ns as f64 / done.max(1) as f64,
        p99_ns: counts.latencies.quantile(0.99),
        hits: counts.hit_ratio(),
        upper: counts.reads[Side::Upper as usize] as f64 / reads,
        load_admit: (model.load_admit_sum - before.0)
            / (counts.hits + counts.misses + counts.writes).max(1) as f64,
        data_admit: model.switch().data_admit(),
        refused: model.refused - before.1,
    }
}

/// A run of which the requests after the first `ahead` count.
fn run(
    options: &CellOptions,
    arrivals: Arrivals,
    control: Control,
    ahead: u64,
    counted: u64,
    most_ns: u64,
) -> Figures {
    let mut model = Model::new(options, arrivals, control);
    model.run(ahead, most_ns / 3);
    let (since, at, before) = (model.counts(), model.now(), (model.load_admit_sum, model.refused));
    model.run(ahead + counted, most_ns);
    figures(&model, &since, at, before)
}

fn held(
    options: &CellOptions,
    arrivals: Arrivals,
    load_admit: f64,
    data_admit: bool,
    counted: u64,
) -> Figures {
    let control = Control::held(load_admit, data_admit);
    let ahead = AHEAD.max(until_even(options, arrivals));
    run(options, arrivals, control, ahead, counted, u64::MAX)
}

/// The most requests that are under way at once.
fn most_under_way(arrivals: Arrivals) -> u64 {
    match arrivals {
        Arrivals::Clients(clients) => clients,
        Arrivals::Poisson { most, .. } => most,
    }
}

/// Requests until as many of them are misses as may be under way, and as many again: where misses are what clients wait for, most of them do so then.
fn until_even(options: &CellOptions, arrivals: Arrivals) -> u64 {
    let misses = 1.0 - options.hits;
    match misses > 1e-6 {
        true => (2.0 * most_under_way(arrivals) as f64 / misses) as u64,
        false => 0,
    }
}

/// The fewest clients with which classic caching comes to nearly all it can, and that.
fn classic_most(options: &CellOptions) -> (u64, f64) {
    let rate = |clients| held(options, Arrivals::Clients(clients), 1.0, true, SHORT).per_second;
    let lanes =
        [options.upper, options.lower].map(|profile| profile.read.parallelism.max(profile.write.parallelism));
    let most = rate(8 * u64::from(lanes[0] + lanes[1]));
    let (mut few, mut enough) = (0, 1);
    while rate(enough) < NEARLY_ALL * most {
        few = enough;
        enough *= 2;
    }
    while enough - few > 1 {
        let middle = u64::midpoint(few, enough);
        if rate(middle) < NEARLY_ALL * most {
            few = middle;
        } else {
            enough = middle;
        }
    }
    (enough, most)
}

/// As long as what the scheduler is measured by, so that stalls are in both.
fn held_for_long(options: &CellOptions, arrivals: Arrivals, load_admit: f64, data_admit: bool) -> Figures {
    let counted = LONG.max(options.requests / 3 * 2);
    held(options, arrivals, load_admit, data_admit, counted)
}

/// The best fixed setting, by mean response time.
fn best_split(options: &CellOptions, arrivals: Arrivals) -> Figures {
    let mut best = (f64::INFINITY, 1.0, true);
    for step in 0..=GRID {
        for data_admit in [false, true] {
            let load_admit = step as f64 / GRID as f64;
            let mean_ns = held(options, arrivals, load_admit, data_admit, SHORT).mean_ns;
            if mean_ns < best.0 {
                best = (mean_ns, load_admit, data_admit);
            }
        }
    }
    // Again and for longer: the best of many short runs was lucky.
    held_for_long(options, arrivals, best.1, best.2)
}

fn arrivals(load: Load, n1: u64, most: f64) -> Arrivals {
    match load {
        Load::Closed(times) => Arrivals::Clients(((times * n1 as f64).round() as u64).max(1)),
        Load::Open(times) => Arrivals::Poisson {
            rate: times * most,
            most: 8 * n1,
        },
    }
}

fn scheduler(options: &CellOptions) -> Control {
    Control::Driven(Box::new(Scheduler::new(options.objective)))
}

/// Runs a cell.
pub fn run_cell(options: &CellOptions) -> CellReport {
    // N1 is that of a share of hits: a cache of blocks would have to be warm.
    let drawn = CellOptions {
        cache: None,
        ..options.clone()
    };
    let (n1, most) = classic_most(&drawn);
    let load = arrivals(options.load, n1, most);
    let classic = held_for_long(options, load, 1.0, true);
    let best = best_split(&drawn, load);
    let ahead = (options.requests / 3)
        .max(TRIALS * most_under_way(load))
        .max(until_even(options, load));
    let mut model = Model::new(options, load, scheduler(options));
    model.run(ahead, u64::MAX);
    let (since, at, before) = (model.counts(), model.now(), (model.load_admit_sum, model.refused));
    model.run(3 * ahead, u64::MAX);
    let nhc = figures(&model, &since, at, before);
    let alone = |profile: pumice_device::Profile| {
        let direction = profile.read;
        let by_lanes = f64::from(direction.parallelism)
            / (direction.latency_ns as f64 / 1e9 + options.bytes as f64 / direction.bytes_per_second as f64);
        by_lanes.min(direction.bytes_per_second as f64 / options.bytes as f64)
    };
    let (upper, lower) = (alone(options.upper), alone(options.lower));
    let split = fixed_split(upper, lower);
    let (mut fixed, mut balance, mut literal) = (None, None, None);
    if options.baselines {
        fixed = Some(held(options, load, split, false, LONG));
        let period = ((BALANCE_REQUESTS / classic.per_second * 1e9) as u64).clamp(1, Balance::PERIOD_NS);
        let control = Control::Driven(Box::new(Balance::new(period)));
        // Fifty steps are the whole way.
        balance = Some(run(
            options,
            load,
            control,
            70 * BALANCE_REQUESTS as u64,
            LONG,
            u64::MAX,
        ));
        let control = Control::Driven(Box::new(Literal::new(LITERAL_NS)));
        let (most_ns, requests) = LITERAL_RUN;
        literal = Some(run(
            options,
            load,
            control,
            requests / 3,
            requests / 3 * 2,
            most_ns,
        ));
    }
    CellReport {
        upper: options.upper.to_string(),
        lower: options.lower.to_string(),
        load: options.load.to_string(),
        hits: options.hits,
        reads: options.reads,
        bytes: options.bytes,
        objective: options.objective.to_string(),
        seed: options.seed,
        n1,
        classic_most: most,
        formulas: Formulas {
            upper,
            lower,
            cache_one: paper::cache_one(options.hits, upper, lower),
            cache_many: paper::cache_many(options.hits, upper, lower),
            split_one: paper::split_one(split, upper, lower),
            split_many: paper::split_many(split, upper, lower),
        },
        nhc_to_best: best.mean_ns / nhc.mean_ns,
        nhc_to_classic: classic.mean_ns / nhc.mean_ns,
        best_to_classic: classic.mean_ns / best.mean_ns,
        p99_to_classic: nhc.p99_ns / classic.p99_ns,
        nhc_to_balance: balance.as_ref().map(|balance| balance.mean_ns / nhc.mean_ns),
        changed: options.then.as_ref().map(|_| changed(options, n1, most, ahead)),
        classic,
        best,
        nhc,
        fixed,
        balance,
        literal,
    }
}

/// Runs the load before the change, the change, and what comes after it.
fn changed(options: &CellOptions, n1: u64, most: f64, ahead: u64) -> Changed {
    let change = options.then.unwrap_or_default();
    let before = arrivals(options.load, n1, most);
    let after = arrivals(change.load.unwrap_or(options.load), n1, most);
    let later = CellOptions {
        cache: None,
        reads: change.reads.unwrap_or(options.reads),
        hits: change.hits.unwrap_or(options.hits),
        ..options.clone()
    };
    let best = best_split(&later, after);
    let follow = |control| {
        let mut model = Model::new(options, before, control);
        model.run(ahead, u64::MAX);
        let counts = model.counts();
        // As in the last half, when the scheduler had found its way.
        model.run(ahead + ahead / 2, u64::MAX);
        let usual = model.counts().since(&counts).hit_ratio().unwrap_or(0.0);
        model.change(&change, after);
        let (from, mut bins, mut refilled) = (model.now(), vec![model.counts()], None);
        let mut reads = bins[0].clone();
        while ((model.now() - from) as f64) < options.then_seconds * 1e9 {
            model.run(u64::MAX, from + bins.len() as u64 * BIN_NS);
            let counts = model.counts();
            let recent = counts.since(&reads);
            if recent.hits + recent.misses >= 2_000 {
                let is_near = recent.hit_ratio().is_some_and(|hits| hits >= usual - NEAR);
                if is_near && refilled.is_none() {
                    refilled = Some((model.now() - from) as f64 / 1e9);
                }
                reads = counts.clone();
            }
            bins.push(counts);
        }
        (settled(&bins, best.mean_ns), refilled)
    };
    let (settled_seconds, refilled) = follow(scheduler(options));
    let is_refill = change.replaced > 0.0;
    let classic_refilled = is_refill.then(|| follow(Control::held(1.0, true)).1);
    Changed {
        best,
        settled_seconds,
        refilled_seconds: refilled.filter(|_| is_refill),
        classic_refilled_seconds: classic_refilled.flatten(),
    }
}

/// From when on each second's mean was near the best.
fn settled(bins: &[Counts], best_ns: f64) -> Option<f64> {
    let second = (1_000_000_000 / BIN_NS) as usize;
    let is_near = |from: usize| {
        let counts = bins[from + second].since(&bins[from]);
        counts.outstanding_ns as f64 / counts.completions().max(1) as f64 <= best_ns / SETTLED
    };
    let last = bins.len().checked_sub(second + 1)?;
    let after = (0..=last)
        .rev()
        .find(|&from| !is_near(from))
        .map_or(0, |from| from + 1);
    (after <= last).then(|| after as f64 * BIN_NS as f64 / 1e9)
}
