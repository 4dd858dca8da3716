//! How much of what the upper device could serve is sent there, and whether data is copied to it.
//!
//! # What it decides
//!
//! `load_admit` is the share of hits that go to the upper device; the rest is redirected to the lower one, which has everything.
//! `data_admit` says whether data may be copied up. Classic caching is 1 and 1.
//!
//! In state 1 ([`State::Filling`]) data is copied up. When hits have stopped rising, and the upper device is found to be the bottleneck,
//! state 2 ([`State::Tuning`]) copies nothing and holds what is there. It ends where it no longer helps, or hits have fallen. In both
//! states `load_admit` is sought all the time, by trial.
//!
//! # Trials
//!
//! A trial compares two settings in turns, A B B A A B …, each for a window of some hundred requests; what was queued under the other
//! setting is let through before a window begins. Of each pair the logarithm of the ratio of costs is noted, so that what rises or falls
//! meanwhile cancels out. It ends when the mean is further from 0 than chance explains, by the spread seen in this trial and in those
//! before, or after a dozen pairs without a difference. The cost is what the [`Objective`] says. For `throughput` it is mean outstanding requests
//! over requests done in a second, by Little's law the mean response time: that has a slope also where requests do not wait for each
//! other, so that the rate itself tells nothing.
//!
//! `load_admit` moves to the better of `load_admit` ± step, and goes on in that direction by a step twice as long as long as that is better than
//! to stay; then the step is shortened. At
//! the smallest step without a difference it is held, for longer each time; held, the cost is watched, and a jump starts trials at once with a
//! large step. So little is spent on probing where nothing is to be gained.
//!
//! In turns with another setting one may look better than it is by itself: a queue that fills in one window is empty again after the next. So a trial
//! also ends, and what was held before it is held again, where its better side costs more than that did. Where more is under way than before, that
//! much is no loss of the trial's.
//!
//! What a trial may send to a device follows from the latencies of both, and from what it has done already: the module `reach`. A device whose latency
//! is not known is asked by single reads before. Where nothing is to be gained one way, the first trial since the load changed goes the other way at
//! once as far as may be: a step shows little there.
//!
//! Where reads are redirected, the upper device is the bottleneck and copies would take from it: `data_admit` is 0. At `load_admit` 1 a trial of
//! `data_admit` 0 against 1 decides.
//!
//! # What differs from the paper
//!
//! Wu, Guo, Hu, et al.: "The Storage Hierarchy is Not a Hierarchy: Optimizing Caching on Modern Storage Devices with Orthus", FAST 2021.
//! Its algorithm as it is written is [`Literal`]. "Stable within 0.1 % in 100 ms" and "hit rate below that at the start" are replaced by tests
//! that know their sample size, throughput by the cost above, the return to state 1 at `load_admit` 1 by the trial of `data_admit`.

mod baselines;
mod counts;
mod hits;
mod level;
mod reach;
mod switch;
mod trial;

pub use baselines::{Balance, Literal, fixed_split, paper};
pub use counts::{Counts, Histogram, Meter, Side};
pub use switch::Switch;

use hits::{Hits, Seen};
use level::Level;
use reach::Reach;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use trial::{Noise, PAIRS_MAX, PAIRS_MIN, Trial, Verdict};

/// What is to be best.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Objective {
    /// Most requests a second where clients wait for answers, least mean response time of all requests where they do not.
    #[default]
    Throughput,
    /// Least mean latency of reads.
    Mean,
    /// Least 99th percentile of latencies.
    P99,
}

/// There is no objective of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such objective: `{0}`; there are throughput, mean and p99")]
pub struct ObjectiveError(String);

impl FromStr for Objective {
    type Err = ObjectiveError;

    fn from_str(name: &str) -> Result<Self, ObjectiveError> {
        let all = [Self::Throughput, Self::Mean, Self::P99];
        let found = all.into_iter().find(|objective| objective.to_string() == name);
        found.ok_or_else(|| ObjectiveError(name.to_owned()))
    }
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Throughput => "throughput",
            Self::Mean => "mean",
            Self::P99 => "p99",
        })
    }
}

/// The state of the paper's algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// State 1: data is copied up.
    Filling,
    /// State 2: nothing is copied up.
    Tuning,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Filling => "filling",
            Self::Tuning => "tuning",
        })
    }
}

