//! Reads.

use crate::{Backing, Extent, SPAN_BYTES, Shared, Volume, VolumeError, fills_at_once};
use futures_util::future::join_all;
use futures_util::stream::{StreamExt, iter};
use pumice_blocks::add;
use pumice_chunk::store::{Chunk, ChunkStore, Filled};
use pumice_device::Device;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

impl<D: Device, K: Backing> Volume<D, K> {
    /// Reads `len` bytes at `offset`.
    ///
    /// # Errors
    /// [`VolumeError::Range`]; [`VolumeError::Backing`] if a byte is not cached and the backing device fails.
    pub async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, VolumeError> {
        self.check_range(offset, len as u64)?;
        if self.cache().is_none() {
            return self.read_backing(offset, len).await;
        }
        self.read_ahead_of(offset, len as u64);
        let mut out = vec![0; len];
        let (mut at, mut rest) = (offset, &mut out[..]);
        while !rest.is_empty() {
            let len = (SPAN_BYTES - at % SPAN_BYTES).min(rest.len() as u64);
            let (span, after) = rest.split_at_mut(len as usize);
            self.read_span(at, span).await?;
            (at, rest) = (at + len, after);
        }
        Ok(out)
    }

    async fn read_span(&self, offset: u64, out: &mut [u8]) -> Result<(), VolumeError> {
        let Some((store, device)) = self.cache() else {
            unreachable!("chunks are the cache's")
        };
        let chunk_bytes = u64::from(store.shape().chunk_bytes);
        let end = offset + out.len() as u64;
        let chunks = self.chunks_of(chunk_bytes, offset, out.len() as u64);
        let wanted = |chunk: u64| {
            let first = chunk * chunk_bytes;
            (offset.max(first) - first) as u32..(end.min(first + chunk_bytes) - first) as u32
        };
        let counters = &self.0.shared.counters;
        add(&counters.read_chunks, chunks.end - chunks.start);
        self.0.shared.ahead.passed(chunks.clone()).await;
        let found = join_all(
            chunks
                .clone()
                .map(|chunk| self.find(store, device, chunk, wanted(chunk))),
        )
        .await;
        self.kick();
        let mut missing: Vec<Range<u64>> = Vec::new();
        for (chunk, found) in chunks.zip(found) {
            let range = wanted(chunk);
            let (counter, found) = &found;
            add(counter, 1);
            let part = found.as_ref().and_then(|found| found.part(range.clone()));
            match (part, missing.last_mut()) {
                (Some(part), _) => {
                    let at = (chunk * chunk_bytes + u64::from(range.start) - offset) as usize;
                    out[at..at + part.len()].copy_from_slice(part);
                }
                (None, Some(last)) if last.end == chunk => last.end += 1,
                (None, _) => missing.push(chunk..chunk + 1),
            }
        }
        for run in missing {
            let first = run.start * chunk_bytes;
            let start = offset.max(first);
            let at = (start - offset) as usize;
            let len = ((run.end * chunk_bytes).min(end) - start) as usize;
            match self.read_and_fill(chunk_bytes, run).await {
                Ok(bytes) => {
                    out[at..at + len].copy_from_slice(&bytes[(start - first) as usize..][..len]);
                }
                // The bad sector may lie beside the wanted bytes: read these alone.
                Err(_) => out[at..at + len].copy_from_slice(&self.read_backing(start, len).await?),
            }
        }
        Ok(())
    }

    /// Looks a chunk up in DRAM, then on the cache device. Returns the counter of the outcome, and the cached part of the chunk.
    async fn find<'a>(
        &'a self,
        store: &ChunkStore<D::Buf>,
        device: &D,
        chunk: u64,
        wanted: Range<u32>,
    ) -> (&'a AtomicU64, Option<Arc<Chunk>>) {
        let Shared { counters, dram, .. } = &*self.0.shared;
        let in_dram = dram.get(chunk);
        if in_dram
            .as_ref()
            .is_some_and(|found| found.part(wanted.clone()).is_some())
        {
            store.touch(chunk);
            return (&counters.read_dram_hits, in_dram);
        }
        let ticket = dram.is_on().then(|| store.begin_fill(chunk));
        let found = store.read(device, chunk).await.map(Arc::new);
        if let Some((found, ticket)) = found.as_ref().zip(ticket) {
            dram.insert(chunk, found, || store.is_current(&ticket));
        }
        let counter = match &found {
            Some(found) if found.part(wanted).is_some() => &counters.read_hits,
            Some(_) => &counters.read_part_hits,
            None => &counters.read_misses,
        };
        (counter, found)
    }

    async fn read_backing(&self, offset: u64, len: usize) -> Result<Vec<u8>, VolumeError> {
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

    /// Reads whole chunks from the backing device, and fills the cache with them.
    pub(crate) async fn read_and_fill(
        &self,
        chunk_bytes: u64,
        chunks: Range<u64>,
    ) -> Result<Vec<u8>, VolumeError> {
        let Some((store, device)) = self.cache() else {
            unreachable!("chunks are the cache's")
        };
        let since = self.0.clock.monotonic_ns();
        let tickets: Vec<_> = chunks.clone().map(|chunk| store.begin_fill(chunk)).collect();
        let first = chunks.start * chunk_bytes;
        let end = (chunks.end * chunk_bytes).min(self.0.shared.size);
        let bytes = self.read_backing(first, (end - first) as usize).await?;
        let counters = &self.0.shared.counters;
        add(&counters.fills, tickets.len() as u64);
        let chunks = chunks.zip(bytes.chunks(chunk_bytes as usize));
        let fills = tickets
            .into_iter()
            .zip(chunks)
            .map(|(ticket, (address, chunk))| async move {
                let dram = &self.0.shared.dram;
                if dram.is_on() {
                    let (start, bytes) = (0, chunk.to_vec());
                    dram.insert(address, &Arc::new(Chunk { start, bytes }), || {
                        store.is_current(&ticket)
                    });
                }
                // If the cache device is slower than the backing device, it sets the pace.
                store.wait_for_room().await;
                let filled = store.fill(device, ticket, 0, chunk).await;
                add(
                    match filled {
                        Filled::Stored => &counters.fills_stored,
                        Filled::Duplicate => &counters.fills_duplicate,
                        Filled::Late => &counters.fills_late,
                        Filled::NoRoom if store.failure().is_some() => &counters.fills_out,
                        Filled::NoRoom => &counters.fills_no_room,
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

    /// Lists data and holes of a range: see [`Backing::extents`].
    ///
    /// # Errors
    /// [`VolumeError::Range`], [`VolumeError::Backing`].
    pub async fn extents(&self, offset: u64, len: u64, most: usize) -> Result<Vec<Extent>, VolumeError> {
        self.check_range(offset, len)?;
        let extents = self.0.backing.extents(offset, len, most).await;
        extents.map_err(VolumeError::Backing)
    }
}
