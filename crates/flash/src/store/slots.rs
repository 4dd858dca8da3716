//! Slots: some bits in DRAM for each object of a block, for an index that has no room for them.
//!
//! A cascade index keeps most mappings on flash, where no bit can be changed. What a layout wants to know of an object that
//! changes is kept here instead: under `fifo` with two-phase reclaim one bit, whether it was asked for since it was written; under
//! `ripq` six bits: where it counts ([`Note`]), or that it is dead, and with an absolute policy that counts more than two accesses in two
//! of them how often it was asked for.
//!
//! The slot of an object is its number in its block, in order of offset. A mapping says its low [`SLOT_BITS`] bits in its note;
//! the rest follow from its offset and the offsets of every 64th object, which are kept here. Cost: the bits, and three eighths of a
//! bit for that; O(log n) for a look.

use super::FlashStore;
use crate::footer::FooterEntry;
use crate::layout::{Layout, LayoutOptions, MARKS, Note};
use crate::queue::Seat;
use pumice_index::cascade::SLOT_BITS;
use pumice_index::{IndexKind, Location, Mapping};
use pumice_memory::Buffer;
use std::sync::atomic::Ordering;

/// Objects between two whose offsets are kept.
const STRIDE: u32 = 1 << SLOT_BITS;
const LOW: u32 = STRIDE - 1;

/// Bits of a slot under `ripq`.
const RIPQ_BITS: u32 = 6;
/// Those of them that count accesses, where the policy does.
const ACCESS_BITS: u32 = 2;

/// What a slot is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotKind {
    /// There are none.
    None,
    /// Whether the object was asked for since it was written.
    Hit,
    /// Where the object counts.
    Seat,
    /// That, and how often it was asked for.
    SeatAndAccesses,
}

impl SlotKind {
    pub(crate) fn of(layout: &LayoutOptions, index: IndexKind) -> Self {
        match (index, layout.layout) {
            (IndexKind::Full, _) | (_, Layout::Sipq) => SlotKind::None,
            (IndexKind::Cascade, Layout::Fifo) if layout.keeps_hot => SlotKind::Hit,
            (IndexKind::Cascade, Layout::Fifo) => SlotKind::None,
            // Two accesses are told by a seat that was changed; of relative policies none tells three from more.
            (IndexKind::Cascade, Layout::Ripq)
                if layout.policy.accesses_max() <= 2 || !layout.policy.is_absolute() =>
            {
                SlotKind::Seat
            }
            (IndexKind::Cascade, Layout::Ripq) => SlotKind::SeatAndAccesses,
        }
    }

    /// Bits of a slot.
    pub(crate) fn bits(self) -> u32 {
        match self {
            SlotKind::None => 0,
            SlotKind::Hit => 1,
            SlotKind::Seat | SlotKind::SeatAndAccesses => RIPQ_BITS,
        }
    }

    /// Bits of a slot that say where an object counts.
    fn seat_bits(self) -> u32 {
        match self {
            SlotKind::SeatAndAccesses => RIPQ_BITS - ACCESS_BITS,
            _ => RIPQ_BITS,
        }
    }

    /// The seat of an object that counts nowhere any more.
    fn dead(self) -> u32 {
        (1 << self.seat_bits()) - 1
    }

    /// The seat of one that counts in its block, and was asked for since it was new: where accesses are not kept, 0 is a new one.
    fn hit(self) -> u32 {
        self.dead() - 1
    }

    /// Whether slots say where objects count.
    pub(crate) fn has_seats(self) -> bool {
        matches!(self, SlotKind::Seat | SlotKind::SeatAndAccesses)
    }

    /// Marks that a queue can give out, plus one.
    pub(crate) fn marks(self) -> u32 {
        match self {
            SlotKind::Seat => self.hit(),
            SlotKind::SeatAndAccesses => self.dead(),
            SlotKind::None | SlotKind::Hit => MARKS,
        }
    }

    /// The bits of a mapping's note that name its slot.
    pub(crate) fn note(self, number: u32) -> u32 {
        if self == SlotKind::None { 0 } else { number & LOW }
    }

