//! The LBA-index: address of a chunk to place on flash.

use crate::TooWide;
use crate::buckets::{BUCKET_SLOTS, Buckets, Layout};
use crate::place::{Place, PlaceBits, bits_of};
use crate::scatter::Scatter;
use std::ops::{Deref, Range};

/// A mapping: a chunk, and the place of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The chunk's address.
    pub address: u64,
    /// Place of its content.
    pub place: Place,
    /// Whether the volume lacks this content: the cache has the only copy.
    pub is_dirty: bool,
}

/// The index of addresses; see the crate's text. A slot is, from the lowest bit on: remainder, place, dirty bit.
///
/// Slots of a bucket are in LRU order. A dirty slot is never evicted. Cost: a search over at most 128 slots; a hit or an insertion moves
/// the slots before it.
pub struct LbaIndex {
    /// Number of dirty slots.
    dirty: u64,
    scatter: Scatter,
    addresses: u64,
    /// The bit of a slot that says that the chunk is dirty.
    dirty_bit: u64,
    slots: Buckets,
}

impl Deref for LbaIndex {
    type Target = Buckets;

    fn deref(&self) -> &Buckets {
        &self.slots
    }
}

impl LbaIndex {
    /// An empty index for addresses below `addresses`, and at least `capacity` slots, or enough for all addresses. A dump fits only an
    /// index with the same four values.
    ///
    /// # Errors
    /// [`TooWide`], if a slot would need more than 64 bits.
    pub fn new(addresses: u64, capacity: u64, place: PlaceBits, seed: u64) -> Result<Self, TooWide> {
        let (scatter, buckets, layout) = Self::layout(addresses, capacity, place, seed);
        Ok(Self {
            dirty: 0,
            scatter,
            addresses,
            dirty_bit: 1 << (layout.key_bits + place.bits()).min(u64::BITS - 1),
            slots: Buckets::new(buckets, layout)?,
        })
    }

    /// Buckets for `capacity` slots, but no more than all addresses fill.
    fn layout(addresses: u64, capacity: u64, place: PlaceBits, seed: u64) -> (Scatter, u64, Layout) {
        let slots = capacity.min(addresses);
        let buckets = slots.div_ceil(BUCKET_SLOTS as u64).max(1);
        let scatter = Scatter::new(addresses, buckets, seed);
        let layout = Layout {
            index: "LBA-index",
            key_bits: bits_of(scatter.remainders()),
            place,
            flag_bits: 1,
        };
        (scatter, buckets, layout)
    }

    /// DRAM that such an index takes, in bytes.
    ///
    /// # Errors
    /// [`TooWide`], as [`LbaIndex::new`].
    pub fn dram_bytes_for(addresses: u64, capacity: u64, place: PlaceBits) -> Result<u64, TooWide> {
        let (_, buckets, layout) = Self::layout(addresses, capacity, place, 0);
        Ok(layout.heap_bytes(buckets)? + size_of::<Self>() as u64)
    }

    /// DRAM, in bytes.
    pub fn dram_bytes(&self) -> u64 {
        self.heap_bytes() + size_of::<Self>() as u64
    }

    /// Bucket and key of an address; `None` if the volume has no such chunk.
    fn key(&self, address: u64) -> Option<(usize, u64)> {
        let (bucket, remainder) = (address < self.addresses).then(|| self.scatter.split(address))?;
        Some((bucket as usize, remainder))
    }

    fn find(&self, address: u64) -> Option<(usize, usize, u64)> {
        let (bucket, key) = self.key(address)?;
        let (at, slot) = self.slots.find(bucket, key, 0)?;
        Some((bucket, at, slot))
    }

    fn encode(&self, remainder: u64, place: Place, is_dirty: bool) -> u64 {
        self.slots.encode(remainder, place) | if is_dirty { self.dirty_bit } else { 0 }
    }

    fn is_dirty(&self, slot: u64) -> bool {
        slot & self.dirty_bit != 0
    }

    /// Number of dirty mappings. Cost: a load.
    pub fn dirty(&self) -> u64 {
        self.dirty
    }

    fn slot_of(&self, bucket: usize, slot: u64) -> Slot {
        Slot {
            address: self.scatter.join(bucket as u64, self.key_of(slot)),
            place: self.place_of(slot),
            is_dirty: self.is_dirty(slot),
        }
    }

    /// The mapping of a chunk, which keeps its age.
    pub fn get(&self, address: u64) -> Option<Slot> {
        self.find(address)
            .map(|(bucket, _, slot)| self.slot_of(bucket, slot))
    }

    /// The mapping of a chunk, for a request: makes it the newest of its bucket.
    pub fn touch(&mut self, address: u64) -> Option<Slot> {
        let (bucket, at, slot) = self.find(address)?;
        self.slots.move_first(bucket, at);
        Some(self.slot_of(bucket, slot))
    }

    /// Whether [`LbaIndex::insert`] finds room: not if the bucket is full of other chunks that are dirty.
    pub fn has_room(&self, address: u64) -> bool {
        let evicts = |(bucket, _)| self.oldest_clean(bucket).is_some();
        self.has_free_slot(address) || self.key(address).is_some_and(evicts)
    }

    /// Whether [`LbaIndex::insert`] evicts nothing.
    pub fn has_free_slot(&self, address: u64) -> bool {
        self.key(address).is_some_and(|(bucket, key)| {
            self.filled(bucket) < BUCKET_SLOTS || self.slots.find(bucket, key, 0).is_some()
        })
    }

