//! What the scheduler is compared with. None of it serves.

use super::{Counts, Governor, Side, Switch};
use std::sync::Arc;

/// The analytic model of the paper: operations a second of a cache and of a split, by those of the devices. `hits` is the share of reads that
/// the upper device has, `share` the one that a split sends there.
pub mod paper {
    /// A cache, one request at a time: a miss reads below and writes above.
    pub fn cache_one(hits: f64, upper: f64, lower: f64) -> f64 {
        1.0 / (hits / upper + (1.0 - hits) * (1.0 / upper + 1.0 / lower))
    }

    /// A cache, many requests at a time: each passes the upper device, a miss both.
    pub fn cache_many(hits: f64, upper: f64, lower: f64) -> f64 {
        1.0 / ((1.0 - hits) / lower).max(1.0 / upper)
    }

    /// A split, one request at a time.
    pub fn split_one(share: f64, upper: f64, lower: f64) -> f64 {
        1.0 / ((1.0 - share) / lower + share / upper)
    }

    /// A split, many requests at a time.
    pub fn split_many(share: f64, upper: f64, lower: f64) -> f64 {
        1.0 / ((1.0 - share) / lower).max(share / upper)
    }
}

/// The `load_admit` by which both devices get hits in proportion to what they can do.
pub fn fixed_split(upper: f64, lower: f64) -> f64 {
    upper / (upper + lower)
}

/// Balances latencies, as MOST does between the two copies of mirrored data: every `period_ns` one step of `load_admit` towards the device that
/// answered faster, unless they differ by less than theta. Data is always copied up.
#[derive(Debug)]
pub struct Balance {
    switch: Arc<Switch>,
    period_ns: u64,
    next_ns: u64,
    before: Counts,
}

impl Balance {
    /// Latencies that differ by less are alike.
    pub const THETA: f64 = 0.05;
    /// What `load_admit` changes by at once.
    pub const STEP: f64 = 0.02;
    /// How often it changes.
    pub const PERIOD_NS: u64 = 200_000_000;

    /// One that changes `load_admit` every `period_ns`.
    pub fn new(period_ns: u64) -> Self {
        Self {
            switch: Arc::default(),
            period_ns,
            next_ns: period_ns,
            before: Counts::new(),
        }
    }
}

impl Governor for Balance {
    fn switch(&self) -> &Arc<Switch> {
        &self.switch
    }

    fn is_due(&self, _completions: u64, now_ns: u64) -> bool {
        now_ns >= self.next_ns
    }

    fn window(&mut self, counts: &Counts, now_ns: u64) {
        let sample = counts.since(&self.before);
        self.before = counts.clone();
        self.next_ns = now_ns + self.period_ns;
        let load = self.switch.load_admit();
        let load = match (sample.mean_read_ns(Side::Upper), sample.mean_read_ns(Side::Lower)) {
            (Some(upper), Some(lower)) if upper > lower * (1.0 + Self::THETA) => load - Self::STEP,
            (Some(upper), Some(lower)) if upper < lower * (1.0 - Self::THETA) => load + Self::STEP,
            (None, Some(_)) => load + Self::STEP,
            _ => load,
        };
        self.switch.set(load.clamp(0.0, 1.0), true);
    }
}

/// Algorithm 1 of the paper as it is written.
///
/// State 1: `data_admit` and `load_admit` 1, until the hit ratio has changed by at most 0.1 % within 100 ms. State 2: `data_admit` 0, and
/// the throughput at `load_admit` - step, as it is, and + step, each for `interval_ns`; the best of the three is taken. Back to state 1 where
/// that is 1, and where the hit ratio is below that at the start of state 2.
#[derive(Debug)]
pub struct Literal {
    switch: Arc<Switch>,
    interval_ns: u64,
    next_ns: u64,
    began_ns: u64,
    before: Counts,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// The hit ratio of the 100 ms before.
    Filling(Option<f64>),
    Tuning {
        start_hits: f64,
        ratio: f64,
        /// What was measured of the three settings so far.
        found: Vec<f64>,
        counts: Counts,
    },
}

impl Literal {
    /// What `load_admit` changes by at once.
    pub const STEP: f64 = 0.02;
    /// Over which hits must be stable, and by how much.
    const STABLE: (u64, f64) = (100_000_000, 0.001);

    /// One that measures each setting for `interval_ns`.
    pub fn new(interval_ns: u64) -> Self {
        Self {
            switch: Arc::default(),
            interval_ns,
            next_ns: Self::STABLE.0,
            began_ns: 0,
            before: Counts::new(),
            phase: Phase::Filling(None),
        }
    }

