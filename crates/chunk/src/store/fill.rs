//! Writes void cached copies; writes and fills enter contents.

use super::ChunkStore;
use super::addresses::{Mapped, Stamp, Ticket, WRITE_CHUNKS_MAX};
use super::fingerprints::{Coded, Sent};
use super::owner::{Change, aligned};
use super::read::{Chunk, Fetched, Spot};
use crate::content::Fingerprint;
use crate::lba::Slot;
use crate::piece::Header;
use crate::place::Place;
use bytes::Bytes;
use pumice_blocks::add;
use pumice_device::Device;
use pumice_memory::Buffer;
use std::io;
use std::ops::Range;

/// Where a content comes from.
#[derive(Clone, Copy)]
enum Origin {
    /// A read of the volume.
    Volume(Ticket),
    /// A write that the volume has taken. With the stamp that its begin has left.
    Through(Stamp),
    /// A write that the volume has not taken: the chunk becomes dirty.
    Back,
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
    /// By chunk: where its content comes from. For the first and the last chunk of a write-through also the place of the old content, which is
    /// mapped no more. Its bytes outside the write stay valid.
    begun: Vec<(Origin, Option<Spot<B>>)>,
    /// A void could not be logged.
    is_lost: bool,
}

impl<B: Buffer> Drop for WriteGuard<'_, B> {
    fn drop(&mut self) {
        let addresses = &self.store.addresses;
        addresses.end_write(self.chunks.clone());
        addresses.regions.end(self.regions.clone());
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
        let regions = &store.addresses.regions;
        let is_marked = regions.are_durable(self.regions.clone());
        // After a power cut the mark voids the whole region: neither the record need be durable, nor `discard` in its place.
        if is_marked && !store.base.is_out() {
            return Ok(());
        }
        store.appender.commit(device).await?;
        regions.made_durable(self.regions.clone());
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
        let (origin, old) = &mut self.begun[(address - self.chunks.start) as usize];
        let entering = Entering {
            store: self.store,
            device,
            address,
            origin: *origin,
        };
        entering.enter(old.take(), start, bytes)
    }
}

