//! A cache under test on one thread, and a plain map that says what it must hold.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod dying;

use pumice::{
    Action, CacheOptions, CascadeOptions, Cx, IndexOptions, LayoutName, LayoutOptions, Meta, ObjectCache,
    Outcome, Recovered,
};
use pumice_device::{Device, Overdue, Payload};
use pumice_world::{Executor, ManualClock};
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

pub use pumice_world::Random;

/// A cache on a device, with its executor and clock.
pub struct Rig<D: Device + Clone> {
    pub executor: Executor,
    pub clock: Arc<ManualClock>,
    pub cx: Cx<D>,
    pub cache: ObjectCache<D>,
    pub recovered: Recovered,
}

impl<D: Device + Clone> Rig<D> {
    pub fn open(device: D, clock: Arc<ManualClock>, options: CacheOptions) -> Self {
        Self::try_open(device, clock, options).expect("the device opens")
    }

    pub fn try_open(
        device: D,
        clock: Arc<ManualClock>,
        options: CacheOptions,
    ) -> Result<Self, pumice_blocks::OpenError> {
        let executor = Executor::new();
        let cx = Cx::new(device, clock.clone(), Rc::new(executor.spawner()));
        let opened = executor.block_on(ObjectCache::open(&cx, options), park(&cx.device, |_| {}));
        let (cache, recovered) = opened.expect("parking never fails")?;
        if options.index.kind().is_authoritative() && !recovered.discarded {
            assert_eq!(recovered.objects, recovered.accounted(), "{recovered:?}");
        }
        Ok(Self {
            executor,
            clock,
            cx,
            cache,
            recovered,
        })
    }

    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.executor
            .block_on(future, self.park())
            .expect("parking never fails")
    }

    /// Where nothing else can happen, a second passes.
    fn park(&self) -> impl FnMut() -> Result<(), Infallible> + use<D> {
        let (cache, cx) = (self.cache.clone(), self.cx.clone());
        park(&self.cx.device, move |overdue| {
            if let Some(overdue) = overdue {
                cache.flash_is_overdue(&cx, overdue);
            }
            cache.tick(&cx);
        })
    }

    /// Runs what has no need to wait, before any background work does. `None` where it waits, which it then does no longer.
    pub fn poll_once<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = std::pin::pin!(future);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        }
    }

    /// Runs background work to its end.
    pub fn settle(&self) {
        self.run(self.cache.quiesce(&self.cx));
        self.run_background();
    }

    /// Runs the background work that was begun, and begins none.
    pub fn run_background(&self) {
        self.executor
            .run_until_idle(self.park())
            .expect("parking never fails");
    }

    pub fn set(&self, key: &[u8], value: &[u8]) -> bool {
        self.cache
            .set(&self.cx, key, Payload::Bytes(value), Meta::default())
            .is_ok()
    }

    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.run(self.cache.get(&self.cx, key))
            .map(|object| object.to_vec())
    }

    pub fn check(&self) {
        self.settle();
        self.cache.check_books().unwrap();
        self.cache.check_order();
    }
}

/// How long a device may take to answer.
pub const PATIENCE_SECS: u32 = 30;

fn park<D: Device + Clone, T: FnMut(Option<Overdue>)>(
    device: &D,
    mut tick: T,
) -> impl FnMut() -> Result<(), Infallible> + use<D, T> {
    let mut idle = 0;
    let device = device.clone();
    move || {
        let done = device.turn(true).expect("the device turns");
        idle = if done == 0 { idle + 1 } else { 0 };
        if done == 0 {
            tick(device.tick(PATIENCE_SECS).pop());
        }
        assert!(
            idle < 1_000,
            "stuck: tasks wait, and the device has nothing to complete"
        );
        Ok(())
    }
}

/// What a key may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub value: Vec<u8>,
    pub meta: Meta,
}

/// The plain map. Keys are numbers.
#[derive(Default)]
pub struct Model {
    pub live: HashMap<u64, Entry>,
    pub hits: u64,
    pub misses: u64,
    /// What the last step's keys held before it, which a crash may leave.
    pub before: HashMap<u64, Vec<Option<Entry>>>,
}

/// SIPQ, with a queue for few keys.
pub fn sipq() -> LayoutOptions {
    LayoutOptions {
        virtual_keys_max: 200,
        ..LayoutOptions::new(LayoutName::Sipq, Some("slru-3"), None, Some(0.6)).unwrap()
    }
}

/// As [`sipq`], with absolute priorities.
pub fn sipq_gdsf() -> LayoutOptions {
    LayoutOptions {
        virtual_keys_max: 200,
        ..LayoutOptions::new(LayoutName::Sipq, Some("gdsf-2"), None, Some(0.6)).unwrap()
    }
}

/// A cascade index with small pages, so that few mappings are in DRAM and partitions are reorganised often.
pub fn cascade() -> IndexOptions {
    IndexOptions::Cascade(narrow_tier1())
}

