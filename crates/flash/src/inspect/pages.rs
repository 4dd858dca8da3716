//! Mappings, in checkpoints and in pages on flash.

use super::checkpoint::Snapshot;
use super::{Part, Source, Walk};
use crate::mapping_log::Shape;
use pumice_blocks::chain::BlockRole;
use pumice_device::SECTOR_BYTES;
use pumice_index::cascade::{PAGE_PAYLOAD_BYTES, PageNumber, PageShape};
use pumice_index::{IndexShape, Location};

impl<S: Source + ?Sized> Walk<'_, S> {
    /// Why nothing can stand where a mapping leads to, if so.
    pub(super) fn misleads(&self, location: Location, snapshot: &Snapshot) -> Option<String> {
        let geometry = &self.superblock.geometry;
        let says = format!("a mapping leads to {} bytes at {}", location.len, location.offset);
        let Some(block) = geometry.block_of(location.offset) else {
            return Some(format!("{says}, outside all blocks"));
        };
        let end = location.offset - geometry.block_offset(block) + u64::from(location.len);
        if end > geometry.block_bytes {
            return Some(format!("{says}, across the end of block {block}"));
        }
        let row = snapshot.row(block).filter(|row| row.role == BlockRole::Sealed)?;
        let is_there = row.sequence > self.reclaimed[block as usize];
        (is_there && end > geometry.block_bytes - u64::from(row.footer_len))
            .then(|| format!("{says}, in the footer of block {block}"))
    }

    /// Looks at a page that the image of a partition, which stands at `named_at`, names.
    pub(super) fn page(
        &mut self,
        number: PageNumber,
        partition: u32,
        named_at: u64,
        index: IndexShape,
        snapshot: &mut Snapshot,
    ) {
        let part = Part::Page(number);
        let shape = Shape::new(self.superblock.geometry, self.superblock.cache_id);
        let (block, _) = shape.place(number);
        let Some(offset) = shape.offset(number) else {
            let what = format!("partition {partition} names it, and there is no block {block}");
            return self.wrong(part, named_at, what);
        };
        snapshot.has_pages[block as usize] = true;
        snapshot.pages += 1;
        if !self.verify {
            return;
        }
        self.used(offset, SECTOR_BYTES as u64);
        let Some(sector) = self.read(part, offset, SECTOR_BYTES) else {
            return;
        };
        let pages = PageShape::new(index);
        let Some(generation) = shape.generation_of(number, &sector) else {
            let what = format!("partition {partition} names it, and it is damaged, or not there");
            return self.wrong(part, offset, what);
        };
        let wanted = snapshot.row(block).map_or(0, |row| row.sequence);
        // Or the block was lent while the checkpoint was being written.
        if generation != wanted && generation < snapshot.next_sequence {
            let what = format!(
                "it is of generation {generation} of block {block}, and the checkpoint has generation {wanted}"
            );
            return self.wrong(part, offset, what);
        }
        let Some(page) = pages.decode(partition, &sector[SECTOR_BYTES - PAGE_PAYLOAD_BYTES..]) else {
            let what = format!("it is of another partition than {partition}, or has too many entries");
            return self.wrong(part, offset, what);
        };
        snapshot.page_mappings += page.len() as u64;
        let mut former = None;
        for (at, entry) in page.entries().enumerate() {
            if former.is_some_and(|former| former >= entry.tag) || entry.tag >> index.tag_bits() != 0 {
                self.wrong(part, offset, format!("its entry {at} is not in order of tags"));
            }
            former = Some(entry.tag);
            let Some(location) = entry.mapping.map(|mapping| mapping.location) else {
                continue;
            };
            let block = self.superblock.geometry.block_of(location.offset);
            let row = block.and_then(|block| snapshot.row(block));
            // Into another generation of the block: void, whatever it says.
            let is_void = row.is_some_and(|row| {
                row.role != BlockRole::Sealed || pages.generation(row.sequence) != entry.generation
            });
            if !is_void && let Some(what) = self.misleads(location, snapshot) {
                self.wrong(part, offset, format!("its entry {at}: {what}"));
            }
        }
    }
}
