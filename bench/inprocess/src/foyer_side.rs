//! foyer's hybrid cache, set up as its documentation has it, on a directory with O_DIRECT.
//!
//! Its keys are numbers and its values `Vec<u8>`, for which it ships encodings; that saves it the cost of a key in bytes.
//! The budget of DRAM is for the whole process on both sides, so what foyer needs beside values (buffers, the index of
//! what is on flash, overhead of entries) is taken off first, as Pumice's plan does for itself.

use crate::measure::{Start, Took, resident_bytes_max};
use crate::workload::Workload;
use crate::{FoyerArgs, FoyerIo, FoyerPolicy, FoyerWrite};
use anyhow::{Context, anyhow, bail};
use foyer::{
    BlockEngineConfig, DeviceBuilder, EvictionConfig, FsDeviceBuilder, HybridCache, HybridCacheBuilder,
    HybridCachePolicy, IoEngineConfig, LfuConfig, LruConfig, PsyncIoEngineConfig, RecoverMode, S3FifoConfig,
    Source, UringIoEngineConfig,
};
use pumice_trace::GeneratedRequests;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tokio::task::LocalSet;

type Cache = HybridCache<u64, Vec<u8>>;

/// foyer's default: two write buffers of this size, and as much of entries that DRAM evicted and that wait for them.
const BUFFER_BYTES: u64 = 16 << 20;
/// Program, runtime and what the allocator keeps: less than Pumice's plan has, in foyer's favour.
const BASE_BYTES: u64 = 10 << 20;
/// An entry of foyer's index of what is on flash: 40 bytes in a hash table that is 7/16 to 7/8 full.
const INDEX_BYTES: u64 = 64;
/// What an entry in DRAM takes beside its value: record, reference counts, table slot, and what the allocator rounds up.
const ENTRY_BYTES: usize = 200;
/// Sets between two waits of the preload for foyer's flusher, which drops what its queue cannot take.
const SETS_PER_WAIT: u64 = 1000;

fn memory_bytes(args: &FoyerArgs) -> anyhow::Result<usize> {
    if let Some(mib) = args.memory_mib {
        return Ok(usize::try_from(mib << 20)?);
    }
    // Every entry takes a whole number of 4 KiB.
    let on_flash = args.hits.keys.min((args.hits.flash_mib << 20) / 4096);
    (args.hits.dram_mib << 20)
        .checked_sub(BASE_BYTES + 3 * BUFFER_BYTES + on_flash * INDEX_BYTES)
        .and_then(|bytes| usize::try_from(bytes).ok())
        .ok_or_else(|| anyhow!("{} MiB of DRAM are too few for foyer", args.hits.dram_mib))
}

async fn open(args: &FoyerArgs) -> anyhow::Result<Cache> {
    let path = &args.hits.path;
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("removing {}", path.display()));
        }
        _ => {}
    }
    let device = FsDeviceBuilder::new(path)
        .with_capacity(usize::try_from(args.hits.flash_mib << 20)?)
        .with_direct(true)
        .build()?;
    let policy = match args.write {
        FoyerWrite::Eviction => HybridCachePolicy::WriteOnEviction,
        FoyerWrite::Insertion => HybridCachePolicy::WriteOnInsertion,
    };
    let eviction: EvictionConfig = match args.policy {
        FoyerPolicy::Lru => LruConfig::default().into(),
        FoyerPolicy::Lfu => LfuConfig::default().into(),
        FoyerPolicy::S3fifo => S3FifoConfig::default().into(),
    };
    let builder = HybridCacheBuilder::new()
        .with_policy(policy)
        .with_flush_on_close(false)
        .memory(memory_bytes(args)?)
        .with_eviction_config(eviction)
        .with_weighter(|_: &u64, value: &Vec<u8>| value.len() + ENTRY_BYTES)
        .storage()
        .with_recover_mode(RecoverMode::None)
        .with_engine_config(
            BlockEngineConfig::new(device)
                .with_block_size(args.block_mib << 20)
                .with_buffer_pool_size(usize::try_from(BUFFER_BYTES)?),
        );
    let builder = match args.io {
        FoyerIo::Psync => builder.with_io_engine_config(PsyncIoEngineConfig::new()),
        FoyerIo::IoUring => {
            builder.with_io_engine_config(Box::new(UringIoEngineConfig::new()) as Box<dyn IoEngineConfig>)
        }
    };
    Ok(builder.build().await?)
}

