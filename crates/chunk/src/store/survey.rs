//! What a start would find on a device.

use super::ChunkStore;
use super::image::Image;
use super::open::{STORE, shape_of};
use super::read::{Spot, sectors, stored};
use super::shape::{Owned, Shape};
use crate::content::decompress;
use pumice_blocks::inspect::Inspection;
use pumice_blocks::open::{read_superblock, read_twice};
use pumice_blocks::recovery::Recovery;
use pumice_blocks::{Old, OpenError, Superblock};
use pumice_device::Device;
use pumice_memory::Buffer;
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
        let mut recovery = Recovery::new(device, superblock);
        let mut image = Image::new(shape, &superblock.geometry, superblock.cache_id)?;
        let found = match image.find(&mut recovery, volume, 0, boot).await {
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
            .map(|(block, sequence, _)| (*block, *sequence))
            .collect();
        let mut slots = Vec::new();
        for bucket in 0..self.lba.buckets() {
            self.lba.visit(bucket, |_| true, |slot, _| slots.push(slot));
        }
        slots.sort_unstable_by_key(|slot| (slot.place.block, slot.place.number, slot.address));
        for same in slots.chunk_by(|one, other| one.place == other.place) {
            let place = same[0].place;
            let block_bytes = superblock.geometry.block_bytes;
            let starts = self.starts.get(place.block as usize);
            let extent =
                starts.and_then(|starts| starts.extent(place.number, block_bytes, self.shape.piece_max()));
            let (at, len_max) = extent.unwrap_or((0, 0));
            let spot = Spot {
                place,
                is_dirty: false,
                // No block has this one.
                sequence: sequences.get(&place.block).copied().unwrap_or(0),
                at,
                len_max,
                open: None,
            };
            let offset = superblock.geometry.block_offset(place.block) + at as u64;
            let what = match len_max {
                0 => Some("it has no place"),
                _ => wrong(device, superblock, &spot).await,
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
}

/// What is wrong with a content.
async fn wrong<D: Device>(device: &D, superblock: &Superblock, spot: &Spot<D::Buf>) -> Option<&'static str> {
    let block = superblock.geometry.block_offset(spot.place.block);
    let (range, at) = sectors(spot.at, spot.len_max);
    let Ok(buffer) = read_twice(device, block + range.start as u64, range.len()).await else {
        return Some("it cannot be read");
    };
    let Some(header) = spot.header(superblock.cache_id, &buffer, at) else {
        return Some("its header is damaged, or another content's");
    };
    let Some(stored) = stored(superblock.cache_id, &buffer, at, &header) else {
        return Some("its bytes are damaged");
    };
    match decompress(header.coding, stored, header.len as usize) {
        Some(_) => None,
        None => Some("it has another length than its header says"),
    }
}
