//! Changes: writes, and zeroing of ranges.

use crate::admission::Cause;
use crate::{Backing, Mode, Shared, Volume, VolumeError, fills_at_once};
use bytes::Bytes;
use futures_util::stream::{StreamExt, iter};
use pumice_admit::Refusal;
use pumice_blocks::add;
use pumice_chunk::store::{Filled, WRITE_CHUNKS_MAX, WriteGuard};
use pumice_device::Device;
use pumice_memory::Buffer;
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

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
    fn check_change(&self, offset: u64, len: u64) -> Result<(), VolumeError> {
        self.check_range(offset, len)?;
        match self.0.shared.mode {
            Mode::ReadOnly => Err(VolumeError::ReadOnly),
            _ => Ok(()),
        }
    }

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
            self.clean_held(chunks.clone()).await?;
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

    async fn carry_out<'a>(
        &self,
        guard: Option<WriteGuard<'a, D::Buf>>,
        change: impl Future<Output = io::Result<()>>,
    ) -> Result<Option<WriteGuard<'a, D::Buf>>, VolumeError> {
        let under_way = UnderWay {
            shared: &self.0.shared,
            guard,
        };
        let changed = change.await;
        self.note_change();
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

    /// Writes `data` to `offset`; with `is_durable` it is durable afterwards. See [`Volume`] for futures that are dropped.
    ///
    /// # Errors
    /// [`VolumeError`]. A long write goes in pieces, and those before the failed one are written. The backing device has the old bytes of a
    /// piece that failed with [`VolumeError::Cache`].
    pub async fn write(&self, offset: u64, data: Bytes, is_durable: bool) -> Result<(), VolumeError> {
        self.check_change(offset, data.len() as u64)?;
        let chunk_bytes = self
            .cache()
            .map(|(store, _)| u64::from(store.shape().chunk_bytes));
        let piece_bytes = chunk_bytes.map_or(u64::MAX, |bytes| bytes * (WRITE_CHUNKS_MAX - 1));
        let is_scan = self.is_scan_write(offset..offset + data.len() as u64);
        let request = self.begin_split_write();
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let len = usize::try_from(piece_bytes).map_or(rest.len(), |most| most.min(rest.len()));
            self.write_piece(chunk_bytes, at, rest.split_to(len), is_scan)
                .await?;
            at += len as u64;
        }
        self.end_split_write(request);
        match is_durable {
            true => self.flush().await,
            false => Ok(()),
        }
    }

    async fn write_piece(
        &self,
        chunk_bytes: Option<u64>,
        offset: u64,
        data: Bytes,
        is_scan: bool,
    ) -> Result<(), VolumeError> {
        let counters = &self.0.shared.counters;
        let len = data.len() as u64;
        let Some(chunk_bytes) = chunk_bytes else {
            let _held = self.0.shared.locks.lock(offset..offset + len).await;
            self.carry_out(None, self.0.backing.write_at(offset, data))
                .await?;
            add(&counters.backing_written_bytes, len);
            return Ok(());
        };
        let chunks = self.chunks_of(chunk_bytes, offset, len);
        let count = chunks.end - chunks.start;
        let _held = self.0.shared.locks.lock(chunks.clone()).await;
        add(&counters.write_chunks, count);
        let bypass = (is_scan && self.bypasses(chunks)).then_some(&counters.writes_scan);
        if bypass.is_none() && self.0.shared.mode == Mode::WriteBack {
            if self.may_dirty() {
                return self.write_back_piece(chunk_bytes, offset, data).await;
            }
            if self.cache().is_some_and(|(store, _)| store.failure().is_none()) {
                add(&counters.writes_at_limit, count);
            }
        }
        self.write_through_piece(chunk_bytes, offset, data, bypass).await
    }

    /// Writes to the backing device and, without `bypass`, to the cache. `bypass` is the counter of the reason to leave the cache out. The caller
    /// holds the lock of the chunks.
    pub(crate) async fn write_through_piece(
        &self,
        chunk_bytes: u64,
        offset: u64,
        data: Bytes,
        bypass: Option<&AtomicU64>,
    ) -> Result<(), VolumeError> {
        let Some((store, device)) = self.cache() else {
            unreachable!("chunks are the cache's")
        };
        let counters = &self.0.shared.counters;
        let len = data.len() as u64;
        let chunks = self.chunks_of(chunk_bytes, offset, len);
        let count = chunks.end - chunks.start;
        let _copying = self.0.shared.cleaner.copying.lock(chunks.clone()).await;
        let is_judged =
            bypass.is_none() && self.0.shared.mode == Mode::WriteThrough && self.0.shared.gate.is_some();
        // Before they are voided.
        let cached: Vec<bool> = match is_judged {
            true => chunks.clone().map(|chunk| store.place(chunk).is_some()).collect(),
            false => Vec::new(),
        };
        let written = match self.begin_change(chunks.clone()).await {
            Ok(guard) => {
                let change = self.0.backing.write_at(offset, data.clone());
                self.carry_out(guard, change).await
            }
            Err(error) => Err(error),
        };
        let guard = written.inspect_err(|_| add(&counters.writes_failed, count))?;
        add(&counters.backing_written_bytes, len);
        if let Some(bypassed) = bypass {
            add(bypassed, count);
            return Ok(());
        }
        let is_cached = matches!(self.0.shared.mode, Mode::WriteThrough | Mode::WriteBack);
        let Some(mut guard) = guard.filter(|_| is_cached) else {
            add(&counters.writes_around, count);
            return Ok(());
        };
        let mut rest = data;
        let fills = chunks.enumerate().map(|(number, chunk)| {
            let cause = match self.0.shared.mode {
                Mode::WriteBack => Cause::Command,
                _ => Cause::Write {
                    was_cached: cached.get(number) == Some(&true),
                },
            };
            let start = offset.max(chunk * chunk_bytes) - chunk * chunk_bytes;
            let part = rest.split_to(rest.len().min((chunk_bytes - start) as usize));
            let fill = guard.fill(device, chunk, start as u32, part);
            async move {
                let _admitted = match self.admit(chunk, cause) {
                    Ok(admitted) => admitted,
                    Err(Refusal::Budget) => return add(&counters.writes_budget, 1),
                    Err(_) => return add(&counters.writes_rule, 1),
                };
                store.wait_for_room().await;
                let filled = fill.await;
                add(
                    match filled {
                        Filled::Stored => &counters.writes_stored,
                        Filled::Duplicate => &counters.writes_duplicate,
                        Filled::Late => &counters.writes_late,
                        Filled::NoRoom if store.failure().is_some() => &counters.writes_out,
                        Filled::NoRoom | Filled::Gap => &counters.writes_no_room,
                    },
                    1,
                );
                self.kick();
            }
        });
        iter(fills)
            .for_each_concurrent(fills_at_once(chunk_bytes), |fill| fill)
            .await;
        Ok(())
    }

    /// Makes a range read as zeros; with `may_punch` the backing device may deallocate it. Holes are skipped then, without a write. See
    /// [`Volume`] for futures that are dropped.
    ///
    /// # Errors
    /// [`VolumeError`]; a part may be zeroed already.
    pub async fn zero(&self, offset: u64, len: u64, may_punch: bool) -> Result<(), VolumeError> {
        self.check_change(offset, len)?;
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
        let _held = self
            .0
            .shared
            .locks
            .lock(self.chunks_of(unit, hole.start, len))
            .await;
        let extents = self.extents(hole.start, len, 1).await?;
        let is_hole = extents.first().filter(|extent| extent.is_hole);
        Ok(is_hole.map_or(0, |extent| extent.length.min(len)))
    }

    async fn zero_piece(&self, unit: u64, offset: u64, len: u64, may_punch: bool) -> Result<(), VolumeError> {
        let chunks = self.chunks_of(unit, offset, len);
        let _held = self.0.shared.locks.lock(chunks.clone()).await;
        let _copying = self.0.shared.cleaner.copying.lock(chunks.clone()).await;
        if self.cache().is_some() {
            add(&self.0.shared.counters.zeroed_chunks, chunks.end - chunks.start);
        }
        let guard = self.begin_change(chunks).await?;
        self.carry_out(guard, self.0.backing.zero(offset, len, may_punch))
            .await?;
        Ok(())
    }
}
