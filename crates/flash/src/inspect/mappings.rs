//! Mappings as checkpoints and pages have them, and the partitions of a cascade index.

use super::stream::{Broken, Snapshot, Stream};
use super::{Part, Source, Walk};
use crate::checkpoint::BlockRole;
use crate::superblock::Superblock;
use pumice_index::cascade::{PAGE_ENTRIES, SLOT_BITS};
use pumice_index::{IndexKind, IndexShape, Location};

/// Bits of a length code.
const LEN_BITS: u32 = 12;
/// Pages of a generation, and the width of the entries of its filter.
const GENERATION_PAGES: u32 = 8;
const GENERATION_WIDTH: u64 = 11;
/// The width of the entries of a wide table's filter.
const WIDE_WIDTH: u64 = 4;

/// How mappings of a cache are packed.
pub(super) struct MappingShape {
    pub(super) shards: u32,
    /// Bytes of a mapping in DRAM, and in a dump.
    pub(super) entry_bytes: usize,
    /// What a checkpoint says of it.
    pub(super) dumped_bytes: usize,
    pub(super) unit_bytes: u64,
    offset_bits: u32,
    pub(super) tag_bits: u32,
    pub(super) life_bits: u32,
}

impl MappingShape {
    pub(super) fn of(superblock: &Superblock) -> Self {
        let capacity = superblock.geometry.capacity;
        let (shards, note_bits) = match superblock.index {
            IndexKind::Full => (
                (capacity / (16 << 20)).clamp(16, 4096),
                superblock.layout.note_bits(),
            ),
            IndexKind::Cascade => (
                (capacity / (22 << 20)).next_power_of_two().clamp(16, 1 << 16),
                IndexShape::CASCADE_NOTE_BITS,
            ),
        };
        let shard_bits = shards.ilog2();
        let index = IndexShape::new(capacity, shard_bits, note_bits);
        let unit_bytes = index.unit_bytes();
        let offset_bits = 64 - (capacity / unit_bytes).saturating_sub(1).leading_zeros();
        let tag_bits = index.identity_bits() - shard_bits;
        Self {
            shards: 1 << shard_bits,
            entry_bytes: index.entry_bytes(),
            dumped_bytes: match superblock.index {
                IndexKind::Full => index.entry_bytes(),
                IndexKind::Cascade => 1,
            },
            unit_bytes,
            offset_bits,
            tag_bits,
            life_bits: (96 - tag_bits - offset_bits - LEN_BITS - SLOT_BITS).min(16),
        }
    }

    fn place_bits(&self) -> u32 {
        self.offset_bits + LEN_BITS
    }

    /// Offset and length, where a mapping's lowest bits say them; `None` where it has no place.
    pub(super) fn location(&self, packed: u128) -> Option<Location> {
        let place = (packed & ((1 << self.place_bits()) - 1)) as u64;
        let code = place >> self.offset_bits;
        let units = match code >> 8 {
            0 => code + 1,
            exponent => (257 + (code & 0xFF)) << (exponent - 1),
        };
        (place != 0).then_some(Location {
            offset: (place & ((1 << self.offset_bits) - 1)) * self.unit_bytes,
            len: u32::try_from(units * self.unit_bytes).unwrap_or(u32::MAX),
        })
    }

    /// What an entry of a page has beside its place: tag and life.
    pub(super) fn tag_and_life(&self, packed: u128) -> (u128, u64) {
        let life = packed & ((1 << self.life_bits) - 1);
        let rest = packed >> self.life_bits;
        (rest >> (self.place_bits() + SLOT_BITS), life as u64)
    }

    /// What a page keeps of a block's sequence.
    pub(super) fn life(&self, sequence: u64) -> u64 {
        let lives = (1 << self.life_bits) - 1;
        sequence.checked_sub(1).map_or(0, |number| 1 + number % lives)
    }
}

