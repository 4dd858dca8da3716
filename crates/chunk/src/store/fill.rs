//! Writes void cached copies; writes and fills enter contents.

use super::compute::{Coded, Sent};
use super::read::Fetched;
use super::{Change, ChunkStore, Chunks, MAX_LEVEL, Maps, STRIPES, Spot, Starts, Stripe, WRITE_CHUNKS_MAX};
use crate::content::Fingerprint;
use crate::piece::{Entry, HEADER_BYTES, Header, Kind, REFERENCE_BYTES, Reference, UNIT_BYTES, piece_len};
use crate::place::Place;
use crate::store::read::Chunk;
use bytes::Bytes;
use pumice_blocks::{Reserved, add};
use pumice_device::Device;
use pumice_memory::{Buffer, Payload};
use std::io;
use std::ops::Range;

/// Most candidates of the FP-index whose headers are read for one content.
const CANDIDATES_MAX: usize = 4;

/// Where a content comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// A read of the volume.
    Volume,
    /// A write that the volume has taken.
    Through,
    /// A write that the volume has not taken: the chunk becomes dirty.
    Back,
}

/// Marks the time at which a read of the volume began.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    address: u64,
    stamp: u32,
    origin: Origin,
    /// Whether the chunk was dirty: the volume may have had older bytes, also if it is clean since.
    was_dirty: bool,
}

/// Outcome of a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// The content was appended.
    Stored,
    /// An equal content was cached already, and the chunk was mapped to it.
    Duplicate,
    /// The chunk, or one that shares its stamp, was written since the volume was read.
    Late,
    /// No block, buffer or clean slot is free, or the device has failed.
    NoRoom,
    /// The cached part of the chunk is dirty, and does not touch the new bytes or cannot be read. Read it ([`ChunkStore::read`]): if it cannot be
    /// read, fail the write; else give bytes that cover both.
    Gap,
}

/// A write of chunks: taken before the volume is written, dropped afterwards. Until then no fill enters under its addresses. The caller
/// serialises writes that overlap.
pub struct WriteGuard<'a, B: Buffer> {
    store: &'a ChunkStore<B>,
    chunks: Range<u64>,
    regions: Range<usize>,
    /// By chunk: its stamp. For the first and the last chunk of a write-through also the place of the old content, which is mapped no more. Its bytes
    /// outside the write stay valid.
    begun: Vec<(u32, Option<Spot<B>>)>,
    origin: Origin,
    /// A void could not be logged.
    is_lost: bool,
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

impl<'a, B: Buffer> WriteGuard<'a, B> {
    /// The chunks of the write.
    pub fn chunks(&self) -> Range<u64> {
        self.chunks.clone()
    }

    /// Waits until no crash can bring the voided copies back. Call it before the volume is written. It does no I/O if the regions are
    /// marked durably; else it flushes the cache device, under durability `power`.
    ///
    /// # Errors
    /// The void cannot be made durable, and neither can the fence of the device: the volume must not be written.
    pub async fn commit<D: Device<Buf = B>>(&self, device: &D) -> io::Result<()> {
        let store = self.store;
        if self.is_lost {
            return Err(io::Error::other("its log failed to take what a crash must know"));
        }
        let is_marked = store.maps.lock().regions.are_durable(self.regions.clone());
        // After a power cut the mark voids the whole region: neither the record need be durable, nor `discard` in its place.
        if is_marked && !store.base.is_out() {
            return Ok(());
        }
        store.commit(device).await?;
        store.maps.lock().regions.made_durable(self.regions.clone());
        Ok(())
    }

    /// Caches new bytes of a chunk, from byte `start` on. In a write-through the volume has taken them already, in a write-back
    /// ([`ChunkStore::begin_write_back`]) not yet. In the first and the last chunk of the write, cached bytes beside the new ones stay cached.
    /// Call it once for a chunk, and after [`Filled::Gap`] again.
    ///
    /// # Panics
    /// If there are no bytes, they reach beyond the chunk, or the chunk is not in the write.
    pub fn fill<'f, D: Device<Buf = B>>(
        &mut self,
        device: &'f D,
        address: u64,
        start: u32,
        bytes: Bytes,
    ) -> impl Future<Output = Filled> + use<'a, 'f, B, D> {
        let (stamp, old) = &mut self.begun[(address - self.chunks.start) as usize];
        let old = old.take();
        let ticket = Ticket {
            address,
            stamp: *stamp,
            origin: self.origin,
            was_dirty: false,
        };
        self.store.enter(device, ticket, old, start, bytes)
    }
}

