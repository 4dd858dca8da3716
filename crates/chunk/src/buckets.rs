//! Buckets of packed slots, of which both indexes are made.

use crate::TooWide;
use crate::place::{Place, PlaceBits};
use std::ops::Range;

/// Slots of a bucket.
pub const BUCKET_SLOTS: usize = 128;
/// Bytes of a slot's lower part. The lower parts of a bucket stand side by side, so that a search compares many at once.
const LOW_BYTES: usize = 2;
const LOW_BITS: u32 = 8 * LOW_BYTES as u32;
/// An upper part is read and written with the bytes behind it, as a word; the last one has so many bytes behind it.
const WORD_BYTES: usize = 8;
/// Bytes of the lower parts that are compared at once.
const GROUP_BYTES: usize = 64;
/// Buckets of a batch.
const BATCH: usize = 64;

/// The parts of a slot, from its lowest bit on: key, place, flags.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    /// Name of the index.
    pub(crate) index: &'static str,
    pub(crate) key_bits: u32,
    pub(crate) place: PlaceBits,
    pub(crate) flag_bits: u32,
}

impl Layout {
    /// Bits of a slot.
    fn bits(&self) -> Result<u32, TooWide> {
        let bits = self.key_bits + self.place.bits() + self.flag_bits;
        match bits <= u64::BITS && self.key_bits < u64::BITS {
            true => Ok(bits),
            false => Err(TooWide {
                index: self.index,
                bits,
            }),
        }
    }

    /// DRAM of such buckets in bytes, without the struct itself.
    ///
    /// # Errors
    /// [`TooWide`], if a slot would need more than 64 bits.
    pub(crate) fn heap_bytes(&self, buckets: u64) -> Result<u64, TooWide> {
        let slot_bytes = u64::from(self.bits()?.div_ceil(8)).max(LOW_BYTES as u64);
        Ok(buckets * (1 + BUCKET_SLOTS as u64 * slot_bytes) + WORD_BYTES as u64)
    }
}

/// Buckets of packed slots, the newest first. A slot has a key, the place of a content, and flags.
///
/// A bucket has the lower 16 bits of its slots, one behind the other, then their upper parts. Memory: 128 slots and a length byte for each
/// bucket, full or not. Cost: a search compares up to 128 lower parts; insertion and removal move up to 127 slots.
pub struct Buckets {
    slot_bytes: usize,
    bits: u32,
    key_bits: u32,
    place: PlaceBits,
    lens: Box<[u8]>,
    bytes: Box<[u8]>,
}

fn array<const N: usize>(bytes: &[u8]) -> &[u8; N] {
    bytes.first_chunk().expect("there are bytes behind the last part")
}

impl Buckets {
    /// Empty buckets.
    pub(crate) fn new(buckets: u64, layout: Layout) -> Result<Self, TooWide> {
        let bits = layout.bits()?;
        let slot_bytes = bits.div_ceil(8).max(LOW_BYTES as u32) as usize;
        let buckets = buckets as usize;
        Ok(Self {
            slot_bytes,
            bits,
            key_bits: layout.key_bits,
            place: layout.place,
            lens: vec![0; buckets].into(),
            bytes: vec![0; buckets * BUCKET_SLOTS * slot_bytes + WORD_BYTES].into(),
        })
    }

    /// Number of buckets.
    pub fn buckets(&self) -> usize {
        self.lens.len()
    }

