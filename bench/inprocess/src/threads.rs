//! Several threads on one cache whose device is memory: what its locks cost. Each thread is an event loop of its own.

use crate::ThreadsArgs;
use crate::measure::Start;
use anyhow::{anyhow, ensure};
use pumice::{CacheOptions, Cx, LayoutOptions, Meta, ObjectCache};
use pumice_device::{Device, MemDevice, MemMedium, Payload};
use pumice_trace::Generator;
use pumice_world::{Executor, Random, SystemClock};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

const VALUE: [u8; 300] = [7; 300];

/// An event loop of one thread.
struct Loop {
    executor: Executor,
    cx: Cx<MemDevice>,
}

impl Loop {
    fn new(medium: &Arc<MemMedium>) -> Self {
        let executor = Executor::new();
        let device = MemDevice::new(Arc::clone(medium));
        let spawner = Rc::new(executor.spawner());
        Self {
            cx: Cx::new(device, Arc::new(SystemClock::new(0)), spawner),
            executor,
        }
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let device = &self.cx.device;
        let turn = || -> Result<(), Infallible> {
            device.turn(true).expect("memory does not fail");
            std::thread::yield_now();
            Ok(())
        };
        let Ok(done) = self.executor.block_on(future, turn);
        done
    }
}

/// Overwrites and gets until `stop`; returns how many.
fn requests(
    args: &ThreadsArgs,
    medium: &Arc<MemMedium>,
    cache: &ObjectCache<MemDevice>,
    seed: u64,
    stop: &AtomicBool,
) -> anyhow::Result<(u64, u64)> {
    let waits_before = waits()?;
    let own = Loop::new(medium);
    let generator = Generator::endless(&format!("zipf:keys={},theta=0.9,seed={seed}", args.keys))?;
    let mut random = Random(seed);
    let mut done = 0;
    let mut stream = generator.stream();
    while !stop.load(Ordering::Relaxed) {
        let key = stream.draw().key.to_le_bytes();
        // A miss sets.
        if random.below(100) < args.sets || own.run(cache.get(&own.cx, &key)).is_none() {
            let stored = cache.store(&own.cx, &key, Payload::Bytes(&VALUE), Meta::default());
            let _ = own.run(stored);
        }
        done += 1;
    }
    Ok((done, waits()? - waits_before))
}

pub fn threads(args: &ThreadsArgs) -> anyhow::Result<Value> {
    ensure!(
        args.threads > 0 && args.sets <= 100,
        "--threads 0, or more than 100 % of sets"
    );
    let medium = Arc::new(MemMedium::new(args.flash_mib << 20));
    let options = CacheOptions {
        dram_bytes: 0,
        buffers_max: 32,
        layout: LayoutOptions::new(args.layout.parse()?, None, None, None)?,
        ..CacheOptions::default()
    };
    let opener = Loop::new(&medium);
    let (cache, _) = opener.run(ObjectCache::open(&opener.cx, options))?;
    for key in 0..args.keys {
        let _ = opener.run(cache.store(
            &opener.cx,
            &key.to_le_bytes(),
            Payload::Bytes(&VALUE),
            Meta::default(),
        ));
    }
    let stop = AtomicBool::new(false);
    let barrier = Barrier::new(args.threads + 1);
    let (took, requests, waits) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..args.threads as u64)
            .map(|seed| {
                let (stop, barrier, medium, cache) = (&stop, &barrier, &medium, cache.clone());
                scope.spawn(move || {
                    barrier.wait();
                    requests(args, medium, &cache, seed + 1, stop)
                })
            })
            .collect();
        barrier.wait();
        let start = Start::now()?;
        std::thread::sleep(Duration::from_secs_f64(args.seconds));
        stop.store(true, Ordering::Relaxed);
        let (mut requests, mut waits) = (0, 0);
        for worker in workers {
            let (done, waited) = worker.join().map_err(|_| anyhow!("a worker has panicked"))??;
            requests += done;
            waits += waited;
        }
        Ok::<_, anyhow::Error>((start.took()?, requests as f64, waits as f64))
    })?;
    Ok(json!({
        "threads": args.threads,
        "requests": requests,
        "requests_per_cpu_second": requests / took.cpu_seconds,
        "requests_per_second": requests / took.seconds,
        "waits_per_request": waits / requests,
        "took": took,
    }))
}

/// Times that this thread gave its core away of itself. The device is memory, so it waited for a lock.
fn waits() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/status")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok())
        .ok_or_else(|| anyhow!("/proc has no voluntary_ctxt_switches"))
}
