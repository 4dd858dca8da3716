//! The engine over a performance tier that fails and lies: it answers exactly as without one.

use crate::common::{KINDS, Random, Rig, key, of_kind, ripq, value};
use pumice::{CacheOptions, LayoutOptions};
use pumice_device::{Device, MemDevice, MemMedium, forward};
use pumice_nhc::{Division, Start, Tier, TierCounts, Tiered};
use pumice_testkit::{FaultPlan, FaultyDevice, FaultyMedium};
use pumice_world::{LocalSpawner, ManualClock, Spawner, Task};
use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

const FLASH_BYTES: u64 = 3 << 20;
const KEYS: u64 = 1_500;

/// Spawns on the rig's executor, which is made after the device.
#[derive(Default)]
struct Late(RefCell<Option<LocalSpawner>>);

impl Spawner for Late {
    fn spawn(&self, task: Task) {
        self.0.borrow().as_ref().expect("the rig is open").spawn(task);
    }
}

type Above = Tiered<MemDevice, FaultyDevice>;

fn tiered(
    lower: &Arc<MemMedium>,
    upper: &Arc<FaultyMedium>,
    options: CacheOptions,
    makes: bool,
) -> (Rig<Above>, Arc<Tier>) {
    let clock = Arc::new(ManualClock::new(1_000));
    let block_bytes = options.block_bytes.unwrap();
    let geometry = pumice_blocks::Geometry::plan(lower.capacity(), block_bytes).unwrap();
    let division = Division {
        offset: geometry.data_offset,
        block_bytes,
        blocks: geometry.blocks,
    };
    let tier = Tier::held(division, upper.capacity(), 0.8, true);
    let late = Rc::new(Late::default());
    let device = Tiered::new(
        MemDevice::new(Arc::clone(lower)),
        FaultyDevice::new(Arc::clone(upper)),
        Arc::clone(&tier),
        Rc::<Late>::clone(&late),
    );
    let rig = Rig::open(device.clone(), clock, options);
    late.0.replace(Some(rig.executor.spawner()));
    let cache = rig.cache.clone();
    rig.run(device.start(Start {
        owner: cache.cache_id(),
        makes,
        catalog: Box::new(move |sector| cache.sealed_block(sector)),
    }));
    (rig, tier)
}

/// One life of a cache; what each read of it found.
fn live<D: Device + Clone>(rig: &Rig<D>, random: &mut Random, steps: u64) -> Vec<Option<Vec<u8>>> {
    let mut found = Vec::new();
    if random.0 & 0xff == 0 {
        for n in 0..KEYS {
            assert!(rig.set(&key(n), &value(n, 0, 1_500)));
            rig.settle();
        }
    }
    for step in 0..steps {
        let spread = 1 + random.below(KEYS);
        let n = random.below(spread);
        match random.below(20) {
            0 | 1 => {
                let len = 200 + random.below(3_000) as usize;
                rig.set(&key(n), &value(n, step, len));
            }
            2 => drop(rig.run(rig.cache.delete(&rig.cx, &key(n)))),
            _ => found.push(rig.get(&key(n))),
        }
        rig.settle();
    }
    found
}

#[test]
fn a_cache_answers_as_without_the_tier_however_that_fails() {
    for kind in 0..KINDS {
        let options = CacheOptions {
            dram_bytes: 0,
            lockstep: true,
            ..of_kind(kind)
        };
        let plain = Arc::new(MemMedium::new(FLASH_BYTES));
        let lower = Arc::new(MemMedium::new(FLASH_BYTES));
        let plan = FaultPlan {
            read_error: 0.01,
            write_error: 0.01,
            bit_rot: 0.02,
            lost_write: 0.02,
            misdirected_write: 0.02,
            ..FaultPlan::default()
        };
        let upper = Arc::new(FaultyMedium::new(FLASH_BYTES / 2, kind, FaultPlan::default()));
        let mut counts = TierCounts::default();
        for life in 0..4 {
            let seed = kind << 8 | life;
            let expected = {
                let clock = Arc::new(ManualClock::new(1_000));
                let rig = Rig::open(MemDevice::new(Arc::clone(&plain)), clock, options);
                let found = live(&rig, &mut Random(seed), 5_000);
                if life % 2 == 0 {
                    rig.run(rig.cache.close(&rig.cx)).unwrap();
                }
                found
            };
            let (rig, tier) = tiered(&lower, &upper, options, life == 0);
            upper.set_plan(plan.clone());
            let found = live(&rig, &mut Random(seed), 5_000);
            assert!(expected == found, "kind {kind}, life {life}");
            if life % 2 == 0 {
                rig.run(rig.cache.close(&rig.cx)).unwrap();
            }
            rig.cache.check_books().unwrap();
            upper.set_plan(FaultPlan::default());
            counts += tier.counts();
            assert_eq!(rig.cache.stats().flash.corrupt_records, 0);
        }
        println!("kind {kind}: {counts:?}");
        assert!(
            counts.copy_reads > 500 && counts.redirected_reads > 100 && counts.made_good > 10,
            "kind {kind}: {counts:?}"
        );
    }
}

