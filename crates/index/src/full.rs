//! The full index: every mapping in DRAM, at nine to eleven bytes an object.
//!
//! Hash bits are used from the top: the first choose the shard, the next are the tag. Two keys with the same shard
//! and tag are one key to this index: the later takes the earlier's place. With 36 to 42 bits that happens to one object in
//! some thousands at 10 million objects; whoever reads verifies the full key, so it costs a miss, never a wrong value.
//!
//! Every method is called under the shard's lock, which the owner of the shards holds; none waits for anything.

use crate::{KeyHash, Location, Mapping, PackedTable, TableFull, TableShape};
use pumice_memory::PagePool;
use std::sync::Arc;

/// Bits of a length: 4 of exponent, 8 of mantissa.
const LEN_BITS: u32 = 12;
/// The longest object in units; with units of 8 bytes 1 MiB.
pub const UNITS_MAX: u64 = 1 << 17;
/// Bits of an offset in units, at most: beyond that the unit grows.
const OFFSET_BITS_MAX: u32 = 38;
/// Hash bits, shard and tag together, that a mapping should keep.
const HASH_BITS_MIN: u32 = 36;

/// Of a mapping of the cascade index, bits of the note that go with it wherever it is: which object of its block it is, of those near its place.
pub const SLOT_BITS: u32 = 6;
/// Bits beside place and slot in tier 1.
const FLAG_BITS: u32 = 4;

/// How hashes and locations are packed, for a device of some size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexShape {
    table: TableShape,
    shard_bits: u32,
    unit_bytes: u64,
    offset_bits: u32,
    note_bits: u32,
}

/// The code of a length in units. Up to 512 units each has its own; above, those that are a multiple of a power of two: the step
/// is at most 1/256 of the length.
fn code_of_len(units: u64) -> u64 {
    if units <= 256 {
        return units - 1;
    }
    let exponent = u64::from((units - 1).ilog2()) - 7;
    exponent << 8 | (((units - 1) >> (exponent - 1)) - 256)
}

/// The length in units that a code stands for: the longest of those that share it.
fn len_of_code(code: u64) -> u64 {
    match code >> 8 {
        0 => code + 1,
        exponent => (257 + (code & 0xFF)) << (exponent - 1),
    }
}

/// The length in bytes that a record of `len` bytes takes on a device with this unit: the next that a mapping can say.
pub fn padded_len(len: u64, unit_bytes: u64) -> u64 {
    let units = len.div_ceil(unit_bytes).max(1);
    if units > UNITS_MAX {
        return units * unit_bytes;
    }
    len_of_code(code_of_len(units)) * unit_bytes
}

/// The longest record that takes no more than `room` bytes on a device with this unit, as [`padded_len`] has it.
pub fn unpadded_len(room: u64, unit_bytes: u64) -> u64 {
    let units = (room / unit_bytes).min(UNITS_MAX);
    // No code is between two multiples of this.
    let step = 1 << units.max(1).ilog2().saturating_sub(8);
    units / step * step * unit_bytes
}

impl IndexShape {
    /// The shape for a device of `capacity` bytes and 2^`shard_bits` shards, with `note_bits` (at most 16) beside each location.
    pub fn new(capacity: u64, shard_bits: u32, note_bits: u32) -> Self {
        let mut unit_bytes = 8;
        // On large devices the unit grows, so that enough hash bits find room in an entry of 10 bytes.
        while capacity / unit_bytes > 1 << (OFFSET_BITS_MAX - note_bits.min(4)) {
            unit_bytes *= 2;
        }
        let offset_bits = 64 - (capacity / unit_bytes).saturating_sub(1).leading_zeros();
        let payload_bits = offset_bits + LEN_BITS + note_bits;
        let rest_bytes = (6..8)
            .find(|r| payload_bits < 8 * r && 16 + 8 * r - payload_bits + shard_bits >= HASH_BITS_MIN)
            .unwrap_or(8);
        Self {
            table: TableShape::new(rest_bytes as usize, payload_bits),
            shard_bits,
            unit_bytes,
            offset_bits,
            note_bits,
        }
    }