/// Why as much is redirected as is, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Too few requests so far to tell anything.
    TooFew,
    /// Reads are redirected: a trial found that better.
    Redirecting,
    /// A trial found it worse to redirect reads.
    Worse,
    /// A trial found no difference.
    NoDifference,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooFew => "too few requests so far",
            Self::Redirecting => "reads are redirected",
            Self::Worse => "the upper device answers better alone",
            Self::NoDifference => "redirecting makes no difference",
        })
    }
}

/// What sets a switch by counts: the scheduler, and what it is compared with.
pub trait Governor {
    /// What it sets.
    fn switch(&self) -> &Arc<Switch>;
    /// Whether [`window`](Governor::window) has anything to do.
    fn is_due(&self, completions: u64, now_ns: u64) -> bool;
    /// Takes the counts so far.
    fn window(&mut self, counts: &Counts, now_ns: u64);
}

/// What the scheduler does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Status {
    /// Its state.
    pub state: State,
    /// The share of hits that go to the upper device, but for trials.
    pub load_admit: f64,
    /// Whether data may be copied up, but for trials.
    pub data_admit: bool,
    /// Windows measured.
    pub windows: u64,
    /// Trials ended.
    pub trials: u64,
    /// Trials that changed `load_admit`.
    pub moves: u64,
    /// Times that hits had fallen.
    pub falls: u64,
    /// Why reads are redirected, or are not.
    pub reason: Reason,
    /// The time from the last jump of the cost, or the start, until a setting was held.
    pub settled_ns: u64,
}

/// The least and most by which `load_admit` is moved at once.
const STEPS: (f64, f64) = (0.01, 0.16);
/// The most below 1 where no difference was found; the one at `load_admit` 1; the one after a jump.
const STEP_EVEN: f64 = 0.02;
const STEP_AFRESH: f64 = 0.04;
const STEP_JUMP: f64 = 0.08;
/// Requests of a window: at least, and for each that is under way.
const WINDOW: (u64, u64) = (256, 2);
/// As many for the 99th percentile, of which a hundredth tells.
const WINDOW_P99: (u64, u64) = (3_000, 8);
/// Where no difference of `load_admit` is found windows are twice as long next time, up to so many times; where one is found, half.
const SCALE_MAX: u64 = 4;
/// No window is longer, whatever is under way.
const WINDOW_MAX: u64 = 1 << 18;
/// Requests let through between settings, at least; otherwise as many as are under way.
const SETTLE: u64 = 32;
/// A setting is held for so many windows, doubled as often, and for each time that nothing was found.
const HOLD: (u64, u32) = (16, 5);

#[derive(Clone, Copy, Debug, PartialEq)]
struct Setting {
    load: f64,
    data: bool,
}

#[derive(Debug)]
enum Phase {
    Hold { until: u64 },
    Trial(Trial),
}

/// Sets `load_admit` and `data_admit`; see the module's text.
#[derive(Debug)]
pub struct Scheduler {
    switch: Arc<Switch>,
    objective: Objective,
    /// What holds between trials.
    held: Setting,
    /// What the switch says.
    current: Setting,
    step: f64,
    /// Whether the last move was up.
    moved_up: Option<bool>,
    /// The next trial goes on in the direction of the last move, against what is held; otherwise both sides are compared.
    is_heading: bool,
    /// Whether the next trial at `load_admit` 1 is one of data.
    is_data_next: bool,
    /// Data is let be changed for a while, though hits have not fallen.
    is_refresh: bool,
    phase: Phase,
    backoff: u32,
    /// Windows are so many times as long as they would be: chance hid what there was to find.
    scale: u64,
    noise: Noise,
    level: Level,
    hits: Hits,
    reach: Reach,
    /// The trial goes no further than this device has shown that it can do, by so much.
    capped: Option<(Side, f64)>,
    /// The latency of a device is waited for.
    is_asking: bool,
    /// A single read is to ask for it.
    asks: bool,
    /// The counts and the time at which the window began; `None` while requests under the setting before are let through.
    mark: Option<(Counts, u64)>,
    /// The count of completed requests at which the window ends, or the wait for requests of the setting before.
    due: u64,
    /// Mean requests under way in the last window.
    under_way: f64,
    unsettled_since: Option<u64>,
    status: Status,
}

