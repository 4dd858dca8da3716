//! The two superblocks: which counts, and whether they agree.

use super::{InspectError, Part, Sink, Source, Summary, Walk};
use crate::settings::{STORE, Settings};
use pumice_blocks::geometry::SUPERBLOCKS_BYTES;
use pumice_blocks::rot::mended;
use pumice_blocks::superblock::{SlotContent, Superblock};
use pumice_device::SECTOR_BYTES;
use pumice_record::codec::checksum;

const SECTOR: u64 = SECTOR_BYTES as u64;
/// Bytes that no start and no checkpoint changes: magic and format, the division, the maker, the store, its settings without the write
/// budget, and the zeros behind them.
const CONSTANT: [std::ops::Range<usize>; 5] = [0..12, 24..80, 103..104, 168..188, 200..SECTOR_BYTES];

/// Reads the superblocks and begins a walk with the one that counts.
pub(super) fn open<'a, S: Source + ?Sized>(
    source: &'a S,
    sink: &'a mut dyn Sink,
    verify: bool,
) -> Result<Walk<'a, S>, InspectError> {
    let len = source.bytes();
    if len == 0 {
        return Err(InspectError::Empty);
    }
    if len < SUPERBLOCKS_BYTES {
        return Err(InspectError::TooShort { len });
    }
    let mut sectors = [vec![0; SECTOR_BYTES], vec![0; SECTOR_BYTES]];
    let mut unread = [None, None];
    for (slot, sector) in sectors.iter_mut().enumerate() {
        unread[slot] = source.read(slot as u64 * SECTOR, sector).err();
    }
    let slots = sectors.each_ref().map(|sector| Superblock::decode(sector));
    let valid = slots
        .iter()
        .enumerate()
        .filter_map(|(slot, content)| match content {
            SlotContent::Valid(superblock) => Some((slot, *superblock)),
            _ => None,
        });
    let Some((slot, superblock)) = valid.max_by_key(|(_, superblock)| superblock.generation) else {
        let error = unread.into_iter().flatten().next();
        return Err(error.map_or_else(|| refusal(&slots), InspectError::Read));
    };
    if len < superblock.geometry.capacity {
        let capacity = superblock.geometry.capacity;
        return Err(InspectError::Truncated { len, capacity });
    }
    if superblock.store != STORE {
        return Err(InspectError::OtherStore(superblock.store));
    }
    let at = superblock.slot_offset();
    let settings = Settings::decode(&superblock.own).ok_or(InspectError::UnknownSettings { at })?;
    let blocks = superblock.geometry.blocks as usize;
    let mut walk = Walk {
        source,
        sink,
        verify,
        superblock,
        settings,
        summary: Summary {
            superblock,
            settings,
            device_bytes: len,
            verified: verify,
            will_be_emptied: superblock.discard && !superblock.clean,
            ..Summary::default()
        },
        reclaimed: vec![0; blocks],
        prefixed: vec![0; blocks],
        in_chain: vec![false; blocks],
    };
    walk.used(0, SUPERBLOCKS_BYTES);
    if superblock.slot_offset() != slot as u64 * SECTOR {
        walk.wrong_slot(slot, "its generation belongs in the other slot");
    }
    let other = 1 - slot;
    match &unread[other] {
        Some(error) => walk.wrong_slot(other, format!("it cannot be read: {error}")),
        None => walk.other_slot(other, &slots[other], &sectors[other]),
    }
    Ok(walk)
}

/// Why no superblock is of use.
fn refusal(slots: &[SlotContent]) -> InspectError {
    for slot in slots {
        if let SlotContent::OtherFormat(format) = slot {
            return InspectError::OtherFormat(*format);
        }
    }
    if slots.contains(&SlotContent::Damaged) {
        return InspectError::Damaged;
    }
    if slots.contains(&SlotContent::Foreign) {
        return InspectError::NotACache;
    }
    InspectError::Blank
}

impl<S: Source + ?Sized> Walk<'_, S> {
    fn wrong_slot(&mut self, slot: usize, what: impl Into<String>) {
        self.wrong(Part::Superblock(slot as u32), slot as u64 * SECTOR, what);
    }

    fn torn_slot(&mut self, slot: usize, what: &str) {
        self.tell(true, Part::Superblock(slot as u32), slot as u64 * SECTOR, what);
    }

    /// Compares the slot that does not count with the one that does. It is one generation older, or was being written at a crash.
    fn other_slot(&mut self, slot: usize, content: &SlotContent, sector: &[u8]) {
        let newest = self.superblock;
        match content {
            SlotContent::Valid(other) => self.older_superblock(slot, other),
            _ if newest.generation == 1 => {
                self.torn_slot(slot, "it was never written whole: formatting was cut short");
            }
            SlotContent::Empty => self.wrong_slot(slot, "it is all zero"),
            SlotContent::Foreign => self.wrong_slot(slot, "it does not begin with `PUMICE`"),
            SlotContent::OtherFormat(format) => {
                self.wrong_slot(
                    slot,
                    format!("it has format version {format}, the other one has not"),
                );
            }
            SlotContent::Damaged => {
                let encoded = newest.encode();
                let is_same =
                    |range: &std::ops::Range<usize>| sector[range.clone()] == encoded[range.clone()];
                let signed = [&sector[12..16], &sector[..12], &sector[16..]].concat();
                let is_signed = signed[..4] == checksum(0, &[&signed[4..]]).to_le_bytes();
                let is_rotten = is_signed || mended(0, &signed).is_some() || !CONSTANT.iter().all(is_same);
                if newest.clean || is_rotten {
                    self.wrong_slot(
                        slot,
                        "it is damaged: its checksum is wrong, or its fields contradict one another",
                    );
                } else {
                    self.torn_slot(slot, "it was torn by a crash: its checksum is wrong");
                }
            }
        }
    }

    fn older_superblock(&mut self, slot: usize, other: &Superblock) {
        let newest = self.superblock;
        // What the write budget had left is that of each time.
        let settings = Settings::decode(&other.own).map(|settings| Settings {
            budget: self.settings.budget,
            ..settings
        });
        if other.cache_id != newest.cache_id {
            // A start that empties the cache, or a reformat, writes the slots one after the other.
            if other.generation + 1 == newest.generation || other.generation == 1 {
                let what = "it is of another cache: emptying or formatting it was cut short";
                return self.torn_slot(slot, what);
            }
            return self.wrong_slot(slot, "the copies disagree: the cache id is another");
        }
        for (what, agrees) in [
            ("division", other.geometry == newest.geometry),
            ("store", other.store == newest.store),
            ("settings", settings == Some(self.settings)),
            ("generation", other.generation + 1 == newest.generation),
            ("epoch", other.epoch <= newest.epoch),
        ] {
            if !agrees {
                self.wrong_slot(
                    slot,
                    format!("the copies disagree: the {what} does not fit the other's"),
                );
            }
        }
    }
}
