//! The superblock of an upper device: one sector that names the cache whose copies the device holds, and how they are arranged.

use crc_fast::CrcAlgorithm;
use pumice_device::{Device, SECTOR_BYTES};
use std::io;

const MAGIC: [u8; 8] = *b"PUMICEup";
/// Version of what is on an upper device.
pub const UPPER_FORMAT: u32 = 1;
/// Where place 0 starts, in bytes.
pub const UPPER_DATA_OFFSET: u64 = SECTOR_BYTES as u64;
/// A device whose first sector is ours neither nor zero is somebody's, and so is one that holds anything in its first MiB.
const BLANK_BYTES: u64 = 1 << 20;

/// The first sector of an upper device, little-endian; zero beyond.
///
/// | offset | size | field         | meaning                                                 |
/// |-------:|-----:|---------------|---------------------------------------------------------|
/// |      0 |    8 | magic         | `PUMICEup`                                              |
/// |      8 |    4 | format        | 1                                                       |
/// |     12 |    4 | `crc32c`      | over bytes 0..12 and 16..4096                           |
/// |     16 |    8 | `owner`       | id of the cache whose blocks are copied                 |
/// |     24 |    8 | `bytes`       | of the upper device that are used                       |
/// |     32 |    8 | `block_bytes` | of a place, and of a block below                        |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpperSuperblock {
    /// Id of the cache whose blocks are copied.
    pub owner: u64,
    /// Bytes of the device that are used.
    pub bytes: u64,
    /// Bytes of a place.
    pub block_bytes: u64,
}

/// What is on a device that is to be an upper one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing: its first MiB is zero.
    Empty,
    /// Copies.
    Copies(UpperSuperblock),
    /// Copies, by its magic, of another format or damaged: of no use.
    Useless,
    /// Something else: not to be overwritten.
    Foreign,
}

impl UpperSuperblock {
    /// The sector to write.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SECTOR_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&UPPER_FORMAT.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        for field in [self.owner, self.bytes, self.block_bytes] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.resize(SECTOR_BYTES, 0);
        let crc = checksum(&out);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// What the first sector of a device says; `Found::Empty` where it is zero.
    pub fn decode(sector: &[u8]) -> Found {
        if sector.iter().all(|byte| *byte == 0) {
            return Found::Empty;
        }
        if sector.get(..8) != Some(&MAGIC[..]) {
            return Found::Foreign;
        }
        let word = |at: usize| Some(u64::from_le_bytes(*sector.get(at..)?.first_chunk()?));
        let read = || {
            let head = word(8)?;
            let is_whole = sector.len() == SECTOR_BYTES
                && head == u64::from(UPPER_FORMAT) | u64::from(checksum(sector)) << 32;
            let superblock = Self {
                owner: word(16)?,
                bytes: word(24)?,
                block_bytes: word(32)?,
            };
            is_whole.then_some(Found::Copies(superblock))
        };
        read().unwrap_or(Found::Useless)
    }
}

fn checksum(sector: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&sector[..12]);
    digest.update(&sector[16..]);
    u32::try_from(digest.finalize()).expect("a checksum of 32 bits")
}

/// Looks at a device that is to be an upper one, blocking, and writes nothing.
///
/// # Errors
/// What the device said.
pub fn look<D: Device>(device: &D) -> io::Result<Found> {
    let mut start = vec![0; usize::try_from(device.capacity().min(BLANK_BYTES)).expect("at most a MiB")];
    device.read_log(0, &mut start)?;
    let first = start.get(..SECTOR_BYTES).unwrap_or(&start);
    match UpperSuperblock::decode(first) {
        Found::Empty if start.iter().any(|byte| *byte != 0) => Ok(Found::Foreign),
        found => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_and_any_flipped_byte_is_found() {
        let superblock = UpperSuperblock {
            owner: 7,
            bytes: 1 << 40,
            block_bytes: 1 << 24,
        };
        let sector = superblock.encode();
        assert_eq!(sector.len(), SECTOR_BYTES);
        assert_eq!(UpperSuperblock::decode(&sector), Found::Copies(superblock));
        for at in 0..sector.len() {
            let mut bad = sector.clone();
            bad[at] ^= 0x10;
            let expected = if at < 8 { Found::Foreign } else { Found::Useless };
            assert_eq!(UpperSuperblock::decode(&bad), expected, "byte {at}");
        }
        assert_eq!(UpperSuperblock::decode(&[0; SECTOR_BYTES]), Found::Empty);
        assert_eq!(UpperSuperblock::decode(&sector[..100]), Found::Useless);
    }
}
