//! The histogram against all values with their weights.

use super::*;
use pumice_world::Random;

const BINS: usize = 100;
const OBJECTS: usize = 2000;

fn share(random: &mut Random) -> f64 {
    1.0 - random.next_f64()
}

/// The values that are in a histogram.
struct Exact {
    objects: Vec<(f64, u64)>,
}

impl Exact {
    fn total(&self) -> u64 {
        self.objects.iter().map(|(_, weight)| weight).sum()
    }

    /// The shares below and at or below a value.
    fn quantile(&self, value: f64) -> (f64, f64) {
        let sum = |is_in: &dyn Fn(f64) -> bool| -> u64 {
            let inside = self.objects.iter().filter(|(found, _)| is_in(*found));
            inside.map(|(_, weight)| weight).sum()
        };
        let total = self.total() as f64;
        (
            sum(&|found| found < value) as f64 / total,
            sum(&|found| found <= value) as f64 / total,
        )
    }

    fn lowest(&self) -> usize {
        let values = self.objects.iter().enumerate();
        values
            .min_by(|(_, one), (_, other)| one.0.total_cmp(&other.0))
            .map_or(0, |(at, _)| at)
    }
}

/// The largest errors of a run, in shares of 1/[`BINS`].
#[derive(Debug, Default)]
struct Errors {
    quantile: f64,
    /// The share of the weight below the lowest edge.
    below_lowest: f64,
}

fn check(histogram: &QuantileHistogram) {
    assert_eq!(
        histogram.bins().map(|bin| bin.weight).sum::<u64>(),
        histogram.total()
    );
    assert!(histogram.bins().len() <= 2 * BINS);
    let mut last = f64::NEG_INFINITY;
    for bin in histogram.bins() {
        assert!(
            last < bin.lower && bin.lower <= bin.upper && bin.weight > 0,
            "{bin:?} above {last}"
        );
        last = bin.upper;
    }
    // The value at a share has that share at or below it, up to what stands at that very value.
    for share in [0.0, 0.01, 0.3, 0.77, 1.0]
        .into_iter()
        .filter(|_| histogram.total() > 0)
    {
        let value = histogram.value_at(share);
        let (below, at) = (histogram.quantile(value.next_down()), histogram.quantile(value));
        assert!(
            below <= share + 1e-6 && share <= at + 1e-6,
            "{below} {share} {at} at {value}"
        );
    }
}

fn measure(histogram: &QuantileHistogram, exact: &Exact, random: &mut Random, errors: &mut Errors) {
    check(histogram);
    assert_eq!(histogram.total(), exact.total());
    for _ in 0..20 {
        let value = exact.objects[random.below(exact.objects.len() as u64) as usize].0;
        let (below, at_or_below) = exact.quantile(value);
        let seen = histogram.quantile(value);
        let error = (below - seen).max(seen - at_or_below).max(0.0);
        errors.quantile = errors.quantile.max(error * BINS as f64);
    }
    let below = exact.quantile(histogram.lowest()).0;
    errors.below_lowest = errors.below_lowest.max(below * BINS as f64);
}

/// Who is removed next.
#[derive(Clone, Copy, Debug)]
enum Removal {
    Random,
    Lowest,
    /// A hit, nine times of ten: the object comes again, higher. Else the lowest.
    HitOrLowest,
}

