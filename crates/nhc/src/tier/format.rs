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
    /// Copies, by its magic, of another format, damaged, or with sizes that cannot be: of no use.
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
            let is_good = is_whole
                && superblock.block_bytes > 0
                && [superblock.bytes, superblock.block_bytes]
                    .iter()
                    .all(|bytes| bytes.is_multiple_of(SECTOR_BYTES as u64));
            is_good.then_some(Found::Copies(superblock))
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
    use pumice_world::Random;

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

    /// Whoever can write to the device can make a checksum fit.
    #[test]
    fn hostile_bytes_are_useless_foreign_or_possible() {
        let mut random = Random(1);
        let mut seen = [0; 4];
        for round in 0..20_000 {
            let (owner, bytes, block_bytes) = (random.next_u64(), random.next_u64(), random.next_u64());
            // Often whole sectors, and often few.
            let shift = random.below(64);
            let some = |size: u64, keep: u64| size >> shift & !keep;
            let keep = if round % 2 == 0 {
                SECTOR_BYTES as u64 - 1
            } else {
                0
            };
            let superblock = UpperSuperblock {
                owner,
                bytes: some(bytes, keep),
                block_bytes: some(block_bytes, keep),
            };
            let mut sector = superblock.encode();
            for _ in 0..random.below(4) {
                sector[random.below(64) as usize] = random.next_u64() as u8;
            }
            if random.below(4) > 0 {
                let crc = checksum(&sector);
                sector[12..16].copy_from_slice(&crc.to_le_bytes());
            }
            if random.below(8) == 0 {
                sector.truncate(random.below(SECTOR_BYTES as u64) as usize);
            }
            match UpperSuperblock::decode(&sector) {
                Found::Copies(found) => {
                    assert_eq!(UpperSuperblock::decode(&found.encode()), Found::Copies(found));
                    assert!(found.block_bytes > 0 && found.block_bytes % SECTOR_BYTES as u64 == 0);
                    assert_eq!(found.bytes % SECTOR_BYTES as u64, 0);
                    seen[0] += 1;
                }
                Found::Useless => seen[1] += 1,
                Found::Foreign => {
                    assert_ne!(sector.get(..8), Some(&MAGIC[..]));
                    seen[2] += 1;
                }
                Found::Empty => seen[3] += 1,
            }
        }
        assert!(seen[..3].iter().all(|count| *count > 500), "{seen:?}");
    }
}
