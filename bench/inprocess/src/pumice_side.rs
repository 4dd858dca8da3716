//! The engine on a file, driven by the deterministic executor: the cheapest event loop there is for it. As many tasks as
//! requests may be under way take the next request each; where all of them wait for the device, the loop sleeps in the
//! ring until something is done.

use crate::measure::{Start, Took, resident_bytes_max};
use crate::workload::Workload;
use crate::{FillArgs, HitsArgs, ReadsArgs};
use anyhow::{Context, anyhow, bail, ensure};
use pumice::{
    Access, Budget, CacheOptions, Cx, IndexKind, LayoutName, LayoutOptions, Lookup, Meta, Object, ObjectCache,
    RejectReason, Rule, Stats, Tier,
};
use pumice_device::{AlignedBuf, Device, FileDevice, FileOptions, FileShared, Payload};
use pumice_trace::GeneratedRequests;
use pumice_world::Random;
use pumice_world::{Executor, Spawner, SystemClock};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Operations that the ring holds.
const RING_ENTRIES: u32 = 256;
/// Sets between two looks at the device, so that blocks are written while others fill.
const SETS_PER_TURN: u64 = 64;
/// Requests that one task answers from memory before others get their turn.
const HITS_PER_TURN: u32 = 256;

/// An open cache on a new file.
pub struct Side {
    pub executor: Executor,
    pub cx: Cx<FileDevice>,
    pub cache: ObjectCache<FileDevice>,
    /// Half of the block buffers: a preload waits where more are in use.
    open_blocks_max: u64,
}

impl Side {
    pub fn open(path: &Path, flash_mib: u64, options: CacheOptions) -> anyhow::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("removing {}", path.display()));
            }
            _ => {}
        }
        let open = FileOptions {
            size: Some(flash_mib << 20),
            ..FileOptions::default()
        };
        let shared = FileShared::open(path, &open)?;
        ensure!(
            shared.is_direct() && shared.engine() == pumice_device::Engine::IoUring,
            "{}: the measurement needs O_DIRECT and io_uring",
            path.display()
        );
        let device = FileDevice::new(Arc::new(shared), RING_ENTRIES)?;
        let executor = Executor::new();
        let cx = Cx::new(device, Arc::new(SystemClock::new(0)), Rc::new(executor.spawner()));
        let opened = executor.block_on(ObjectCache::open(&cx, options), || turn(&cx, true))??;
        Ok(Self {
            executor,
            cx,
            cache: opened.0,
            open_blocks_max: (options.buffers_max as u64 / 2).max(2),
        })
    }

    fn block_on<T>(&self, future: impl Future<Output = T>) -> anyhow::Result<T> {
        Ok(self.executor.block_on(future, || turn(&self.cx, true))?)
    }

    pub fn run_until_idle(&self) -> anyhow::Result<()> {
        Ok(self.executor.run_until_idle(|| turn(&self.cx, true))?)
    }

    /// Stores an object, waiting for room on flash: a set itself never waits, and goes without a flash copy instead.
    async fn set(&self, key: u64, workload: &Workload) -> anyhow::Result<()> {
        let mut waits = 0;
        loop {
            let stored = workload.with_value(key, |value| {
                let value = Payload::Bytes(value);
                self.cache
                    .set(&self.cx, &key.to_le_bytes(), value, Meta::default())
            });
            match stored {
                Ok(_) => return Ok(()),
                Err(RejectReason::NoRoom) if waits < 100_000 => {
                    waits += 1;
                    self.let_background_run(true).await?;
                }
                Err(error) => return Err(anyhow!(error).context(format!("after {waits} waits"))),
            }
        }
    }

    /// Lets background work go on; with `wait`, until the device has done something.
    async fn let_background_run(&self, wait: bool) -> anyhow::Result<()> {
        // First it starts what is due, then it takes up what is done.
        yield_now().await;
        turn(&self.cx, wait)?;
        yield_now().await;
        Ok(())
    }

    /// Sets keys, waiting until each has its copy on flash.
    pub fn fill(&self, workload: &Workload, keys: impl Iterator<Item = u64>) -> anyhow::Result<()> {
        self.block_on(self.preload(workload, keys))?
    }

    async fn preload(&self, workload: &Workload, keys: impl Iterator<Item = u64>) -> anyhow::Result<()> {
        for (done, key) in (1u64..).zip(keys) {
            self.set(key, workload).await?;
            if done.is_multiple_of(SETS_PER_TURN) {
                self.let_background_run(false).await?;
                // With a DRAM tier a set succeeds also where flash had no buffer, so keep ahead of that.
                let mut waits = 0;
                while self.cache.stats().blocks_open > self.open_blocks_max && waits < 1000 {
                    waits += 1;
                    self.let_background_run(true).await?;
                }
            }
        }
        self.cache.quiesce(&self.cx).await;
        Ok(())
    }
}