    /// All buckets, in batches: few enough to hold a lock for.
    pub(crate) fn batches(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let buckets = self.buckets();
        let starts = (0..buckets).step_by(BATCH);
        starts.map(move |start| start..(start + BATCH).min(buckets))
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Number of slots in use. Cost: a pass over the lengths of all buckets.
    pub fn len(&self) -> u64 {
        self.lens.iter().map(|len| u64::from(*len)).sum()
    }

    /// Whether none is. Cost: as [`Buckets::len`].
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// DRAM, in bytes, without the struct itself.
    pub(crate) fn heap_bytes(&self) -> u64 {
        (self.lens.len() + self.bytes.len()) as u64
    }

    /// Slots of a bucket that are in use.
    pub(crate) fn filled(&self, bucket: usize) -> usize {
        self.lens[bucket].into()
    }

    /// The slots of a bucket, the newest first.
    pub(crate) fn slots(&self, bucket: usize) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator {
        (0..self.filled(bucket)).map(move |at| self.get(bucket, at))
    }

    /// A slot without flags.
    pub(crate) fn encode(&self, key: u64, place: Place) -> u64 {
        key | self.place.encode(place) << self.key_bits
    }

    /// The key of a slot.
    pub(crate) fn key_of(&self, slot: u64) -> u64 {
        slot & ((1 << self.key_bits) - 1)
    }

    /// The place in a slot.
    pub(crate) fn place_of(&self, slot: u64) -> Place {
        self.place.decode(slot >> self.key_bits)
    }

    /// The bytes of a bucket's lower parts, and of its upper ones.
    fn parts(&self, bucket: usize) -> (&[u8], &[u8]) {
        let bytes = BUCKET_SLOTS * self.slot_bytes;
        self.bytes[bucket * bytes..][..bytes].split_at(BUCKET_SLOTS * LOW_BYTES)
    }

    fn parts_mut(&mut self, bucket: usize) -> (&mut [u8], &mut [u8]) {
        let bytes = BUCKET_SLOTS * self.slot_bytes;
        self.bytes[bucket * bytes..][..bytes].split_at_mut(BUCKET_SLOTS * LOW_BYTES)
    }

    /// Positions of a slot's lower and upper part in `bytes`.
    fn at(&self, bucket: usize, at: usize) -> (usize, usize) {
        let start = bucket * BUCKET_SLOTS * self.slot_bytes;
        let high = BUCKET_SLOTS * LOW_BYTES + at * (self.slot_bytes - LOW_BYTES);
        (start + at * LOW_BYTES, start + high)
    }

    /// The bits of an upper part.
    fn high_mask(&self) -> u64 {
        (1 << (8 * (self.slot_bytes - LOW_BYTES))) - 1
    }

    pub(crate) fn get(&self, bucket: usize, at: usize) -> u64 {
        let (low, high) = self.at(bucket, at);
        let low = u16::from_le_bytes(*array(&self.bytes[low..]));
        let high = u64::from_le_bytes(*array(&self.bytes[high..]));
        u64::from(low) | (high & self.high_mask()) << LOW_BITS
    }

    pub(crate) fn set(&mut self, bucket: usize, at: usize, slot: u64) {
        let ((low, high), mask) = (self.at(bucket, at), self.high_mask());
        debug_assert_eq!(slot >> LOW_BITS & !mask, 0, "{slot:x} is too wide");
        self.bytes[low..][..LOW_BYTES].copy_from_slice(&(slot as u16).to_le_bytes());
        let beside = u64::from_le_bytes(*array(&self.bytes[high..])) & !mask;
        let word = beside | (slot >> LOW_BITS & mask);
        self.bytes[high..][..WORD_BYTES].copy_from_slice(&word.to_le_bytes());
    }

    /// Position and value of the first slot with this key, from position `from` on.
    pub(crate) fn find(&self, bucket: usize, key: u64, from: usize) -> Option<(usize, u64)> {
        let len = self.filled(bucket);
        let mask = (1u64 << self.key_bits) - 1;
        let low_mask = mask as u16;
        let low_key = key as u16 & low_mask;
        let is_like = |low: &[u8; LOW_BYTES]| u16::from_le_bytes(*low) & low_mask == low_key;
        let groups = self.parts(bucket).0.as_chunks::<GROUP_BYTES>().0;
        let slots_of_group = GROUP_BYTES / LOW_BYTES;
        for (number, group) in groups.iter().enumerate().skip(from / slots_of_group) {
            let start = number * slots_of_group;
            if start >= len {
                break;
            }
            let lows = group.as_chunks::<LOW_BYTES>().0;
            // Without a branch, so that the compiler vectorises it.
            if !lows.iter().fold(false, |any, low| any | is_like(low)) {
                continue;
            }
            for (at, low) in (start..len).zip(lows) {
                if at >= from && is_like(low) {
                    let slot = self.get(bucket, at);
                    if slot & mask == key {
                        return Some((at, slot));
                    }
                }
            }
        }
        None
    }

    /// Copies the slots `range` of a bucket to position `to`.
    fn shift(&mut self, bucket: usize, range: Range<usize>, to: usize) {
        let wide = self.slot_bytes - LOW_BYTES;
        let (low, high) = self.parts_mut(bucket);
        low.copy_within(range.start * LOW_BYTES..range.end * LOW_BYTES, to * LOW_BYTES);
        high.copy_within(range.start * wide..range.end * wide, to * wide);
    }

    /// Inserts a slot at the front. A full bucket drops its last slot, which is returned.
    pub(crate) fn push(&mut self, bucket: usize, slot: u64) -> Option<u64> {
        let len = self.filled(bucket);
        let lost = (len == BUCKET_SLOTS).then(|| self.get(bucket, len - 1));
        let kept = len - usize::from(lost.is_some());
        self.shift(bucket, 0..kept, 1);
        self.set(bucket, 0, slot);
        self.lens[bucket] = (kept + 1) as u8;
        lost
    }

    /// Appends the bytes of some buckets: one byte of length for each, then [`Buckets::slot_bytes`] for each of their slots.
    pub fn dump(&self, buckets: Range<usize>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.lens[buckets.clone()]);
        for slot in buckets.flat_map(|bucket| self.slots(bucket)) {
            out.extend_from_slice(&slot.to_le_bytes()[..self.slot_bytes]);
        }
    }

