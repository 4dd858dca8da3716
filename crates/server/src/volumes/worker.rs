//! Volumes as the host runs them: a worker's handles, and what is opened, served, ticked and closed.

use super::export::{CacheDevice, Served, ServedVolume};
use super::{Volumes, say_found};
use crate::host::files::NewFile;
use crate::host::{RING_ENTRIES, Worker, line};
use crate::service::{Service, Share};
use crate::throttle::Throttling;
use anyhow::Context;
use pumice_backing::{DirtyCache, Slow};
use pumice_blocks::OpenError;
use pumice_chunk::store::{ChunkStore, Found};
use pumice_device::{AlignedBuf, CountingDevice, Device, DeviceCounters, FileDevice, FileShared, RealTime};
use pumice_door_admin::{BooksFault, Figures};
use pumice_net::Seldom;
use pumice_nhc::{Objective, Split};
use pumice_volume::{Settings, Shared, Volume, VolumeError};
use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

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
    pub cache_throttling: Throttling,
    /// How slow the backing device is to be.
    pub backing_throttling: Throttling,
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

/// What a worker has of its own.
pub struct Handle {
    /// On the cache device of each volume.
    devices: Vec<Option<CacheDevice>>,
    /// On each volume, once they are open.
    volumes: OnceCell<Vec<ServedVolume>>,
}

impl Service for Volumes {
    const CLOSED: &'static str = "caches";
    type Handle = Handle;
    type Opened = Arc<[Opened]>;

    fn plan(&self) -> Vec<Share> {
        self.shares.clone()
    }

    fn handle(&self, worker: &Worker) -> anyhow::Result<Handle> {
        let device = |volume: &Prepared| {
            let Some(shared) = &volume.cache else {
                return Ok(None);
            };
            let named = format!("cache device {}", shared.path().display());
            let device = FileDevice::new(Arc::clone(shared), RING_ENTRIES).with_context(|| named.clone())?;
            worker.drive(device.clone(), named.clone())?;
            let paced = volume.cache_throttling.device(device).context(named)?;
            let counters = Arc::clone(&volume.counters[worker.index]);
            anyhow::Ok(Some(CountingDevice::new(paced, counters)))
        };
        Ok(Handle {
            devices: self.volumes.iter().map(device).collect::<anyhow::Result<_>>()?,
            volumes: OnceCell::new(),
        })
    }

    async fn open(&self, handle: &Handle) -> anyhow::Result<Arc<[Opened]>> {
        let mut all = Vec::new();
        for (prepared, device) in self.volumes.iter().zip(&handle.devices) {
            all.push(self.open_one(prepared, device.as_ref()).await.with_context(|| {
                let cache = prepared.cache.as_ref().map(|cache| cache.path().display());
                let with = cache.map_or_else(String::new, |cache| format!(" with the cache {cache}"));
                format!("volume {}{with}", prepared.name)
            })?);
        }
        // All will be served now, and a cache that a volume names must be there.
        for (prepared, opened) in self.volumes.iter().zip(&all) {
            prepared.new_file.iter().for_each(NewFile::keep);
            note_cache(prepared, opened)
                .with_context(|| format!("volume {}: writing down its cache", prepared.name))?;
        }
        say_found(&self.volumes, &all, self.clock.now_secs());
        Ok(all.into())
    }

    async fn run(&self, worker: &Worker, handle: &Handle, opened: &Arc<[Opened]>) -> anyhow::Result<()> {
        let open = |((prepared, device), opened): ((&Prepared, &Option<CacheDevice>), &Opened)| {
            let backing = prepared.backing_throttling.backing(prepared.backing.clone());
            anyhow::Ok(Volume::new(
                Arc::clone(&opened.shared),
                device.clone(),
                backing.context("--throttle")?,
                Rc::new(worker.tasks.clone()),
                Arc::clone(&self.clock),
            ))
        };
        let volumes = self.volumes.iter().zip(&handle.devices).zip(&**opened).map(open);
        let volumes = volumes.collect::<anyhow::Result<Vec<_>>>()?;
        let volumes = handle.volumes.get_or_init(|| volumes);
        let exports = volumes.iter().zip(&self.volumes).map(|(volume, prepared)| {
            Rc::new(Served {
                volume: volume.clone(),
                name: prepared.name.clone(),
                failed: Seldom::default(),
            })
        });
        let exports = exports.collect();
        // Each on its own: one whose backing device hangs holds up no other.
        let ticking: Vec<_> = (volumes.iter().filter(|_| worker.index == 0))
            .map(|volume| tick_each_second(volume.clone()))
            .collect();
        let served = self.door.inner.run_worker(worker.index, exports, worker.stop());
        let served = served.await.context("NBD door");
        // Before the last ticks, so that none begins a round.
        volumes.iter().for_each(Volume::stop_cleaner);
        for (is_over, ticking) in ticking {
            is_over.notify_one();
            // A panic in it was reported already.
            let _ = ticking.await;
        }
        // What this worker started in the background is finished on its event loop.
        worker.tasks.ended().await;
        served
    }

    /// Counts the seconds of the cache devices. Once open, the volumes do so, and fence a device that does not answer.
    fn tick(&self, handle: &Handle, _: Option<&Arc<[Opened]>>) {
        let timeout_secs = self.flash_timeout_secs;
        match handle.volumes.get() {
            Some(volumes) => volumes.iter().for_each(|volume| volume.tick_device(timeout_secs)),
            None if timeout_secs == 0 => {}
            None => {
                let devices = handle.devices.iter().flatten();
                for overdue in devices.flat_map(|device| device.tick(timeout_secs)) {
                    tracing::error!("a cache device does not answer: {overdue}");
                }
            }
        }
    }

    async fn close(&self, handle: &Handle, _: &Arc<[Opened]>) -> anyhow::Result<()> {
        let mut closed = Ok(());
        let volumes = handle.volumes.get().into_iter().flatten();
        for (volume, prepared) in volumes.zip(&self.volumes) {
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
        closed
    }

    fn figures(&self, opened: Option<&Arc<[Opened]>>) -> Figures {
        self.all_figures(opened.map(|opened| &**opened))
    }

    fn check_books(&self, opened: Option<&Arc<[Opened]>>) -> Result<(), BooksFault> {
        self.check_chunks(opened.map(|opened| &**opened))
    }
}

impl Volumes {
    async fn open_one(&self, prepared: &Prepared, device: Option<&CacheDevice>) -> anyhow::Result<Opened> {
        let backing = &prepared.backing;
        let open = async |settings: &Settings| Shared::open(settings, device, backing, &*self.clock).await;
        let (mut shared, mut found) = open(&prepared.settings).await?;
        let cache_of = |shared: &Shared<_>| shared.store().map_or(0, ChunkStore::cache_id);
        if found == Some(Found::Cache) && backing.has_left(cache_of(&shared)) {
            if shared.dirty(0).0 > 0 {
                return Err(OpenError::OnlyCopy("the volume was served without it".into()).into());
            }
            let mut settings = prepared.settings.clone();
            settings.cache.reformat = true;
            (shared, _) = open(&settings).await?;
            found = Some(Found::Forgotten);
        }
        if self.jobs.has_threads() {
            shared.offload_to(Arc::clone(&self.jobs) as _);
        }
        if let Some(objective) = prepared.objective {
            shared.split_reads(Split::new(objective, Arc::new(RealTime::new())));
        }
        Ok(Opened {
            shared: Arc::new(shared),
            found,
        })
    }
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
