//! The bytes of a checkpoint: part headers, chunks, the head of the stream.

use crate::geometry::Geometry;
use crate::queue::SavedPlace;
use crate::store::{Filter, SavedFill, SavedKey, SavedRanks, Slots};
use pumice_device::SECTOR_BYTES;
use pumice_policy::Bin;
use pumice_record::codec::{Fields, checksum};

const MAGIC: u32 = u32::from_le_bytes(*b"PMcp");
/// About how many bytes are written or read at a time.
const CHUNK_BYTES: u64 = 256 << 10;
/// Marks the last block of a chain.
pub(crate) const NO_BLOCK: u32 = u32::MAX;

/// Header in the first sector of each checkpoint block, little-endian.
///
/// | offset | size | field         | meaning                                       |
/// |-------:|-----:|---------------|-----------------------------------------------|
/// |      0 |    4 | `crc32c`      | over the cache id and bytes 4..40             |
/// |      4 |    4 | magic         | `PMcp`                                        |
/// |      8 |    8 | `id`          | the checkpoint's number                       |
/// |     16 |    4 | `part`        | 0, 1, … along the chain                       |
/// |     20 |    4 | `next`        | next block, 2^32 - 1 at the end               |
/// |     24 |    8 | `len`         | bytes of the stream in this block             |
/// |     32 |    8 | `chunk_crcs`  | XOR of rotated CRC-32Cs of the chunks         |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartHeader {
    pub(crate) id: u64,
    pub(crate) part: u32,
    pub(crate) next: u32,
    pub(crate) len: u64,
    pub(crate) chunk_crcs: u64,
}

pub(crate) const PART_HEADER_BYTES: usize = 40;

impl PartHeader {
    pub(super) fn encode(&self, cache_id: u64) -> [u8; PART_HEADER_BYTES] {
        let mut out = [0; PART_HEADER_BYTES];
        out[4..8].copy_from_slice(&MAGIC.to_le_bytes());
        out[8..16].copy_from_slice(&self.id.to_le_bytes());
        out[16..20].copy_from_slice(&self.part.to_le_bytes());
        out[20..24].copy_from_slice(&self.next.to_le_bytes());
        out[24..32].copy_from_slice(&self.len.to_le_bytes());
        out[32..40].copy_from_slice(&self.chunk_crcs.to_le_bytes());
        let crc = checksum(cache_id, &[&out[4..]]);
        out[0..4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub(crate) fn decode(cache_id: u64, bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes.get(..PART_HEADER_BYTES)?);
        if fields.u32()? != checksum(cache_id, &[&bytes[4..PART_HEADER_BYTES]]) || fields.u32()? != MAGIC {
            return None;
        }
        Some(Self {
            id: fields.count()?,
            part: fields.u32()?,
            next: fields.u32()?,
            len: fields.count()?,
            chunk_crcs: fields.u64()?,
        })
    }
}

/// Bytes of a whole chunk: a whole number of them fills a block, so that writer and reader cut alike.
pub(crate) fn chunk_bytes(geometry: &Geometry) -> usize {
    let room = geometry.block_bytes - SECTOR_BYTES as u64;
    let chunk = room / room.div_ceil(CHUNK_BYTES) / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
    usize::try_from(chunk).expect("at most 256 KiB")
}

pub(crate) fn mix(crcs: u64, chunk: u64, crc: u32) -> u64 {
    crcs ^ u64::from(crc).rotate_left((chunk % 64) as u32)
}

/// What a block was when the checkpoint was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockRole {
    Other,
    Sealed,
    Open,
}

/// One block in a checkpoint's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRow {
    pub(crate) sequence: u64,
    pub(crate) role: BlockRole,
    pub(crate) footer_len: u32,
    pub(crate) expiry_max: u32,
}

pub(crate) const ROW_BYTES: usize = 17;

/// The head of the stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Head {
    /// Blocks with this sequence or a higher one were opened later.
    pub(crate) next_sequence: u64,
    pub(crate) log_start: u64,
    pub(crate) flush_at: u32,
    pub(crate) shards: u32,
    pub(crate) entry_bytes: u32,
    pub(crate) rows: Vec<BlockRow>,
    /// The queue from its tail; empty under `fifo`.
    pub(crate) places: Vec<SavedPlace>,
    pub(crate) ranks: SavedRanks,
}

pub(crate) const HEAD_BYTES: usize = 32;

impl Head {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.next_sequence.to_le_bytes());
        out.extend_from_slice(&self.log_start.to_le_bytes());
        out.extend_from_slice(&self.flush_at.to_le_bytes());
        out.extend_from_slice(&self.shards.to_le_bytes());
        out.extend_from_slice(&self.entry_bytes.to_le_bytes());
        out.extend_from_slice(
            &u32::try_from(self.rows.len())
                .expect("blocks are numbered by u32")
                .to_le_bytes(),
        );
        for row in &self.rows {
            out.extend_from_slice(&row.sequence.to_le_bytes());
            out.push(match row.role {
                BlockRole::Other => 0,
                BlockRole::Sealed => 1,
                BlockRole::Open => 2,
            });
            out.extend_from_slice(&row.footer_len.to_le_bytes());
            out.extend_from_slice(&row.expiry_max.to_le_bytes());
        }
        encode_len(self.places.len(), out);
        for place in &self.places {
            out.push(u8::from(place.starts_section));
            out.extend_from_slice(&place.block.unwrap_or(NO_BLOCK).to_le_bytes());
            out.extend_from_slice(&place.mark.to_le_bytes());
        }
        out.extend_from_slice(&self.ranks.policy.to_le_bytes());
        out.extend_from_slice(&self.ranks.lowest.to_le_bytes());
        out.extend_from_slice(&self.ranks.threshold.to_le_bytes());
        encode_len(self.ranks.bins.len(), out);
        for bin in &self.ranks.bins {
            out.extend_from_slice(&bin.lower.to_le_bytes());
            out.extend_from_slice(&bin.upper.to_le_bytes());
            out.extend_from_slice(&bin.weight.to_le_bytes());
        }
        encode_len(self.ranks.sample.len(), out);
        for (hash, value, bytes) in &self.ranks.sample {
            out.extend_from_slice(&hash.to_le_bytes());
            out.extend_from_slice(&value.to_le_bytes());
            out.extend_from_slice(&bytes.to_le_bytes());
        }
    }
}

