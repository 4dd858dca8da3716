//! The superblock: what the device is, and where its newest checkpoints are. Two slots, written in turn.

use crate::geometry::Geometry;
use crate::layout::Layout;
use pumice_index::IndexKind;
use pumice_memory::SECTOR_BYTES;
use pumice_record::codec::{Fields, checksum};
use std::fmt;

const MAGIC: [u8; 8] = *b"PUMICE\r\n";
/// Version of every format on the device; a change of any of them is a new number.
pub const FORMAT: u32 = 3;

/// The program that made a cache. Others do not touch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Maker {
    /// A server.
    #[default]
    Serve = 1,
    /// A replay of a trace.
    Replay = 2,
}

impl fmt::Display for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Maker::Serve => "serve",
            Maker::Replay => "replay",
        })
    }
}

/// Where a checkpoint stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CheckpointRef {
    /// Its number, from 1; 0 = none.
    pub id: u64,
    /// Its first block.
    pub first_block: u32,
    /// Its length in bytes over all its blocks.
    pub len: u64,
    /// Log position from which on records are needed with it.
    pub log_start: u64,
}

/// A superblock, in one sector of each slot, little-endian; see `docs/formats.md` for the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Superblock {
    /// Random at format time.
    pub cache_id: u64,
    /// Seed of the key hash.
    pub hash_seed: u64,
    /// The division of the device.
    pub geometry: Geometry,
    /// How objects are arranged.
    pub layout: Layout,
    /// Where mappings are.
    pub index: IndexKind,
    /// What made it. A replay erases what it finds, and must not find a server's.
    pub maker: Maker,
    /// Counts superblock writes; the higher slot wins.
    pub generation: u64,
    /// Counts starts: the upper bits of versions.
    pub epoch: u32,
    /// Whether the last stop was clean, so that the newest checkpoint tells everything.
    pub clean: bool,
    /// Whether what is on flash must be forgotten unless the stop was clean (no log was kept, or it overflowed).
    pub discard: bool,
    /// Highest Unix time seen, in seconds.
    pub time: u32,
    /// The same of the last start, where its clock was far ahead of `time` and no second start has confirmed it; else 0. So a clock
    /// that is wrong once does not stay the cache's time.
    pub ahead: u32,
    /// Whether the last start was to use a performance tier. That decides how a later one takes a tier that it does not find.
    pub has_tier: bool,
    /// Newest checkpoint, and the one before.
    pub checkpoints: [CheckpointRef; 2],
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotContent {
    /// A good superblock.
    Valid(Superblock),
    /// Ours, but of another format version.
    OtherFormat(u32),
    /// Ours by its magic, but damaged.
    Damaged,
    /// All zero.
    Empty,
    /// Something else: not to be overwritten.
    Foreign,
}

impl Superblock {
    /// The slot that this generation is written to, as a byte offset.
    pub fn slot_offset(&self) -> u64 {
        (self.generation % 2) * SECTOR_BYTES as u64
    }

    /// Notes that it is `now`.
    pub(crate) fn saw(&mut self, now: u32) {
        let time = match self.ahead {
            0 => &mut self.time,
            _ => &mut self.ahead,
        };
        *time = now.max(*time);
    }