    fn encode(self, note: Note) -> u32 {
        match self {
            SlotKind::SeatAndAccesses => (note.accesses - 1) << self.seat_bits() | note.mark,
            _ if note.mark == 0 && note.accesses > 1 => self.hit(),
            _ => note.mark,
        }
    }

    /// `None` of a dead object.
    pub(super) fn decode(self, slot: u32) -> Option<Note> {
        let seat = slot & self.dead();
        let note = match self {
            SlotKind::SeatAndAccesses => Note {
                mark: seat,
                accesses: (slot >> self.seat_bits()) + 1,
            },
            _ => Note {
                mark: if seat == self.hit() { 0 } else { seat },
                accesses: u32::from(seat != 0) + 1,
            },
        };
        (seat != self.dead()).then_some(note)
    }
}

/// Bits of DRAM that such a cache keeps for each object on flash beside its index, and three eighths of a bit more where that is not 0.
pub fn slot_bits(layout: &LayoutOptions, index: IndexKind) -> u32 {
    SlotKind::of(layout, index).bits()
}

/// The slots of one block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slots {
    bits: u32,
    len: u32,
    /// Where every 64th object stands in the block.
    strides: Vec<Place>,
    words: Vec<u64>,
}

/// An offset in a block, in units of 16 bytes: objects start at multiples of that, and blocks have at most 2^24 of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place([u8; 3]);

impl Place {
    const UNIT: u32 = 16;

    /// `None` where no object can start.
    fn new(offset: u32) -> Option<Self> {
        let [low, middle, high, 0] = (offset / Self::UNIT).to_le_bytes() else {
            return None;
        };
        offset
            .is_multiple_of(Self::UNIT)
            .then_some(Self([low, middle, high]))
    }

    fn offset(self) -> u32 {
        let [low, middle, high] = self.0;
        u32::from_le_bytes([low, middle, high, 0]) * Self::UNIT
    }
}

impl Slots {
    pub(crate) fn new(bits: u32) -> Self {
        Self {
            bits,
            ..Self::default()
        }
    }

