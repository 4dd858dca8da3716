//! Two settings, compared in turns.

use super::Setting;

/// A trial ends after so many pairs of windows.
pub(super) const PAIRS_MAX: usize = 12;
/// Pairs without which nothing is decided.
pub(super) const PAIRS_MIN: usize = 2;
/// A pair counts for no more than so many standard deviations of those before, and for no less than the first bound or more than the second, so that a
/// stall of a device neither decides a trial nor hides what others have found.
const CLIP: (f64, f64, f64) = (4.0, 0.1, 0.5);
/// Smaller differences are none.
const DIFFERENCE_MIN: f64 = 0.001;
/// What was seen before counts as so many pairs.
const PRIOR: f64 = 4.0;

/// Standard deviations that the mean of `pairs` pairs must be from 0: as a trial is looked at after each pair, more than once would take.
fn critical(pairs: usize) -> f64 {
    2.4 + 3.2 / pairs as f64
}

/// Of a cost, or of requests under way, where there are any.
pub(super) fn logarithm(figure: f64) -> f64 {
    figure.max(0.01).ln()
}

/// How far pairs are apart by chance.
#[derive(Debug)]
pub(super) struct Noise {
    /// The variance of the logarithm of the ratio of two windows.
    variance: f64,
}

impl Default for Noise {
    fn default() -> Self {
        Self {
            variance: 0.05 * 0.05,
        }
    }
}

impl Noise {
    /// The standard deviation of one window's.
    pub(super) fn of_a_window(&self) -> f64 {
        (self.variance / 2.0).sqrt()
    }
}

/// What a trial has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The first setting costs less.
    First,
    /// The second one does.
    Second,
    /// No difference was found.
    Even,
}

/// Two settings in turns.
#[derive(Debug)]
pub(super) struct Trial {
    settings: [Setting; 2],
    /// It ends after so many pairs.
    most: usize,
    /// Of the first window of the pair.
    first: Option<f64>,
    /// Logarithms of the ratio of costs, first setting over second.
    pairs: Vec<f64>,
    /// Sums of the logarithms of either setting's costs, of whole pairs.
    sums: [f64; 2],
    /// The sum of the logarithms of requests under way.
    under_way: f64,
}

impl Trial {
    pub(super) fn new(first: Setting, second: Setting, most: usize) -> Self {
        Self {
            settings: [first, second],
            most,
            first: None,
            pairs: Vec::with_capacity(PAIRS_MAX),
            sums: [0.0; 2],
            under_way: 0.0,
        }
    }

    pub(super) fn settings(&self) -> [Setting; 2] {
        self.settings
    }

    /// Whether the first setting comes first in this pair: A B, B A, A B.
    fn is_forward(&self) -> bool {
        self.pairs.len().is_multiple_of(2)
    }

    /// The setting of the window to come.
    pub(super) fn setting(&self) -> Setting {
        self.settings[usize::from(self.is_forward() == self.first.is_some())]
    }

    /// Notes the cost of a window, and how many requests were under way in it.
    pub(super) fn note(&mut self, cost: f64, under_way: f64, noise: &mut Noise) -> Option<Verdict> {
        self.under_way += logarithm(under_way);
        let Some(before) = self.first.take() else {
            self.first = Some(cost);
            return None;
        };
        let mut costs = [before, cost].map(logarithm);
        if !self.is_forward() {
            costs.reverse();
        }
        self.sums[0] += costs[0];
        self.sums[1] += costs[1];
        let ratio = if before > 0.0 && cost > 0.0 {
            costs[0] - costs[1]
        } else {
            0.0
        };
        let (deviations, least, most) = CLIP;
        let clip = (deviations * noise.variance.sqrt()).clamp(least, most);
        self.pairs.push(ratio.clamp(-clip, clip));
        let verdict = self.verdict(noise)?;
        let (_, squares) = self.moments();
        let degrees = self.pairs.len() as f64 - 1.0;
        // Noise follows what is seen over some trials.
        noise.variance = (noise.variance * 24.0 + squares) / (24.0 + degrees);
        Some(verdict)
    }