/// Notes which block each read of a record is of, and passes everything on.
#[derive(Clone)]
struct Watched<D> {
    inner: D,
    division: Division,
    reads: Rc<RefCell<HashMap<u64, u64>>>,
}

impl<D: Device + Clone> Device for Watched<D> {
    type Buf = D::Buf;
    forward!(inner: capacity, read, write, append_log, read_log, discard, sync, tick, turn);

    fn read_copy<T: 'static>(
        &self,
        offset: u64,
        len: usize,
        check: impl Fn(Self::Buf) -> Option<T> + 'static,
    ) -> impl Future<Output = Option<T>> + 'static {
        let block = (offset - self.division.offset) / self.division.block_bytes;
        *self.reads.borrow_mut().entry(block).or_default() += 1;
        self.inner.read_copy(offset, len, check)
    }
}

/// Of the flash hits of a Zipf load, the share that copies answer, and the share in the blocks that were read most: as many blocks as the
/// tier has places, chosen afterwards for each stretch of `STRETCH` reads.
fn shares(layout: LayoutOptions, part: u64) -> (f64, f64) {
    const STRETCH: u64 = 10_000;
    const ITEMS: u64 = 120_000;
    let options = CacheOptions {
        dram_bytes: 1 << 20,
        buffers_max: 16,
        layout,
        ..of_kind(0)
    };
    let flash_bytes = 16 << 20;
    let lower = Arc::new(MemMedium::new(flash_bytes));
    let upper = Arc::new(MemMedium::new(flash_bytes * part / 100));
    let clock = Arc::new(ManualClock::new(1_000));
    let geometry = pumice_blocks::Geometry::plan(flash_bytes, options.block_bytes.unwrap()).unwrap();
    let division = Division {
        offset: geometry.data_offset,
        block_bytes: geometry.block_bytes,
        blocks: geometry.blocks,
    };
    let tier = Tier::held(division, upper.capacity(), 1.0, true);
    let late = Rc::new(Late::default());
    let device = Tiered::new(
        MemDevice::new(lower),
        MemDevice::new(upper),
        Arc::clone(&tier),
        Rc::<Late>::clone(&late),
    );
    let watched = Watched {
        inner: device.clone(),
        division,
        reads: Rc::default(),
    };
    let rig = Rig::open(watched.clone(), clock, options);
    late.0.replace(Some(rig.executor.spawner()));
    let cache = rig.cache.clone();
    rig.run(device.start(Start {
        owner: cache.cache_id(),
        makes: true,
        catalog: Box::new(move |sector| cache.sealed_block(sector)),
    }));
    let mut total = 0.0;
    let weights: Vec<f64> = (1..=ITEMS)
        .map(|rank| {
            total += (rank as f64).powf(-0.99);
            total
        })
        .collect();
    let mut random = Random(7);
    let (mut reads, mut hottest, mut answered, mut before) = (0, 0, 0, 0);
    for step in 0..800_000 {
        let drawn = random.next_f64() * total;
        // Neighbours in popularity are no neighbours in time.
        let n = weights.partition_point(|weight| *weight < drawn) as u64;
        if rig.get(&key(n)).is_none() {
            rig.set(&key(n), &value(n, 0, 240));
        }
        if step % 16 == 0 {
            rig.settle();
        }
        let is_warm = step > 300_000;
        let so_far: u64 = watched.reads.borrow().values().sum();
        if so_far >= STRETCH {
            let mut counts: Vec<u64> = watched
                .reads
                .borrow_mut()
                .drain()
                .map(|(_, count)| count)
                .collect();
            counts.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
            let copies = tier.counts().copy_reads;
            if is_warm {
                reads += so_far;
                hottest += counts.iter().take(tier.places() as usize).sum::<u64>();
                answered += copies - before;
            }
            before = copies;
        }
    }
    assert!(reads > 8 * STRETCH, "{reads} reads of flash");
    let counts = tier.counts();
    println!("{part} %: {reads} reads, {hottest} of the hottest, {answered} answered by copies; {counts:?}");
    (answered as f64 / reads as f64, hottest as f64 / reads as f64)
}

#[test]
fn copies_answer_nearly_what_the_hottest_blocks_in_hindsight_would() {
    for (name, layout) in [("ripq", ripq()), ("fifo", LayoutOptions::default())] {
        for part in [20, 50] {
            let (answered, hottest) = shares(layout, part);
            println!("{name} {part} %: {answered:.3} of flash hits, {hottest:.3} in hindsight");
            assert!(
                answered >= 0.9 * hottest,
                "{name} {part} %: {answered:.3} of {hottest:.3}"
            );
        }
    }
}
