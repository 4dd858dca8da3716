//! Latency of reads from flash while the cache writes blocks. The engine of `serve` runs under an open load: on a model of a device in virtual
//! time, or on a file in real time.
//!
//! Reads arrive at random and never wait for each other's answers, sets at even intervals. There is no DRAM tier, and what is asked for
//! was set so long ago that its block has been written.

use crate::error::SimError;
use crate::flash::refuse_others;
use futures_util::future::poll_fn;
use pumice::{CacheOptions, Cx, Found, Lookup, Maker, Meta, ObjectCache, Stats};
use pumice_device::{
    Device, FileDevice, FileOptions, FileShared, Payload, Profile, RealTime, SparseDevice, SparseMedium,
    Throttle, ThrottledDevice, Timeline, VirtualTime,
};
use pumice_world::{Executor, ManualClock, Random, Spawner, mix64};
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// Blocks of the device.
const BLOCKS: u64 = 64;
/// What is read is so many blocks old, and up to as many more.
const AGE_BLOCKS: u64 = 20;
const SECOND: f64 = 1e9;

/// What a cache is asked for.
#[derive(Clone, Debug)]
pub struct DirectOptions {
    /// The kind of device.
    pub device: Profile,
    /// A file that is to be used in place of a model, and is erased; the kind of device says what is asked of it.
    pub path: Option<PathBuf>,
    /// Whether it is erased whatever it holds; else only what a replay left is.
    pub reformat: bool,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Block buffers.
    pub buffers: usize,
    /// Bytes of a value.
    pub object_bytes: u64,
    /// Reads, as a share of the most that the device does of this length.
    pub reads: f64,
    /// Bytes set, as a share of the bytes that the device writes in the same time.
    pub writes: f64,
    /// Seconds that count.
    pub seconds: f64,
    /// Seed of all that is drawn.
    pub seed: u64,
}

/// What a run came to.
#[derive(Clone, Debug, Serialize)]
pub struct DirectRun {
    /// Reads that hit flash.
    pub reads: u64,
    /// Reads that did not.
    pub others: u64,
    /// The median of the time from arrival to answer, in nanoseconds.
    pub p50_ns: u64,
    /// Its 99th percentile.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Bytes written in a second.
    pub written_bytes_per_second: f64,
    /// Objects set for which no buffer was free.
    pub dropped: u64,
}

/// Reads alone, and reads while blocks are written.
#[derive(Clone, Debug, Serialize)]
pub struct DirectReport {
    /// The kind of device.
    pub device: String,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Bytes of a value.
    pub object_bytes: u64,
    /// Reads that arrive in a second.
    pub reads_per_second: f64,
    /// Seed.
    pub seed: u64,
    /// Reads alone.
    pub idle: DirectRun,
    /// Reads while blocks are written.
    pub writing: DirectRun,
    /// The median while blocks are written, over that of reads alone.
    pub p50_ratio: f64,
    /// The same for the 99th percentile.
    pub p99_ratio: f64,
}

/// A cache under load.
struct Stage<'a, D: Device + Clone> {
    options: &'a DirectOptions,
    time: Arc<dyn Timeline>,
    executor: Executor,
    cx: Cx<ThrottledDevice<D>>,
    cache: ObjectCache<ThrottledDevice<D>>,
    /// What is set; without bytes it only has a length.
    value: Payload<'a>,
    /// Who waits until when.
    alarm: RefCell<Option<(u64, Waker)>>,
    /// Objects set.
    set: Cell<u64>,
    random: RefCell<Random>,
}