    /// By how much the logarithm of the cost of the better setting, and that of the requests under way, are above `means` of so many windows; and the
    /// standard deviation of the former. After as many pairs as decide anything.
    pub(super) fn above(&self, means: [f64; 2], windows: f64, noise: &Noise) -> Option<([f64; 2], f64)> {
        let pairs = self.pairs.len() as f64;
        if self.pairs.len() < PAIRS_MIN || self.first.is_some() {
            return None;
        }
        let cost = self.sums[0].min(self.sums[1]) / pairs - means[0];
        let under_way = self.under_way / (2.0 * pairs) - means[1];
        let error = noise.of_a_window() * (1.0 / pairs + 1.0 / windows).sqrt();
        Some(([cost, under_way], error))
    }

    /// The mean, and the sum of squares around it.
    fn moments(&self) -> (f64, f64) {
        let mean = self.pairs.iter().sum::<f64>() / self.pairs.len() as f64;
        (mean, self.pairs.iter().map(|pair| (pair - mean).powi(2)).sum())
    }

    fn verdict(&self, noise: &Noise) -> Option<Verdict> {
        let pairs = self.pairs.len();
        if pairs < PAIRS_MIN {
            return None;
        }
        let (mean, squares) = self.moments();
        let variance = (squares + PRIOR * noise.variance) / (pairs as f64 - 1.0 + PRIOR);
        let error = (variance / pairs as f64).sqrt();
        if mean.abs() > DIFFERENCE_MIN && mean.abs() > critical(pairs) * error {
            return Some(if mean < 0.0 {
                Verdict::First
            } else {
                Verdict::Second
            });
        }
        (pairs >= self.most).then_some(Verdict::Even)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Setting = Setting {
        load: 0.5,
        data: true,
    };
    const B: Setting = Setting {
        load: 0.6,
        data: true,
    };

    /// A trial of windows with these costs; the verdict, and how many windows it took.
    fn run(mut cost: impl FnMut(Setting, usize) -> f64) -> (Verdict, usize) {
        let (mut trial, mut noise) = (Trial::new(A, B, PAIRS_MAX), Noise::default());
        for window in 0.. {
            let setting = trial.setting();
            if let Some(verdict) = trial.note(cost(setting, window), 1.0, &mut noise) {
                return (verdict, window + 1);
            }
        }
        unreachable!("a trial ends")
    }

    #[test]
    fn settings_take_turns_and_each_comes_first_as_often() {
        let mut order = Vec::new();
        run(|setting, _| {
            order.push(setting == A);
            1.0
        });
        assert_eq!(order.len(), 2 * PAIRS_MAX);
        assert_eq!(order[..8], [true, false, false, true, true, false, false, true]);
    }

    #[test]
    fn a_large_difference_shows_at_once_and_none_at_last() {
        assert_eq!(
            run(|setting, _| if setting == A { 1.0 } else { 1.3 }),
            (Verdict::First, 4)
        );
        assert_eq!(
            run(|setting, _| if setting == A { 1.3 } else { 1.0 }),
            (Verdict::Second, 4)
        );
        assert_eq!(run(|_, _| 7.0), (Verdict::Even, 2 * PAIRS_MAX));
    }

    #[test]
    fn a_rise_during_the_trial_and_one_stall_decide_nothing() {
        assert_eq!(run(|_, window| 1.0 + window as f64 / 50.0).0, Verdict::Even);
        assert_eq!(
            run(|_, window| if window == 3 { 50.0 } else { 1.0 }).0,
            Verdict::Even
        );
    }

    #[test]
    fn it_is_known_how_far_the_better_side_is_above_what_was_held() {
        let noise = Noise::default();
        let mut trial = Trial::new(A, B, PAIRS_MAX);
        for window in 0..4 {
            assert_eq!(trial.above([0.0; 2], 16.0, &noise), None, "window {window}");
            let cost = if trial.setting() == A { 1.3 } else { 1.2 };
            trial.note(cost, 2.0, &mut Noise::default());
        }
        let ([cost, under_way], error) = trial.above([1.1f64.ln(), 2f64.ln()], 16.0, &noise).unwrap();
        assert!((cost - (1.2f64 / 1.1).ln()).abs() < 1e-9 && under_way.abs() < 1e-9);
        assert!((0.02..0.03).contains(&error), "{error}");
    }

    #[test]
    fn chance_decides_seldom() {
        let mut random = pumice_world::Random(1);
        let mut decided = 0;
        for _ in 0..400 {
            decided += u32::from(run(|_, _| 1.0 + 0.1 * random.next_f64()).0 != Verdict::Even);
        }
        assert!(decided < 40, "{decided} of 400");
    }
}
