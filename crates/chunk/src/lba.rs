//! The LBA-index: address of a chunk to place on flash.

use crate::TooWide;
use crate::buckets::{BUCKET_SLOTS, Buckets};
use crate::place::{Place, PlaceBits, bits_of};
use crate::scatter::Scatter;
use std::ops::Range;

/// A bit of each slot, reserved for write-back: dirty chunks. Always 0.
const DIRTY_BITS: u32 = 1;

/// A mapping: a chunk, and the place of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The chunk's address.
    pub address: u64,
    /// Place of its content.
    pub place: Place,
}

/// The index of addresses; see the crate's text. A slot is, from the lowest bit on: remainder, place, a bit that is 0.
///
/// Slots of a bucket are in LRU order. Cost: a search over at most 128 slots; a hit or an insertion moves the slots before it.
pub struct LbaIndex {
    scatter: Scatter,
    addresses: u64,
    remainder_bits: u32,
    place: PlaceBits,
    slots: Buckets,
}

impl LbaIndex {
    /// An empty index for addresses below `addresses`, and at least `capacity` slots, or enough for all addresses. A dump fits only an
    /// index with the same four values.
    ///
    /// # Errors
    /// [`TooWide`], if a slot would need more than 64 bits.
    pub fn new(addresses: u64, capacity: u64, place: PlaceBits, seed: u64) -> Result<Self, TooWide> {
        let buckets = Self::buckets_for(addresses, capacity);
        let scatter = Scatter::new(addresses, buckets, seed);
        let remainder_bits = bits_of(scatter.remainders());
        let bits = remainder_bits + place.bits() + DIRTY_BITS;
        if bits > u64::BITS {
            return Err(TooWide {
                index: "LBA-index",
                bits,
            });
        }
        Ok(Self {
            scatter,
            addresses,
            remainder_bits,
            place,
            slots: Buckets::new(buckets as usize, remainder_bits, bits),
        })
    }

    /// Buckets for `capacity` slots, but no more than all addresses fill.
    fn buckets_for(addresses: u64, capacity: u64) -> u64 {
        let slots = capacity.min(addresses);
        slots.div_ceil(BUCKET_SLOTS as u64).max(1)
    }

    /// DRAM that such an index takes, in bytes.
    ///
    /// # Errors
    /// [`TooWide`], as [`LbaIndex::new`].
    pub fn dram_bytes_for(addresses: u64, capacity: u64, place: PlaceBits) -> Result<u64, TooWide> {
        let buckets = Self::buckets_for(addresses, capacity);
        let remainder_bits = bits_of(Scatter::new(addresses, buckets, 0).remainders());
        let bits = remainder_bits + place.bits() + DIRTY_BITS;
        match bits {
            0..=64 => Ok(Buckets::dram_bytes_for(buckets, bits) + size_of::<Self>() as u64),
            _ => Err(TooWide {
                index: "LBA-index",
                bits,
            }),
        }
    }

    /// DRAM, in bytes.
    pub fn dram_bytes(&self) -> u64 {
        self.slots.dram_bytes() + size_of::<Self>() as u64
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.slots.slot_bytes()
    }

    /// Number of buckets.
    pub fn buckets(&self) -> usize {
        self.slots.count()
    }

    /// Number of mappings. Cost: a pass over the lengths of all buckets.
    pub fn len(&self) -> u64 {
        (0..self.slots.count())
            .map(|bucket| self.slots.len(bucket) as u64)
            .sum()
    }

    /// Whether there is no mapping. Cost: as [`LbaIndex::len`].
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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

    fn encode(&self, remainder: u64, place: Place) -> u64 {
        remainder | self.place.encode(place) << self.remainder_bits
    }

    fn place_of(&self, slot: u64) -> Place {
        self.place.decode(slot >> self.remainder_bits)
    }

    fn slot_of(&self, bucket: usize, slot: u64) -> Slot {
        let remainder = slot & ((1 << self.remainder_bits) - 1);
        Slot {
            address: self.scatter.join(bucket as u64, remainder),
            place: self.place_of(slot),
        }
    }

    /// Place of a chunk's content. The mapping keeps its age.
    pub fn get(&self, address: u64) -> Option<Place> {
        self.find(address).map(|(_, _, slot)| self.place_of(slot))
    }

