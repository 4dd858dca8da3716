//! Flushes.

use crate::locks::RangeLocks;
use crate::{Backing, Volume, VolumeError};
use pumice_blocks::add;
use pumice_device::Device;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What all threads share of the flushes of the backing device.
#[derive(Default)]
pub(crate) struct Flushes {
    /// Lets one run at a time.
    running: RangeLocks,
    begun: AtomicU64,
    /// The number of the last one that has ended.
    ended: AtomicU64,
    /// Number of changes of the backing device that have ended.
    changes: AtomicU64,
    /// Its value when the last flush began that has succeeded.
    flushed_changes: AtomicU64,
    has_failed: AtomicBool,
}

impl Flushes {
    /// Notes that a change of the backing device has ended.
    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether no change has ended since the last flush began, and none has failed.
    fn is_flushed(&self) -> bool {
        let changes = self.changes.load(Ordering::Acquire);
        let is_same = self.flushed_changes.load(Ordering::Acquire) == changes;
        is_same && !self.has_failed.load(Ordering::Acquire)
    }
}

impl<D: Device, K: Backing> Volume<D, K> {
    /// Makes all changes durable that were answered before.
    ///
    /// # Errors
    /// [`VolumeError::Cache`] if the cache device has failed and had dirty chunks; [`VolumeError::Backing`] if the backing device fails the
    /// flush, [`VolumeError::Unflushed`] if it failed an earlier one.
    pub async fn flush(&self) -> Result<(), VolumeError> {
        self.0.shared.end_scan_writes();
        if let Some((store, device)) = self.cache()
            && store.keeps()
            && let Err(error) = self.working(store.persist(device)).await
            && store.dirty() > 0
        {
            return Err(VolumeError::Cache(error));
        }
        self.flush_backing(false).await
    }

    /// Flushes the backing device. In write-back, unless it `is_forced`, only if clients have changed it since the last flush: what the cleaner
    /// has written is dirty still. Calls that wait at the same time share a flush.
    pub(crate) async fn flush_backing(&self, is_forced: bool) -> Result<(), VolumeError> {
        let (shared, flushes) = (&self.0.shared, &self.0.shared.flushes);
        let is_flushed = || flushes.is_flushed() && shared.abandoned.load(Ordering::Acquire) == 0;
        let keeps = self.cache().is_some_and(|(store, _)| store.keeps());
        if !is_forced && keeps && is_flushed() {
            return Ok(());
        }
        let begun = flushes.begun.load(Ordering::Acquire);
        // One at a time: the system reports lost writes to one flush only. A concurrent flush would succeed.
        let _held = flushes.running.lock(0..1).await;
        if flushes.has_failed.load(Ordering::Acquire) {
            return Err(VolumeError::Unflushed);
        }
        if flushes.ended.load(Ordering::Acquire) > begun {
            // A flush that began after this call has succeeded.
            return Ok(());
        }
        let changes = flushes.changes.load(Ordering::Acquire);
        let number = flushes.begun.fetch_add(1, Ordering::AcqRel) + 1;
        add(&shared.counters.backing_flushes, 1);
        if let Err(error) = self.0.backing.flush().await {
            if error.kind() == io::ErrorKind::NotConnected {
                return Err(VolumeError::Backing(error));
            }
            flushes.has_failed.store(true, Ordering::Release);
            tracing::error!("the backing device failed a flush, and may have lost what was written: {error}");
            self.give_up().await;
            return Err(VolumeError::Backing(error));
        }
        flushes.ended.store(number, Ordering::Release);
        flushes.flushed_changes.store(changes, Ordering::Release);
        Ok(())
    }

    /// Gives the cache up: the backing device may have lost what was written since the last flush, and the cache must not keep it.
    async fn give_up(&self) {
        self.0.shared.dram.give_up();
        let Some((store, device)) = self.cache() else {
            return;
        };
        let why = "the backing device failed a flush";
        if let Err(error) = self.working(store.give_up(device, why)).await {
            tracing::error!("cache device: {error}");
        }
    }
}
