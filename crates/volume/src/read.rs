//! Reads.

use crate::admission::Cause;
use crate::split::Served;
use crate::{Backing, Extent, SPAN_BYTES, Shared, Volume, VolumeError, chunks_of, fills_at_once};
use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::stream::{StreamExt, iter};
use pumice_admit::Refusal;
use pumice_blocks::add;
use pumice_chunk::store::{Chunk, ChunkStore, Filled, Ticket, Unreadable};
use pumice_device::Device;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Most chunks of which a list of extents tells whether they are dirty.
const EXTENT_CHUNKS: u64 = 8192;

impl<D: Device, K: Backing> Volume<D, K> {
    /// Reads `len` bytes at `offset`.
    ///
    /// # Errors
    /// [`VolumeError::Range`]; [`VolumeError::Backing`] if a byte is not cached and the backing device fails; [`VolumeError::Unreadable`] if
    /// a chunk is dirty and the cache device fails.
    pub async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, VolumeError> {
        self.read_for(offset, len, false).await
    }

    /// Reads a range, and fills the cache with it, also if it is of a scan, and whatever a rule of admission says; not while load splitting keeps
    /// misses out.
    ///
    /// # Errors
    /// As [`Volume::read`].
    pub async fn prefetch(&self, offset: u64, len: usize) -> Result<(), VolumeError> {
        self.read_for(offset, len, true).await.map(drop)
    }

    async fn read_for(&self, offset: u64, len: usize, must_fill: bool) -> Result<Vec<u8>, VolumeError> {
        self.0.shared.check_range(offset, len as u64)?;
        let Some((store, _)) = self.cache() else {
            return self.read_backing(offset, len).await;
        };
        let (chunk_bytes, range) = (u64::from(store.shape().chunk_bytes), offset..offset + len as u64);
        let is_scan = self.follow_read(offset, len as u64, must_fill);
        if is_scan {
            self.0.shared.drop_passed(chunk_bytes, range);
        }
        let mut out = vec![0; len];
        let (mut at, mut rest) = (offset, &mut out[..]);
        while !rest.is_empty() {
            let len = (SPAN_BYTES - at % SPAN_BYTES).min(rest.len() as u64);
            let (span, after) = rest.split_at_mut(len as usize);
            self.read_span(at, span, is_scan, must_fill).await?;
            (at, rest) = (at + len, after);
        }
        Ok(out)
    }

