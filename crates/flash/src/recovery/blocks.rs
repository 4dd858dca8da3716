//! The objects of blocks that the checkpoint does not cover, and pages of mappings that were lent since.

use super::replay::{Recovery, Summary};
use crate::Mappings;
use crate::footer::FooterEntry;
use crate::layout::Slots;
use crate::mapping_log::Shape;
use pumice_blocks::footer::Trailer;
use pumice_blocks::open::read_twice;
use pumice_device::{Device, SECTOR_BYTES};
use pumice_index::cascade::PageNumber;
use pumice_index::{Location, Mapping};
use pumice_memory::Buffer;
use pumice_record::{Record, is_expired};
use std::collections::BTreeMap;
use std::sync::Arc;

impl<D: Device, M: Mappings> Recovery<'_, D, M> {
    /// Blocks may have been lent for pages of mappings while the checkpoint was being written, after it took the `generations` of blocks:
    /// those that it names pages on are asked for theirs, which was `next_sequence` then or came later. No block that a checkpoint
    /// names is lent again, so each page that is named there is of that generation. `sequences`: those of blocks of objects, else 0.
    pub(super) async fn find_later_generations(
        &mut self,
        next_sequence: u64,
        pages: &[PageNumber],
        sequences: &[u64],
        generations: &mut [u64],
    ) {
        let geometry = self.base.superblock.geometry;
        let shape = Shape::new(geometry, self.base.superblock.cache_id);
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
                self.base.bytes_read += SECTOR_BYTES as u64;
                let Ok(sector) = read_twice(self.base.device, offset, SECTOR_BYTES).await else {
                    continue;
                };
                let generation = sector
                    .bytes(0, SECTOR_BYTES)
                    .and_then(|sector| shape.generation_of(page, sector));
                if let Some(generation) = generation {
                    if generation >= next_sequence {
                        generations[block as usize] = generation;
                    }
                    break;
                }
            }
        }
    }

    /// Reads and checks the footer of a new block.
    pub(super) async fn read_entries(&mut self, block: u32, trailer: &Trailer) -> Option<Vec<FooterEntry>> {
        let start = self.base.superblock.geometry.block_offset(block);
        let entries: Option<Vec<FooterEntry>> = self.base.entries(block, trailer).await;
        let entries = entries.filter(|entries| entries.iter().all(|entry| self.can_be_mapped(start, entry)));
        if entries.is_none() {
            tracing::warn!("the footer of block {block} is damaged: its objects are lost");
        }
        entries
    }

    /// Whether an object of a block that starts at `start` is where objects can be, and as long.
    fn can_be_mapped(&self, start: u64, entry: &FooterEntry) -> bool {
        let len = u64::from(entry.len);
        (start + u64::from(entry.offset)).is_multiple_of(self.objects.unit_bytes)
            && len <= self.objects.unit_bytes * pumice_index::UNITS_MAX
            && pumice_index::padded_len(len, self.objects.unit_bytes) == len
    }

    /// Adds what a new block's footer lists in the range of the table, and the log does not void.
    pub(super) async fn add_entries(
        &mut self,
        block: u32,
        trailer: &Trailer,
        entries: &[FooterEntry],
        summary: &Summary,
    ) {
        let ignored_bits = self.objects.ignored_bits();
        for entry in entries {
            // Partitions fill their pages at about the same time, and one that finds no room for its page loses what it cannot hold.
            if let Some(log) = self.objects.mapping_log
                && let Err(error) = log
                    .write_full(self.base.device, &mut self.base.bytes_written)
                    .await
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
            self.objects.mappings.make_room(0);
            let location = Location {
                offset: self.base.superblock.geometry.block_offset(block) + u64::from(entry.offset),
                len: entry.len,
            };
            let note = match self.objects.slot_bits {
                0 => 0,
                _ => Slots::low_bits(entry.number),
            };
            // Most older versions would be void. So this is an object that was moved here from a block that has not been reclaimed
            // since, or a head whose older copy was kept until it was written: the former is as good, or better: the last write may
            // be torn.
            let is_moved = self
                .objects
                .mappings
                .with(entry.hash, |shard| shard.find(entry.hash).live().is_some());
            if is_moved && !self.is_whole(location, trailer.sequence, entry).await {
                self.out.tally.torn += 1;
                continue;
            }
            let added = self.objects.mappings.with(entry.hash, |shard| {
                shard.set(entry.hash, Mapping { location, note })
            });
            let Ok(old) = added else {
                self.out.no_memory += 1;
                continue;
            };
            self.out.tally.replaced += u64::from(old.is_some());
            if let Some(keys) = self.objects.layout.keys_mut() {
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
        self.base.bytes_read += len as u64;
        let Ok(buffer) = read_twice(self.base.device, start, len).await else {
            return false;
        };
        let at = len - usize::try_from(end - location.offset).unwrap_or(len);
        let cache_id = self.base.superblock.cache_id;
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
