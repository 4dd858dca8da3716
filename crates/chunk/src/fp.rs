//! The FP-index: fingerprint to places on flash.

use crate::TooWide;
use crate::buckets::{BUCKET_SLOTS, Buckets};
use crate::place::{Place, PlaceBits};
use std::ops::Range;

/// Fewest bits of a tag.
const TAG_BITS_MIN: u32 = 12;
/// Most bits of a tag. Between the two, a tag fills the slot to whole bytes.
const TAG_BITS_MAX: u32 = 16;
/// Bits of a hash that choose the bucket; the lower ones are the tag.
const BUCKET_BITS: u32 = 64 - TAG_BITS_MAX;

/// The index of contents by 64 bits of their fingerprints; see the crate's text. A slot is, from the lowest bit on: tag, place. Slots of a
/// bucket are in order of insertion.
///
/// With tags of 14 bits and a full bucket, 0.8 % of searches for an absent content find a candidate.
pub struct FpIndex {
    tag_bits: u32,
    place: PlaceBits,
    slots: Buckets,
}

impl FpIndex {
    /// An empty index with at least `capacity` slots.
    ///
    /// # Errors
    /// [`TooWide`], if a slot would need more than 64 bits.
    pub fn new(capacity: u64, place: PlaceBits) -> Result<Self, TooWide> {
        let tag_bits = Self::tag_bits(place)?;
        Ok(Self {
            tag_bits,
            place,
            slots: Buckets::new(
                Self::buckets_for(capacity) as usize,
                tag_bits,
                tag_bits + place.bits(),
            ),
        })
    }

    fn buckets_for(capacity: u64) -> u64 {
        capacity.div_ceil(BUCKET_SLOTS as u64).max(1)
    }

    fn tag_bits(place: PlaceBits) -> Result<u32, TooWide> {
        let bits = TAG_BITS_MIN + place.bits();
        if bits > u64::BITS {
            return Err(TooWide {
                index: "FP-index",
                bits,
            });
        }
        let whole = bits.next_multiple_of(8) - place.bits();
        Ok(whole.min(TAG_BITS_MAX))
    }

    /// DRAM that such an index takes, in bytes.
    ///
    /// # Errors
    /// [`TooWide`], as [`FpIndex::new`].
    pub fn dram_bytes_for(capacity: u64, place: PlaceBits) -> Result<u64, TooWide> {
        let bits = Self::tag_bits(place)? + place.bits();
        Ok(Buckets::dram_bytes_for(Self::buckets_for(capacity), bits) + size_of::<Self>() as u64)
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

    /// Number of contents. Cost: a pass over the lengths of all buckets.
    pub fn len(&self) -> u64 {
        (0..self.slots.count())
            .map(|bucket| self.slots.len(bucket) as u64)
            .sum()
    }

    /// Whether there is none. Cost: as [`FpIndex::len`].
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn key(&self, hash: u64) -> (usize, u64) {
        let upper = u128::from(hash >> TAG_BITS_MAX);
        let bucket = (upper * self.slots.count() as u128) >> BUCKET_BITS;
        (bucket as usize, hash & ((1 << self.tag_bits) - 1))
    }

    /// Places whose content may have this hash, the newest first.
    pub fn candidates(&self, hash: u64) -> impl Iterator<Item = Place> {
        let (bucket, tag) = self.key(hash);
        let mut from = 0;
        std::iter::from_fn(move || {
            let (at, slot) = self.slots.find(bucket, tag, from)?;
            from = at + 1;
            Some(self.place.decode(slot >> self.tag_bits))
        })
    }

    /// Adds a content. A full bucket drops its oldest place, which is returned.
    pub fn insert(&mut self, hash: u64, place: Place) -> Option<Place> {
        let (bucket, tag) = self.key(hash);
        let lost = self
            .slots
            .push(bucket, tag | self.place.encode(place) << self.tag_bits)?;
        Some(self.place.decode(lost >> self.tag_bits))
    }

    /// Removes a content at a place. Returns whether it was there.
    pub fn remove(&mut self, hash: u64, place: Place) -> bool {
        let (bucket, tag) = self.key(hash);
        let wanted = tag | self.place.encode(place) << self.tag_bits;
        let mut from = 0;
        while let Some((at, slot)) = self.slots.find(bucket, tag, from) {
            if slot == wanted {
                self.slots.remove(bucket, at);
                return true;
            }
            from = at + 1;
        }
        false
    }

    /// Removes the contents of a bucket for whose places `keep` is false.
    pub fn retain(&mut self, bucket: usize, mut keep: impl FnMut(Place) -> bool) {
        let (place, bits) = (self.place, self.tag_bits);
        self.slots.retain(bucket, |slot| keep(place.decode(slot >> bits)));
    }

    /// Calls `show` with tag and place of each slot of a bucket, the newest first.
    pub fn visit(&self, bucket: usize, mut show: impl FnMut(u16, Place)) {
        for at in 0..self.slots.len(bucket) {
            let slot = self.slots.get(bucket, at);
            let tag = slot & ((1 << self.tag_bits) - 1);
            show(tag as u16, self.place.decode(slot >> self.tag_bits));
        }
    }

    /// Appends the bytes of some buckets: one byte of length for each, then [`FpIndex::slot_bytes`] for each of their slots.
    pub fn dump(&self, buckets: Range<usize>, out: &mut Vec<u8>) {
        self.slots.dump(buckets, out);
    }

    /// Fills empty buckets from the bytes of [`FpIndex::dump`]. False if they are malformed, or `has` is false for a place.
    pub fn load(
        &mut self,
        buckets: Range<usize>,
        lens: &[u8],
        slots: &[u8],
        has: impl Fn(Place) -> bool,
    ) -> bool {
        let (place, bits) = (self.place, self.tag_bits);
        self.slots.load(buckets, lens, slots, |_, slot| {
            let is_narrow = (slot >> bits).checked_shr(place.bits()).unwrap_or(0) == 0;
            is_narrow && has(place.decode(slot >> bits))
        })
    }

    /// Removes all contents.
    pub fn clear(&mut self) {
        self.slots.clear();
    }
}
