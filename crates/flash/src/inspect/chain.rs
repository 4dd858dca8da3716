//! The blocks of a checkpoint: their headers, the chain that these make, and the checksums of the chunks.

use super::bit::{Flip, flipped_bit, say};
use super::stream::{Snapshot, Stream};
use super::{Part, Source, Walk};
use crate::checkpoint::{NO_BLOCK, PART_HEADER_BYTES, PartHeader, chunk_bytes, mix};
use crate::codec::checksum;
use crate::superblock::CheckpointRef;
use pumice_device::SECTOR_BYTES;

const SECTOR: u64 = SECTOR_BYTES as u64;

impl<S: Source + ?Sized> Walk<'_, S> {
    /// Checks a checkpoint that the superblock names; `None` where no start could use it. `is_base`: it is the one that a start would
    /// use.
    pub(super) fn checkpoint(&mut self, reference: &CheckpointRef, is_base: bool) -> Option<Snapshot> {
        let parts = self.chain(reference)?;
        for (block, _) in &parts {
            self.in_chain[*block as usize] = true;
        }
        let mut is_whole = true;
        for (block, header) in &parts {
            is_whole &= self.chunks(reference.id, *block, header);
        }
        if !is_whole {
            return None;
        }
        let mut stream = Stream::new(self.source, self.superblock.geometry, parts);
        match self.snapshot(&mut stream, reference, is_base) {
            Ok(snapshot) => Some(snapshot),
            Err(broken) => {
                self.wrong(Part::Checkpoint(reference.id), broken.offset, broken.what);
                None
            }
        }
    }

    fn chain(&mut self, reference: &CheckpointRef) -> Option<Vec<(u32, PartHeader)>> {
        let geometry = self.superblock.geometry;
        let part = Part::Checkpoint(reference.id);
        let mut parts: Vec<(u32, PartHeader)> = Vec::new();
        let mut named_at = self.superblock.slot_offset();
        let mut block = reference.first_block;
        let mut total = 0;
        while block != NO_BLOCK {
            if block >= geometry.blocks || parts.len() >= geometry.blocks as usize {
                let what = format!("its chain leads to block {block}, of {}", geometry.blocks);
                self.wrong(part, named_at, what);
                return None;
            }
            let offset = geometry.block_offset(block);
            named_at = offset;
            let bytes = self.read(part, offset, PART_HEADER_BYTES)?;
            let header = match self.part_header(&bytes, offset) {
                Ok(header) => header,
                Err(what) => {
                    let number = parts.len();
                    self.wrong(
                        part,
                        offset,
                        format!("the header of its part {number}, in block {block}, {what}"),
                    );
                    return None;
                }
            };
            if header.id != reference.id || header.part as usize != parts.len() {
                let what = format!(
                    "block {block} is to be its part {}, and is part {} of checkpoint {}",
                    parts.len(),
                    header.part,
                    header.id
                );
                self.wrong(part, offset, what);
                return None;
            }
            if header.len > geometry.block_bytes - SECTOR {
                let what = format!(
                    "block {block} is to hold {} bytes of it, more than fit",
                    header.len
                );
                self.wrong(part, offset, what);
                return None;
            }
            total += header.len;
            parts.push((block, header));
            block = header.next;
        }
        if total != reference.len {
            let what = format!(
                "its blocks hold {total} bytes, and the superblock says {}",
                reference.len
            );
            self.wrong(part, named_at, what);
            return None;
        }
        for (block, header) in &parts {
            let offset = geometry.block_offset(*block);
            self.used(offset, PART_HEADER_BYTES as u64);
            self.used(offset + SECTOR, header.len);
        }
        Some(parts)
    }

    fn part_header(&self, bytes: &[u8], offset: u64) -> Result<PartHeader, String> {
        let cache_id = self.superblock.cache_id;
        if let Some(header) = PartHeader::decode(cache_id, bytes) {
            return Ok(header);
        }
        let stored = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let computed = checksum(cache_id, &[&bytes[4..PART_HEADER_BYTES]]);
        Err(match flipped_bit(PART_HEADER_BYTES - 4, stored, computed) {
            Some(flip) => format!(
                "is damaged: {}",
                say(flip, offset, |byte| offset + 4 + byte as u64)
            ),
            None => "is none of this cache's".to_owned(),
        })
    }

    /// Checks the sum over the chunks of one block.
    fn chunks(&mut self, id: u64, block: u32, header: &PartHeader) -> bool {
        let geometry = self.superblock.geometry;
        let start = geometry.block_offset(block) + SECTOR;
        let chunk_len = chunk_bytes(&geometry);
        let chunks = header.len.div_ceil(chunk_len as u64);
        let len_of = |chunk: u64| (header.len - chunk * chunk_len as u64).min(chunk_len as u64) as usize;
        let mut crcs = 0;
        for chunk in 0..chunks {
            let offset = start + chunk * chunk_len as u64;
            let Some(bytes) = self.read(Part::Checkpoint(id), offset, len_of(chunk)) else {
                return false;
            };
            crcs = mix(crcs, chunk, checksum(self.superblock.cache_id, &[&bytes]));
        }
        let difference = crcs ^ header.chunk_crcs;
        if difference == 0 {
            return true;
        }
        // Where one chunk is wrong, its place in the sum tells which: the rest of the 64 bits is right.
        let flip = (0..chunks).find_map(|chunk| {
            let of_chunk = u32::try_from(difference.rotate_right((chunk % 64) as u32)).ok()?;
            match flipped_bit(len_of(chunk), of_chunk, 0)? {
                flip @ Flip::Covered { .. } => Some((start + chunk * chunk_len as u64, flip)),
                Flip::Checksum { .. } => None,
            }
        });
        let what = match flip {
            Some((chunk, flip)) => say(flip, chunk, |byte| chunk + byte as u64),
            None => format!("among the {} bytes from here on", header.len),
        };
        let what = format!("the checksum of its part in block {block} is wrong: {what}");
        self.wrong(Part::Checkpoint(id), start, what);
        false
    }
}
