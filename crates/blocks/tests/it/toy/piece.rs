//! What the store writes: pieces, one after the other in a block, and a place of each in the footer.

use pumice_blocks::footer::Entry;
use pumice_memory::Buffer;
use pumice_record::codec::{Fields, checksum};
use std::ops::Range;

/// A piece: checksum, sequence, key, version, value, and bytes that fill blocks soon.
pub const PIECE_BYTES: usize = 4_000;
const HEAD_BYTES: usize = 32;

/// A value as it was written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    pub key: u64,
    pub version: u64,
    /// Bytes into the block.
    pub offset: u32,
}

impl Entry for Place {
    const BYTES: usize = 20;

    fn encode(&self, _: Option<&Self>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.key.to_le_bytes());
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
    }

    fn decode(fields: &mut Fields<'_>, _: Option<&Self>, _: u32) -> Option<Self> {
        Some(Self {
            key: fields.u64()?,
            version: fields.u64()?,
            offset: fields.u32()?,
        })
    }

    fn range(&self) -> Range<u64> {
        u64::from(self.offset)..u64::from(self.offset) + PIECE_BYTES as u64
    }
}

/// The bytes of a piece that say something. `fields`: key, version, value.
pub fn piece_head(cache_id: u64, sequence: u64, fields: [u64; 3]) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[4..8].copy_from_slice(&(sequence as u32).to_le_bytes());
    head[8..].copy_from_slice(&fields.map(u64::to_le_bytes).concat());
    let crc = checksum(cache_id, &[&head[4..]]);
    head[..4].copy_from_slice(&crc.to_le_bytes());
    head
}

/// The piece at `at`, its offset apart, and its value.
pub fn read_piece<B: Buffer>(buffer: &B, at: usize, cache_id: u64, sequence: u64) -> Option<(Place, u64)> {
    let bytes = buffer.bytes(at, HEAD_BYTES)?;
    let mut fields = Fields(bytes);
    let is_whole = fields.u32()? == checksum(cache_id, &[&bytes[4..]]) && fields.u32()? == sequence as u32;
    let (key, version, value) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let place = Place {
        key,
        version,
        offset: 0,
    };
    is_whole.then_some((place, value))
}
