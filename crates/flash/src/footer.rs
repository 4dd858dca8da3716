//! The entries of a block of objects, and what its trailer says of them.

use pumice_blocks::footer::{Entry, OWN_BYTES, TRAILER_BYTES, Trailer};
use pumice_record::codec::Fields;
use std::ops::Range;

/// Length of a footer entry in bytes.
pub const ENTRY_BYTES: usize = 28;

/// One object of a block. 28 bytes, little-endian, in order of offset.
///
/// | offset | size | field     | meaning                             |
/// |-------:|-----:|-----------|-------------------------------------|
/// |      0 |    8 | `hash`    | of the key                          |
/// |      8 |    8 | `version` | orders copies                       |
/// |     16 |    4 | `offset`  | of the record, bytes into the block |
/// |     20 |    4 | `len`     | of the record with padding, bytes   |
/// |     24 |    4 | `expiry`  | Unix seconds, 0 = never             |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FooterEntry {
    /// Hash of the key.
    pub hash: u64,
    /// Version of the copy.
    pub version: u64,
    /// Bytes into the block.
    pub offset: u32,
    /// Bytes with padding.
    pub len: u32,
    /// Unix seconds, 0 = never.
    pub expiry: u32,
    /// Which of the entries it is, from 0; not written.
    pub number: u32,
}

impl Entry for FooterEntry {
    const BYTES: usize = ENTRY_BYTES;

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.hash.to_le_bytes());
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(&self.expiry.to_le_bytes());
    }

    fn decode(fields: &mut Fields<'_>, number: u32) -> Option<Self> {
        Some(Self {
            hash: fields.u64()?,
            version: fields.u64()?,
            offset: fields.u32()?,
            len: fields.u32()?,
            expiry: fields.u32()?,
            number,
        })
    }

    fn range(&self) -> Range<u64> {
        u64::from(self.offset)..u64::from(self.offset) + u64::from(self.len)
    }
}

/// The owner's bytes of a trailer.
///
/// | offset | size | field        | meaning                                                |
/// |-------:|-----:|--------------|--------------------------------------------------------|
/// |      0 |    4 | `expiry_max` | latest expiry of its objects, 2^32 - 1 if one has none |
/// |      4 |    2 | `position`   | in the queue at sealing, in 65,535ths                  |
/// |      6 |    2 | zero         |                                                        |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Latest expiry of the block's objects.
    pub expiry_max: u32,
    /// Where the block stood in the queue when it was sealed, in 65,535ths of its bytes from the tail.
    pub position: u16,
}

impl Ending {
    /// Of a block with these objects.
    pub fn new(entries: &[FooterEntry], position: u16) -> Self {
        let expiries = entries
            .iter()
            .map(|e| if e.expiry == 0 { u32::MAX } else { e.expiry });
        Self {
            expiry_max: expiries.max().unwrap_or(0),
            position,
        }
    }

    /// As a trailer has it.
    pub fn encode(self) -> [u8; OWN_BYTES] {
        let mut out = [0; OWN_BYTES];
        out[..4].copy_from_slice(&self.expiry_max.to_le_bytes());
        out[4..6].copy_from_slice(&self.position.to_le_bytes());
        out
    }

    /// Of a block with this trailer.
    pub fn of(trailer: &Trailer) -> Self {
        let [a, b, c, d, e, f, _, _] = trailer.own;
        Self {
            expiry_max: u32::from_le_bytes([a, b, c, d]),
            position: u16::from_le_bytes([e, f]),
        }
    }
}

/// Entries of a footer that are looked at before other tasks get their turn.
pub(crate) const ENTRIES_PER_TURN: usize = 1024;

/// Entries of a footer of this length, trailer included.
pub(crate) fn entries_of(footer_len: u32) -> u64 {
    u64::from(footer_len).saturating_sub(TRAILER_BYTES as u64) / ENTRY_BYTES as u64
}