impl Scheduler {
    /// One that begins with classic caching.
    pub fn new(objective: Objective) -> Self {
        let classic = Setting {
            load: 1.0,
            data: true,
        };
        Self {
            switch: Arc::default(),
            objective,
            held: classic,
            current: classic,
            step: STEP_AFRESH,
            moved_up: None,
            is_heading: false,
            is_data_next: false,
            is_refresh: false,
            phase: Phase::Hold { until: 0 },
            backoff: 0,
            scale: 1,
            noise: Noise::default(),
            level: Level::default(),
            hits: Hits::default(),
            reach: Reach::default(),
            capped: None,
            is_asking: false,
            asks: false,
            mark: None,
            due: 0,
            under_way: 0.0,
            unsettled_since: None,
            status: Status {
                state: State::Filling,
                load_admit: 1.0,
                data_admit: true,
                windows: 0,
                trials: 0,
                moves: 0,
                falls: 0,
                reason: Reason::TooFew,
                settled_ns: 0,
            },
        }
    }

    /// What it sets.
    pub fn switch(&self) -> &Arc<Switch> {
        &self.switch
    }

    /// Whether enough was done since the last call for [`window`](Scheduler::window) to have anything to do: to sum up counts before is in vain.
    pub fn is_due(&self, completions: u64) -> bool {
        completions >= self.due
    }

    /// What it does, for whoever wants to see it.
    pub fn status(&self) -> Status {
        Status {
            load_admit: self.held.load,
            data_admit: self.held.data,
            state: if self.held.data {
                State::Filling
            } else {
                State::Tuning
            },
            ..self.status
        }
    }

    /// Takes the counts so far. Called seldom, its windows are as long as that; nothing else comes of it.
    pub fn window(&mut self, counts: &Counts, now_ns: u64) {
        let done = counts.completions();
        if done < self.due {
            return;
        }
        let Some((mark, since)) = self.mark.take() else {
            if self.status.windows == 0 {
                self.unsettled_since.get_or_insert(now_ns);
            }
            self.mark = Some((counts.clone(), now_ns));
            self.due = done + self.length();
            return;
        };
        let sample = counts.since(&mark);
        self.under_way = sample.outstanding_ns as f64 / now_ns.saturating_sub(since).max(1) as f64;
        self.status.windows += 1;
        self.reach
            .note(&sample, now_ns.saturating_sub(since).max(1) as f64 / 1e9);
        let seen = self.hits.note(sample.hits, sample.misses, self.held.data);
        if seen != Seen::Usual {
            self.held.data = true;
            self.is_refresh = seen == Seen::HeldForLong;
        }
        let cost = self.cost(&sample);
        match seen {
            Seen::Usual => {}
            Seen::Fallen => {
                // Settings under trial are void, and another split is best meanwhile.
                self.status.falls += 1;
                self.afresh();
                self.phase = Phase::Hold { until: done };
            }
            // The split stays until hits are steady.
            Seen::HeldForLong => {
                self.level = Level::default();
                self.phase = Phase::Hold { until: u64::MAX };
            }
        }
        let is_trial = matches!(self.phase, Phase::Trial(_));
        let held = (!is_trial).then_some(self.held.load);
        if self.level.has_jumped(cost, self.under_way, &self.noise, held) {
            self.afresh();
            self.is_data_next = false;
            self.unsettled_since = Some(now_ns);
            self.next_trial(done, now_ns);
        } else if let Phase::Trial(trial) = &mut self.phase {
            let verdict = trial.note(cost, self.under_way, &mut self.noise);
            if self.level.is_below(trial, &self.noise) {
                self.go_back(done, now_ns);
            } else if let Some(verdict) = verdict {
                self.conclude(verdict, done, now_ns);
            }
        } else if self.held.data && (self.held.load < 1.0 || self.is_refresh) && self.hits.is_steady() {
            self.hold_data(true);
            self.next_trial(done, now_ns);
        } else if matches!(self.phase, Phase::Hold { until } if done >= until) {
            self.next_trial(done, now_ns);
        }
        let next = match &self.phase {
            Phase::Hold { .. } => self.held,
            Phase::Trial(trial) => trial.setting(),
        };
        if next == self.current {
            self.mark = Some((counts.clone(), now_ns));
            self.due = done + self.length();
        } else {
            self.current = next;
            self.switch.set(next.load, next.data);
            self.due = done + SETTLE.max(self.under_way as u64).min(WINDOW_MAX);
        }
        if std::mem::take(&mut self.asks) {
            self.switch.ask();
        }
    }

