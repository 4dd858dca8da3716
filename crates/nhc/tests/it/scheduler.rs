//! One client, whose requests take what a formula says of `load_admit` and `data_admit`.

use pumice_nhc::{Counts, Meter, Objective, Reason, Scheduler, Side, State};
use pumice_world::Random;

struct Load {
    scheduler: Scheduler,
    meter: Meter,
    random: Random,
    now: u64,
    /// The sum of costs without chance, of requests.
    cost: f64,
    requests: u64,
}

impl Load {
    fn new(seed: u64) -> Self {
        Self {
            scheduler: Scheduler::new(Objective::Throughput),
            meter: Meter::new(),
            random: Random(seed),
            now: 0,
            cost: 0.0,
            requests: 0,
        }
    }

    /// So many requests, each of which takes `cost` with a share of `noise` of it by chance. The mean without chance.
    fn run(&mut self, requests: u64, noise: f64, hits: f64, cost: impl Fn(f64, bool) -> f64) -> f64 {
        (self.cost, self.requests) = (0.0, 0);
        for _ in 0..requests {
            let switch = self.scheduler.switch();
            let exact = 1_000.0 * cost(switch.load_admit(), switch.data_admit());
            let took = exact * (1.0 + noise * (2.0 * self.random.next_f64() - 1.0));
            let begun = self.now;
            self.meter.begin(begun);
            let mut side = Side::Lower;
            if self.random.next_f64() < hits {
                self.meter.hit();
                side = switch.route((self.random.next_u64() >> 32) as u32);
            } else {
                self.meter.miss();
            }
            self.now += took as u64;
            self.meter.end_read(side, begun, self.now);
            (self.cost, self.requests) = (self.cost + exact / 1_000.0, self.requests + 1);
            if self.scheduler.is_due(self.meter.completions()) {
                let mut counts = Counts::new();
                counts.add(&self.meter, self.now);
                self.scheduler.window(&counts, self.now);
            }
        }
        self.cost / self.requests as f64
    }
}

/// Two devices, both saturated: the one with more work for what it can do decides.
fn saturated(best: f64) -> impl Fn(f64, bool) -> f64 {
    move |load, data| {
        let upper = load / best * if data { 1.1 } else { 1.0 };
        upper.max((1.0 - load) / (1.0 - best))
    }
}

#[test]
fn it_finds_the_split_and_holds_the_data() {
    for best in [0.5, 0.7, 0.85] {
        for seed in 1..=5 {
            let mut load = Load::new(seed);
            load.run(60_000, 0.5, 0.95, saturated(best));
            let cost = load.run(300_000, 0.5, 0.95, saturated(best));
            assert!(cost < 1.04, "best {best}, seed {seed}: {cost}");
            let status = load.scheduler.status();
            assert_eq!(
                (status.state, status.reason),
                (State::Tuning, Reason::Redirecting)
            );
            assert!((status.load_admit - best).abs() < 0.08, "{status:?}");
        }
    }
}

#[test]
fn it_leaves_classic_caching_alone_where_that_is_best() {
    for seed in 1..=5 {
        let mut load = Load::new(seed);
        let cost = load.run(400_000, 0.5, 0.95, |load, _| 1.0 + 5.0 * (1.0 - load));
        assert!(cost < 1.01, "seed {seed}: {cost}");
        let status = load.scheduler.status();
        assert_eq!(
            (status.state, status.load_admit, status.moves),
            (State::Filling, 1.0, 0),
            "{status:?}"
        );
        assert_eq!(status.reason, Reason::Worse);
    }
}

#[test]
fn where_nothing_makes_a_difference_it_is_near_classic_caching() {
    for seed in 1..=5 {
        let mut load = Load::new(seed);
        load.run(400_000, 0.5, 0.95, |_, _| 1.0);
        let status = load.scheduler.status();
        assert!(status.load_admit > 0.8, "{status:?}");
    }
}

#[test]
fn not_to_copy_may_be_the_whole_gain() {
    for seed in 1..=5 {
        let mut load = Load::new(seed);
        let cost = |load: f64, data: bool| 1.0 + f64::from(u8::from(data)) * 0.3 + (1.0 - load);
        load.run(60_000, 0.5, 0.8, cost);
        let mean = load.run(300_000, 0.5, 0.8, cost);
        assert!(mean < 1.02, "seed {seed}: {mean}");
        assert_eq!(load.scheduler.status().state, State::Tuning);
    }
}

#[test]
fn it_copies_again_where_hits_have_fallen() {
    let mut load = Load::new(1);
    load.run(100_000, 0.5, 0.95, saturated(0.6));
    assert_eq!(load.scheduler.status().state, State::Tuning);
    load.run(3_000, 0.5, 0.5, saturated(0.6));
    let status = load.scheduler.status();
    assert_eq!((status.state, status.falls), (State::Filling, 1));
    load.run(120_000, 0.5, 0.95, saturated(0.6));
    assert_eq!(load.scheduler.status().state, State::Tuning);
}

#[test]
fn it_follows_a_change_of_the_load() {
    for seed in 1..=5 {
        let mut load = Load::new(seed);
        load.run(100_000, 0.5, 0.95, |load, _| 0.3 + 0.3 * (1.0 - load));
        for best in [0.5, 0.8, 0.6] {
            // Each load has another level of cost, as loads have.
            load.run(25_000, 0.5, 0.95, |at, data| saturated(best)(at, data) / best);
            let cost = load.run(20_000, 0.5, 0.95, |at, data| saturated(best)(at, data) / best) * best;
            assert!(cost < 1.06, "seed {seed}, best {best}: {cost}");
        }
    }
}

