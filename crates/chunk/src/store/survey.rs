//! What a start would find on a device.

use super::image::{Image, Old};
use super::open::{Options, Owned, STORE, shape_of};
use super::read::sectors;
use super::{ChunkStore, Shape};
use crate::content::decompress;
use crate::piece::{HEADER_BYTES, Header, UNIT_BYTES};
use crate::place::Place;
use pumice_blocks::inspect::Inspection;
use pumice_blocks::open::{read_superblock, read_twice};
use pumice_blocks::recovery::Recovery;
use pumice_blocks::{Durability, Maker, OpenError, Superblock};
use pumice_device::Device;
use pumice_memory::Buffer;
use pumice_record::codec::checksum;
use std::collections::HashMap;

/// What is on a device.
pub struct Survey {
    /// The superblock that counts.
    pub superblock: Superblock,
    /// Sizes of the volume, its chunks and the indexes.
    pub shape: Shape,
    /// Identity of the volume.
    pub volume: u64,
    /// Whether chunks may be dirty, so that a start empties nothing.
    pub keeps: bool,
    /// What must not be.
    pub inspection: Inspection,
    /// The contents that a start would find. Or the reason for which a start would be refused if chunks may be dirty, and would forget all contents
    /// if none may be.
    pub found: Result<Cached, &'static str>,
}

/// What a start would have of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cached {
    /// Chunks.
    pub chunks: u64,
    /// Dirty ones of these.
    pub dirty: u64,
}

/// A chunk whose content is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagedChunk {
    /// Its address.
    pub address: u64,
    /// Whether the volume lacks the content.
    pub is_dirty: bool,
    /// Where the content begins on the device, in bytes.
    pub offset: u64,
    /// What is wrong.
    pub what: &'static str,
}

impl<B: Buffer> ChunkStore<B> {
    /// Does what a start in the run `boot` of the machine would do, to tell what it would find; `None` if the device is empty. It writes
    /// footers that a crash left out, and log records that it mends, so give it a handle that keeps writes to itself. `damaged` is shown each chunk whose content is damaged;
    /// without it contents are not read. DRAM: that of [`ChunkStore::inspect`]; with `damaged` also 32 bytes for each chunk.
    ///
    /// # Errors
    /// As [`ChunkStore::inspect`].
    pub async fn survey<D: Device<Buf = B>>(
        device: &D,
        boot: u64,
        damaged: Option<&mut dyn FnMut(DamagedChunk)>,
    ) -> Result<Option<Survey>, OpenError> {
        let Some(inspection) = Self::inspect(device).await? else {
            return Ok(None);
        };
        let Some(superblock) = read_superblock(device, STORE)? else {
            return Ok(None);
        };
        let shape = shape_of(&superblock)?;
        let Owned { volume, keeps, .. } = Owned::decode(&superblock.own);
        let options = Options {
            chunk_bytes: shape.chunk_bytes,
            chunks: shape.chunks,
            volume,
            modified: 0,
            boot,
            mappings: shape.mappings,
            contents: shape.contents,
            block_bytes: superblock.geometry.block_bytes,
            buffers_max: 0,
            durability: Durability::Power,
            reformat: false,
            maker: Maker::Serve,
            random: 0,
            now: 0,
            write_back: keeps,
            absence_secs_max: None,
        };
        let mut recovery = Recovery::new(device, superblock);
        let mut image = Image::new(shape, &superblock.geometry, superblock.cache_id)?;
        let found = match image.find(&mut recovery, &options).await {
            Ok(old) => {
                if let Some(damaged) = damaged {
                    image.verify(device, &superblock, &old, damaged).await;
                }
                let (chunks, dirty) = (image.lba.len(), image.lba.dirty());
                Ok(Cached { chunks, dirty })
            }
            Err(why) => Err(why),
        };
        Ok(Some(Survey {
            superblock,
            shape,
            volume,
            keeps,
            inspection,
            found,
        }))
    }
}

impl Image {
    /// Reads each content to which a chunk is mapped, in order of places.
    async fn verify<D: Device>(
        &self,
        device: &D,
        superblock: &Superblock,
        old: &Old,
        damaged: &mut dyn FnMut(DamagedChunk),
    ) {
        let sequences: HashMap<u32, u64> = (old.sealed.iter())
            .map(|(sequence, (block, _))| (*block, *sequence))
            .collect();
        let mut slots = Vec::new();
        for bucket in 0..self.lba.buckets() {
            self.lba.visit(bucket, |_| true, |slot, _| slots.push(slot));
        }
        slots.sort_unstable_by_key(|slot| (slot.place.block, slot.place.number, slot.address));
        for same in slots.chunk_by(|one, other| one.place == other.place) {
            let place = same[0].place;
            let (at, len) = self.extent(superblock, place).unwrap_or((0, 0));
            let offset = superblock.geometry.block_offset(place.block) + at as u64;
            let sequence = sequences.get(&place.block).copied();
            let what = match len {
                0 => Some("it has no place"),
                _ => wrong(device, superblock, offset, len, place, sequence).await,
            };
            let Some(what) = what else { continue };
            for slot in same {
                damaged(DamagedChunk {
                    address: slot.address,
                    is_dirty: slot.is_dirty,
                    offset,
                    what,
                });
            }
        }
    }

    /// Offset of a content in its block, and the most bytes that it may have.
    fn extent(&self, superblock: &Superblock, place: Place) -> Option<(usize, usize)> {
        let starts = self.starts.get(place.block as usize)?;
        let start = starts.get(place.number)? as usize * UNIT_BYTES;
        let end = starts.get(place.number + 1).map_or_else(
            || usize::try_from(superblock.geometry.block_bytes).ok(),
            |end| Some(end as usize * UNIT_BYTES),
        )?;
        Some((start, end.checked_sub(start)?.min(self.shape.piece_max())))
    }
}

/// What is wrong with the content at byte `offset` of a device.
async fn wrong<D: Device>(
    device: &D,
    superblock: &Superblock,
    offset: u64,
    len: usize,
    place: Place,
    sequence: Option<u64>,
) -> Option<&'static str> {
    let block = superblock.geometry.block_offset(place.block);
    let (range, skipped) = sectors((offset - block) as usize, len);
    let Ok(buffer) = read_twice(device, block + range.start as u64, range.len()).await else {
        return Some("it cannot be read");
    };
    let header = (buffer.bytes(skipped, HEADER_BYTES))
        .and_then(|bytes| Header::decode(superblock.cache_id, bytes))
        .filter(|header| Some(header.sequence) == sequence && header.number == place.number)
        .filter(|header| header.piece_len() <= len);
    let Some(header) = header else {
        return Some("its header is damaged, or another content's");
    };
    let stored = (buffer.bytes(skipped + HEADER_BYTES, header.stored_len as usize))
        .filter(|stored| checksum(superblock.cache_id, &[stored]) == header.data_crc);
    let Some(stored) = stored else {
        return Some("its bytes are damaged");
    };
    match decompress(header.coding, stored, header.len as usize) {
        Some(_) => None,
        None => Some("it has another length than its header says"),
    }
}
