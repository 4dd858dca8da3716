//! Mappings as they stand on flash: pages of fixed entries, sorted by tag.
//!
//! | offset | size | field       | meaning                                     |
//! |-------:|-----:|-------------|---------------------------------------------|
//! |      0 |    2 | `count`     | entries, at most 338                        |
//! |      2 |    2 | zero        |                                             |
//! |      4 |    4 | `partition` | the partition that the mappings are of      |
//! |      8 | 12·n | entries     | tag, slot, place, generation; little-endian, tag on top |
//!
//! A *place* is offset and length as the full index packs them, a *slot* the mapping's note, and a *generation* says in which generation of its
//! block the object was written, after the block's sequence: when it is reclaimed, the mapping is void by comparison. Place 0 is a tombstone: no object
//! stands at the start of a device.

use crate::Mapping;
use crate::full::{IndexShape, SLOT_BITS};

/// Bytes of a page that are the index's own. Whoever stores pages has 32 bytes of each sector for a header.
pub const PAGE_PAYLOAD_BYTES: usize = 4064;
/// Entries of a full page.
pub const PAGE_ENTRIES: usize = (PAGE_PAYLOAD_BYTES - HEADER_BYTES) / ENTRY_BYTES;

const HEADER_BYTES: usize = 8;
const ENTRY_BYTES: usize = 12;
/// Bits of a generation, at most.
const GENERATION_BITS_MAX: u32 = 16;

/// One mapping as a page has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageEntry {
    /// The hash bits below those that choose the partition.
    pub tag: u64,
    /// Where the object is; `None` says that it is gone.
    pub mapping: Option<Mapping>,
    /// Of its block, after [`PageShape::generation`].
    pub generation: u32,
}

/// How entries are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageShape {
    index: IndexShape,
    generation_bits: u32,
}

impl PageShape {
    /// The entries that go with an index of this shape.
    pub fn new(index: IndexShape) -> Self {
        let left = 8 * ENTRY_BYTES as u32 - index.tag_bits() - index.place_bits() - SLOT_BITS;
        Self {
            index,
            generation_bits: left.min(GENERATION_BITS_MAX),
        }
    }

    /// What an entry keeps of its block's sequence; 0 stands for no block.
    pub fn generation(&self, sequence: u64) -> u32 {
        let generations = (1 << self.generation_bits) - 1;
        sequence
            .checked_sub(1)
            .map_or(0, |number| (number % generations) as u32 + 1)
    }

    /// Bits of a tag.
    pub(super) fn tag_bits(&self) -> u32 {
        self.index.tag_bits()
    }

    fn payload_bits(&self) -> u32 {
        self.index.place_bits() + SLOT_BITS
    }

    fn pack(&self, entry: &PageEntry) -> u128 {
        let payload = entry.mapping.map_or(0, |mapping| self.index.pack(mapping));
        (u128::from(entry.tag) << self.payload_bits() | u128::from(payload)) << self.generation_bits
            | u128::from(entry.generation)
    }

    fn unpack(&self, packed: u128) -> PageEntry {
        let generation = packed & ((1 << self.generation_bits) - 1);
        let rest = packed >> self.generation_bits;
        let payload = (rest & ((1 << self.payload_bits()) - 1)) as u64;
        PageEntry {
            tag: (rest >> self.payload_bits()) as u64,
            mapping: (self.index.place(payload) != 0).then(|| self.index.unpack(payload)),
            generation: generation as u32,
        }
    }

    /// The payload of a page of these entries, which are sorted by tag and at most [`PAGE_ENTRIES`].
    pub fn encode(&self, partition: u32, entries: &[PageEntry]) -> [u8; PAGE_PAYLOAD_BYTES] {
        debug_assert!(entries.is_sorted_by_key(|entry| entry.tag) && entries.len() <= PAGE_ENTRIES);
        let mut payload = [0; PAGE_PAYLOAD_BYTES];
        payload[..2].copy_from_slice(&(entries.len() as u16).to_le_bytes());
        payload[4..8].copy_from_slice(&partition.to_le_bytes());
        let slots = payload[HEADER_BYTES..].chunks_exact_mut(ENTRY_BYTES);
        for (slot, entry) in slots.zip(entries) {
            slot.copy_from_slice(&self.pack(entry).to_le_bytes()[..ENTRY_BYTES]);
        }
        payload
    }

