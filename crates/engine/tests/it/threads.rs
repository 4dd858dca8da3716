//! Several workers on one cache: nobody waits for ever, and every hit is the last value its writer set.

use crate::common::{Random, cascade, cascade_layouts, key, ripq, sipq, value};
use pumice::{Action, BooksFault, CacheOptions, Cx, IndexOptions, LayoutOptions, Meta, ObjectCache};
use pumice_device::{Device, MemDevice, MemMedium, Payload};
use pumice_world::{Executor, ManualClock};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

const WORKERS: u64 = 4;
const STEPS: u64 = 12_000;
const KEYS: u64 = 400;

/// Runs a future on this thread; other workers complete things too, so an idle device is no reason to stop.
fn run<T>(executor: &Executor, device: &MemDevice, future: impl Future<Output = T>) -> T {
    let park = || -> Result<(), std::convert::Infallible> {
        device.turn(true).expect("memory does not fail");
        std::thread::yield_now();
        Ok(())
    };
    executor.block_on(future, park).expect("parking never fails")
}

/// Ends the background work that this thread has begun.
fn end_work(executor: &Executor, device: &MemDevice) {
    let park = || -> Result<(), std::convert::Infallible> {
        device.turn(true).expect("memory does not fail");
        std::thread::yield_now();
        Ok(())
    };
    executor.run_until_idle(park).expect("parking never fails");
}

