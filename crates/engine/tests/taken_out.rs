//! A device that fails for good is taken out: DRAM serves alone, nobody sees an error, the books balance, and whatever becomes of the
//! process, no later start serves what was deleted or replaced meanwhile.

mod common;

use common::{
    Entry, Model, Random, Rig, Weights, cascade, cascade_layouts, check_get, key, ripq, sipq, step, value,
};
use pumice::{CacheOptions, Durability, Meta};
use pumice_device::{FaultPlan, FaultyDevice, FaultyMedium, Payload};
use pumice_world::ManualClock;
use std::sync::Arc;

const KEYS: u64 = 300;
const KINDS: u64 = 8;

fn of_kind(kind: u64) -> CacheOptions {
    let mut options = CacheOptions {
        dram_bytes: 1 << 20,
        block_bytes: Some(64 << 10),
        item_bytes_max: 200 << 10,
        ..CacheOptions::default()
    };
    match kind % KINDS {
        layout @ 3..KINDS => {
            options.index = cascade();
            options.layout = cascade_layouts()[layout as usize - 3];
            options.buffers_max = 10;
        }
        1 => (options.layout, options.buffers_max) = (ripq(), 10),
        2 => options.layout = sipq(),
        _ => {}
    }
    options
}

struct Run {
    medium: Arc<FaultyMedium>,
    clock: Arc<ManualClock>,
    options: CacheOptions,
    model: Model,
    random: Random,
    weights: Weights,
    steps: u64,
}

impl Run {
    fn new(seed: u64, options: CacheOptions) -> Self {
        println!("seed {seed}, {:?}", options.layout.layout);
        let mut random = Random(seed);
        let weights = Weights::random(&mut random);
        Self {
            medium: Arc::new(FaultyMedium::new(4 << 20, seed, calm())),
            clock: Arc::new(ManualClock::new(1_000)),
            options,
            model: Model::default(),
            random,
            weights,
            steps: 0,
        }
    }

    fn open(&self) -> Rig<FaultyDevice> {
        let device = FaultyDevice::new(Arc::clone(&self.medium));
        Rig::open(device, Arc::clone(&self.clock), self.options)
    }

    fn steps(&mut self, rig: &Rig<FaultyDevice>, count: u64) {
        for _ in 0..count {
            let (model, random) = (&mut self.model, &mut self.random);
            step(rig, model, random, &self.weights, self.steps, KEYS, false);
            self.steps += 1;
            // What a door does before it replies.
            rig.run(rig.cache.commit(&rig.cx)).expect("no client hears of it");
        }
    }

    /// Sets and gets that are certain to reach the device.
    fn churn(&mut self, rig: &Rig<FaultyDevice>) {
        for _ in 0..20 {
            let n = self.random.below(KEYS);
            self.steps += 1;
            let value = value(n, self.steps, 2_000);
            self.model.live.remove(&n);
            if rig.set(&key(n), &value) {
                let meta = Meta::default();
                self.model.live.insert(n, Entry { value, meta });
            }
            check_get(rig, &mut self.model, self.random.below(KEYS), false);
        }
    }

    /// A cache with objects on the device and none in DRAM.
    fn filled(&mut self) -> Rig<FaultyDevice> {
        let rig = self.open();
        self.steps(&rig, 300);
        (0..20).for_each(|_| self.churn(&rig));
        rig.check();
        rig.run(rig.cache.close(&rig.cx)).unwrap();
        drop(rig);
        self.open()
    }

    /// Goes on until the device is out.
    fn die(&mut self, rig: &Rig<FaultyDevice>, plan: FaultPlan) {
        self.medium.set_plan(plan);
        for _ in 0..400 {
            if rig.cache.flash_failure().is_some() {
                return;
            }
            self.churn(rig);
            self.steps(rig, 10);
        }
        panic!("the device is still in use: {:?}", self.medium.counts());
    }

    /// Kills the process, heals the device, and starts again.
    fn kill_and_heal(&self, rig: Rig<FaultyDevice>) -> Rig<FaultyDevice> {
        drop(rig);
        self.medium.crash();
        self.medium.restart();
        self.medium.set_plan(calm());
        self.open()
    }

    /// Every key holds what was last set, or nothing.
    fn compare(&mut self, rig: &Rig<FaultyDevice>) -> u64 {
        let before = self.model.hits;
        for n in 0..KEYS {
            check_get(rig, &mut self.model, n, false);
        }
        self.model.hits - before
    }
}

fn calm() -> FaultPlan {
    FaultPlan {
        delay: true,
        ..FaultPlan::default()
    }
}

fn dying(at: u64) -> FaultPlan {
    FaultPlan {
        dies_at: Some(at),
        ..calm()
    }
}