    /// What is to be small.
    fn cost(&self, sample: &Counts) -> f64 {
        match self.objective {
            Objective::Throughput => sample.outstanding_ns as f64 / sample.completions().max(1) as f64,
            Objective::Mean => {
                let [upper, lower] = sample.read_latency_ns;
                (upper + lower) as f64 / (sample.reads[0] + sample.reads[1]).max(1) as f64
            }
            Objective::P99 => sample.latencies.quantile(0.99),
        }
    }

    /// Requests of a window.
    fn length(&self) -> u64 {
        let (least, each) = match self.objective {
            Objective::P99 => WINDOW_P99,
            _ => WINDOW,
        };
        let length = self.scale * least.max((each as f64 * self.under_way) as u64);
        length.min(WINDOW_MAX)
    }

    fn next_trial(&mut self, done: u64, now_ns: u64) {
        let Setting { load, data } = self.held;
        let may_be_data = load >= 1.0 && self.hits.is_steady();
        if !(may_be_data && self.is_data_next) {
            (self.capped, self.is_asking) = (None, false);
            let below = load - self.step_to(Side::Lower, load, now_ns);
            let above = load + self.step_to(Side::Upper, 1.0 - load, now_ns);
            if below < above {
                self.is_data_next = true;
                let [a, b] = [below, above].map(|load| Setting { load, data });
                let most = if above - below < STEPS.0 {
                    PAIRS_MIN
                } else {
                    PAIRS_MAX
                };
                self.phase = Phase::Trial(Trial::new(a, b, most));
                return;
            }
            if self.is_asking {
                self.phase = Phase::Hold { until: done };
                return;
            }
            if self.status.reason == Reason::TooFew {
                self.status.reason = Reason::Worse;
            }
        }
        self.is_data_next = false;
        if may_be_data {
            let [a, b] = [false, true].map(|data| Setting { load, data });
            self.phase = Phase::Trial(Trial::new(a, b, PAIRS_MAX));
        } else {
            self.hold(done, now_ns);
        }
    }

    /// By how much the next trial raises the share of hits of a device.
    fn step_to(&mut self, side: Side, room: f64, now_ns: u64) -> f64 {
        if room <= 0.0 || self.heads(side == Side::Lower) {
            return 0.0;
        }
        let Some(most) = self.reach.most(side) else {
            self.is_asking = true;
            self.asks |= self.reach.should_ask(side, self.under_way, now_ns);
            return 0.0;
        };
        // At first all at once, where this device is so much faster: if nothing is to be gained the other way, nothing is between.
        let is_first = self.backoff == 0 && self.moved_up.is_none();
        let is_one_way = self.reach.most(side.other()) == Some(0.0) || (most >= 1.0 && room >= 1.0);
        let step = if is_first && is_one_way {
            room
        } else {
            self.step.min(room)
        };
        if most > 0.0 && most < step {
            self.capped = Some((side, most));
        }
        step.min(most)
    }

    /// What was best is so no longer.
    fn afresh(&mut self) {
        self.level = Level::default();
        self.reach.afresh();
        (self.backoff, self.scale) = (0, 1);
        self.step = STEP_JUMP;
        (self.moved_up, self.is_heading) = (None, false);
    }

    /// Whether the next trial goes on up, or down.
    fn heads(&self, up: bool) -> bool {
        self.is_heading && self.moved_up == Some(up)
    }