    /// The three settings of a round.
    fn around(ratio: f64) -> [f64; 3] {
        [-Self::STEP, 0.0, Self::STEP].map(|step| (ratio + step).clamp(0.0, 1.0))
    }
}

impl Governor for Literal {
    fn switch(&self) -> &Arc<Switch> {
        &self.switch
    }

    fn is_due(&self, _completions: u64, now_ns: u64) -> bool {
        now_ns >= self.next_ns
    }

    fn window(&mut self, counts: &Counts, now_ns: u64) {
        let sample = counts.since(&self.before);
        let rate = sample.completions() as f64 / now_ns.saturating_sub(self.began_ns).max(1) as f64;
        (self.before, self.began_ns) = (counts.clone(), now_ns);
        let filling = || (Phase::Filling(None), (1.0, true), Self::STABLE.0);
        let phase = std::mem::replace(&mut self.phase, Phase::Filling(None));
        let (phase, (load, data), length) = match phase {
            Phase::Filling(before) => {
                let hits = sample.hit_ratio();
                match (before, hits) {
                    (Some(before), Some(now)) if (now - before).abs() <= Self::STABLE.1 => {
                        let tuning = Phase::Tuning {
                            start_hits: now,
                            ratio: 1.0,
                            found: Vec::new(),
                            counts: counts.clone(),
                        };
                        (tuning, (Self::around(1.0)[0], false), self.interval_ns)
                    }
                    _ => (Phase::Filling(hits), (1.0, true), Self::STABLE.0),
                }
            }
            Phase::Tuning {
                start_hits,
                ratio,
                mut found,
                counts: since,
            } => {
                found.push(rate);
                let around = Self::around(ratio);
                if let Some(&next) = around.get(found.len()) {
                    let tuning = Phase::Tuning {
                        start_hits,
                        ratio,
                        found,
                        counts: since,
                    };
                    (tuning, (next, false), self.interval_ns)
                } else {
                    let most = found.iter().copied().fold(0.0, f64::max);
                    // Where they are alike, as it is.
                    let best = if found[1] >= most {
                        1
                    } else {
                        usize::from(found[2] >= most) * 2
                    };
                    let next = around[best];
                    let hits = counts.since(&since).hit_ratio().unwrap_or(start_hits);
                    if (best == 1 && ratio >= 1.0) || hits < start_hits {
                        filling()
                    } else {
                        let tuning = Phase::Tuning {
                            start_hits,
                            ratio: next,
                            found: Vec::new(),
                            counts: counts.clone(),
                        };
                        (tuning, (Self::around(next)[0], false), self.interval_ns)
                    }
                }
            }
        };
        self.phase = phase;
        self.switch.set(load, data);
        self.next_ns = now_ns + length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Meter;

    #[test]
    fn the_papers_figure_3() {
        // Upper 100. Ratio 100: at 80 % hits one at a time 4.8, many at a time 5; ratio 2: a split of two thirds has both.
        assert!((paper::cache_one(0.8, 100.0, 1.0) - 4.76).abs() < 0.01);
        assert!((paper::cache_many(0.8, 100.0, 1.0) - 5.0).abs() < 1e-9);
        assert!((paper::cache_many(0.95, 100.0, 50.0) - 100.0).abs() < 1e-9);
        assert!((paper::split_many(2.0 / 3.0, 100.0, 50.0) - 150.0).abs() < 1e-9);
        assert!((paper::split_one(1.0, 100.0, 50.0) - 100.0).abs() < 1e-9);
        assert!((fixed_split(100.0, 50.0) - 2.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn balancing_goes_to_the_faster_device() {
        let (mut balance, meter) = (Balance::new(10), Meter::new());
        let mut now = 0;
        let mut turn = |upper: u64, lower: u64| {
            for (side, took) in [(Side::Upper, upper), (Side::Lower, lower)] {
                meter.begin(now);
                meter.end_read(side, now, now + took);
            }
            now += 1_000;
            let mut counts = Counts::new();
            counts.add(&meter, now);
            assert!(balance.is_due(0, now));
            balance.window(&counts, now);
            balance.switch().load_admit()
        };
        assert!((turn(100, 90) - 0.98).abs() < 1e-9);
        assert!((turn(100, 96) - 0.98).abs() < 1e-9);
        assert!((turn(80, 100) - 1.0).abs() < 1e-9);
    }
}
