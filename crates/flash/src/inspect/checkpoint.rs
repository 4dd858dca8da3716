//! A checkpoint, read as a start reads it.

use super::{Part, Source, Walk, ready};
use crate::checkpoint::{Overview, ReadObjects};
use crate::layout::SavedOrder;
use crate::settings::Settings;
use pumice_blocks::Geometry;
use pumice_blocks::OpenError;
use pumice_blocks::chain::{BlockRole, BlockRow, HEAD_BYTES, PART_HEADER_BYTES, ROW_BYTES, StreamReader};
use pumice_blocks::footer::TRAILER_BYTES;
use pumice_blocks::superblock::{CheckpointRef, Superblock};
use pumice_device::SECTOR_BYTES;
use pumice_index::cascade::{Image, SavedHistory};
use pumice_index::{IndexKind, IndexShape};
use pumice_memory::{AlignedBuf, Buffer};

/// Mappings that are read at a time.
const BATCH: usize = 4096;
/// Shards that there are at most.
const SHARDS_MAX: u32 = 1 << 16;

/// What of a checkpoint the blocks are compared with.
#[derive(Default)]
pub(super) struct Snapshot {
    pub(super) next_sequence: u64,
    pub(super) rows: Vec<BlockRow>,
    /// Whether a page that it names stands on the block.
    pub(super) has_pages: Vec<bool>,
    pub(super) blocks: u32,
    pub(super) mappings: u64,
    pub(super) pages: u64,
    pub(super) page_mappings: u64,
    /// The checksum of the name of the policy.
    pub(super) policy: u32,
}

impl Snapshot {
    pub(super) fn row(&self, block: u32) -> Option<&BlockRow> {
        self.rows.get(block as usize)
    }
}

/// How the mappings of a cache with so many shards are packed.
pub(super) fn index_shape(geometry: &Geometry, settings: &Settings, shards: u32) -> IndexShape {
    let note_bits = settings.index.note_bits(settings.layout.note_bits());
    IndexShape::new(geometry.capacity, shards.ilog2(), note_bits)
}

