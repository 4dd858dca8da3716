//! Clocks that are set back and forth between starts. The cache's time goes on from the highest that the device has recorded: what
//! has expired stays so, and nothing lives shorter than the cache's own time says.

use crate::common;

use crate::common::{KINDS, Random, key, of_kind};
use pumice::{CacheOptions, Cx, Meta, ObjectCache};
use pumice_device::{Device, Payload};
use pumice_testkit::calm;
use pumice_testkit::{FaultyDevice, FaultyMedium};
use pumice_world::{Clock, Executor};
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const KEYS: u64 = 200;
const HOUR: u32 = 3_600;

/// The wall clock as it stands at a start; from then on it goes its own way, as the clock of a server does.
struct Wall(AtomicU32);

impl Clock for Wall {
    fn now_secs(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
    fn monotonic_ns(&self) -> u64 {
        u64::from(self.now_secs()) * 1_000_000_000
    }
    fn not_before(&self, secs: u32) {
        self.0.fetch_max(secs, Ordering::Relaxed);
    }
}

struct Life {
    executor: Executor,
    clock: Arc<Wall>,
    cx: Cx<FaultyDevice>,
    cache: ObjectCache<FaultyDevice>,
}

impl Life {
    fn begin(medium: &Arc<FaultyMedium>, wall: u32, options: CacheOptions) -> Self {
        let (life, discarded) = Self::try_begin(medium, wall, options);
        assert!(!discarded);
        life
    }

    /// Also says whether what was there had to be forgotten.
    fn try_begin(medium: &Arc<FaultyMedium>, wall: u32, options: CacheOptions) -> (Self, bool) {
        let executor = Executor::new();
        let clock = Arc::new(Wall(AtomicU32::new(wall)));
        let device = FaultyDevice::new(Arc::clone(medium));
        let cx = Cx::new(device, Arc::clone(&clock) as _, Rc::new(executor.spawner()));
        let (cache, recovered) = run(&executor, &cx, ObjectCache::open(&cx, options)).unwrap();
        let life = Self {
            executor,
            clock,
            cx,
            cache,
        };
        (life, recovered.discarded)
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        run(&self.executor, &self.cx, future)
    }

    fn pass(&self, secs: u32) {
        self.clock.0.fetch_add(secs, Ordering::Relaxed);
    }

    fn tick(&self) {
        self.cache.tick(&self.cx);
        let turn = || -> Result<(), Infallible> {
            self.cx.device.turn(true).unwrap();
            Ok(())
        };
        let Ok(()) = self.executor.run_until_idle(turn);
    }

    fn now(&self) -> u32 {
        self.clock.now_secs()
    }

    fn set(&self, n: u64, value: &[u8], expiry: u32) {
        let meta = Meta {
            expiry,
            ..Meta::default()
        };
        self.cache
            .set(&self.cx, &key(n), Payload::Bytes(value), meta)
            .unwrap();
    }

    fn get(&self, n: u64) -> Option<Vec<u8>> {
        self.run(self.cache.get(&self.cx, &key(n)))
            .map(|object| object.to_vec())
    }