/// One client; a read of the lower device takes a thousand times as long. All have copies, or but a few.
#[test]
fn a_far_slower_device_below_gets_single_reads_alone() {
    for hits in [1.0, 0.999] {
        let (mut scheduler, meter, mut random, mut now) =
            (Scheduler::new(Objective::Throughput), Meter::new(), Random(1), 0);
        let (mut lower, mut upper) = (0, 0);
        for _ in 0..400_000 {
            let mut side = Side::Lower;
            meter.begin(now);
            if random.next_f64() < hits {
                meter.hit();
                side = scheduler.switch().route((random.next_u64() >> 32) as u32);
                *if side == Side::Lower {
                    &mut lower
                } else {
                    &mut upper
                } += 1;
            } else {
                meter.miss();
            }
            let took = if side == Side::Upper { 10_000 } else { 10_000_000 };
            now += took;
            meter.end_read(side, now - took, now);
            if scheduler.is_due(meter.completions()) {
                let mut counts = Counts::new();
                counts.add(&meter, now);
                scheduler.window(&counts, now);
            }
        }
        assert!(
            lower < 12 && upper > 398_000,
            "hits {hits}: {lower} of {upper} were redirected"
        );
        let status = scheduler.status();
        assert_eq!((status.load_admit, status.reason), (1.0, Reason::Worse));
    }
}

/// Twelve clients.
struct Clients {
    scheduler: Scheduler,
    counts: Counts,
    random: Random,
    /// The share of hits.
    hits: f64,
    now: u64,
    /// So many times the cost, by chance.
    chance: f64,
}

impl Clients {
    fn new(seed: u64) -> Self {
        Self {
            scheduler: Scheduler::new(Objective::Throughput),
            counts: Counts::new(),
            random: Random(seed),
            hits: 0.95,
            now: 0,
            chance: 1.0,
        }
    }

    /// So many requests, of which 64 after each other have the same share of `noise` by chance. `cost` says what a request costs, `latency` how long
    /// either device takes for a read.
    fn run(&mut self, requests: u64, noise: f64, latency: [u64; 2], cost: impl Fn(f64, bool) -> f64) {
        for request in 0..requests {
            if request % 64 == 0 {
                self.chance = 1.0 + noise * (2.0 * self.random.next_f64() - 1.0);
            }
            let switch = self.scheduler.switch();
            let took = (100_000.0 * self.chance * cost(switch.load_admit(), switch.data_admit())) as u64;
            let mut side = Side::Lower;
            if self.random.next_f64() < self.hits {
                self.counts.hits += 1;
                side = switch.route((self.random.next_u64() >> 32) as u32);
            } else {
                self.counts.misses += 1;
            }
            self.counts.reads[side as usize] += 1;
            self.counts.read_latency_ns[side as usize] += latency[side as usize];
            self.counts.outstanding_ns += took;
            self.now += took / 12;
            if self.scheduler.is_due(self.counts.completions()) {
                self.scheduler.window(&self.counts, self.now);
            }
        }
    }
}

/// A step brings little where a device is far slower, whether the load changes during a trial or between two. In the midst of trials that follow each
/// other there is no usual cost to tell by that it has changed.
#[test]
fn a_device_that_became_far_slower_is_left_at_once() {
    let mut left = 0;
    for (seed, before) in (1..=24).zip((60_000..).step_by(1_300)) {
        let mut clients = Clients::new(seed);
        clients.run(before, 0.1, [270_000, 420_000], saturated(0.76));
        let held = clients.scheduler.status().load_admit;
        assert!((held - 0.76).abs() < 0.08, "seed {seed}: {held}");
        clients.run(40_000, 0.3, [50_000, 2_100_000], |load, _| {
            3.0 + 2.0 * (1.0 - load)
        });
        left += u32::from(clients.scheduler.status().load_admit > 0.97);
    }
    assert!(left >= 23, "{left} of 24");
}

#[test]
fn between_all_and_nothing_is_tried_too() {
    for seed in 1..=5 {
        let mut clients = Clients::new(seed);
        clients.hits = 0.5;
        clients.run(200_000, 0.1, [480_000, 11_000], saturated(0.9));
        let status = clients.scheduler.status();
        assert!((status.load_admit - 0.9).abs() < 0.05, "seed {seed}: {status:?}");
    }
}

/// What a step brings is hidden by chance in short windows; what copies cost is seen at once.
#[test]
fn windows_stay_long_where_trials_of_data_take_turns_with_those_of_the_load() {
    for seed in 1..=5 {
        let mut clients = Clients::new(seed);
        let cost = |_, data| if data { 1.1 } else { 1.0 };
        clients.run(500_000, 0.1, [14_000, 66_000], cost);
        let before = clients.scheduler.status().windows;
        clients.run(500_000, 0.1, [14_000, 66_000], cost);
        let windows = clients.scheduler.status().windows - before;
        assert!(
            windows < 520,
            "seed {seed}: {windows} windows, not of 1,024 requests"
        );
    }
}

#[test]
fn a_switch_sends_the_share_that_it_is_set_to() {
    let load = Load::new(1);
    let switch = load.scheduler.switch();
    assert!(
        [0, 1 << 31, u32::MAX]
            .iter()
            .all(|&random| switch.route(random) == Side::Upper)
    );
    let half = pumice_nhc::Switch::new(0.5, false);
    assert_eq!(
        (half.route((1 << 31) - 1), half.route(1 << 31)),
        (Side::Upper, Side::Lower)
    );
    let none = pumice_nhc::Switch::new(0.0, false);
    assert_eq!((none.route(0), none.data_admit()), (Side::Lower, false));
}
