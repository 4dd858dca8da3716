//! Where the contents of a block begin.

use crate::offsets::Offsets;
use crate::piece::UNIT_BYTES;
use pumice_blocks::Geometry;

/// Offsets of a block's contents, in units of [`UNIT_BYTES`].
#[derive(Default)]
pub(super) enum Starts {
    #[default]
    None,
    /// Offsets in a block that is being filled. The top bit marks a content that several chunks may share, so that no write may replace it.
    Growing(Vec<u32>),
    Whole(Offsets),
}

/// The bit of an offset in [`Starts::Growing`] that marks a shared content. A block has fewer units than this, so no offset needs the bit.
const SHARED: u32 = 1 << 31;

impl Starts {
    /// From now on other chunks may be mapped to a content, if the block is still being filled.
    pub(super) fn share(&mut self, number: u32) {
        if let Starts::Growing(starts) = self {
            starts[number as usize] |= SHARED;
        }
    }

    /// Whether only the chunk that a content was appended for may be mapped to it, and the block is still being filled.
    pub(super) fn is_unshared(&self, number: u32) -> bool {
        matches!(self, Starts::Growing(starts) if starts[number as usize] & SHARED == 0)
    }

    /// DRAM that those of all blocks of a device take at most, in bytes, where a block has up to `numbers` contents. One block at a time
    /// is being filled.
    pub(super) fn dram_bytes_max(geometry: &Geometry, numbers: u32) -> u64 {
        let units = geometry.block_bytes / UNIT_BYTES as u64;
        let whole = Offsets::heap_bytes_max(numbers.into(), units);
        // A vector that grows may have twice the room that it needs.
        let growing = u64::from(numbers) * 2 * size_of::<u32>() as u64;
        u64::from(geometry.blocks) * (size_of::<Self>() as u64 + whole) + growing
    }

    pub(super) fn get(&self, number: u32) -> Option<u32> {
        match self {
            Starts::None => None,
            Starts::Growing(starts) => starts.get(number as usize).map(|start| start & !SHARED),
            Starts::Whole(offsets) => offsets.get(number),
        }
    }

    /// Where a content begins, and the most bytes that its piece may have: up to the next one, or the end of the block.
    pub(super) fn extent(&self, number: u32, block_bytes: u64, piece_max: usize) -> Option<(usize, usize)> {
        let start = self.get(number)? as usize * UNIT_BYTES;
        let end = self.get(number + 1);
        let end = end.map_or(block_bytes as usize, |end| end as usize * UNIT_BYTES);
        Some((start, end.checked_sub(start)?.min(piece_max)))
    }

    /// No content follows any more.
    pub(super) fn pack(&mut self) {
        if let Starts::Growing(starts) = self {
            starts.iter_mut().for_each(|start| *start &= !SHARED);
            *self = Starts::Whole(Offsets::new(starts).expect("pieces stand one behind the other"));
        }
    }

    /// DRAM that they take beside the value itself, in bytes.
    pub(super) fn heap_bytes(&self) -> u64 {
        match self {
            Starts::None => 0,
            Starts::Growing(starts) => (starts.capacity() * size_of::<u32>()) as u64,
            Starts::Whole(offsets) => offsets.heap_bytes(),
        }
    }

    pub(super) fn len(&self) -> u32 {
        match self {
            Starts::None => 0,
            Starts::Growing(starts) => starts.len() as u32,
            Starts::Whole(offsets) => offsets.len(),
        }
    }
}
