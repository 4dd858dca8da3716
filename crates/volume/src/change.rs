//! Changes of the backing device, and zeroing of ranges.

use crate::{Backing, Shared, Volume, VolumeError, chunks_of};
use pumice_blocks::add;
use pumice_chunk::store::{WRITE_CHUNKS_MAX, WriteGuard};
use pumice_device::Device;
use pumice_memory::Buffer;
use std::io;
use std::ops::Range;

/// Most bytes zeroed at once if there is no cache.
const ZERO_BYTES: u64 = 64 << 20;

/// Two changes that overlap in time leave each sector to one of them, so none is changed in parts.
const SECTOR_BYTES: u64 = 512;

/// A change that the backing device may be carrying out.
struct UnderWay<'a, 'b, B: Buffer> {
    shared: &'a Shared<B>,
    guard: Option<WriteGuard<'b, B>>,
}

impl<'b, B: Buffer> UnderWay<'_, 'b, B> {
    fn ended(mut self) -> Option<WriteGuard<'b, B>> {
        let guard = self.guard.take();
        std::mem::forget(self);
        guard
    }
}

impl<B: Buffer> Drop for UnderWay<'_, '_, B> {
    /// Runs if the change may still happen: its future was dropped, or it failed on another machine. The guard is leaked: its chunks are not
    /// cached again before the next start, and their regions stay marked.
    fn drop(&mut self) {
        let guard = self.guard.take();
        let chunks = guard.as_ref().map_or(0..0, WriteGuard::chunks);
        self.shared.abandon(chunks);
        std::mem::forget(guard);
    }
}

impl<D: Device, K: Backing> Volume<D, K> {
    /// Voids the cached copies of chunks, so that no crash brings them back. The caller holds the lock of the chunks.
    pub(crate) async fn begin_change(
        &self,
        chunks: Range<u64>,
    ) -> Result<Option<WriteGuard<'_, D::Buf>>, VolumeError> {
        let Some((store, device)) = self.cache() else {
            return Ok(None);
        };
        if store.keeps() {
            if store.failure().is_some() && store.dirty() > 0 {
                return Err(VolumeError::Cache(io::Error::other(
                    "it has failed, and has dirty chunks",
                )));
            }
            if let Some(cleaner) = self.cleaner() {
                cleaner.clean_range(chunks.clone()).await?;
            }
        }
        let guard = loop {
            let may_begin = !store.is_log_short();
            if may_begin && let Some(guard) = store.begin_write(device, chunks.clone()) {
                break guard;
            }
            let records = store.records_of(chunks.clone());
            let has_room = self.working(store.wait_for_log(records)).await;
            if may_begin && !has_room {
                let what = "its log is full, and no checkpoint can be written";
                return Err(VolumeError::Cache(io::Error::other(what)));
            }
        };
        chunks.for_each(|chunk| self.0.shared.dram.remove(chunk));
        // If the device fails, background work fences it, and the commit waits for that.
        let committed = self.working(guard.commit(device)).await;
        committed.map_err(VolumeError::Cache)?;
        Ok(Some(guard))
    }

    pub(crate) async fn carry_out<'a>(
        &self,
        guard: Option<WriteGuard<'a, D::Buf>>,
        change: impl Future<Output = io::Result<()>>,
    ) -> Result<Option<WriteGuard<'a, D::Buf>>, VolumeError> {
        let under_way = UnderWay {
            shared: &self.0.shared,
            guard,
        };
        let changed = change.await;
        self.0.shared.flushes.note_change();
        match changed {
            Err(error) if self.0.backing.may_change_later(&error) => {
                drop(under_way);
                Err(VolumeError::Backing(error))
            }
            changed => {
                let guard = under_way.ended();
                changed.map_err(VolumeError::Backing)?;
                Ok(guard)
            }
        }
    }

    /// Makes a range read as zeros; with `may_punch` the backing device may deallocate it. Holes are skipped then, without a write. See
    /// [`Volume`] for futures that are dropped.
    ///
    /// # Errors
    /// [`VolumeError`]; a part may be zeroed already.
    pub async fn zero(&self, offset: u64, len: u64, may_punch: bool) -> Result<(), VolumeError> {
        self.0.shared.check_change(offset, len)?;
        let unit = self
            .cache()
            .map_or(1, |(store, _)| u64::from(store.shape().chunk_bytes));
        let piece_bytes = match self.cache() {
            Some(_) => unit * (WRITE_CHUNKS_MAX - 1),
            None => ZERO_BYTES,
        };
        let (mut at, end) = (offset, offset + len);
        while at < end {
            // A hole already reads as zeros: skip it.
            let extent = match may_punch {
                true => self.extents(at, end - at, 1).await?.first().copied(),
                false => None,
            };
            if let Some(extent) = extent.filter(|extent| extent.is_hole && extent.length > 0) {
                let hole = at..at + extent.length.min(end - at);
                let mut skipped = self.skip_hole(unit, hole).await?;
                if skipped < end - at {
                    skipped = skipped.saturating_sub((at + skipped) % SECTOR_BYTES);
                }
                add(&self.0.shared.counters.trimmed_hole_bytes, skipped);
                at += skipped;
                if skipped > 0 {
                    continue;
                }
            }
            let most = extent.map_or(u64::MAX, |extent| {
                let extent_end = at + extent.length.clamp(1, end - at);
                extent_end.next_multiple_of(SECTOR_BYTES) - at
            });
            let len = piece_bytes.min(end - at).min(most);
            self.zero_piece(unit, at, len, may_punch).await?;
            at += len;
        }
        Ok(())
    }

    /// Looks at a hole again under its lock, when no change is under way in it. Returns how many bytes from its start are still a hole.
    async fn skip_hole(&self, unit: u64, hole: Range<u64>) -> Result<u64, VolumeError> {
        let len = hole.end - hole.start;
        let _held = self.0.shared.locks.lock(chunks_of(unit, hole.start, len)).await;
        let extents = self.extents(hole.start, len, 1).await?;
        let is_hole = extents.first().filter(|extent| extent.is_hole);
        Ok(is_hole.map_or(0, |extent| extent.length.min(len)))
    }

    async fn zero_piece(&self, unit: u64, offset: u64, len: u64, may_punch: bool) -> Result<(), VolumeError> {
        let chunks = chunks_of(unit, offset, len);
        let _held = self.0.shared.locks.lock(chunks.clone()).await;
        let _copying = self.0.shared.cleaning.copying.lock(chunks.clone()).await;
        if self.cache().is_some() {
            add(&self.0.shared.counters.zeroed_chunks, chunks.end - chunks.start);
        }
        let guard = self.begin_change(chunks).await?;
        self.carry_out(guard, self.0.backing.zero(offset, len, may_punch))
            .await?;
        Ok(())
    }
}
