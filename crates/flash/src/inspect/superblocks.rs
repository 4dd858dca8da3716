//! The two superblocks: which counts, and whether they agree.

use super::bit::{flipped_bit, say};
use super::{InspectError, Part, Sink, Source, Summary, Walk};
use crate::codec::checksum;
use crate::geometry::SUPERBLOCKS_BYTES;
use crate::superblock::{SlotContent, Superblock};
use pumice_device::SECTOR_BYTES;

const SECTOR: u64 = SECTOR_BYTES as u64;
/// Fields that no start and no checkpoint changes: magic and format, the hash seed and the division, the layout, the index and the
/// zeros behind it.
const CONSTANT: [std::ops::Range<usize>; 4] = [0..12, 24..88, 104..106, 172..SECTOR_BYTES];

/// Reads the superblocks and begins a walk with the one that counts.
pub(super) fn open<'a, S: Source + ?Sized>(
    source: &'a S,
    sink: &'a mut dyn Sink,
    verify: bool,
) -> Result<Walk<'a, S>, InspectError> {
    let len = source.len();
    if len == 0 {
        return Err(InspectError::Empty);
    }
    if len < SUPERBLOCKS_BYTES {
        return Err(InspectError::TooShort { len });
    }
    let mut sectors = vec![0; 2 * SECTOR_BYTES];
    let mut unread = [None, None];
    for (slot, sector) in sectors.chunks_exact_mut(SECTOR_BYTES).enumerate() {
        unread[slot] = source.read(slot as u64 * SECTOR, sector).err();
    }
    let slots: Vec<SlotContent> = sectors
        .chunks_exact(SECTOR_BYTES)
        .map(Superblock::decode)
        .collect();
    let newest = slots
        .iter()
        .enumerate()
        .filter_map(|(slot, content)| match content {
            SlotContent::Valid(superblock) => Some((slot, *superblock)),
            _ => None,
        });
    let Some((slot, superblock)) = newest.max_by_key(|(_, superblock)| superblock.generation) else {
        let [first, second] = unread;
        return Err(first
            .or(second)
            .map_or_else(|| refusal(&slots), InspectError::Read));
    };
    if len < superblock.geometry.capacity {
        let capacity = superblock.geometry.capacity;
        return Err(InspectError::Truncated { len, capacity });
    }
    let blocks = superblock.geometry.blocks as usize;
    let mut walk = Walk {
        source,
        sink,
        verify,
        superblock,
        summary: Summary::new(superblock, len, verify),
        reclaimed: vec![0; blocks],
        in_chain: vec![false; blocks],
    };
    walk.used(0, SUPERBLOCKS_BYTES);
    let other = 1 - slot;
    match unread[other].take() {
        Some(error) => walk.wrong(
            Part::Superblock(other as u32),
            other as u64 * SECTOR,
            format!("it cannot be read: {error}"),
        ),
        None => walk.other_slot(
            other,
            &slots[other],
            &sectors[other * SECTOR_BYTES..][..SECTOR_BYTES],
        ),
    }
    for (slot, content) in slots.iter().enumerate() {
        if let SlotContent::Valid(superblock) = content
            && superblock.slot_offset() != slot as u64 * SECTOR
        {
            walk.wrong(
                Part::Superblock(slot as u32),
                slot as u64 * SECTOR,
                format!("generation {} belongs in the other slot", superblock.generation),
            );
        }
    }
    Ok(walk)
}

/// Why no superblock is of use.
fn refusal(slots: &[SlotContent]) -> InspectError {
    if let Some(format) = slots.iter().find_map(|slot| match slot {
        SlotContent::OtherFormat(format) => Some(*format),
        _ => None,
    }) {
        return InspectError::OtherFormat(format);
    }
    if slots.contains(&SlotContent::Foreign) && !slots.contains(&SlotContent::Damaged) {
        return InspectError::NotACache;
    }
    if slots.contains(&SlotContent::Damaged) {
        return InspectError::Damaged;
    }
    InspectError::Blank
}

