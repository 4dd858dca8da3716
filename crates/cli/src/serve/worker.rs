//! Worker threads: each a current-thread event loop with its own handle on the flash device.

use super::course::Course;
use super::performance::Performance;
use super::throttle::start_pacing;
use anyhow::{Context, anyhow};
use pumice::{CacheOptions, Cx, LeftBehind, ObjectCache, Recovered};
use pumice_device::{
    CountingDevice, Device, DeviceCounters, FileDevice, FileShared, Overdue, Throttle, ThrottledDevice,
};
use pumice_door_memcached::Door;
use pumice_nhc::Tiered;
use pumice_world::{Clock, Spawner, Task};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::LocalSet;

/// A worker's handle on one device, which counts, and is slower where that was asked for.
type One = CountingDevice<ThrottledDevice<FileDevice>>;

/// A worker's handle on the flash device, and on the performance tier where there is one.
pub type ServedDevice = Tiered<One, One>;

/// The cache as `serve` runs it.
pub type ServedCache = ObjectCache<ServedDevice>;

/// Requests that one worker may have under way on the device; more wait in memory.
const RING_ENTRIES: u32 = 256;

/// How the cache was closed.
pub struct Closed {
    /// What it could not keep.
    pub left: LeftBehind,
    /// How long that took.
    pub took: Duration,
}

/// What all workers share.
pub struct Common {
    /// The flash device.
    pub flash: Arc<FileShared>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Bytes of the checkpoint that the start reads.
    pub checkpoint_bytes: u64,
    /// How worker 0 opens the cache.
    pub options: CacheOptions,
    /// How slow the flash device is to be.
    pub throttle: Option<Arc<Throttle>>,
    /// Seconds after which a flash device that does not answer has failed; 0 = never.
    pub flash_timeout_secs: u32,
    /// What each worker's handle on the device counts.
    pub counters: Vec<Arc<DeviceCounters>>,
    /// The performance tier, if there is one.
    pub performance: Option<Performance>,
    /// Why the one that was there before is left out.
    pub tier_left_out: Option<String>,
    /// The memcached door.
    pub door: Door,
    /// How far the server is.
    pub course: Course<Opened>,
}

/// The open cache.
#[derive(Clone)]
pub struct Opened {
    /// The cache.
    pub cache: Arc<ServedCache>,
    /// What was on the device.
    pub recovered: Recovered,
    /// How long that took to find out.
    pub took: Duration,
}

/// Runs background work of the engine on the worker's own event loop.
struct LocalTasks;

impl Spawner for LocalTasks {
    fn spawn(&self, task: Task) {
        tokio::task::spawn_local(task);
    }
}

/// Runs worker `index` to its end: it serves until the server stops, then helps background work to finish until worker 0
/// has closed the cache. Returns how long closing took, on worker 0.
///
/// # Errors
/// Where the device or the sockets fail at the start, or the cache cannot be opened or closed.
pub fn run(index: usize, common: &Common) -> anyhow::Result<Option<Closed>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start an event loop")?;
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let device = FileDevice::new(Arc::clone(&common.flash), RING_ENTRIES)
            .context("cannot make a handle on the flash device")?;
        let driver = tokio::task::spawn_local(drive(device.clone())?);
        let overdue = Rc::new(Cell::new(None));
        if common.flash_timeout_secs > 0 {
            let (device, secs) = (device.clone(), common.flash_timeout_secs);
            let found = Rc::clone(&overdue);
            each_second(move || {
                if let Some(ended) = device.tick(secs).pop() {
                    found.set(Some(ended));
                }
            });
        }
        let counters = Arc::clone(&common.counters[index]);
        let throttled =
            throttled(device.clone(), &common.throttle).context("cannot throttle the flash device")?;
        let counting = CountingDevice::new(throttled, counters);
        let tiered = match &common.performance {
            None => Tiered::without(counting),
            Some(performance) => above(counting, index, performance),
        };
        let cx = Cx::new(tiered, Arc::clone(&common.clock), Rc::new(LocalTasks));
        let log_gate = Rc::new(move || device.log_wait().map(|wait| Box::pin(wait) as Task));
        let log_gate = Some(log_gate as Rc<dyn Fn() -> Option<Task>>);
        let work = serve(index, common, Cx { log_gate, ..cx }, overdue);
        tokio::pin!(work);
        // Without its driver nothing would ever complete.
        tokio::select! {
            result = &mut work => result,
            ended = driver => match ended {
                Ok(Err(error)) => Err(anyhow!(error).context("flash device")),
                Ok(Ok(never)) => match never {},
                Err(error) => Err(anyhow!(error).context("flash device")),
            },
        }
    })
}