/// Serves from DRAM for a while: no operation reaches the device, sets are hits, and the books balance.
fn serve_from_dram(run: &mut Run, rig: &Rig<FaultyDevice>) {
    rig.settle();
    let counts = run.medium.counts();
    let operations = (
        counts.dead_operations,
        counts.reads,
        counts.writes,
        counts.appends,
    );
    run.steps(rig, 300);
    run.compare(rig);
    for n in 0..40 {
        assert!(rig.set(&key(n), b"short"));
        assert_eq!(rig.get(&key(n)).as_deref(), Some(&b"short"[..]), "DRAM answers");
        run.model.live.remove(&n);
        assert!(rig.run(rig.cache.delete(&rig.cx, &key(n))));
    }
    let large = value(1, 1, 150_000);
    let stored = rig.run(
        rig.cache
            .store(&rig.cx, &key(1), Payload::Bytes(&large), Meta::default()),
    );
    assert!(stored.is_ok(), "{stored:?}");
    run.model.live.remove(&1);
    rig.run(rig.cache.delete(&rig.cx, &key(1)));
    rig.check();
    let counts = run.medium.counts();
    assert_eq!(
        (
            counts.dead_operations,
            counts.reads,
            counts.writes,
            counts.appends
        ),
        operations,
        "a device that is out is left alone"
    );
    let stats = rig.cache.stats();
    assert!(stats.flash_out);
    assert_eq!((stats.flash_items, stats.blocks_open), (0, 0));
    assert_eq!(
        stats.resident_entries, stats.dram_items,
        "there is what DRAM has: {:?}",
        stats.books
    );
}

/// It dies in any of its operations: reading, sealing, reclaiming, moving, checkpointing, appending to the log.
#[test]
fn whenever_it_dies_nothing_comes_back_that_it_missed() {
    let (mut points, mut notes) = (0, 0);
    for kind in 0..KINDS {
        for point in (1..120).step_by(7) {
            let mut run = Run::new(kind * 1_000 + point, of_kind(kind));
            let rig = run.filled();
            run.die(&rig, dying(point));
            serve_from_dram(&mut run, &rig);
            let failure = rig.cache.flash_failure().expect("it is out");
            assert!(failure.remembered, "{failure:?}");
            let rig = if point % 2 == 0 {
                rig.run(rig.cache.close(&rig.cx))
                    .expect("the next start will know");
                run.kill_and_heal(rig)
            } else {
                run.kill_and_heal(rig)
            };
            assert!(
                rig.recovered.discarded && rig.recovered.objects == 0,
                "{:?}",
                rig.recovered
            );
            for n in 0..KEYS {
                assert_eq!(rig.get(&key(n)), None, "kind {kind}, point {point}, key {n}");
            }
            run.model = Model::default();
            // It is a cache as any other from here on.
            run.steps(&rig, 200);
            rig.check();
            let rig = run.kill_and_heal(rig);
            assert!(!rig.recovered.discarded, "the note is of the cache before");
            run.compare(&rig);
            (points, notes) = (points + 1, notes + run.medium.counts().notes);
        }
    }
    println!("{points} points, {notes} notes");
    assert_eq!(notes, points, "a dead device cannot be marked");
}

/// Only its blocks cannot be read, or written, any more: then the device itself carries the mark, and no note is needed.
#[test]
fn a_device_that_can_be_marked_is_marked() {
    for kind in 0..KINDS {
        for reads in [true, false] {
            let mut run = Run::new(kind, of_kind(kind));
            let rig = run.filled();
            let bad = f64::from(u8::from(reads));
            let plan = FaultPlan {
                read_error: bad,
                write_error: 1.0 - bad,
                note_error: 1.0,
                ..calm()
            };
            run.die(&rig, plan);
            let reason = rig.cache.flash_failure().expect("it is out").reason;
            let what = if reads {
                "reads of 8 blocks"
            } else {
                "writes of 8 blocks"
            };
            assert!(reason.starts_with(what), "{reason}");
            serve_from_dram(&mut run, &rig);
            let rig = run.kill_and_heal(rig);
            assert!(rig.recovered.discarded, "{:?}", rig.recovered);
            assert_eq!(run.medium.counts().notes, 0);
        }
    }
}

/// A device that fails many operations, but not so many in a row, stays.
#[test]
fn a_device_that_fails_now_and_then_stays() {
    let mut run = Run::new(5, of_kind(1));
    let rig = run.filled();
    run.medium.set_plan(FaultPlan {
        read_error: 0.3,
        write_error: 0.3,
        ..calm()
    });
    (0..100).for_each(|_| run.churn(&rig));
    assert_eq!(rig.cache.flash_failure(), None);
    assert!(run.compare(&rig) > 50);
    rig.check();
    let counts = run.medium.counts();
    assert!(counts.read_errors + counts.write_errors > 100, "{counts:?}");
}