    /// The slots of a block whose footer a start has read.
    pub(crate) fn of_entries(kind: SlotKind, entries: &[FooterEntry]) -> Self {
        let mut slots = Self::new(kind.bits());
        for entry in entries.iter().filter(|_| kind != SlotKind::None) {
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
            && strides.last().is_none_or(|last| u64::from(*last) < block_bytes);
        let places: Option<Vec<Place>> = strides.into_iter().map(Place::new).collect();
        Some(Self {
            bits,
            len,
            strides: places.filter(|_| is_whole)?,
            words,
        })
    }

    /// How many strides and words so many slots have.
    pub(crate) fn parts_len(bits: u32, len: u32) -> (usize, usize) {
        let words = len.div_ceil(64 / bits.max(1));
        (len.div_ceil(STRIDE) as usize, words as usize)
    }

    /// Objects, offsets of every 64th, and bits.
    pub(crate) fn parts(&self) -> (u32, Vec<u32>, &[u64]) {
        let strides = self.strides.iter().map(|place| place.offset()).collect();
        (self.len, strides, &self.words)
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Adds an object above all that are there, and returns its number.
    pub(crate) fn push(&mut self, offset: u32, slot: u32) -> u32 {
        let number = self.len;
        if number & LOW == 0 {
            let place =
                Place::new(offset).expect("objects start at multiples of 16, in blocks of at most 256 MiB");
            self.strides.push(place);
        }
        self.len += 1;
        if Self::parts_len(self.bits, self.len).1 > self.words.len() {
            self.words.push(0);
        }
        self.set(number, slot);
        number
    }

    /// Lets go of memory that a sealed block will not use.
    pub(crate) fn shrink(&mut self) {
        self.strides.shrink_to_fit();
        self.words.shrink_to_fit();
    }

    /// The number of the object at an offset, whose note has these low bits.
    pub(crate) fn number(&self, offset: u32, low: u32) -> Option<u32> {
        let stride = self
            .strides
            .partition_point(|first| first.offset() <= offset)
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
        self.strides.capacity() * size_of::<Place>() + self.words.capacity() * size_of::<u64>()
    }
}

impl<B: Buffer> FlashStore<B> {
    /// A mapping to an object that a footer lists.
    pub(crate) fn mapping(&self, block: u32, entry: &FooterEntry) -> Mapping {
        Mapping {
            location: self.location(block, entry),
            note: self.slot_kind.note(entry.number),
        }
    }

    /// Gives a new object of an open block its slot, and returns the note that its mapping is to have. Called in the order of
    /// offsets.
    pub(super) fn add_slot(&self, location: Location, note: Option<Note>) -> u32 {
        let slot = match self.slot_kind {
            SlotKind::None => return note.map_or(0, Note::bits),
            SlotKind::Hit => 0,
            kind => kind.encode(note.unwrap_or(Note::NEW)),
        };
        let block = self.block_of(location);
        let mut slots = self.blocks[block as usize].slots.lock();
        self.slot_kind
            .note(slots.push(self.offset_in_block(location), slot))
    }

    fn offset_in_block(&self, location: Location) -> u32 {
        let start = self.geometry.block_offset(self.block_of(location));
        u32::try_from(location.offset - start).expect("blocks are at most 256 MiB")
    }

    /// Runs `f` on the slots of a mapping's block and its number there; `None` where there are none.
    fn with_slot<R>(&self, mapping: Mapping, f: impl FnOnce(&mut Slots, u32) -> R) -> Option<R> {
        if self.slot_kind == SlotKind::None {
            return None;
        }
        let block = self.block_of(mapping.location);
        let mut slots = self.blocks[block as usize].slots.lock();
        let number = slots.number(self.offset_in_block(mapping.location), mapping.note)?;
        Some(f(&mut slots, number))
    }

    /// What is kept of a mapped object; `None` where it is known to be dead.
    pub(crate) fn note(&self, mapping: Mapping) -> Option<Note> {
        let kind = self.slot_kind;
        if !kind.has_seats() {
            return Some(Note::of(mapping));
        }
        let slot = self.with_slot(mapping, |slots, number| slots.get(number));
        slot.map_or(Some(Note::NEW), |slot| kind.decode(slot))
    }

    /// Keeps a note, and returns the bits that the mapping is to have from now on.
    pub(crate) fn put_note(&self, mapping: Mapping, note: Note) -> u32 {
        let kind = self.slot_kind;
        if !kind.has_seats() {
            return note.bits();
        }
        self.with_slot(mapping, |slots, number| slots.set(number, kind.encode(note)));
        mapping.note
    }

    /// Whether it can be kept where an object counts.
    pub(crate) fn has_slot(&self, mapping: Mapping) -> bool {
        !self.slot_kind.has_seats() || self.with_slot(mapping, |_, _| ()).is_some()
    }

    /// An object counts nowhere any more; false where that is known already.
    pub(super) fn put_dead(&self, mapping: Mapping) -> bool {
        if !self.slot_kind.has_seats() {
            return true;
        }
        let dead = self.slot_kind.dead();
        let was_dead = self.with_slot(mapping, |slots, number| {
            let was_dead = slots.get(number) & dead == dead;
            slots.set(number, dead);
            was_dead
        });
        // Where its block has slots and it has none, it was never counted.
        was_dead.map_or_else(
            || {
                let info = &self.blocks[self.block_of(mapping.location) as usize];
                info.slots.lock().len() == 0
            },
            |was_dead| !was_dead,
        )
    }

    /// An object was asked for.
    pub(super) fn put_hit(&self, mapping: Mapping) {
        if self.slot_kind == SlotKind::Hit {
            let before = self.with_slot(mapping, |slots, number| {
                let before = slots.get(number);
                slots.set(number, 1);
                before
            });
            if before == Some(0) {
                self.note_first_hit(self.block_of(mapping.location));
            }
        }
    }

    /// Whether an object was asked for since it was written.
    pub(super) fn was_hit(&self, mapping: Mapping) -> bool {
        self.slot_kind == SlotKind::Hit
            && self.with_slot(mapping, |slots, number| slots.get(number)) == Some(1)
    }

    /// The bytes that an object counts with.
    pub(crate) fn counted_len(&self, mapping: Mapping) -> u64 {
        let info = &self.blocks[self.block_of(mapping.location) as usize];
        match info.mean_len.load(Ordering::Relaxed) {
            0 => mapping.location.len.into(),
            mean => mean.into(),
        }
    }

    /// Everything in a block counts nowhere any more. `entries` are all that its footer lists, where that could be read.
    pub(crate) fn settle_slots(&self, id: u32, entries: Option<&[FooterEntry]>) {
        if self.slot_kind == SlotKind::None {
            return;
        }
        let kind = self.slot_kind;
        let info = &self.blocks[id as usize];
        let mut order = self.order.lock();
        let slots = std::mem::take(&mut *info.slots.lock());
        if info.filled.load(Ordering::Relaxed) != 0 {
            self.charge_slots(slots.dram_bytes(), 0);
        }
        let Some(ranked) = &mut order.ranked else { return };
        if !kind.has_seats() {
            return;
        }
        let mean = match info.mean_len.load(Ordering::Relaxed) {
            0 => info.filled.load(Ordering::Relaxed) / u64::from(slots.len().max(1)),
            mean => mean.into(),
        };
        let has_means = info.mean_len.load(Ordering::Relaxed) != 0;
        for number in 0..slots.len() {
            let Some(note) = kind.decode(slots.get(number)) else {
                continue;
            };
            let entry = entries.and_then(|entries| entries.get(number as usize));
            // What counts in the block itself leaves the order with it.
            if note.mark != 0 {
                if entry.is_none() && !has_means {
                    // The footer cannot be read.
                    self.is_order_estimate.store(true, Ordering::Relaxed);
                }
                let len = entry
                    .filter(|_| !has_means)
                    .map_or(mean, |entry| entry.len.into());
                ranked.queue.remove_about(Seat::Virtual(note.mark), len);
            }
        }
        self.rebalance(&mut order);
    }

    /// A block is sealed: it gets no slot any more.
    pub(crate) fn shrink_slots(&self, id: u32) {
        let mut slots = self.blocks[id as usize].slots.lock();
        slots.shrink();
        self.charge_slots(0, slots.dram_bytes());
    }

    /// Slots of a block that a checkpoint has saved.
    pub(crate) fn restore_slots(&self, id: u32, mut slots: Slots) {
        slots.shrink();
        self.charge_slots(0, slots.dram_bytes());
        *self.blocks[id as usize].slots.lock() = slots;
    }

    /// Counts what stands in a sealed block whose mappings are on flash, by slot, and returns the bytes that count. How long
    /// each object is nobody knows: each counts as the mean of its block, also when it goes.
    pub(crate) fn count_slots(&self, id: u32) -> u64 {
        let kind = self.slot_kind;
        let info = &self.blocks[id as usize];
        let filled = info.filled.load(Ordering::Relaxed);
        let mut order = self.order.lock();
        let Some(ranked) = &mut order.ranked else {
            return filled;
        };
        let mut slots = info.slots.lock();
        if !kind.has_seats() || slots.len() == 0 {
            ranked.queue.add(Seat::Device(id), filled);
            return filled;
        }
        let mean = (filled / u64::from(slots.len())).max(1);
        info.mean_len
            .store(u32::try_from(mean).unwrap_or(u32::MAX), Ordering::Relaxed);
        let mut counted = 0;
        for number in 0..slots.len() {
            let Some(mut note) = kind.decode(slots.get(number)) else {
                continue;
            };
            if note.mark != 0 && !ranked.queue.has_mark(note.mark) {
                note.mark = 0;
                slots.set(number, kind.encode(note));
            }
            counted += mean;
            let seat = match note.mark {
                0 => Seat::Device(id),
                mark => Seat::Virtual(mark),
            };
            ranked.queue.add(seat, mean);
        }
        counted
    }

    /// DRAM of slots has changed from `before` to `after`.
    pub(super) fn charge_slots(&self, before: usize, after: usize) {
        self.slot_bytes.fetch_add(after as u64, Ordering::Relaxed);
        self.slot_bytes.fetch_sub(before as u64, Ordering::Relaxed);
    }

    /// DRAM of all slots of sealed blocks, in bytes.
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
