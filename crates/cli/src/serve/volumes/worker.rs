//! Worker threads: each an event loop with its own handles on all cache devices and backing devices.

use super::super::course::Course;
use super::super::flash::NewFile;
use super::super::report::line;
use super::super::throttle::start_pacing;
use super::super::worker::{drive, each_second, throttled};
use super::backing::{DirtyCache, Slow};
use super::compute::Jobs;
use super::export::{CacheDevice, Served, ServedVolume};
use anyhow::{Context, anyhow};
use pumice_blocks::OpenError;
use pumice_chunk::store::{ChunkStore, Found};
use pumice_device::{
    AlignedBuf, CountingDevice, Delays, Device, DeviceCounters, FileDevice, FileShared, RealTime, Throttle,
};
use pumice_door_nbd::Door;
use pumice_net::Seldom;
use pumice_nhc::{Objective, Split};
use pumice_volume::{Settings, Shared, ThrottledBacking, Volume, VolumeError};
use pumice_world::{Clock, Spawner, Task};
use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, LocalSet};

/// Most requests of a worker under way on a device; more wait in memory.
const RING_ENTRIES: u32 = 256;

/// Most threads of a worker that block on backing devices.
const BACKING_THREADS: usize = 32;

/// A volume before it is opened.
pub struct Prepared {
    /// The name under which clients find it.
    pub name: String,
    /// The slow device.
    pub backing: Slow,
    /// The fast one.
    pub cache: Option<Arc<FileShared>>,
    /// Its file, if this start has made that.
    pub new_file: Option<NewFile>,
    /// How it is opened.
    pub settings: Settings,
    /// What is best where reads are split; `None`: they are not.
    pub objective: Option<Objective>,
    /// How slow the cache device is to be.
    pub cache_throttle: Option<Arc<Throttle>>,
    /// How slow the backing device is to be.
    pub backing_throttle: Option<Arc<Throttle>>,
    /// Whether a stop cleans all dirty chunks.
    pub drains: bool,
    /// Counters of each worker's handle on the cache device.
    pub counters: Vec<Arc<DeviceCounters>>,
}

/// A volume that is open.
pub struct Opened {
    /// What all workers share of it.
    pub shared: Arc<Shared<AlignedBuf>>,
    /// What the open found on the cache device; `None` without a cache.
    pub found: Option<Found>,
}

/// What all workers share.
pub struct Common {
    /// The volumes.
    pub volumes: Vec<Prepared>,
    /// Where fingerprints and compression may go.
    pub jobs: Arc<Jobs>,
    /// The NBD door.
    pub door: Door,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Seconds without an answer after which a cache device has failed; 0 = never.
    pub flash_timeout_secs: u32,
    /// Progress of start and stop.
    pub course: Course<Arc<[Opened]>>,
}

/// Runs background work on the worker's event loop, and waits for its end.
#[derive(Clone, Default)]
struct Tasks(Rc<TasksState>);

#[derive(Default)]
struct TasksState {
    count: Cell<usize>,
    ended: Notify,
}

impl Spawner for Tasks {
    fn spawn(&self, task: Task) {
        let state = Rc::clone(&self.0);
        state.count.set(state.count.get() + 1);
        tokio::task::spawn_local(async move {
            task.await;
            state.count.set(state.count.get() - 1);
            state.ended.notify_one();
        });
    }
}

impl Tasks {
    async fn ended(&self) {
        while self.0.count.get() > 0 {
            self.0.ended.notified().await;
        }
    }
}

/// Runs worker `index` to its end. Returns how long closing took, on worker 0.
///
/// # Errors
/// Where a device or the sockets fail at the start, or a volume cannot be opened or closed.
pub fn run(index: usize, common: &Common) -> anyhow::Result<Option<Duration>> {
    let [waking, parking] = [Arc::clone(&common.jobs), Arc::clone(&common.jobs)];
    common.jobs.wake();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_park(move || parking.park())
        .on_thread_unpark(move || waking.wake())
        .max_blocking_threads(BACKING_THREADS)
        .build()
        .context("cannot start an event loop")?;
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let failed = Rc::new(Notify::new());
        let mut devices = Vec::new();
        for volume in &common.volumes {
            let device = match &volume.cache {
                None => None,
                Some(shared) => Some(handle(
                    Arc::clone(shared),
                    Arc::clone(&volume.counters[index]),
                    &volume.cache_throttle,
                    &failed,
                )?),
            };
            devices.push(device);
        }
        tokio::select! {
            result = serve(index, common, devices) => result,
            // Without its driver no request of a device completes.
            () = failed.notified() => Err(anyhow!("the event loop of a cache device failed")),
        }
    })
}

