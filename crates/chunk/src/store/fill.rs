//! Writes void, fills enter.

use super::read::Fetched;
use super::{Change, ChunkStore, MAX_LEVEL, Maps, STRIPES, Spot, Starts, Stripe, WRITE_CHUNKS_MAX};
use crate::content::{Fingerprint, compress};
use crate::piece::{Entry, HEADER_BYTES, Header, Kind, REFERENCE_BYTES, Reference, UNIT_BYTES, piece_len};
use crate::place::Place;
use crate::store::read::Chunk;
use pumice_blocks::add;
use pumice_device::Device;
use pumice_memory::{Buffer, Payload};
use pumice_record::codec::checksum;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Candidates of one tag that are read.
const CANDIDATES_MAX: usize = 4;

/// The moment when a read of the volume began.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    address: u64,
    stamp: u32,
    /// It is a write's own content.
    is_write: bool,
}

/// How a fill ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// The content was appended.
    Stored,
    /// It was there already.
    Duplicate,
    /// Somebody has written to the chunk, or to one that shares its stamp, since the volume was read.
    Late,
    /// No block or buffer is free, or the device was taken out.
    NoRoom,
}

/// A write to chunks, from before the volume has the new content until afterwards. While it lives, nothing that is read from the volume
/// enters under their addresses. The caller holds writes apart that overlap.
pub struct WriteGuard<'a, B: Buffer> {
    store: &'a ChunkStore<B>,
    chunks: Range<u64>,
    regions: Range<usize>,
    /// By chunk: the stamp, and of the first and the last one what was cached before, which is right still where the write does not reach.
    begun: Vec<(u32, Option<Spot<B>>)>,
}

impl<B: Buffer> Drop for WriteGuard<'_, B> {
    fn drop(&mut self) {
        let mut maps = self.store.maps.lock();
        for address in self.chunks.clone() {
            let stripe = maps.stripe(address);
            stripe.stamp = stripe.stamp.wrapping_add(1);
            stripe.writers -= 1;
        }
        maps.regions.end(self.regions.clone());
    }
}

impl<B: Buffer> WriteGuard<'_, B> {
    /// Waits until no crash brings back what was voided: before the volume may have the new content.
    ///
    /// # Errors
    /// Where that cannot be, nor the next start be told that all is void: then the volume must not be written.
    pub async fn commit<D: Device<Buf = B>>(&self, device: &D) -> io::Result<()> {
        let store = self.store;
        let is_marked = store.maps.lock().regions.are_durable(self.regions.clone());
        // A record that was lost stands on a mark in the superblock, which is to be durable too.
        let is_lost = store.base.totals.log_failures.load(Ordering::Acquire) > 0;
        if is_marked && !is_lost && !store.base.is_out() {
            return Ok(());
        }
        store.commit(device).await?;
        store.maps.lock().regions.made_durable(self.regions.clone());
        Ok(())
    }

    /// The volume has the new content of a chunk from byte `start` on: it enters; in the first and the last chunk of the write, with what
    /// was cached beside it.
    ///
    /// # Panics
    /// Where the bytes reach beyond a chunk, or there are none, or the write is not of this chunk.
    pub async fn fill<D: Device<Buf = B>>(
        &mut self,
        device: &D,
        address: u64,
        start: u32,
        bytes: &[u8],
    ) -> Filled {
        let (stamp, old) = &mut self.begun[(address - self.chunks.start) as usize];
        let old = old.take();
        let ticket = Ticket {
            address,
            stamp: *stamp,
            is_write: true,
        };
        self.store.enter(device, ticket, old, start, bytes).await
    }
}

impl<B: Buffer> Maps<B> {
    fn stripe(&mut self, address: u64) -> &mut Stripe {
        &mut self.stripes[address as usize % STRIPES]
    }

    /// Whether what was read or written since a ticket may enter.
    fn is_current(&mut self, ticket: &Ticket) -> bool {
        let stripe = self.stripe(ticket.address);
        stripe.stamp == ticket.stamp && (ticket.is_write || stripe.writers == 0)
    }
}

