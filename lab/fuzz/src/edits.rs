//! Edits of the image of a device: damage, and checksums that are made to fit.

use crate::bytes::{Bytes, put_u32};
use pumice_blocks::footer::TRAILER_BYTES;
use pumice_blocks::geometry::LOG_RECORD_BYTES;
use pumice_blocks::superblock::{SlotContent, Superblock};
use pumice_device::{Device, MemDevice, MemMedium, SECTOR_BYTES};
use pumice_record::codec::checksum;
use std::ops::Range;
use std::sync::Arc;

/// Edits that are made of one input.
pub(crate) const EDITS_MAX: usize = 24;
pub(crate) const BLOCK_BYTES: u64 = 64 << 10;
const SECTOR: usize = SECTOR_BYTES;

/// An image that is being edited. Its blocks have [`BLOCK_BYTES`] bytes.
pub(crate) struct Edits<'a> {
    before: &'a [u8],
    parts: &'a [Range<usize>],
    pub(crate) superblock: Superblock,
    pub(crate) bytes: Vec<u8>,
    /// How many of the bytes there are.
    len: usize,
    /// Whether bytes of a block were put elsewhere in it.
    pub(crate) moved_within_block: bool,
}

impl<'a> Edits<'a> {
    /// `parts` are the bytes that count, each range something of its own.
    pub(crate) fn of(before: &'a [u8], parts: &'a [Range<usize>]) -> Self {
        Self {
            before,
            parts,
            superblock: superblock(before),
            bytes: before.to_vec(),
            len: before.len(),
            moved_within_block: false,
        }
    }

    /// A part that counts, and the bytes in it from some place on.
    fn place(&self, from: &mut Bytes<'_>) -> Range<usize> {
        let part = &self.parts[usize::from(from.u16()) % self.parts.len()];
        part.start + usize::from(from.u16()) % part.len()..part.end
    }

    /// Makes one edit; returns the bytes that it touched.
    pub(crate) fn edit(&mut self, from: &mut Bytes<'_>) -> Range<usize> {
        const NUMBERS: [u64; 8] = [
            0,
            1,
            2,
            0x7fff_ffff,
            0xffff_fffe,
            0xffff_ffff,
            u64::MAX >> 1,
            u64::MAX,
        ];
        let what = from.u8();
        let to = self.place(from);
        match what % 8 {
            0 => {
                self.bytes[to.start] ^= from.u8().max(1);
                to.start..to.start + 1
            }
            1 => {
                let len = usize::from(from.u8() % 16 + 1).min(to.len());
                let to = to.start..to.start + len;
                self.bytes[to.clone()].copy_from_slice(&bytes_of(from, len));
                to
            }
            2 => {
                let to = to.start..to.end.min(to.start + usize::from(from.u16()) + 1);
                self.bytes[to.clone()].fill(what & 0x80);
                to
            }
            // A number that is at an edge, or near what was there.
            3 | 4 => {
                let width = [1, 2, 4, 8][usize::from(from.u8() % 4)];
                let to = to.start..(to.start + width).min(to.end);
                let mut number = [0; 8];
                number[..to.len()].copy_from_slice(&self.bytes[to.clone()]);
                let number = match what % 8 {
                    3 => NUMBERS[usize::from(from.u8()) % NUMBERS.len()],
                    _ => u64::from_le_bytes(number).wrapping_add_signed(i64::from(from.u8() as i8)),
                };
                self.bytes[to.clone()].copy_from_slice(&number.to_le_bytes()[..to.len()]);
                to
            }
            // What stands elsewhere, of before the edits.
            5 => {
                let source = self.place(from);
                self.copy(source.start, to.start, source.len().min(to.len()))
            }
            // Whole sectors or a block, as a write or read that went astray.
            6 => {
                let source = self.place(from);
                let unit = if what & 0x80 == 0 {
                    SECTOR
                } else {
                    BLOCK_BYTES as usize
                };
                let align = |at: usize| match self.superblock.geometry.block_of(at as u64) {
                    Some(block) if unit > SECTOR => self.superblock.geometry.block_offset(block) as usize,
                    _ => at / SECTOR * SECTOR,
                };
                let (source, to) = (align(source.start), align(to.start));
                self.copy(source, to, unit)
            }
            // A file that was cut, or whose end is zeros.
            _ => {
                if what & 0x80 == 0 {
                    self.len = self.len.min(to.start / SECTOR * SECTOR);
                } else {
                    self.bytes[to.start..].fill(0);
                }
                to.start..self.bytes.len()
            }
        }
    }

    fn copy(&mut self, from: usize, to: usize, len: usize) -> Range<usize> {
        let end = self.bytes.len();
        let len = len.min(end - from).min(end - to);
        self.bytes[to..to + len].copy_from_slice(&self.before[from..from + len]);
        let geometry = self.superblock.geometry;
        self.moved_within_block |= geometry.block_of(from as u64) == geometry.block_of(to as u64);
        to..to + len
    }

