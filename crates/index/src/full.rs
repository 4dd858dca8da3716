//! The full index: every mapping in DRAM, at about ten bytes an object.
//!
//! Hash bits are used from the top: the first choose the shard, the next are the tag. Two keys with the same shard
//! and tag are one key to this index: the later takes the earlier's place. With 36 to 42 bits that happens to one object in
//! some thousands at 10 million objects; whoever reads verifies the full key, so it costs a miss, never a wrong value.
//!
//! Every method is called under the shard's lock, which the owner of the shards holds; none waits for anything.

use crate::{Candidates, KeyHash, Location, Lookup, PackedTable, TableFull, TableShape};
use pumice_memory::PagePool;
use std::sync::Arc;

/// Bits of a length in units, so the longest object is 65,536 units: 1 MiB.
const LEN_BITS: u32 = 16;
/// Hash bits, shard and tag together, that a mapping should keep.
const HASH_BITS_MIN: u32 = 36;

/// How hashes and locations are packed, for a device of some size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexShape {
    table: TableShape,
    shard_bits: u32,
    unit_bytes: u64,
    offset_bits: u32,
}

impl IndexShape {
    /// The shape for a device of `capacity` bytes and 2^`shard_bits` shards.
    pub fn new(capacity: u64, shard_bits: u32) -> Self {
        let mut unit_bytes = 16;
        // Beyond 4 TiB the unit grows, so that offsets stay within 38 bits and tags within an entry of 10 bytes.
        while capacity / unit_bytes > 1 << 38 {
            unit_bytes *= 2;
        }
        let offset_bits = 64 - (capacity / unit_bytes).saturating_sub(1).leading_zeros();
        let payload_bits = offset_bits + LEN_BITS;
        let rest_bytes = (6..8)
            .find(|r| payload_bits < 8 * r && 16 + 8 * r - payload_bits + shard_bits >= HASH_BITS_MIN)
            .unwrap_or(8);
        Self {
            table: TableShape::new(rest_bytes as usize, payload_bits),
            shard_bits,
            unit_bytes,
            offset_bits,
        }
    }

    /// Objects start and end at multiples of this many bytes.
    pub fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    /// The longest object that can be mapped, in bytes, padding included.
    pub fn len_max(&self) -> u64 {
        self.unit_bytes << LEN_BITS
    }

    /// Bytes of one mapping, without slack.
    pub fn entry_bytes(&self) -> usize {
        self.table.entry_bytes()
    }

    /// How many bits of a hash, from the top, this index tells apart: keys that agree in them are one key to it.
    pub fn identity_bits(&self) -> u32 {
        (self.shard_bits + self.table.tag_bits()).min(64)
    }

    /// The shard that `hash` belongs to.
    pub fn shard_of(&self, hash: KeyHash) -> usize {
        if self.shard_bits == 0 {
            0
        } else {
            (hash >> (64 - self.shard_bits)) as usize
        }
    }

    /// Number of shards.
    pub fn shards(&self) -> usize {
        1 << self.shard_bits
    }

    fn tag(&self, hash: KeyHash) -> u64 {
        (hash << self.shard_bits) >> (64 - self.table.tag_bits())
    }

    fn pack(&self, location: Location) -> u64 {
        let offset = location.offset / self.unit_bytes;
        let len = u64::from(location.len) / self.unit_bytes;
        debug_assert!(location.offset.is_multiple_of(self.unit_bytes) && offset >> self.offset_bits == 0);
        debug_assert!(
            len > 0 && len <= 1 << LEN_BITS && u64::from(location.len).is_multiple_of(self.unit_bytes)
        );
        (len - 1) << self.offset_bits | offset
    }

    fn unpack(&self, payload: u64) -> Location {
        let offset = payload & ((1 << self.offset_bits) - 1);
        let len = (payload >> self.offset_bits) + 1;
        Location {
            offset: offset * self.unit_bytes,
            len: u32::try_from(len * self.unit_bytes).expect("at most 2^16 units of at most 2^15 bytes"),
        }
    }
}

/// One shard of the full index.
pub struct FullShard {
    shape: IndexShape,
    table: PackedTable,
}

impl FullShard {
    /// An empty shard that takes its pages from `pool`.
    pub fn new(shape: IndexShape, pool: Arc<PagePool>) -> Self {
        Self {
            shape,
            table: PackedTable::new(shape.table, pool),
        }
    }

    /// What is known of `hash`.
    pub fn lookup(&self, hash: KeyHash) -> Lookup {
        match self.get(hash) {
            Some(location) => Lookup::Hit(Candidates(location)),
            None => Lookup::Miss,
        }
    }

    /// Where `hash` is mapped to.
    pub fn get(&self, hash: KeyHash) -> Option<Location> {
        self.table
            .find(self.shape.tag(hash), |_| true)
            .map(|p| self.shape.unpack(p))
    }

    /// Maps `hash` to `location`, in place of whatever it was mapped to, which is returned.
    ///
    /// # Errors
    /// [`TableFull`] where the hash was not mapped and no page is to be had; nothing has changed then.
    pub fn set(&mut self, hash: KeyHash, location: Location) -> Result<Option<Location>, TableFull> {
        let tag = self.shape.tag(hash);
        let new = self.shape.pack(location);
        if let Some((old, _)) = self.table.update(tag, |_| Some(new)) {
            return Ok(Some(self.shape.unpack(old)));
        }
        self.table.insert(tag, new)?;
        Ok(None)
    }

    /// Maps `hash` to `new` if it is mapped to `old`: how a survivor's copy becomes live.
    pub fn compare_and_set(&mut self, hash: KeyHash, old: Location, new: Location) -> bool {
        let (old, new) = (self.shape.pack(old), self.shape.pack(new));
        self.table
            .update(self.shape.tag(hash), |p| (p == old).then_some(new))
            .is_some()
    }

