//! A volume: opening, flushing, background work, closing.

use crate::admission::Judge;
use crate::ahead::Ahead;
use crate::clean::{Cleaning, WriteBack};
use crate::dram::Dram;
use crate::flush::Flushes;
use crate::locks::RangeLocks;
use crate::scan::Scans;
use crate::split::{SplitState, Splitting};
use crate::{Backing, Counters, Mode, VolumeCounts, VolumeError};
use pumice_admit::{Moment, Rule, WriteBudget};
use pumice_blocks::OpenError;
use pumice_chunk::store::{ChunkStore, Found, Options};
use pumice_device::Device;
use pumice_memory::Buffer;
use pumice_world::{Clock, Offload, Spawner};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a volume is served.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How the cache is used.
    pub mode: Mode,
    /// Bytes of the DRAM tier before the cache; 0 = none. There is none without a cache.
    pub dram_bytes: usize,
    /// Most bytes of read-aheads under way, and of what is fetched ahead of a stream; 0 = none. There is none without a cache.
    pub read_ahead_bytes: u64,
    /// Bytes after which a stream of reads or writes is a scan, which enters the cache only while that has free room; 0 = never.
    pub scan_cutoff_bytes: u64,
    /// Which chunks enter the cache.
    pub rule: Rule,
    /// Bytes that the cache device may be sent, if there is a bound.
    pub write_budget: Option<WriteBudget>,
    /// Options of the cache. `chunks`, `modified` and `write_back` are ignored: the backing device and the mode give them.
    pub cache: Options,
    /// When dirty chunks are cleaned.
    pub write_back: WriteBack,
}

/// What all threads share of a volume.
pub struct Shared<B: Buffer> {
    pub(crate) mode: Mode,
    pub(crate) size: u64,
    pub(crate) store: Option<ChunkStore<B>>,
    /// Ranges under change: of chunks, without a cache of bytes.
    pub(crate) locks: RangeLocks,
    pub(crate) counters: Counters,
    pub(crate) dram: Dram,
    pub(crate) ahead: Ahead,
    pub(crate) scans: Scans,
    pub(crate) judge: Option<Arc<Judge>>,
    pub(crate) split: SplitState,
    pub(crate) flushes: Flushes,
    pub(crate) cleaning: Cleaning,
    /// Changes of the backing device that were dropped before their end.
    pub(crate) abandoned: AtomicU64,
}

impl<B: Buffer> Shared<B> {
    /// Flushes the backing device, then opens its cache. If only the process crashed, not the machine, the flush makes all earlier writes
    /// durable, and the copies of marked regions count. In [`Mode::PassThrough`] the cache on `device` is discarded.
    ///
    /// # Errors
    /// [`OpenError`]: one of the devices fails, or the cache device holds something else, or was made with other settings.
    pub async fn open<D: Device<Buf = B>, K: Backing>(
        settings: &Settings,
        device: Option<&D>,
        backing: &K,
        clock: &dyn Clock,
    ) -> Result<(Self, Option<Found>), OpenError> {
        let failed = |what| move |source| OpenError::Device { what, source };
        if let Err(error) = backing.flush().await {
            // The system reports lost writes once: a later start could not know of them.
            if let Some(device) = device
                && error.kind() != io::ErrorKind::NotConnected
            {
                ChunkStore::distrust(device).await?;
            }
            return Err(failed("flushing the backing device")(error));
        }
        let modified = backing
            .modified()
            .map_err(failed("reading the backing device's time"))?;
        let size = backing.size();
        let mut judge = None;
        let (store, found) = match device {
            Some(device) if settings.mode == Mode::PassThrough => {
                ChunkStore::discard(device, settings.cache.reformat).await?;
                (None, None)
            }
            Some(device) => {
                let options = Options {
                    chunks: size.div_ceil(settings.cache.chunk_bytes.into()),
                    modified,
                    write_back: settings.mode == Mode::WriteBack,
                    ..settings.cache
                };
                let now = Moment {
                    ns: clock.monotonic_ns(),
                    unix_secs: clock.now_secs(),
                };
                let made = Judge::of(settings, &options, device.capacity(), now);
                judge = made.map_err(failed("taking memory for admission"))?;
                let budget = judge.as_ref().and_then(Judge::budget);
                let (store, found) = ChunkStore::open(device, &options, budget).await?;
                (Some(store), Some(found))
            }
            None => (None, None),
        };
        let shared = Self {
            mode: settings.mode,
            size,
            store,
            locks: RangeLocks::default(),
            counters: Counters::default(),
            dram: Dram::new(settings.dram_bytes, settings.cache.chunk_bytes as usize),
            ahead: Ahead::new(settings.read_ahead_bytes),
            scans: Scans::new(settings.scan_cutoff_bytes),
            judge,
            split: SplitState::default(),
            flushes: Flushes::default(),
            cleaning: Cleaning::new(settings.write_back, settings.cache.now),
            abandoned: AtomicU64::new(0),
        };
        Ok((shared, found))
    }