/// What all tasks share while requests run.
struct Run {
    cache: Cache,
    workload: Workload,
    requests: RefCell<GeneratedRequests>,
    left: Cell<u64>,
    hits: Cell<u64>,
    flash_hits: Cell<u64>,
    misses: Cell<u64>,
}

fn bump(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

impl Run {
    fn set(&self, key: u64) {
        let value = self.workload.with_value(key, <[u8]>::to_vec);
        self.cache.insert(key, value);
    }

    async fn preload(&self) {
        for (done, key) in (1u64..).zip(self.workload.keys()) {
            self.set(key);
            if done.is_multiple_of(SETS_PER_WAIT) {
                self.cache.storage().wait().await;
            }
        }
        self.cache.storage().wait().await;
    }

    /// Answers requests until there are no more.
    async fn look_aside(&self) -> anyhow::Result<()> {
        while let Some(left) = self.left.get().checked_sub(1) {
            self.left.set(left);
            let key = self.requests.borrow_mut().draw().key;
            match self.cache.get(&key).await? {
                Some(entry) => {
                    self.workload.check(key, entry.value())?;
                    bump(&self.hits);
                    if entry.source() == Source::Disk {
                        bump(&self.flash_hits);
                    }
                }
                None => {
                    bump(&self.misses);
                    self.set(key);
                }
            }
        }
        Ok(())
    }

    /// Answers that many requests, `depth` at once, and waits for what they left to be written.
    async fn run(self: &Rc<Self>, requests: u64, depth: usize) -> anyhow::Result<Took> {
        for counter in [&self.hits, &self.flash_hits, &self.misses] {
            counter.set(0);
        }
        self.left.set(requests);
        let start = Start::now()?;
        let tasks: Vec<_> = (0..depth)
            .map(|_| {
                let run = Rc::clone(self);
                tokio::task::spawn_local(async move { run.look_aside().await })
            })
            .collect();
        for task in tasks {
            task.await??;
        }
        self.cache.storage().wait().await;
        start.took()
    }
}

async fn measure(args: &FoyerArgs) -> anyhow::Result<Value> {
    let hits = &args.hits;
    let workload = Workload::new(hits.keys, hits.theta, (hits.size_min, hits.size_max))?;
    let run = Rc::new(Run {
        cache: open(args).await?,
        requests: RefCell::new(workload.requests()),
        workload,
        left: Cell::default(),
        hits: Cell::default(),
        flash_hits: Cell::default(),
        misses: Cell::default(),
    });
    run.preload().await;
    run.run(hits.warm_up, hits.depth).await?;
    let statistics = run.cache.statistics();
    let written = statistics.disk_write_bytes();
    let read = statistics.disk_read_bytes();
    let took = run.run(hits.requests, hits.depth).await?;
    let found = run.hits.get();
    if found + run.misses.get() != hits.requests {
        bail!("some requests were not answered");
    }
    Ok(json!({
        "side": "foyer",
        "requests": hits.requests,
        "took": took,
        "operations_per_second": hits.requests as f64 / took.seconds,
        "cpu_us_per_operation": took.cpu_seconds * 1e6 / hits.requests as f64,
        "hits": found,
        "misses": run.misses.get(),
        "hit_ratio": found as f64 / hits.requests as f64,
        "flash_hit_ratio": run.flash_hits.get() as f64 / hits.requests as f64,
        "resident_bytes_max": resident_bytes_max()?,
        "stats": {
            "memory_bytes": memory_bytes(args)?,
            "memory_entries": run.cache.memory().entries(),
            "written_bytes": statistics.disk_write_bytes() - written,
            "read_bytes": statistics.disk_read_bytes() - read,
        },
    }))
}

pub fn hits(args: &FoyerArgs) -> anyhow::Result<Value> {
    let runtime = match args.threads {
        0 => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?,
        threads => tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .enable_all()
            .build()?,
    };
    let result = LocalSet::new().block_on(&runtime, measure(args));
    runtime.shutdown_background();
    result
}
