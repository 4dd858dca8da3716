//! Pages of mappings on flash.

use super::bit::{flipped_bit, say};
use super::mappings::{MappingShape, packed};
use super::stream::Snapshot;
use super::{Part, Source, Walk};
use crate::checkpoint::BlockRole;
use crate::codec::checksum;
use pumice_device::SECTOR_BYTES;
use pumice_index::cascade::PAGE_ENTRIES;

const MAGIC: [u8; 4] = *b"PMAP";
const ENTRIES_AT: usize = 40;
const ENTRY_BYTES: usize = 12;

impl<S: Source + ?Sized> Walk<'_, S> {
    /// Looks at pages that a partition names, each with the offset where it does.
    pub(super) fn pages(
        &mut self,
        numbers: &[(u64, u32)],
        partition: u32,
        shape: &MappingShape,
        snapshot: &mut Snapshot,
        is_base: bool,
    ) {
        let geometry = self.superblock.geometry;
        let per_block = (geometry.block_bytes / SECTOR_BYTES as u64) as u32;
        for (named_at, number) in numbers {
            let (block, at) = (number / per_block, number % per_block);
            if block >= geometry.blocks {
                let what = format!(
                    "partition {partition} names it, and it would be in block {block}: there is none"
                );
                self.wrong(Part::Page(*number), *named_at, what);
                continue;
            }
            snapshot.has_pages[block as usize] = true;
            let offset = geometry.block_offset(block) + u64::from(at) * SECTOR_BYTES as u64;
            if is_base {
                self.summary.mapping_pages += 1;
            }
            if self.verify {
                self.used(offset, SECTOR_BYTES as u64);
                self.page(*number, block, offset, partition, shape, snapshot, is_base);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a page, and who names it")]
    fn page(
        &mut self,
        number: u32,
        block: u32,
        offset: u64,
        partition: u32,
        shape: &MappingShape,
        snapshot: &Snapshot,
        is_base: bool,
    ) {
        let part = Part::Page(number);
        let Some(sector) = self.read(part, offset, SECTOR_BYTES) else {
            return;
        };
        let short = |at: usize| packed(&sector[at..at + 4]) as u32;
        let computed = checksum(self.superblock.cache_id, &[&sector[4..]]);
        if short(0) != computed {
            let what = match flipped_bit(SECTOR_BYTES - 4, short(0), computed) {
                Some(flip) => format!(
                    "its checksum is wrong: {}",
                    say(flip, offset, |byte| offset + 4 + byte as u64)
                ),
                None if sector[4..8] == MAGIC => "its checksum is wrong".to_owned(),
                None => "no page of mappings stands there".to_owned(),
            };
            return self.wrong(
                part,
                offset,
                format!("partition {partition} names it, and {what}"),
            );
        }
        if sector[4..8] != MAGIC || sector[20..32] != [0; 12] {
            return self.wrong(
                part,
                offset,
                "it has another magic or something where zeros must be".to_owned(),
            );
        }
        if short(8) != number {
            return self.wrong(part, offset, format!("page {} stands there", short(8)));
        }
        let life = packed(&sector[12..20]) as u64;
        let wanted = snapshot.row(block).map_or(0, |row| row.sequence);
        // Or the block was lent while the checkpoint was being written.
        if life != wanted && life < snapshot.next_sequence {
            let what = format!("it is of life {life} of block {block}, and the checkpoint has life {wanted}");
            return self.wrong(part, offset, what);
        }
        if short(36) != partition {
            let what = format!(
                "partition {partition} names it, and it is of partition {}",
                short(36)
            );
            return self.wrong(part, offset, what);
        }
        let count = packed(&sector[32..34]) as usize;
        if count > PAGE_ENTRIES {
            return self.wrong(part, offset, format!("it cannot have {count} entries"));
        }
        if is_base {
            self.summary.page_mappings += count as u64;
        }
        self.page_entries(
            part,
            offset,
            &sector[ENTRIES_AT..][..count * ENTRY_BYTES],
            shape,
            snapshot,
        );
    }

    fn page_entries(
        &mut self,
        part: Part,
        offset: u64,
        entries: &[u8],
        shape: &MappingShape,
        snapshot: &Snapshot,
    ) {
        let mut former = None;
        for (at, entry) in entries.chunks_exact(ENTRY_BYTES).enumerate() {
            let place = offset + (ENTRIES_AT + at * ENTRY_BYTES) as u64;
            let entry = packed(entry);
            let (tag, life) = shape.tag_and_life(entry);
            if former.is_some_and(|former| former >= tag) || tag >> shape.tag_bits != 0 {
                self.wrong(part, place, format!("its entry {at} is not in order of tags"));
            }
            former = Some(tag);
            let Some(location) = shape.location(entry >> shape.life_bits) else {
                continue;
            };
            let block = self.superblock.geometry.block_of(location.offset);
            let row = block.and_then(|block| snapshot.row(block));
            // Into another life of the block: void, whatever it says.
            let is_void =
                row.is_some_and(|row| row.role != BlockRole::Sealed || shape.life(row.sequence) != life);
            if !is_void && let Some(what) = self.leads_outside(location, snapshot) {
                self.wrong(part, place, format!("its entry {at}: {what}"));
            }
        }
    }
}