    /// Removes the mapping of `hash`, whatever it is.
    pub fn remove(&mut self, hash: KeyHash) -> Option<Location> {
        self.table
            .remove(self.shape.tag(hash), |_| true)
            .map(|p| self.shape.unpack(p))
    }

    /// Removes the mapping of `hash` if it is `location`.
    pub fn remove_at(&mut self, hash: KeyHash, location: Location) -> bool {
        let packed = self.shape.pack(location);
        self.table.remove(self.shape.tag(hash), |p| p == packed).is_some()
    }

    /// Whether `hash` is mapped to `location`, which is what makes a copy live.
    pub fn is_live(&self, hash: KeyHash, location: Location) -> bool {
        let packed = self.shape.pack(location);
        self.table.find(self.shape.tag(hash), |p| p == packed).is_some()
    }

    /// Bytes of one dumped mapping.
    pub fn entry_bytes(&self) -> usize {
        self.shape.entry_bytes()
    }

    /// Number of mappings.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is no mapping.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// DRAM held, in bytes, slack included.
    pub fn dram_bytes(&self) -> usize {
        self.table.dram_bytes()
    }

    /// Calls `visit` with every location.
    pub fn for_each(&self, mut visit: impl FnMut(Location)) {
        self.table
            .for_each(|_, payload| visit(self.shape.unpack(payload)));
    }

    /// Keeps the mappings whose location `keep` likes.
    pub fn retain(&mut self, mut keep: impl FnMut(Location) -> bool) {
        let shape = self.shape;
        self.table.retain(|_, payload| keep(shape.unpack(payload)));
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.table.clear();
    }

    /// Appends every mapping to `out`, [`IndexShape::entry_bytes`] bytes each: for a checkpoint.
    pub fn dump(&self, out: &mut Vec<u8>) {
        let payload_bits = self.shape.table.payload_bits();
        out.reserve(self.table.len() * self.shape.entry_bytes());
        self.table.for_each(|tag, payload| {
            let whole = u128::from(tag) << payload_bits | u128::from(payload);
            out.extend_from_slice(&whole.to_le_bytes()[..self.shape.entry_bytes()]);
        });
    }

    /// Adds one mapping that [`FullShard::dump`] wrote, if `keep` likes its location; false where there is no room.
    /// The bytes have been checked by the caller's checksum; a wrong length is ignored.
    pub fn load(&mut self, entry: &[u8], keep: impl FnOnce(Location) -> bool) -> bool {
        if entry.len() != self.shape.entry_bytes() {
            return true;
        }
        let mut wide = [0; 16];
        wide[..entry.len()].copy_from_slice(entry);
        let whole = u128::from_le_bytes(wide);
        let payload_bits = self.shape.table.payload_bits();
        let payload = (whole & ((1 << payload_bits) - 1)) as u64;
        let tag = (whole >> payload_bits) as u64;
        !keep(self.shape.unpack(payload)) || self.table.insert(tag, payload).is_ok()
    }

    /// Re-derives the table's accounting.
    ///
    /// # Panics
    /// Where it does not agree.
    pub fn check_invariants(&self) {
        self.table.check_invariants();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(capacity: u64, shard_bits: u32) -> FullShard {
        FullShard::new(
            IndexShape::new(capacity, shard_bits),
            PagePool::standalone(1 << 20).unwrap(),
        )
    }

    #[test]
    fn locations_survive_packing_at_every_size_of_device() {
        for capacity in [1 << 20, 2 << 30, 64 << 30, 3 << 40, 64u64 << 40] {
            let mut shard = shard(capacity, 8);
            let unit = shard.shape.unit_bytes();
            for location in [
                Location {
                    offset: 0,
                    len: unit as u32,
                },
                Location {
                    offset: capacity - shard.shape.len_max().min(capacity / 2),
                    len: unit as u32 * 3,
                },
                Location {
                    offset: unit * 7,
                    len: (shard.shape.len_max()) as u32,
                },
            ] {
                shard.set(99, location).unwrap();
                assert_eq!(shard.get(99), Some(location), "capacity {capacity}");
                let mut bytes = Vec::new();
                shard.dump(&mut bytes);
                assert_eq!(bytes.len(), shard.shape.entry_bytes());
                shard.clear();
                assert!(shard.load(&bytes, |_| true));
                assert_eq!(shard.get(99), Some(location));
            }
        }
    }

    #[test]
    fn a_hash_and_tag_collision_replaces_and_conditional_changes_see_it() {
        let mut shard = shard(1 << 30, 4);
        let (a, b) = (0x1234_5678_9ABC_0000, 0x1234_5678_9ABC_0001);
        let at = |offset| Location { offset, len: 160 };
        assert_eq!(shard.set(a, at(0)), Ok(None));
        assert_eq!(
            shard.set(b, at(160)),
            Ok(Some(at(0))),
            "the tags are equal, so the stranger is replaced"
        );
        assert!(!shard.is_live(a, at(0)));
        assert!(!shard.compare_and_set(a, at(0), at(320)));
        assert!(shard.compare_and_set(b, at(160), at(320)));
        assert!(!shard.remove_at(b, at(160)));
        assert!(shard.remove_at(b, at(320)));
        assert!(shard.is_empty());
    }

    #[test]
    fn mappings_cost_nine_bytes_up_to_some_gigabytes_and_ten_above() {
        assert_eq!(IndexShape::new(4 << 30, 8).entry_bytes(), 9);
        assert_eq!(IndexShape::new(3 << 40, 8).entry_bytes(), 10);
    }
}