    fn oldest_clean(&self, bucket: usize) -> Option<usize> {
        self.slots(bucket).rposition(|slot| !self.is_dirty(slot))
    }

    /// Maps a chunk, as the newest of its bucket. A full bucket evicts its oldest clean mapping, which is returned. If all are dirty,
    /// nothing is mapped.
    ///
    /// # Panics
    /// If the volume has no such chunk.
    pub fn insert(&mut self, address: u64, place: Place, is_dirty: bool) -> Option<Slot> {
        let (bucket, key) = self.key(address).expect("an address of the volume");
        let slot = self.encode(key, place, is_dirty);
        if let Some((at, old)) = self.slots.find(bucket, key, 0) {
            self.dirty -= u64::from(self.is_dirty(old));
            self.dirty += u64::from(is_dirty);
            self.slots.set(bucket, at, slot);
            self.slots.move_first(bucket, at);
            return None;
        }
        let mut lost = None;
        if self.filled(bucket) == BUCKET_SLOTS {
            let at = self.oldest_clean(bucket)?;
            lost = Some(self.slot_of(bucket, self.slots.get(bucket, at)));
            self.slots.remove(bucket, at);
        }
        self.slots.push(bucket, slot);
        self.dirty += u64::from(is_dirty);
        lost
    }

    /// Changes the place of a mapping from `from` to `to`, if it is `from`. Age and dirtiness stay. Returns whether it was changed.
    pub fn replace(&mut self, address: u64, from: Place, to: Place) -> bool {
        self.change(address, from, |slot| (to, slot.is_dirty))
    }

    /// Clears the dirty bit of a chunk's mapping, if it leads to `place`. The mapping keeps its age. Returns whether the bit was set.
    pub fn clean(&mut self, address: u64, place: Place) -> bool {
        let was_dirty = self.get(address).is_some_and(|slot| slot.is_dirty);
        let is_clean = was_dirty && self.change(address, place, |slot| (slot.place, false));
        self.dirty -= u64::from(is_clean);
        is_clean
    }

    fn change(&mut self, address: u64, from: Place, new: impl FnOnce(Slot) -> (Place, bool)) -> bool {
        let found = self
            .find(address)
            .filter(|(_, _, slot)| self.place_of(*slot) == from);
        let Some((bucket, at, slot)) = found else {
            return false;
        };
        let (place, is_dirty) = new(self.slot_of(bucket, slot));
        let slot = self.encode(self.key_of(slot), place, is_dirty);
        self.slots.set(bucket, at, slot);
        true
    }

    /// Removes a mapping, and returns it.
    pub fn remove(&mut self, address: u64) -> Option<Slot> {
        let (bucket, at, slot) = self.find(address)?;
        self.slots.remove(bucket, at);
        self.dirty -= u64::from(self.is_dirty(slot));
        Some(self.slot_of(bucket, slot))
    }

    /// Calls `show` with each mapping of a bucket to a place for which `wants` is true, the newest first, and its age: its position in the
    /// bucket, from 0 to less than 1. Cost: the address of a mapping takes 10 times as long as its place.
    pub fn visit(&self, bucket: usize, wants: impl Fn(Place) -> bool, mut show: impl FnMut(Slot, f32)) {
        let len = self.filled(bucket) as f32;
        for (at, slot) in self.slots(bucket).enumerate() {
            if wants(self.place_of(slot)) {
                show(self.slot_of(bucket, slot), at as f32 / len);
            }
        }
    }

    /// Removes the mappings of a bucket to places for which `keep` is false; returns how many.
    pub fn retain(&mut self, bucket: usize, mut keep: impl FnMut(Place) -> bool) -> usize {
        let (dirty, dirty_bit) = (&mut self.dirty, self.dirty_bit);
        self.slots.retain(bucket, |slot, place| {
            let is_kept = keep(place);
            *dirty -= u64::from(!is_kept && slot & dirty_bit != 0);
            is_kept
        })
    }

    /// Removes the clean mappings of a bucket whose addresses are such that `keep` is false.
    pub fn retain_addresses(&mut self, bucket: usize, mut keep: impl FnMut(u64) -> bool) {
        let (scatter, dirty_bit, key_bits) = (self.scatter, self.dirty_bit, self.key_of(u64::MAX));
        self.slots.retain(bucket, |slot, _| {
            slot & dirty_bit != 0 || keep(scatter.join(bucket as u64, slot & key_bits))
        });
    }

    /// Calls `show` with the address of each dirty mapping of a bucket.
    pub fn visit_dirty(&self, bucket: usize, mut show: impl FnMut(Slot)) {
        self.slots(bucket)
            .filter(|slot| self.is_dirty(*slot))
            .for_each(|slot| show(self.slot_of(bucket, slot)));
    }

    /// Fills empty buckets from the bytes of [`Buckets::dump`]. False if they are malformed, an address is beyond the volume, or `has` is
    /// false for a place.
    pub fn load(
        &mut self,
        buckets: Range<usize>,
        lens: &[u8],
        slots: &[u8],
        has: impl Fn(Place) -> bool,
    ) -> bool {
        let (scatter, addresses) = (self.scatter, self.addresses);
        let (dirty_bit, key_bits) = (self.dirty_bit, self.key_of(u64::MAX));
        let dirty = &mut self.dirty;
        self.slots.load(buckets, lens, slots, has, |bucket, slot| {
            let remainder = slot & key_bits;
            *dirty += u64::from(slot & dirty_bit != 0);
            remainder < scatter.remainders() && scatter.join(bucket as u64, remainder) < addresses
        })
    }

    /// Removes all mappings.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.dirty = 0;
    }
}