/// Runs a queue of `objects` objects with values from `value`, which gets the lowest edge and a weight.
fn run(
    removal: Removal,
    objects: usize,
    mut value: impl FnMut(&mut Random, f64, u64) -> f64,
    weight: impl Fn(&mut Random) -> u64,
) -> Errors {
    let mut random = Random(7);
    let mut histogram = QuantileHistogram::new(BINS);
    let mut exact = Exact { objects: Vec::new() };
    let mut errors = Errors::default();
    let mut capacity = u64::MAX;
    for step in 0..objects * 12 {
        if step == objects {
            capacity = histogram.total();
        }
        let weight = weight(&mut random);
        while histogram.total().saturating_add(weight) > capacity {
            let is_hit = matches!(removal, Removal::HitOrLowest) && random.below(10) > 0;
            let at = match removal {
                Removal::Random => random.below(exact.objects.len() as u64) as usize,
                _ if is_hit => random.below(exact.objects.len() as u64) as usize,
                _ => exact.lowest(),
            };
            let (gone, weight) = exact.objects.swap_remove(at);
            assert!(histogram.remove(gone, weight));
            if is_hit {
                let risen = value(&mut random, histogram.lowest(), weight).max(gone);
                exact.objects.push((risen, weight));
                assert!(histogram.insert(risen, weight));
            }
        }
        let new = value(&mut random, histogram.lowest(), weight);
        exact.objects.push((new, weight));
        assert!(histogram.insert(new, weight));
        if step % (objects / 8) == 0 {
            measure(&histogram, &exact, &mut random, &mut errors);
        }
    }
    for (value, weight) in exact.objects.drain(..) {
        histogram.remove(value, weight);
        check(&histogram);
    }
    assert_eq!((histogram.total(), histogram.bins().len()), (0, 0));
    errors
}

type Value = fn(&mut Random, f64, u64) -> f64;
type Weight = fn(&mut Random) -> u64;

#[test]
fn quantiles_are_within_three_bins() {
    let values: [(&str, Value); 6] = [
        ("uniform", |random, _, _| share(random)),
        ("skewed", |random, _, _| share(random).powi(8)),
        ("few", |random, _, _| random.below(30) as f64),
        ("many at one", |random, _, _| {
            if random.below(2) == 0 { 0.3 } else { share(random) }
        }),
        ("cluster", |random, _, _| {
            if random.below(2) == 0 {
                0.3 + share(random) * 1e-7
            } else {
                share(random)
            }
        }),
        ("wide", |random, _, _| share(random).ln() * 1e300 * 4.0),
    ];
    let weights: [(&str, Weight); 3] = [
        ("one", |_| 1),
        ("even", |random| 1000 + random.below(1000)),
        ("tail", |random| (100.0 / share(random).max(1e-3).sqrt()) as u64),
    ];
    for (value_name, value) in values {
        for (weight_name, weight) in weights {
            for removal in [Removal::Random, Removal::Lowest, Removal::HitOrLowest] {
                let errors = run(removal, OBJECTS, value, weight);
                assert!(
                    errors.quantile <= 3.0,
                    "{value_name} {weight_name} {removal:?} {errors:?}"
                );
            }
        }
    }
}

#[test]
fn values_over_ninety_orders_of_magnitude_stay_within_six_bins() {
    for removal in [Removal::Random, Removal::Lowest, Removal::HitOrLowest] {
        let errors = run(removal, OBJECTS, |random, _, _| share(random).powi(-10), |_| 1);
        assert!(errors.quantile < 6.0, "{removal:?} {errors:?}");
    }
}

#[test]
fn values_that_drift_upward_stay_within_three_bins() {
    let tail: Weight = |random| (100.0 / share(random).max(1e-3).sqrt()) as u64;
    let wide: Weight = |random| (share(random) * 15.0).exp() as u64;
    let drifts: [(&str, Value, Weight); 5] = [
        (
            "gdsf",
            |random, lowest, weight| lowest + (1 + random.below(3)) as f64 / weight as f64,
            tail,
        ),
        (
            "gdsf of all sizes",
            |random, lowest, weight| lowest + (1 + random.below(3)) as f64 / weight as f64,
            wide,
        ),
        (
            "lfu",
            |random, lowest, _| lowest + (1 + random.below(4)) as f64,
            tail,
        ),
        ("skewed", |random, lowest, _| lowest + share(random).powi(6), tail),
        ("even", |random, lowest, _| lowest + 1.0 + share(random), wide),
    ];
    for (name, value, weight) in drifts {
        for removal in [Removal::Lowest, Removal::HitOrLowest] {
            let errors = run(removal, OBJECTS, value, weight);
            let is_within = errors.quantile <= 3.0 && errors.below_lowest <= 3.0;
            assert!(is_within, "{name} {removal:?} {errors:?}");
        }
    }
}

