//! Blocks that were being filled at a crash, whose beginnings are on the device.

use super::{FoundBlocks, LogSummary, PIECE_HEAD_BYTES_MAX, PieceBegin, Recovery, Restore};
use crate::chain::{BlockRole, Head};
use crate::footer::{Entry, TRAILER_BYTES, encode_footer};
use crate::log::PrefixMark;
use crate::open::read_twice;
use pumice_device::{Device, SECTOR_BYTES};
use pumice_memory::{Buffer, Payload};
use std::io;
use std::sync::Arc;

/// A prefix is read in parts of so many bytes.
const PREFIX_READ_BYTES: usize = 128 << 10;

impl<D: Device> Recovery<'_, D> {
    /// Makes sealed blocks of those that were being filled and whose beginnings are on the device. Their footers are written before any
    /// checkpoint can name them. One that died with its footer half written is found by its prefix again.
    pub(super) async fn adopt_prefixes<O: Restore>(
        &mut self,
        head: &Head,
        summary: &LogSummary,
        owner: &O,
        found: &mut FoundBlocks,
    ) {
        for (&block, &(mark, sequence)) in &summary.prefixes {
            let row = head.rows.get(block as usize);
            // Otherwise it ended before the checkpoint, and of what had died in it the log need not tell any more.
            let was_open = sequence >= head.next_sequence
                || row.is_some_and(|row| row.sequence == sequence && row.role == BlockRole::Open);
            found.next_sequence = found.next_sequence.max(sequence + 1);
            if !was_open || found.covered[block as usize] || summary.is_reclaimed(block, sequence) {
                continue;
            }
            if let Some(at) = found.new.iter().position(|(other, _)| *other == block) {
                let trailer = found.new[at].1;
                // A crash may have torn the write of a full block: of its footer only the trailer is there.
                let footer = self.footer::<O::Entry>(block, &trailer).await;
                if trailer.sequence != sequence || !matches!(footer, Ok(None)) {
                    continue;
                }
                if !owner.was_whole(block, sequence) {
                    found.new.remove(at);
                }
            }
            if owner.was_whole(block, sequence) {
                continue;
            }
            let entries = self.read_prefix(mark, sequence, owner).await;
            if entries.is_empty() {
                continue;
            }
            // Not the clock's, which may not be confirmed yet.
            let time = self.superblock.time;
            let own = owner.trailer(&entries, mark.own);
            let (footer, trailer) =
                encode_footer(self.superblock.cache_id, block, sequence, time, own, &entries);
            if let Err(error) = self.write_footer(block, &footer).await {
                tracing::warn!("writing a footer for block {block}: {error}");
                self.unread_blocks.push(block);
                continue;
            }
            found.prefixes += 1;
            found.new.push((block, trailer));
        }
    }

    /// The entries of the pieces of a prefix, in order, up to the first that does not fit.
    async fn read_prefix<O: Restore>(&mut self, mark: PrefixMark, sequence: u64, owner: &O) -> Vec<O::Entry> {
        let geometry = self.superblock.geometry;
        let block_bytes = usize::try_from(geometry.block_bytes).unwrap_or(0);
        let logged_end = (usize::from(mark.end_sectors) * SECTOR_BYTES).min(block_bytes);
        let end = if owner.finds_ends() {
            block_bytes
        } else {
            logged_end
        };
        let mut entries: Vec<O::Entry> = Vec::new();
        let mut footer_len = TRAILER_BYTES;
        // What was read last, and from where in the block.
        let mut part: Option<(usize, D::Buf)> = None;
        let mut at = 0;
        while at < end {
            let head_end = (at + PIECE_HEAD_BYTES_MAX).min(end);
            let is_in = |(start, buffer): &(usize, D::Buf)| *start <= at && head_end <= start + buffer.len();
            if !part.as_ref().is_some_and(is_in) {
                let start = at / SECTOR_BYTES * SECTOR_BYTES;
                let offset = geometry.block_offset(mark.block) + start as u64;
                let (most, least) = (PREFIX_READ_BYTES.min(end - start), head_end - start);
                part = None;
                // What cannot be read may lie behind the prefix.
                for len in [most, least.next_multiple_of(SECTOR_BYTES)] {
                    if part.is_none() {
                        self.bytes_read += len as u64;
                        let read = read_twice(self.device, offset, len).await;
                        part = read.ok().map(|buffer| (start, buffer));
                    }
                }
            }
            let Some((start, buffer)) = &part else {
                tracing::warn!(
                    "the beginning of block {} cannot be read from byte {at} on",
                    mark.block
                );
                self.unread_blocks.push(mark.block);
                break;
            };
            let begin = PieceBegin {
                at: at - start,
                offset: at as u32,
                number: entries.len() as u32,
                sequence,
            };
            let Some(entry) = owner.piece(buffer, begin) else {
                if at.is_multiple_of(SECTOR_BYTES) {
                    break;
                }
                // An earlier prefix ended here: the next piece begins with a sector.
                at = at.next_multiple_of(SECTOR_BYTES);
                continue;
            };
            let piece_end = usize::try_from(entry.range().end).unwrap_or(usize::MAX);
            footer_len += entry.encoded_len(entries.last());
            if piece_end <= at || piece_end > end || piece_end + footer_len > block_bytes {
                break;
            }
            at = piece_end;
            entries.push(entry);
        }
        entries
    }

    /// Writes a footer to a block's end; the sector of the trailer last, so that where that is whole all is.
    async fn write_footer(&mut self, block: u32, footer: &[u8]) -> io::Result<()> {
        let geometry = self.superblock.geometry;
        let len = footer.len().next_multiple_of(SECTOR_BYTES);
        let buffer = D::Buf::with_len(len);
        // SAFETY: nobody else knows the buffer, which was just made.
        unsafe { buffer.put(len - footer.len(), Payload::Bytes(footer)) };
        let buffer = Arc::new(buffer);
        let offset = geometry.block_offset(block) + geometry.block_bytes - len as u64;
        let last = len - SECTOR_BYTES;
        self.bytes_written += len as u64;
        if last > 0 {
            self.device.write(offset, Arc::clone(&buffer), 0..last).await?;
            self.device.sync().await?;
        }
        self.device.write(offset + last as u64, buffer, last..len).await
    }
}
