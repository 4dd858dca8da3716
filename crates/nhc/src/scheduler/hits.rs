//! Whether hits still rise, or have fallen.

/// Reads after which hits may count as steady, at least.
const STEADY_MIN: u64 = 24_000;
/// After so many times the reads that were waited for, data that is held is let be changed again: hits may be able to rise further, too slowly
/// to be seen before.
const HELD_MAX: u64 = 50;
/// Hits are waited for twice as long after each time that they fell soon, or data was let be changed, up to so many times.
const PATIENCE_MAX: u64 = 64;
/// A smaller rise from one third of the time to the next is none.
const RISE_MIN: f64 = 0.003;
/// Looked for is a fall of so many points, and so much of the misses.
const FALL: (f64, f64) = (0.01, 0.1);
/// The evidence for a fall: nepers of its likelihood against that of none.
const EVIDENCE: f64 = 12.0;
/// Reads over which the ratio that counts as usual is averaged. Beyond it follows, while data may change, and stays while it is held.
const MEMORY: f64 = 50_000.0;
/// Points of the curve of hits over reads.
const POINTS: usize = 96;

/// What reads have shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Nothing new.
    Usual,
    /// Hits have fallen.
    Fallen,
    /// Data was held for long: whether hits can rise further is to be seen.
    HeldForLong,
}

/// Watches hits, by numbers of reads alone.
#[derive(Debug)]
pub(super) struct Hits {
    /// The usual ratio, once hits are steady.
    usual: Option<f64>,
    /// Reads that it is the mean of.
    known: f64,
    /// Reads and hits so far, at some times since hits began to rise.
    curve: Vec<(u64, u64)>,
    /// Reads between two of them, at least.
    apart: u64,
    reads: u64,
    hits: u64,
    /// Reads at which the curve is looked at next.
    look: u64,
    /// Evidence for a fall, in hits too few (CUSUM).
    too_few: f64,
    /// Reads since hits are steady.
    steady: u64,
    patience: u64,
}

impl Default for Hits {
    fn default() -> Self {
        Self {
            usual: None,
            known: 0.0,
            curve: vec![(0, 0)],
            apart: 0,
            reads: 0,
            hits: 0,
            look: STEADY_MIN,
            too_few: 0.0,
            steady: 0,
            patience: 1,
        }
    }
}

impl Hits {
    pub(super) fn is_steady(&self) -> bool {
        self.usual.is_some()
    }

    /// Data is held from now on, or no longer.
    pub(super) fn turn(&mut self, held: bool) {
        if held {
            self.steady = 0;
        } else {
            self.rise();
        }
    }

    /// They begin to rise.
    fn rise(&mut self) {
        *self = Self {
            patience: self.patience,
            look: STEADY_MIN * self.patience,
            ..Self::default()
        };
    }

    /// Notes reads; hits are no longer steady where they show something. `data`: what the upper device has may change.
    pub(super) fn note(&mut self, hits: u64, misses: u64, data: bool) -> Seen {
        let reads = hits + misses;
        let Some(usual) = &mut self.usual else {
            self.reads += reads;
            self.hits += hits;
            if self
                .curve
                .last()
                .is_none_or(|last| self.reads >= last.0 + self.apart)
            {
                self.curve.push((self.reads, self.hits));
            }
            if self.curve.len() > POINTS {
                self.apart = 2 * self.apart.max(self.reads / POINTS as u64);
                let mut index = 0;
                self.curve.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
            }
            self.usual = self.steady_ratio();
            return Seen::Usual;
        };
        self.steady += reads;
        let (reads, hits) = (reads as f64, hits as f64);
        let fall = FALL.0 + FALL.1 * (1.0 - *usual);
        let variance = (*usual * (1.0 - *usual)).max(0.001);
        // Half of the fall looked for, and what chance may have added to the usual ratio.
        let slack = fall / 2.0 + 2.0 * (variance / self.known.max(1.0)).sqrt();
        self.too_few = (self.too_few + reads * (*usual - slack) - hits).max(0.0);
        if self.too_few > EVIDENCE * variance / fall {
            let soon = self.steady < 10 * STEADY_MIN * self.patience;
            self.patience = if soon {
                (2 * self.patience).min(PATIENCE_MAX)
            } else {
                1
            };
            self.rise();
            return Seen::Fallen;
        }
        if !data && self.steady > HELD_MAX * STEADY_MIN * self.patience {
            self.rise();
            // For longer next time: this one goes by what it was.
            self.patience = (2 * self.patience).min(PATIENCE_MAX);
            return Seen::HeldForLong;
        }
        if reads > 0.0 && (data || self.known < MEMORY) {
            self.known = (self.known + reads).min(MEMORY);
            *usual += (hits / reads - *usual) * (reads / self.known).min(1.0);
        }
        Seen::Usual
    }