    /// A trial has ended.
    fn conclude(&mut self, verdict: Verdict, done: u64, now_ns: u64) {
        let Phase::Trial(trial) = &self.phase else { return };
        let [a, b] = trial.settings();
        self.status.trials += 1;
        if a.data != b.data {
            // In doubt data is copied: hits then follow the load.
            self.hold_data(matches!(verdict, Verdict::First));
            return self.hold(done, now_ns);
        }
        let is_least = self.step <= STEPS.0 * 1.001;
        self.scale = match verdict {
            Verdict::Even => (2 * self.scale).min(SCALE_MAX),
            _ => (self.scale / 2).max(1),
        };
        // The device took it well: on at once, by twice as much.
        let goes_on = verdict == Verdict::Even
            && self
                .capped
                .is_some_and(|(side, step)| self.reach.most(side).is_some_and(|most| most >= 1.5 * step));
        if goes_on {
            return self.next_trial(done, now_ns);
        }
        let was = self.held.load;
        let mut better = match verdict {
            Verdict::First => a.load,
            Verdict::Second => b.load,
            Verdict::Even => was,
        };
        let has_moved = (better - was).abs() > 1e-9;
        let is_back = has_moved && self.moved_up.is_some_and(|up| up != (better > was));
        if has_moved {
            self.moved_up = Some(better > was);
            if (better - was).abs() > STEP_AFRESH {
                // Another cost is usual there.
                self.level = Level::default();
            }
            self.step = (self.step * if is_back { 0.5 } else { 2.0 }).clamp(STEPS.0, STEPS.1);
            self.status.moves += 1;
            self.backoff = match (is_least, is_back) {
                (true, true) => self.backoff,
                (true, false) => self.backoff / 2,
                (false, _) => 0,
            };
        } else if self.is_heading {
            // Too far: the best is within half of what it came by, or of what it would have gone on.
            self.step = (self.step / 4.0).max(STEPS.0);
        } else {
            // Chance hides what so small a step brings.
            // Nor may trials themselves be the slowest hundredth, or half of them overload the lower device for a second.
            let most = match self.objective {
                _ if was < 1.0 => STEP_EVEN,
                Objective::P99 => STEP_AFRESH,
                _ => STEPS.1,
            };
            self.step = if verdict == Verdict::Even {
                (self.step * 2.0).min(most)
            } else {
                STEP_AFRESH
            };
        }
        let is_even = !has_moved && !self.is_heading;
        self.is_heading = has_moved && !is_back;
        // To and fro by the least step: the best is between.
        let is_found = is_even || (is_least && is_back);
        if is_least && is_back {
            better = f64::midpoint(was, better);
        }
        self.held.load = better;
        self.status.reason = match verdict {
            _ if better < 1.0 => Reason::Redirecting,
            Verdict::Even => Reason::NoDifference,
            _ => Reason::Worse,
        };
        if self.hits.is_steady() && better < 1.0 && self.held.data {
            self.hold_data(true);
            self.next_trial(done, now_ns);
        } else if better >= 1.0 {
            if has_moved {
                self.step = STEP_AFRESH;
            }
            self.hold(done, now_ns);
        } else if is_found {
            self.hold(done, now_ns);
        } else {
            self.next_trial(done, now_ns);
        }
    }

    /// Both sides of a trial cost more than what was held before it: back to that.
    fn go_back(&mut self, done: u64, now_ns: u64) {
        self.status.trials += 1;
        self.held.load = self.level.load;
        self.step = if self.held.load < 1.0 {
            (self.step / 4.0).max(STEPS.0)
        } else {
            STEP_AFRESH
        };
        // Or the load is another.
        self.level = Level::default();
        self.backoff = 0;
        self.hold(done, now_ns);
    }

    /// Holds what the upper device has, or lets it be changed.
    fn hold_data(&mut self, held: bool) {
        if self.held.data == held {
            self.held.data = !held;
            self.hits.turn(held);
            self.level = Level::default();
            // Another load on the upper device: the best is elsewhere now, or where it was before the refresh.
            if !std::mem::take(&mut self.is_refresh) {
                self.afresh();
            }
        }
    }

    fn hold(&mut self, done: u64, now_ns: u64) {
        let (windows, doublings) = HOLD;
        let until = done + ((windows * self.length()) << self.backoff.min(doublings));
        self.backoff += 1;
        self.phase = Phase::Hold { until };
        (self.moved_up, self.is_heading) = (None, false);
        if let Some(since) = self.unsettled_since.take() {
            self.status.settled_ns = now_ns.saturating_sub(since);
        }
    }
}

impl Governor for Scheduler {
    fn switch(&self) -> &Arc<Switch> {
        &self.switch
    }

    fn is_due(&self, completions: u64, _now_ns: u64) -> bool {
        Scheduler::is_due(self, completions)
    }

    fn window(&mut self, counts: &Counts, now_ns: u64) {
        Scheduler::window(self, counts, now_ns);
    }
}