    /// The parts that a range touches.
    pub(crate) fn parts_in(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let inside = |part: &&Range<usize>| part.start < range.end && range.start < part.end;
        self.parts.iter().filter(inside).cloned().collect()
    }

    /// Where the block begins that holds a byte; `None` outside all blocks.
    pub(crate) fn block(&self, at: usize) -> Option<usize> {
        let geometry = self.superblock.geometry;
        let block = geometry.block_of(at as u64)?;
        Some(geometry.block_offset(block) as usize)
    }

    pub(crate) fn sign_superblock(&mut self, part: &Range<usize>) {
        let (bytes, at) = (&mut self.bytes, part.start / SECTOR * SECTOR);
        let crc = checksum(0, &[&bytes[at..at + 12], &bytes[at + 16..at + SECTOR]]);
        put_u32(bytes, at + 12, crc);
    }

    pub(crate) fn sign_log(&mut self, part: &Range<usize>) {
        let record = LOG_RECORD_BYTES as usize;
        let first = (part.start - 2 * SECTOR) / record;
        let last = (part.end - 1 - 2 * SECTOR) / record;
        for slot in first..=last {
            self.sign(2 * SECTOR + slot * record, record);
        }
    }

    pub(crate) fn sign_checkpoint(&mut self, part: &Range<usize>) {
        // At this block size the stream in a block is one chunk.
        let at = self.block(part.start).expect("in a block");
        let room = BLOCK_BYTES as usize - SECTOR;
        let len = (u64_at(&self.bytes, at + 24) as usize).min(room);
        let crc = checksum(
            self.superblock.cache_id,
            &[&self.bytes[at + SECTOR..at + SECTOR + len]],
        );
        self.bytes[at + 32..at + 40].copy_from_slice(&u64::from(crc).to_le_bytes());
        self.sign(at, 40);
    }

    pub(crate) fn sign_footer(&mut self, part: &Range<usize>, entry_bytes: usize) {
        let block = self.block(part.start).expect("in a block");
        let at = block + BLOCK_BYTES as usize - TRAILER_BYTES;
        let count = u32_at(&self.bytes, at + 32) as usize;
        let len = count.saturating_mul(entry_bytes);
        if len <= BLOCK_BYTES as usize - TRAILER_BYTES {
            let crc = checksum(self.superblock.cache_id, &[&self.bytes[at - len..at]]);
            put_u32(&mut self.bytes, at + 36, crc);
        }
        self.sign(at, TRAILER_BYTES);
    }

    /// Puts the checksum of the `len` bytes at `at` where most formats have it: in their first four bytes.
    pub(crate) fn sign(&mut self, at: usize, len: usize) {
        let crc = checksum(self.superblock.cache_id, &[&self.bytes[at + 4..at + len]]);
        put_u32(&mut self.bytes, at, crc);
    }

    /// Whether it has its length still.
    pub(crate) fn is_whole(&self) -> bool {
        self.len == self.before.len()
    }

    /// The device, as it was edited.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The superblock that counts in an image that is in order.
pub(crate) fn superblock(image: &[u8]) -> Superblock {
    let slots = image.chunks_exact(SECTOR).take(2);
    let superblocks = slots.filter_map(|sector| match Superblock::decode(sector) {
        SlotContent::Valid(superblock) => Some(superblock),
        _ => None,
    });
    superblocks
        .max_by_key(|superblock| superblock.generation)
        .expect("the image is in order")
}

/// A device that has these bytes.
pub(crate) fn medium_of(bytes: &[u8]) -> Arc<MemMedium> {
    let medium = Arc::new(MemMedium::new(bytes.len() as u64));
    let device = MemDevice::new(Arc::clone(&medium));
    for (sector, bytes) in (0..).zip(bytes.chunks(SECTOR)) {
        if bytes.iter().any(|byte| *byte != 0) {
            device.append_log(sector * SECTOR as u64, bytes).expect("it fits");
        }
    }
    medium
}

/// The bytes of a device.
pub(crate) fn bytes_of_medium(medium: &Arc<MemMedium>) -> Vec<u8> {
    let mut bytes = vec![0; medium.capacity() as usize];
    MemDevice::new(Arc::clone(medium))
        .read_log(0, &mut bytes)
        .expect("all of it is there");
    bytes
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    Bytes(&bytes[at..]).u32()
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    Bytes(&bytes[at..]).u64()
}

/// The next bytes of the input, or zeros.
fn bytes_of(from: &mut Bytes<'_>, len: usize) -> Vec<u8> {
    let mut out = from.take(len).to_vec();
    out.resize(len, 0);
    out
}
