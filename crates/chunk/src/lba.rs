//! Address to place: the mappings of a volume's chunks.

use crate::TooWide;
use crate::buckets::{BUCKET_SLOTS, Buckets};
use crate::place::{Place, PlaceBits, bits_of};
use crate::scatter::Scatter;
use std::ops::Range;

/// A bit of a slot that is kept for chunks which the volume does not have yet.
const DIRTY_BITS: u32 = 1;

/// A mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The chunk's address.
    pub address: u64,
    /// Where its content is.
    pub place: Place,
}

/// The index of addresses; see the crate's text. A slot is, from the lowest bit on: remainder, place, a bit that is 0.
///
/// Cost: a search over at most 128 slots; a hit or an insertion moves the slots before it.
pub struct LbaIndex {
    scatter: Scatter,
    addresses: u64,
    remainder_bits: u32,
    place: PlaceBits,
    slots: Buckets,
}

impl LbaIndex {
    /// An empty index for addresses below `addresses`, with at least `capacity` slots. The same four values give the same slots again.
    ///
    /// # Errors
    /// [`TooWide`], where a slot would need more than 64 bits.
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

    /// No more buckets than addresses can fill.
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

    /// Number of buckets: what [`LbaIndex::visit`] goes through.
    pub fn buckets(&self) -> usize {
        self.slots.count()
    }

    /// Mappings. Cost: a pass over the buckets.
    pub fn len(&self) -> u64 {
        (0..self.slots.count())
            .map(|bucket| self.slots.len(bucket) as u64)
            .sum()
    }

    /// Whether there is no mapping. Cost: as [`LbaIndex::len`].
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bucket and key of an address; `None` where the volume has no such chunk.
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

    /// Where the content of a chunk is.
    pub fn get(&self, address: u64) -> Option<Place> {
        self.find(address).map(|(_, _, slot)| self.place_of(slot))
    }

    /// The same, for a request: the mapping is its bucket's newest afterwards.
    pub fn touch(&mut self, address: u64) -> Option<Place> {
        let (bucket, at, slot) = self.find(address)?;
        self.slots.move_first(bucket, at);
        Some(self.place_of(slot))
    }

    /// Maps a chunk, as its bucket's newest. A full bucket evicts its oldest mapping, which is returned.
    ///
    /// # Panics
    /// Where the volume has no such chunk.
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

    /// Makes a mapping lead elsewhere, where it leads to `from`; its age stays. Whether it did.
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

    /// Forgets a mapping, and returns where it led.
    pub fn remove(&mut self, address: u64) -> Option<Place> {
        let (bucket, at, slot) = self.find(address)?;
        self.slots.remove(bucket, at);
        Some(self.place_of(slot))
    }

    /// Shows all mappings of a bucket, the newest first, with where they stand in it, from 0 of the newest to less than 1.
    pub fn visit(&self, bucket: usize, mut show: impl FnMut(Slot, f32)) {
        let len = self.slots.len(bucket);
        for at in 0..len {
            show(
                self.slot_of(bucket, self.slots.get(bucket, at)),
                at as f32 / len as f32,
            );
        }
    }

    /// Forgets the mappings of a bucket that `keep` does not want.
    pub fn retain(&mut self, bucket: usize, mut keep: impl FnMut(Slot) -> bool) {
        let (scatter, place, bits) = (self.scatter, self.place, self.remainder_bits);
        self.slots.retain(bucket, |slot| {
            keep(Slot {
                address: scatter.join(bucket as u64, slot & ((1 << bits) - 1)),
                place: place.decode(slot >> bits),
            })
        });
    }

    /// Appends the bytes of some buckets: a length of each, then [`LbaIndex::slot_bytes`] for each of their slots.
    pub fn dump(&self, buckets: Range<usize>, out: &mut Vec<u8>) {
        self.slots.dump(buckets, out);
    }

    /// Fills empty buckets with what [`LbaIndex::dump`] wrote. Whether they can be that: each address is one of the volume, and `has` knows
    /// each place.
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

    /// Forgets all mappings.
    pub fn clear(&mut self) {
        self.slots.clear();
    }
}
