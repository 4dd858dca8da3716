//! Opening, ending, flushing, and background work.

use crate::dram::Dram;
use crate::locks::RangeLocks;
use crate::{Backing, Counters, Mode, VolumeCounts, VolumeError};
use pumice_blocks::OpenError;
use pumice_chunk::store::{ChunkStore, Found, Options};
use pumice_device::Device;
use pumice_memory::Buffer;
use pumice_world::{Clock, Spawner};
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How a volume is served.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What the cache takes part in.
    pub mode: Mode,
    /// Of the cache. Its `chunks` and `modified` are taken from the backing device.
    pub cache: Options,
}

/// What all threads share of a volume.
pub struct Shared<B: Buffer> {
    pub(crate) mode: Mode,
    pub(crate) size: u64,
    pub(crate) store: Option<ChunkStore<B>>,
    /// Changes of chunks.
    pub(crate) locks: RangeLocks,
    pub(crate) counters: Counters,
    pub(crate) dram: Dram,
    flushing: RangeLocks,
    flushes_begun: AtomicU64,
    /// The number of the last flush that has ended.
    flushed: AtomicU64,
    has_failed_flush: AtomicBool,
    /// Changes of the backing device that were dropped before their end.
    pub(crate) abandoned: AtomicU64,
}

impl<B: Buffer> Shared<B> {
    /// Opens the cache of a backing device, which is flushed before: after a crash in the same run of the machine it has lost nothing.
    /// In [`Mode::PassThrough`] what is on the cache device, if there is one, is discarded.
    ///
    /// # Errors
    /// [`OpenError`]: one of the devices fails, or the cache device holds something else, or was made with other settings.
    pub async fn open<D: Device<Buf = B>, K: Backing>(
        settings: &Settings,
        device: Option<&D>,
        backing: &K,
    ) -> Result<(Self, Option<Found>), OpenError> {
        let failed = |what| move |source| OpenError::Device { what, source };
        backing
            .flush()
            .await
            .map_err(failed("flushing the backing device"))?;
        let modified = backing
            .modified()
            .map_err(failed("reading the backing device's time"))?;
        let size = backing.size();
        let (store, found) = match device {
            Some(device) if settings.mode == Mode::PassThrough => {
                ChunkStore::discard(device).await?;
                (None, None)
            }
            Some(device) => {
                let options = Options {
                    chunks: size.div_ceil(settings.cache.chunk_bytes.into()),
                    modified,
                    ..settings.cache
                };
                let (store, found) = ChunkStore::open(device, &options).await?;
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
            dram: Dram::new(0),
            flushing: RangeLocks::default(),
            flushes_begun: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            has_failed_flush: AtomicBool::new(false),
            abandoned: AtomicU64::new(0),
        };
        Ok((shared, found))
    }

    /// Keeps chunks in DRAM too, in so many bytes; 0 = none. In pass-through there are no chunks.
    #[must_use]
    pub fn with_dram(mut self, bytes: usize) -> Self {
        self.dram = Dram::new(bytes);
        self
    }

    /// Bytes of chunks in DRAM.
    pub fn dram_bytes(&self) -> usize {
        self.dram.bytes()
    }

    /// Bytes of the volume.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// What the cache takes part in.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The cache; none in pass-through.
    pub fn store(&self) -> Option<&ChunkStore<B>> {
        self.store.as_ref()
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
    spawner: Rc<dyn Spawner>,
    clock: Arc<dyn Clock>,
}

/// One thread's handle on a volume.
///
/// The futures of changes are to be polled to their end: of one that is dropped before, the backing device may still carry out the change.
/// Nothing is cached of its chunks from then on until the next start, which finds what a crash leaves.
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
    /// Where there is a cache and no device.
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
        Self(Rc::new(Worker {
            shared,
            device,
            backing,
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

    pub(crate) fn check_range(&self, offset: u64, len: u64) -> Result<(), VolumeError> {
        let size = self.0.shared.size;
        let end = offset.saturating_add(len);
        match end <= size {
            true => Ok(()),
            false => Err(VolumeError::Range { offset, end, size }),
        }
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
                if let Some((store, device)) = this.cache() {
                    store.perform(device, now, work).await;
                }
                // What it has made room for.
                this.kick();
            }));
        }
    }

