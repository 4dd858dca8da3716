//! How much of the load a trial may move to a device: by how fast both answer, and by how much the other has done already.
//!
//! Reads that go to a device which is so many times slower wait for so many times as long. Where clients wait for answers, no more of them can
//! wait there than there are: what is gained by redirecting is at most the ratio of the latencies. So a device that is far slower is not tried, a
//! slower one with a part of that ratio, and none with more than twice what it was seen to do well. A device that serves no reads is asked by
//! single ones.

use super::counts::{Counts, Side};

/// Where less than this share is to be gained, nothing is tried.
const GAIN_MIN: f64 = 0.03;
/// Reads of a trial may wait for this share of the time of all.
const WAIT_MAX: f64 = 0.125;
/// A smaller step shows nothing.
const STEP_MIN: f64 = 0.001;
/// A device does well up to so many times the latency that it has with little to do.
const WELL: f64 = 2.0;
/// Latencies are known by so many reads, and by windows no longer ago.
const READS_MIN: u64 = 4;
const WINDOWS_MAX: u64 = 32;
/// The usual latency is that of so many windows.
const MEMORY: f64 = 8.0;
/// Single reads take at most this share of the time of all.
const ASKING_MAX: f64 = 0.01;
/// A single read that was not answered for so long is asked again.
const PATIENCE_NS: u64 = 10_000_000_000;

/// What one device has shown.
#[derive(Clone, Copy, Debug)]
struct Shown {
    /// The mean of the logarithm of its latency, of so many windows.
    latency: f64,
    windows: f64,
    /// Reads so far.
    reads: u64,
    /// The logarithm of the least latency of a window.
    light: f64,
    /// Most reads a second that it did well.
    rate: f64,
    /// Windows since it last answered one.
    age: u64,
    /// When it was asked by a single read, and whether it has answered since.
    asked_ns: Option<u64>,
    is_answered: bool,
}

impl Default for Shown {
    fn default() -> Self {
        Self {
            latency: 0.0,
            windows: 0.0,
            reads: 0,
            light: f64::INFINITY,
            rate: 0.0,
            age: 0,
            asked_ns: None,
            is_answered: false,
        }
    }
}

impl Shown {
    fn is_known(&self) -> bool {
        self.reads >= READS_MIN && self.age <= WINDOWS_MAX
    }
}

/// What both devices have shown.
#[derive(Debug, Default)]
pub(super) struct Reach {
    shown: [Shown; 2],
    /// Reads a second now: of each device, and hits.
    rates: [f64; 2],
    hits: f64,
}

impl Reach {
    /// Notes a window of so many seconds.
    pub(super) fn note(&mut self, sample: &Counts, seconds: f64) {
        self.hits = sample.hits as f64 / seconds;
        for (number, side) in [Side::Upper, Side::Lower].into_iter().enumerate() {
            self.rates[number] = sample.reads[number] as f64 / seconds;
            let shown = &mut self.shown[number];
            let Some(latency) = sample.mean_read_ns(side) else {
                shown.age += 1;
                continue;
            };
            let latency = latency.max(1.0).ln();
            shown.light = shown.light.min(latency);
            shown.reads += sample.reads[number];
            shown.windows = (shown.windows + 1.0).min(MEMORY);
            shown.latency += (latency - shown.latency) / shown.windows;
            (shown.age, shown.is_answered) = (0, true);
            if latency <= shown.light + WELL.ln() {
                shown.rate = shown.rate.max(self.rates[number]);
            }
        }
    }

    /// The load is another, or a device: the next window counts alone.
    pub(super) fn afresh(&mut self) {
        for shown in &mut self.shown {
            (shown.windows, shown.light) = (0.0, f64::INFINITY);
        }
    }

    /// The most by which the share of hits that goes to a device may be raised at once: 0 where nothing is to be gained. `None`: its latency is not
    /// known.
    pub(super) fn most(&self, to: Side) -> Option<f64> {
        let (to, from) = (to as usize, 1 - to as usize);
        if !self.shown[to].is_known() || self.shown[from].windows == 0.0 {
            return None;
        }
        let (there, here) = (self.shown[to].latency, self.shown[from].latency);
        let gain = (here - there).exp();
        let one_by_one = 1e9 / there.exp();
        let more = (WELL * self.shown[to].rate - self.rates[to]).max(one_by_one);
        let step = (WAIT_MAX * gain).min(more / self.hits.max(1.0));
        Some(if gain < GAIN_MIN || step < STEP_MIN {
            0.0
        } else {
            step
        })
    }

