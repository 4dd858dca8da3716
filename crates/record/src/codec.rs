//! Little-endian fields and seeded checksums: the letters of every format here.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC-32C over the cache's id and then `parts`: bytes of another cache do not pass as ours.
pub fn checksum(cache_id: u64, parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&cache_id.to_le_bytes());
    for part in parts {
        digest.update(part);
    }
    truncate(digest.finalize())
}

/// CRC-32C of a value.
pub fn value_checksum(value: &[u8]) -> u32 {
    truncate(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, value))
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a 32-bit checksum in a 64-bit return type"
)]
fn truncate(crc: u64) -> u32 {
    crc as u32
}

/// Reads fields one after the other; `None` past the end.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    /// The next byte.
    pub fn u8(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    /// The next field of 16 bits.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next field of 32 bits.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next field of 64 bits that counts something. No device lives to see 2^62; with less, sums of a few do not overflow.
    pub fn count(&mut self) -> Option<u64> {
        self.u64().filter(|count| *count < 1 << 62)
    }

    /// The next field of 64 bits.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}
