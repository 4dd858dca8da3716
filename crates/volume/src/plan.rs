//! Sizes of a cache: of its chunks, blocks and indexes, and of the DRAM that they take.

use pumice_admit::Rule;
use pumice_blocks::Geometry;
use pumice_chunk::store::Shape;
use std::fmt;

/// Block buffers of a cache: for blocks that are filled, written, and filled by a reclaim.
const BUFFERS: u64 = 8;
/// Addresses in the index for each chunk that fits the cache uncompressed. More than one: contents are shared and compressed.
const MAPPINGS_PER_CHUNK: u64 = 4;
/// Bytes of a ghost for each of these addresses.
const GHOST_BYTES: u64 = 2;
/// Contents in the index for ten chunks that fit the cache uncompressed: contents compressed to half, and a tenth more.
const CONTENTS_PER_TEN_CHUNKS: u64 = 22;

/// Sizes of a cache and of its DRAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachePlan {
    /// Bytes of the cache device that are used.
    pub capacity: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Block buffers.
    pub buffers: usize,
    /// Slots of the LBA-index.
    pub mappings: u64,
    /// Slots of the FP-index.
    pub contents: u64,
    /// DRAM of the index, in bytes.
    pub index_bytes: u64,
    /// DRAM for what a rule of admission remembers, in bytes.
    pub ghost_bytes: u64,
    /// DRAM for chunks that were read lately, in bytes.
    pub dram_bytes: u64,
    /// DRAM for what is read ahead, in bytes.
    pub read_ahead_bytes: u64,
}

impl CachePlan {
    /// DRAM that the cache takes whatever is in it, in bytes.
    pub fn fixed_bytes(&self) -> u64 {
        self.index_bytes + self.ghost_bytes + self.buffers as u64 * self.block_bytes
    }
}

/// Why there is no plan of a cache.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PlanError(String);

impl PlanError {
    fn of(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// Input for the plan of a cache.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Bytes of the backing device.
    pub backing_bytes: u64,
    /// Bytes of the cache device.
    pub capacity: u64,
    /// The chunk size given, or that of the cache on the device.
    pub chunk_bytes: Option<u32>,
    /// The block size of the cache on the device.
    pub block_bytes: Option<u64>,
    /// Which chunks enter the cache.
    pub rule: Rule,
}

impl Wanted {
    /// Plans a cache with chunks of this size; all block buffers together have `buffer_bytes`.
    fn plan(&self, chunk_bytes: u32, buffer_bytes: u64) -> Result<CachePlan, PlanError> {
        let chunk = u64::from(chunk_bytes);
        let block_bytes = self.block_bytes.unwrap_or_else(|| {
            Geometry::block_bytes_for(self.capacity, (64 << 10).max(4 * chunk), BUFFERS, buffer_bytes)
        });
        let geometry = Geometry::plan(self.capacity, block_bytes).map_err(PlanError::of)?;
        let chunks = self.backing_bytes.div_ceil(chunk);
        let held = (self.capacity / chunk).max(1);
        let mappings = (held * MAPPINGS_PER_CHUNK).min(chunks);
        let contents = held * CONTENTS_PER_TEN_CHUNKS / 10;
        let shape = Shape::new(&geometry, chunk_bytes, chunks, mappings, contents);
        let shape = shape.map_err(PlanError::of)?;
        let index = shape.index_bytes(&geometry).map_err(PlanError::of)?;
        Ok(CachePlan {
            capacity: geometry.capacity,
            chunk_bytes,
            block_bytes,
            buffers: BUFFERS as usize,
            mappings,
            contents,
            index_bytes: index.iter().sum(),
            ghost_bytes: match self.rule {
                Rule::SecondHit => mappings * GHOST_BYTES,
                Rule::All | Rule::Random(_) => 0,
            },
            dram_bytes: 0,
            read_ahead_bytes: 0,
        })
    }

    /// Plans with the chunk size given, else with the smallest whose index fits `index_bytes`, else with the largest.
    ///
    /// # Errors
    /// The device is too small for its blocks, or has more than an index can name.
    pub fn choose(&self, index_bytes: u64, buffer_bytes: u64) -> Result<CachePlan, PlanError> {
        if let Some(chunk_bytes) = self.chunk_bytes {
            return self.plan(chunk_bytes, buffer_bytes);
        }
        let mut last = self.plan(1 << 12, buffer_bytes);
        for bits in 13..=17 {
            if last.as_ref().is_ok_and(|plan| plan.index_bytes <= index_bytes) {
                break;
            }
            last = self.plan(1 << bits, buffer_bytes);
        }
        last
    }
}
