//! Reading a chunk.

use super::ChunkStore;
use super::owner::{Base, Open};
use crate::content::{Fingerprint, decompress};
use crate::piece::{HEADER_BYTES, Header};
use crate::place::Place;
use pumice_blocks::add;
use pumice_device::{Device, SECTOR_BYTES};
use pumice_memory::Buffer;
use pumice_record::codec::checksum;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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

/// A place resolved to bytes of its block. Valid while the block has this sequence.
pub(super) struct Spot<B: Buffer> {
    pub(super) place: Place,
    /// Whether the mapping that led here is dirty.
    pub(super) is_dirty: bool,
    /// Sequence of the block.
    pub(super) sequence: u64,
    /// Offset of the piece in the block, in bytes.
    pub(super) at: usize,
    /// Upper bound of the piece's length, in bytes.
    pub(super) len_max: usize,
    /// The block, while it is in DRAM.
    pub(super) open: Option<Arc<Open<B>>>,
}

impl<B: Buffer> Spot<B> {
    /// Reads the content, in one read of the sectors that it touches.
    pub(super) async fn fetch<D: Device<Buf = B>>(&self, base: &Base<B>, device: &D) -> Fetched {
        if let Some(open) = &self.open {
            return self.take(base.cache_id, &*open.buffer, self.at);
        }
        let read = self.read(base, device, self.len_max).await;
        let sequence = &base.blocks[self.place.block as usize].sequence;
        if sequence.load(Ordering::Acquire) != self.sequence {
            return Fetched::Moved;
        }
        match read {
            Ok((buffer, at)) => self.take(base.cache_id, &buffer, at),
            Err(_) => Fetched::Failed,
        }
    }

    /// Reads the header of the content, from one or two sectors.
    pub(super) async fn fetch_header<D: Device<Buf = B>>(
        &self,
        base: &Base<B>,
        device: &D,
    ) -> Option<Header> {
        if let Some(open) = &self.open {
            return self.header(base.cache_id, &*open.buffer, self.at);
        }
        let (buffer, at) = self.read(base, device, HEADER_BYTES).await.ok()?;
        self.header(base.cache_id, &buffer, at)
    }

    /// Reads header and stored bytes of a content in a sealed block; `None` if either is damaged.
    pub(super) async fn fetch_stored<D: Device<Buf = B>>(
        &self,
        base: &Base<B>,
        device: &D,
    ) -> Option<(Header, Vec<u8>)> {
        let (buffer, at) = self.read(base, device, self.len_max).await.ok()?;
        let header = self.header(base.cache_id, &buffer, at)?;
        let stored = stored(base.cache_id, &buffer, at, &header)?;
        Some((header, stored.to_vec()))
    }

    /// Reads the sectors of its first `len` bytes. Returns the offset of the first there, too.
    async fn read<D: Device<Buf = B>>(
        &self,
        base: &Base<B>,
        device: &D,
        len: usize,
    ) -> io::Result<(B, usize)> {
        let (range, skipped) = sectors(self.at, len);
        let offset = base.geometry.block_offset(self.place.block) + range.start as u64;
        let buffer = base.shared.read(device, offset, range.len()).await?;
        Ok((buffer, skipped))
    }

    /// The content's header at a position of a buffer; `None` if it is damaged, or another content's.
    pub(super) fn header(&self, cache_id: u64, buffer: &B, at: usize) -> Option<Header> {
        let header = Header::decode(cache_id, buffer.bytes(at, HEADER_BYTES)?)?;
        let is_this = header.sequence == self.sequence && header.number == self.place.number;
        (is_this && header.piece_len() <= self.len_max).then_some(header)
    }

    fn take(&self, cache_id: u64, buffer: &B, at: usize) -> Fetched {
        let Some(header) = self.header(cache_id, buffer, at) else {
            return Fetched::Damaged(None);
        };
        let stored = stored(cache_id, buffer, at, &header);
        let bytes = stored.and_then(|stored| decompress(header.coding, stored, header.len as usize));
        match bytes {
            Some(bytes) => Fetched::Whole(Chunk {
                start: header.start,
                bytes,
                is_dirty: self.is_dirty,
            }),
            None => Fetched::Damaged(Some(header.fingerprint)),
        }
    }
}

/// The stored bytes of a content whose header stands at a position of a buffer; `None` if they are damaged.
pub(super) fn stored<'a, B: Buffer>(
    cache_id: u64,
    buffer: &'a B,
    at: usize,
    header: &Header,
) -> Option<&'a [u8]> {
    let stored = buffer.bytes(at + HEADER_BYTES, header.stored_len as usize)?;
    (checksum(cache_id, &[stored]) == header.data_crc).then_some(stored)
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
                let mut mapped = self.addresses.lock();
                let slot = mapped.index.touch(address);
                slot.and_then(|slot| self.appender.spot_of(slot))
            };
            let Some(spot) = spot else {
                add(&self.counters.misses, 1);
                return Ok(None);
            };
            is_dirty = spot.is_dirty;
            match spot.fetch(&self.base, device).await {
                Fetched::Whole(chunk) => {
                    add(&self.counters.hits, 1);
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
        add(&self.counters.unreadable, 1);
        match is_dirty {
            true => Err(Unreadable),
            false => Ok(None),
        }
    }

    /// Removes the mapping that was read, unless it is dirty, and the fingerprint of a damaged content. Other mappings to it go when they
    /// are read.
    fn forget_damaged(&self, address: u64, spot: &Spot<B>, fingerprint: Option<Fingerprint>) {
        let mut mapped = self.addresses.lock();
        if self.appender.sequence(spot.place.block) != spot.sequence {
            return;
        }
        let slot = mapped.index.get(address).filter(|slot| slot.place == spot.place);
        if slot.is_some_and(|slot| !slot.is_dirty) {
            mapped.index.remove(address);
        }
        if let Some(fingerprint) = fingerprint {
            self.fingerprints.lock().remove(fingerprint.hash(), spot.place);
        }
    }
}

/// The sectors that `len` bytes at `at` of a block touch, as a range of the block, and the offset of the bytes in them.
pub(super) fn sectors(at: usize, len: usize) -> (Range<usize>, usize) {
    let start = at / SECTOR_BYTES * SECTOR_BYTES;
    (start..(at + len).next_multiple_of(SECTOR_BYTES), at - start)
}