impl<B: Buffer> ChunkStore<B> {
    /// Begins a write, or whatever else changes chunks: what is cached of them is void from here on, also what the index has forgotten.
    /// Before the volume may have the new content, [`WriteGuard::commit`].
    ///
    /// # Panics
    /// Where that are more than [`WRITE_CHUNKS_MAX`], or the volume does not have them.
    pub fn begin_write<D: Device<Buf = B>>(&self, device: &D, chunks: Range<u64>) -> WriteGuard<'_, B> {
        let count = chunks.end.saturating_sub(chunks.start);
        assert!(
            count <= WRITE_CHUNKS_MAX && chunks.end <= self.shape.chunks,
            "{chunks:?}"
        );
        let mut maps = self.maps.lock();
        let version = maps.version();
        for (index, level) in aligned(chunks.clone()) {
            self.log(device, Change::Void(level), index, version);
        }
        let regions = maps.regions.of(&chunks);
        maps.regions.begin(regions.clone(), |region| {
            self.log(device, Change::Mark, region, version)
        });
        let begun = (chunks.clone())
            .map(|address| {
                let removed = maps.lba.remove(address);
                // The chunks between are written whole. What is kept holds its block's buffer, where that is one still.
                let is_end = address == chunks.start || address + 1 == chunks.end;
                let removed = removed.filter(|_| is_end);
                let old = removed.and_then(|place| self.spot(&maps, place));
                let stripe = maps.stripe(address);
                stripe.stamp = stripe.stamp.wrapping_add(1);
                stripe.writers += 1;
                (stripe.stamp, old)
            })
            .collect();
        WriteGuard {
            store: self,
            chunks,
            regions,
            begun,
        }
    }

    /// Begins to read the volume.
    pub fn begin_fill(&self, address: u64) -> Ticket {
        let mut maps = self.maps.lock();
        Ticket {
            address,
            stamp: maps.stripe(address).stamp,
            is_write: false,
        }
    }

    /// Whether nobody has written to the chunk, nor to one that shares its stamp, since `ticket`.
    pub fn is_current(&self, ticket: &Ticket) -> bool {
        self.maps.lock().is_current(ticket)
    }

    /// What was read from the volume since `ticket`, from byte `start` of the chunk on, enters, with what was cached beside it.
    ///
    /// # Panics
    /// Where the bytes reach beyond a chunk, or there are none, or the volume has no such chunk.
    pub async fn fill<D: Device<Buf = B>>(
        &self,
        device: &D,
        ticket: Ticket,
        start: u32,
        bytes: &[u8],
    ) -> Filled {
        let old = {
            let maps = self.maps.lock();
            let place = maps.lba.get(ticket.address);
            place.and_then(|place| self.spot(&maps, place))
        };
        self.enter(device, ticket, old, start, bytes).await
    }

    async fn enter<D: Device<Buf = B>>(
        &self,
        device: &D,
        ticket: Ticket,
        old: Option<Spot<B>>,
        start: u32,
        bytes: &[u8],
    ) -> Filled {
        let end = start as usize + bytes.len();
        assert!(
            !bytes.is_empty() && end <= self.shape.chunk_bytes as usize && ticket.address < self.shape.chunks,
            "bytes {start}..{end} of chunk {}",
            ticket.address
        );
        let mut merged = None;
        if let Some(old) = old.filter(|_| bytes.len() < self.shape.chunk_bytes as usize)
            && let Fetched::Whole(chunk) = self.fetch(device, &old).await
        {
            merged = merge(chunk, start, bytes);
        }
        let (start, bytes) = match &merged {
            Some(chunk) => (chunk.start, &chunk.bytes[..]),
            None => (start, bytes),
        };
        let fingerprint = Fingerprint::of(start, bytes);
        let filled = match self
            .find_duplicate(device, ticket, &fingerprint, start, bytes.len())
            .await
        {
            Some(filled) => filled,
            None => self.append_content(ticket, &fingerprint, start, bytes),
        };
        match filled {
            Filled::Stored => add(&self.counters.stored_bytes, bytes.len() as u64),
            Filled::Duplicate => self.count(&self.counters.duplicates),
            Filled::Late => self.count(&self.counters.refused_late),
            Filled::NoRoom => self.count(&self.counters.refused_no_room),
        }
        filled
    }

    /// Maps the chunk to a content that is there already; `None` where there is none.
    async fn find_duplicate<D: Device<Buf = B>>(
        &self,
        device: &D,
        ticket: Ticket,
        fingerprint: &Fingerprint,
        start: u32,
        len: usize,
    ) -> Option<Filled> {
        let candidates: Vec<Spot<B>> = {
            let maps = self.maps.lock();
            let places = maps.fp.candidates(fingerprint.hash()).take(CANDIDATES_MAX);
            places.filter_map(|place| self.spot(&maps, place)).collect()
        };
        for spot in candidates {
            let Some(header) = self.fetch_header(device, &spot).await else {
                self.forget_candidate(fingerprint, spot.place, spot.sequence);
                continue;
            };
            if header.fingerprint != *fingerprint || header.start != start || header.len as usize != len {
                continue;
            }
            let mut maps = self.maps.lock();
            if !maps.is_current(&ticket) {
                return Some(Filled::Late);
            }
            if !self.counts_as_source(spot.place.block, spot.sequence) {
                continue;
            }
            let is_mapped = maps.lba.get(ticket.address) == Some(spot.place);
            if !is_mapped && !self.append_reference(&mut maps, ticket.address, spot.place, self.spare()) {
                return Some(Filled::NoRoom);
            }
            self.map(&mut maps, ticket.address, spot.place);
            return Some(Filled::Duplicate);
        }
        None
    }

    fn map(&self, maps: &mut Maps<B>, address: u64, place: Place) {
        if maps.lba.insert(address, place).is_some() {
            self.count(&self.counters.evicted_mappings);
        }
    }

    /// Appends the mapping of a chunk to a content; the index is the caller's.
    pub(super) fn append_reference(
        &self,
        maps: &mut Maps<B>,
        address: u64,
        place: Place,
        spare: usize,
    ) -> bool {
        if self.base.is_out() {
            return false;
        }
        let (version, target) = (maps.version(), self.sequence(place.block));
        let entry = |offset, _| Entry {
            offset,
            len: REFERENCE_BYTES as u32,
            address,
            version,
            kind: Kind::Reference {
                block: place.block,
                number: place.number,
                target,
            },
        };
        let Some(reserved) = self.reserve(maps, REFERENCE_BYTES, spare, entry) else {
            return false;
        };
        let reference = Reference {
            sequence: reserved.block.sequence,
            address,
            version,
            block: place.block,
            number: place.number,
            target,
        };
        let bytes = reference.encode(self.base.cache_id);
        // SAFETY: the range was reserved for this piece alone, and nobody knows of it yet.
        unsafe { reserved.block.buffer.put(reserved.at, Payload::Bytes(&bytes)) };
        true
    }

    fn append_content(&self, ticket: Ticket, fingerprint: &Fingerprint, start: u32, bytes: &[u8]) -> Filled {
        let mut scratch = Vec::new();
        let (coding, stored) = compress(bytes, &mut scratch);
        let mut maps = self.maps.lock();
        if !maps.is_current(&ticket) {
            return Filled::Late;
        }
        let header = Header {
            data_crc: checksum(self.base.cache_id, &[stored]),
            sequence: 0,
            address: ticket.address,
            version: 0,
            fingerprint: *fingerprint,
            number: 0,
            start,
            len: bytes.len() as u32,
            stored_len: stored.len() as u32,
            coding,
        };
        let Some(place) = self.append_piece(&mut maps, header, stored, self.spare()) else {
            return Filled::NoRoom;
        };
        add(&self.counters.stored_contents, 1);
        add(&self.counters.stored_flash_bytes, header.piece_len() as u64);
        self.map(&mut maps, ticket.address, place);
        Filled::Stored
    }

    /// Appends a content, and notes it in the FP-index; the mapping is the caller's. Sequence, version and number are those of the place
    /// that it gets.
    pub(super) fn append_piece(
        &self,
        maps: &mut Maps<B>,
        mut header: Header,
        stored: &[u8],
        spare: usize,
    ) -> Option<Place> {
        if self.base.is_out() {
            return None;
        }
        header.version = maps.version();
        let hash = header.fingerprint.hash();
        let len = piece_len(stored.len());
        let entry = |offset, number| Entry {
            offset,
            len: len as u32,
            address: header.address,
            version: header.version,
            kind: Kind::Content { number, hash },
        };
        let reserved = self.reserve(maps, len, spare, entry)?;
        let block = reserved.block.id;
        let Starts::Growing(starts) = &mut maps.starts[block as usize] else {
            unreachable!("the active block's")
        };
        header.number = starts.len() as u32;
        header.sequence = reserved.block.sequence;
        starts.push((reserved.at / UNIT_BYTES) as u32);
        let head = header.encode(self.base.cache_id);
        let padding = [0; UNIT_BYTES];
        let padding = &padding[..len - HEADER_BYTES - stored.len()];
        let mut at = reserved.at;
        for part in [&head[..], stored, padding] {
            // SAFETY: the range was reserved for this piece alone, and nobody knows of it yet.
            unsafe { reserved.block.buffer.put(at, Payload::Bytes(part)) };
            at += part.len();
        }
        let number = header.number;
        let place = Place { block, number };
        maps.fp.insert(hash, place);
        Some(place)
    }
}

/// Chunks as ranges of `2^level`, each from a multiple of that on: its number among those, and `level`.
pub(super) fn aligned(mut chunks: Range<u64>) -> impl Iterator<Item = (u64, u8)> {
    std::iter::from_fn(move || {
        let len = chunks.end.checked_sub(chunks.start).filter(|len| *len > 0)?;
        let level = chunks
            .start
            .trailing_zeros()
            .min(len.ilog2())
            .min(MAX_LEVEL.into());
        let index = chunks.start >> level;
        chunks.start += 1 << level;
        Some((index, level as u8))
    })
}

/// What was cached of a chunk, with newer bytes over it; `None` where a gap is between the two.
fn merge(mut old: Chunk, start: u32, bytes: &[u8]) -> Option<Chunk> {
    let end = start + bytes.len() as u32;
    let was = old.range();
    if end < was.start || was.end < start {
        return None;
    }
    let first = start.min(was.start);
    let mut merged = vec![0; (end.max(was.end) - first) as usize];
    merged[(was.start - first) as usize..][..old.bytes.len()].copy_from_slice(&old.bytes);
    merged[(start - first) as usize..][..bytes.len()].copy_from_slice(bytes);
    old.start = first;
    old.bytes = merged;
    Some(old)
}
