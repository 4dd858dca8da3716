//! When operations begin.

use pumice_world::Random;

/// The arrivals of an open loop: fixed before the run, whatever the server does.
#[derive(Clone, Debug)]
pub struct Schedule {
    random: Option<Random>,
    /// Mean nanoseconds between arrivals.
    gap: f64,
    next: f64,
}

impl Schedule {
    /// Arrivals of one of `threads` threads that together make `rate` operations per second; evenly spaced, the
    /// threads in turn, or with exponential gaps (a Poisson process).
    pub fn new(rate: f64, is_poisson: bool, thread: usize, threads: usize) -> Self {
        let gap = 1e9 * threads as f64 / rate;
        let mut schedule = Schedule {
            random: is_poisson.then(|| Random(0xa111_7a15 + thread as u64)),
            gap,
            next: gap * thread as f64 / threads as f64,
        };
        if is_poisson {
            schedule.next = 0.0;
            schedule.advance();
        }
        schedule
    }

    /// The next arrival, in nanoseconds since the start.
    pub fn next(&self) -> u64 {
        self.next as u64
    }

    /// Goes on to the arrival after the next.
    pub fn advance(&mut self) {
        self.next += match &mut self.random {
            None => self.gap,
            Some(random) => -self.gap * (1.0 - random.next_f64()).ln(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_keep_their_rate() {
        for is_poisson in [false, true] {
            for threads in [1, 3] {
                let mut count = 0;
                let mut gaps = Vec::new();
                for thread in 0..threads {
                    let mut schedule = Schedule::new(50_000.0, is_poisson, thread, threads);
                    while schedule.next() < 1_000_000_000 {
                        let at = schedule.next();
                        schedule.advance();
                        gaps.push((schedule.next() - at) as f64);
                        count += 1;
                    }
                }
                assert!((49_000..=51_000).contains(&count), "{count}");
                let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
                let spread =
                    (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
                let expected = if is_poisson { mean } else { 0.0 };
                assert!((spread - expected).abs() < mean * 0.05, "{spread} of {mean}");
            }
        }
    }
}