    fn end(self, clean: bool) {
        self.run(self.cache.quiesce(&self.cx));
        if clean {
            self.run(self.cache.close(&self.cx)).unwrap();
        }
    }
}

fn run<T>(executor: &Executor, cx: &Cx<FaultyDevice>, future: impl Future<Output = T>) -> T {
    let turn = || -> Result<(), Infallible> {
        cx.device.turn(true).unwrap();
        Ok(())
    };
    let Ok(result) = executor.block_on(future, turn);
    result
}

fn medium(seed: u64) -> Arc<FaultyMedium> {
    Arc::new(FaultyMedium::new(4 << 20, seed, calm()))
}

#[test]
fn forth_and_back_again_expires_what_was_due_and_revives_nothing() {
    for kind in 0..KINDS {
        for clean in [true, false] {
            println!("kind {kind}, clean {clean}");
            let (medium, options) = (medium(kind), of_kind(kind));
            let start = 1_000_000_000;
            let life = Life::begin(&medium, start, options);
            for n in 0..KEYS {
                // Half an hour, two hours, for ever.
                let expiry = [start + HOUR / 2, start + 2 * HOUR, 0][n as usize % 3];
                life.set(n, &[n as u8; 2_000], expiry);
            }
            life.end(clean);

            // An hour forth: what had half an hour is gone.
            let life = Life::begin(&medium, start + HOUR, options);
            assert_eq!(life.now(), start + HOUR);
            let mut found = 0;
            for n in 0..KEYS {
                let got = life.get(n);
                assert!(n % 3 != 0 || got.is_none(), "key {n} has expired");
                assert!(!clean || n % 3 == 0 || got.is_some(), "key {n} has not expired");
                assert!(got.as_ref().is_none_or(|value| *value == vec![n as u8; 2_000]));
                found += u64::from(got.is_some());
            }
            assert!(found > 50, "{found} found");
            life.end(clean);

            // Back by a year: the cache's time stands where it was, and so does what has expired and what has not.
            let life = Life::begin(&medium, start + HOUR - 365 * 24 * HOUR, options);
            assert_eq!(life.now(), start + HOUR);
            for n in 0..KEYS {
                let got = life.get(n);
                assert!(got.is_none() || n % 3 != 0, "key {n} came back");
                assert!(got.as_ref().is_none_or(|value| *value == vec![n as u8; 2_000]));
                assert!(!clean || n % 3 == 0 || got.is_some(), "key {n} is gone too early");
            }
            // A minute before they are due, and when they are.
            life.pass(HOUR - 60);
            let is_due = |n: u64| n % 3 == 1;
            let before = (0..KEYS).filter(|n| is_due(*n) && life.get(*n).is_some()).count();
            assert!(before > 10, "{before}");
            life.pass(60);
            assert!((0..KEYS).all(|n| !is_due(n) || life.get(n).is_none()));
            life.end(clean);

            let life = Life::begin(&medium, 5, options);
            assert!(life.now() >= start + HOUR, "{}", life.now());
            assert!(
                (0..KEYS).all(|n| !is_due(n) || life.get(n).is_none()),
                "what was seen to expire stays so"
            );
            life.end(clean);
        }
    }
}

/// Random lifetimes and jumps; a key that was a miss because it had expired is a miss until it is set again.
#[test]
fn whatever_the_clock_does_between_starts_nothing_expired_is_served() {
    let (mut hits, mut expired) = (0, 0);
    for seed in 0..24 {
        println!("seed {seed}");
        let (medium, options) = (medium(seed), of_kind(seed));
        let mut random = Random(seed);
        let mut wall = 1_000_000_000;
        let mut live: HashMap<u64, (Vec<u8>, u32)> = HashMap::new();
        let mut last_time = 0;
        for life_number in 0..8 {
            let life = Life::begin(&medium, wall, options);
            assert!(life.now() >= wall && life.now() >= last_time, "time went back");
            for step in 0..300 {
                let n = random.below(KEYS);
                match random.below(8) {
                    0..4 => {
                        let value =
                            common::value(n, life_number * 1_000 + step, random.below(3_000) as usize);
                        let expiry = match random.below(3) {
                            0 => 0,
                            _ => life.now() + 1 + random.below(2_000) as u32,
                        };
                        life.set(n, &value, expiry);
                        live.insert(n, (value, expiry));
                    }
                    4..7 => {
                        let got = life.get(n);
                        let expected = live.get(&n);
                        let is_expired =
                            expected.is_some_and(|(_, expiry)| *expiry != 0 && *expiry <= life.now());
                        match got {
                            Some(value) => {
                                hits += 1;
                                assert!(!is_expired, "key {n} has expired");
                                assert_eq!(Some(&value), expected.map(|(value, _)| value), "key {n}");
                            }
                            None if is_expired => {
                                expired += 1;
                                live.remove(&n);
                            }
                            None => {}
                        }
                    }
                    _ => life.pass(random.below(300) as u32),
                }
            }
            let clean = random.below(2) == 0;
            // Of a process that was killed only what stands on the device is known.
            last_time = if clean { life.now() } else { 0 };
            let jump = random.below(20_000) as u32;
            wall = if random.below(2) == 0 {
                life.now().saturating_add(jump)
            } else {
                life.now().saturating_sub(jump)
            };
            life.end(clean);
        }
    }
    assert!(hits > 2_000 && expired > 300, "{hits}, {expired}");
}

const YEAR: u32 = 365 * 24 * HOUR;

/// Sets keys that live for a minute, and says how many of them are there then.
fn set_for_a_minute(life: &Life) -> usize {
    let expiry = life.now() + 60;
    (0..KEYS).for_each(|n| life.set(n, &[1; 300], expiry));
    life.pass(50);
    let found = (0..KEYS).filter(|n| life.get(*n).is_some()).count();
    life.pass(10);
    assert!((0..KEYS).all(|n| life.get(n).is_none()));
    found
}

/// The clock of one start is years ahead, and then right again: the time is, and nothing lives for years.
#[test]
fn a_clock_that_was_far_ahead_once_is_not_kept() {
    for kind in 0..KINDS {
        for clean in [true, false] {
            let (medium, options) = (medium(kind), of_kind(kind));
            let start = 1_000_000_000;
            let life = Life::begin(&medium, start, options);
            (0..KEYS).for_each(|n| life.set(n, &[1; 2_000], start + YEAR));
            life.end(clean);

            let life = Life::begin(&medium, start + 10 * YEAR, options);
            assert!((0..KEYS).all(|n| life.get(n).is_none()), "all have expired");
            assert!(set_for_a_minute(&life) > 50);
            let later = life.now() + 60;
            (0..KEYS).for_each(|n| life.set(n, &[2; 2_000], later));
            life.end(clean);

            let (life, discarded) = Life::try_begin(&medium, start + HOUR, options);
            assert!(discarded && life.now() == start + HOUR, "{}", life.now());
            assert!((0..KEYS).all(|n| life.get(n).is_none()));
            assert!(set_for_a_minute(&life) > 50);
            life.end(clean);
            let life = Life::begin(&medium, start + 2 * HOUR, options);
            assert_eq!(life.now(), start + 2 * HOUR);
            life.end(clean);
        }
    }
}

#[test]
fn a_second_start_confirms_a_clock_and_so_does_whoever_starts_it() {
    for accept_clock in [false, true] {
        let (medium, options) = (medium(3), of_kind(0));
        let start = 1_000_000_000;
        Life::begin(&medium, start, options).end(true);
        let accepting = CacheOptions {
            accept_clock,
            ..options
        };
        let life = Life::begin(&medium, start + YEAR, accepting);
        (0..KEYS).for_each(|n| life.set(n, &[1; 2_000], start + 2 * YEAR));
        life.end(true);
        if !accept_clock {
            Life::begin(&medium, start + YEAR + 60, options).end(true);
        }
        let life = Life::begin(&medium, start, options);
        assert!(life.now() >= start + YEAR, "the device saw that");
        let found = (0..KEYS).filter(|n| life.get(*n).is_some()).count();
        assert!(found > 50, "{found}");
    }
}

#[test]
fn without_any_absence_allowed_every_start_is_an_empty_one() {
    const START: u32 = 1_000_000_000;
    for clean in [true, false] {
        let medium = medium(0);
        let options = CacheOptions {
            absence_secs_max: Some(0),
            ..of_kind(0)
        };
        let life = Life::begin(&medium, START, options);
        (0..KEYS).for_each(|n| life.set(n, &[n as u8; 2_000], 0));
        life.end(clean);
        let (life, is_forgotten) = Life::try_begin(&medium, START, options);
        assert!(
            is_forgotten && (0..KEYS).all(|n| life.get(n).is_none()),
            "{clean}"
        );
        life.end(true);
    }
}

/// Kinds, absences and ends: a cache that was left alone for as long as it may be begins empty, another has everything.
#[test]
fn after_a_long_absence_it_begins_empty_and_after_a_short_one_it_does_not() {
    const START: u32 = 1_000_000_000;
    for kind in 0..KINDS {
        for clean in [true, false] {
            for (idle, absent, is_kept) in [
                (0, 50, true),
                (0, 70, false),
                (500, 50, true),
                (500, 70, false),
                (0, YEAR, false),
            ] {
                let what = format!("kind {kind}, clean {clean}, idle for {idle} s, absent for {absent} s");
                let medium = medium(kind);
                let options = CacheOptions {
                    absence_secs_max: Some(60),
                    ..of_kind(kind)
                };
                let life = Life::begin(&medium, START, options);
                (0..KEYS).for_each(|n| life.set(n, &[n as u8; 2_000], 0));
                life.run(life.cache.quiesce(&life.cx));
                for _ in 0..idle {
                    // Nothing is asked for, and it runs.
                    life.pass(1);
                    life.tick();
                }
                let last = life.now();
                life.end(clean);
                let (life, is_forgotten) = Life::try_begin(&medium, last + absent, options);
                assert_eq!(is_forgotten, !is_kept, "{what}");
                let found = (0..KEYS).filter(|n| life.get(*n).is_some()).count();
                assert!(if is_kept { found > 50 } else { found == 0 }, "{what}: {found}");
                life.end(true);
                // It was there: the next start keeps what it has.
                Life::begin(&medium, last + absent + 5, options).end(true);
                // Without a limit nothing is asked.
                Life::begin(&medium, last + absent + 70, of_kind(kind)).end(clean);
            }
        }
    }
}