    /// Reads a span: from the cache what it has, the rest from the backing device.
    pub(crate) async fn read_cached(
        &self,
        offset: u64,
        out: &mut [u8],
        is_scan: bool,
        must_fill: bool,
    ) -> Result<Served, VolumeError> {
        let Some((store, device)) = self.cache() else {
            unreachable!("chunks are the cache's")
        };
        let chunk_bytes = u64::from(store.shape().chunk_bytes);
        let end = offset + out.len() as u64;
        let chunks = chunks_of(chunk_bytes, offset, out.len() as u64);
        let wanted = |chunk: u64| {
            let first = chunk * chunk_bytes;
            (offset.max(first) - first) as u32..(end.min(first + chunk_bytes) - first) as u32
        };
        let counters = &self.0.shared.counters;
        add(&counters.read_chunks, chunks.end - chunks.start);
        self.0.shared.ahead.passed(chunks.clone()).await;
        if must_fill {
            // DRAM may have what the cache device has not.
            let is_missing = |chunk: &u64| store.place(*chunk).is_none();
            (chunks.clone().filter(is_missing)).for_each(|chunk| self.0.shared.dram.remove(chunk));
        }
        let found = join_all(
            chunks
                .clone()
                .map(|chunk| self.find(store, device, chunk, wanted(chunk), is_scan)),
        )
        .await;
        self.kick();
        let mut served = Served::default();
        let mut missing: Vec<Range<u64>> = Vec::new();
        let mut failure: Option<VolumeError> = None;
        for (chunk, (counter, found)) in chunks.zip(found) {
            let range = wanted(chunk);
            add(counter, 1);
            let found = match found {
                Ok(found) => found,
                Err(error) => {
                    failure = Some(error.into());
                    continue;
                }
            };
            if std::ptr::eq(counter, &counters.read_hits) {
                let is_dirty = found.as_ref().is_some_and(|found| found.is_dirty);
                self.0.shared.note_hit(chunk);
                served.hits += 1;
                served.dirty.extend(is_dirty.then_some(chunk));
            }
            let at = (chunk * chunk_bytes + u64::from(range.start) - offset) as usize;
            let part = found.as_ref().and_then(|found| found.part(range.clone()));
            match (part, missing.last_mut()) {
                (Some(part), _) => out[at..at + part.len()].copy_from_slice(part),
                (None, _) if found.as_ref().is_some_and(|found| found.is_dirty) => {
                    // The backing device has older bytes of the cached part: the chunk is not filled.
                    served.has_missed = true;
                    let first = offset.max(chunk * chunk_bytes);
                    let out = &mut out[at..at + range.len()];
                    match self.read_backing(first, range.len()).await {
                        Ok(bytes) => out.copy_from_slice(&bytes),
                        Err(error) => failure = Some(error),
                    }
                    if let Some(dirty) = found {
                        dirty.lay_over(range.start, out);
                    }
                }
                (None, Some(last)) if last.end == chunk => last.end += 1,
                (None, _) => missing.push(chunk..chunk + 1),
            }
        }
        if let Some(error) = failure {
            return Err(error);
        }
        if !served.dirty.is_empty() {
            add(&counters.read_dirty_hits, served.hits);
        }
        served.has_missed |= !missing.is_empty();
        for run in missing {
            let first = run.start * chunk_bytes;
            let start = offset.max(first);
            let at = (start - offset) as usize;
            let len = ((run.end * chunk_bytes).min(end) - start) as usize;
            // While others need not leave, nothing is gained by keeping them out.
            if !self.admits_misses() && !store.has_free_room(run.clone()) {
                let wanted = start..start + len as u64;
                let bytes = self.read_around(chunk_bytes, run, wanted, is_scan).await?;
                out[at..at + len].copy_from_slice(&bytes);
                continue;
            }
            let mut whole = None;
            if self.can_keep(run.clone(), is_scan) {
                let filled = self.read_and_fill(chunk_bytes, run, is_scan.then_some(end), must_fill);
                whole = filled.await.ok();
            } else {
                let chunks = run.end - run.start;
                add(&counters.fills, chunks);
                add(&counters.fills_scan, chunks);
            }
            match whole {
                Some(bytes) => {
                    out[at..at + len].copy_from_slice(&bytes[(start - first) as usize..][..len]);
                }
                // Nothing would keep the rest, or it may have a bad sector: read the wanted bytes alone.
                None => out[at..at + len].copy_from_slice(&self.read_backing(start, len).await?),
            }
        }
        Ok(served)
    }