    /// Bits of note that the cascade index needs.
    pub const CASCADE_NOTE_BITS: u32 = FLAG_BITS + SLOT_BITS;

    pub(crate) fn table(&self) -> TableShape {
        self.table
    }

    /// Objects start and end at multiples of this many bytes.
    pub fn unit_bytes(&self) -> u64 {
        self.unit_bytes
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

    pub(crate) fn tag(&self, hash: KeyHash) -> u64 {
        (hash << self.shard_bits) >> (64 - self.table.tag_bits())
    }

    /// How many bits of a hash, below those that choose the shard, a mapping keeps.
    pub fn tag_bits(&self) -> u32 {
        self.table.tag_bits()
    }

    /// Where an entry that a shard dumped leads to; `None` where it says that a key is gone.
    pub fn dumped_location(&self, entry: &[u8]) -> Option<Location> {
        let (_, payload) = self.table.undump(entry);
        let place = self.place(payload);
        (place != 0).then(|| self.unpack_place(place))
    }

    pub(crate) fn place_bits(&self) -> u32 {
        self.offset_bits + LEN_BITS
    }

    /// The payload without its note.
    pub(crate) fn place(&self, payload: u64) -> u64 {
        payload & ((1 << self.place_bits()) - 1)
    }

    pub(crate) fn pack_place(&self, location: Location) -> u64 {
        let offset = location.offset / self.unit_bytes;
        let len = u64::from(location.len) / self.unit_bytes;
        debug_assert!(location.offset.is_multiple_of(self.unit_bytes) && offset >> self.offset_bits == 0);
        debug_assert_eq!(
            padded_len(location.len.into(), self.unit_bytes),
            u64::from(location.len)
        );
        code_of_len(len) << self.offset_bits | offset
    }

    pub(crate) fn pack(&self, mapping: Mapping) -> u64 {
        debug_assert!(u64::from(mapping.note) >> self.note_bits == 0);
        u64::from(mapping.note) << self.place_bits() | self.pack_place(mapping.location)
    }

    pub(crate) fn unpack_place(&self, place: u64) -> Location {
        let offset = place & ((1 << self.offset_bits) - 1);
        let len = len_of_code(place >> self.offset_bits) * self.unit_bytes;
        Location {
            offset: offset * self.unit_bytes,
            // Damage may make a code that no record has.
            len: u32::try_from(len).unwrap_or(u32::MAX),
        }
    }

    pub(crate) fn unpack(&self, payload: u64) -> Mapping {
        Mapping {
            location: self.unpack_place(self.place(payload)),
            note: (payload >> self.place_bits()) as u32,
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

    /// Asks for the memory that a question about `hash` will need.
    pub fn prefetch(&self, hash: KeyHash) {
        self.table.prefetch(self.shape.tag(hash));
    }

    /// Where `hash` is mapped to, and the note.
    pub fn mapping(&self, hash: KeyHash) -> Option<Mapping> {
        self.table
            .find(self.shape.tag(hash), |_| true)
            .map(|p| self.shape.unpack(p))
    }

    /// The mapping of `hash` if it is to `location`, which is what makes a copy live.
    pub fn live(&self, hash: KeyHash, location: Location) -> Option<Mapping> {
        let place = self.shape.pack_place(location);
        self.table
            .find(self.shape.tag(hash), |p| self.shape.place(p) == place)
            .map(|p| self.shape.unpack(p))
    }

    /// Maps `hash`, in place of whatever it was mapped to, which is returned.
    ///
    /// # Errors
    /// [`TableFull`] where the hash was not mapped and no page is to be had; nothing has changed then.
    pub fn set(&mut self, hash: KeyHash, mapping: Mapping) -> Result<Option<Mapping>, TableFull> {
        let tag = self.shape.tag(hash);
        let new = self.shape.pack(mapping);
        if let Some((old, _)) = self.table.update(tag, |_| Some(new)) {
            return Ok(Some(self.shape.unpack(old)));
        }
        self.table.insert(tag, new)?;
        Ok(None)
    }

    /// Changes the note of `hash` to what `note` says, if it is mapped to `location`; false where it is not.
    pub fn hit(&mut self, hash: KeyHash, location: Location, mut note: impl FnMut(Mapping) -> u32) -> bool {
        let shape = self.shape;
        let place = shape.pack_place(location);
        let changed = self.table.update(shape.tag(hash), |payload| {
            (shape.place(payload) == place).then(|| {
                let mapping = shape.unpack(payload);
                let note = note(mapping);
                shape.pack(Mapping { note, ..mapping })
            })
        });
        changed.is_some()
    }

    /// Removes the mapping of `hash`, whatever it is.
    pub fn remove(&mut self, hash: KeyHash) -> Option<Mapping> {
        self.table
            .remove(self.shape.tag(hash), |_| true)
            .map(|p| self.shape.unpack(p))
    }

    /// Removes the mapping of `hash` if it is to `location`.
    pub fn remove_at(&mut self, hash: KeyHash, location: Location) -> Option<Mapping> {
        let shape = self.shape;
        let place = shape.pack_place(location);
        self.table
            .remove(shape.tag(hash), |p| shape.place(p) == place)
            .map(|p| shape.unpack(p))
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

    /// Calls `visit` with every mapping.
    pub fn for_each(&self, mut visit: impl FnMut(Mapping)) {
        self.table
            .for_each(|_, payload| visit(self.shape.unpack(payload)));
    }

    /// Changes the note of every mapping to what `note` says.
    pub fn rewrite_notes(&mut self, mut note: impl FnMut(Mapping) -> u32) {
        let shape = self.shape;
        self.table.rewrite(|payload| {
            let mapping = shape.unpack(payload);
            shape.pack(Mapping {
                note: note(mapping),
                ..mapping
            })
        });
    }

    /// Keeps the mappings that `keep` likes.
    pub fn retain(&mut self, mut keep: impl FnMut(Mapping) -> bool) {
        let shape = self.shape;
        self.table.retain(|_, payload| keep(shape.unpack(payload)));
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.table.clear();
    }

    /// Appends every mapping to `out`, [`IndexShape::entry_bytes`] bytes each: for a checkpoint.
    pub fn dump(&self, out: &mut Vec<u8>) {
        self.table.dump(out);
    }

    /// Makes room for so many mappings that [`FullShard::load`] is to bring.
    pub fn reserve(&mut self, mappings: usize) {
        self.table.reserve(mappings);
    }

    /// Adds one mapping that [`FullShard::dump`] wrote; false where there is no room. The bytes have been checked by the caller's
    /// checksum; a wrong length is ignored.
    pub fn load(&mut self, entry: &[u8]) -> bool {
        if entry.len() != self.shape.entry_bytes() {
            return true;
        }
        let (tag, payload) = self.shape.table.undump(entry);
        self.table.insert(tag, payload).is_ok()
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

    fn shard(capacity: u64, shard_bits: u32, note_bits: u32) -> FullShard {
        FullShard::new(
            IndexShape::new(capacity, shard_bits, note_bits),
            PagePool::standalone(1 << 20).unwrap(),
        )
    }

    #[test]
    fn lengths_are_told_apart_up_to_512_units_and_to_a_256th_above() {
        for units in 1..=UNITS_MAX {
            let padded = len_of_code(code_of_len(units));
            assert!(
                padded >= units && (padded - units) * 256 <= units,
                "{units}: {padded}"
            );
            assert!(units > 512 || padded == units);
            assert_eq!(len_of_code(code_of_len(padded)), padded);
            assert_eq!(padded_len(units * 16 - 15, 16), padded * 16);
            let unpadded = unpadded_len(units * 16 + 15, 16);
            assert_eq!(padded_len(unpadded, 16), unpadded);
            assert!(
                unpadded <= units * 16 && unpadded * 257 >= units * 16 * 256,
                "{unpadded} of {units}"
            );
        }
        assert!(code_of_len(UNITS_MAX) < 1 << LEN_BITS);
    }

    #[test]
    fn mappings_survive_packing_at_every_size_of_device() {
        for (capacity, note_bits) in [
            (1 << 20, 0),
            (2 << 30, 11),
            (64 << 30, 11),
            (3 << 40, 11),
            (64u64 << 40, 0),
        ] {
            let mut shard = shard(capacity, 8, note_bits);
            let unit = shard.shape.unit_bytes();
            for location in [
                Location {
                    offset: 0,
                    len: unit as u32,
                },
                Location {
                    offset: capacity - (unit * UNITS_MAX).min(capacity / 2),
                    len: unit as u32 * 3,
                },
                Location {
                    offset: unit * 7,
                    len: (unit * UNITS_MAX) as u32,
                },
            ] {
                let note = (1 << note_bits) - 1;
                let mapping = Mapping { location, note };
                shard.set(99, mapping).unwrap();
                assert_eq!(shard.mapping(99), Some(mapping), "capacity {capacity}");
                let mut bytes = Vec::new();
                shard.dump(&mut bytes);
                assert_eq!(bytes.len(), shard.shape.entry_bytes());
                shard.clear();
                assert!(shard.load(&bytes));
                assert_eq!(shard.mapping(99), Some(mapping));
                assert!(shard.hit(99, location, |mapping| mapping.note ^ note));
                assert_eq!(shard.live(99, location).map(|mapping| mapping.note), Some(0));
                shard.rewrite_notes(|_| note);
                assert_eq!(shard.mapping(99), Some(mapping));
            }
        }
    }

    #[test]
    fn a_hash_and_tag_collision_replaces_and_conditional_changes_see_it() {
        let mut shard = shard(1 << 30, 4, 0);
        let (a, b) = (0x1234_5678_9ABC_0000, 0x1234_5678_9ABC_0001);
        let at = |offset| Location { offset, len: 160 };
        let to = |offset| Mapping {
            location: at(offset),
            note: 0,
        };
        assert_eq!(shard.set(a, to(0)), Ok(None));
        assert_eq!(
            shard.set(b, to(160)),
            Ok(Some(to(0))),
            "the tags are equal, so the stranger is replaced"
        );
        assert!(shard.live(a, at(0)).is_none());
        assert!(!shard.hit(a, at(0), |_| unreachable!("it is not there")));
        assert!(shard.hit(b, at(160), |mapping| mapping.note));
        assert_eq!(shard.remove_at(b, at(320)), None);
        assert_eq!(shard.remove_at(b, at(160)), Some(to(160)));
        assert!(shard.is_empty());
    }

    #[test]
    fn mappings_cost_eight_to_ten_bytes_and_keep_enough_of_the_hash() {
        for (capacity, shard_bits, note_bits, bytes) in [
            (4 << 30, 8, 0, 9),
            (3 << 40, 12, 0, 10),
            (4 << 30, 8, 11, 10),
            (64 << 30, 12, 11, 10),
            (670 << 30, 12, 11, 10),
            (3u64 << 40, 12, 11, 10),
        ] {
            let shape = IndexShape::new(capacity, shard_bits, note_bits);
            assert_eq!(
                shape.entry_bytes(),
                bytes,
                "{capacity} bytes, {note_bits} bits of note"
            );
            assert!(
                shape.identity_bits() >= 35,
                "{capacity}: {} bits",
                shape.identity_bits()
            );
        }
    }

    #[test]
    fn a_length_that_no_record_has_is_read_from_any_size_of_device() {
        for capacity in [1 << 30, 4 << 40, 64 << 40] {
            let shape = IndexShape::new(capacity, 12, 4);
            let location = shape.dumped_location(&vec![0xFF; shape.entry_bytes()]);
            assert!(
                location.is_some_and(|location| u64::from(location.len) > shape.unit_bytes() * UNITS_MAX)
            );
        }
    }
}