    /// The sector to write.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SECTOR_BYTES);
        let g = &self.geometry;
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        for field in [
            self.cache_id,
            self.hash_seed,
            g.capacity,
            g.block_bytes,
            u64::from(g.blocks),
            u64::from(g.reserved),
            g.log_offset,
            g.log_slots,
            g.data_offset,
            self.generation,
        ] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&self.time.to_le_bytes());
        out.extend_from_slice(&(self.layout as u16).to_le_bytes());
        out.extend_from_slice(&[u8::from(self.clean), u8::from(self.discard)]);
        for checkpoint in &self.checkpoints {
            out.extend_from_slice(&checkpoint.id.to_le_bytes());
            out.extend_from_slice(&checkpoint.first_block.to_le_bytes());
            out.extend_from_slice(&[0; 4]);
            out.extend_from_slice(&checkpoint.len.to_le_bytes());
            out.extend_from_slice(&checkpoint.log_start.to_le_bytes());
        }
        out.extend_from_slice(&[self.index as u8, self.maker as u8, u8::from(self.has_tier), 0]);
        out.extend_from_slice(&self.ahead.to_le_bytes());
        out.resize(SECTOR_BYTES, 0);
        let crc = checksum(0, &[&out[..12], &out[16..]]);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a slot.
    pub fn decode(sector: &[u8]) -> SlotContent {
        if sector.iter().all(|b| *b == 0) {
            return SlotContent::Empty;
        }
        if sector.get(..8) != Some(&MAGIC[..]) {
            return SlotContent::Foreign;
        }
        Self::decode_fields(sector).unwrap_or(SlotContent::Damaged)
    }

    fn decode_fields(sector: &[u8]) -> Option<SlotContent> {
        let mut fields = Fields(sector.get(8..SECTOR_BYTES)?);
        let format = fields.u32()?;
        let crc = fields.u32()?;
        if crc != checksum(0, &[&sector[..12], &sector[16..SECTOR_BYTES]]) {
            return None;
        }
        if format != FORMAT {
            return Some(SlotContent::OtherFormat(format));
        }
        let cache_id = fields.u64()?;
        let hash_seed = fields.u64()?;
        let capacity = fields.u64()?;
        let block_bytes = fields.u64()?;
        let blocks = u32::try_from(fields.u64()?).ok()?;
        let reserved = u32::try_from(fields.u64()?).ok()?;
        let (log_offset, log_slots, data_offset) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let generation = fields.count()?;
        let epoch = fields.u32()?;
        let time = fields.u32()?;
        let layout = Layout::from_number(fields.u16()?)?;
        let [clean, discard] = fields.array()?;
        let mut checkpoints = [CheckpointRef::default(); 2];
        for checkpoint in &mut checkpoints {
            checkpoint.id = fields.count()?;
            checkpoint.first_block = fields.u32()?;
            fields.u32()?;
            checkpoint.len = fields.count()?;
            checkpoint.log_start = fields.count()?;
        }
        let index = match fields.array()? {
            [0] => IndexKind::Full,
            [1] => IndexKind::Cascade,
            _ => return None,
        };
        let maker = match fields.array()? {
            [1] => Maker::Serve,
            [2] => Maker::Replay,
            _ => return None,
        };
        let [has_tier, _] = fields.array()?;
        let ahead = fields.u32()?;
        // The geometry follows from two numbers; anything else would be a lie that later arithmetic trusts.
        let geometry = Geometry {
            capacity,
            block_bytes,
            blocks,
            reserved,
            log_offset,
            log_slots,
            data_offset,
        };
        if Geometry::plan(capacity, block_bytes).ok() != Some(geometry) {
            return None;
        }
        Some(SlotContent::Valid(Self {
            cache_id,
            hash_seed,
            geometry,
            layout,
            index,
            maker,
            generation,
            epoch,
            clean: clean == 1,
            discard: discard == 1,
            time,
            ahead,
            has_tier: has_tier == 1,
            checkpoints,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_and_any_flipped_byte_is_found() {
        let superblock = Superblock {
            cache_id: 1,
            hash_seed: 2,
            geometry: Geometry::plan(1 << 30, 1 << 20).unwrap(),
            layout: Layout::Ripq,
            index: IndexKind::Cascade,
            maker: Maker::Replay,
            generation: 7,
            epoch: 3,
            clean: true,
            discard: false,
            time: 12,
            ahead: 13,
            has_tier: true,
            checkpoints: [
                CheckpointRef {
                    id: 4,
                    first_block: 5,
                    len: 6,
                    log_start: 8,
                },
                CheckpointRef::default(),
            ],
        };
        let sector = superblock.encode();
        assert_eq!(sector.len(), SECTOR_BYTES);
        assert_eq!(Superblock::decode(&sector), SlotContent::Valid(superblock));
        for at in 0..sector.len() {
            let mut bad = sector.clone();
            bad[at] ^= 0x10;
            assert!(
                !matches!(Superblock::decode(&bad), SlotContent::Valid(_)),
                "byte {at}"
            );
        }
        assert_eq!(Superblock::decode(&[0; SECTOR_BYTES]), SlotContent::Empty);
        assert_eq!(Superblock::decode(&[7; SECTOR_BYTES]), SlotContent::Foreign);
    }
}