#[test]
fn the_lowest_edge_follows_the_lowest_value_and_never_falls() {
    let mut random = Random(3);
    let mut histogram = QuantileHistogram::new(BINS);
    let mut queue = std::collections::VecDeque::new();
    let mut before = f64::NEG_INFINITY;
    for step in 0..40_000 {
        let value = f64::from(step) + share(&mut random) * 100.0;
        let weight = 1 + random.below(1000);
        histogram.insert(value, weight);
        queue.push_back((value, weight));
        if queue.len() > 2000 {
            let (value, weight) = queue.pop_front().unwrap();
            histogram.remove(value, weight);
            // The oldest of 2000 came 2000 steps ago; a bin is about 20 of them wide.
            let behind = f64::from(step) - 2000.0 - histogram.lowest();
            assert!(behind < 200.0, "{behind} steps behind at step {step}");
        }
        assert!(histogram.lowest() >= before);
        before = histogram.lowest();
    }
}

#[test]
fn few_values_are_counted_exactly() {
    let mut histogram = QuantileHistogram::new(BINS);
    for (value, weight) in [(1.0, 20), (5.0, 10), (9.0, 40), (5.0, 30)] {
        assert!(histogram.insert(value, weight));
    }
    let seen: Vec<f64> = [0.9, 1.0, 4.9, 5.0, 8.0, 9.0, 10.0]
        .map(|value| histogram.quantile(value))
        .into();
    assert_eq!(seen, [0.0, 0.2, 0.2, 0.6, 0.6, 1.0, 1.0]);
    assert_eq!((histogram.total(), histogram.lowest()), (100, 1.0));
    histogram.remove(1.0, 20);
    histogram.remove(5.0, 40);
    assert_eq!((histogram.quantile(8.0), histogram.lowest()), (0.0, 9.0));
    histogram.insert(3.0, 1);
    assert_eq!((histogram.quantile(3.0), histogram.lowest()), (1.0 / 41.0, 9.0));
}

#[test]
fn what_is_not_finite_is_refused_and_removals_are_bounded() {
    let mut histogram = QuantileHistogram::new(BINS);
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert!(!histogram.insert(value, 5) && !histogram.remove(value, 5));
    }
    assert_eq!((histogram.total(), histogram.quantile(1.0)), (0, 1.0));
    histogram.insert(f64::MAX, 5);
    histogram.insert(f64::MIN, 5);
    assert_eq!(histogram.quantile(0.0), 0.5);
    histogram.remove(0.0, 100);
    assert_eq!((histogram.total(), histogram.bins().len()), (0, 0));
}

#[test]
fn bins_make_the_histogram_again() {
    let mut random = Random(5);
    let mut histogram = QuantileHistogram::new(BINS);
    for _ in 0..5000 {
        histogram.insert(share(&mut random).ln(), 1 + random.below(100));
    }
    let again = QuantileHistogram::from_bins(BINS, histogram.lowest(), histogram.bins()).unwrap();
    assert_eq!(
        again.bins().collect::<Vec<_>>(),
        histogram.bins().collect::<Vec<_>>()
    );
    for _ in 0..100 {
        let value = share(&mut random).ln();
        assert_eq!(again.quantile(value), histogram.quantile(value));
    }
    assert_eq!(
        (again.total(), again.lowest()),
        (histogram.total(), histogram.lowest())
    );
    let bin = |lower, upper, weight| Bin { lower, upper, weight };
    for broken in [
        vec![bin(2.0, 1.0, 1)],
        vec![bin(1.0, 2.0, 0)],
        vec![bin(1.0, 2.0, 1), bin(2.0, 3.0, 1)],
        vec![bin(f64::NAN, 2.0, 1)],
        vec![bin(1.0, 2.0, u64::MAX), bin(3.0, 4.0, 1)],
        (0..=2 * BINS).map(|at| bin(at as f64, at as f64, 1)).collect(),
    ] {
        assert!(QuantileHistogram::from_bins(BINS, 0.0, broken).is_none());
    }
}