    /// The ratio of the last third of the reads, if it is no higher than that of the third before.
    fn steady_ratio(&mut self) -> Option<f64> {
        if self.reads < self.look {
            return None;
        }
        self.look = self.reads + self.reads / 4;
        let at = |reads: u64| {
            let after = self.curve.iter().find(|point| point.0 >= reads);
            *after.unwrap_or(&(self.reads, self.hits))
        };
        let (first, second) = (at(self.reads / 3), at(self.reads / 3 * 2));
        let ratio = |from: (u64, u64), to: (u64, u64)| {
            let reads = (to.0 - from.0).max(1) as f64;
            ((to.1 - from.1) as f64 / reads, reads)
        };
        let (before, _) = ratio(first, second);
        let (now, reads) = ratio(second, (self.reads, self.hits));
        self.known = reads;
        let error = (2.0 * now * (1.0 - now) / reads).sqrt();
        (now - before <= RISE_MIN.max(error)).then_some(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pumice_world::Random;

    /// Notes so many windows of 300 reads at this ratio; the number of falls seen.
    fn run(
        hits: &mut Hits,
        random: &mut Random,
        windows: u64,
        data: bool,
        ratio: impl Fn(u64) -> f64,
    ) -> u64 {
        let mut falls = 0;
        for window in 0..windows {
            let good = (0..300).filter(|_| random.next_f64() < ratio(window)).count() as u64;
            falls += u64::from(hits.note(good, 300 - good, data) != Seen::Usual);
        }
        falls
    }

    #[test]
    fn chance_is_no_fall_and_a_real_one_is_seen_soon() {
        let (mut hits, mut random) = (Hits::default(), Random(3));
        assert_eq!(run(&mut hits, &mut random, 100, true, |_| 0.95), 0);
        assert!(hits.is_steady());
        hits.turn(true);
        // A million reads.
        assert_eq!(run(&mut hits, &mut random, 3_500, false, |_| 0.95), 0);
        assert_eq!(
            run(&mut hits, &mut random, 1_000, false, |_| 0.95),
            1,
            "held for long"
        );
        run(&mut hits, &mut random, 400, true, |_| 0.95);
        assert!(hits.is_steady());
        hits.turn(true);
        assert_eq!(run(&mut hits, &mut random, 2, false, |_| 0.5), 1);
        assert!(!hits.is_steady());
        run(&mut hits, &mut random, 600, true, |_| 0.9);
        assert!(hits.is_steady());
        assert_eq!(run(&mut hits, &mut random, 100, false, |_| 0.87), 1);
    }

    #[test]
    fn a_slow_rise_is_waited_for() {
        for full in [100, 1_000, 5_000] {
            let (mut hits, mut random) = (Hits::default(), Random(full));
            run(&mut hits, &mut random, full * 9 / 10, true, |window| {
                0.9 * window as f64 / full as f64
            });
            assert!(!hits.is_steady(), "{full}");
            run(&mut hits, &mut random, 5 * full, true, |_| 0.9);
            assert!(hits.is_steady(), "{full}");
        }
    }

    #[test]
    fn who_falls_again_and_again_waits_for_longer() {
        let (mut hits, mut random) = (Hits::default(), Random(5));
        for _ in 0..4 {
            (hits.usual, hits.known) = (Some(0.95), 1e4);
            run(&mut hits, &mut random, 3, false, |_| 0.5);
        }
        assert_eq!(hits.patience, 16);
        run(&mut hits, &mut random, 1_200, true, |_| 0.9);
        assert!(!hits.is_steady());
    }
}