/// A handle on a cache device, which the event loop drives.
fn handle(
    shared: Arc<FileShared>,
    counters: Arc<DeviceCounters>,
    throttle: &Option<Arc<Throttle>>,
    failed: &Rc<Notify>,
) -> anyhow::Result<CacheDevice> {
    let named = format!("cache device {}", shared.path().display());
    let device = FileDevice::new(shared, RING_ENTRIES).with_context(|| named.clone())?;
    let driver = drive(device.clone()).with_context(|| named.clone())?;
    let throttled = throttled(device, throttle).with_context(|| named.clone())?;
    let failed = Rc::clone(failed);
    tokio::task::spawn_local(async move {
        let Err(error) = driver.await;
        tracing::error!("{named}: {error}");
        failed.notify_one();
    });
    Ok(CountingDevice::new(throttled, counters))
}

/// Counts the seconds of the cache devices. Once open, the volumes do so, and fence a device that does not answer.
fn tick(devices: Vec<CacheDevice>, volumes: Rc<OnceCell<Vec<ServedVolume>>>, timeout_secs: u32) {
    each_second(move || match volumes.get() {
        Some(volumes) => volumes.iter().for_each(|volume| volume.tick_device(timeout_secs)),
        None if timeout_secs == 0 => {}
        None => {
            for overdue in devices.iter().flat_map(|device| device.tick(timeout_secs)) {
                tracing::error!("a cache device does not answer: {overdue}");
            }
        }
    });
}

async fn serve(
    index: usize,
    common: &Common,
    devices: Vec<Option<CacheDevice>>,
) -> anyhow::Result<Option<Duration>> {
    let ticked = Rc::new(OnceCell::new());
    tick(
        devices.iter().flatten().cloned().collect(),
        Rc::clone(&ticked),
        common.flash_timeout_secs,
    );
    let opened = match index {
        0 => common.course.open(open(common, &devices)).await?,
        _ => common.course.opened().await,
    };
    let Some(opened) = opened else { return Ok(None) };
    let tasks = Tasks::default();
    let volumes: Vec<_> = (common.volumes.iter().zip(devices).zip(&*opened))
        .map(|((prepared, device), opened)| {
            let delays = Delays::new(prepared.backing_throttle.clone());
            if prepared.backing_throttle.is_some() {
                start_pacing(&delays).context("--throttle")?;
            }
            anyhow::Ok(Volume::new(
                Arc::clone(&opened.shared),
                device,
                ThrottledBacking::new(prepared.backing.clone(), delays),
                Rc::new(tasks.clone()),
                Arc::clone(&common.clock),
            ))
        })
        .collect::<anyhow::Result<_>>()?;
    let _ = ticked.set(volumes.clone());
    let exports = volumes.iter().zip(&common.volumes).map(|(volume, prepared)| {
        Rc::new(Served {
            volume: volume.clone(),
            name: prepared.name.clone(),
            failed: Seldom::default(),
        })
    });
    let exports = exports.collect();
    // Each on its own: one whose backing device hangs holds up no other.
    let ticking: Vec<_> = (volumes.iter().filter(|_| index == 0))
        .map(|volume| tick_each_second(volume.clone()))
        .collect();
    let served = common
        .door
        .run_worker(index, exports, common.course.stop())
        .await
        .context("NBD door");
    // Before the last ticks, so that none begins a round.
    volumes.iter().for_each(Volume::stop_cleaner);
    for (is_over, ticking) in ticking {
        is_over.notify_one();
        // A panic in it was reported already.
        let _ = ticking.await;
    }
    // What this worker started in the background is finished on its event loop.
    tasks.ended().await;
    common.course.drain(index).await;
    if index > 0 {
        return served.map(|()| None);
    }
    let started = Instant::now();
    let mut closed = Ok(());
    for (volume, prepared) in volumes.iter().zip(&common.volumes) {
        let named = || format!("closing the cache of {}", prepared.name);
        let drained = match prepared.drains {
            true => drain(volume, &prepared.name).await,
            false => Ok(()),
        };
        // Before the closing cache notes the time of the volume's last change.
        if volume.dirty().0 == 0 {
            note_clean(prepared);
        }
        // The other volumes are closed even if this one fails.
        closed = closed.and(volume.close().await.with_context(named));
        let what = || format!("writing to {} what its cache alone has", prepared.name);
        closed = closed.and(drained.with_context(what));
        let (left, _) = volume.dirty();
        if left > 0 {
            line(format_args!(
                "volume {}: the cache alone has the newest content of {left} chunks: start it with this cache again",
                prepared.name
            ));
        }
    }
    common.course.note_closed();
    closed?;
    let took = started.elapsed();
    served.map(|()| Some(took))
}