    /// Fills empty buckets from the bytes of [`Buckets::dump`]. False if they are malformed, `has` is false for a place, or `check` for a
    /// slot; some buckets are filled then.
    pub(crate) fn load(
        &mut self,
        buckets: Range<usize>,
        lens: &[u8],
        slots: &[u8],
        has: impl Fn(Place) -> bool,
        mut check: impl FnMut(usize, u64) -> bool,
    ) -> bool {
        let mut slots = slots.chunks_exact(self.slot_bytes);
        for (bucket, len) in buckets.zip(lens) {
            if usize::from(*len) > BUCKET_SLOTS {
                return false;
            }
            for at in 0..usize::from(*len) {
                let mut bytes = [0; 8];
                let Some(slot) = slots.next() else { return false };
                bytes[..self.slot_bytes].copy_from_slice(slot);
                let slot = u64::from_le_bytes(bytes);
                if u64::BITS - slot.leading_zeros() > self.bits
                    || !has(self.place_of(slot))
                    || !check(bucket, slot)
                {
                    return false;
                }
                self.set(bucket, at, slot);
            }
            self.lens[bucket] = *len;
        }
        true
    }

    pub(crate) fn move_first(&mut self, bucket: usize, at: usize) {
        if at > 0 {
            let slot = self.get(bucket, at);
            self.shift(bucket, 0..at, 1);
            self.set(bucket, 0, slot);
        }
    }

    pub(crate) fn remove(&mut self, bucket: usize, at: usize) {
        let len = self.filled(bucket);
        self.shift(bucket, at + 1..len, at);
        self.lens[bucket] = (len - 1) as u8;
    }

    /// Drops the slots of a bucket for which `keep` is false. Returns the number of dropped slots. The others stay in order.
    pub(crate) fn retain(&mut self, bucket: usize, mut keep: impl FnMut(u64, Place) -> bool) -> usize {
        let (len, mut kept) = (self.filled(bucket), 0);
        for at in 0..len {
            let slot = self.get(bucket, at);
            if keep(slot, self.place_of(slot)) {
                if kept < at {
                    self.set(bucket, kept, slot);
                }
                kept += 1;
            }
        }
        self.lens[bucket] = kept as u8;
        len - kept
    }

    pub(crate) fn clear(&mut self) {
        self.lens.fill(0);
    }
}
