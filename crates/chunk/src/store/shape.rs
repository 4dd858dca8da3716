//! Settings that are fixed when a device is formatted.

use crate::TooWide;
use crate::fp::FpIndex;
use crate::lba::LbaIndex;
use crate::piece::{CHUNK_BYTES_MAX, piece_len};
use crate::place::{Place, PlaceBits};
use pumice_blocks::superblock::OWN_BYTES;
use pumice_blocks::{Geometry, OpenError};
use pumice_memory::SECTOR_BYTES;
use pumice_record::codec::Fields;

/// The smallest chunk.
const CHUNK_BYTES_MIN: u32 = 4 << 10;
/// A block has room in its numbering for contents of this part of a chunk; if contents are shorter, the block is closed early.
const SHORTEST_PART: u64 = 16;

/// Sizes of the volume, its chunks and the indexes. Fixed when a device is formatted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a chunk, a power of two from 4 to 128 KiB.
    pub chunk_bytes: u32,
    /// Chunks of the volume.
    pub chunks: u64,
    /// Slots of the LBA-index.
    pub mappings: u64,
    /// Slots of the FP-index.
    pub contents: u64,
    /// The most contents of a block.
    pub(crate) numbers: u32,
}

impl Shape {
    /// Settings for a device of this geometry.
    ///
    /// # Errors
    /// [`OpenError::Settings`], for settings that no store can have.
    pub fn new(
        geometry: &Geometry,
        chunk_bytes: u32,
        chunks: u64,
        mappings: u64,
        contents: u64,
    ) -> Result<Self, OpenError> {
        if !chunk_bytes.is_power_of_two() || !(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&chunk_bytes) {
            let what = format!("chunks of {chunk_bytes} bytes: give a power of two from 4 to 128 KiB");
            return Err(OpenError::Settings(what));
        }
        if geometry.block_bytes < 4 * u64::from(chunk_bytes) {
            let what = format!(
                "blocks of {} bytes hold fewer than four chunks of {chunk_bytes}: give a larger cache, or smaller chunks",
                geometry.block_bytes
            );
            return Err(OpenError::Settings(what));
        }
        let numbers = geometry.block_bytes / (u64::from(chunk_bytes) / SHORTEST_PART);
        let shape = Self {
            chunk_bytes,
            chunks,
            mappings,
            contents,
            numbers: u32::try_from(numbers).expect("blocks are at most 256 MiB"),
        };
        let too_wide = |error: TooWide| OpenError::Settings(error.to_string());
        shape.index_bytes(geometry).map_err(too_wide)?;
        Ok(shape)
    }

    pub(crate) fn place_bits(&self, geometry: &Geometry) -> PlaceBits {
        PlaceBits::new(geometry.blocks, self.numbers)
    }

    /// DRAM of the indexes of addresses and fingerprints, in bytes.
    ///
    /// # Errors
    /// [`TooWide`], if a slot would need more than 64 bits.
    pub fn index_bytes(&self, geometry: &Geometry) -> Result<[u64; 2], TooWide> {
        let place = self.place_bits(geometry);
        Ok([
            LbaIndex::dram_bytes_for(self.chunks, self.mappings, place)?,
            FpIndex::dram_bytes_for(self.contents, place)?,
        ])
    }

    /// The longest piece, in bytes.
    pub(crate) fn piece_max(&self) -> usize {
        piece_len(self.chunk_bytes as usize)
    }

    /// Whether a place lies within the device.
    pub(crate) fn has(&self, geometry: &Geometry, place: Place) -> bool {
        place.block < geometry.blocks && place.number < self.numbers
    }

    /// Blocks that a checkpoint takes, if contents have half a chunk or more on average.
    pub(crate) fn checkpoint_blocks(&self, geometry: &Geometry) -> usize {
        let indexes: u64 = self.index_bytes(geometry).map_or(0, |bytes| bytes.iter().sum());
        let halves = geometry.capacity / u64::from(self.chunk_bytes / 2);
        let rows = u64::from(geometry.blocks) * 32;
        // The stream is written in whole sectors, and a whole number of its parts fills a block: a sixteenth covers the rounding.
        let room = (geometry.block_bytes - SECTOR_BYTES as u64) / 16 * 15;
        (indexes + halves * 4 + rows).div_ceil(room) as usize
    }

    /// Its bytes in the superblock.
    pub(crate) fn encode(&self) -> [u8; OWN_BYTES] {
        let mut out = [0; OWN_BYTES];
        out[..4].copy_from_slice(&self.chunk_bytes.to_le_bytes());
        out[4..8].copy_from_slice(&self.numbers.to_le_bytes());
        out[8..16].copy_from_slice(&self.chunks.to_le_bytes());
        out[16..24].copy_from_slice(&self.mappings.to_le_bytes());
        out[24..32].copy_from_slice(&self.contents.to_le_bytes());
        out
    }

    /// Decodes the settings in a superblock.
    pub fn decode(bytes: &[u8; OWN_BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let (chunk_bytes, numbers) = (fields.u32()?, fields.u32()?);
        Some(Self {
            chunk_bytes,
            chunks: fields.u64()?,
            mappings: fields.u64()?,
            contents: fields.u64()?,
            numbers,
        })
    }
}