impl<B: Buffer> Maps<B> {
    fn stripe(&mut self, address: u64) -> &mut Stripe {
        &mut self.stripes[address as usize % STRIPES]
    }

    fn is_unchanged(&mut self, ticket: &Ticket) -> bool {
        let stripe = self.stripe(ticket.address);
        stripe.stamp == ticket.stamp && (ticket.origin != Origin::Volume || stripe.writers == 0)
    }

    /// Whether a content with this ticket may enter.
    fn is_current(&mut self, ticket: &Ticket) -> bool {
        match ticket.origin {
            Origin::Volume => {
                self.is_unchanged(ticket) && !ticket.was_dirty && !self.is_dirty(ticket.address)
            }
            Origin::Through => self.is_unchanged(ticket),
            // The caller has the chunk to itself; the stamp may be another chunk's.
            Origin::Back => true,
        }
    }

    pub(super) fn is_dirty(&self, address: u64) -> bool {
        self.lba.get(address).is_some_and(|slot| slot.is_dirty)
    }
}

impl<B: Buffer> ChunkStore<B> {
    /// The most records that [`ChunkStore::begin_write`] appends to the log.
    pub fn records_of(&self, chunks: Range<u64>) -> u64 {
        let regions = self.maps.lock().regions.of(&chunks);
        records_of(&chunks, &regions)
    }

