//! What stands on each block, and whether the blocks that count are whole.

use super::bit::{flipped_bit, say};
use super::mappings::MappingShape;
use super::records::{self, Expected};
use super::stream::Snapshot;
use super::trailers::{Tail, examine};
use super::{Part, Source, Walk};
use crate::checkpoint::{BlockRole, BlockRow, PART_HEADER_BYTES, PartHeader};
use crate::codec::{Fields, checksum};
use crate::footer::{ENTRY_BYTES, FooterEntry, TRAILER_BYTES, Trailer, footer_len};
use crate::recovery::EPOCH_SHIFT;
use pumice_device::SECTOR_BYTES;

/// Bytes of a block that are read at a time: what cannot be read costs no more than that.
const PIECE_BYTES: usize = 256 << 10;
/// Blocks that are open or being written at the same time, at most.
const UNWRITTEN_MAX: usize = 128;

/// Whether a crash may have come while the block of this sequence was being written: few were opened after it, and then the
/// sequences leap, as they do at a start that follows a crash. `sequences` are those that are known, in order.
fn is_before_leap(sequences: &[u64], sequence: u64, blocks: u32) -> bool {
    let later = &sequences[sequences.partition_point(|known| *known <= sequence)..];
    let mut former = sequence;
    later.iter().take(UNWRITTEN_MAX).any(|known| {
        let leaps = known - former > u64::from(blocks);
        former = *known;
        leaps
    })
}