/// Neither the device nor the place beside it can be written. The server goes on and tries again, and a stop says what to do.
#[test]
fn what_cannot_be_remembered_is_tried_again_and_said() {
    let mut run = Run::new(3, of_kind(0));
    let rig = run.filled();
    run.die(
        &rig,
        FaultPlan {
            note_error: 1.0,
            ..dying(5)
        },
    );
    run.steps(&rig, 50);
    assert!(!rig.cache.flash_failure().expect("it is out").remembered);
    let error = rig.run(rig.cache.close(&rig.cx)).unwrap_err();
    assert!(error.to_string().contains("--reformat"), "{error}");
    // The place beside it works again: a second later it is noted.
    run.medium.set_plan(dying(1));
    run.clock.advance_secs(2);
    run.steps(&rig, 1);
    rig.settle();
    assert!(rig.cache.flash_failure().expect("it is out").remembered);
    rig.run(rig.cache.close(&rig.cx)).unwrap();
    let rig = run.kill_and_heal(rig);
    assert!(rig.recovered.discarded);
}

/// With durability `power` a reply is a promise that needs a place to be kept.
#[test]
fn with_durability_power_nothing_is_answered_that_cannot_be_remembered() {
    let options = CacheOptions {
        durability: Durability::Power,
        ..of_kind(0)
    };
    let run = Run::new(4, options);
    let rig = run.open();
    rig.set(&key(1), b"old");
    run.medium.set_plan(FaultPlan {
        note_error: 1.0,
        ..dying(1)
    });
    for n in 0..2_000 {
        rig.set(&key(n), &[7; 300]);
        rig.settle();
    }
    assert!(rig.cache.flash_failure().is_some());
    let error = rig.run(rig.cache.commit(&rig.cx)).unwrap_err();
    assert!(error.to_string().contains("stored nowhere"), "{error}");
    run.medium.set_plan(dying(1));
    run.clock.advance_secs(1);
    let _ = rig.run(rig.cache.commit(&rig.cx));
    rig.settle();
    rig.run(rig.cache.commit(&rig.cx)).expect("now it is noted");
}

/// With durability `off` the device says from the start that a crash empties the cache, also after a clean stop before.
#[test]
fn with_durability_off_the_mark_is_there_before_it_is_needed() {
    for volatile in [false, true] {
        let options = CacheOptions {
            durability: Durability::Off,
            ..of_kind(0)
        };
        let mut run = Run::new(6, options);
        run.medium.set_plan(FaultPlan { volatile, ..calm() });
        let rig = run.open();
        run.steps(&rig, 300);
        rig.run(rig.cache.close(&rig.cx)).unwrap();
        drop(rig);
        let rig = run.open();
        assert!(
            rig.recovered.clean && rig.recovered.objects > 0,
            "{:?}",
            rig.recovered
        );
        run.medium.set_plan(FaultPlan {
            note_error: 1.0,
            volatile,
            ..dying(3)
        });
        run.steps(&rig, 300);
        drop(rig);
        if volatile {
            run.medium.cut_power();
        } else {
            run.medium.crash();
        }
        run.medium.restart();
        run.medium.set_plan(calm());
        let rig = run.open();
        assert!(rig.recovered.discarded, "{:?}", rig.recovered);
    }
}

/// Where there is no DRAM tier, or none for objects of such a length, what is set is gone at once, and nobody is told off.
#[test]
fn without_a_tier_for_them_sets_succeed_and_are_misses() {
    for kind in 0..KINDS {
        let options = CacheOptions {
            dram_bytes: 0,
            ..of_kind(kind)
        };
        let mut run = Run::new(kind, options);
        let rig = run.filled();
        run.die(&rig, dying(20));
        rig.settle();
        run.model = Model::default();
        run.steps(&rig, 200);
        for n in 0..KEYS {
            assert_eq!(rig.get(&key(n)), None);
        }
        rig.check();
        assert_eq!(rig.cache.stats().resident_entries, 0);
    }
}

/// What the tests above look for is there to be found: where nothing can be remembered, what was deleted meanwhile comes back.
#[test]
fn without_mark_and_note_deleted_objects_would_come_back() {
    let mut run = Run::new(7, of_kind(0));
    let rig = run.filled();
    run.die(
        &rig,
        FaultPlan {
            note_error: 1.0,
            ..dying(1)
        },
    );
    for n in 0..KEYS {
        rig.run(rig.cache.delete(&rig.cx, &key(n)));
        assert_eq!(rig.get(&key(n)), None);
    }
    let rig = run.kill_and_heal(rig);
    let back = (0..KEYS).filter(|n| rig.get(&key(*n)).is_some()).count();
    assert!(back > 50, "{back} of {KEYS}");
}