fn encode_len(len: usize, out: &mut Vec<u8>) {
    let len = u32::try_from(len).expect("far fewer than 2^32");
    out.extend_from_slice(&len.to_le_bytes());
}

pub(crate) const PLACE_BYTES: usize = 9;
/// A bin, or a key of the sample.
pub(crate) const RANK_BYTES: usize = 24;
/// The policy, the lowest priority, and the sample's threshold.
pub(crate) const RANKS_HEAD_BYTES: usize = 20;

/// `None` where it is no row of a block of `block_bytes`.
pub(super) fn decode_row(fields: &mut Fields<'_>, block_bytes: u64) -> Option<BlockRow> {
    let sequence = fields.count()?;
    let role = match fields.array()? {
        [0] => BlockRole::Other,
        [1] => BlockRole::Sealed,
        [2] => BlockRole::Open,
        _ => return None,
    };
    let footer_len = fields.u32()?;
    (u64::from(footer_len) <= block_bytes).then_some(BlockRow {
        sequence,
        role,
        footer_len,
        expiry_max: fields.u32()?,
    })
}

pub(super) fn decode_place(fields: &mut Fields<'_>) -> Option<SavedPlace> {
    let [starts_section] = fields.array()?;
    let block = fields.u32()?;
    Some(SavedPlace {
        starts_section: starts_section == 1,
        block: (block != NO_BLOCK).then_some(block),
        mark: fields.u32()?,
    })
}

pub(super) fn decode_bin(fields: &mut Fields<'_>) -> Option<Bin> {
    Some(Bin {
        lower: f64::from_bits(fields.u64()?),
        upper: f64::from_bits(fields.u64()?),
        weight: fields.count()?,
    })
}

pub(crate) const KEY_BYTES: usize = 21;
/// Keys that are written at a time.
pub(crate) const KEYS_BATCH: usize = 4096;

/// Bytes of what a virtual cache has learned.
pub(crate) const FILL_BYTES: usize = 13;

pub(super) fn encode_fill(fill: SavedFill, out: &mut Vec<u8>) {
    out.push(fill.has_been_full.into());
    out.extend_from_slice(&fill.blocks.to_le_bytes());
    out.extend_from_slice(&fill.block_mean.to_le_bytes());
}

/// `None` where it is not what a cache of this geometry can have learned.
pub(crate) fn decode_fill(fields: &mut Fields<'_>, geometry: &Geometry) -> Option<SavedFill> {
    let [flag] = fields.array::<1>()?;
    let fill = SavedFill {
        has_been_full: flag == 1,
        blocks: fields.u32()?,
        block_mean: f64::from_bits(fields.u64()?),
    };
    let is_possible = flag <= 1
        && fill.blocks <= geometry.blocks
        && (0.0..=geometry.block_bytes as f64).contains(&fill.block_mean);
    is_possible.then_some(fill)
}

pub(super) fn encode_key(key: &SavedKey, out: &mut Vec<u8>) {
    out.extend_from_slice(&key.hash.to_le_bytes());
    out.extend_from_slice(&key.bytes.to_le_bytes());
    out.push(key.accesses);
    out.extend_from_slice(&key.value.to_le_bytes());
}

pub(super) fn decode_key(fields: &mut Fields<'_>) -> Option<SavedKey> {
    Some(SavedKey {
        hash: fields.u64()?,
        bytes: fields.u32()?,
        accesses: fields.array::<1>()?[0],
        value: f64::from_bits(fields.u64()?),
    })
}

/// Before the filters over what was invalidated: the sequence below which nothing is known, and how many filters.
pub(super) fn encode_invalidated(known_from: u64, count: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&known_from.to_le_bytes());
    out.extend_from_slice(&(count as u32).to_le_bytes());
}

/// One of these filters: the sequence at which it was full, its hashes, how many words of 8 bytes, and those.
pub(super) fn encode_filter(filter: &Filter, out: &mut Vec<u8>) {
    out.extend_from_slice(&filter.closed_at.to_le_bytes());
    out.extend_from_slice(&(filter.hashes as u64).to_le_bytes());
    out.extend_from_slice(&(filter.bits.len() as u64).to_le_bytes());
    filter
        .bits
        .iter()
        .for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
}

/// The slots of a block: its number, how many, the offsets of every 64th, words of 8 bytes.
pub(super) fn encode_slots(block: u32, slots: &Slots, out: &mut Vec<u8>) {
    let (len, strides, words) = slots.parts();
    out.extend_from_slice(&block.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
    strides
        .iter()
        .for_each(|offset| out.extend_from_slice(&offset.to_le_bytes()));
    words
        .iter()
        .for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
}

pub(super) fn decode_sample(fields: &mut Fields<'_>) -> Option<(u64, f64, u64)> {
    Some((fields.u64()?, f64::from_bits(fields.u64()?), fields.count()?))
}
