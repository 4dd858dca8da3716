//! Formats of the pieces of a block, and of its footer's entries. `docs/formats.md` has the tables.

use crate::content::{Coding, FINGERPRINT_BYTES, Fingerprint};
use pumice_blocks::footer;
use pumice_blocks::rot::{mended, mended_with};
use pumice_record::codec::{Fields, checksum};
use std::ops::Range;

/// Pieces begin at multiples of this many bytes.
pub const UNIT_BYTES: usize = 16;
/// Length of the header before a content.
pub const HEADER_BYTES: usize = 64;
/// Length of a reference.
pub const REFERENCE_BYTES: usize = 48;
/// The largest chunk.
pub const CHUNK_BYTES_MAX: u32 = 128 << 10;
/// Bits of a length, or of an offset in a chunk.
const LENGTH_BITS: u32 = 20;
/// Bits of a content's number: 256 MiB of chunks of 4 KiB, and four contents for each. The bits above are the spare units.
const NUMBER_BITS: u32 = 18;
/// Bits of a coding. The bit above says that the chunk was dirty.
const CODING_BITS: u32 = 3;
/// In the length of a footer's entry: the chunk was dirty.
const DIRTY_LEN: u32 = 1 << 31;
/// Enters the checksum of references, so that no other piece passes as one.
const REFERENCE_SALT: &[u8] = b"reference";

/// The header before a content. 64 bytes, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// CRC-32C of the cache id and the stored bytes.
    pub data_crc: u32,
    /// Sequence of the block. Guards against bytes of another generation, or of another block.
    pub sequence: u64,
    /// The chunk that the content was stored for.
    pub address: u64,
    /// Version of that mapping.
    pub version: u64,
    /// Fingerprint of the content.
    pub fingerprint: Fingerprint,
    /// The content's number in the block. Guards against a wrong offset.
    pub number: u32,
    /// Offset of its first byte in the chunk.
    pub start: u32,
    /// Its length before compression, in bytes.
    pub len: u32,
    /// Its length on flash in bytes, without header and padding.
    pub stored_len: u32,
    /// Its coding on flash.
    pub coding: Coding,
    /// Units behind the piece, beyond its padding, that hold nothing: it took the room of a longer one.
    pub spare_units: u32,
    /// Whether the volume lacked the content when it was appended.
    pub is_dirty: bool,
}