/// A handle on the flash device and on the performance tier. Where the latter cannot be had, the flash serves alone.
fn above(lower: One, index: usize, performance: &Performance) -> ServedDevice {
    let tier = &performance.tier;
    let handle = || {
        let device = FileDevice::new(Arc::clone(&performance.shared), RING_ENTRIES)?;
        let driver = drive(device.clone())?;
        anyhow::Ok((throttled(device, &performance.throttle)?, driver))
    };
    let (device, driver) = match handle() {
        Ok(handle) => handle,
        Err(error) => {
            tier.leave_out(format!("worker {index} has no handle on it: {error:#}"));
            return Tiered::without(lower);
        }
    };
    let counters = Arc::clone(&performance.counters[index]);
    let upper = CountingDevice::new(device, counters);
    let tiered = Tiered::new(lower, upper, Arc::clone(tier), Rc::new(LocalTasks));
    let (driven, watched) = (Arc::clone(tier), tiered.clone());
    tokio::task::spawn_local(async move {
        let Err(error) = driver.await;
        driven.leave_out(format!("its event loop failed: {error}"));
    });
    each_second(move || watched.tick_upper());
    tiered
}

/// A handle that is as slow as asked for.
pub(super) fn throttled(
    device: FileDevice,
    throttle: &Option<Arc<Throttle>>,
) -> std::io::Result<ThrottledDevice<FileDevice>> {
    let device = ThrottledDevice::new(device, throttle.clone());
    if throttle.is_some() {
        start_pacing(device.delays())?;
    }
    Ok(device)
}

/// Registers the device with the event loop. The future that comes back starts and completes its operations: after its
/// eventfd was signalled, and at the end of a turn of the loop in which operations were queued, so that they start
/// together. It sleeps otherwise.
pub(super) fn drive(
    device: FileDevice,
) -> anyhow::Result<impl Future<Output = std::io::Result<std::convert::Infallible>>> {
    let event = device.event_fd()?.try_clone_to_owned()?;
    #[expect(
        deprecated,
        reason = "its successor is unsafe, and newer than the oldest tokio that serves us"
    )]
    let event = AsyncFd::with_interest(event, Interest::READABLE)?;
    let queued = Rc::new(Notify::new());
    let hook = Rc::clone(&queued);
    device.set_submit_hook(Rc::new(move || hook.notify_one()));
    Ok(async move {
        loop {
            tokio::select! {
                // The eventfd is signalled anew for later results, and the loop is edge-triggered: it need not be read.
                ready = event.readable() => ready?.clear_ready(),
                () = queued.notified() => {}
            }
            device.turn(false)?;
        }
    })
}

/// Does something each second, as long as the event loop runs. After a second in which it did not run the next is a whole one: a process
/// that was stopped does not take that for the device's delay.
pub(super) fn each_second(mut act: impl FnMut() + 'static) {
    tokio::task::spawn_local(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            act();
        }
    });
}

/// Serves until the server stops. What is found in `overdue` takes the device out, also what was there before the cache was open.
async fn serve(
    index: usize,
    common: &Common,
    cx: Cx<ServedDevice>,
    overdue: Rc<Cell<Option<Overdue>>>,
) -> anyhow::Result<Option<Closed>> {
    let opened = match index {
        0 => common.course.open(open(common, &cx)).await?,
        _ => common.course.opened().await,
    };
    let Some(Opened { cache, .. }) = opened else {
        return Ok(None);
    };
    if let (0, Some(performance)) = (index, &common.performance) {
        let (device, start) = (cx.device.clone(), performance.start(&cache));
        tokio::task::spawn_local(async move { device.start(start).await });
    }
    let (watched, watcher) = (Arc::clone(&cache), cx.clone());
    each_second(move || {
        if let Some(overdue) = overdue.take() {
            watched.flash_is_overdue(&watcher, overdue);
        }
        watched.tick(&watcher);
    });
    let served = common
        .door
        .run_worker(
            index,
            Rc::new(cx.clone()),
            Arc::clone(&cache),
            common.course.stop(),
        )
        .await
        .context("memcached door");
    common.course.drain(index).await;
    if index > 0 {
        return served.map(|()| None);
    }
    let started = Instant::now();
    let closed = cache.close(&cx).await.context("closing the cache");
    common.course.note_closed();
    let left = closed?;
    let took = started.elapsed();
    served.map(|()| Some(Closed { left, took }))
}

/// Opens the cache, and then lets clients connect. Where the server is to stop before that is done, the device is as a crash would find it: as it was, since a start
/// writes only at its end.
async fn open(common: &Common, cx: &Cx<ServedDevice>) -> anyhow::Result<Opened> {
    let started = Instant::now();
    let opened = ObjectCache::open(cx, common.options).await;
    let (cache, recovered) =
        opened.with_context(|| format!("flash device {}", common.flash.path().display()))?;
    common.door.listen().context("memcached door")?;
    Ok(Opened {
        cache: Arc::new(cache),
        recovered,
        took: started.elapsed(),
    })
}