    /// Begins a change of chunks: voids their cached copies, also those whose mapping was evicted. Call [`WriteGuard::commit`] before the
    /// volume is changed. `None`: nothing has begun, since the log of a cache that may have dirty chunks has no room for
    /// [`ChunkStore::records_of`] them; see [`ChunkStore::wait_for_log`].
    ///
    /// # Panics
    /// If there are more than [`WRITE_CHUNKS_MAX`] chunks, or some are beyond the volume.
    pub fn begin_write<D: Device<Buf = B>>(
        &self,
        device: &D,
        chunks: Range<u64>,
    ) -> Option<WriteGuard<'_, B>> {
        let count = chunks.end.saturating_sub(chunks.start);
        assert!(
            count <= WRITE_CHUNKS_MAX && chunks.end <= self.shape.chunks,
            "{chunks:?}"
        );
        let mut maps = self.maps.lock();
        let regions = maps.regions.of(&chunks);
        // All changes append under this lock.
        if self.keeps && self.base.log_room() < records_of(&chunks, &regions) {
            return None;
        }
        let version = maps.version();
        let mut is_stored = true;
        for (index, level) in aligned(chunks.clone()) {
            is_stored &= self.log(device, Change::Void(level), index, version);
        }
        maps.regions.begin(regions.clone(), |region| {
            let is_marked = self.log(device, Change::Mark, region, version);
            is_stored &= is_marked;
            is_marked
        });
        debug_assert!(chunks.clone().all(|address| !maps.is_dirty(address)));
        Some(WriteGuard {
            store: self,
            begun: self.begin(&mut maps, &chunks, Origin::Through),
            chunks,
            regions,
            origin: Origin::Through,
            is_lost: !is_stored,
        })
    }

    /// Begins a write that the volume takes later: what [`WriteGuard::fill`] caches becomes dirty. Cached copies stay until then. Until the
    /// next [`ChunkStore::persist`] a crash may leave the old content.
    ///
    /// # Panics
    /// If there are more than [`WRITE_CHUNKS_MAX`] chunks, some are beyond the volume, or the store was opened without
    /// [`Options::write_back`](super::Options::write_back).
    pub fn begin_write_back(&self, chunks: Range<u64>) -> WriteGuard<'_, B> {
        let count = chunks.end.saturating_sub(chunks.start);
        assert!(
            count <= WRITE_CHUNKS_MAX && chunks.end <= self.shape.chunks,
            "{chunks:?}"
        );
        assert!(self.keeps, "this store has clean chunks only");
        let begun = self.begin(&mut self.maps.lock(), &chunks, Origin::Back);
        WriteGuard {
            store: self,
            chunks,
            regions: 0..0,
            begun,
            origin: Origin::Back,
            is_lost: false,
        }
    }

    fn begin(&self, maps: &mut Maps<B>, chunks: &Range<u64>, origin: Origin) -> Vec<(u32, Option<Spot<B>>)> {
        let begin = |address| {
            let old = match origin {
                Origin::Through => maps.lba.remove(address),
                Origin::Back | Origin::Volume => None,
            };
            // Only the first and the last chunk may be written in part. A place in an open block keeps its buffer alive.
            let is_end = address == chunks.start || address + 1 == chunks.end;
            let old = old.filter(|_| is_end);
            let old = old.and_then(|slot| self.spot_of(maps, slot));
            maps.copies.remove(&address);
            let stripe = maps.stripe(address);
            stripe.stamp = stripe.stamp.wrapping_add(1);
            stripe.writers += 1;
            (stripe.stamp, old)
        };
        chunks.clone().map(begin).collect()
    }

    /// Call it before a read of the volume; pass the ticket to [`ChunkStore::fill`].
    pub fn begin_fill(&self, address: u64) -> Ticket {
        let mut maps = self.maps.lock();
        Ticket {
            address,
            stamp: maps.stripe(address).stamp,
            origin: Origin::Volume,
            was_dirty: maps.is_dirty(address),
        }
    }

    /// Call it before a read of the volume in place of the cache: tickets of chunks that are all cached, clean, and not being written; `None` if
    /// one is not. Their mappings become the newest of their buckets, as if they were read here. The bytes that the volume gives are the newest
    /// if all tickets are [current](ChunkStore::is_current) afterwards.
    pub fn begin_instead(&self, chunks: Range<u64>) -> Option<Vec<Ticket>> {
        let mut maps = self.maps.lock();
        let ticket = |address| {
            let stripe = *maps.stripe(address);
            let slot = maps.lba.touch(address)?;
            (!slot.is_dirty && stripe.writers == 0).then_some(Ticket {
                address,
                stamp: stripe.stamp,
                origin: Origin::Volume,
                was_dirty: false,
            })
        };
        chunks.map(ticket).collect()
    }

    /// Whether neither the chunk nor one that shares its stamp was written since `ticket`: what the store had then is the newest.
    pub fn is_unchanged(&self, ticket: &Ticket) -> bool {
        self.maps.lock().is_unchanged(ticket)
    }

    /// The same, and the chunk is not dirty: what the volume had then is the newest.
    pub fn is_current(&self, ticket: &Ticket) -> bool {
        self.maps.lock().is_current(ticket)
    }

    /// Caches bytes of a chunk, from byte `start` on, that were read from the volume since `ticket`. Cached bytes beside them stay.
    ///
    /// # Panics
    /// If there are no bytes, they reach beyond the chunk, or the volume has no such chunk.
    pub async fn fill<D: Device<Buf = B>>(
        &self,
        device: &D,
        ticket: Ticket,
        start: u32,
        bytes: Bytes,
    ) -> Filled {
        self.enter(device, ticket, None, start, bytes).await
    }

    /// `old` is the place of the chunk's old content, if the index has it no more.
    async fn enter<D: Device<Buf = B>>(
        &self,
        device: &D,
        ticket: Ticket,
        old: Option<Spot<B>>,
        start: u32,
        bytes: Bytes,
    ) -> Filled {
        let end = start as usize + bytes.len();
        assert!(
            !bytes.is_empty() && end <= self.shape.chunk_bytes as usize && ticket.address < self.shape.chunks,
            "bytes {start}..{end} of chunk {}",
            ticket.address
        );
        let mut merged = None;
        let old = (bytes.len() < self.shape.chunk_bytes as usize).then(|| match ticket.origin {
            Origin::Through => old,
            Origin::Back | Origin::Volume => {
                let maps = self.maps.lock();
                let slot = maps.lba.get(ticket.address);
                slot.and_then(|slot| self.spot_of(&maps, slot))
            }
        });
        if let Some(old) = old.flatten() {
            let is_dirty = old.is_dirty && ticket.origin == Origin::Back;
            match self.fetch(device, &old).await {
                Fetched::Whole(chunk) => merged = merge(chunk, start, &bytes),
                // Nothing is joined. A cached part that the volume has, too, is dropped; a dirty part leaves a gap.
                Fetched::Moved | Fetched::Failed | Fetched::Damaged(_) => {}
            }
            if merged.is_none() && is_dirty && self.maps.lock().is_dirty(ticket.address) {
                return Filled::Gap;
            }
        }
        let (start, bytes) = match merged {
            Some(chunk) => (chunk.start, Bytes::from(chunk.bytes)),
            None => (start, bytes),
        };
        let (fingerprint, sent) = self.compute(start, &bytes).await;
        let filled = match self
            .find_duplicate(device, ticket, &fingerprint, start, bytes.len())
            .await
        {
            Some(filled) => filled,
            None => self.append_content(ticket, &fingerprint, start, &bytes, sent.as_ref()),
        };
        match filled {
            Filled::Stored => add(&self.counters.stored_bytes, bytes.len() as u64),
            Filled::Duplicate => self.count(&self.counters.duplicates),
            Filled::Late => self.count(&self.counters.refused_late),
            Filled::NoRoom => self.count(&self.counters.refused_no_room),
            Filled::Gap => unreachable!("found before"),
        }
        filled
    }

    /// Maps the chunk to an equal content that is cached already; `None` if there is none. Reads headers of at most [`CANDIDATES_MAX`]
    /// candidates.
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
            let is_dirty = ticket.origin == Origin::Back;
            let mapped = maps.lba.get(ticket.address);
            if mapped.is_some_and(|slot| slot.place == spot.place) {
                // The content does not change. If the mapping is clean, the volume has it.
                maps.lba.touch(ticket.address);
                return Some(Filled::Duplicate);
            }
            if !maps.lba.has_room(ticket.address)
                || !self.append_reference(&mut maps, ticket.address, spot.place, is_dirty, self.spare())
            {
                return Some(Filled::NoRoom);
            }
            self.map(&mut maps, ticket.address, spot.place, is_dirty);
            return Some(Filled::Duplicate);
        }
        None
    }

    fn map(&self, maps: &mut Maps<B>, address: u64, place: Place, is_dirty: bool) {
        if maps.lba.insert(address, place, is_dirty).is_some() {
            self.count(&self.counters.evicted_mappings);
        }
    }

    /// Appends a reference from a chunk to a content. The caller updates the index. False without room.
    pub(super) fn append_reference(
        &self,
        maps: &mut Maps<B>,
        address: u64,
        place: Place,
        is_dirty: bool,
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
            is_dirty,
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
            is_dirty,
        };
        let bytes = reference.encode(self.base.cache_id);
        // SAFETY: the range was reserved for this piece alone, and no reader knows it yet.
        unsafe { reserved.block.buffer.put(reserved.at, Payload::Bytes(&bytes)) };
        maps.starts[place.block as usize].share(place.number);
        true
    }

    fn append_content(
        &self,
        ticket: Ticket,
        fingerprint: &Fingerprint,
        start: u32,
        bytes: &[u8],
        sent: Option<&Sent>,
    ) -> Filled {
        let append = |coded: &Coded<'_>| {
            let header = Header {
                data_crc: coded.crc,
                sequence: 0,
                address: ticket.address,
                version: 0,
                fingerprint: *fingerprint,
                number: 0,
                start,
                len: bytes.len() as u32,
                stored_len: coded.stored.len() as u32,
                coding: coded.coding,
                spare_units: 0,
                is_dirty: ticket.origin == Origin::Back,
            };
            let mut maps = self.maps.lock();
            if !maps.is_current(&ticket) {
                return Filled::Late;
            }
            if !maps.lba.has_room(ticket.address) {
                return Filled::NoRoom;
            }
            let place = (self.absorb(&mut maps, header, coded.stored))
                .or_else(|| self.append_piece(&mut maps, header, coded.stored, true, self.spare()));
            let Some(place) = place else {
                return Filled::NoRoom;
            };
            add(&self.counters.stored_contents, 1);
            add(&self.counters.stored_flash_bytes, header.piece_len() as u64);
            self.map(&mut maps, ticket.address, place, header.is_dirty);
            Filled::Stored
        };
        match sent {
            Some(sent) => append(&sent.coded()),
            None => Coded::with(self.base.cache_id, bytes, append),
        }
    }

    /// In write-back: replaces the chunk's older content in the active buffer, so that the older one is never written to flash. Only if no write
    /// of it has begun, the new one is not longer, no other chunk may share it, and nobody else holds the block. Adds the new content to the
    /// FP-index; the caller maps the chunk. `None`: append it.
    ///
    /// Entries of one chunk stay in the order of their versions, since a chunk is mapped to the last of them.
    fn absorb(&self, maps: &mut Maps<B>, mut header: Header, stored: &[u8]) -> Option<Place> {
        let place = maps.lba.get(header.address).filter(|_| header.is_dirty)?.place;
        if self.base.is_out() {
            return None;
        }
        header.version = maps.version();
        let starts = &maps.starts[place.block as usize];
        let at = starts
            .is_unshared(place.number)
            .then(|| starts.get(place.number))??;
        let block = maps.active.as_ref().filter(|block| block.id == place.block)?;
        (header.number, header.sequence) = (place.number, block.sequence);
        let hash = header.fingerprint.hash();
        let mut old_hash = None;
        let reserved = block.rewrite(at as usize * UNIT_BYTES, |entry| {
            let spare = (entry.len as usize).checked_sub(piece_len(stored.len()))?;
            debug_assert_eq!(entry.address, header.address);
            let Kind::Content { hash: old, number } = entry.kind else {
                return None;
            };
            old_hash = Some(old);
            header.spare_units = (spare / UNIT_BYTES) as u32;
            (entry.version, entry.is_dirty) = (header.version, true);
            entry.kind = Kind::Content { number, hash };
            Some(())
        })?;
        self.put(&reserved, &header, stored);
        // What was read of the older content is not to be taken for this one.
        maps.copies.remove(&header.address);
        maps.fp.remove(old_hash?, place);
        maps.fp.insert(hash, place);
        self.count(&self.counters.absorbed_contents);
        Some(place)
    }

    /// Writes header, content and padding of a piece to the room that was reserved for it.
    fn put(&self, reserved: &Reserved<Chunks<B>>, header: &Header, stored: &[u8]) {
        let head = header.encode(self.base.cache_id);
        let padding = [0; UNIT_BYTES];
        let padding = &padding[..piece_len(stored.len()) - HEADER_BYTES - stored.len()];
        let mut at = reserved.at;
        for part in [&head[..], stored, padding] {
            // SAFETY: the room is reserved for this piece alone. It is new, so that no reader knows it; or it held a piece that nobody was
            // reading (`OpenBlock::rewrite`), and new readers wait for the lock of the maps, which the caller holds.
            unsafe { reserved.block.buffer.put(at, Payload::Bytes(part)) };
            at += part.len();
        }
    }

    /// Appends a content, and adds it to the FP-index. The caller maps the chunk, if `is_mapped`. Sets sequence, version and number in the
    /// header. `None` without room.
    pub(super) fn append_piece(
        &self,
        maps: &mut Maps<B>,
        mut header: Header,
        stored: &[u8],
        is_mapped: bool,
        spare: usize,
    ) -> Option<Place> {
        if self.base.is_out() {
            return None;
        }
        header.version = if is_mapped { maps.version() } else { 0 };
        let hash = header.fingerprint.hash();
        let len = piece_len(stored.len());
        let entry = |offset, number| Entry {
            offset,
            len: len as u32,
            address: header.address,
            version: header.version,
            is_dirty: header.is_dirty,
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
        self.put(&reserved, &header, stored);
        let number = header.number;
        let place = Place { block, number };
        maps.fp.insert(hash, place);
        Some(place)
    }
}

/// The most records that void chunks and mark their regions.
fn records_of(chunks: &Range<u64>, regions: &Range<usize>) -> u64 {
    (aligned(chunks.clone()).count() + regions.len()) as u64
}

/// Splits a range of chunks into aligned ranges of `2^level` chunks: (number of the aligned range, level).
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

/// Lays newer bytes over a cached part of a chunk; `None` if there is a gap between the two.
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