impl Header {
    /// Encodes the header, with its checksum.
    pub fn encode(&self, cache_id: u64) -> [u8; HEADER_BYTES] {
        debug_assert!(self.number >> NUMBER_BITS == 0, "{self:?}");
        let mut out = [0; HEADER_BYTES];
        out[4..8].copy_from_slice(&self.data_crc.to_le_bytes());
        out[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        out[16..24].copy_from_slice(&self.address.to_le_bytes());
        out[24..32].copy_from_slice(&self.version.to_le_bytes());
        out[32..52].copy_from_slice(&self.fingerprint.0);
        out[52..56].copy_from_slice(&(self.number | self.spare_units << NUMBER_BITS).to_le_bytes());
        let shape = u64::from(self.start)
            | u64::from(self.len) << LENGTH_BITS
            | u64::from(self.stored_len) << (2 * LENGTH_BITS)
            | (self.coding as u64) << (3 * LENGTH_BITS)
            | u64::from(self.is_dirty) << (3 * LENGTH_BITS + CODING_BITS);
        out[56..64].copy_from_slice(&shape.to_le_bytes());
        let crc = checksum(cache_id, &[&out[4..]]);
        out[..4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes a header; `None` if the bytes are damaged, too few, or not a header of this cache.
    pub fn decode(cache_id: u64, bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<HEADER_BYTES>()?;
        let mut fields = Fields(bytes);
        if fields.u32()? != checksum(cache_id, &[&bytes[4..]]) {
            return None;
        }
        let (data_crc, sequence) = (fields.u32()?, fields.u64()?);
        let (address, version) = (fields.u64()?, fields.u64()?);
        let fingerprint = Fingerprint(fields.array::<FINGERPRINT_BYTES>()?);
        let (number, shape) = (fields.u32()?, fields.u64()?);
        let length = |at: u32| (shape >> (at * LENGTH_BITS)) as u32 & ((1 << LENGTH_BITS) - 1);
        let header = Self {
            data_crc,
            sequence,
            address,
            version,
            fingerprint,
            number: number & ((1 << NUMBER_BITS) - 1),
            spare_units: number >> NUMBER_BITS,
            start: length(0),
            len: length(1),
            stored_len: length(2),
            coding: Coding::from_number((shape >> (3 * LENGTH_BITS)) as u8 & ((1 << CODING_BITS) - 1))?,
            is_dirty: shape >> (3 * LENGTH_BITS + CODING_BITS) != 0,
        };
        let is_whole = header.start + header.len <= CHUNK_BYTES_MAX && header.stored_len <= header.len;
        is_whole.then_some(header)
    }

    /// Decodes a header, also with a single wrong bit.
    pub fn decode_mended(cache_id: u64, bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<HEADER_BYTES>()?;
        Self::decode(cache_id, bytes).or_else(|| Self::decode(cache_id, &mended(cache_id, bytes)?))
    }

    /// Length of the piece in bytes, with header, padding and spare units.
    pub fn piece_len(&self) -> usize {
        piece_len(self.stored_len as usize) + self.spare_units as usize * UNIT_BYTES
    }

    /// The content's bytes in the chunk.
    pub fn range(&self) -> Range<u32> {
        self.start..self.start + self.len
    }
}

/// Length in bytes, with header and padding, of the piece of a content with `stored_len` bytes on flash.
pub fn piece_len(stored_len: usize) -> usize {
    (HEADER_BYTES + stored_len).next_multiple_of(UNIT_BYTES)
}

/// A mapping to a content that is stored already. 48 bytes, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Sequence of the block that the reference stands in. Guards against bytes of another generation.
    pub sequence: u64,
    /// The chunk that is mapped.
    pub address: u64,
    /// Version of the mapping.
    pub version: u64,
    /// The block of the content.
    pub block: u32,
    /// The content's number in that block.
    pub number: u32,
    /// Sequence of that block. Guards against another content in a later generation.
    pub target: u64,
    /// Whether the volume lacked the content when the chunk was mapped.
    pub is_dirty: bool,
}

impl Reference {
    /// Encodes the reference, with its checksum.
    pub fn encode(&self, cache_id: u64) -> [u8; REFERENCE_BYTES] {
        let mut out = [0; REFERENCE_BYTES];
        out[4..8].copy_from_slice(&self.number.to_le_bytes());
        out[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        out[16..24].copy_from_slice(&self.address.to_le_bytes());
        out[24..32].copy_from_slice(&self.version.to_le_bytes());
        out[32..40].copy_from_slice(&self.target.to_le_bytes());
        out[40..44].copy_from_slice(&self.block.to_le_bytes());
        out[44..48].copy_from_slice(&u32::from(self.is_dirty).to_le_bytes());
        let crc = checksum(cache_id, &[REFERENCE_SALT, &out[4..]]);
        out[..4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes a reference; `None` if the bytes are damaged, too few, or not a reference of this cache.
    pub fn decode(cache_id: u64, bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<REFERENCE_BYTES>()?;
        let mut fields = Fields(bytes);
        if fields.u32()? != checksum(cache_id, &[REFERENCE_SALT, &bytes[4..]]) {
            return None;
        }
        let (number, sequence) = (fields.u32()?, fields.u64()?);
        let (address, version, target) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let (block, is_dirty) = (fields.u32()?, fields.u32()?);
        (is_dirty <= 1).then_some(Self {
            sequence,
            address,
            version,
            block,
            number,
            target,
            is_dirty: is_dirty == 1,
        })
    }
}

impl Reference {
    /// Decodes a reference, also with a single wrong bit.
    pub fn decode_mended(cache_id: u64, bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<REFERENCE_BYTES>()?;
        let mended = || mended_with(cache_id, REFERENCE_SALT, bytes);
        Self::decode(cache_id, bytes).or_else(|| Self::decode(cache_id, &mended()?))
    }
}

/// The kind of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A content.
    Content {
        /// The content's number in the block.
        number: u32,
        /// Its hash in the FP-index.
        hash: u64,
    },
    /// A reference to a content.
    Reference {
        /// The block of the content.
        block: u32,
        /// The content's number in that block.
        number: u32,
        /// Sequence of that block.
        target: u64,
    },
}

/// In the field of a block: the entry is of a content, not of a reference.
const NO_BLOCK: u32 = u32::MAX;

/// An entry of a footer: a piece, and its mapping. 40 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Offset of the piece in the block, in bytes.
    pub offset: u32,
    /// Length of the piece, in bytes.
    pub len: u32,
    /// The chunk that is mapped.
    pub address: u64,
    /// Version of the mapping; 0 = the mapping was superseded, and the content is listed for other addresses.
    pub version: u64,
    /// Whether the volume lacks the content.
    pub is_dirty: bool,
    /// Kind of the piece.
    pub kind: Kind,
}

impl footer::Entry for Entry {
    const BYTES: usize = 40;

    fn encode(&self, _: Option<&Self>, out: &mut Vec<u8>) {
        let (block, number, word) = match self.kind {
            Kind::Content { number, hash } => (NO_BLOCK, number, hash),
            Kind::Reference {
                block,
                number,
                target,
            } => (block, number, target),
        };
        out.extend_from_slice(&self.offset.to_le_bytes());
        let dirty = if self.is_dirty { DIRTY_LEN } else { 0 };
        out.extend_from_slice(&(self.len | dirty).to_le_bytes());
        out.extend_from_slice(&self.address.to_le_bytes());
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&block.to_le_bytes());
        out.extend_from_slice(&number.to_le_bytes());
        out.extend_from_slice(&word.to_le_bytes());
    }

    fn decode(fields: &mut Fields<'_>, _: Option<&Self>, _: u32) -> Option<Self> {
        let (offset, len) = (fields.u32()?, fields.u32()?);
        let (address, version) = (fields.u64()?, fields.u64()?);
        let (block, number, word) = (fields.u32()?, fields.u32()?, fields.u64()?);
        let kind = match block {
            NO_BLOCK => Kind::Content { number, hash: word },
            block => Kind::Reference {
                block,
                number,
                target: word,
            },
        };
        Some(Self {
            offset,
            len: len & !DIRTY_LEN,
            address,
            version,
            is_dirty: len & DIRTY_LEN != 0,
            kind,
        })
    }

    fn range(&self) -> Range<u64> {
        u64::from(self.offset)..u64::from(self.offset) + u64::from(self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pumice_blocks::footer::Entry as _;

    fn header() -> Header {
        Header {
            data_crc: 7,
            sequence: 1 << 40,
            address: u64::MAX - 3,
            version: 99 << 44,
            fingerprint: Fingerprint::of(512, b"content"),
            number: 70_000,
            start: 512,
            len: CHUNK_BYTES_MAX - 512,
            stored_len: 61_000,
            coding: Coding::Lz4,
            spare_units: (1 << 14) - 1,
            is_dirty: true,
        }
    }

    fn reference() -> Reference {
        Reference {
            sequence: 3,
            address: 1 << 50,
            version: 12,
            block: 4_000,
            number: 9,
            target: 2,
            is_dirty: true,
        }
    }

    #[test]
    fn pieces_read_back_and_any_flipped_bit_is_found() {
        let bytes = header().encode(42);
        assert_eq!(Header::decode(42, &bytes), Some(header()));
        assert_eq!(Header::decode(43, &bytes), None, "another cache's");
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(42, &bad), None, "bit {bit}");
        }
        let bytes = reference().encode(42);
        assert_eq!(Reference::decode(42, &bytes), Some(reference()));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Reference::decode(42, &bad), None, "bit {bit}");
        }
    }

