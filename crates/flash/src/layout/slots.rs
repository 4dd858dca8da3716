//! Slots: some bits in DRAM for each object of a block, for an index whose mappings are on flash.
//!
//! A cascade index keeps most mappings on flash, where no bit can be changed. The note that a layout keeps of an object, which
//! changes, is in a slot instead: under `clock` one bit, whether it was asked for since it was written; under `ripq` seven bits
//! ([`ripq`](super::ripq)).
//!
//! The slot of an object is its number in its block, in order of offset. A mapping says its low [`SLOT_BITS`] bits in its note;
//! the rest follow from its offset and the offsets of every 64th object, which are kept here. Cost: the bits, and half a
//! bit for that; O(log n) for a look.

use crate::footer::{FooterEntry, RECORD_UNIT};
use pumice_index::cascade::SLOT_BITS;

/// Objects between two whose offsets are kept.
const STRIDE: u32 = 1 << SLOT_BITS;
const LOW: u32 = STRIDE - 1;

/// The slots of one block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slots {
    bits: u32,
    len: u32,
    /// Where every 64th object stands in the block.
    strides: Vec<u32>,
    words: Vec<u64>,
}

impl Slots {
    pub(crate) fn new(bits: u32) -> Self {
        Self {
            bits,
            ..Self::default()
        }
    }

    /// The bits of a mapping's note that name the slot of this number.
    pub(crate) fn low_bits(number: u32) -> u32 {
        number & LOW
    }

    /// The slots of a block whose footer a start has read; without any bits there are none.
    pub(crate) fn of_entries(bits: u32, entries: &[FooterEntry]) -> Self {
        let mut slots = Self::new(bits);
        for entry in entries.iter().filter(|_| bits != 0) {
            slots.push(entry.offset, 0);
        }
        slots
    }

    /// Slots as they were saved; `None` where they cannot be those of a block of this length.
    pub(crate) fn from_parts(
        bits: u32,
        len: u32,
        strides: Vec<u32>,
        words: Vec<u64>,
        block_bytes: u64,
    ) -> Option<Self> {
        let is_whole = (strides.len(), words.len()) == Self::parts_len(bits, len)
            && strides.is_sorted_by(|a, b| a < b)
            && strides.iter().all(|offset| offset.is_multiple_of(RECORD_UNIT))
            && strides.last().is_none_or(|last| u64::from(*last) < block_bytes);
        is_whole.then_some(Self {
            bits,
            len,
            strides,
            words,
        })
    }

    /// How many strides and words so many slots have.
    pub(crate) fn parts_len(bits: u32, len: u32) -> (usize, usize) {
        let words = len.div_ceil(64 / bits.max(1));
        (len.div_ceil(STRIDE) as usize, words as usize)
    }

    /// Objects, offsets of every 64th, and bits.
    pub(crate) fn parts(&self) -> (u32, &[u32], &[u64]) {
        (self.len, &self.strides, &self.words)
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Adds an object above all that are there, and returns its number.
    pub(crate) fn push(&mut self, offset: u32, slot: u32) -> u32 {
        let number = self.len;
        if number & LOW == 0 {
            self.strides.push(offset);
        }
        self.len += 1;
        if Self::parts_len(self.bits, self.len).1 > self.words.len() {
            self.words.push(0);
        }
        self.set(number, slot);
        number
    }

    /// Releases memory that a sealed block will not use.
    pub(crate) fn shrink(&mut self) {
        self.strides.shrink_to_fit();
        self.words.shrink_to_fit();
    }

    /// The number of the object at an offset, whose note has these low bits.
    pub(crate) fn number(&self, offset: u32, low: u32) -> Option<u32> {
        let stride = self
            .strides
            .partition_point(|first| *first <= offset)
            .checked_sub(1)?;
        let number = stride as u32 * STRIDE + (low & LOW);
        (number < self.len).then_some(number)
    }

    fn place(&self, number: u32) -> (usize, u32) {
        let per_word = 64 / self.bits;
        ((number / per_word) as usize, number % per_word * self.bits)
    }

    pub(crate) fn get(&self, number: u32) -> u32 {
        let (word, shift) = self.place(number);
        (self.words[word] >> shift) as u32 & ((1 << self.bits) - 1)
    }

    pub(crate) fn set(&mut self, number: u32, slot: u32) {
        let (word, shift) = self.place(number);
        let mask = ((1u64 << self.bits) - 1) << shift;
        self.words[word] = self.words[word] & !mask | u64::from(slot) << shift & mask;
    }

    pub(crate) fn dram_bytes(&self) -> usize {
        self.strides.capacity() * size_of::<u32>() + self.words.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests;