impl<S: Source + ?Sized> Walk<'_, S> {
    /// Looks at every block. `snapshot` is what a start would begin with.
    pub(super) fn blocks(&mut self, snapshot: &Snapshot) {
        let mut sequences: Vec<u64> = snapshot.rows.iter().map(|row| row.sequence).collect();
        sequences.push(snapshot.next_sequence);
        sequences.sort_unstable();
        for block in 0..self.superblock.geometry.blocks {
            if self.in_chain[block as usize] {
                self.summary.blocks.checkpoint += 1;
                continue;
            }
            let Some(tail) = self.tail(block) else {
                self.summary.blocks.unknown += 1;
                continue;
            };
            let reclaimed = self.reclaimed[block as usize];
            let row = snapshot.row(block).copied();
            let row = row.filter(|row| row.sequence > reclaimed);
            match row {
                Some(row) if row.role == BlockRole::Sealed => {
                    let may_be_torn =
                        is_before_leap(&sequences, row.sequence, self.superblock.geometry.blocks);
                    self.covered_block(block, &row, tail, may_be_torn);
                }
                _ if snapshot.has_pages.get(block as usize) == Some(&true) => {
                    self.summary.blocks.mappings += 1
                }
                row => {
                    let is_open = row.is_some_and(|row| row.role == BlockRole::Open);
                    self.other_block(
                        block,
                        snapshot,
                        is_open.then(|| row.map_or(0, |row| row.sequence)),
                        tail,
                    );
                }
            }
        }
    }

    /// Counts blocks of which none will count at the next start.
    pub(super) fn blocks_that_do_not_count(&mut self) {
        let what = "no whole log was kept since the last stop: the next start empties the cache";
        self.note(Part::Device, 0, what.to_owned());
        for block in 0..self.superblock.geometry.blocks {
            let tail = self.tail(block);
            self.free_block(block, tail.as_ref());
        }
    }

    fn tail_offset(&self, block: u32) -> u64 {
        let geometry = &self.superblock.geometry;
        geometry.block_offset(block) + geometry.block_bytes - TRAILER_BYTES as u64
    }

    fn tail(&mut self, block: u32) -> Option<Tail> {
        let offset = self.tail_offset(block);
        let bytes = self.read(Part::Block(block), offset, TRAILER_BYTES)?;
        let bytes = bytes.first_chunk::<TRAILER_BYTES>()?;
        Some(examine(self.superblock.cache_id, block, bytes, offset))
    }

    /// A block that the checkpoint has as sealed. `may_be_torn`: by a crash before the start that wrote the checkpoint, or one
    /// before.
    fn covered_block(&mut self, block: u32, row: &BlockRow, tail: Tail, may_be_torn: bool) {
        let (part, offset) = (Part::Block(block), self.tail_offset(block));
        let says = format!("the checkpoint has it sealed with sequence {}", row.sequence);
        let what = match tail {
            Tail::Whole(trailer) if trailer.block != block => {
                format!("{says}, and the trailer of block {} stands there", trailer.block)
            }
            Tail::Whole(trailer) if trailer.sequence != row.sequence => {
                format!("{says}, and its trailer has sequence {}", trailer.sequence)
            }
            Tail::Whole(trailer) => {
                if trailer.footer_len() != row.footer_len as usize || trailer.expiry_max != row.expiry_max {
                    let what = format!(
                        "{says}, a footer of {} bytes and latest expiry {}, and its trailer says {} and {}",
                        row.footer_len,
                        row.expiry_max,
                        trailer.footer_len(),
                        trailer.expiry_max
                    );
                    self.wrong(part, offset, what);
                }
                return self.sealed_block(block, &trailer, may_be_torn);
            }
            Tail::Damaged(_, what) => format!("{says}, and its trailer is damaged: {what}"),
            Tail::OtherCache(id) => {
                format!("{says}, and a trailer of another cache ({id:016x}) stands there")
            }
            Tail::Nothing => format!("{says}, and no trailer stands there"),
        };
        self.summary.blocks.unknown += 1;
        self.used(offset, TRAILER_BYTES as u64);
        self.wrong(part, offset, what);
    }

    /// A block that the checkpoint does not have as sealed: sealed since then, or nothing that counts. `open` is the sequence that it
    /// had as an open one.
    fn other_block(&mut self, block: u32, snapshot: &Snapshot, open: Option<u64>, tail: Tail) {
        let (part, offset) = (Part::Block(block), self.tail_offset(block));
        let clean = self.superblock.clean;
        let reclaimed = self.reclaimed[block as usize];
        let is_later = |trailer: &Trailer| {
            trailer.sequence > reclaimed
                && (open == Some(trailer.sequence) || trailer.sequence >= snapshot.next_sequence)
        };
        match &tail {
            Tail::Whole(trailer) if trailer.block != block => {
                let what = format!(
                    "the trailer of block {} stands there: a misdirected write",
                    trailer.block
                );
                self.summary.blocks.unknown += 1;
                self.wrong(part, offset, what);
            }
            Tail::Whole(trailer) if is_later(trailer) && clean => {
                let what = format!(
                    "it was sealed with sequence {}, and the checkpoint of the clean stop ends before {}",
                    trailer.sequence, snapshot.next_sequence
                );
                self.summary.blocks.unknown += 1;
                self.wrong(part, offset, what);
            }
            Tail::Whole(trailer) if is_later(trailer) => self.sealed_block(block, trailer, true),
            Tail::Damaged(mended, what) if !clean && mended.as_ref().is_none_or(is_later) => {
                self.summary.blocks.unknown += 1;
                self.wrong(part, offset, format!("its trailer is damaged: {what}"));
            }
            _ if open.is_some() && !clean => {
                self.summary.blocks.open += 1;
                self.note(
                    part,
                    offset,
                    "it was open when the checkpoint was begun, and was never sealed".to_owned(),
                );
            }
            tail => self.free_block(block, Some(tail)),
        }
    }

    fn free_block(&mut self, block: u32, tail: Option<&Tail>) {
        let counts = &mut self.summary.blocks;
        counts.free += 1;
        match tail {
            Some(Tail::Whole(_) | Tail::Damaged(..) | Tail::OtherCache(_)) => counts.with_old_objects += 1,
            Some(Tail::Nothing) | None => {
                let offset = self.superblock.geometry.block_offset(block);
                let mut bytes = [0; PART_HEADER_BYTES];
                // What cannot be read holds nothing that counts.
                let is_read = self.source.read(offset, &mut bytes).is_ok();
                if is_read && PartHeader::decode(self.superblock.cache_id, &bytes).is_some() {
                    self.summary.blocks.with_old_checkpoint += 1;
                }
            }
        }
    }

    /// A block whose objects count. `may_be_torn`: by a crash, because it was sealed after the checkpoint was begun, or since such a
    /// start found it.
    fn sealed_block(&mut self, block: u32, trailer: &Trailer, may_be_torn: bool) {
        self.summary.blocks.sealed += 1;
        let (part, tail_offset) = (Part::Block(block), self.tail_offset(block));
        let geometry = self.superblock.geometry;
        let start = geometry.block_offset(block);
        self.used(tail_offset, TRAILER_BYTES as u64);
        let entries_len = u64::from(trailer.count) * ENTRY_BYTES as u64;
        if entries_len + TRAILER_BYTES as u64 > geometry.block_bytes {
            let what = format!("its trailer has {} footer entries, more than fit", trailer.count);
            return self.wrong(part, tail_offset + 32, what);
        }
        let offset = tail_offset - entries_len;
        self.used(offset, entries_len);
        let Some(entries) = self.read(part, offset, entries_len as usize) else {
            return;
        };
        let computed = checksum(self.superblock.cache_id, &[&entries]);
        if computed != trailer.entries_crc {
            let what = "the checksum of its footer is wrong";
            if let Some(flip) = flipped_bit(entries.len(), trailer.entries_crc, computed) {
                let flip = say(flip, tail_offset + 36, |byte| offset + byte as u64);
                return self.wrong(part, offset, format!("{what}: {flip}"));
            }
            // What is in the trailer's sector was written with it.
            return if may_be_torn && footer_len(trailer.count as usize) > SECTOR_BYTES {
                self.note(part, offset, format!("{what}: a crash tore the block"));
            } else {
                self.wrong(part, offset, what.to_owned());
            };
        }
        let data = if self.verify { self.block(block) } else { None };
        let shape = MappingShape::of(&self.superblock);
        let expected = Expected {
            cache_id: self.superblock.cache_id,
            sequence: trailer.sequence,
            unit_bytes: shape.unit_bytes,
            block_offset: start,
        };
        let mut fields = Fields(&entries);
        let (mut former_end, mut torn, mut expiry_max) = (0, None, 0);
        let mut number = 0;
        while let Some(entry) = FooterEntry::decode(&mut fields, number) {
            let entry_offset = offset + u64::from(number) * ENTRY_BYTES as u64;
            number += 1;
            expiry_max = expiry_max.max(if entry.expiry == 0 { u32::MAX } else { entry.expiry });
            self.summary.objects += 1;
            self.summary.object_bytes += u64::from(entry.len);
            let end = u64::from(entry.offset) + u64::from(entry.len);
            let says = format!(
                "footer entry {} ({} bytes at {} of the block)",
                entry.number, entry.len, entry.offset
            );
            if entry.len == 0 || end > geometry.block_bytes - entries_len - TRAILER_BYTES as u64 {
                self.wrong(
                    part,
                    entry_offset,
                    format!("{says} lies outside the block's data"),
                );
                continue;
            }
            if u64::from(entry.offset) < former_end {
                self.wrong(
                    part,
                    entry_offset,
                    format!("{says} overlaps the one before, or is not in order"),
                );
            }
            former_end = former_end.max(end);
            if !u64::from(entry.offset).is_multiple_of(shape.unit_bytes) {
                self.wrong(
                    part,
                    entry_offset,
                    format!("{says} is not at a multiple of {}", shape.unit_bytes),
                );
            }
            if entry.version >> EPOCH_SHIFT > u64::from(self.superblock.epoch) {
                let what = format!(
                    "{says} has version {:#x}, of a later epoch than the superblock's",
                    entry.version
                );
                self.wrong(part, entry_offset, what);
            }
            let Some((data, unread)) = &data else { continue };
            let pieces = entry.offset as usize / PIECE_BYTES..=(end as usize - 1) / PIECE_BYTES;
            if pieces.into_iter().any(|piece| unread[piece]) {
                continue;
            }
            match records::check(data, &entry, &expected) {
                Ok(()) => {}
                Err(fault) if may_be_torn && fault.may_be_torn => {
                    let (count, _) = torn.unwrap_or((0, fault.at));
                    torn = Some((count + 1, fault.at));
                }
                Err(fault) => {
                    let what = format!("the record of {says}: {}", fault.what);
                    self.wrong(part, start + fault.at, what);
                }
            }
            self.record_used(data, start, &entry);
        }
        if let Some((count, at)) = torn {
            let what = format!(
                "a crash tore the block: {count} of its {number} records are not whole, this is the last"
            );
            self.note(part, start + at, what);
        }
        if expiry_max != trailer.expiry_max {
            let what = format!(
                "its trailer has latest expiry {}, and its entries {expiry_max}",
                trailer.expiry_max
            );
            self.wrong(part, tail_offset + 44, what);
        }
    }

    /// The bytes of a record that count: all but its padding.
    fn record_used(&mut self, data: &[u8], start: u64, entry: &FooterEntry) {
        let record = &data[entry.offset as usize..];
        let len = crate::record::RecordHeader::decode_unchecked(record)
            .map_or(0, |header| header.encoded_len() as u64)
            .min(u64::from(entry.len));
        self.used(start + u64::from(entry.offset), len);
    }

    /// The whole block, and which pieces of it could not be read.
    fn block(&mut self, block: u32) -> Option<(Vec<u8>, Vec<bool>)> {
        let geometry = self.superblock.geometry;
        let start = geometry.block_offset(block);
        let mut data = vec![0; usize::try_from(geometry.block_bytes).ok()?];
        let mut unread = Vec::new();
        for (at, piece) in data.chunks_mut(PIECE_BYTES).enumerate() {
            let offset = start + (at * PIECE_BYTES) as u64;
            let read = self.source.read(offset, piece);
            unread.push(read.is_err());
            if let Err(error) = read {
                let what = format!("{} bytes cannot be read: {error}", piece.len());
                self.wrong(Part::Block(block), offset, what);
            }
        }
        Some((data, unread))
    }
}

#[cfg(test)]
mod tests {
    use super::is_before_leap;

    #[test]
    fn a_leap_of_sequences_tells_of_a_crash_shortly_after() {
        // 40 blocks; the start after the crash began at 1055 + 40.
        let sequences: Vec<u64> = (1_020..1_056).chain(1_096..1_100).collect();
        assert!(is_before_leap(&sequences, 1_055, 40));
        assert!(
            is_before_leap(&sequences, 1_030, 40),
            "written slowly beside others"
        );
        assert!(!is_before_leap(&sequences, 1_099, 40), "after it");
        let busy: Vec<u64> = (0..1_000).chain(2_500..2_600).collect();
        assert!(!is_before_leap(&busy, 800, 1_400), "long before");
        assert!(is_before_leap(&busy, 999, 1_400));
    }
}