    #[test]
    fn one_kind_of_piece_never_passes_as_the_other() {
        assert_eq!(Reference::decode(42, &header().encode(42)), None);
        let mut bytes = reference().encode(42).to_vec();
        bytes.resize(HEADER_BYTES, 0);
        assert_eq!(Header::decode(42, &bytes), None);
    }

    #[test]
    fn a_header_of_more_than_a_chunk_is_none() {
        let long = Header {
            start: 513,
            ..header()
        };
        assert_eq!(Header::decode(42, &long.encode(42)), None);
        let grown = Header {
            stored_len: header().len + 1,
            ..header()
        };
        assert_eq!(Header::decode(42, &grown.encode(42)), None);
    }

    #[test]
    fn entries_read_back() {
        let content = Kind::Content { number: 3, hash: 5 };
        let reference = Kind::Reference {
            block: 1,
            number: 2,
            target: 3,
        };
        for kind in [content, reference] {
            let entry = Entry {
                offset: 160,
                len: 48,
                address: 7,
                version: 8,
                is_dirty: kind == content,
                kind,
            };
            let mut bytes = Vec::new();
            entry.encode(None, &mut bytes);
            assert_eq!(bytes.len(), Entry::BYTES);
            assert_eq!(Entry::decode(&mut Fields(&bytes), None, 0), Some(entry));
        }
    }
}
