//! The position of a content on flash.

/// The position of a content on flash: a block, and the content's number in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Number of the block.
    pub block: u32,
    /// Number of the content in the block, from 0.
    pub number: u32,
}

/// Bits of a [`Place`] in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceBits {
    block: u32,
    number: u32,
}

/// Bits of the numbers below `count`.
pub(crate) fn bits_of(count: u64) -> u32 {
    64 - count.saturating_sub(1).leading_zeros()
}

impl PlaceBits {
    /// For places in `blocks` blocks of at most `numbers` contents each.
    pub fn new(blocks: u32, numbers: u32) -> Self {
        Self {
            block: bits_of(blocks.into()),
            number: bits_of(numbers.into()),
        }
    }

    /// Bits of a place.
    pub fn bits(self) -> u32 {
        self.block + self.number
    }

    pub(crate) fn encode(self, place: Place) -> u64 {
        debug_assert!(bits_of(u64::from(place.block) + 1) <= self.block, "{place:?}");
        debug_assert!(bits_of(u64::from(place.number) + 1) <= self.number, "{place:?}");
        u64::from(place.block) << self.number | u64::from(place.number)
    }

    /// Bits above those of a place are ignored.
    pub(crate) fn decode(self, bits: u64) -> Place {
        Place {
            block: (bits >> self.number & ((1 << self.block) - 1)) as u32,
            number: (bits & ((1 << self.number) - 1)) as u32,
        }
    }
}
