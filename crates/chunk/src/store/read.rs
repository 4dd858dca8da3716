//! Reading a chunk.

use super::{ChunkStore, Spot};
use crate::content::{Fingerprint, decompress};
use crate::piece::{HEADER_BYTES, Header};
use crate::place::Place;
use pumice_device::{Device, SECTOR_BYTES};
use pumice_memory::Buffer;
use pumice_record::codec::checksum;
use std::ops::Range;

/// Most reads of a chunk, if reclaims move its content meanwhile.
const READS_MAX: usize = 3;

/// The cached part of a chunk, or all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Offset of the first byte in the chunk.
    pub start: u32,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Whether the volume lacks them.
    pub is_dirty: bool,
}

/// The only copy of a chunk cannot be read from the cache device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the newest content of a chunk is only on the cache device, and cannot be read there")]
pub struct Unreadable;

impl Chunk {
    /// The bytes `range` of the chunk; `None` if one of them is not cached.
    pub fn part(&self, range: Range<u32>) -> Option<&[u8]> {
        let start = range.start.checked_sub(self.start)?;
        let end = range.end.checked_sub(self.start)?;
        self.bytes.get(start as usize..end as usize)
    }

    /// Copies the cached bytes to `out`, which is the chunk from byte `start` on, where they overlap.
    pub fn lay_over(&self, start: u32, out: &mut [u8]) {
        let range = self.range();
        let first = range.start.max(start);
        let end = range.end.min(start + out.len() as u32);
        if first < end {
            let part = &self.bytes[(first - range.start) as usize..(end - range.start) as usize];
            out[(first - start) as usize..][..part.len()].copy_from_slice(part);
        }
    }

    /// The cached range of the chunk.
    pub fn range(&self) -> Range<u32> {
        self.start..self.start + self.bytes.len() as u32
    }
}

/// Outcome of a read.
pub(super) enum Fetched {
    Whole(Chunk),
    /// The block was reclaimed meanwhile.
    Moved,
    /// The device failed.
    Failed,
    /// A checksum is wrong; the fingerprint, if the header is whole.
    Damaged(Option<Fingerprint>),
}

impl<B: Buffer> ChunkStore<B> {
    /// Reads the cached part of a chunk, and makes its mapping the newest of its bucket. `None` if nothing is cached or the cache device
    /// fails: read the volume. Cost: a read of the sectors that the content touches, none while its block is in DRAM.
    ///
    /// # Errors
    /// [`Unreadable`]: the chunk is dirty, and the cache device fails.
    pub async fn read<D: Device<Buf = B>>(
        &self,
        device: &D,
        address: u64,
    ) -> Result<Option<Chunk>, Unreadable> {
        let mut is_dirty = false;
        for _ in 0..READS_MAX {
            let spot = {
                let mut maps = self.maps.lock();
                let slot = maps.lba.touch(address);
                slot.and_then(|slot| self.spot_of(&maps, slot))
            };
            let Some(spot) = spot else {
                self.count(&self.counters.misses);
                return Ok(None);
            };
            is_dirty = spot.is_dirty;
            match self.fetch(device, &spot).await {
                Fetched::Whole(chunk) => {
                    self.count(&self.counters.hits);
                    return Ok(Some(chunk));
                }
                Fetched::Moved => {}
                Fetched::Failed => break,
                Fetched::Damaged(fingerprint) => {
                    self.forget_damaged(address, &spot, fingerprint);
                    break;
                }
            }
        }
        self.count(&self.counters.unreadable);
        match is_dirty {
            true => Err(Unreadable),
            false => Ok(None),
        }
    }

    /// Makes the mapping of a chunk the newest of its bucket, as a read does, unless another thread has the lock: call it for reads that a
    /// tier above has served.
    pub fn touch(&self, address: u64) {
        if let Some(mut maps) = self.maps.try_lock() {
            maps.lba.touch(address);
        }
    }

    /// Reads a content, in one read of the sectors that it touches.
    pub(super) async fn fetch<D: Device<Buf = B>>(&self, device: &D, spot: &Spot<B>) -> Fetched {
        if let Some(open) = &spot.open {
            return self.take(&*open.buffer, spot.at, spot);
        }
        let (range, skipped) = sectors(spot.at, spot.len_max);
        let offset = self.base.geometry.block_offset(spot.place.block) + range.start as u64;
        let read = self.base.shared.read(device, offset, range.len()).await;
        if self.sequence(spot.place.block) != spot.sequence {
            return Fetched::Moved;
        }
        match read {
            Ok(buffer) => self.take(&buffer, skipped, spot),
            Err(_) => Fetched::Failed,
        }
    }

