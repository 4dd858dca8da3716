//! Settings that are fixed when a device is formatted.

use super::regions::Regions;
use super::starts::Starts;
use crate::TooWide;
use crate::fp::FpIndex;
use crate::lba::LbaIndex;
use crate::piece::{CHUNK_BYTES_MAX, piece_len};
use crate::place::{Place, PlaceBits};
use pumice_blocks::superblock::OWN_BYTES;
use pumice_blocks::{BudgetLevel, Geometry, OpenError};
use pumice_memory::SECTOR_BYTES;
use pumice_record::codec::Fields;

/// The smallest chunk.
const CHUNK_BYTES_MIN: u32 = 4 << 10;
/// A block has at most this many contents for each chunk that it could hold as it is; with so many it is closed, full or not. So what
/// their offsets take, in DRAM and in a checkpoint, has a bound.
const CONTENTS_PER_CHUNK: u64 = 4;
/// Bytes of a checkpoint's head, and of the fields and lengths before its lists.
const CHECKPOINT_HEAD_BYTES: u64 = 64;
/// What a checkpoint has for each block beside its offsets, in bytes: a row of its head, number and length of the list.
const CHECKPOINT_ROW_BYTES: u64 = 32;
/// What it has for each offset, and for each marked region, in bytes.
const CHECKPOINT_WORD_BYTES: u64 = 4;

/// Most bytes that a reclaim keeps, in hundredths of its victims' bytes, without references. With 30, blocks of 16 chunks wrote 1.501 bytes
/// for each compressed new byte; with 20, a cache as large as its volume lost a point of hits.
pub(super) const KEPT_PERCENT: u64 = 29;
/// Room for the references of what is kept, in hundredths of the victims' bytes.
const REFERENCES_PERCENT: u64 = 5;

/// Numbers of blocks that follow from a shape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Blocks of one reclaim.
    pub(super) batch: usize,
    /// Blocks of a checkpoint, which stay free for it.
    pub(super) checkpoint: usize,
    /// Blocks that fills leave free: for a checkpoint, and for what one reclaim keeps, and after that for its references.
    pub(super) spare: usize,
}

impl Room {
    pub(super) fn of(shape: &Shape, geometry: &Geometry) -> Self {
        let batch = (geometry.blocks as usize / 100).max(1);
        let checkpoint = shape.checkpoint_blocks(geometry);
        let moved = (batch * (KEPT_PERCENT + REFERENCES_PERCENT) as usize).div_ceil(100);
        Self {
            batch,
            checkpoint,
            spare: checkpoint + moved,
        }
    }
}

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
        let numbers = geometry.block_bytes / u64::from(chunk_bytes) * CONTENTS_PER_CHUNK;
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

    /// DRAM of the indexes, in bytes: of addresses, of fingerprints, and, at most, of where contents begin.
    ///
    /// # Errors
    /// [`TooWide`], if a slot would need more than 64 bits.
    pub fn index_bytes(&self, geometry: &Geometry) -> Result<[u64; 3], TooWide> {
        let place = self.place_bits(geometry);
        Ok([
            LbaIndex::dram_bytes_for(self.chunks, self.mappings, place)?,
            FpIndex::dram_bytes_for(self.contents, place)?,
            Starts::dram_bytes_max(geometry, self.numbers),
        ])
    }

    /// The longest piece, in bytes.
    pub fn piece_max(&self) -> usize {
        piece_len(self.chunk_bytes as usize)
    }

    /// Whether a place lies within the device.
    pub(crate) fn has(&self, geometry: &Geometry, place: Place) -> bool {
        place.block < geometry.blocks && place.number < self.numbers
    }

    /// Blocks that a checkpoint takes at most, whatever is cached.
    pub fn checkpoint_blocks(&self, geometry: &Geometry) -> usize {
        let indexes = self.index_bytes(geometry);
        let indexes = indexes.map_or(0, |[addresses, fingerprints, _]| addresses + fingerprints);
        let of_block = CHECKPOINT_ROW_BYTES + u64::from(self.numbers) * CHECKPOINT_WORD_BYTES;
        let blocks = u64::from(geometry.blocks) * of_block;
        let regions = Regions::count(self.chunks) * CHECKPOINT_WORD_BYTES;
        // The stream is written in whole sectors, and a whole number of its parts fills a block: a sixteenth covers the rounding.
        let room = (geometry.block_bytes - SECTOR_BYTES as u64) / 16 * 15;
        (CHECKPOINT_HEAD_BYTES + indexes + blocks + regions).div_ceil(room) as usize
    }

    /// Whether settings of a superblock are in the range of other arithmetic: a volume has fewer than 2^64 bytes, and a slot takes more than
    /// one byte of the device.
    pub(crate) fn is_possible(&self, geometry: &Geometry) -> bool {
        let size = self.chunks.checked_mul(self.chunk_bytes.into());
        size.is_some() && self.mappings.min(self.chunks).max(self.contents) <= geometry.capacity
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

/// The store's fields of the superblock, beside the rest of the shape.
pub(super) struct Owned {
    pub(super) chunks: u64,
    pub(super) volume: u64,
    pub(super) boot: u64,
    /// Whether chunks may be dirty.
    pub(super) keeps: bool,
    /// What the write budget had left.
    pub(super) budget: BudgetLevel,
}

impl Owned {
    /// Offsets behind the shape.
    const VOLUME: usize = 32;
    pub(super) const BOOT: usize = 40;
    pub(super) const KEEPS: usize = 48;
    pub(super) const BUDGET: usize = 52;

    pub(super) fn decode(own: &[u8; OWN_BYTES]) -> Self {
        let word = |at: usize| {
            own[at..]
                .first_chunk()
                .map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        Self {
            chunks: Shape::decode(own).map_or(0, |shape| shape.chunks),
            volume: word(Self::VOLUME),
            boot: word(Self::BOOT),
            keeps: own[Self::KEEPS] != 0,
            budget: BudgetLevel::get(own, Self::BUDGET),
        }
    }

    pub(super) fn encode(&self, shape: &Shape) -> [u8; OWN_BYTES] {
        let mut own = shape.encode();
        own[Self::VOLUME..][..8].copy_from_slice(&self.volume.to_le_bytes());
        own[Self::BOOT..][..8].copy_from_slice(&self.boot.to_le_bytes());
        own[Self::KEEPS] = self.keeps.into();
        self.budget.put(&mut own, Self::BUDGET);
        own
    }
}