/// Most mappings in the later tiers.
pub fn narrow_tier1() -> CascadeOptions {
    CascadeOptions {
        tier1_min: 3,
        tier1_share: 0.05,
        page_entries: 4,
    }
}

/// What stands over a cascade index.
pub fn cascade_layouts() -> [LayoutOptions; 5] {
    [clock(), LayoutOptions::default(), ripq(), gdsf(), sipq()]
}

/// What stands over an index that is in DRAM as a whole.
pub fn full_layouts() -> [LayoutOptions; FULL_KINDS as usize] {
    [
        LayoutOptions::default(),
        clock(),
        ripq(),
        sipq(),
        sipq_gdsf(),
        gdsf(),
    ]
}

/// How many kinds of caches there are: the first with the index in DRAM as a whole.
pub const KINDS: u64 = 11;
pub const FULL_KINDS: u64 = 6;

/// Whether reclaims drop all that their victims have.
pub fn drops_all(layout: &LayoutOptions) -> bool {
    layout.needs().moving_bytes == 0
}

/// Options of one of [`KINDS`]: each layout over each index.
pub fn of_kind(kind: u64) -> CacheOptions {
    let (full, over_cascade) = (full_layouts(), cascade_layouts());
    let at = usize::try_from(kind % KINDS).unwrap();
    let (layout, index) = match full.get(at) {
        Some(layout) => (*layout, IndexOptions::Full),
        None => (over_cascade[at - full.len()], cascade()),
    };
    let mut options = CacheOptions {
        dram_bytes: 1 << 20,
        block_bytes: Some(64 << 10),
        item_bytes_max: 200 << 10,
        layout,
        index,
        flush_interval_secs: 3,
        ..CacheOptions::default()
    };
    // Where there are many streams. Elsewhere few, so that there is none now and then.
    if layout.layout == LayoutName::Ripq || !index.kind().is_authoritative() {
        options.buffers_max = 10;
    }
    options
}

pub fn clock() -> LayoutOptions {
    LayoutOptions::new(LayoutName::Clock, None, None, None).unwrap()
}

/// RIPQ with many sections, and something that is not worth moving.
pub fn ripq() -> LayoutOptions {
    LayoutOptions::new(LayoutName::Ripq, Some("slru-3"), Some(0.15), Some(0.9)).unwrap()
}

/// RIPQ with priorities that are not relative.
pub fn gdsf() -> LayoutOptions {
    LayoutOptions::new(LayoutName::Ripq, Some("gdsf-3"), Some(0.15), None).unwrap()
}

pub fn key(n: u64) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

/// A value that no other set has: key and step, repeated to the wanted length.
pub fn value(n: u64, step: u64, len: usize) -> Vec<u8> {
    let unit = format!("<{n}:{step}>").into_bytes();
    unit.iter().copied().cycle().take(len.max(unit.len())).collect()
}

/// Weights of the operations of a run; 0 leaves one out.
#[derive(Clone, Copy, Debug)]
pub struct Weights {
    pub get: u64,
    pub set: u64,
    pub large: u64,
    pub delete: u64,
    pub append: u64,
    pub touch: u64,
    pub flush: u64,
    pub tick: u64,
}

impl Weights {
    /// Large objects come and go and take most of the device with them: every block is reclaimed several times.
    pub fn churn() -> Self {
        Self {
            get: 2,
            set: 30,
            large: 14,
            delete: 10,
            append: 4,
            touch: 0,
            flush: 0,
            tick: 0,
        }
    }

    /// Mostly small objects that come and stay.
    pub fn mixed() -> Self {
        Self {
            get: 16,
            set: 32,
            large: 1,
            delete: 6,
            append: 2,
            touch: 1,
            flush: 0,
            tick: 1,
        }
    }

    /// Swarm testing: each operation is left out now and then, and the rest have wildly different weights.
    pub fn random(random: &mut Random) -> Self {
        let mut weight = || {
            if random.below(4) == 0 {
                0
            } else {
                1 << random.below(6)
            }
        };
        Self {
            get: weight() + 8,
            set: weight() + 8,
            large: weight() / 4,
            delete: weight() / 2,
            append: weight() / 2,
            touch: weight() / 2,
            flush: u64::from(weight() > 16) / 8,
            tick: weight() / 8,
        }
    }

    fn pick(&self, random: &mut Random) -> usize {
        let all = [
            self.get,
            self.set,
            self.large,
            self.delete,
            self.append,
            self.touch,
            self.flush,
            self.tick,
        ];
        let mut at = random.below(all.iter().sum());
        for (n, weight) in all.into_iter().enumerate() {
            if at < weight {
                return n;
            }
            at -= weight;
        }
        0
    }
}

