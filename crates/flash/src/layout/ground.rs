//! What a layout sees of the blocks, and the notes that it keeps of their objects.

use super::slots::Slots;
use crate::block::BlockInfo;
use crate::footer::FooterEntry;
use pumice_blocks::Geometry;
use pumice_index::{Location, Mapping};
use std::sync::atomic::Ordering;

/// Where the notes of objects are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotePlace {
    /// The layout keeps none.
    Nowhere,
    /// In the mappings, which are all in DRAM.
    Mapping,
    /// In slots, since most mappings are on flash, where no bit can be changed.
    Slot,
}

/// The blocks of a store. Notes are read and changed under the lock of the block's slots, or are in the mapping.
#[derive(Clone, Copy)]
pub(crate) struct Ground<'a> {
    pub(crate) blocks: &'a [BlockInfo],
    pub(crate) geometry: &'a Geometry,
    pub(crate) notes: NotePlace,
}

impl<'a> Ground<'a> {
    pub(crate) fn block_of(self, location: Location) -> u32 {
        self.geometry
            .block_of(location.offset)
            .expect("locations are made here")
    }

    /// The block of a location.
    pub(crate) fn info(self, location: Location) -> &'a BlockInfo {
        &self.blocks[self.block_of(location) as usize]
    }

    /// The sequence of the block of a location.
    pub(crate) fn sequence_at(self, location: Location) -> u64 {
        self.info(location).sequence.load(Ordering::Acquire)
    }

    /// Where an object stands that the footer of a block lists.
    pub(crate) fn location(self, block: u32, entry: &FooterEntry) -> Location {
        Location {
            offset: self.geometry.block_offset(block) + u64::from(entry.offset),
            len: entry.len,
        }
    }

    /// A new mapping to an object that the footer of a block lists.
    pub(crate) fn mapping(self, block: u32, entry: &FooterEntry) -> Mapping {
        Mapping {
            location: self.location(block, entry),
            note: self.mapping_bits(entry.number),
        }
    }

    fn offset_in_block(self, location: Location) -> u32 {
        let start = self.geometry.block_offset(self.block_of(location));
        u32::try_from(location.offset - start).expect("blocks are at most 256 MiB")
    }

    /// Gives a new object of an open block its note, and returns the bits that its mapping is to have. Called in the order of offsets.
    pub(crate) fn add_note(self, location: Location, note: u32) -> u32 {
        match self.notes {
            NotePlace::Nowhere => 0,
            NotePlace::Mapping => note,
            NotePlace::Slot => {
                let mut slots = self.info(location).slots.lock();
                Slots::low_bits(slots.push(self.offset_in_block(location), note))
            }
        }
    }

    /// The bits of a new mapping to an object that a footer lists as this number.
    fn mapping_bits(self, number: u32) -> u32 {
        match self.notes {
            NotePlace::Nowhere | NotePlace::Mapping => 0,
            NotePlace::Slot => Slots::low_bits(number),
        }
    }

    /// Runs `f` on the slots of a mapping's block and its number there; `None` where it has no slot.
    pub(crate) fn with_slot<R>(self, mapping: Mapping, f: impl FnOnce(&mut Slots, u32) -> R) -> Option<R> {
        let mut slots = self.info(mapping.location).slots.lock();
        let number = slots.number(self.offset_in_block(mapping.location), mapping.note)?;
        Some(f(&mut slots, number))
    }

    /// The note of a mapped object; `None` where none is kept.
    pub(crate) fn note(self, mapping: Mapping) -> Option<u32> {
        match self.notes {
            NotePlace::Nowhere => None,
            NotePlace::Mapping => Some(mapping.note),
            NotePlace::Slot => self.with_slot(mapping, |slots, number| slots.get(number)),
        }
    }

    /// Changes a note, and returns the bits that the mapping is to have from now on.
    pub(crate) fn set_note(self, mapping: Mapping, note: u32) -> u32 {
        match self.notes {
            NotePlace::Nowhere => mapping.note,
            NotePlace::Mapping => note,
            NotePlace::Slot => {
                self.with_slot(mapping, |slots, number| slots.set(number, note));
                mapping.note
            }
        }
    }

    /// Whether objects of a mapping's block have slots.
    pub(crate) fn has_slots(self, mapping: Mapping) -> bool {
        self.info(mapping.location).slots.lock().len() > 0
    }

    /// The bytes that an object counts with.
    pub(crate) fn counted_len(self, mapping: Mapping) -> u64 {
        match self.info(mapping.location).mean_len.load(Ordering::Relaxed) {
            0 => mapping.location.len.into(),
            mean => mean.into(),
        }
    }
}
