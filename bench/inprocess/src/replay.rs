//! A trace through the engine on a file, many requests at once: what a flash layout costs in throughput.

use crate::ReplayArgs;
use crate::measure::{Start, Took, resident_bytes_max};
use crate::pumice_side::{Side, no_dram_tier, options, stats_json, yield_now};
use anyhow::{anyhow, bail, ensure};
use pumice::{LayoutOptions, Meta, Object, RejectReason, Stats};
use pumice_device::{AlignedBuf, Device, Payload};
use pumice_trace::{Request, RequestReader, Trace, TraceOptions};
use pumice_world::Spawner;
use pumice_world::mix64;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// What the DRAM budget would be that block size and buffers follow from.
const PLAN_MIB: u64 = 256;
/// Bytes by which two neighbouring places in the filler differ.
const PLACE_BYTES: usize = 8;
/// Places in the filler where a value may begin.
const PLACES: u64 = 1 << 16;
/// Rounds of waiting for room for one object.
const WAITS_MAX: u32 = 1_000_000;

/// The content of all values: that of a key is a piece of it, which begins at a place that follows from the key.
struct Values {
    filler: Vec<u8>,
}

impl Values {
    fn new(size_max: usize) -> Self {
        let words = PLACES + size_max.div_ceil(PLACE_BYTES) as u64;
        Self {
            filler: (0..words).flat_map(|n| mix64(n).to_le_bytes()).collect(),
        }
    }

    fn of(&self, key: u64, size: usize) -> &[u8] {
        let place = (mix64(key) % PLACES) as usize * PLACE_BYTES;
        &self.filler[place..place + size]
    }

    /// Whether an object is that of the key, by its length and how its first part begins.
    fn check(&self, key: u64, size: usize, object: &Object<AlignedBuf>) -> anyhow::Result<()> {
        let expected = self.of(key, size);
        let mut len = 0;
        for part in object.parts() {
            let Payload::Bytes(bytes) = part else {
                bail!("key {key:x}: a value without bytes");
            };
            let mark = PLACE_BYTES.min(bytes.len());
            ensure!(
                len + bytes.len() <= size && bytes[..mark] == expected[len..len + mark],
                "key {key:x}: another value came back"
            );
            len += bytes.len();
        }
        ensure!(len == size, "key {key:x}: {len} bytes of {size}");
        Ok(())
    }
}

/// Bytes of each object of a trace without sizes, as of `pumice replay`.
const OBJECT_BYTES: u64 = 4096;

/// The requests of a trace, one by one.
struct Requests {
    reader: Box<dyn RequestReader>,
    batch: Vec<Request>,
    at: usize,
}

impl Requests {
    fn open(trace: &Trace) -> anyhow::Result<Self> {
        Ok(Self {
            reader: trace.open()?,
            batch: Vec::new(),
            at: 0,
        })
    }

    /// A key, and the size that this request gives it.
    fn next(&mut self) -> anyhow::Result<Option<(u64, usize)>> {
        if self.at == self.batch.len() {
            self.at = 0;
            if !self.reader.next_batch(&mut self.batch)? {
                self.batch.clear();
                return Ok(None);
            }
        }
        let request = self.batch[self.at];
        self.at += 1;
        let size = request.size.unwrap_or(OBJECT_BYTES).max(1);
        Ok(Some((request.key, usize::try_from(size)?)))
    }
}

/// What one pass over the trace says.
struct Survey {
    requests: u64,
    /// What each object weighs for good: the size of its first request.
    sizes: HashMap<u64, usize>,
    footprint: u64,
    size_max: usize,
}

fn survey(trace: &Trace) -> anyhow::Result<Survey> {
    let mut requests = Requests::open(trace)?;
    let mut sizes = HashMap::new();
    let mut count = 0;
    while let Some((key, size)) = requests.next()? {
        count += 1;
        sizes.entry(key).or_insert(size);
    }
    ensure!(count > 0, "{}: no requests", trace.name());
    Ok(Survey {
        requests: count,
        footprint: sizes.values().map(|size| *size as u64).sum(),
        size_max: sizes.values().copied().max().unwrap_or(0),
        sizes,
    })
}

#[derive(Default)]
struct Counts {
    requests: Cell<u64>,
    hits: Cell<u64>,
    bytes: Cell<u64>,
    hit_bytes: Cell<u64>,
    waits: Cell<u64>,
    rejected: Cell<u64>,
}

fn add(counter: &Cell<u64>, amount: u64) {
    counter.set(counter.get() + amount);
}