    /// Reads the header of a content, from one or two sectors.
    pub(super) async fn fetch_header<D: Device<Buf = B>>(
        &self,
        device: &D,
        spot: &Spot<B>,
    ) -> Option<Header> {
        if let Some(open) = &spot.open {
            return self.header(&*open.buffer, spot.at, spot);
        }
        let (range, skipped) = sectors(spot.at, HEADER_BYTES);
        let offset = self.base.geometry.block_offset(spot.place.block) + range.start as u64;
        let buffer = self.base.shared.read(device, offset, range.len()).await.ok()?;
        self.header(&buffer, skipped, spot)
    }

    /// Reads header and stored bytes of a content in a sealed block; `None` if either is damaged.
    pub(super) async fn fetch_stored<D: Device<Buf = B>>(
        &self,
        device: &D,
        spot: &Spot<B>,
    ) -> Option<(Header, Vec<u8>)> {
        let (range, skipped) = sectors(spot.at, spot.len_max);
        let offset = self.base.geometry.block_offset(spot.place.block) + range.start as u64;
        let buffer = self.base.shared.read(device, offset, range.len()).await.ok()?;
        let header = self.header(&buffer, skipped, spot)?;
        let stored = self.stored(&buffer, skipped, &header)?;
        Some((header, stored.to_vec()))
    }

    fn header(&self, buffer: &B, at: usize, spot: &Spot<B>) -> Option<Header> {
        let header = Header::decode(self.base.cache_id, buffer.bytes(at, HEADER_BYTES)?)?;
        let is_this = header.sequence == spot.sequence && header.number == spot.place.number;
        (is_this && header.piece_len() <= spot.len_max).then_some(header)
    }

    fn stored<'a>(&self, buffer: &'a B, at: usize, header: &Header) -> Option<&'a [u8]> {
        let stored = buffer.bytes(at + HEADER_BYTES, header.stored_len as usize)?;
        (checksum(self.base.cache_id, &[stored]) == header.data_crc).then_some(stored)
    }

    fn take(&self, buffer: &B, at: usize, spot: &Spot<B>) -> Fetched {
        let Some(header) = self.header(buffer, at, spot) else {
            return Fetched::Damaged(None);
        };
        let stored = self.stored(buffer, at, &header);
        let bytes = stored.and_then(|stored| decompress(header.coding, stored, header.len as usize));
        match bytes {
            Some(bytes) => Fetched::Whole(Chunk {
                start: header.start,
                bytes,
                is_dirty: spot.is_dirty,
            }),
            None => Fetched::Damaged(Some(header.fingerprint)),
        }
    }

    /// Removes the mapping that was read, unless it is dirty, and the fingerprint of a damaged content. Other mappings to it go when they
    /// are read.
    fn forget_damaged(&self, address: u64, spot: &Spot<B>, fingerprint: Option<Fingerprint>) {
        let mut maps = self.maps.lock();
        if self.sequence(spot.place.block) != spot.sequence {
            return;
        }
        let slot = maps.lba.get(address).filter(|slot| slot.place == spot.place);
        if slot.is_some_and(|slot| !slot.is_dirty) {
            maps.lba.remove(address);
        }
        if let Some(fingerprint) = fingerprint {
            maps.fp.remove(fingerprint.hash(), spot.place);
        }
    }

    /// Removes a place from the FP-index whose header cannot be read.
    pub(super) fn forget_candidate(&self, fingerprint: &Fingerprint, place: Place, sequence: u64) {
        let mut maps = self.maps.lock();
        if self.sequence(place.block) == sequence {
            maps.fp.remove(fingerprint.hash(), place);
        }
    }
}

/// The sectors that `len` bytes at `at` of a block touch, as a range of the block, and the offset of the bytes in them.
pub(super) fn sectors(at: usize, len: usize) -> (Range<usize>, usize) {
    let start = at / SECTOR_BYTES * SECTOR_BYTES;
    (start..(at + len).next_multiple_of(SECTOR_BYTES), at - start)
}