    /// Whether a single read should ask the device now, with so many requests under way. One is at a time, and seldom where that takes long.
    pub(super) fn should_ask(&mut self, side: Side, under_way: f64, now_ns: u64) -> bool {
        let shown = &mut self.shown[side as usize];
        let pause = match shown.reads {
            0 => 0.0,
            _ => shown.latency.exp() / (ASKING_MAX * under_way.max(1e-9)),
        };
        let is_due = shown.asked_ns.is_none_or(|asked| {
            let passed = now_ns.saturating_sub(asked);
            match shown.is_answered {
                true => passed as f64 > pause,
                false => passed > PATIENCE_NS,
            }
        });
        if is_due {
            (shown.asked_ns, shown.is_answered) = (Some(now_ns), false);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window of a millisecond: reads of both devices, of so many nanoseconds each.
    fn window(reads: [u64; 2], latency: [u64; 2], hits: u64) -> Counts {
        Counts {
            hits,
            reads,
            read_latency_ns: [reads[0] * latency[0], reads[1] * latency[1]],
            ..Counts::default()
        }
    }

    fn noted(samples: &[Counts]) -> Reach {
        let mut reach = Reach::default();
        samples.iter().for_each(|sample| reach.note(sample, 1e-3));
        reach
    }

    #[test]
    fn where_a_device_is_far_slower_nothing_is_tried() {
        let slow = [10_000, 12_700_000];
        let reach = noted(&[window([500, 5], slow, 500)]);
        assert_eq!(reach.most(Side::Lower), Some(0.0));
        // The other way much is gained: as much as the other has done twice over.
        let up = reach.most(Side::Upper).expect("both are known");
        assert!((up - 1.0).abs() < 1e-9, "{up}");
    }

    #[test]
    fn a_step_is_part_of_the_gain_and_no_more_than_twice_what_was_done_well() {
        let reach = noted(&[window([500, 100], [20_000, 80_000], 500)]);
        let most = reach.most(Side::Lower).expect("both are known");
        assert!((most - WAIT_MAX / 4.0).abs() < 1e-9, "{most}");
        // With few reads of its own, as many more.
        let reach = noted(&[window([500, 10], [20_000, 40_000], 500)]);
        let most = reach.most(Side::Lower).expect("both are known");
        assert!(
            (most - 25.0 / 500.0).abs() < 1e-9,
            "one by one it does 25 in a window: {most}"
        );
        // What it did with long queues was not done well.
        let saturated = window([400, 300], [20_000, 400_000], 500);
        let reach = noted(&[window([500, 50], [20_000, 40_000], 500), saturated]);
        assert!(reach.shown[1].rate < 60_000.0, "{:?}", reach.shown[1]);
    }

    #[test]
    fn a_device_without_reads_is_asked_one_by_one_and_seldom_where_that_takes_long() {
        let mut reach = noted(&[window([500, 0], [10_000, 0], 500)]);
        assert_eq!(reach.most(Side::Lower), None);
        assert!(reach.should_ask(Side::Lower, 10.0, 1_000));
        assert!(!reach.should_ask(Side::Lower, 10.0, 2_000), "it has not answered");
        reach.note(&window([500, 1], [10_000, 1_000_000], 500), 1e-3);
        assert_eq!(reach.most(Side::Lower), None, "one read says little");
        assert!(
            !reach.should_ask(Side::Lower, 10.0, 1_000_000),
            "that would be a tenth of all time"
        );
        assert!(reach.should_ask(Side::Lower, 10.0, 20_000_000));
        for _ in 0..3 {
            reach.note(&window([500, 1], [10_000, 1_000_000], 500), 1e-3);
        }
        assert_eq!(reach.most(Side::Lower), Some(0.0));
        for _ in 0..=WINDOWS_MAX {
            reach.note(&window([500, 0], [10_000, 0], 500), 1e-3);
        }
        assert_eq!(reach.most(Side::Lower), None, "that was long ago");
        // A read that is lost is asked again at last.
        assert!(reach.should_ask(Side::Lower, 10.0, 100_000_000));
        assert!(reach.should_ask(Side::Lower, 10.0, 100_000_001 + PATIENCE_NS));
    }
}