fn turn(cx: &Cx<FileDevice>, block: bool) -> std::io::Result<()> {
    cx.device.turn(block).map(drop)
}

pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// How `serve` would use this much memory, without connections.
pub fn options(
    dram_mib: u64,
    flash_mib: u64,
    block_kib: Option<u64>,
    layout: LayoutOptions,
) -> anyhow::Result<CacheOptions> {
    let budget = Budget {
        total: dram_mib << 20,
        flash: flash_mib << 20,
        block_bytes: block_kib.map(|kib| kib << 10),
        connections: 0,
        layout,
        admission: Rule::default(),
    };
    let plan = budget.divide(IndexKind::Full);
    let plan = plan.with_context(|| format!("{dram_mib} MiB of DRAM are too few"))?;
    Ok(CacheOptions {
        dram_bytes: usize::try_from(plan.pool)?,
        buffers_max: plan.buffers,
        layout: LayoutOptions {
            virtual_keys_max: plan.virtual_keys,
            ..layout
        },
        block_bytes: Some(plan.block_bytes),
        reformat: true,
        ..CacheOptions::default()
    })
}

/// The layout that `serve` takes by default.
fn as_served() -> anyhow::Result<LayoutOptions> {
    Ok(LayoutOptions::new(LayoutName::Ripq, None, None, None)?)
}

pub fn check(workload: &Workload, key: u64, object: &Object<AlignedBuf>) -> anyhow::Result<()> {
    let mut parts = object.parts();
    match (parts.next(), parts.next()) {
        (Some(Payload::Bytes(value)), None) => workload.check(key, value),
        _ => bail!("key {key:x}: not one piece"),
    }
}

/// What all tasks share while requests run.
struct Run {
    side: Side,
    workload: Workload,
    requests: RefCell<GeneratedRequests>,
    left: Cell<u64>,
    hits: Cell<u64>,
    flash_hits: Cell<u64>,
    misses: Cell<u64>,
    failed: RefCell<Option<anyhow::Error>>,
}

