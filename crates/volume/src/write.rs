//! Writes: through the cache, or into the cache alone.

use crate::admission::Cause;
use crate::{Backing, Mode, Volume, VolumeError, chunks_of, fills_at_once};
use bytes::Bytes;
use futures_util::stream::{StreamExt, iter};
use pumice_admit::Refusal;
use pumice_blocks::add;
use pumice_chunk::store::{Filled, WRITE_CHUNKS_MAX};
use pumice_device::Device;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

/// No crash mixes old and new bytes of a sector.
const SECTOR_BYTES: u64 = 512;

/// The parts of a write: number of the chunk, first byte in it, bytes.
fn parts_of(chunk_bytes: u64, offset: u64, data: &Bytes) -> Vec<(u64, u32, Bytes)> {
    let (mut at, mut rest, mut parts) = (offset, data.clone(), Vec::new());
    while !rest.is_empty() {
        let start = at % chunk_bytes;
        let part = rest.split_to(rest.len().min((chunk_bytes - start) as usize));
        let len = part.len() as u64;
        parts.push((at / chunk_bytes, start as u32, part));
        at += len;
    }
    parts
}

impl<D: Device, K: Backing> Volume<D, K> {
    /// Writes `data` to `offset`; with `is_durable` it is durable afterwards. See [`Volume`] for futures that are dropped.
    ///
    /// # Errors
    /// [`VolumeError`]. A long write goes in pieces, and those before the failed one are written. The backing device has the old bytes of a
    /// piece that failed with [`VolumeError::Cache`].
    pub async fn write(&self, offset: u64, data: Bytes, is_durable: bool) -> Result<(), VolumeError> {
        self.0.shared.check_change(offset, data.len() as u64)?;
        let chunk_bytes = self
            .cache()
            .map(|(store, _)| u64::from(store.shape().chunk_bytes));
        let piece_bytes = chunk_bytes.map_or(u64::MAX, |bytes| bytes * (WRITE_CHUNKS_MAX - 1));
        let range = offset..offset + data.len() as u64;
        let is_scan = self.0.shared.is_scan_write(range, &*self.0.clock);
        let splitting = self.0.splitting.as_ref();
        let request = splitting.map(|splitting| (splitting, splitting.begin()));
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let len = usize::try_from(piece_bytes).map_or(rest.len(), |most| most.min(rest.len()));
            self.write_piece(chunk_bytes, at, rest.split_to(len), is_scan)
                .await?;
            at += len as u64;
        }
        if let Some((splitting, request)) = request {
            splitting.end_write(request);
        }
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
        let chunks = chunks_of(chunk_bytes, offset, len);
        let count = chunks.end - chunks.start;
        let _held = self.0.shared.locks.lock(chunks.clone()).await;
        add(&counters.write_chunks, count);
        let bypass = (is_scan && self.0.shared.bypasses(chunks)).then_some(&counters.writes_scan);
        if bypass.is_none() && self.0.shared.mode == Mode::WriteBack {
            if self.0.shared.may_dirty() {
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
    async fn write_through_piece(
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
        let chunks = chunks_of(chunk_bytes, offset, len);
        let count = chunks.end - chunks.start;
        let _copying = self.0.shared.cleaning.copying.lock(chunks.clone()).await;
        let is_judged =
            bypass.is_none() && self.0.shared.mode == Mode::WriteThrough && self.0.shared.judge.is_some();
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
        let fills = parts_of(chunk_bytes, offset, &data);
        let fills = fills
            .into_iter()
            .enumerate()
            .map(|(number, (chunk, start, part))| {
                let cause = match self.0.shared.mode {
                    Mode::WriteBack => Cause::Command,
                    _ => Cause::Write {
                        was_cached: cached.get(number) == Some(&true),
                    },
                };
                let fill = guard.fill(device, chunk, start, part);
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

    /// Writes to the cache alone; through it where it has no room, or the write budget is short. The caller holds the lock of the chunks.
    async fn write_back_piece(&self, chunk_bytes: u64, offset: u64, data: Bytes) -> Result<(), VolumeError> {
        let Some((store, device)) = self.cache() else {
            unreachable!("chunks are the cache's")
        };
        let counters = &self.0.shared.counters;
        let chunks = chunks_of(chunk_bytes, offset, data.len() as u64);
        let (offset, data) = match self.whole_sectors(offset, data).await {
            Ok(whole) => whole,
            Err(error) => {
                add(&counters.writes_failed, chunks.end - chunks.start);
                return Err(error);
            }
        };
        let mut guard = store.begin_write_back(chunks.clone());
        chunks.clone().for_each(|chunk| self.0.shared.dram.remove(chunk));
        let parts = parts_of(chunk_bytes, offset, &data);
        let fills: Vec<_> = (parts.iter())
            .map(|(chunk, start, part)| guard.fill(device, *chunk, *start, part.clone()))
            .collect();
        let fills = chunks.clone().zip(fills).map(|(chunk, fill)| async move {
            let admitted = self.admit(chunk, Cause::Command)?;
            store.wait_for_room().await;
            let filled = fill.await;
            self.kick();
            // After a gap it has not entered yet.
            Ok::<_, Refusal>((filled, (filled == Filled::Gap).then_some(admitted)))
        });
        let mut filled: Vec<_> = iter(fills).buffered(fills_at_once(chunk_bytes)).collect().await;
        let mut result = Ok(());
        for ((chunk, start, part), filled) in parts.iter().zip(&mut filled) {
            if let Ok((filled @ Filled::Gap, admitted)) = filled {
                match self.close_gap(chunk_bytes, *chunk, *start, part).await {
                    Ok(whole) => {
                        store.wait_for_room().await;
                        *filled = guard.fill(device, *chunk, 0, whole.into()).await;
                        self.kick();
                    }
                    Err(error) => result = result.and(Err(error)),
                }
                *admitted = None;
            }
        }
        drop(guard);
        // Runs of neighbours that go through, each in one write, and why.
        let mut through: Vec<(Range<u64>, &AtomicU64)> = Vec::new();
        for (chunk, filled) in chunks.zip(filled) {
            let why = match filled.map(|(filled, _)| filled) {
                Ok(Filled::Stored) => {
                    add(&counters.writes_stored, 1);
                    continue;
                }
                Ok(Filled::Duplicate) => {
                    add(&counters.writes_duplicate, 1);
                    continue;
                }
                Ok(Filled::NoRoom | Filled::Late | Filled::Gap) => &counters.writes_no_room,
                Err(_) => &counters.writes_budget,
            };
            match through.last_mut() {
                Some((run, last)) if run.end == chunk && std::ptr::eq(*last, why) => run.end += 1,
                _ => through.push((chunk..chunk + 1, why)),
            }
        }
        for (run, why) in through {
            if result.is_err() {
                add(&counters.writes_failed, run.end - run.start);
                continue;
            }
            let start = offset.max(run.start * chunk_bytes);
            let end = (offset + data.len() as u64).min(run.end * chunk_bytes);
            let bytes = data.slice((start - offset) as usize..(end - offset) as usize);
            result = self
                .write_through_piece(chunk_bytes, start, bytes, Some(why))
                .await;
        }
        result
    }

    /// Completes the first and the last sector of a write: the backing device may lose the bytes beside it, and a sector is never mixed.
    async fn whole_sectors(&self, offset: u64, data: Bytes) -> Result<(u64, Bytes), VolumeError> {
        let end = offset + data.len() as u64;
        let first = offset / SECTOR_BYTES * SECTOR_BYTES;
        let last = end.next_multiple_of(SECTOR_BYTES).min(self.0.shared.size);
        if (first, last) == (offset, end) {
            return Ok((offset, data));
        }
        let mut whole = Vec::with_capacity((last - first) as usize);
        if first < offset {
            whole.extend(self.read(first, (offset - first) as usize).await?);
        }
        whole.extend_from_slice(&data);
        if end < last {
            whole.extend(self.read(end, (last - end) as usize).await?);
        }
        Ok((first, whole.into()))
    }

    /// The whole chunk: bytes of the backing device, over these the dirty part, over that `bytes`, which start at its byte `start`.
    async fn close_gap(
        &self,
        chunk_bytes: u64,
        chunk: u64,
        start: u32,
        bytes: &[u8],
    ) -> Result<Vec<u8>, VolumeError> {
        let first = chunk * chunk_bytes;
        let len = chunk_bytes.min(self.0.shared.size - first) as usize;
        // First: if it cannot be read, nobody waits for the backing device.
        let cached = match self.cache() {
            Some((store, device)) => store.read(device, chunk).await?,
            None => None,
        };
        let mut whole = self.read_backing(first, len).await?;
        if let Some(cached) = cached {
            cached.lay_over(0, &mut whole);
        }
        whole[start as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(whole)
    }
}
