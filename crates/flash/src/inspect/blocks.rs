//! What stands on each block, and whether the blocks that count are whole.

use super::checkpoint::{Snapshot, index_shape};
use super::{Part, Source, Walk};
use crate::footer::{Ending, FooterEntry};
use pumice_blocks::chain::{BlockRole, BlockRow};
use pumice_blocks::footer::{TRAILER_BYTES, Trailer, decode_entries};
use pumice_blocks::rot::{mended, mended_with, wrong_bit};
use pumice_device::SECTOR_BYTES;
use pumice_index::padded_len;
use pumice_memory::{AlignedBuf, Buffer};
use pumice_record::codec::{checksum, value_checksum};
use pumice_record::{EPOCH_SHIFT, HEADER_BYTES_MAX, MANIFEST_BYTES, Record, RecordHeader, SliceId};
use std::sync::Arc;

/// Bytes of a block that are read at a time: what cannot be read costs no more than that.
const PIECE_BYTES: usize = 256 << 10;
/// Blocks that are open or being written at the same time, at most.
const UNWRITTEN_MAX: usize = 128;
const KEY_BYTES_MAX: u8 = 250;

/// What stands where a trailer would.
enum Tail {
    /// A trailer of this cache.
    Whole(Trailer),
    /// What was one. Where a single bit is wrong, with what it said.
    Damaged(Option<Trailer>),
    /// No trailer.
    Nothing,
}

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
        let blocks = self.superblock.geometry.blocks;
        let mut sequences: Vec<u64> = snapshot.rows.iter().map(|row| row.sequence).collect();
        sequences.push(snapshot.next_sequence);
        sequences.sort_unstable();
        for block in 0..blocks {
            if self.in_chain[block as usize] {
                self.summary.blocks.checkpoint += 1;
                continue;
            }
            let Some(tail) = self.tail(block) else {
                self.summary.blocks.unknown += 1;
                continue;
            };
            let reclaimed = self.reclaimed[block as usize];
            match snapshot.row(block).filter(|row| row.sequence > reclaimed) {
                Some(row) if row.role == BlockRole::Sealed => {
                    self.covered_block(
                        block,
                        row,
                        &tail,
                        is_before_leap(&sequences, row.sequence, blocks),
                    );
                }
                _ if snapshot.has_pages.get(block as usize) == Some(&true) => {
                    self.summary.blocks.mappings += 1;
                }
                row => {
                    let open = row.filter(|row| row.role == BlockRole::Open);
                    self.other_block(block, snapshot, open.map(|row| row.sequence), &tail);
                }
            }
        }
    }

    fn tail_offset(&self, block: u32) -> u64 {
        let geometry = &self.superblock.geometry;
        geometry.block_offset(block) + geometry.block_bytes - TRAILER_BYTES as u64
    }

    fn tail(&mut self, block: u32) -> Option<Tail> {
        let bytes = self.read(Part::Block(block), self.tail_offset(block), TRAILER_BYTES)?;
        let cache_id = self.superblock.cache_id;
        if let Some(trailer) = Trailer::decode(cache_id, &bytes) {
            return Some(Tail::Whole(trailer));
        }
        let was = mended(cache_id, &bytes).and_then(|bytes| Trailer::decode(cache_id, &bytes));
        // Zeros and values do not look like this by accident.
        let is_like_one = bytes[4..8] == *b"PMbk" && bytes[24..32] == cache_id.to_le_bytes();
        Some(if was.is_some() || is_like_one {
            Tail::Damaged(was)
        } else {
            Tail::Nothing
        })
    }

    /// What stands there cannot be told.
    fn unknown_block(&mut self, block: u32, what: impl Into<String>) {
        self.summary.blocks.unknown += 1;
        self.wrong(Part::Block(block), self.tail_offset(block), what);
    }

    /// A block that the checkpoint has as sealed. `may_be_torn`: by a crash before the start that wrote the checkpoint, or one
    /// before.
    fn covered_block(&mut self, block: u32, row: &BlockRow, tail: &Tail, may_be_torn: bool) {
        let offset = self.tail_offset(block);
        let says = format!("the checkpoint has it sealed with sequence {}", row.sequence);
        let found = match tail {
            Tail::Whole(trailer) if trailer.block != block => {
                format!("the trailer of block {} stands there", trailer.block)
            }
            Tail::Whole(trailer) if trailer.sequence != row.sequence => {
                format!("its trailer has sequence {}", trailer.sequence)
            }
            Tail::Whole(trailer) => {
                if trailer.footer_len() != row.footer_len as usize
                    || Ending::of(trailer).expiry_max != row.own
                {
                    let what = format!("{says}, and its trailer says another length or expiry of its footer");
                    self.wrong(Part::Block(block), offset, what);
                }
                return self.sealed_block(block, trailer, may_be_torn);
            }
            Tail::Damaged(_) => "its trailer is damaged".to_owned(),
            Tail::Nothing => "no trailer of this cache stands there".to_owned(),
        };
        self.used(offset, TRAILER_BYTES as u64);
        self.unknown_block(block, format!("{says}, and {found}"));
    }

    /// A block that the checkpoint does not have as sealed: sealed since then, or nothing that counts. `open` is the sequence that it
    /// had as an open one.
    fn other_block(&mut self, block: u32, snapshot: &Snapshot, open: Option<u64>, tail: &Tail) {
        let clean = self.superblock.clean;
        let reclaimed = self.reclaimed[block as usize];
        let is_later = |sequence: u64| {
            sequence > reclaimed && (open == Some(sequence) || sequence >= snapshot.next_sequence)
        };
        match tail {
            Tail::Whole(trailer) if trailer.block != block => {
                let what = format!(
                    "the trailer of block {} stands there: a misdirected write",
                    trailer.block
                );
                self.unknown_block(block, what);
            }
            Tail::Whole(trailer) if is_later(trailer.sequence) && clean => {
                self.unknown_block(block, "it was sealed after the checkpoint of the clean stop");
            }
            Tail::Whole(trailer) if is_later(trailer.sequence) => self.sealed_block(block, trailer, true),
            Tail::Damaged(was) if !clean && was.as_ref().is_none_or(|was| is_later(was.sequence)) => {
                self.unknown_block(block, "its trailer is damaged");
            }
            _ if is_later(self.prefixed[block as usize]) && !clean => self.summary.blocks.prefixes += 1,
            _ if open.is_some() && !clean => {
                self.summary.blocks.open += 1;
                let what = "it was open when the checkpoint was begun, and was never sealed";
                self.tell(true, Part::Block(block), self.tail_offset(block), what);
            }
            _ => self.summary.blocks.free += 1,
        }
    }

    /// A block whose objects count. `may_be_torn`: by a crash, because it was sealed after the checkpoint was begun, or since such a
    /// start found it.
    fn sealed_block(&mut self, block: u32, trailer: &Trailer, may_be_torn: bool) {
        self.summary.blocks.sealed += 1;
        let (part, cache_id) = (Part::Block(block), self.superblock.cache_id);
        let geometry = self.superblock.geometry;
        let start = geometry.block_offset(block);
        let block_bytes = usize::try_from(geometry.block_bytes).expect("at most 256 MiB");
        self.used(self.tail_offset(block), TRAILER_BYTES as u64);
        let footer_len = trailer.footer_len();
        let Some(footer_at) = block_bytes.checked_sub(footer_len) else {
            let what = format!("its trailer has a footer of {footer_len} bytes, more than fit");
            return self.wrong(part, self.tail_offset(block), what);
        };
        let listed_len = footer_len - TRAILER_BYTES;
        let offset = start + footer_at as u64;
        self.used(offset, listed_len as u64);
        let from = if self.verify {
            0
        } else {
            footer_at / SECTOR_BYTES * SECTOR_BYTES
        };
        let data = Arc::new(self.block_from(block, from, block_bytes));
        let footer = &data.as_slice()[footer_at - from..];
        let Some(entries) = decode_entries::<FooterEntry>(cache_id, trailer, footer, block_bytes) else {
            let difference = checksum(cache_id, &[&footer[..listed_len]]) ^ trailer.entries_crc;
            if difference == 0 {
                let what = "an entry of its footer lies outside the block's data: its objects are lost";
                return self.wrong(part, offset, what);
            }
            // The part in the trailer's sector was written with it.
            let is_torn =
                may_be_torn && footer_len > SECTOR_BYTES && wrong_bit(listed_len, difference).is_none();
            let what = "the checksum of its footer is wrong: its objects are lost";
            return self.tell(is_torn, part, offset, what);
        };
        let unit_bytes = index_shape(&geometry, &self.settings, 1).unit_bytes();
        let (mut torn, mut expiry_max) = (None, 0);
        for entry in &entries {
            self.summary.objects += 1;
            self.summary.object_bytes += u64::from(entry.len);
            expiry_max = expiry_max.max(if entry.expiry == 0 { u32::MAX } else { entry.expiry });
            let fault = if !u64::from(entry.offset).is_multiple_of(unit_bytes) {
                "is not at a multiple of the unit of records"
            } else if entry.version >> EPOCH_SHIFT > u64::from(self.superblock.epoch) {
                "has a version of a later epoch than the superblock's"
            } else {
                ""
            };
            if !fault.is_empty() {
                let what = format!("footer entry {} {fault}", entry.number);
                self.wrong(part, offset, what);
            }
            if !self.verify {
                continue;
            }
            let at = start + u64::from(entry.offset);
            let record = &data.as_slice()[entry.offset as usize..][..entry.len as usize];
            let header = RecordHeader::decode_unchecked(record, trailer.sequence);
            let len = header.map_or(0, |header| header.encoded_len());
            self.used(at, len.min(record.len()) as u64);
            let whole = Record::decode(
                Arc::clone(&data),
                entry.offset as usize,
                record.len(),
                cache_id,
                trailer.sequence,
                true,
            );
            let what = match whole {
                Some(whole) if is_of_entry(whole.header(), entry, unit_bytes) => continue,
                None if may_be_torn && !is_rotten(cache_id, trailer.sequence, record) => {
                    torn = Some((torn.map_or(0, |(count, _)| count) + 1, at));
                    continue;
                }
                Some(_) => "is not as the footer says",
                None => "is damaged, or of a former generation of the block",
            };
            let what = format!("the record of footer entry {} {what}", entry.number);
            self.wrong(part, at, what);
        }
        if let Some((count, at)) = torn {
            let what = format!(
                "a crash tore the block: {count} of its {} records are not whole, this is the last",
                entries.len()
            );
            self.tell(true, part, at, what);
        }
        if expiry_max != Ending::of(trailer).expiry_max {
            let what = "its trailer has another latest expiry than its entries";
            self.wrong(part, self.tail_offset(block), what);
        }
    }

    /// A block from `from` on. Zeros stand for what cannot be read.
    fn block_from(&mut self, block: u32, from: usize, block_bytes: usize) -> AlignedBuf {
        let mut data = AlignedBuf::with_len(block_bytes - from);
        let mut offset = self.superblock.geometry.block_offset(block) + from as u64;
        for piece in data.as_mut_slice().chunks_mut(PIECE_BYTES) {
            if let Err(error) = self.source.read(offset, piece) {
                piece.fill(0);
                let what = format!("{} bytes cannot be read: {error}", piece.len());
                self.wrong(Part::Block(block), offset, what);
            }
            offset += piece.len() as u64;
        }
        data
    }
}

