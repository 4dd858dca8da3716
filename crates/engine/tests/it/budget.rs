//! The budget of bytes sent to flash, over days in virtual time: what the device counts never is above it in any day, whatever comes, and
//! readers do not wait for it.

use crate::common::{Rig, ripq};
use pumice::{AdmissionOptions, CacheOptions, FlashWrite, IndexOptions, LayoutOptions, Rule, WriteBudget};
use pumice_device::{
    CountingDevice, DeviceCounters, MemDevice, MemMedium, Profile, Throttle, ThrottledDevice, Timeline,
    VirtualTime,
};
use pumice_world::{ManualClock, Random};
use std::sync::Arc;

const DAY_MINUTES: usize = 24 * 60;
const DAYS: usize = 4;
/// Requests after which all background work ends. Between them it goes on beside the gets.
const AT_ONCE: u64 = 20;
/// A little over half of what the demand of the last day writes without one.
const BUDGET: u64 = 48_000_000;

type Slow = ThrottledDevice<CountingDevice<MemDevice>>;

/// What the days were like.
struct Lived {
    /// Bytes that the device was sent in each minute.
    written: Vec<u64>,
    /// What each get took, in nanoseconds, in order.
    gets: Vec<u64>,
    hits: usize,
}

impl Lived {
    /// The most in any day.
    fn most(&self) -> u64 {
        let days = self.written.windows(DAY_MINUTES);
        days.map(|day| day.iter().sum()).max().expect("there are days")
    }

    fn last_day(&self) -> u64 {
        self.written[(DAYS - 1) * DAY_MINUTES..].iter().sum()
    }

    fn p99(&self) -> u64 {
        self.gets[self.gets.len() * 99 / 100]
    }
}

/// Requests in a minute: a day like others, a quiet night, an evening with a burst, then a day without rest.
fn requests(minute: usize) -> u64 {
    match (minute / DAY_MINUTES, minute % DAY_MINUTES / 60) {
        (0, _) | (3, _) => 30,
        (1, 0..18) => 0,
        (1, 20) => 1_500,
        _ => 15,
    }
}

/// Four days, with a power cut in the burst, right after which the next start has a burst to meet, and a clean stop.
fn live(options: CacheOptions, rule: Rule, budget: Option<u64>) -> Lived {
    let options = CacheOptions {
        admission: AdmissionOptions {
            rule,
            budget: budget.map(|bytes| WriteBudget {
                bytes,
                period_secs: 86_400,
            }),
            ..AdmissionOptions::default()
        },
        ..options
    };
    let medium = Arc::new(MemMedium::new(32 << 20));
    let counters = Arc::new(DeviceCounters::new());
    let time: Arc<dyn Timeline> = Arc::new(VirtualTime::new());
    let profile: Profile = "nvme".parse().expect("a known kind");
    let clock = Arc::new(ManualClock::new(1_000_000));
    let open = || -> Rig<Slow> {
        let device = CountingDevice::new(MemDevice::new(Arc::clone(&medium)), Arc::clone(&counters));
        let throttle = Arc::new(Throttle::new(&profile, Arc::clone(&time)));
        Rig::open(
            ThrottledDevice::new(device, throttle),
            Arc::clone(&clock),
            options,
        )
    };
    let sent = || {
        let counts = counters.snapshot();
        counts.written_bytes + counts.log_bytes
    };
    let mut random = Random(7);
    let mut rig = open();
    let (mut lived, mut before) = (
        Lived {
            written: Vec::new(),
            gets: Vec::new(),
            hits: 0,
        },
        sent(),
    );
    let value = [9; 4_000];
    for minute in 0..DAYS * DAY_MINUTES {
        let (is_crash, is_stop) = (
            minute == DAY_MINUTES + 20 * 60 + 30,
            minute == 2 * DAY_MINUTES + 600,
        );
        if is_stop {
            rig.run(rig.cache.close(&rig.cx)).expect("a stop");
        }
        if is_crash || is_stop {
            drop(rig);
            rig = open();
        }
        for request in 1..=requests(minute) {
            // Some keys are asked for again and again, most once.
            let key = match random.below(3) {
                0 => random.below(2_000),
                _ => 1 << 40 | random.next_u64() >> 30,
            };
            let key = key.to_le_bytes();
            let asked = time.now_ns();
            let found = rig.run(rig.cache.get(&rig.cx, &key)).is_some();
            lived.gets.push(time.now_ns() - asked);
            lived.hits += usize::from(found);
            if !found {
                assert!(rig.set(&key, &value));
            }
            if request % AT_ONCE == 0 {
                rig.settle();
            }
        }
        rig.settle();
        rig.clock.advance_secs(60);
        lived.written.push(sent() - before);
        before = sent();
    }
    rig.check();
    lived.gets.sort_unstable();
    lived
}

fn options(dram_bytes: usize) -> CacheOptions {
    CacheOptions {
        dram_bytes,
        block_bytes: Some(64 << 10),
        buffers_max: 12,
        layout: ripq(),
        ..CacheOptions::default()
    }
}

#[test]
fn no_day_takes_more_than_the_budget_and_one_with_demand_takes_it_and_gets_are_as_fast() {
    for (what, options) in [
        ("without a DRAM tier", options(0)),
        ("with one", options(2 << 20)),
        (
            "at eviction",
            CacheOptions {
                flash_write: FlashWrite::Eviction,
                ..options(2 << 20)
            },
        ),
        (
            "under a cascade index",
            CacheOptions {
                index: IndexOptions::cascade(0.03),
                ..options(0)
            },
        ),
        (
            "with layout fifo",
            CacheOptions {
                layout: LayoutOptions::default(),
                index: IndexOptions::Full,
                ..options(0)
            },
        ),
    ] {
        let free = live(options, Rule::All, None);
        let bound = live(options, Rule::All, Some(BUDGET));
        let share = |bytes: u64| bytes as f64 / BUDGET as f64;
        println!(
            "{what}: without a budget {:.2} of it in a day at most, with it {:.3}, on the last day {:.3}; hits {} and {}; p99 {} and {} ns",
            share(free.most()),
            share(bound.most()),
            share(bound.last_day()),
            free.hits,
            bound.hits,
            free.p99(),
            bound.p99(),
        );
        assert!(
            free.last_day() > 2 * BUDGET,
            "{what}: there is no demand: {}",
            free.last_day()
        );
        assert!(share(bound.most()) <= 1.05, "{what}: {}", bound.most());
        assert!(share(bound.last_day()) >= 0.95, "{what}: {}", bound.last_day());
        assert!(bound.p99() * 10 <= free.p99() * 11, "{what}");
        assert!(bound.hits * 2 > free.hits, "{what}");
    }
}
