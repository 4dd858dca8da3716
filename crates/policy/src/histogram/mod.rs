//! A dynamic histogram of absolute priorities (RIPQ, section 4.3), which says what share of the bytes stands below one.
//!
//! Bins split and merge by weight. Nothing is known of what is inside a bin but its weight: a split shares it out by width, as
//! [`QuantileHistogram::quantile`] does, and what is removed from a bin that was given too little is taken from its
//! neighbours; so the total is always exact, and no weight is ever below 0. Values that rise for ever leave bins at the
//! lower end: what little a split once left there by mistake must not hold the lower edge down, see
//! [`QuantileHistogram::remove`].
//!
//! Cost: O(bins) additions in a row for a quantile, O(log bins) for most insertions and removals, O(bins) now and then.
//! Memory: 24 bytes per bin. Error of a quantile: a bin is up to three means wide, and as much again may be on the wrong
//! side of an edge.

#[cfg(test)]
mod tests;

/// Values from `lower` to `upper`, both included, and their weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bin {
    /// The lowest value.
    pub lower: f64,
    /// The highest value; may be the lowest too.
    pub upper: f64,
    /// The sum of the weights, never 0.
    pub weight: u64,
}

impl Bin {
    /// The part of the bin at or below a value.
    fn share_at_or_below(&self, value: f64) -> f64 {
        if value >= self.upper {
            1.0
        } else if value <= self.lower {
            0.0
        } else {
            // Halves, for the width may be more than the largest number.
            let width = self.upper / 2.0 - self.lower / 2.0;
            ((value / 2.0 - self.lower / 2.0) / width).clamp(0.0, 1.0)
        }
    }
}

/// A dynamic histogram of values with weights in bytes.
///
/// Bins do not overlap and stand in order, with gaps where there is nothing.
#[derive(Clone, Debug)]
pub struct QuantileHistogram {
    bins: Vec<Bin>,
    bins_max: usize,
    total: u64,
    lowest: f64,
    /// Weight removed from other bins since something was removed from the lowest.
    removed_elsewhere: u64,
}

impl QuantileHistogram {
    /// An empty histogram with the resolution of so many bins, at least 8: quantiles are off by about two of them at
    /// most, for which it has up to twice as many. 100 and more are good.
    pub fn new(bins: usize) -> Self {
        let bins_max = 2 * bins.max(8);
        QuantileHistogram {
            bins: Vec::with_capacity(bins_max),
            bins_max,
            total: 0,
            lowest: 0.0,
            removed_elsewhere: 0,
        }
    }

    /// The histogram [`new`](QuantileHistogram::new) of this `resolution` that had these [`bins`](QuantileHistogram::bins) and
    /// this [`lowest`](QuantileHistogram::lowest) value; `None` if none can have them.
    pub fn from_bins(resolution: usize, lowest: f64, bins: impl IntoIterator<Item = Bin>) -> Option<Self> {
        let mut histogram = QuantileHistogram::new(resolution);
        histogram.lowest = lowest;
        for bin in bins {
            let is_above = histogram.bins.last().is_none_or(|last| last.upper < bin.lower);
            let is_bin = bin.lower.is_finite() && bin.upper.is_finite() && bin.lower <= bin.upper;
            if !is_above || !is_bin || bin.weight == 0 || histogram.bins.len() == histogram.bins_max {
                return None;
            }
            histogram.total = histogram.total.checked_add(bin.weight)?;
            histogram.bins.push(bin);
        }
        // What is inserted later fits on top.
        (lowest.is_finite() && histogram.total <= u64::MAX / 2).then_some(histogram)
    }