pub fn bump(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

impl Run {
    fn next(&self) -> Option<u64> {
        let left = self.left.get().checked_sub(1)?;
        self.left.set(left);
        Some(self.requests.borrow_mut().draw().key)
    }

    fn hit(&self, key: u64, object: &Object<AlignedBuf>) -> anyhow::Result<()> {
        check(&self.workload, key, object)?;
        bump(&self.hits);
        if object.tier() == Tier::Flash {
            bump(&self.flash_hits);
        }
        Ok(())
    }

    /// Answers requests until there are no more.
    async fn look_aside(&self) -> anyhow::Result<()> {
        let side = &self.side;
        let mut at_once = 0;
        while let Some(key) = self.next() {
            let name = key.to_le_bytes();
            let mut found = side.cache.lookup(&side.cx, &name, Access::Count);
            if let Lookup::Read(fetch) = found {
                at_once = 0;
                found = side.cache.fetch(&side.cx, &name, fetch, Access::Count).await;
            }
            match found {
                Lookup::Known(Some(object)) => self.hit(key, &object)?,
                Lookup::Known(None) => {
                    bump(&self.misses);
                    side.set(key, &self.workload).await?;
                }
                Lookup::Read(_) => bail!("no value is large"),
            }
            at_once += 1;
            if at_once == HITS_PER_TURN {
                at_once = 0;
                turn(&side.cx, false)?;
                yield_now().await;
            }
        }
        Ok(())
    }

    /// Answers that many requests, `depth` at once.
    fn run(self: &Rc<Self>, requests: u64, depth: usize) -> anyhow::Result<Took> {
        for counter in [&self.hits, &self.flash_hits, &self.misses] {
            counter.set(0);
        }
        self.left.set(requests);
        let start = Start::now()?;
        for _ in 0..depth {
            let run = Rc::clone(self);
            self.side.executor.spawner().spawn(Box::pin(async move {
                if let Err(error) = run.look_aside().await {
                    run.left.set(0);
                    *run.failed.borrow_mut() = Some(error);
                }
            }));
        }
        self.side.run_until_idle()?;
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        start.took()
    }
}

pub fn hits(args: &HitsArgs) -> anyhow::Result<Value> {
    let workload = Workload::new(args.keys, args.theta, (args.size_min, args.size_max))?;
    let side = Side::open(
        &args.path,
        args.flash_mib,
        options(args.dram_mib, args.flash_mib, None, as_served()?)?,
    )?;
    let requests = RefCell::new(workload.requests());
    side.fill(&workload, workload.keys())?;
    let run = Rc::new(Run {
        side,
        workload,
        requests,
        left: Cell::default(),
        hits: Cell::default(),
        flash_hits: Cell::default(),
        misses: Cell::default(),
        failed: RefCell::default(),
    });
    run.run(args.warm_up, args.depth)?;
    let before = run.side.cache.stats();
    let took = run.run(args.requests, args.depth)?;
    let stats = run.side.cache.stats();
    let (hits, flash_hits, misses) = (run.hits.get(), run.flash_hits.get(), run.misses.get());
    Ok(json!({
        "side": "pumice",
        "requests": args.requests,
        "took": took,
        "operations_per_second": args.requests as f64 / took.seconds,
        "cpu_us_per_operation": took.cpu_seconds * 1e6 / args.requests as f64,
        "hits": hits,
        "misses": misses,
        "hit_ratio": hits as f64 / args.requests as f64,
        "flash_hit_ratio": flash_hits as f64 / args.requests as f64,
        "resident_bytes_max": resident_bytes_max()?,
        "stats": stats_json(&before, &stats),
    }))
}

pub fn stats_json(before: &Stats, stats: &Stats) -> Value {
    json!({
        "block_bytes": stats.block_bytes,
        "block_buffer_bytes": stats.block_buffer_bytes,
        "dram_segment_bytes": stats.dram_segment_bytes,
        "index_dram_bytes": stats.index_dram_bytes,
        "dram_items": stats.dram_items,
        "flash_items": stats.flash_items,
        "sets_without_flash_copy": stats.flash.dropped_no_block
            - before.flash.dropped_no_block,
        "survivors": stats.flash.survivors - before.flash.survivors,
        "sealed_blocks": stats.blocks.sealed_blocks - before.blocks.sealed_blocks,
        "checkpoint_bytes": stats.blocks.checkpoint_bytes - before.blocks.checkpoint_bytes,
        "written_bytes": stats.blocks.written_bytes - before.blocks.written_bytes,
        "record_reads": stats.flash.record_reads - before.flash.record_reads,
        "corrupt_records": stats.flash.corrupt_records,
    })
}

/// Without a DRAM tier every get is one read of the device.
pub fn no_dram_tier(options: CacheOptions) -> CacheOptions {
    CacheOptions {
        dram_bytes: 0,
        ..options
    }
}

pub fn reads(args: &ReadsArgs) -> anyhow::Result<Value> {
    let workload = Workload::new(args.items, 0.0, (args.size, args.size))?;
    let options = no_dram_tier(options(256, args.flash_mib, None, as_served()?)?);
    let side = Side::open(&args.path, args.flash_mib, options)?;
    side.fill(&workload, workload.keys())?;
    let keys: Vec<u64> = workload.keys().collect();
    let before = side.cache.stats();
    let shared = Rc::new(Reads {
        side,
        workload,
        keys,
        random: RefCell::new(Random(1)),
        until: Instant::now() + Duration::from_secs_f64(args.seconds),
        over: Cell::new(false),
        done: Cell::new(0),
        from_buffers: Cell::new(0),
        misses: Cell::new(0),
        failed: RefCell::default(),
    });
    let start = Start::now()?;
    for _ in 0..args.depth {
        let reads = Rc::clone(&shared);
        shared.side.executor.spawner().spawn(Box::pin(async move {
            if let Err(error) = reads.run().await {
                reads.over.set(true);
                *reads.failed.borrow_mut() = Some(error);
            }
        }));
    }
    shared.side.run_until_idle()?;
    let took = start.took()?;
    if let Some(error) = shared.failed.take() {
        return Err(error);
    }
    let stats = shared.side.cache.stats();
    let done = shared.done.get();
    let misses = shared.misses.get();
    ensure!(
        misses * 1000 <= done,
        "{misses} of {done} gets missed: the flash is too small for so many items"
    );
    Ok(json!({
        "side": "pumice",
        "requests": done,
        "took": took,
        "operations_per_second": done as f64 / took.seconds,
        "cpu_us_per_operation": took.cpu_seconds * 1e6 / done as f64,
        "device_reads": stats.flash.record_reads - before.flash.record_reads,
        "from_buffers": shared.from_buffers.get(),
        "misses": misses,
        "device_bytes_per_read": took.device_read_bytes as f64 / done as f64,
        "resident_bytes_max": resident_bytes_max()?,
        "stats": stats_json(&before, &stats),
    }))
}

/// What the tasks of random reads share.
struct Reads {
    side: Side,
    workload: Workload,
    keys: Vec<u64>,
    random: RefCell<Random>,
    until: Instant,
    over: Cell<bool>,
    done: Cell<u64>,
    /// Gets that no device was asked for, since the item's block is still a buffer.
    from_buffers: Cell<u64>,
    misses: Cell<u64>,
    failed: RefCell<Option<anyhow::Error>>,
}

impl Reads {
    async fn run(&self) -> anyhow::Result<()> {
        let side = &self.side;
        while !self.over.get() {
            // The clock is read now and then only.
            if self.done.get() & 63 == 0 && Instant::now() >= self.until {
                self.over.set(true);
            }
            let chosen = self.random.borrow_mut().below(self.keys.len() as u64);
            let key = self.keys[usize::try_from(chosen)?];
            let name = key.to_le_bytes();
            let mut found = side.cache.lookup(&side.cx, &name, Access::Count);
            let is_in_buffer = matches!(found, Lookup::Known(Some(_)));
            if let Lookup::Read(fetch) = found {
                found = side.cache.fetch(&side.cx, &name, fetch, Access::Count).await;
            }
            match found {
                Lookup::Known(Some(object)) => check(&self.workload, key, &object)?,
                // Two keys of one tag cannot both be on flash: a few items in a million are lost to that.
                Lookup::Known(None) => bump(&self.misses),
                Lookup::Read(_) => bail!("no value is large"),
            }
            if is_in_buffer {
                bump(&self.from_buffers);
            }
            bump(&self.done);
        }
        Ok(())
    }
}

pub fn fill(args: &FillArgs) -> anyhow::Result<Value> {
    let workload = Workload::new(1, 0.0, (args.size, args.size))?;
    let options = no_dram_tier(options(
        args.dram_mib,
        args.flash_mib,
        args.block_kib,
        as_served()?,
    )?);
    let side = Side::open(&args.path, args.flash_mib, options)?;
    let capacity = args.flash_mib << 20;
    let keys = Cell::new(0);
    side.block_on(side.lap(capacity, &keys, &workload))??;
    let before = side.cache.stats();
    let start = Start::now()?;
    let objects = side.block_on(side.lap(capacity, &keys, &workload))??;
    let took = start.took()?;
    let stats = side.cache.stats();
    let bytes = objects * args.size;
    Ok(json!({
        "side": "pumice",
        "objects": objects,
        "value_bytes": bytes,
        "took": took,
        "value_bytes_per_second": bytes as f64 / took.seconds,
        "device_bytes_per_second": took.device_written_bytes as f64 / took.seconds,
        "cpu_us_per_operation": took.cpu_seconds * 1e6 / objects as f64,
        "cpu_seconds_per_gib": took.cpu_seconds / (bytes as f64 / (1u64 << 30) as f64),
        "reclaimed_blocks": stats.flash.reclaimed_blocks - before.flash.reclaimed_blocks,
        "resident_bytes_max": resident_bytes_max()?,
        "stats": stats_json(&before, &stats),
    }))
}

impl Side {
    /// Sets new keys until about as many bytes were written as the device has, and waits until they are there. Returns the
    /// number of objects.
    async fn lap(&self, capacity: u64, keys: &Cell<u64>, workload: &Workload) -> anyhow::Result<u64> {
        let first = keys.get();
        let until = self.cache.stats().blocks.written_bytes + capacity;
        loop {
            for _ in 0..SETS_PER_TURN {
                self.set(keys.get(), workload).await?;
                bump(keys);
            }
            self.let_background_run(false).await?;
            // Reading the figures takes every lock.
            if keys.get().is_multiple_of(64 * SETS_PER_TURN)
                && self.cache.stats().blocks.written_bytes >= until
            {
                break;
            }
        }
        self.cache.quiesce(&self.cx).await;
        Ok(keys.get() - first)
    }
}
