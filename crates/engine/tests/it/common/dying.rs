//! A cache on a device that crashes, loses its power, fails or dies, and what it must hold.

use super::{Entry, Model, Random, Rig, Weights, check_get, given_meta, key, step, value};
use pumice::{CacheOptions, Meta};
use pumice_blocks::OpenError;
use pumice_device::Payload;
use pumice_testkit::{FaultPlan, FaultyDevice, FaultyMedium};
use pumice_world::ManualClock;
use std::ops::Range;
use std::sync::Arc;

pub use pumice_testkit::{calm, crash_at, volatile};

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
    /// A load that is drawn, on 4 MiB.
    pub fn new(seed: u64, options: CacheOptions) -> Self {
        println!("seed {seed}, {:?}", options.layout.layout);
        let mut run = Self::on(4 << 20, seed, options);
        run.weights = Weights::random(&mut run.random);
        run
    }

    pub fn on(flash_bytes: u64, seed: u64, options: CacheOptions) -> Self {
        Self {
            medium: Arc::new(FaultyMedium::new(flash_bytes, seed, calm())),
            clock: Arc::new(ManualClock::new(1_000)),
            options,
            model: Model::default(),
            random: Random(seed),
            weights: Weights::churn(),
            steps: 0,
        }
    }

    pub fn try_open(&self) -> Result<Rig<FaultyDevice>, OpenError> {
        let device = FaultyDevice::new(Arc::clone(&self.medium));
        Rig::try_open(device, Arc::clone(&self.clock), self.options)
    }

    pub fn open(&self) -> Rig<FaultyDevice> {
        self.try_open().expect("the device opens")
    }

    /// Takes numbered steps with keys below `keys`, until the device has crashed.
    pub fn live(&mut self, rig: &Rig<FaultyDevice>, steps: Range<u64>, keys: u64) {
        for n in steps {
            let (model, random) = (&mut self.model, &mut self.random);
            step(rig, model, random, &self.weights, n, keys, false);
            if self.medium.is_crashed() {
                return;
            }
        }
    }

    /// Reads every key below `keys` after a crash: the newest value or, of what the last step was to replace, the one before is legal, and
    /// nothing else. What is there is what the model holds from then on; of what is missing `missing` tells it. Returns how many were there.
    pub fn reconcile_with(
        &mut self,
        rig: &Rig<FaultyDevice>,
        keys: u64,
        what: &str,
        missing: impl Fn(&mut Model, u64),
    ) -> u64 {
        let now = rig.clock_secs();
        let model = &mut self.model;
        let mut served = 0;
        for n in 0..keys {
            let Some(object) = rig.run(rig.cache.get(&rig.cx, &key(n))) else {
                missing(model, n);
                continue;
            };
            served += 1;
            let got = Entry {
                value: object.to_vec(),
                meta: given_meta(&object),
            };
            let before = model.before.get(&n).into_iter().flatten().flatten();
            let legal: Vec<&Entry> = (model.live.get(&n).into_iter().chain(before))
                .filter(|entry| entry.meta.expiry == 0 || entry.meta.expiry > now)
                .collect();
            let head = |entry: &Entry| {
                String::from_utf8_lossy(&entry.value[..entry.value.len().min(40)]).into_owned()
            };
            assert!(
                legal.contains(&&got),
                "{what}: key {n} came back as {:?}; legal are {:?}",
                head(&got),
                legal.iter().map(|entry| head(entry)).collect::<Vec<_>>(),
            );
            model.live.insert(n, got);
        }
        model.before.clear();
        served
    }

    /// The same; what is missing is gone.
    pub fn reconcile(&mut self, rig: &Rig<FaultyDevice>, keys: u64, what: &str) -> u64 {
        self.reconcile_with(rig, keys, what, |model, n| drop(model.live.remove(&n)))
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

pub fn dying(at: u64) -> FaultPlan {
    FaultPlan {
        dies_at: Some(at),
        ..calm()
    }
}

/// Serves from DRAM for a while: no operation reaches the device, sets are hits, and the books balance.
pub fn serve_from_dram(run: &mut Run, rig: &Rig<FaultyDevice>) {
    rig.settle();
    let medium = Arc::clone(&run.medium);
    let operations = || {
        let counts = medium.counts();
        (
            counts.dead_operations,
            counts.reads,
            counts.writes,
            counts.appends,
        )
    };
    let is_told = || rig.cache.flash_failure().expect("it is out").remembered;
    let (before, was_told) = (operations(), is_told());
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
    let (dead, reads, writes, appends) = before;
    // A device that could not be told is told again later, by a write of each superblock.
    let told_now = if is_told() && !was_told { 2 } else { 0 };
    assert_eq!(
        operations(),
        (dead, reads, writes + told_now, appends),
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