impl<'a, D: Device + Clone> Stage<'a, D> {
    /// Opens a cache, and fills it until it goes round.
    fn open(
        options: &'a DirectOptions,
        device: ThrottledDevice<D>,
        time: Arc<dyn Timeline>,
        value: Payload<'a>,
    ) -> Result<Self, SimError> {
        let executor = Executor::new();
        let cx = Cx::new(device, Arc::new(ManualClock::new(1)), Rc::new(executor.spawner()));
        let cache = CacheOptions {
            dram_bytes: 0,
            buffers_max: options.buffers,
            block_bytes: Some(options.block_bytes),
            reformat: true,
            maker: Maker::Replay,
            item_bytes_max: usize::MAX,
            random: [mix64(options.seed), mix64(options.seed + 1)],
            ..CacheOptions::default()
        };
        let park = || cx.device.turn(true).map(drop);
        let opened = executor.block_on(ObjectCache::open(&cx, cache), park);
        let (cache, _) = opened.map_err(failed)?.map_err(SimError::Open)?;
        let stage = Self {
            options,
            time,
            executor,
            cx,
            cache,
            value,
            alarm: RefCell::default(),
            set: Cell::new(0),
            random: RefCell::new(Random(mix64(options.seed))),
        };
        let some = (options.block_bytes / options.object_bytes / 4).max(1);
        while stage.stats().blocks.sealed_blocks < BLOCKS + AGE_BLOCKS {
            (0..some).for_each(|_| stage.set());
            stage.settle()?;
        }
        Ok(stage)
    }

    fn stats(&self) -> Stats {
        self.cache.stats()
    }

    /// Virtual time passes to what is due first; real time passes.
    fn park(&self) -> io::Result<()> {
        let device = &self.cx.device;
        let alarm = self.alarm.borrow().as_ref().map(|(at, _)| *at);
        let due = device.delays().next_due_ns();
        let Some(next) = alarm.into_iter().chain(due).min() else {
            return device.turn(true).map(drop);
        };
        if self.options.path.is_none() {
            self.time.wait_until(next);
        }
        device.turn(false)?;
        if alarm.is_some_and(|at| at <= self.time.now_ns()) {
            let rings = self.alarm.take();
            rings.into_iter().for_each(|(_, waker)| waker.wake());
        }
        Ok(())
    }

    fn settle(&self) -> Result<(), SimError> {
        self.executor.run_until_idle(|| self.park()).map_err(failed)
    }

    /// Waits until a time, and lets others go on also where that has passed.
    async fn until(&self, ns: u64) {
        let mut has_waited = false;
        poll_fn(|context| {
            if std::mem::replace(&mut has_waited, true) && self.time.now_ns() >= ns {
                return Poll::Ready(());
            }
            self.alarm.replace(Some((ns, context.waker().clone())));
            Poll::Pending
        })
        .await;
    }

    fn set(&self) {
        let number = self.set.get();
        self.set.set(number + 1);
        // One for which no buffer is free is counted.
        let _ = self
            .cache
            .set(&self.cx, &number.to_le_bytes(), self.value, Meta::default());
    }

    /// An object that is on flash.
    fn draw(&self, per_block: f64) -> u64 {
        let age = per_block * AGE_BLOCKS as f64 * (1.0 + self.random.borrow_mut().next_f64());
        self.set.get() - age as u64
    }

    /// So many reads and sets a second; what of them counts.
    fn load(&self, reads: f64, sets: f64) -> Result<DirectRun, SimError> {
        let before = self.stats();
        let per_block = self.set.get() as f64 / before.blocks.sealed_blocks as f64;
        let times: Rc<RefCell<Vec<u64>>> = Rc::default();
        let others = Rc::new(Cell::new(0));
        let begun = self.time.now_ns() as f64;
        let end = begun + self.options.seconds * SECOND;
        let pause = || -(1.0 - self.random.borrow_mut().next_f64()).ln() / reads * SECOND;
        let arrivals = async {
            let mut next_read = begun + pause();
            let mut next_set = begun + SECOND / sets;
            while next_read.min(next_set) < end {
                let at = next_read.min(next_set);
                self.until(at as u64).await;
                if next_set <= next_read {
                    self.set();
                    next_set += SECOND / sets;
                    continue;
                }
                next_read += pause();
                let key = self.draw(per_block).to_le_bytes();
                let Lookup::Flash(flash) = self.cache.lookup(&self.cx, &key) else {
                    others.set(others.get() + 1);
                    continue;
                };
                let (cache, cx, time) = (self.cache.clone(), self.cx.clone(), Arc::clone(&self.time));
                let (times, others) = (Rc::clone(&times), Rc::clone(&others));
                self.executor.spawner().spawn(Box::pin(async move {
                    match cache.finish(&cx, &key, flash).await {
                        Found::Hit(_) => times.borrow_mut().push(time.now_ns() - at as u64),
                        Found::Miss | Found::Large(_) => others.set(others.get() + 1),
                    }
                }));
            }
        };
        self.executor.block_on(arrivals, || self.park()).map_err(failed)?;
        let seconds = (self.time.now_ns() as f64 - begun) / SECOND;
        let after = self.stats();
        self.settle()?;
        let mut times = times.take();
        times.sort_unstable();
        let quantile = |q: f64| {
            let at = (times.len() as f64 * q) as usize;
            times.get(at.min(times.len().saturating_sub(1))).copied()
        };
        Ok(DirectRun {
            reads: times.len() as u64,
            others: others.get(),
            p50_ns: quantile(0.5).unwrap_or(0),
            p99_ns: quantile(0.99).unwrap_or(0),
            max_ns: times.last().copied().unwrap_or(0),
            written_bytes_per_second: (after.blocks.written_bytes - before.blocks.written_bytes) as f64
                / seconds,
            dropped: after.flash.dropped_no_block - before.flash.dropped_no_block,
        })
    }
}