    /// From now on fingerprints and compression go there if that pays.
    pub fn offload_to(&mut self, offload: Arc<dyn Offload>) {
        if let Some(store) = &mut self.store {
            store.offload_to(offload);
        }
    }

    /// Bytes of chunks in DRAM.
    pub fn dram_bytes(&self) -> usize {
        self.dram.bytes()
    }

    /// Bytes of the volume.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// How the cache is used.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The cache; none in pass-through.
    pub fn store(&self) -> Option<&ChunkStore<B>> {
        self.store.as_ref()
    }

    /// Checks that a range lies in the volume.
    pub(crate) fn check_range(&self, offset: u64, len: u64) -> Result<(), VolumeError> {
        let (size, end) = (self.size, offset.saturating_add(len));
        match end <= size {
            true => Ok(()),
            false => Err(VolumeError::Range { offset, end, size }),
        }
    }

    /// Checks that a range may be changed.
    pub(crate) fn check_change(&self, offset: u64, len: u64) -> Result<(), VolumeError> {
        self.check_range(offset, len)?;
        match self.mode {
            Mode::ReadOnly => Err(VolumeError::ReadOnly),
            _ => Ok(()),
        }
    }

    /// Running totals.
    pub fn counts(&self) -> VolumeCounts {
        self.counters.snapshot()
    }
}

pub(crate) struct Worker<D: Device, K> {
    pub(crate) shared: Arc<Shared<D::Buf>>,
    pub(crate) device: Option<D>,
    pub(crate) backing: K,
    pub(crate) splitting: Option<Splitting>,
    pub(crate) spawner: Rc<dyn Spawner>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// One thread's handle on a volume.
///
/// Poll the futures of changes to their end. The backing device may still carry out a change whose future was dropped; its chunks are then
/// not cached before the next start, [`Volume::close`] fails, and the next start is one after a crash.
pub struct Volume<D: Device, K>(pub(crate) Rc<Worker<D, K>>);

impl<D: Device, K> Clone for Volume<D, K> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<D: Device, K: Backing> Volume<D, K> {
    /// A handle for this thread; `spawner` runs the cache's background work on it.
    ///
    /// # Panics
    /// If there is a cache but no `device`.
    pub fn new(
        shared: Arc<Shared<D::Buf>>,
        device: Option<D>,
        backing: K,
        spawner: Rc<dyn Spawner>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        assert!(
            shared.store.is_none() || device.is_some(),
            "a cache is on a device"
        );
        let splitting = shared.split().map(Splitting::new);
        Self(Rc::new(Worker {
            shared,
            device,
            backing,
            splitting,
            spawner,
            clock,
        }))
    }

    /// What all threads share.
    pub fn shared(&self) -> &Shared<D::Buf> {
        &self.0.shared
    }

    /// The backing device.
    pub fn backing(&self) -> &K {
        &self.0.backing
    }

    pub(crate) fn cache(&self) -> Option<(&ChunkStore<D::Buf>, &D)> {
        Some((self.0.shared.store.as_ref()?, self.0.device.as_ref()?))
    }

