//! Overwrites and gets of several threads on one cache whose device is memory: what its locks cost. Each thread is an event loop of its own.

use anyhow::{anyhow, ensure};
use clap::Parser;
use pumice::{CacheOptions, Cx, LayoutOptions, Meta, ObjectCache};
use pumice_device::{Device, MemDevice, MemMedium, Payload};
use pumice_locks::{Waits, take_waits};
use pumice_trace::Generator;
use pumice_world::{Executor, Random, SystemClock};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// The allocator that Pumice ships with.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const VALUE: [u8; 300] = [7; 300];

#[derive(Parser)]
#[command(about)]
struct Args {
    /// Threads, each with an event loop
    #[arg(long)]
    threads: usize,
    /// MiB of flash, which is memory
    #[arg(long, default_value_t = 256)]
    flash_mib: u64,
    /// Keys, drawn by Zipf 0.9; each is set once at first
    #[arg(long, default_value_t = 400_000)]
    keys: u64,
    /// Of 100 requests so many are sets, the others gets; a miss sets
    #[arg(long, default_value_t = 50)]
    sets: u64,
    #[arg(long, default_value = "ripq")]
    layout: String,
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

/// Locks in the words of ARCHITECTURE, and how the type begins that each guards.
const LOCKS: [(&str, &str); 11] = [
    ("index shard", "pumice::cache::Shard"),
    ("order", "pumice_flash::order::OrderState"),
    ("superblock", "pumice_blocks::superblock::Superblock"),
    ("pool", "pumice_blocks::pool::Pool"),
    (
        "open blocks",
        "alloc::vec::Vec<alloc::sync::Arc<pumice_blocks::block::OpenBlock",
    ),
    ("fill of a block", "pumice_blocks::block::Fill"),
    ("log position", "u64"),
    ("slots of a block", "pumice_flash::layout::slots::Slots"),
    ("mapping log", "pumice_flash::mapping_log"),
    ("pool of segments or pages", "alloc::vec::Vec<"),
    ("device in memory", "pumice_device::chunks::ChunkMap"),
];

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

/// What one thread did and waited for.
struct Done {
    requests: u64,
    seconds: f64,
    scheduled: Scheduled,
    waits: BTreeMap<&'static str, Waits>,
}

/// What the kernel knows of a thread.
#[derive(Clone, Copy, Default)]
struct Scheduled {
    /// Seconds on a core, and seconds ready to run without one.
    on_core: f64,
    ready: f64,
    /// Times that it gave its core away of itself. The device is memory, so it waited for a lock.
    given_away: u64,
}

impl Scheduled {
    fn now() -> anyhow::Result<Self> {
        let stat = std::fs::read_to_string("/proc/thread-self/schedstat")?;
        let status = std::fs::read_to_string("/proc/thread-self/status")?;
        Self::read(&stat, &status).ok_or_else(|| anyhow!("/proc does not tell how a thread was scheduled"))
    }

    fn read(stat: &str, status: &str) -> Option<Self> {
        let mut nanos = stat.split_whitespace().map(|nanos| nanos.parse::<u64>().ok());
        let mut seconds = || Some(nanos.next()?? as f64 / 1e9);
        let field = "voluntary_ctxt_switches:";
        let given_away = status.lines().find_map(|line| line.strip_prefix(field))?;
        Some(Self {
            on_core: seconds()?,
            ready: seconds()?,
            given_away: given_away.trim().parse().ok()?,
        })
    }

    fn since(self, before: Self) -> Self {
        Self {
            on_core: self.on_core - before.on_core,
            ready: self.ready - before.ready,
            given_away: self.given_away - before.given_away,
        }
    }
}

/// Overwrites and gets until `stop`.
fn requests(
    args: &Args,
    medium: &Arc<MemMedium>,
    cache: &ObjectCache<MemDevice>,
    seed: u64,
    stop: &AtomicBool,
) -> anyhow::Result<Done> {
    let own = Loop::new(medium);
    let generator = Generator::endless(&format!("zipf:keys={},theta=0.9,seed={seed}", args.keys))?;
    let mut random = Random(seed);
    let mut stream = generator.stream();
    let mut requests = 0;
    let (began, before) = (Instant::now(), Scheduled::now()?);
    take_waits();
    while !stop.load(Ordering::Relaxed) {
        let key = stream.draw().key.to_le_bytes();
        // A miss sets.
        if random.below(100) < args.sets || own.run(cache.get(&own.cx, &key)).is_none() {
            let stored = cache.store(&own.cx, &key, Payload::Bytes(&VALUE), Meta::default());
            let _ = own.run(stored);
        }
        requests += 1;
    }
    Ok(Done {
        requests,
        seconds: began.elapsed().as_secs_f64(),
        scheduled: Scheduled::now()?.since(before),
        waits: take_waits(),
    })
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
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
    let done = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..args.threads as u64)
            .map(|seed| {
                let (args, stop, barrier, medium, cache) = (&args, &stop, &barrier, &medium, cache.clone());
                scope.spawn(move || {
                    barrier.wait();
                    requests(args, medium, &cache, seed + 1, stop)
                })
            })
            .collect();
        barrier.wait();
        std::thread::sleep(Duration::from_secs_f64(args.seconds));
        stop.store(true, Ordering::Relaxed);
        let joined = workers.into_iter().map(|worker| worker.join());
        joined
            .map(|done| done.map_err(|_| anyhow!("a worker has panicked"))?)
            .collect::<anyhow::Result<Vec<Done>>>()
    })?;
    println!("{}", report(&args, &done));
    Ok(())
}

/// Sums over all threads; shares are of the time that all of them were there.
fn report(args: &Args, done: &[Done]) -> Value {
    let requests: u64 = done.iter().map(|done| done.requests).sum();
    let requests = requests as f64;
    let sum = |part: fn(&Done) -> f64| done.iter().map(part).sum::<f64>();
    let thread_seconds = sum(|done| done.seconds);
    let on_core = sum(|done| done.scheduled.on_core);
    let mut locks: BTreeMap<&str, Waits> = BTreeMap::new();
    for (guarded, waits) in done.iter().flat_map(|done| &done.waits) {
        let known = LOCKS.iter().find(|(_, begins)| guarded.starts_with(begins));
        *locks.entry(known.map_or(guarded, |(name, _)| name)).or_default() += *waits;
    }
    let of_lock = |waits: &Waits| {
        json!({
            "waits_per_request": waits.count as f64 / requests,
            "ns_per_request": waits.time.as_secs_f64() * 1e9 / requests,
            "share": waits.time.as_secs_f64() / thread_seconds,
            "short_ns_per_request": waits.short.as_secs_f64() * 1e9 / requests,
            "short_share": waits.short.as_secs_f64() / thread_seconds,
        })
    };
    let mut all = Waits::default();
    locks.values().for_each(|waits| all += *waits);
    let locks: BTreeMap<_, _> = locks
        .iter()
        .map(|(name, waits)| (*name, of_lock(waits)))
        .collect();
    json!({
        "threads": args.threads,
        "requests": requests,
        "requests_per_cpu_second": requests / on_core,
        "requests_per_second": requests * done.len() as f64 / thread_seconds,
        "given_away_per_request": sum(|done| done.scheduled.given_away as f64) / requests,
        "on_core_share": on_core / thread_seconds,
        "ready_share": sum(|done| done.scheduled.ready) / thread_seconds,
        "all_locks": of_lock(&all),
        "locks": locks,
    })
}
