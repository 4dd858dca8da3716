//! A cache whose device dies, and what it held.

use super::{Entry, Model, Random, Rig, Weights, check_get, key, step, value};
use pumice::{CacheOptions, Meta};
use pumice_device::{FaultPlan, FaultyDevice, FaultyMedium, Payload};
use pumice_world::ManualClock;
use std::sync::Arc;

pub const KEYS: u64 = 300;

pub struct Run {
    pub medium: Arc<FaultyMedium>,
    pub clock: Arc<ManualClock>,
    pub options: CacheOptions,
    pub model: Model,
    pub random: Random,
    pub weights: Weights,
    pub steps: u64,
}

impl Run {
    pub fn new(seed: u64, options: CacheOptions) -> Self {
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

    pub fn open(&self) -> Rig<FaultyDevice> {
        let device = FaultyDevice::new(Arc::clone(&self.medium));
        Rig::open(device, Arc::clone(&self.clock), self.options)
    }

    pub fn steps(&mut self, rig: &Rig<FaultyDevice>, count: u64) {
        for _ in 0..count {
            let (model, random) = (&mut self.model, &mut self.random);
            step(rig, model, random, &self.weights, self.steps, KEYS, false);
            self.steps += 1;
            // What a door does before it replies.
            rig.run(rig.cache.commit(&rig.cx)).expect("no client hears of it");
        }
    }

    /// Sets and gets that are certain to reach the device.
    pub fn churn(&mut self, rig: &Rig<FaultyDevice>) {
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
    pub fn filled(&mut self) -> Rig<FaultyDevice> {
        let rig = self.open();
        self.steps(&rig, 300);
        (0..20).for_each(|_| self.churn(&rig));
        rig.check();
        rig.run(rig.cache.close(&rig.cx)).unwrap();
        drop(rig);
        self.open()
    }

    /// Goes on until the device is out.
    pub fn die(&mut self, rig: &Rig<FaultyDevice>, plan: FaultPlan) {
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
    pub fn kill_and_heal(&self, rig: Rig<FaultyDevice>) -> Rig<FaultyDevice> {
        drop(rig);
        self.medium.crash();
        self.medium.restart();
        self.medium.set_plan(calm());
        self.open()
    }

    /// Every key holds what was last set, or nothing.
    pub fn compare(&mut self, rig: &Rig<FaultyDevice>) -> u64 {
        let before = self.model.hits;
        for n in 0..KEYS {
            check_get(rig, &mut self.model, n, false);
        }
        self.model.hits - before
    }
}

pub fn calm() -> FaultPlan {
    FaultPlan {
        delay: true,
        ..FaultPlan::default()
    }
}

pub fn dying(at: u64) -> FaultPlan {
    FaultPlan {
        dies_at: Some(at),
        ..calm()
    }
}

/// Serves from DRAM for a while: no operation reaches the device, sets are hits, and the books balance.
pub fn serve_from_dram(run: &mut Run, rig: &Rig<FaultyDevice>) {
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