impl<B: Buffer> ChunkStore<B> {
    /// The most records that [`ChunkStore::begin_write`] appends to the log.
    pub fn records_of(&self, chunks: Range<u64>) -> u64 {
        let regions = self.addresses.regions.of(&chunks);
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
        check_write(&chunks, self.shape.chunks);
        let regions = self.addresses.regions.of(&chunks);
        let mut mapped = self.addresses.lock();
        // All changes append under this lock.
        if self.keeps && self.base.journal.room() < records_of(&chunks, &regions) {
            return None;
        }
        let version = mapped.next_version();
        let mut is_stored = true;
        for (index, level) in aligned(chunks.clone()) {
            is_stored &= self.appender.log(device, Change::Void(level), index, version);
        }
        self.addresses.regions.begin(regions.clone(), |region| {
            let is_marked = self.appender.log(device, Change::Mark, region, version);
            is_stored &= is_marked;
            is_marked
        });
        debug_assert!(chunks.clone().all(|address| !mapped.is_dirty(address)));
        let begin = |address| {
            let old = mapped.index.remove(address);
            // Only the first and the last chunk may be written in part. A place in an open block keeps its buffer alive.
            let is_end = address == chunks.start || address + 1 == chunks.end;
            let old = old.filter(|_| is_end);
            let old = old.and_then(|slot| self.appender.spot_of(slot));
            let stamp = self.addresses.begin_write(&mut mapped, address);
            (Origin::Through(stamp), old)
        };
        Some(WriteGuard {
            store: self,
            begun: chunks.clone().map(begin).collect(),
            chunks,
            regions,
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
        check_write(&chunks, self.shape.chunks);
        assert!(self.keeps, "this store has clean chunks only");
        let mut mapped = self.addresses.lock();
        let begin = |address| {
            self.addresses.begin_write(&mut mapped, address);
            (Origin::Back, None)
        };
        WriteGuard {
            store: self,
            begun: chunks.clone().map(begin).collect(),
            chunks,
            regions: 0..0,
            is_lost: false,
        }
    }

    /// Call it before a read of the volume; pass the ticket to [`ChunkStore::fill`].
    pub fn begin_fill(&self, address: u64) -> Ticket {
        self.addresses.ticket(address)
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
        let entering = Entering {
            store: self,
            device,
            address: ticket.stamp.address,
            origin: Origin::Volume(ticket),
        };
        entering.enter(None, start, bytes).await
    }
}

/// A content that enters.
struct Entering<'a, 'd, B: Buffer, D> {
    store: &'a ChunkStore<B>,
    device: &'d D,
    address: u64,
    origin: Origin,
}

impl<B: Buffer, D: Device<Buf = B>> Entering<'_, '_, B, D> {
    fn is_dirty(&self) -> bool {
        matches!(self.origin, Origin::Back)
    }

    /// Whether it may enter.
    fn is_current(&self, mapped: &Mapped) -> bool {
        match &self.origin {
            Origin::Volume(ticket) => self.store.addresses.is_newest(mapped, ticket),
            Origin::Through(stamp) => self.store.addresses.stamp(self.address) == *stamp,
            // The caller has the chunk to itself; the stamp may be another chunk's.
            Origin::Back => true,
        }
    }

    /// `old` is the place of the chunk's old content, if the index has it no more.
    async fn enter(self, old: Option<Spot<B>>, start: u32, bytes: Bytes) -> Filled {
        let (store, address) = (self.store, self.address);
        let (end, chunk_bytes) = (start as usize + bytes.len(), store.shape.chunk_bytes as usize);
        assert!(
            !bytes.is_empty() && end <= chunk_bytes && address < store.shape.chunks,
            "bytes {start}..{end} of chunk {address}"
        );
        let mut merged = None;
        let old = (bytes.len() < chunk_bytes).then(|| match self.origin {
            Origin::Through(_) => old,
            Origin::Back | Origin::Volume(_) => {
                let mapped = store.addresses.lock();
                let slot = mapped.index.get(address);
                slot.and_then(|slot| store.appender.spot_of(slot))
            }
        });
        if let Some(old) = old.flatten() {
            let is_dirty = old.is_dirty && self.is_dirty();
            match old.fetch(&store.base, self.device).await {
                Fetched::Whole(chunk) => merged = merge(chunk, start, &bytes),
                // Nothing is joined. A cached part that the volume has, too, is dropped; a dirty part leaves a gap.
                Fetched::Moved | Fetched::Failed | Fetched::Damaged(_) => {}
            }
            if merged.is_none() && is_dirty && store.addresses.lock().is_dirty(address) {
                return Filled::Gap;
            }
        }
        let (start, bytes) = match merged {
            Some(chunk) => (chunk.start, Bytes::from(chunk.bytes)),
            None => (start, bytes),
        };
        let (fingerprint, sent) = store.fingerprints.compute(start, &bytes).await;
        let filled = match self.find_duplicate(&fingerprint, start, bytes.len()).await {
            Some(filled) => filled,
            None => self.append(&fingerprint, start, &bytes, sent.as_ref()),
        };
        let counters = &store.counters;
        match filled {
            Filled::Stored => add(&counters.stored_bytes, bytes.len() as u64),
            Filled::Duplicate => add(&counters.duplicates, 1),
            Filled::Late => add(&counters.refused_late, 1),
            Filled::NoRoom => add(&counters.refused_no_room, 1),
            Filled::Gap => unreachable!("found before"),
        }
        filled
    }

    /// Maps the chunk to an equal content that is cached already; `None` if there is none. Reads the headers of candidates.
    async fn find_duplicate(&self, fingerprint: &Fingerprint, start: u32, len: usize) -> Option<Filled> {
        let store = self.store;
        for place in store.fingerprints.candidates(fingerprint) {
            let Some(spot) = store.appender.spot(place) else {
                continue;
            };
            let Some(header) = spot.fetch_header(&store.base, self.device).await else {
                let _mapped = store.addresses.lock();
                if store.appender.sequence(spot.place.block) == spot.sequence {
                    store.fingerprints.lock().remove(fingerprint.hash(), spot.place);
                }
                continue;
            };
            if header.fingerprint != *fingerprint || header.start != start || header.len as usize != len {
                continue;
            }
            let mut mapped = store.addresses.lock();
            if !self.is_current(&mapped) {
                return Some(Filled::Late);
            }
            if !store.appender.is_source(spot.place.block, spot.sequence) {
                continue;
            }
            if (mapped.index.get(self.address)).is_some_and(|slot| slot.place == spot.place) {
                // The content does not change. If the mapping is clean, the volume has it.
                mapped.index.touch(self.address);
                return Some(Filled::Duplicate);
            }
            let (slot, version) = (self.slot(spot.place), mapped.next_version());
            let has_room = mapped.index.has_room(self.address)
                && store.appender.reference(slot, version, store.room.spare);
            if !has_room {
                return Some(Filled::NoRoom);
            }
            self.map(&mut mapped, slot);
            return Some(Filled::Duplicate);
        }
        None
    }

    /// The mapping of the chunk to a place.
    fn slot(&self, place: Place) -> Slot {
        Slot {
            address: self.address,
            place,
            is_dirty: self.is_dirty(),
        }
    }

    fn map(&self, mapped: &mut Mapped, slot: Slot) {
        let evicted = mapped.index.insert(slot.address, slot.place, slot.is_dirty);
        add(&self.store.counters.evicted_mappings, evicted.is_some().into());
    }

    /// Stores a content, and maps the chunk to it.
    fn append(&self, fingerprint: &Fingerprint, start: u32, bytes: &[u8], sent: Option<&Sent>) -> Filled {
        let store = self.store;
        let append = |coded: &Coded<'_>| {
            let mut header = Header {
                data_crc: coded.crc,
                sequence: 0,
                address: self.address,
                version: 0,
                fingerprint: *fingerprint,
                number: 0,
                start,
                len: bytes.len() as u32,
                stored_len: coded.stored.len() as u32,
                coding: coded.coding,
                spare_units: 0,
                is_dirty: self.is_dirty(),
            };
            let mut mapped = store.addresses.lock();
            if !self.is_current(&mapped) {
                return Filled::Late;
            }
            if !mapped.index.has_room(self.address) {
                return Filled::NoRoom;
            }
            header.version = mapped.next_version();
            let hash = fingerprint.hash();
            let old = mapped.index.get(self.address).filter(|_| self.is_dirty());
            let absorbed = old.and_then(|slot| {
                let old_hash = store.appender.absorb(header, coded.stored, slot.place)?;
                Some((slot.place, old_hash))
            });
            let place = match absorbed {
                Some((place, old_hash)) => {
                    // What was read of the older content is not to be taken for this one.
                    mapped.forget_copy(self.address);
                    store.fingerprints.lock().remove(old_hash, place);
                    add(&store.counters.absorbed_contents, 1);
                    Some(place)
                }
                None => store.appender.content(header, coded.stored, store.room.spare),
            };
            let Some(place) = place else {
                return Filled::NoRoom;
            };
            store.fingerprints.lock().insert(hash, place);
            add(&store.counters.stored_contents, 1);
            add(&store.counters.stored_flash_bytes, header.piece_len() as u64);
            self.map(&mut mapped, self.slot(place));
            Filled::Stored
        };
        match sent {
            Some(sent) => append(&sent.coded()),
            None => Coded::with(store.base.cache_id, bytes, append),
        }
    }
}

fn check_write(chunks: &Range<u64>, volume: u64) {
    let count = chunks.end.saturating_sub(chunks.start);
    assert!(count <= WRITE_CHUNKS_MAX && chunks.end <= volume, "{chunks:?}");
}

/// The most records that void chunks and mark their regions.
fn records_of(chunks: &Range<u64>, regions: &Range<usize>) -> u64 {
    (aligned(chunks.clone()).count() + regions.len()) as u64
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