impl Counts {
    fn reset(&self) {
        for counter in [
            &self.requests,
            &self.hits,
            &self.bytes,
            &self.hit_bytes,
            &self.waits,
            &self.rejected,
        ] {
            counter.set(0);
        }
    }
}

/// What all tasks share.
struct Run {
    side: Side,
    values: Values,
    requests: RefCell<Requests>,
    sizes: HashMap<u64, usize>,
    left: Cell<u64>,
    counts: Counts,
    /// Whether a task stores, and who waits to be the next.
    storing: Cell<bool>,
    line: RefCell<VecDeque<Waker>>,
    /// Who waits for the device to have done something.
    waiting: RefCell<Vec<Waker>>,
    /// The device's driver, and whether operations wait to be started.
    driver: RefCell<Option<Waker>>,
    queued: Cell<bool>,
    over: Cell<bool>,
    failed: RefCell<Option<anyhow::Error>>,
}

impl Run {
    /// Starts what was queued, takes up what is done, and wakes who waits for that.
    fn turn(&self, block: bool) -> std::io::Result<()> {
        if self.side.cx.device.turn(block)? > 0 || block {
            self.waiting.take().into_iter().for_each(Waker::wake);
        }
        Ok(())
    }

    /// As a server's event loop: at the end of a turn in which operations were queued they are started together.
    async fn drive(&self) -> std::io::Result<()> {
        while !self.over.get() {
            poll_fn(|cx| {
                if self.queued.take() || self.over.get() {
                    return Poll::Ready(());
                }
                *self.driver.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            })
            .await;
            self.turn(false)?;
        }
        Ok(())
    }