    /// Looks a chunk up in DRAM, then on the cache device. Returns the counter of the outcome, and the cached part of the chunk.
    async fn find<'a>(
        &'a self,
        store: &ChunkStore<D::Buf>,
        device: &D,
        chunk: u64,
        wanted: Range<u32>,
        is_scan: bool,
    ) -> (&'a AtomicU64, Result<Option<Arc<Chunk>>, Unreadable>) {
        let Shared { counters, dram, .. } = &*self.0.shared;
        let in_dram = dram.get(chunk, is_scan);
        if in_dram
            .as_ref()
            .is_some_and(|found| found.part(wanted.clone()).is_some())
        {
            if !is_scan {
                store.addresses().touch(chunk);
            }
            return (&counters.read_dram_hits, Ok(in_dram));
        }
        let stamp = dram.is_on().then(|| store.addresses().stamp(chunk));
        let found = match store.read(device, chunk).await {
            Ok(found) => found.map(Arc::new),
            Err(error) => return (&counters.read_misses, Err(error)),
        };
        if let Some((found, stamp)) = found.as_ref().zip(stamp) {
            dram.insert(chunk, found, is_scan, || store.addresses().is_unchanged(stamp));
        }
        let counter = match &found {
            Some(found) if found.part(wanted).is_some() => &counters.read_hits,
            Some(_) => &counters.read_part_hits,
            None => &counters.read_misses,
        };
        (counter, Ok(found))
    }

    pub(crate) async fn read_backing(&self, offset: u64, len: usize) -> Result<Vec<u8>, VolumeError> {
        add(&self.0.shared.counters.backing_read_bytes, len as u64);
        let read = self.0.backing.read_at(offset, len).await;
        let bytes = read.map_err(VolumeError::Backing)?;
        assert_eq!(
            bytes.len(),
            len,
            "a backing device reads all that it was asked for"
        );
        Ok(bytes)
    }

    /// Whether anything of chunks that are read from the backing device can be kept.
    pub(crate) fn can_keep(&self, chunks: Range<u64>, is_scan: bool) -> bool {
        let has_room = || self.cache().is_some_and(|(store, _)| store.has_free_room(chunks));
        !is_scan || self.0.shared.dram.is_on() || has_room()
    }

    /// Reads whole chunks from the backing device, with tickets from before that.
    pub(crate) async fn read_whole(
        &self,
        store: &ChunkStore<D::Buf>,
        chunk_bytes: u64,
        chunks: Range<u64>,
    ) -> Result<(Vec<Ticket>, Bytes), VolumeError> {
        let tickets = chunks.clone().map(|chunk| store.begin_fill(chunk)).collect();
        let first = chunks.start * chunk_bytes;
        let end = (chunks.end * chunk_bytes).min(self.0.shared.size);
        let bytes = self.read_backing(first, (end - first) as usize).await?;
        Ok((tickets, bytes.into()))
    }

    /// Keeps a chunk in DRAM that was read from the backing device, unless it was written since `ticket`.
    pub(crate) fn keep_in_dram(&self, address: u64, bytes: &[u8], is_scan: bool, ticket: &Ticket) {
        let Shared { dram, store, .. } = &*self.0.shared;
        let read = Chunk {
            start: 0,
            bytes: bytes.to_vec(),
            is_dirty: false,
        };
        let is_current = |store: &ChunkStore<D::Buf>| store.addresses().is_current(ticket);
        dram.insert(address, &Arc::new(read), is_scan, || {
            store.as_ref().is_some_and(is_current)
        });
    }

    /// Reads whole chunks from the backing device, and fills the cache with them. For a scan give the volume's byte up to which it has read
    /// with this: what lies there enters only where the cache has free room, and what lies behind is kept in DRAM at least. With `must_fill` no rule
    /// of admission keeps it out.
    pub(crate) async fn read_and_fill(
        &self,
        chunk_bytes: u64,
        chunks: Range<u64>,
        scanned: Option<u64>,
        must_fill: bool,
    ) -> Result<Bytes, VolumeError> {
        let Some((store, device)) = self.cache() else {
            unreachable!("chunks are the cache's")
        };
        let since = self.0.clock.monotonic_ns();
        let (tickets, bytes) = self.read_whole(store, chunk_bytes, chunks.clone()).await?;
        let counters = &self.0.shared.counters;
        add(&counters.fills, tickets.len() as u64);
        let parts = (0..bytes.len()).step_by(chunk_bytes as usize);
        let parts = parts.map(|at| bytes.slice(at..bytes.len().min(at + chunk_bytes as usize)));
        let chunks = chunks.zip(parts);
        let fills = tickets
            .into_iter()
            .zip(chunks)
            .map(|(ticket, (address, chunk))| async move {
                let dram = &self.0.shared.dram;
                let enters = scanned.is_none() || store.has_free_room(address..address + 1);
                let is_ahead = scanned.is_none_or(|end| end < (address + 1) * chunk_bytes);
                if dram.is_on() && is_ahead {
                    self.keep_in_dram(address, &chunk, scanned.is_some(), &ticket);
                }
                if !enters {
                    add(&counters.fills_scan, 1);
                    return;
                }
                let cause = if must_fill { Cause::Command } else { Cause::Read };
                let _admitted = match self.admit(address, cause) {
                    Ok(admitted) => admitted,
                    Err(Refusal::Budget) => return add(&counters.fills_budget, 1),
                    Err(_) => return add(&counters.fills_rule, 1),
                };
                // If the cache device is slower than the backing device, it sets the pace.
                store.wait_for_room().await;
                let filled = store.fill(device, ticket, 0, chunk).await;
                add(
                    match filled {
                        Filled::Stored => &counters.fills_stored,
                        Filled::Duplicate => &counters.fills_duplicate,
                        Filled::Late => &counters.fills_late,
                        Filled::NoRoom if store.failure().is_some() => &counters.fills_out,
                        Filled::NoRoom | Filled::Gap => &counters.fills_no_room,
                    },
                    1,
                );
                self.kick();
            });
        iter(fills)
            .for_each_concurrent(fills_at_once(chunk_bytes), |fill| fill)
            .await;
        self.0.shared.ahead.filled_in(self.0.clock.monotonic_ns() - since);
        Ok(bytes)
    }

    /// Lists data and holes of a range: see [`Backing::extents`]. Dirty chunks are data.
    ///
    /// # Errors
    /// [`VolumeError::Range`], [`VolumeError::Backing`].
    pub async fn extents(&self, offset: u64, len: u64, most: usize) -> Result<Vec<Extent>, VolumeError> {
        self.0.shared.check_range(offset, len)?;
        // First: a chunk that is cleaned meanwhile is data in either list.
        let dirty = self
            .cache()
            .filter(|(store, _)| store.dirty() > 0)
            .map(|(store, _)| {
                let chunk_bytes = u64::from(store.shape().chunk_bytes);
                let chunks = chunks_of(chunk_bytes, offset, len.min(EXTENT_CHUNKS * chunk_bytes));
                let end = (chunks.end * chunk_bytes).min(offset + len);
                (end, chunk_bytes, store.dirty_among(chunks))
            });
        let extents = self.0.backing.extents(offset, len, most).await;
        let extents = extents.map_err(VolumeError::Backing)?;
        let Some((end, chunk_bytes, dirty)) = dirty else {
            return Ok(extents);
        };
        let dirty = dirty
            .iter()
            .map(|chunk| chunk * chunk_bytes..(chunk + 1) * chunk_bytes);
        Ok(over_holes(offset..end, extents, dirty, most))
    }
}