impl<S: Source + ?Sized> Walk<'_, S> {
    /// Checks a checkpoint that the superblock names; `None` where no start could use it.
    pub(super) fn checkpoint(&mut self, reference: &CheckpointRef) -> Option<Snapshot> {
        match ready(self.read_checkpoint(reference)) {
            Ok(snapshot) => Some(snapshot),
            Err(OpenError::Checkpoint { offset, what }) => {
                self.wrong(Part::Checkpoint(reference.id), offset, what);
                None
            }
            Err(_) => unreachable!("readers of checkpoints have one error"),
        }
    }

    async fn read_checkpoint(&mut self, reference: &CheckpointRef) -> Result<Snapshot, OpenError> {
        let part = Part::Checkpoint(reference.id);
        let Superblock {
            geometry, cache_id, ..
        } = self.superblock;
        let Settings { index, layout, .. } = self.settings;
        let named_at = self.superblock.slot_offset();
        let source = self.source;
        let read = async |offset, len| {
            let mut buffer = AlignedBuf::with_len(len);
            source.read(offset, buffer.as_mut_slice()).map(|()| buffer)
        };
        // All of it first: nothing is to be believed before its checksums were seen.
        let whole = StreamReader::open(read, &geometry, cache_id, reference, named_at).await?;
        for (block, len) in whole.blocks() {
            let offset = geometry.block_offset(block);
            self.in_chain[block as usize] = true;
            self.used(offset, PART_HEADER_BYTES as u64);
            self.used(offset + SECTOR_BYTES as u64, len);
        }
        whole.finish().await?;
        let mut reader = StreamReader::open(read, &geometry, cache_id, reference, named_at).await?;
        let head = reader.head().await?;
        let Overview {
            shards,
            entry_bytes,
            order: SavedOrder { places, ranks },
            ..
        } = reader.overview().await?;
        let shape = index_shape(&geometry, &self.settings, shards.clamp(1, SHARDS_MAX));
        let item_bytes = match index {
            IndexKind::Full => shape.entry_bytes(),
            IndexKind::Cascade => 1,
        };
        if shape.shards() != shards as usize || item_bytes != entry_bytes as usize {
            let what = format!("{shards} shards with entries of {entry_bytes} bytes cannot be");
            return Err(reader.bad(what));
        }
        if head.log_start != reference.log_start || head.log_start > self.summary.log.next {
            let what = format!(
                "it needs the log from {} on, the superblock says from {} on, and the log ends at {}",
                head.log_start, reference.log_start, self.summary.log.next
            );
            return Err(reader.bad(what));
        }
        for (block, row) in head.rows.iter().enumerate() {
            if let Some(what) = row_fault(row, head.next_sequence) {
                let offset = reader.offset_of((HEAD_BYTES + block * ROW_BYTES) as u64);
                self.wrong(part, offset, format!("its row of block {block} {what}"));
            }
        }
        let places = places.iter().filter_map(|place| place.block);
        if let Some(block) = places.into_iter().find(|block| *block >= geometry.blocks) {
            let what = format!("a place of its queue names block {block}, and there is none");
            self.wrong(part, reader.offset_of(0), what);
        }
        let mut snapshot = Snapshot {
            next_sequence: head.next_sequence,
            rows: head.rows,
            has_pages: vec![false; geometry.blocks as usize],
            blocks: reader.blocks().count() as u32,
            policy: ranks.policy,
            ..Snapshot::default()
        };
        for shard in 0..shards {
            let (position, count) = reader.shard_head(item_bytes).await?;
            let log = reference.log_start..=self.summary.log.next;
            if !log.contains(&position) {
                let what =
                    format!("shard {shard} was dumped at log position {position}, and the log has {log:?}");
                self.wrong(part, reader.offset(), what);
            }
            if index == IndexKind::Cascade {
                let image = Image::read(shape, &reader.take(count).await?);
                let image = image.ok_or_else(|| reader.bad(format!("partition {shard} is damaged")))?;
                snapshot.mappings += image.mappings() as u64;
                for what in image
                    .locations()
                    .filter_map(|location| self.misleads(location, &snapshot))
                    .collect::<Vec<_>>()
                {
                    self.wrong(part, reader.offset(), what);
                }
                for page in image.pages() {
                    self.page(page, shard, reader.offset(), shape, &mut snapshot);
                }
                continue;
            }
            snapshot.mappings += count as u64;
            let mut left = count;
            while left > 0 {
                let batch = left.min(BATCH);
                let bytes = reader.take(batch * item_bytes).await?;
                for (at, entry) in bytes.chunks_exact(item_bytes).enumerate() {
                    let location = shape.dumped_location(entry);
                    if let Some(what) = location.and_then(|location| self.misleads(location, &snapshot)) {
                        let offset = reader.offset() + (at * item_bytes) as u64;
                        self.wrong(part, offset, what);
                    }
                }
                left -= batch;
            }
        }
        if layout.has_keys() {
            snapshot.policy = reader.keys(0, None).await?;
        }
        if index == IndexKind::Cascade {
            reader.history(SavedHistory::words(geometry.capacity)).await?;
            reader.slots(u32::MAX, |_, _| {}).await?;
        }
        let end = reader.bad("more bytes follow where it must end");
        if reader.finish().await? > 0 {
            Err(end)
        } else {
            Ok(snapshot)
        }
    }
}

/// What cannot be in a row of the table of blocks.
fn row_fault(row: &BlockRow, next_sequence: u64) -> Option<String> {
    if row.role == BlockRole::Sealed && (row.footer_len as usize) < TRAILER_BYTES {
        return Some(format!("has a footer of {} bytes", row.footer_len));
    }
    let is_possible = row.role == BlockRole::Other || (1..next_sequence).contains(&row.sequence);
    (!is_possible).then(|| format!("has sequence {}, and the next is {next_sequence}", row.sequence))
}