/// One random operation on cache and model. `must_hit`: nothing may be missing.
pub fn step<D: Device + Clone>(
    rig: &Rig<D>,
    model: &mut Model,
    random: &mut Random,
    weights: &Weights,
    step: u64,
    keys: u64,
    must_hit: bool,
) {
    let n = random.below(keys);
    let name = key(n);
    let expiry = if random.below(8) == 0 {
        rig.clock_secs() + 1 + random.below(50) as u32
    } else {
        0
    };
    let meta = Meta {
        flags: random.next_u64() as u32,
        expiry,
        // The upper two are the cache's.
        marks: random.below(0x40) as u8,
    };
    model.before = HashMap::from([(n, vec![model.live.get(&n).cloned()])]);
    match weights.pick(random) {
        0 => check_get(rig, model, n, must_hit),
        op @ (1 | 2) => {
            let len = match (op, random.below(10)) {
                (2, _) => 20_000 + random.below(60_000),
                (_, 0) => random.below(9_000),
                _ => random.below(300),
            };
            let value = value(n, step, len as usize);
            model.live.remove(&n);
            let stored = rig.run(rig.cache.store(&rig.cx, &name, Payload::Bytes(&value), meta));
            if stored.is_ok() {
                model.live.insert(n, Entry { value, meta });
            }
        }
        3 => {
            rig.run(rig.cache.delete(&rig.cx, &name));
            model.live.remove(&n);
        }
        4 => {
            let mut seen = None;
            let outcome = rig.run(rig.cache.update(&rig.cx, &name, |object| match object {
                Some(object) if object.value_len() < 50_000 && !object.is_large() => {
                    let mut value = object.to_vec();
                    seen = Some(value.clone());
                    value.extend_from_slice(b"+more");
                    Action::Store {
                        value,
                        meta: object.meta(),
                    }
                }
                _ => Action::Keep,
            }));
            if let Some(seen) = seen {
                assert_eq!(
                    model.at(n, rig.clock_secs()).map(|e| &e.value),
                    Some(&seen),
                    "key {n} step {step}"
                );
            }
            // Where there is no room the old value stays.
            if let Outcome::Stored { .. } = outcome {
                let entry = model.live.get_mut(&n).expect("seen");
                entry.value.extend_from_slice(b"+more");
            }
        }
        5 => {
            let outcome = rig.run(rig.cache.update(&rig.cx, &name, |_| Action::SetMeta(meta)));
            // Where there is no room it stays as it was.
            if let Outcome::Stored { .. } = outcome {
                model.live.get_mut(&n).expect("it was there to be touched").meta = meta;
            }
        }
        6 => {
            rig.cache.flush_all(&rig.cx, None);
            let flushed = model.live.drain();
            model.before = flushed.map(|(n, entry)| (n, vec![Some(entry)])).collect();
        }
        _ => {
            rig.clock.advance_secs(1 + random.below(20) as u32);
            rig.cache.tick(&rig.cx);
        }
    }
    if random.below(3) == 0 {
        rig.settle();
    }
}

impl Model {
    /// A key was missing after a crash. With a full index it is gone for good; a cascade index that was not sure of a mapping may
    /// find it again, and then it is what was last set.
    pub fn lost(&mut self, n: u64, index: IndexOptions) {
        if index.kind().is_authoritative() {
            self.live.remove(&n);
        }
    }

    /// What a key must hold if it holds anything.
    pub fn at(&self, n: u64, now: u32) -> Option<&Entry> {
        self.live
            .get(&n)
            .filter(|entry| entry.meta.expiry == 0 || entry.meta.expiry > now)
    }
}

impl<D: Device + Clone> Rig<D> {
    pub fn clock_secs(&self) -> u32 {
        use pumice_world::Clock;
        self.clock.now_secs()
    }
}

/// What the object carries, without what the cache adds.
pub fn given_meta<B: pumice_device::Buffer>(object: &pumice::Object<B>) -> Meta {
    let mut meta = object.meta();
    meta.marks &= !Meta::USED;
    meta
}

/// Gets one key and compares.
pub fn check_get<D: Device + Clone>(rig: &Rig<D>, model: &mut Model, n: u64, must_hit: bool) {
    let got = rig.run(rig.cache.get(&rig.cx, &key(n)));
    let expected = model.at(n, rig.clock_secs());
    match (got, expected) {
        (Some(object), Some(entry)) => {
            let (value, head) = (object.to_vec(), |value: &[u8]| {
                String::from_utf8_lossy(&value[..value.len().min(40)]).into_owned()
            });
            assert!(
                value == entry.value,
                "key {n} holds {} of {} bytes, and {} of {} was last set",
                head(&value),
                value.len(),
                head(&entry.value),
                entry.value.len()
            );
            assert_eq!(
                given_meta(&object),
                entry.meta,
                "key {n} has other flags, marks or expiry than were last set"
            );
            model.hits += 1;
        }
        (Some(object), None) => {
            panic!(
                "key {n} came back: {:?}",
                String::from_utf8_lossy(&object.to_vec()[..object.value_len().min(60)])
            )
        }
        (None, Some(_)) => {
            assert!(!must_hit, "key {n} must be there");
            model.misses += 1;
        }
        (None, None) => {}
    }
}