fn failed(source: io::Error) -> SimError {
    SimError::DeviceIo {
        what: "running the cache",
        source,
    }
}

/// Reads a second of so many bytes that such a device comes to.
fn most_reads(device: &Profile, bytes: u64) -> f64 {
    let read = device.read;
    let passing = bytes as f64 / read.bytes_per_second as f64;
    let of_lanes = f64::from(read.parallelism) / (read.latency_ns as f64 / SECOND + passing);
    of_lanes.min(1.0 / passing)
}

/// Reads what a cache has on flash, while nothing else happens, and while blocks are written.
///
/// # Errors
/// What opening the file or the cache said, [`SimError::NoReads`].
pub fn run_direct(options: &DirectOptions) -> Result<DirectReport, SimError> {
    // Beside the blocks the log.
    let capacity = options.block_bytes * BLOCKS * 66 / 64;
    let object_bytes = usize::try_from(options.object_bytes).unwrap_or(usize::MAX);
    let Some(path) = &options.path else {
        let time: Arc<dyn Timeline> = Arc::new(VirtualTime::new());
        let throttle = Arc::new(Throttle::new(&options.device, Arc::clone(&time)));
        let device = SparseDevice::new(Arc::new(SparseMedium::new(capacity)));
        let device = ThrottledDevice::new(device, throttle);
        return report(&Stage::open(options, device, time, Payload::Void(object_bytes))?);
    };
    let open = FileOptions {
        size: Some(capacity),
        ..FileOptions::default()
    };
    if !options.reformat {
        refuse_others(path)?;
    }
    let shared = FileShared::open(path, &open).map_err(SimError::File)?;
    let device = FileDevice::new(Arc::new(shared), 256).map_err(failed)?;
    let device = ThrottledDevice::new(device, None);
    let value = vec![7; object_bytes];
    let time = Arc::new(RealTime::new());
    report(&Stage::open(options, device, time, Payload::Bytes(&value))?)
}

fn report<D: Device + Clone>(stage: &Stage<'_, D>) -> Result<DirectReport, SimError> {
    let options = stage.options;
    let stats = stage.stats();
    let record_bytes = stats.flash.appended_bytes as f64 / stage.set.get() as f64;
    let reads = options.reads * most_reads(&options.device, options.object_bytes.next_multiple_of(4096));
    let sets = options.writes * options.device.write.bytes_per_second as f64 / record_bytes;
    let idle = stage.load(reads, 0.0)?;
    let writing = stage.load(reads, sets)?;
    if idle.reads == 0 || writing.reads == 0 {
        return Err(SimError::NoReads(options.seconds));
    }
    let ratio = |of: fn(&DirectRun) -> u64| of(&writing) as f64 / of(&idle) as f64;
    Ok(DirectReport {
        device: match &options.path {
            None => options.device.to_string(),
            Some(path) => path.display().to_string(),
        },
        block_bytes: options.block_bytes,
        object_bytes: options.object_bytes,
        reads_per_second: reads,
        seed: options.seed,
        p50_ratio: ratio(|run| run.p50_ns),
        p99_ratio: ratio(|run| run.p99_ns),
        idle,
        writing,
    })
}