    fn wake_driver(&self) {
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    /// Waits until the device has done something.
    async fn wait_for_device(&self) {
        let mut waited = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut waited, true) {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    async fn lookup(&self, key: u64, size: usize) -> anyhow::Result<bool> {
        let Side { cache, cx, .. } = &self.side;
        let name = key.to_le_bytes();
        let Some(object) = cache.get(cx, &name).await else {
            return Ok(false);
        };
        self.values.check(key, size, &object)?;
        Ok(true)
    }

    /// Waits until no other task stores.
    async fn wait_in_line(&self) {
        poll_fn(|cx| {
            if !self.storing.replace(true) {
                return Poll::Ready(());
            }
            self.line.borrow_mut().push_back(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Stores an object, waiting for room: a set itself never waits, and is refused instead. One task at a time tries, and
    /// that again whenever the device has done something.
    async fn insert(&self, key: u64, size: usize) -> anyhow::Result<()> {
        self.wait_in_line().await;
        let stored = self.try_insert(key, size).await;
        self.storing.set(false);
        if let Some(next) = self.line.borrow_mut().pop_front() {
            next.wake();
        }
        stored
    }

    async fn try_insert(&self, key: u64, size: usize) -> anyhow::Result<()> {
        let Side { cache, cx, .. } = &self.side;
        let value = Payload::Bytes(self.values.of(key, size));
        for _ in 0..WAITS_MAX {
            match cache.store(cx, &key.to_le_bytes(), value, Meta::default()).await {
                Ok(_) => return Ok(()),
                Err(RejectReason::NoRoom) => {
                    add(&self.counts.waits, 1);
                    self.wait_for_device().await;
                }
                Err(RejectReason::TooLarge) => {
                    add(&self.counts.rejected, 1);
                    return Ok(());
                }
                Err(error) => return Err(anyhow!(error)),
            }
        }
        bail!("key {key:x}: no room after {WAITS_MAX} rounds of waiting")
    }

    /// Answers requests until there are no more; a miss is followed by a set.
    async fn look_aside(&self) -> anyhow::Result<()> {
        while let Some(left) = self.left.get().checked_sub(1) {
            self.left.set(left);
            let Some((key, _)) = self.requests.borrow_mut().next()? else {
                return Ok(());
            };
            let size = self.sizes[&key];
            add(&self.counts.requests, 1);
            add(&self.counts.bytes, size as u64);
            if self.lookup(key, size).await? {
                add(&self.counts.hits, 1);
                add(&self.counts.hit_bytes, size as u64);
            } else {
                self.insert(key, size).await?;
            }
            // Others get their turn, as they would between a server's connections.
            yield_now().await;
        }
        Ok(())
    }

    /// Answers that many requests, `depth` at once, and waits for what they made due.
    fn run(self: &Rc<Self>, requests: u64, depth: usize) -> anyhow::Result<Took> {
        self.counts.reset();
        self.left.set(requests);
        self.over.set(false);
        let start = Start::now()?;
        let tasks = Rc::new(Cell::new(depth));
        let spawner = self.side.executor.spawner();
        for _ in 0..depth {
            let (run, tasks) = (Rc::clone(self), Rc::clone(&tasks));
            spawner.spawn(Box::pin(async move {
                if let Err(error) = run.look_aside().await {
                    run.fail(error);
                }
                tasks.set(tasks.get() - 1);
                if tasks.get() == 0 {
                    run.side.cache.quiesce(&run.side.cx).await;
                    run.over.set(true);
                    run.wake_driver();
                }
            }));
        }
        let run = Rc::clone(self);
        spawner.spawn(Box::pin(async move {
            if let Err(error) = run.drive().await {
                run.fail(error.into());
            }
        }));
        self.side.executor.run_until_idle(|| self.turn(true))?;
        match self.failed.take() {
            Some(error) => Err(error),
            None => start.took(),
        }
    }

    fn fail(&self, error: anyhow::Error) {
        self.left.set(0);
        self.failed.borrow_mut().get_or_insert(error);
    }
}

pub fn replay(args: &ReplayArgs) -> anyhow::Result<Value> {
    let trace = Trace::new(&args.trace, TraceOptions::default())?;
    let survey = survey(&trace)?;
    let flash_mib = ((survey.footprint as f64 * args.flash_share) as u64) >> 20;
    ensure!(
        flash_mib > 0,
        "{}: {} bytes of objects are too few",
        args.trace,
        survey.footprint
    );
    let layout = LayoutOptions::new(args.layout.parse()?, args.policy.as_deref(), None, None)?;
    let dram_mib = if args.dram_mib == 0 {
        PLAN_MIB
    } else {
        args.dram_mib
    };
    let mut options = options(dram_mib, flash_mib, args.block_kib, layout)?;
    if args.dram_mib == 0 {
        options = no_dram_tier(options);
    }
    options.buffers_max = args.buffers.unwrap_or(options.buffers_max);
    let side = Side::open(&args.path, flash_mib, options)?;
    let run = Rc::new(Run {
        side,
        values: Values::new(survey.size_max),
        requests: RefCell::new(Requests::open(&trace)?),
        sizes: survey.sizes,
        left: Cell::default(),
        counts: Counts::default(),
        storing: Cell::default(),
        line: RefCell::default(),
        waiting: RefCell::default(),
        driver: RefCell::default(),
        queued: Cell::default(),
        over: Cell::default(),
        failed: RefCell::default(),
    });
    let hook = Rc::downgrade(&run);
    run.side.cx.device.set_submit_hook(Rc::new(move || {
        if let Some(run) = hook.upgrade() {
            run.queued.set(true);
            run.wake_driver();
        }
    }));
    let warm_up = (survey.requests as f64 * args.warm_up) as u64;
    run.run(warm_up, args.depth)?;
    let before = run.side.cache.stats();
    let took = run.run(survey.requests - warm_up, args.depth)?;
    let stats = run.side.cache.stats();
    report(args, &run.counts, &took, flash_mib, (&before, &stats))
}

fn report(
    args: &ReplayArgs,
    counts: &Counts,
    took: &Took,
    flash_mib: u64,
    (before, stats): (&Stats, &Stats),
) -> anyhow::Result<Value> {
    let requests = counts.requests.get();
    let share = |part: &Cell<u64>, whole: u64| part.get() as f64 / whole.max(1) as f64;
    Ok(json!({
        "side": args.layout,
        "requests": requests,
        "flash_mib": flash_mib,
        "took": took,
        "requests_per_second": requests as f64 / took.seconds,
        "cpu_us_per_request": took.cpu_seconds * 1e6 / requests.max(1) as f64,
        "object_hit_ratio": share(&counts.hits, requests),
        "byte_hit_ratio": share(&counts.hit_bytes, counts.bytes.get()),
        "waits": counts.waits.get(),
        "rejected": counts.rejected.get(),
        "appended_bytes": stats.flash.appended_bytes - before.flash.appended_bytes,
        "survivor_bytes": stats.flash.survivor_bytes - before.flash.survivor_bytes,
        "reclaim_read_bytes": stats.flash.reclaim_read_bytes - before.flash.reclaim_read_bytes,
        "resident_bytes_max": resident_bytes_max()?,
        "stats": stats_json(before, stats),
    }))
}