/// Whether a whole record is the one that a footer's entry tells of.
fn is_of_entry(header: &RecordHeader, entry: &FooterEntry, unit_bytes: u64) -> bool {
    header.version == entry.version
        && header.expiry == entry.expiry
        && (1..=KEY_BYTES_MAX).contains(&header.key_len)
        && padded_len(header.encoded_len() as u64, unit_bytes) == u64::from(entry.len)
        && (header.slice != SliceId::Head || header.value_len as usize == MANIFEST_BYTES)
}

/// Whether a single wrong bit of header and key, or of the value, explains a record that is not whole.
fn is_rotten(cache_id: u64, sequence: u64, record: &[u8]) -> bool {
    let head_of = |bytes: &[u8]| {
        let header = RecordHeader::decode_unchecked(bytes, sequence)?;
        Some((header, header.header_len() + header.named_len()))
    };
    let is_head = |key_end: usize| {
        let head = record.get(..key_end);
        head.and_then(|head| mended_with(cache_id, &sequence.to_le_bytes(), head))
            .is_some()
    };
    // Those that say how long header and key are.
    let mut lengths = 32..48;
    let is_length = lengths.any(|bit| {
        let mut start = record[..record.len().min(HEADER_BYTES_MAX)].to_vec();
        start[bit / 8] ^= 1 << (bit % 8);
        head_of(&start).is_some_and(|(_, key_end)| is_head(key_end))
    });
    let Some((header, key_end)) = head_of(record) else {
        return is_length;
    };
    let value = record.get(key_end..header.encoded_len());
    let is_value = |value: &[u8]| wrong_bit(value.len(), value_checksum(value) ^ header.value_crc).is_some();
    is_length || is_head(key_end) || value.is_some_and(is_value)
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