    /// The bins, from the lowest.
    pub fn bins(&self) -> impl ExactSizeIterator<Item = Bin> + '_ {
        self.bins.iter().copied()
    }

    /// The sum of the weights: what was inserted less what was removed.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The lower edge of the lowest bin, or the highest that it has been where that was higher; never falls.
    pub fn lowest(&self) -> f64 {
        let edge = self.bins.first().map_or(self.lowest, |bin| bin.lower);
        edge.max(self.lowest)
    }

    /// The value that this share of the weight, in [0, 1], is at or below; 0 if there is no weight.
    pub fn value_at(&self, share: f64) -> f64 {
        let mut wanted = share * self.total as f64;
        for bin in &self.bins {
            let weight = bin.weight as f64;
            if wanted <= weight {
                // As halves, for the width may be more than the largest number.
                let half_width = bin.upper / 2.0 - bin.lower / 2.0;
                return (bin.lower + half_width * (wanted / weight) + half_width * (wanted / weight))
                    .min(bin.upper);
            }
            wanted -= weight;
        }
        self.bins.last().map_or(0.0, |bin| bin.upper)
    }

    /// The share of the weight at or below a value, in [0, 1]; 1 if there is no weight.
    ///
    /// At, because the object that got a value last stands above its equals.
    pub fn quantile(&self, value: f64) -> f64 {
        if self.total == 0 {
            return 1.0;
        }
        let above = self.bins.partition_point(|bin| bin.lower <= value);
        let Some((last, below)) = self.bins[..above].split_last() else {
            return 0.0;
        };
        let below: u64 = below.iter().map(|bin| bin.weight).sum();
        let within = last.weight as f64 * last.share_at_or_below(value);
        ((below as f64 + within) / self.total as f64).min(1.0)
    }

    /// Adds weight at a value; returns whether it was done, which is so unless the value is not finite.
    pub fn insert(&mut self, value: f64, weight: u64) -> bool {
        if !value.is_finite() {
            return false;
        }
        if weight == 0 {
            return true;
        }
        self.lowest = self.lowest();
        self.total = self.total.saturating_add(weight);
        let heavy = self.heavy();
        let above = self.bins.partition_point(|bin| bin.lower <= value);
        match above.checked_sub(1) {
            Some(at) if value <= self.bins[at].upper => {
                let at = self.split_if_heavy(at, value, weight);
                self.bins[at].weight = self.bins[at].weight.saturating_add(weight);
            }
            _ => match self.extensible(above, value, weight, heavy) {
                Some(at) => {
                    let bin = &mut self.bins[at];
                    bin.lower = bin.lower.min(value);
                    bin.upper = bin.upper.max(value);
                    bin.weight = bin.weight.saturating_add(weight);
                }
                None => self.open(value, weight),
            },
        }
        true
    }

    /// Takes away weight that was added at a value, as far as there is any; returns whether it was done, as
    /// [`insert`](QuantileHistogram::insert) does.
    ///
    /// A lowest bin that has become lighter than a quarter of the mean, or that keeps no more than two means while eight means are
    /// removed elsewhere, is joined with the next one at the edge of that: it holds what is not there.
    pub fn remove(&mut self, value: f64, weight: u64) -> bool {
        if !value.is_finite() {
            return false;
        }
        self.lowest = self.lowest();
        let weight = weight.min(self.total);
        if weight == 0 {
            return true;
        }
        if self.bins.first().is_some_and(|bin| value <= bin.upper) {
            self.removed_elsewhere = 0;
        } else {
            self.removed_elsewhere = self.removed_elsewhere.saturating_add(weight);
        }
        self.take(value, weight);
        self.total -= weight;
        self.trim();
        true
    }

    /// The weight from which on a bin is split: two means.
    fn heavy(&self) -> u64 {
        (self.total / self.bins_max as u64).saturating_mul(2).max(2)
    }

    /// The bin beside a gap that a value there can join: the nearer one, where all are in use and it stays light enough.
    fn extensible(&self, above: usize, value: f64, weight: u64, heavy: u64) -> Option<usize> {
        if self.bins.len() < self.bins_max {
            return None;
        }
        let below = above.checked_sub(1);
        let up = (above < self.bins.len()).then_some(above);
        let nearer = match (below, up) {
            (Some(below), Some(up)) => {
                let is_lower = value - self.bins[below].upper <= self.bins[up].lower - value;
                if is_lower { below } else { up }
            }
            (below, up) => below.or(up)?,
        };
        (self.bins[nearer].weight.saturating_add(weight) <= heavy).then_some(nearer)
    }

    /// Opens a bin for one value, which is in no other.
    fn open(&mut self, value: f64, weight: u64) {
        if self.bins.len() >= self.bins_max {
            self.merge_lightest(None);
        }
        let at = self.bins.partition_point(|bin| bin.lower <= value);
        // The value may now be inside two bins that were merged.
        if let Some(bin) = at.checked_sub(1).map(|at| &mut self.bins[at])
            && value <= bin.upper
        {
            bin.weight = bin.weight.saturating_add(weight);
            return;
        }
        let bin = Bin {
            lower: value,
            upper: value,
            weight,
        };
        self.bins.insert(at, bin);
    }

    /// Splits the bin of a value if it is about to be heavy; returns where the value belongs then.
    ///
    /// It is cut at the value: below it, or, if the value is at an edge and so may be one that comes again and again, such that it
    /// has a bin of its own.
    fn split_if_heavy(&mut self, at: usize, value: f64, weight: u64) -> usize {
        let Bin { lower, upper, .. } = self.bins[at];
        let heavy = self.heavy();
        let after = self.bins[at].weight.saturating_add(weight);
        // Of the insertions into a bin one for every eighth of that weight may cut it, so that cuts are where the bytes are and not
        // where the many small objects are.
        let step = (heavy / 8).max(1);
        if lower == upper || after <= heavy || after / step == self.bins[at].weight / step {
            return at;
        }
        let share = self.bins[at].share_at_or_below(value);
        let is_edge = value == lower || value == upper;
        let is_central = (0.25..=0.75).contains(&share);
        if !is_edge && !is_central && after <= heavy / 2 * 3 {
            return at;
        }
        let mut at = at;
        if self.bins.len() >= self.bins_max {
            let Some(merged) = self.merge_lightest(Some(at)) else {
                return at;
            };
            at -= usize::from(merged < at);
        }
        let old = self.bins[at];
        let (low, high) = if value == lower {
            (0, old.weight)
        } else if value == upper {
            (old.weight, 0)
        } else {
            // Where a bin grew by half without a value near its middle, its content is not even: half of it is the best guess.
            let share = if is_central { share } else { 0.5 };
            let low = ((old.weight as f64 * share) as u64).min(old.weight);
            (low, old.weight - low)
        };
        if value == lower {
            self.bins[at] = Bin {
                lower: value.next_up(),
                ..old
            };
            let bin = Bin {
                lower: value,
                upper: value,
                weight: low,
            };
            self.bins.insert(at, bin);
            at
        } else {
            self.bins[at] = Bin {
                upper: value.next_down(),
                weight: low,
                ..old
            };
            let bin = Bin {
                lower: value,
                upper,
                weight: high,
            };
            self.bins.insert(at + 1, bin);
            if low == 0 {
                self.bins.remove(at);
                return at;
            }
            at + 1
        }
    }

    /// Merges the two neighbours that are lightest together, but not the lowest bin, nor `spared`; returns the lower of the two.
    /// Does nothing if they would be heavy and a bin is to be spared.
    fn merge_lightest(&mut self, spared: Option<usize>) -> Option<usize> {
        let pairs = (1..self.bins.len().saturating_sub(1))
            .filter(|at| spared.is_none_or(|spared| *at != spared && at + 1 != spared));
        let lightest =
            pairs.min_by_key(|at| self.bins[*at].weight.saturating_add(self.bins[at + 1].weight))?;
        let weight = self.bins[lightest]
            .weight
            .saturating_add(self.bins[lightest + 1].weight);
        if spared.is_some() && weight > self.heavy() {
            return None;
        }
        let upper = self.bins.remove(lightest + 1).upper;
        self.bins[lightest].upper = upper;
        self.bins[lightest].weight = weight;
        Some(lightest)
    }

    /// Takes weight from the bin at a value, and what that has not from the nearest that have. There is as much in all.
    fn take(&mut self, value: f64, mut weight: u64) {
        while weight > 0 && !self.bins.is_empty() {
            let above = self.bins.partition_point(|bin| bin.lower <= value);
            let distance_up = self
                .bins
                .get(above)
                .map_or(f64::INFINITY, |bin| bin.lower - value);
            let at = match above.checked_sub(1) {
                Some(below) if value - self.bins[below].upper <= distance_up => below,
                _ => above.min(self.bins.len() - 1),
            };
            let taken = weight.min(self.bins[at].weight);
            weight -= taken;
            self.bins[at].weight -= taken;
            if self.bins[at].weight == 0 {
                self.bins.remove(at);
            }
        }
    }

    /// Joins lowest bins with the next that hold what is not there.
    fn trim(&mut self) {
        let mean = self.total / self.bins_max as u64;
        while let [lowest, _, ..] = self.bins[..] {
            let is_light = lowest.weight < mean / 4;
            let is_stale = self.removed_elsewhere / 8 > mean && lowest.weight <= 2 * mean;
            if !is_light && !is_stale {
                break;
            }
            self.bins.remove(0);
            self.bins[0].weight += lowest.weight;
            self.removed_elsewhere = 0;
        }
    }
}
