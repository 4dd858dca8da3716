//! The FP-index: fingerprint to places on flash.

use crate::TooWide;
use crate::buckets::{BUCKET_SLOTS, Buckets, Layout};
use crate::place::{Place, PlaceBits};
use std::ops::{Deref, Range};

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
pub struct FpIndex(Buckets);

impl Deref for FpIndex {
    type Target = Buckets;

    fn deref(&self) -> &Buckets {
        &self.0
    }
}

impl FpIndex {
    /// An empty index with at least `capacity` slots.
    ///
    /// # Errors
    /// [`TooWide`], if a slot would need more than 64 bits.
    pub fn new(capacity: u64, place: PlaceBits) -> Result<Self, TooWide> {
        Buckets::new(Self::buckets_for(capacity), Self::layout(place)).map(Self)
    }

    fn buckets_for(capacity: u64) -> u64 {
        capacity.div_ceil(BUCKET_SLOTS as u64).max(1)
    }

    fn layout(place: PlaceBits) -> Layout {
        let bits = TAG_BITS_MIN + place.bits();
        let whole = bits.next_multiple_of(8).min(u64::BITS.max(bits)) - place.bits();
        Layout {
            index: "FP-index",
            key_bits: whole.min(TAG_BITS_MAX),
            place,
            flag_bits: 0,
        }
    }

    /// DRAM that such an index takes, in bytes.
    ///
    /// # Errors
    /// [`TooWide`], as [`FpIndex::new`].
    pub fn dram_bytes_for(capacity: u64, place: PlaceBits) -> Result<u64, TooWide> {
        let heap = Self::layout(place).heap_bytes(Self::buckets_for(capacity))?;
        Ok(heap + size_of::<Self>() as u64)
    }

    /// DRAM, in bytes.
    pub fn dram_bytes(&self) -> u64 {
        self.heap_bytes() + size_of::<Self>() as u64
    }

    fn key(&self, hash: u64) -> (usize, u64) {
        let upper = u128::from(hash >> TAG_BITS_MAX);
        let bucket = (upper * self.buckets() as u128) >> BUCKET_BITS;
        (bucket as usize, self.key_of(hash))
    }

    /// Positions and slots that may be of a content with this hash, the newest first.
    fn matches(&self, hash: u64) -> impl Iterator<Item = (usize, u64)> {
        let (bucket, tag) = self.key(hash);
        let mut from = 0;
        std::iter::from_fn(move || {
            let (at, slot) = self.find(bucket, tag, from)?;
            from = at + 1;
            Some((at, slot))
        })
    }

    /// Places whose content may have this hash, the newest first.
    pub fn candidates(&self, hash: u64) -> impl Iterator<Item = Place> {
        self.matches(hash).map(|(_, slot)| self.place_of(slot))
    }

    /// Adds a content. A full bucket drops its oldest place, which is returned.
    pub fn insert(&mut self, hash: u64, place: Place) -> Option<Place> {
        let (bucket, tag) = self.key(hash);
        let lost = self.0.push(bucket, self.encode(tag, place))?;
        Some(self.place_of(lost))
    }

    /// Removes a content at a place. Returns whether it was there.
    pub fn remove(&mut self, hash: u64, place: Place) -> bool {
        let mut matches = self.matches(hash);
        let found = matches.find(|(_, slot)| self.place_of(*slot) == place);
        drop(matches);
        if let Some((at, _)) = found {
            self.0.remove(self.key(hash).0, at);
        }
        found.is_some()
    }

    /// Removes the contents of a bucket for whose places `keep` is false.
    pub fn retain(&mut self, bucket: usize, mut keep: impl FnMut(Place) -> bool) {
        self.0.retain(bucket, |_, place| keep(place));
    }

    /// Calls `show` with tag and place of each slot of a bucket, the newest first.
    pub fn visit(&self, bucket: usize, mut show: impl FnMut(u16, Place)) {
        self.slots(bucket)
            .for_each(|slot| show(self.key_of(slot) as u16, self.place_of(slot)));
    }

    /// Fills empty buckets from the bytes of [`Buckets::dump`]. False if they are malformed, or `has` is false for a place.
    pub fn load(
        &mut self,
        buckets: Range<usize>,
        lens: &[u8],
        slots: &[u8],
        has: impl Fn(Place) -> bool,
    ) -> bool {
        self.0.load(buckets, lens, slots, has, |_, _| true)
    }

    /// Removes all contents.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