/// The extents of a range, of which the ranges `dirty`, in order, are data.
fn over_holes(
    range: Range<u64>,
    extents: Vec<Extent>,
    dirty: impl Iterator<Item = Range<u64>>,
    most: usize,
) -> Vec<Extent> {
    let mut out: Vec<Extent> = Vec::new();
    let mut push = |length: u64, is_hole: bool| match out.last_mut() {
        _ if length == 0 => {}
        Some(last) if last.is_hole == is_hole => last.length += length,
        _ => out.push(Extent { length, is_hole }),
    };
    let mut dirty = dirty.peekable();
    let mut at = range.start;
    for extent in extents {
        let end = (at + extent.length).min(range.end);
        while at < end {
            while dirty.next_if(|next| next.end <= at).is_some() {}
            let next = dirty.peek().filter(|next| next.start < end && extent.is_hole);
            let data = next.map_or(end..end, |next| next.start.max(at)..next.end.min(end));
            push(data.start - at, extent.is_hole);
            push(data.end - data.start, false);
            at = data.end;
        }
    }
    out.truncate(most.max(1));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;

    #[test]
    fn dirty_chunks_in_holes_are_data() {
        let listed = |range: Range<u64>, list: &[(u64, bool)], dirty: &[Range<u64>]| {
            let extent = |&(length, is_hole): &(u64, bool)| Extent { length, is_hole };
            let extents = list.iter().map(extent).collect();
            let found = over_holes(range, extents, dirty.iter().cloned(), 100);
            let pairs = found.iter().map(|extent| (extent.length, extent.is_hole));
            pairs.collect::<Vec<_>>()
        };
        let hole = [(100, true)];
        assert_eq!(listed(0..100, &hole, &[]), hole);
        assert_eq!(
            listed(0..100, &hole, &[10..20, 20..30]),
            [(10, true), (20, false), (70, true)]
        );
        // One begins before the range, one ends after it.
        assert_eq!(
            listed(15..85, &hole, &[10..20, 80..90]),
            [(5, false), (60, true), (5, false)]
        );
        let mixed = [(50, false), (50, true)];
        assert_eq!(
            listed(0..100, &mixed, from_ref(&(40..60))),
            [(60, false), (40, true)]
        );
        assert_eq!(listed(0..100, &mixed, from_ref(&(0..10))), mixed);
    }
}
