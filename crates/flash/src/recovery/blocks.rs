//! What the blocks say: which of them count, and the mappings that their footers list.

use super::replay::{Found, Recovery, Snapshot, Summary};
use crate::Mappings;
use crate::footer::{Ending, FooterEntry};
use crate::mapping_log::Shape;
use crate::store::{SealedBlock, VirtualCache};
use pumice_blocks::chain::{BlockRole, Head};
use pumice_blocks::footer::{TRAILER_BYTES, Trailer, decode_entries, encode_footer, footer_len};
use pumice_blocks::log::PrefixMark;
use pumice_blocks::open::read_twice;
use pumice_device::{Device, SECTOR_BYTES};
use pumice_index::cascade::PageNumber;
use pumice_index::{Location, Mapping};
use pumice_memory::{Buffer, Payload};
use pumice_record::{HEADER_BYTES, Record, is_expired, read_head};
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::Arc;

/// Mappings added between two looks for pages of mappings to write.
const ENTRIES_PER_DRAIN: usize = 1024;
/// A prefix is read in parts of so many bytes.
const PREFIX_READ_BYTES: usize = 128 << 10;
/// Trailers read at a time.
const READ_DEPTH: usize = 32;

impl<D: Device, M: Mappings> Recovery<'_, D, M> {
    /// Decides which blocks are covered by the snapshot and which are new, in order of sequence.
    pub(super) async fn classify(
        &mut self,
        snapshot: &Snapshot,
        summary: &Summary,
        found: &mut Found,
    ) -> (Vec<bool>, Vec<(u32, Trailer)>) {
        let geometry = self.superblock.geometry;
        let head = &snapshot.head;
        let mut covered = vec![false; geometry.blocks as usize];
        let mut new = Vec::new();
        found.next_sequence = head.next_sequence;
        let chain: HashSet<u32> = snapshot.blocks.iter().copied().collect();
        if self.out.clean {
            for (block, row) in (0u32..).zip(&head.rows) {
                // One that was reclaimed for the checkpoint itself was sealed when that began; there may be no record of it.
                if row.role == BlockRole::Sealed
                    && !chain.contains(&block)
                    && !summary.is_reclaimed(block, row.sequence)
                {
                    covered[block as usize] = true;
                    found.sealed.push(SealedBlock {
                        id: block,
                        sequence: row.sequence,
                        footer_len: row.footer_len,
                        expiry_max: row.own,
                        position: None,
                    });
                }
            }
            return (covered, new);
        }
        let wanted: Vec<u32> = (0..geometry.blocks)
            .filter(|block| !chain.contains(block))
            .collect();
        let last_sector =
            |block: u32| geometry.block_offset(block) + geometry.block_bytes - SECTOR_BYTES as u64;
        for batch in wanted.chunks(READ_DEPTH) {
            // All reads of the batch are started before the first is waited for.
            let reads: Vec<_> = batch
                .iter()
                .map(|block| self.device.read(last_sector(*block), SECTOR_BYTES))
                .collect();
            for (block, read) in batch.iter().zip(reads) {
                self.out.bytes_read += SECTOR_BYTES as u64;
                let read = match read.await {
                    Err(_) => self.device.read(last_sector(*block), SECTOR_BYTES).await,
                    read => read,
                };
                let sector = match read {
                    Ok(sector) => sector,
                    Err(error) => {
                        tracing::warn!("reading the trailer of block {block}: {error}: its objects are lost");
                        self.out.tally.unread_blocks += 1;
                        continue;
                    }
                };
                let trailer = sector
                    .bytes(SECTOR_BYTES - TRAILER_BYTES, TRAILER_BYTES)
                    .and_then(|bytes| Trailer::decode(self.superblock.cache_id, bytes))
                    .filter(|trailer| trailer.block == *block)
                    .filter(|trailer| trailer.footer_len() as u64 <= geometry.block_bytes);
                let Some(trailer) = trailer else { continue };
                found.next_sequence = found.next_sequence.max(trailer.sequence + 1);
                found.time = found.time.max(trailer.time);
                if summary.is_reclaimed(*block, trailer.sequence) {
                    continue;
                }
                let row = head
                    .rows
                    .get(*block as usize)
                    .filter(|row| row.sequence == trailer.sequence);
                match row.map(|row| row.role) {
                    Some(BlockRole::Sealed) => {
                        covered[*block as usize] = true;
                        found.sealed.push(SealedBlock {
                            position: None,
                            ..sealed_block(*block, &trailer)
                        });
                    }
                    Some(BlockRole::Open) => new.push((*block, trailer)),
                    _ if trailer.sequence >= head.next_sequence => new.push((*block, trailer)),
                    _ => {}
                }
            }
        }
        self.adopt_prefixes(head, summary, &covered, &mut new, found)
            .await;
        // The block that was open at the crash has a sequence that no trailer shows. It is never used again.
        found.next_sequence += u64::from(geometry.blocks);
        new.sort_unstable_by_key(|(_, trailer)| trailer.sequence);
        (covered, new)
    }

    /// Makes sealed blocks of those that were being filled and whose beginnings are on the device. Their footers are written before any
    /// checkpoint can name them. One that died with its footer half written is found by its prefix again.
    async fn adopt_prefixes(
        &mut self,
        head: &Head,
        summary: &Summary,
        covered: &[bool],
        new: &mut Vec<(u32, Trailer)>,
        found: &mut Found,
    ) {
        for (&block, &(mark, sequence)) in &summary.prefixes {
            let row = head.rows.get(block as usize);
            // Otherwise it ended before the checkpoint, and of what had died in it the log need not tell any more.
            let was_open = sequence >= head.next_sequence
                || row.is_some_and(|row| row.sequence == sequence && row.role == BlockRole::Open);
            let is_known = covered[block as usize] || new.iter().any(|(other, _)| *other == block);
            found.next_sequence = found.next_sequence.max(sequence + 1);
            if !was_open || is_known || summary.is_reclaimed(block, sequence) {
                continue;
            }
            let entries = self.read_prefix(mark, sequence).await;
            if entries.is_empty() {
                continue;
            }
            // Not the clock's, which may not be confirmed yet.
            let time = self.superblock.time;
            let cache_id = self.superblock.cache_id;
            let own = Ending::new(&entries, mark.own).encode();
            let (footer, trailer) = encode_footer(cache_id, block, sequence, time, own, &entries);
            if let Err(error) = self.write_footer(block, &footer).await {
                tracing::warn!("writing a footer for block {block}: {error}: its objects are lost");
                self.out.tally.unread_blocks += 1;
                continue;
            }
            self.out.prefixes += 1;
            new.push((block, trailer));
        }
    }

    /// The records of a prefix, in order, up to the first header that does not fit.
    async fn read_prefix(&mut self, mark: PrefixMark, sequence: u64) -> Vec<FooterEntry> {
        let geometry = self.superblock.geometry;
        let block_bytes = usize::try_from(geometry.block_bytes).unwrap_or(0);
        let end = (usize::from(mark.end_sectors) * SECTOR_BYTES).min(block_bytes);
        let mut entries: Vec<FooterEntry> = Vec::new();
        // What was read last, and from where in the block.
        let mut part: Option<(usize, D::Buf)> = None;
        let mut at = 0;
        while at < end {
            let head_end = (at + HEADER_BYTES + usize::from(u8::MAX)).min(end);
            let is_in = |(start, buffer): &(usize, D::Buf)| *start <= at && head_end <= start + buffer.len();
            if !part.as_ref().is_some_and(is_in) {
                let start = at / SECTOR_BYTES * SECTOR_BYTES;
                let len = PREFIX_READ_BYTES.min(end - start);
                self.out.bytes_read += len as u64;
                let offset = geometry.block_offset(mark.block) + start as u64;
                part = read_twice(self.device, offset, len)
                    .await
                    .ok()
                    .map(|buffer| (start, buffer));
            }
            let Some((start, buffer)) = &part else {
                tracing::warn!(
                    "reading the beginning of block {}: what follows byte {at} is lost",
                    mark.block
                );
                self.out.tally.unread_blocks += 1;
                break;
            };
            let head = read_head(buffer, at - start, self.superblock.cache_id, sequence);
            let Some((header, key)) = head else {
                if at.is_multiple_of(SECTOR_BYTES) {
                    break;
                }
                // An earlier prefix ended here: the next record begins with a sector.
                at = at.next_multiple_of(SECTOR_BYTES);
                continue;
            };
            let len = pumice_index::padded_len(header.encoded_len() as u64, self.unit_bytes);
            let entry = FooterEntry {
                hash: self.mappings.hash_of(key, header.slice, header.version),
                version: header.version,
                offset: at as u32,
                len: u32::try_from(len).unwrap_or(u32::MAX),
                expiry: header.expiry,
                number: entries.len() as u32,
            };
            at = at.saturating_add(entry.len as usize);
            if at > end || at + footer_len::<FooterEntry>(entries.len() + 1) > block_bytes {
                break;
            }
            entries.push(entry);
        }
        entries
    }

    /// Writes a footer to a block's end; the sector of the trailer last, so that where that is whole all is.
    async fn write_footer(&self, block: u32, footer: &[u8]) -> io::Result<()> {
        let geometry = self.superblock.geometry;
        let len = footer.len().next_multiple_of(SECTOR_BYTES);
        let buffer = D::Buf::with_len(len);
        // SAFETY: nobody else knows the buffer, which was just made.
        unsafe { buffer.put(len - footer.len(), Payload::Bytes(footer)) };
        let buffer = Arc::new(buffer);
        let offset = geometry.block_offset(block) + geometry.block_bytes - len as u64;
        let last = len - SECTOR_BYTES;
        if last > 0 {
            self.device.write(offset, Arc::clone(&buffer), 0..last).await?;
            self.device.sync().await?;
        }
        self.device.write(offset + last as u64, buffer, last..len).await
    }

    /// Blocks may have been lent for pages of mappings while the checkpoint was being written, after it took the `lives` of blocks:
    /// those that it names pages on are asked for theirs, which was `next_sequence` then or came later. No block that a checkpoint
    /// names is lent again, so each page that is named there is of that life. `sequences`: those of blocks of objects, else 0.
    pub(super) async fn find_later_lives(
        &mut self,
        next_sequence: u64,
        pages: &[PageNumber],
        sequences: &[u64],
        lives: &mut [u64],
    ) {
        let geometry = self.superblock.geometry;
        let shape = Shape::new(geometry, self.superblock.cache_id);
        let mut by_block: BTreeMap<u32, Vec<PageNumber>> = BTreeMap::new();
        for page in pages {
            let (block, _) = shape.place(*page);
            if sequences.get(block as usize) == Some(&0) {
                by_block.entry(block).or_default().push(*page);
            }
        }
        for (block, pages) in by_block {
            for page in pages {
                let Some(offset) = shape.offset(page) else { break };
                self.out.bytes_read += SECTOR_BYTES as u64;
                let Ok(sector) = read_twice(self.device, offset, SECTOR_BYTES).await else {
                    continue;
                };
                let life = sector
                    .bytes(0, SECTOR_BYTES)
                    .and_then(|sector| shape.life_of(page, sector));
                if let Some(life) = life {
                    if life >= next_sequence {
                        lives[block as usize] = life;
                    }
                    break;
                }
            }
        }
    }

    /// Reads and checks the footer of a new block. One is held at a time: it is shorter than a block.
    pub(super) async fn read_entries(&mut self, block: u32, trailer: &Trailer) -> Option<Vec<FooterEntry>> {
        let geometry = self.superblock.geometry;
        let footer_len = trailer.footer_len();
        let block_bytes = usize::try_from(geometry.block_bytes).ok()?;
        let len = footer_len.next_multiple_of(SECTOR_BYTES);
        let offset = geometry.block_offset(block) + block_bytes.checked_sub(len)? as u64;
        self.out.bytes_read += len as u64;
        let buffer = read_twice(self.device, offset, len).await.ok()?;
        let entries = buffer
            .bytes(len - footer_len, footer_len)
            .and_then(|bytes| decode_entries(self.superblock.cache_id, trailer, bytes, block_bytes))
            .filter(|entries| {
                let start = geometry.block_offset(block);
                entries.iter().all(|entry| self.can_be_mapped(start, entry))
            });
        if entries.is_none() {
            tracing::warn!("the footer of block {block} is damaged: its objects are lost");
        }
        entries
    }

    /// Whether an object of a block that starts at `start` is where objects can be, and as long.
    fn can_be_mapped(&self, start: u64, entry: &FooterEntry) -> bool {
        let len = u64::from(entry.len);
        (start + u64::from(entry.offset)).is_multiple_of(self.unit_bytes)
            && len <= self.unit_bytes << 16
            && pumice_index::padded_len(len, self.unit_bytes) == len
    }

    /// Adds what a new block's footer lists in the range of the table, and the log does not void.
    pub(super) async fn add_entries(
        &mut self,
        block: u32,
        trailer: &Trailer,
        entries: &[FooterEntry],
        summary: &Summary,
        mut keys: Option<&mut VirtualCache>,
    ) {
        let ignored_bits = self.ignored_bits();
        for (at, entry) in entries.iter().enumerate() {
            if at % ENTRIES_PER_DRAIN == 0
                && let Some(log) = self.mapping_log
                && let Err(error) = log.write_full(self.device).await
            {
                tracing::warn!("writing mappings: {error}");
            }
            let identity = entry.hash >> ignored_bits;
            if !summary.void.covers(identity) {
                continue;
            }
            let tally = &mut self.out.tally;
            tally.found += 1;
            if summary.void.is_void(identity, entry.version) || entry.version < summary.flushed {
                tally.void += 1;
                continue;
            }
            if is_expired(entry.expiry, self.now) {
                tally.expired += 1;
                continue;
            }
            self.mappings.make_room(0);
            let location = Location {
                offset: self.superblock.geometry.block_offset(block) + u64::from(entry.offset),
                len: entry.len,
            };
            let note = self.slot_kind.note(entry.number);
            // An older version would be void. So this is an object that was moved here from a block that has not been
            // reclaimed since, and its former copy is as good as this one, or better: the last write may be torn.
            let is_moved = self
                .mappings
                .with(entry.hash, |shard| shard.get(entry.hash).is_some());
            if is_moved && !self.is_whole(location, trailer.sequence, entry).await {
                self.out.tally.torn += 1;
                continue;
            }
            let added = self.mappings.with(entry.hash, |shard| {
                shard.set(entry.hash, Mapping { location, note })
            });
            let Ok(old) = added else {
                self.out.no_memory += 1;
                continue;
            };
            self.out.tally.replaced += u64::from(old.is_some());
            if let Some(keys) = &mut keys {
                keys.found(entry.hash, entry.len.into());
            }
        }
    }

    /// Whether a record reads back as it was written.
    async fn is_whole(&mut self, location: Location, sequence: u64, entry: &FooterEntry) -> bool {
        let sector = SECTOR_BYTES as u64;
        let start = location.offset / sector * sector;
        let end = (location.offset + u64::from(location.len)).next_multiple_of(sector);
        let Ok(len) = usize::try_from(end - start) else {
            return false;
        };
        self.out.bytes_read += len as u64;
        let Ok(buffer) = read_twice(self.device, start, len).await else {
            return false;
        };
        let at = len - usize::try_from(end - location.offset).unwrap_or(len);
        let cache_id = self.superblock.cache_id;
        Record::decode(
            Arc::new(buffer),
            at,
            location.len as usize,
            cache_id,
            sequence,
            true,
        )
        .is_some_and(|record| record.header().version == entry.version)
    }
}

pub(super) fn sealed_block(id: u32, trailer: &Trailer) -> SealedBlock {
    let Ending { expiry_max, position } = Ending::of(trailer);
    SealedBlock {
        id,
        sequence: trailer.sequence,
        footer_len: u32::try_from(trailer.footer_len()).unwrap_or(u32::MAX),
        expiry_max,
        position: Some(position),
    }
}
