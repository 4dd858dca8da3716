//! The superblock: what the device is, and where its newest checkpoints are. Two slots, written in turn.

use crate::geometry::Geometry;
use pumice_memory::SECTOR_BYTES;
use pumice_record::codec::{Fields, checksum};
use std::fmt;

const MAGIC: [u8; 8] = *b"PUMICE\r\n";
/// Version of the formats of this room: superblock, log, trailer, checkpoint chain. A change of any of them is a new number. Owners
/// have their own ([`StoreId::format`]).
pub const FORMAT: u32 = 4;
/// Bytes of a superblock that are the owner's.
pub const OWN_BYTES: usize = 64;

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

/// The kind of store that owns the blocks, and the version of its formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StoreId {
    /// 1 = objects, 2 = chunks. No two kinds share a number.
    pub kind: u16,
    /// Version of the owner's formats: footer entries, its records in blocks and log, its part of a checkpoint.
    pub format: u16,
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

/// A superblock, in one sector of each slot, little-endian; `docs/formats.md` has the table. The comment of a field names the fault
/// that it guards against, where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Random at format time; part of every checksum. Guards against bytes of a former cache on the same device.
    pub cache_id: u64,
    /// What owns the blocks. Guards against another kind of store, or another version of it, that opens the device.
    pub store: StoreId,
    /// The division of the device. Guards against a device that has another size than when it was formatted; the owner compares.
    pub geometry: Geometry,
    /// The program that made it. Guards against a replay, which erases what it finds, on a server's device.
    pub maker: Maker,
    /// Counts superblock writes; the higher slot wins. Guards against a torn write of the other slot.
    pub generation: u64,
    /// Counts starts. Guards against two versions or sequences that are the same in two runs.
    pub epoch: u32,
    /// The last stop was clean: the newest checkpoint tells everything.
    pub clean: bool,
    /// Unless `clean`, everything on the device must be forgotten. Guards against a log that lost a record, or was never kept.
    pub discard: bool,
    /// Highest Unix time seen, in seconds. Guards against a clock that is set back, which would bring expired objects back.
    pub time: u32,
    /// The same of the last start, where its clock was far ahead of `time` and no second start has confirmed it; else 0. Guards against
    /// a clock that is wrong once.
    pub ahead: u32,
    /// The last start was to use a performance tier. Guards against the loss of the tier's file, which a later start is to report.
    pub has_tier: bool,
    /// Newest checkpoint, and the one before. Guards against damage in the newest.
    pub checkpoints: [CheckpointRef; 2],
    /// The owner's settings that blocks were written with.
    pub own: [u8; OWN_BYTES],
}

impl Default for Superblock {
    fn default() -> Self {
        Self {
            cache_id: 0,
            store: StoreId::default(),
            geometry: Geometry::default(),
            maker: Maker::default(),
            generation: 0,
            epoch: 0,
            clean: false,
            discard: false,
            time: 0,
            ahead: 0,
            has_tier: false,
            checkpoints: Default::default(),
            own: [0; OWN_BYTES],
        }
    }
}

/// What a slot holds.
#[expect(
    clippy::large_enum_variant,
    reason = "two of them live, for a moment, at a start"
)]
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
    pub fn saw(&mut self, now: u32) {
        let time = match self.ahead {
            0 => &mut self.time,
            _ => &mut self.ahead,
        };
        *time = now.max(*time);
    }

    /// Seconds between the last sign of life and `now`; `time`: the latest one of a block. Of a clock that was ahead no more is believed than is
    /// past.
    pub fn absent_secs(&self, time: u32, now: u32) -> u32 {
        let ahead = if self.ahead <= now { self.ahead } else { 0 };
        now.saturating_sub(self.time.max(time).max(ahead))
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
        for field in [self.epoch, self.time, self.ahead] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&[self.clean, self.discard, self.has_tier].map(u8::from));
        out.push(self.maker as u8);
        for checkpoint in &self.checkpoints {
            out.extend_from_slice(&checkpoint.id.to_le_bytes());
            out.extend_from_slice(&checkpoint.first_block.to_le_bytes());
            out.extend_from_slice(&[0; 4]);
            out.extend_from_slice(&checkpoint.len.to_le_bytes());
            out.extend_from_slice(&checkpoint.log_start.to_le_bytes());
        }
        out.extend_from_slice(&self.store.kind.to_le_bytes());
        out.extend_from_slice(&self.store.format.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.own);
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
        let capacity = fields.u64()?;
        let block_bytes = fields.u64()?;
        let blocks = u32::try_from(fields.u64()?).ok()?;
        let reserved = u32::try_from(fields.u64()?).ok()?;
        let (log_offset, log_slots, data_offset) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let generation = fields.count()?;
        let (epoch, time, ahead) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let [clean, discard, has_tier, maker] = fields.array()?;
        let maker = [Maker::Serve, Maker::Replay]
            .into_iter()
            .find(|known| *known as u8 == maker)?;
        let mut checkpoints = [CheckpointRef::default(); 2];
        for checkpoint in &mut checkpoints {
            checkpoint.id = fields.count()?;
            checkpoint.first_block = fields.u32()?;
            fields.u32()?;
            checkpoint.len = fields.count()?;
            checkpoint.log_start = fields.count()?;
        }
        let store = StoreId {
            kind: fields.u16()?,
            format: fields.u16()?,
        };
        fields.u32()?;
        let own = fields.array()?;
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
            store,
            geometry,
            maker,
            generation,
            epoch,
            clean: clean == 1,
            discard: discard == 1,
            time,
            ahead,
            has_tier: has_tier == 1,
            checkpoints,
            own,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> Superblock {
        Superblock {
            cache_id: 0x0102_0304_0506_0708,
            store: StoreId { kind: 1, format: 9 },
            geometry: Geometry::plan(1 << 30, 1 << 20).unwrap(),
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
            own: std::array::from_fn(|at| at as u8 + 100),
        }
    }

    #[test]
    fn reads_back_and_any_flipped_byte_is_found() {
        let superblock = superblock();
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

    /// The bytes of the format, written out: where this fails, [`FORMAT`] must change.
    #[test]
    fn its_bytes_are_these() {
        let sector = superblock().encode();
        assert_eq!(&sector[..12], b"PUMICE\r\n\x04\0\0\0");
        assert_eq!(sector[16..24], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(sector[24..32], (1u64 << 30).to_le_bytes());
        assert_eq!(sector[80..88], 7u64.to_le_bytes());
        assert_eq!(
            sector[88..104],
            [3, 0, 0, 0, 12, 0, 0, 0, 13, 0, 0, 0, 1, 0, 1, 2]
        );
        assert_eq!(sector[104..120], [4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(sector[168..176], [1, 0, 9, 0, 0, 0, 0, 0]);
        assert_eq!(sector[176], 100);
        assert_eq!(sector[239..241], [163, 0]);
        assert_eq!(
            checksum(0, &[&sector[..12], &sector[16..]]),
            u32::from_le_bytes([sector[12], sector[13], sector[14], sector[15]])
        );
    }

    #[test]
    fn another_format_is_named() {
        for format in [1u32, 3, 5] {
            let mut sector = superblock().encode();
            sector[8..12].copy_from_slice(&format.to_le_bytes());
            let crc = checksum(0, &[&sector[..12], &sector[16..]]);
            sector[12..16].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(Superblock::decode(&sector), SlotContent::OtherFormat(format));
        }
    }
}