/// Waits for one turn of the executor.
async fn turn_once() {
    let mut waited = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut waited, true) {
            return std::task::Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

/// A cache that workers share, as the thread that opened it has it.
struct Shared {
    medium: Arc<MemMedium>,
    clock: Arc<ManualClock>,
    executor: Executor,
    cx: Cx<MemDevice>,
    cache: ObjectCache<MemDevice>,
}

impl Shared {
    fn open(bytes: u64, options: CacheOptions) -> Self {
        let medium = Arc::new(MemMedium::new(bytes));
        let clock = Arc::new(ManualClock::new(1_000));
        let executor = Executor::new();
        let device = MemDevice::new(Arc::clone(&medium));
        let cx = Cx::new(device.clone(), clock.clone(), Rc::new(executor.spawner()));
        let (cache, _) = run(&executor, &device, ObjectCache::open(&cx, options)).unwrap();
        Self {
            medium,
            clock,
            executor,
            cx,
            cache,
        }
    }

    /// What a worker needs.
    fn parts(&self) -> (Arc<MemMedium>, Arc<ManualClock>, ObjectCache<MemDevice>) {
        (Arc::clone(&self.medium), self.clock.clone(), self.cache.clone())
    }

    /// Waits until no background work is under way.
    fn quiesce(&self) {
        run(&self.executor, &self.cx.device, self.cache.quiesce(&self.cx));
    }
}

fn work(worker: u64, medium: Arc<MemMedium>, clock: Arc<ManualClock>, cache: ObjectCache<MemDevice>) -> u64 {
    let executor = Executor::new();
    let device = MemDevice::new(medium);
    let cx = Cx::new(device.clone(), clock, Rc::new(executor.spawner()));
    let mut random = Random(worker);
    let mut last: HashMap<u64, Vec<u8>> = HashMap::new();
    // What was missing and was not set since. A reclaim may find such a one again where the index was not sure of it.
    let mut missing: HashMap<u64, Vec<u8>> = HashMap::new();
    let mut hits = 0;
    for step in 0..STEPS {
        let n = worker * 1_000_000 + random.below(KEYS);
        // Let background work that this worker began go on, as an event loop would.
        run(&executor, &device, turn_once());
        let name = key(n);
        match random.below(20) {
            0..=8 => {
                let len = if random.below(50) == 0 {
                    40_000
                } else {
                    random.below(600)
                };
                let value = value(n, step, len as usize);
                last.remove(&n);
                missing.remove(&n);
                if run(
                    &executor,
                    &device,
                    cache.store(&cx, &name, Payload::Bytes(&value), Meta::default()),
                )
                .is_ok()
                {
                    last.insert(n, value);
                }
            }
            9 => {
                let delete = cache.update(&cx, &name, |_| Action::Delete);
                assert_ne!(
                    run(&executor, &device, delete),
                    pumice::Outcome::Busy,
                    "nobody else writes it"
                );
                last.remove(&n);
                missing.remove(&n);
            }
            10 => {
                // Where there is no room to write it anew, it stays as it was.
                let touch = cache.update(&cx, &name, |object| match object {
                    Some(object) => Action::SetMeta(object.meta()),
                    None => Action::Keep,
                });
                run(&executor, &device, touch);
            }
            11 => {
                // Somebody else's key: whatever it holds is a value of that key.
                let other = (worker + 1) % WORKERS * 1_000_000 + random.below(KEYS);
                if let Some(object) = run(&executor, &device, cache.get(&cx, &key(other))) {
                    let unit = format!("<{other}:");
                    assert!(
                        object.to_vec().starts_with(unit.as_bytes()),
                        "key {other} holds a stranger's value"
                    );
                }
            }
            _ => match (run(&executor, &device, cache.get(&cx, &name)), last.get(&n)) {
                (Some(object), Some(value)) => {
                    assert_eq!(&object.to_vec(), value, "key {n} at step {step}");
                    hits += 1;
                }
                (Some(object), None) => {
                    let found = missing.remove(&n);
                    assert_eq!(Some(object.to_vec()), found, "key {n} came back at step {step}");
                    last.extend(found.map(|found| (n, found)));
                }
                (None, _) => missing.extend(last.remove(&n).map(|value| (n, value))),
            },
        }
    }
    // Background work that this thread began is its own to end.
    end_work(&executor, &device);
    hits
}

#[test]
fn workers_that_set_read_reclaim_and_checkpoint_at_once_neither_wait_for_ever_nor_see_old_values() {
    for layout in [LayoutOptions::default(), ripq(), sipq()] {
        work_at_once(layout, IndexOptions::Full);
    }
    for layout in cascade_layouts() {
        work_at_once(layout, cascade());
    }
}

fn work_at_once(layout: LayoutOptions, index: IndexOptions) {
    let options = CacheOptions {
        dram_bytes: 1 << 20,
        block_bytes: Some(64 << 10),
        buffers_max: 8,
        layout,
        index,
        ..CacheOptions::default()
    };
    // 4 MiB of flash has a log of 1,024 records: a checkpoint every 256 overwrites.
    let shared = Shared::open(4 << 20, options);
    let cache = &shared.cache;
    let (done, results) = mpsc::channel();
    for worker in 0..WORKERS {
        let ((medium, clock, cache), done) = (shared.parts(), done.clone());
        std::thread::spawn(move || done.send(work(worker, medium, clock, cache)));
    }
    drop(done);
    for _ in 0..WORKERS {
        let hits = results
            .recv_timeout(Duration::from_secs(120))
            .expect("a worker failed, or waits for ever");
        assert!(hits > 500, "{hits} hits");
    }
    shared.quiesce();
    let stats = cache.stats();
    assert!(
        stats.blocks.checkpoints > 3 && stats.flash.reclaimed_blocks > 20,
        "the test proves nothing: {stats:?}"
    );
    cache.check_books().unwrap();
    cache.check_order();
}

/// Stores large objects as others do on other threads; how many found no room.
fn store_large(
    worker: u64,
    medium: Arc<MemMedium>,
    clock: Arc<ManualClock>,
    cache: ObjectCache<MemDevice>,
) -> u64 {
    let executor = Executor::new();
    let device = MemDevice::new(medium);
    let cx = Cx::new(device.clone(), clock, Rc::new(executor.spawner()));
    let mut refused = 0;
    for step in 0..150 {
        let n = worker * 1_000_000 + step % 5;
        let value = value(n, step, 100_000);
        let name = key(n);
        let store = cache.store(&cx, &name, Payload::Bytes(&value), Meta::default());
        refused += u64::from(run(&executor, &device, store).is_err());
        run(&executor, &device, turn_once());
    }
    end_work(&executor, &device);
    refused
}

#[test]
fn large_objects_that_workers_set_at_once_all_find_room() {
    let options = CacheOptions {
        dram_bytes: 0,
        block_bytes: Some(64 << 10),
        buffers_max: 3,
        ..CacheOptions::default()
    };
    let shared = Shared::open(16 << 20, options);
    let cache = &shared.cache;
    let workers = (0..WORKERS).map(|worker| {
        let (medium, clock, cache) = shared.parts();
        std::thread::spawn(move || store_large(worker, medium, clock, cache))
    });
    let workers: Vec<_> = workers.collect();
    let refused: Vec<u64> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    shared.quiesce();
    assert_eq!(refused, [0; WORKERS as usize], "{:?}", cache.stats().flash);
    cache.check_books().unwrap();
    cache.check_order();
}

#[test]
fn books_that_move_while_they_are_compared_are_not_called_wrong() {
    let options = CacheOptions {
        dram_bytes: 1 << 20,
        block_bytes: Some(64 << 10),
        buffers_max: 8,
        layout: sipq(),
        ..CacheOptions::default()
    };
    let shared = Shared::open(4 << 20, options);
    let cache = &shared.cache;
    let worker = {
        let (medium, clock, cache) = shared.parts();
        std::thread::spawn(move || work(0, medium, clock, cache))
    };
    let mut moved = 0;
    let end = Instant::now() + Duration::from_secs(120);
    while !worker.is_finished() {
        assert!(Instant::now() < end, "the worker waits for ever");
        match cache.check_books() {
            Ok(()) => {}
            Err(BooksFault::Moved) => moved += 1,
            Err(wrong) => panic!("{wrong}"),
        }
    }
    worker.join().unwrap();
    shared.quiesce();
    assert_eq!(cache.check_books(), Ok(()));
    assert!(moved > 0, "{moved} comparisons prove nothing");
}
