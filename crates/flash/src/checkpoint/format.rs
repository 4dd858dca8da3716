//! The bytes of a checkpoint that are about objects.

use crate::layout::ripq::queue::SavedPlace;
use crate::layout::sipq::keys::{SavedFill, SavedKey};
use crate::layout::{SavedOrder, Slots};
use pumice_blocks::Geometry;
use pumice_blocks::chain::{NO_BLOCK, put_len};
use pumice_index::cascade::HistoryFilter;
use pumice_policy::Bin;
use pumice_record::codec::Fields;

/// Objects as a whole, at the beginning of the owner's part of the stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Overview {
    pub(crate) flush_at: u32,
    pub(crate) shards: u32,
    pub(crate) entry_bytes: u32,
    /// Of each block the entries in its footer, if it is sealed.
    pub(crate) entries: Vec<u32>,
    pub(crate) order: SavedOrder,
}

/// Bytes of an [`Overview`] before what it says of each block.
pub(crate) const OVERVIEW_BYTES: usize = 12;

impl Overview {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.flush_at.to_le_bytes());
        out.extend_from_slice(&self.shards.to_le_bytes());
        out.extend_from_slice(&self.entry_bytes.to_le_bytes());
        for entries in &self.entries {
            out.extend_from_slice(&entries.to_le_bytes());
        }
        let SavedOrder { places, ranks } = &self.order;
        put_len(places.len(), out);
        for place in places {
            out.push(u8::from(place.starts_section));
            out.extend_from_slice(&place.block.unwrap_or(NO_BLOCK).to_le_bytes());
            out.extend_from_slice(&place.mark.to_le_bytes());
        }
        out.extend_from_slice(&ranks.policy.to_le_bytes());
        out.extend_from_slice(&ranks.lowest.to_le_bytes());
        out.extend_from_slice(&ranks.threshold.to_le_bytes());
        put_len(ranks.bins.len(), out);
        for bin in &ranks.bins {
            out.extend_from_slice(&bin.lower.to_le_bytes());
            out.extend_from_slice(&bin.upper.to_le_bytes());
            out.extend_from_slice(&bin.weight.to_le_bytes());
        }
        put_len(ranks.sample.len(), out);
        for (hash, value, bytes) in &ranks.sample {
            out.extend_from_slice(&hash.to_le_bytes());
            out.extend_from_slice(&value.to_le_bytes());
            out.extend_from_slice(&bytes.to_le_bytes());
        }
    }
}

pub(crate) const PLACE_BYTES: usize = 9;
/// A bin, or a key of the sample.
pub(crate) const RANK_BYTES: usize = 24;
/// The policy, the lowest priority, and the sample's threshold.
pub(crate) const RANKS_HEAD_BYTES: usize = 20;

pub(crate) fn decode_place(fields: &mut Fields<'_>) -> Option<SavedPlace> {
    let [starts_section] = fields.array()?;
    let block = fields.u32()?;
    Some(SavedPlace {
        starts_section: starts_section == 1,
        block: (block != NO_BLOCK).then_some(block),
        mark: fields.u32()?,
    })
}

pub(crate) fn decode_bin(fields: &mut Fields<'_>) -> Option<Bin> {
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

pub(crate) fn encode_fill(fill: SavedFill, out: &mut Vec<u8>) {
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

pub(crate) fn encode_key(key: &SavedKey, out: &mut Vec<u8>) {
    out.extend_from_slice(&key.hash.to_le_bytes());
    out.extend_from_slice(&key.bytes.to_le_bytes());
    out.push(key.accesses);
    out.extend_from_slice(&key.value.to_le_bytes());
}

pub(crate) fn decode_key(fields: &mut Fields<'_>) -> Option<SavedKey> {
    Some(SavedKey {
        hash: fields.u64()?,
        bytes: fields.u32()?,
        accesses: fields.array::<1>()?[0],
        value: f64::from_bits(fields.u64()?),
    })
}

/// Before the filters over what was invalidated: the sequence below which nothing is known, and how many filters.
pub(crate) fn encode_history(known_from: u64, count: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&known_from.to_le_bytes());
    out.extend_from_slice(&(count as u32).to_le_bytes());
}

/// One of these filters: the sequence at which it was full, its hashes, how many words of 8 bytes, and those.
pub(crate) fn encode_filter(filter: &HistoryFilter, out: &mut Vec<u8>) {
    out.extend_from_slice(&filter.closed_at.to_le_bytes());
    out.extend_from_slice(&(filter.hashes as u64).to_le_bytes());
    out.extend_from_slice(&(filter.bits.len() as u64).to_le_bytes());
    filter
        .bits
        .iter()
        .for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
}

/// The slots of a block: its number, how many, the offsets of every 64th, words of 8 bytes.
pub(crate) fn encode_slots(block: u32, slots: &Slots, out: &mut Vec<u8>) {
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

pub(crate) fn decode_sample(fields: &mut Fields<'_>) -> Option<(u64, f64, u64)> {
    Some((fields.u64()?, f64::from_bits(fields.u64()?), fields.count()?))
}