    pub(crate) fn now_secs(&self) -> u32 {
        self.0.clock.now_secs()
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.spawner.spawn(Box::pin(task));
    }

    /// Begins the background work of the cache that is due.
    pub fn kick(&self) {
        let Some((store, _)) = self.cache() else { return };
        if !store.has_work() {
            return;
        }
        while let Some(work) = store.take_work() {
            let (this, now) = (self.clone(), self.0.clock.now_secs());
            self.0.spawner.spawn(Box::pin(async move {
                if let Some(((store, device), cleaner)) = this.cache().zip(this.cleaner()) {
                    this.working(async {
                        cleaner.clean_for(&work).await;
                        store.perform(device, now, work).await;
                    })
                    .await;
                }
                // More work may be due now.
                this.kick();
            }));
        }
    }

    /// Polls a future that waits for background work of the cache, and starts that work.
    pub(crate) async fn working<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        std::future::poll_fn(|context| {
            let polled = future.as_mut().poll(context);
            self.kick();
            polled
        })
        .await
    }

    /// Counts a second: writes what is old in block buffers, and starts the cleaner if it is due. Then it flushes the backing device, and clears
    /// the marks of regions that were not written lately. Call it once a second, on one thread; while the flush of an earlier call is under way,
    /// call [`Volume::tick_now`] instead.
    pub async fn tick(&self) {
        self.tick_now();
        let Some((store, device)) = self.cache() else {
            return;
        };
        let quiet = store.addresses().quiet_regions(false);
        if !quiet.is_empty()
            && self.flush_backing(false).await.is_ok()
            && let Err(error) = store.clear(device, &quiet).await
        {
            tracing::warn!("marks of regions stay: {error}");
        }
        self.kick();
    }

    /// [`Volume::tick`] without the backing device, which may hang.
    pub fn tick_now(&self) {
        if let Some((store, device)) = self.cache() {
            store.tick(self.now_secs());
            store.note_alive(device, self.now_secs());
            self.look_at_budget();
        }
        if let Some(cleaner) = self.cleaner() {
            cleaner.tick();
            cleaner.tick_wanted();
        }
        self.kick();
    }

    /// Counts a second of this handle on the cache device, which is fenced if it answers nothing for more than `patience` seconds; 0 = no
    /// deadline. Call it once a second, on each thread. See [`Device::tick`].
    pub fn tick_device(&self, patience: u32) {
        let Some((store, device)) = self.cache() else {
            return;
        };
        let when_out = store.tick_when_out(self.0.clock.now_secs());
        // On a fenced device, requests that still wait are ended.
        let patience = when_out.or((patience > 0).then_some(patience));
        for overdue in patience
            .map(|patience| device.tick(patience))
            .into_iter()
            .flatten()
        {
            tracing::error!("cache device: {overdue}");
            if when_out.is_none() {
                store.saw_overdue(overdue);
            }
        }
        self.kick();
    }

    /// Closes the volume, so that the next start finds all that is cached; dirty chunks stay dirty: see [`Volume::drain`]. Call it when no
    /// request is under way, while all threads with a
    /// handle still run their background work.
    ///
    /// # Errors
    /// An error of a device, or a change whose future was dropped. The next start is then one after a crash.
    pub async fn close(&self) -> io::Result<()> {
        self.stop_cleaner();
        if let Some(cleaner) = self.cleaner() {
            cleaner.ended().await;
        }
        self.flush().await.map_err(io::Error::other)?;
        let Some((store, device)) = self.cache() else {
            return Ok(());
        };
        if self.0.shared.abandoned.load(Ordering::Acquire) > 0 {
            return Err(io::Error::other(
                "changes of the backing device are under way still",
            ));
        }
        store
            .clear(device, &store.addresses().quiet_regions(true))
            .await?;
        let modified = || self.0.backing.modified();
        self.working(store.close(device, self.now_secs(), modified)).await
    }
}
