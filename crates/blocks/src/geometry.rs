//! How a device is divided: superblocks, log, blocks.

use pumice_memory::SECTOR_BYTES;

/// Bytes before the log: two superblock slots, each in its own sector.
pub const SUPERBLOCKS_BYTES: u64 = 2 * SECTOR_BYTES as u64;
/// Bytes of a log record.
pub const LOG_RECORD_BYTES: u64 = 32;
/// The smallest block, in bytes; `serve` uses none below 1 MiB.
pub const BLOCK_BYTES_MIN: u64 = 64 << 10;
/// The largest block, in bytes.
pub const BLOCK_BYTES_MAX: u64 = 256 << 20;
/// Blocks from 1 MiB on are at most this part of the device, so that the order of blocks is fine.
const BLOCKS_WANTED: u64 = 1024;
/// Smaller ones waste much of their end, so there may be as few as 512 of them, and what superblocks and log take.
const SMALL_BLOCKS_WANTED: u64 = 520;
/// The fewest blocks: one active, two reserved, two for checkpoints, and a queue worth its name.
pub const BLOCKS_MIN: u64 = 8;

/// A device cannot be divided as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// Too few bytes.
    #[error(
        "{given} bytes of flash are too few: with blocks of {block_bytes} bytes at least {min} bytes are needed"
    )]
    TooSmall {
        /// Bytes that were given.
        given: u64,
        /// Block size in bytes.
        block_bytes: u64,
        /// Bytes that are needed.
        min: u64,
    },
    /// Not a power of two, or out of range.
    #[error("block size {0} bytes is not a power of two between 64 KiB and 256 MiB")]
    BlockSize(u64),
}

/// The division of a device; stored in the superblock, never changed but by reformatting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of the device that are used.
    pub capacity: u64,
    /// Bytes of a block, a power of two.
    pub block_bytes: u64,
    /// Number of blocks.
    pub blocks: u32,
    /// Blocks kept free for what is about to be written.
    pub reserved: u32,
    /// Where the log starts, in bytes.
    pub log_offset: u64,
    /// Records that fit the log.
    pub log_slots: u64,
    /// Where block 0 starts, in bytes.
    pub data_offset: u64,
}

impl Geometry {
    /// The block size for a device of `capacity` bytes: the largest power of two of which there are 1,024, or 512 below 1 MiB,
    /// within `min` and 256 MiB, halved until `buffers` blocks fit `buffer_bytes`, but not below `min`.
    pub fn block_bytes_for(capacity: u64, min: u64, buffers: u64, buffer_bytes: u64) -> u64 {
        let power_of_two = |bytes: u64| 1 << (63 - bytes.max(1).leading_zeros());
        let small = power_of_two(capacity / SMALL_BLOCKS_WANTED).min(1 << 20);
        let mut block = power_of_two((capacity / BLOCKS_WANTED).min(BLOCK_BYTES_MAX)).max(small);
        while block > min && block * buffers > buffer_bytes {
            block /= 2;
        }
        block.max(min)
    }

    /// Divides `capacity` bytes.
    ///
    /// # Errors
    /// [`GeometryError`], naming the smallest size that would do.
    pub fn plan(capacity: u64, block_bytes: u64) -> Result<Self, GeometryError> {
        if !block_bytes.is_power_of_two() || !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&block_bytes) {
            return Err(GeometryError::BlockSize(block_bytes));
        }
        let used = capacity / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
        let log_bytes = (used / 128).clamp(16 << 10, 64 << 20) / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
        let data_offset = SUPERBLOCKS_BYTES + log_bytes;
        let blocks = used.saturating_sub(data_offset) / block_bytes;
        if blocks < BLOCKS_MIN {
            return Err(GeometryError::TooSmall {
                given: capacity,
                block_bytes,
                min: Self::min_capacity(block_bytes),
            });
        }
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX - 1);
        Ok(Self {
            capacity: used,
            block_bytes,
            blocks,
            reserved: (blocks / 100).max(2),
            log_offset: SUPERBLOCKS_BYTES,
            log_slots: log_bytes / LOG_RECORD_BYTES,
            data_offset,
        })
    }

    /// The smallest device for blocks of `block_bytes`.
    pub fn min_capacity(block_bytes: u64) -> u64 {
        let blocks = BLOCKS_MIN * block_bytes + SUPERBLOCKS_BYTES;
        // The log takes a 128th of the whole once that is above its minimum; a sector covers the rounding.
        let log = (blocks / 127 + SECTOR_BYTES as u64).max(16 << 10);
        (blocks + log).next_multiple_of(SECTOR_BYTES as u64)
    }

    /// Where a block starts, in bytes.
    pub fn block_offset(&self, block: u32) -> u64 {
        self.data_offset + u64::from(block) * self.block_bytes
    }

    /// Where the log's record of this position is, in bytes.
    pub fn record_offset(&self, position: u64) -> u64 {
        self.log_offset + position % self.log_slots * LOG_RECORD_BYTES
    }

    /// The block that holds `offset`.
    pub fn block_of(&self, offset: u64) -> Option<u32> {
        let block = offset.checked_sub(self.data_offset)? / self.block_bytes;
        u32::try_from(block).ok().filter(|block| *block < self.blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_capacity_named_is_one_that_works() {
        for block in [64 << 10, 1 << 20, 256 << 20] {
            let min = Geometry::min_capacity(block);
            assert!(Geometry::plan(min, block).is_ok());
            assert!(Geometry::plan(BLOCKS_MIN * block, block).is_err());
        }
    }

    #[test]
    fn three_tebibytes_need_no_more_than_64_bit_arithmetic() {
        let geometry = Geometry::plan(3 << 40, 256 << 20).unwrap();
        let last = geometry.blocks - 1;
        assert_eq!(
            geometry.block_of(geometry.block_offset(last) + (256 << 20) - 1),
            Some(last)
        );
        assert_eq!(geometry.block_of(geometry.block_offset(last) + (256 << 20)), None);
        assert!(geometry.block_offset(last) > 1 << 41);
    }
}