/// Ticks a volume until it is notified.
fn tick_each_second(volume: ServedVolume) -> (Rc<Notify>, JoinHandle<()>) {
    let is_over = Rc::new(Notify::new());
    let ended = Rc::clone(&is_over);
    let ticking = tokio::task::spawn_local(async move {
        let mut last: Option<JoinHandle<()>> = None;
        loop {
            tokio::select! {
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
                () = ended.notified() => break,
            }
            if last.as_ref().is_some_and(|last| !last.is_finished()) {
                volume.tick_now();
                continue;
            }
            let volume = volume.clone();
            last = Some(tokio::task::spawn_local(async move { volume.tick().await }));
        }
        let Some(mut last) = last else { return };
        // While its flush hangs, what is answered is written all the same.
        loop {
            tokio::select! {
                _ = &mut last => return,
                () = tokio::time::sleep(Duration::from_secs(1)) => volume.tick_now(),
            }
        }
    });
    (is_over, ticking)
}

/// Writes to the volume what its cache alone has. Whatever happens meanwhile, it is durable in the cache.
async fn drain(volume: &ServedVolume, name: &str) -> Result<(), VolumeError> {
    let (dirty, _) = volume.dirty();
    if dirty == 0 {
        return Ok(());
    }
    line(format_args!(
        "volume {name}: writes {dirty} chunks that the cache alone has"
    ));
    volume.flush().await?;
    volume.drain().await
}

/// Opens all volumes, and then lets clients connect.
async fn open(common: &Common, devices: &[Option<CacheDevice>]) -> anyhow::Result<Arc<[Opened]>> {
    let mut all = Vec::new();
    for (prepared, device) in common.volumes.iter().zip(devices) {
        let named = || match &prepared.cache {
            Some(cache) => format!(
                "volume {} with the cache {}",
                prepared.name,
                cache.path().display()
            ),
            None => format!("volume {}", prepared.name),
        };
        let (device, backing) = (device.as_ref(), &prepared.backing);
        let opened = Shared::open(&prepared.settings, device, backing, &*common.clock).await;
        let (mut shared, mut found) = opened.with_context(named)?;
        let cache_of = |shared: &Shared<_>| shared.store().map_or(0, ChunkStore::cache_id);
        if found == Some(Found::Cache) && backing.has_left(cache_of(&shared)) {
            if shared.dirty(0).0 > 0 {
                return Err(OpenError::OnlyCopy("the volume was served without it".into()))
                    .with_context(named);
            }
            let mut settings = prepared.settings.clone();
            settings.cache.reformat = true;
            (shared, _) = Shared::open(&settings, device, backing, &*common.clock)
                .await
                .with_context(named)?;
            found = Some(Found::Forgotten);
        }
        if common.jobs.has_threads() {
            shared.offload_to(Arc::clone(&common.jobs) as _);
        }
        if let Some(objective) = prepared.objective {
            shared.split_reads(Split::new(objective, Arc::new(RealTime::new())));
        }
        all.push(Opened {
            shared: Arc::new(shared),
            found,
        });
    }
    // All will be served now, and a cache that a volume names must be there.
    for (prepared, opened) in common.volumes.iter().zip(&all) {
        prepared.new_file.iter().for_each(NewFile::keep);
        note_cache(prepared, opened)
            .with_context(|| format!("volume {}: writing down its cache", prepared.name))?;
    }
    common.door.listen().context("NBD door")?;
    Ok(all.into())
}

/// Records beside a volume the cache that it is served with, and whether that may have writes which the volume lacks.
fn note_cache(prepared: &Prepared, opened: &Opened) -> std::io::Result<()> {
    let (store, backing) = (opened.shared.store(), &prepared.backing);
    backing.note_cache(store.map_or(0, ChunkStore::cache_id));
    match (store, &prepared.cache) {
        (Some(store), Some(cache)) if store.keeps() => backing.note_dirty(DirtyCache {
            id: store.cache_id(),
            path: cache.path().canonicalize()?,
        }),
        _ => {
            note_clean(prepared);
            Ok(())
        }
    }
}

/// Records that no cache has writes which the volume lacks. Where that fails, a start without this cache is refused until one with it.
fn note_clean(prepared: &Prepared) {
    if let Err(error) = prepared.backing.note_clean() {
        tracing::warn!(
            "volume {}: it is noted still that its cache may have writes: {error}",
            prepared.name
        );
    }
}