    /// A page of `partition`, or `None` where the payload is no such page. The payload's checksum was compared before.
    pub fn decode<'a>(&self, partition: u32, payload: &'a [u8]) -> Option<MappingPage<'a>> {
        let (header, rest) = payload.split_at_checked(HEADER_BYTES)?;
        let count = usize::from(u16::from_le_bytes([header[0], header[1]]));
        let owner = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        let entries = rest.get(..count * ENTRY_BYTES)?;
        (owner == partition).then_some(MappingPage {
            shape: *self,
            entries,
        })
    }
}

/// The entries of a page that was read.
#[derive(Clone, Copy)]
pub struct MappingPage<'a> {
    shape: PageShape,
    entries: &'a [u8],
}

impl MappingPage<'_> {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len() / ENTRY_BYTES
    }

    fn packed(&self, slot: usize) -> u128 {
        let mut wide = [0; 16];
        wide[..ENTRY_BYTES].copy_from_slice(&self.entries[slot * ENTRY_BYTES..][..ENTRY_BYTES]);
        u128::from_le_bytes(wide)
    }

    /// The tags before and after an entry.
    pub fn beside(&self, number: usize) -> [Option<u64>; 2] {
        let tag = |number: usize| (number < self.len()).then(|| self.entry(number).tag);
        [number.checked_sub(1).and_then(tag), tag(number + 1)]
    }

    /// The entry of a tag, and its number. A tag is at most once in a page.
    pub fn find(&self, tag: u64) -> Option<(usize, PageEntry)> {
        let shift = self.shape.payload_bits() + self.shape.generation_bits;
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.packed(middle) >> shift < u128::from(tag) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let entry = (low < self.len()).then(|| self.shape.unpack(self.packed(low)))?;
        (entry.tag == tag).then_some((low, entry))
    }

    /// One entry.
    pub fn entry(&self, slot: usize) -> PageEntry {
        self.shape.unpack(self.packed(slot))
    }

    /// All entries, in order of tags.
    pub fn entries(&self) -> impl Iterator<Item = PageEntry> + '_ {
        (0..self.len()).map(|slot| self.entry(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Location;

    #[test]
    fn entries_come_back_at_every_size_of_device_and_strangers_do_not() {
        for (capacity, shard_bits) in [(1 << 20, 0), (4 << 30, 6), (64 << 30, 11), (64u64 << 40, 16)] {
            let index = IndexShape::new(capacity, shard_bits, IndexShape::CASCADE_NOTE_BITS);
            let shape = PageShape::new(index);
            let unit = index.unit_bytes();
            let top = (1u64 << index.tag_bits()) - 1;
            let entries: Vec<PageEntry> = (0..PAGE_ENTRIES as u64)
                .map(|n| PageEntry {
                    tag: top - 2 * (PAGE_ENTRIES as u64 - 1 - n),
                    mapping: (n % 7 != 0).then(|| Mapping {
                        location: Location {
                            offset: capacity / unit / (n + 2) * unit,
                            len: ((n + 1) * unit) as u32,
                        },
                        note: (n % (1 << SLOT_BITS)) as u32,
                    }),
                    generation: shape.generation(n * 1_000_003),
                })
                .collect();
            let payload = shape.encode(9, &entries);
            assert!(shape.decode(8, &payload).is_none(), "another partition's");
            assert!(shape.decode(9, &payload[..100]).is_none(), "cut short");
            let page = shape.decode(9, &payload).unwrap();
            assert!(page.entries().eq(entries.iter().copied()));
            for entry in &entries {
                assert_eq!(page.find(entry.tag).map(|(_, found)| found), Some(*entry));
                assert_eq!(page.find(entry.tag - 1), None);
            }
        }
    }

    #[test]
    fn no_payload_makes_it_read_beyond_its_end() {
        let shape = PageShape::new(IndexShape::new(1 << 30, 4, IndexShape::CASCADE_NOTE_BITS));
        for count in 0..=u16::MAX {
            let mut payload = [0xA5; PAGE_PAYLOAD_BYTES];
            payload[..2].copy_from_slice(&count.to_le_bytes());
            let decoded = shape.decode(0xA5A5_A5A5, &payload);
            assert_eq!(decoded.is_some(), usize::from(count) <= PAGE_ENTRIES);
            if let Some(page) = decoded {
                let _ = page.find(5);
                assert_eq!(page.len(), usize::from(count));
            }
        }
    }
}