/// An unsigned integer of up to 16 bytes.
pub(super) fn packed(bytes: &[u8]) -> u128 {
    let mut wide = [0; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    u128::from_le_bytes(wide)
}

impl<S: Source + ?Sized> Walk<'_, S> {
    /// What is wrong with a mapping in DRAM's form, if anything.
    pub(super) fn misleads(&self, shape: &MappingShape, entry: &[u8], snapshot: &Snapshot) -> Option<String> {
        self.leads_outside(shape.location(packed(entry))?, snapshot)
    }

    /// Why nothing can stand at a location, if so.
    pub(super) fn leads_outside(&self, location: Location, snapshot: &Snapshot) -> Option<String> {
        let geometry = &self.superblock.geometry;
        let says = format!("a mapping leads to {} bytes at {}", location.len, location.offset);
        let Some(block) = geometry.block_of(location.offset) else {
            return Some(format!("{says}, outside all blocks"));
        };
        let end = location.offset - geometry.block_offset(block) + u64::from(location.len);
        if end > geometry.block_bytes {
            return Some(format!("{says}, across the end of block {block}"));
        }
        let row = snapshot.row(block).filter(|row| row.role == BlockRole::Sealed)?;
        let is_there = row.sequence > self.reclaimed[block as usize];
        (is_there && end > geometry.block_bytes - u64::from(row.footer_len))
            .then(|| format!("{says}, in the footer of block {block}"))
    }

    /// Reads the image of a partition.
    #[expect(clippy::too_many_arguments, reason = "a step of reading a checkpoint")]
    pub(super) fn partition(
        &mut self,
        stream: &mut Stream<'_, S>,
        id: u64,
        partition: u32,
        len: u64,
        shape: &MappingShape,
        snapshot: &mut Snapshot,
        is_base: bool,
    ) -> Result<(), Broken> {
        let start = stream.taken;
        let tier1 = stream.u32()?;
        snapshot.mappings += u64::from(tier1);
        let mut wrong = Vec::new();
        stream.items(tier1.into(), shape.entry_bytes, |entry, offset| {
            wrong.extend(self.misleads(shape, entry, snapshot).map(|what| (offset, what)));
        })?;
        for (offset, what) in wrong {
            self.wrong(Part::Checkpoint(id), offset, what);
        }
        let generations = stream.u32()?;
        for table in 0..=u64::from(generations) {
            let is_wide = table == u64::from(generations);
            let pages = stream.u32()?;
            if !is_wide && !(1..=GENERATION_PAGES).contains(&pages) {
                return Err(stream.broken(format!("partition {partition} has a generation of {pages} pages")));
            }
            let mut numbers = Vec::new();
            for _ in 0..pages {
                let (offset, number) = (stream.offset(), stream.u32()?);
                numbers.push((offset, number));
                if numbers.len() == 1024 {
                    self.pages(&std::mem::take(&mut numbers), partition, shape, snapshot, is_base);
                }
            }
            self.pages(&numbers, partition, shape, snapshot, is_base);
            let entries = filter(stream, if is_wide { WIDE_WIDTH } else { GENERATION_WIDTH })?;
            let entries_max = u64::from(pages) * PAGE_ENTRIES as u64;
            if entries > entries_max {
                let what =
                    format!("partition {partition} has a filter of {entries} entries over {pages} pages");
                return Err(stream.broken(what));
            }
            if is_wide {
                starts(stream, partition, pages, entries)?;
            }
        }
        let taken = stream.taken - start;
        if taken == len {
            Ok(())
        } else {
            Err(stream.broken(format!(
                "partition {partition} has {taken} bytes, and {len} were announced"
            )))
        }
    }
}

/// Reads how many entries stand before those of each page of the wide table.
fn starts<S: Source + ?Sized>(
    stream: &mut Stream<'_, S>,
    partition: u32,
    pages: u32,
    entries: u64,
) -> Result<(), Broken> {
    let mut is_whole = pages != 0 || entries == 0;
    let mut before = None;
    stream.items(pages.into(), 4, |start, _| {
        let start = packed(start) as u64;
        let of_page = start.checked_sub(before.unwrap_or(0));
        // The first page begins where the filter does.
        let most = before.map_or(0, |_| PAGE_ENTRIES as u64);
        is_whole &= of_page.is_some_and(|entries| entries <= most);
        before = Some(start);
    })?;
    let of_last = entries.checked_sub(before.unwrap_or(0));
    if is_whole && of_last.is_some_and(|entries| entries <= PAGE_ENTRIES as u64) {
        Ok(())
    } else {
        Err(stream.broken(format!(
            "partition {partition} has pages that do not share {entries} entries"
        )))
    }
}

/// Reads a filter and returns how many entries it has.
fn filter<S: Source + ?Sized>(stream: &mut Stream<'_, S>, width: u64) -> Result<u64, Broken> {
    let (buckets, len) = (u64::from(stream.u32()?), u64::from(stream.u32()?));
    let (mut ones, mut left) = (0, buckets + len);
    stream.items((buckets + len).div_ceil(64), 8, |word, _| {
        let word = packed(word) as u64;
        let bits = left.min(64) as u32;
        left -= u64::from(bits);
        ones += u64::from((word << (64 - bits)).count_ones());
    })?;
    if buckets == 0 || ones != buckets {
        return Err(stream.broken(format!("a filter has {ones} of {buckets} buckets")));
    }
    stream.items((len * width).div_ceil(64), 8, |_, _| {})?;
    Ok(len)
}