    /// Place of a chunk's content, for a request: makes the mapping the newest of its bucket.
    pub fn touch(&mut self, address: u64) -> Option<Place> {
        let (bucket, at, slot) = self.find(address)?;
        self.slots.move_first(bucket, at);
        Some(self.place_of(slot))
    }

    /// Maps a chunk, as the newest of its bucket. A full bucket evicts its oldest mapping, which is returned.
    ///
    /// # Panics
    /// If the volume has no such chunk.
    pub fn insert(&mut self, address: u64, place: Place) -> Option<Slot> {
        let (bucket, key) = self.key(address).expect("an address of the volume");
        let slot = self.encode(key, place);
        if let Some((at, _)) = self.slots.find(bucket, key, 0) {
            self.slots.set(bucket, at, slot);
            self.slots.move_first(bucket, at);
            return None;
        }
        let lost = self.slots.push(bucket, slot)?;
        Some(self.slot_of(bucket, lost))
    }

    /// Changes the place of a mapping from `from` to `to`, if it is `from`. Its age stays. Returns whether it was changed.
    pub fn replace(&mut self, address: u64, from: Place, to: Place) -> bool {
        let found = self
            .find(address)
            .filter(|(_, _, slot)| self.place_of(*slot) == from);
        let Some((bucket, at, slot)) = found else {
            return false;
        };
        let remainder = slot & ((1 << self.remainder_bits) - 1);
        self.slots.set(bucket, at, self.encode(remainder, to));
        true
    }

    /// Removes a mapping, and returns its place.
    pub fn remove(&mut self, address: u64) -> Option<Place> {
        let (bucket, at, slot) = self.find(address)?;
        self.slots.remove(bucket, at);
        Some(self.place_of(slot))
    }

    /// Calls `show` with each mapping of a bucket to a place for which `wants` is true, the newest first, and its age: its position in the
    /// bucket, from 0 to less than 1. Cost: the address of a mapping takes 10 times as long as its place.
    pub fn visit(&self, bucket: usize, wants: impl Fn(Place) -> bool, mut show: impl FnMut(Slot, f32)) {
        let len = self.slots.len(bucket);
        for at in 0..len {
            let slot = self.slots.get(bucket, at);
            if wants(self.place_of(slot)) {
                show(self.slot_of(bucket, slot), at as f32 / len as f32);
            }
        }
    }

    /// Removes the mappings of a bucket to places for which `keep` is false; returns how many.
    pub fn retain(&mut self, bucket: usize, mut keep: impl FnMut(Place) -> bool) -> usize {
        let (place, bits) = (self.place, self.remainder_bits);
        self.slots.retain(bucket, |slot| keep(place.decode(slot >> bits)))
    }

    /// Removes the mappings of a bucket whose addresses are such that `keep` is false.
    pub fn retain_addresses(&mut self, bucket: usize, mut keep: impl FnMut(u64) -> bool) {
        let (scatter, bits) = (self.scatter, self.remainder_bits);
        self.slots.retain(bucket, |slot| {
            keep(scatter.join(bucket as u64, slot & ((1 << bits) - 1)))
        });
    }

    /// Appends the bytes of some buckets: one byte of length for each, then [`LbaIndex::slot_bytes`] for each of their slots.
    pub fn dump(&self, buckets: Range<usize>, out: &mut Vec<u8>) {
        self.slots.dump(buckets, out);
    }

    /// Fills empty buckets from the bytes of [`LbaIndex::dump`]. False if they are malformed, an address is beyond the volume, or `has` is
    /// false for a place.
    pub fn load(
        &mut self,
        buckets: Range<usize>,
        lens: &[u8],
        slots: &[u8],
        has: impl Fn(Place) -> bool,
    ) -> bool {
        let (scatter, addresses) = (self.scatter, self.addresses);
        let (place, bits) = (self.place, self.remainder_bits);
        self.slots.load(buckets, lens, slots, |bucket, slot| {
            let remainder = slot & ((1 << bits) - 1);
            remainder < scatter.remainders()
                && scatter.join(bucket as u64, remainder) < addresses
                && (slot >> bits).checked_shr(place.bits()).unwrap_or(0) == 0
                && has(place.decode(slot >> bits))
        })
    }

    /// Removes all mappings.
    pub fn clear(&mut self) {
        self.slots.clear();
    }
}