impl<S: Source + ?Sized> Walk<'_, S> {
    /// Compares the slot that does not count with the one that does. It is one generation older, or was being written at a crash.
    fn other_slot(&mut self, slot: usize, content: &SlotContent, sector: &[u8]) {
        let (part, offset) = (Part::Superblock(slot as u32), slot as u64 * SECTOR);
        let newest = self.superblock;
        let is_first = newest.generation == 1;
        match content {
            SlotContent::Valid(other) => self.older_superblock(part, offset, other),
            _ if is_first => self.note(
                part,
                offset,
                "it was never written whole: formatting was cut short".to_owned(),
            ),
            SlotContent::Empty => self.wrong(part, offset, "it is all zero".to_owned()),
            SlotContent::Foreign => self.wrong(part, offset, "it does not begin with `PUMICE`".to_owned()),
            SlotContent::OtherFormat(format) => {
                self.wrong(
                    part,
                    offset,
                    format!("it has format version {format}, the other one has not"),
                );
            }
            SlotContent::Damaged => self.damaged_superblock(part, offset, sector),
        }
    }

    fn older_superblock(&mut self, part: Part, offset: u64, other: &Superblock) {
        let newest = self.superblock;
        if other.cache_id != newest.cache_id {
            // A start that empties the cache, or a reformat, writes the slots one after the other.
            if other.generation + 1 == newest.generation || other.generation == 1 {
                let what = "it is of another cache: emptying or formatting it was cut short";
                return self.note(part, offset, what.to_owned());
            }
            let what = format!(
                "the copies disagree: cache id {:016x} here, {:016x} in the other",
                other.cache_id, newest.cache_id
            );
            return self.wrong(part, offset, what);
        }
        let mut disagree = |what: &str, here: String, there: String| {
            let what = format!("the copies disagree: {what} is {here} here, {there} in the other");
            self.wrong(part, offset, what);
        };
        if other.geometry != newest.geometry {
            let [here, there] = [other, &newest].map(|copy| {
                let geometry = copy.geometry;
                format!(
                    "{} bytes in blocks of {}",
                    geometry.capacity, geometry.block_bytes
                )
            });
            disagree("the division", here, there);
        }
        if other.hash_seed != newest.hash_seed {
            let [here, there] = [other, &newest].map(|copy| format!("{:016x}", copy.hash_seed));
            disagree("the hash seed", here, there);
        }
        if other.layout != newest.layout {
            disagree("the layout", other.layout.to_string(), newest.layout.to_string());
        }
        if other.index != newest.index {
            disagree("the index", other.index.to_string(), newest.index.to_string());
        }
        if other.generation + 1 != newest.generation {
            let there = format!("{}, which is not the next", newest.generation);
            disagree("the generation", other.generation.to_string(), there);
        }
        if other.epoch > newest.epoch {
            let there = format!("{}, though that is newer", newest.epoch);
            disagree("the epoch", other.epoch.to_string(), there);
        }
    }

    fn damaged_superblock(&mut self, part: Part, offset: u64, sector: &[u8]) {
        let stored = u32::from_le_bytes([sector[12], sector[13], sector[14], sector[15]]);
        let computed = checksum(0, &[&sector[..12], &sector[16..]]);
        if let Some(flip) = flipped_bit(SECTOR_BYTES - 4, stored, computed) {
            let place = |byte: usize| offset + (if byte < 12 { byte } else { byte + 4 }) as u64;
            let what = format!("its checksum is wrong: {}", say(flip, offset + 12, place));
            return self.wrong(part, offset, what);
        }
        let newest = self.superblock.encode();
        let differs = CONSTANT
            .into_iter()
            .find(|range| sector[range.clone()] != newest[range.clone()]);
        match differs {
            _ if stored == computed => {
                self.wrong(part, offset, "its fields contradict one another".to_owned());
            }
            Some(range) => {
                let what = format!(
                    "its checksum is wrong, and bytes {} to {} are not those of the other",
                    range.start,
                    range.end - 1
                );
                self.wrong(part, offset, what);
            }
            // The process went on after the last write that it made to this slot.
            None if self.superblock.clean => self.wrong(part, offset, "its checksum is wrong".to_owned()),
            None => self.note(
                part,
                offset,
                "it was torn by a crash: its checksum is wrong, and what never changes is right".to_owned(),
            ),
        }
    }
}
