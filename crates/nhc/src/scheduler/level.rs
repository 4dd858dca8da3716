//! What is usual while a setting is held: jumps of it, and trials that cost more.

use super::trial::{Noise, Trial, logarithm};

/// A jump of the cost: by so much of its logarithm, and so many standard deviations, twice in a row.
const JUMP: (f64, f64) = (0.15, 6.0);
/// A trial is a loss: both sides cost more, by so much of the logarithm and so many standard deviations.
const LOSS: (f64, f64) = (0.03, 4.0);
/// The usual cost is that of so many windows.
const WINDOWS: f64 = 64.0;

/// What is held costs so much, with so many requests under way.
#[derive(Debug, Default)]
pub(super) struct Level {
    /// `load_admit` that was held last.
    pub(super) load: f64,
    windows: f64,
    /// Means of the logarithms of both.
    means: [f64; 2],
    off: u32,
}

impl Level {
    /// Notes the cost of a window. Returns true where two windows in a row are far from those before. A load that does not wait for answers shows in the
    /// cost; a change of the number of clients may leave that as it was. Windows of a trial are of other settings: they must be further off, and
    /// count for no mean.
    pub(super) fn has_jumped(&mut self, cost: f64, under_way: f64, noise: &Noise, held: Option<f64>) -> bool {
        let logarithms = [cost, under_way].map(logarithm);
        let (least, deviations) = JUMP;
        let limit = least.max(deviations * noise.of_a_window());
        let limits = [limit * if held.is_none() { 2.0 } else { 1.0 }, 2.0 * limit];
        let is_off = |which: usize| (logarithms[which] - self.means[which]).abs() > limits[which];
        if self.windows >= 2.0 && (is_off(0) || is_off(1)) {
            self.off += 1;
            return self.off >= 2;
        }
        self.off = 0;
        if let Some(load) = held {
            self.load = load;
            self.windows = (self.windows + 1.0).min(WINDOWS);
            for (mean, logarithm) in self.means.iter_mut().zip(logarithms) {
                // The mean of the first windows, then one that follows slowly.
                *mean += (logarithm - *mean) / self.windows;
            }
        }
        false
    }

    /// Whether both sides of a trial cost more than what was held before it, and not only because more is asked for. Not while the next window is to
    /// tell whether the cost has jumped: then the load is another, and the trial is not to blame.
    pub(super) fn is_below(&self, trial: &Trial, noise: &Noise) -> bool {
        let Some(([cost, under_way], error)) = trial.above(self.means, self.windows, noise) else {
            return false;
        };
        let (least, deviations) = LOSS;
        let is_known = self.windows >= 2.0 && self.off == 0;
        is_known && cost - under_way.max(0.0) > least.max(deviations * error)
    }
}