    /// Makes all changes durable that were answered before.
    ///
    /// # Errors
    /// [`VolumeError::Backing`] where the backing device fails it, [`VolumeError::Unflushed`] where it failed an earlier one.
    pub async fn flush(&self) -> Result<(), VolumeError> {
        let shared = &self.0.shared;
        let begun = shared.flushes_begun.load(Ordering::Acquire);
        // One at a time: a device tells of lost writes once, which may be to another's flush.
        let _held = shared.flushing.lock(0..1).await;
        if shared.has_failed_flush.load(Ordering::Acquire) {
            return Err(VolumeError::Unflushed);
        }
        if shared.flushed.load(Ordering::Acquire) > begun {
            // One that began after this was called.
            return Ok(());
        }
        let number = shared.flushes_begun.fetch_add(1, Ordering::AcqRel) + 1;
        pumice_blocks::add(&shared.counters.backing_flushes, 1);
        if let Err(error) = self.0.backing.flush().await {
            shared.has_failed_flush.store(true, Ordering::Release);
            tracing::error!("the backing device failed a flush, and may have lost what was written: {error}");
            self.void_unflushed().await;
            return Err(VolumeError::Backing(error));
        }
        shared.flushed.store(number, Ordering::Release);
        Ok(())
    }

    /// The backing device may have lost what was written since the last flush: the cache must not have it either.
    async fn void_unflushed(&self) {
        let Some((store, _)) = self.cache() else { return };
        for chunks in store.marked_chunks() {
            let _held = self.0.shared.locks.lock(chunks.clone()).await;
            let _ = self.begin_change(chunks).await;
        }
    }

    /// To be called once a second, by one thread: clears the marks of regions that rest.
    pub async fn tick(&self) {
        self.kick();
        let Some((store, device)) = self.cache() else {
            return;
        };
        let quiet = store.quiet_regions(false);
        if !quiet.is_empty()
            && self.flush().await.is_ok()
            && let Err(error) = store.clear(device, &quiet).await
        {
            tracing::warn!("marks of regions stay: {error}");
        }
        self.kick();
    }

    /// To be called once a second by each thread: passes a second of its handle on the cache device, which is taken out where it answers
    /// nothing for more than `patience` seconds; 0 = it has as long as it takes. See [`Device::tick`].
    pub fn tick_device(&self, patience: u32) {
        let Some((store, device)) = self.cache() else {
            return;
        };
        let when_out = store.patience_when_out(self.0.clock.now_secs());
        // Of a device that was taken out, what still waits ends.
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

    /// Ends the volume, so that the next start finds all that is cached: to be called when no request is under way, while all
    /// threads that have a handle still run their background work.
    ///
    /// # Errors
    /// What the devices said: the next start finds what a crash leaves.
    pub async fn close(&self) -> io::Result<()> {
        self.flush().await.map_err(io::Error::other)?;
        let Some((store, device)) = self.cache() else {
            return Ok(());
        };
        if self.0.shared.abandoned.load(Ordering::Acquire) > 0 {
            return Err(io::Error::other(
                "changes of the backing device are under way still",
            ));
        }
        store.clear(device, &store.quiet_regions(true)).await?;
        let modified = self.0.backing.modified()?;
        store.close(device, self.0.clock.now_secs(), modified).await
    }

    /// The chunks that a range touches.
    pub(crate) fn chunks_of(&self, chunk_bytes: u64, offset: u64, len: u64) -> Range<u64> {
        offset / chunk_bytes..(offset + len).div_ceil(chunk_bytes)
    }
}
