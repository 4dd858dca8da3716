//! Bringing the mappings up to date: checkpoint, trailers, log, footers.

use super::blocks::sealed_block;
use super::void::{VOID_RECORDS_MAX, VoidTable};
use super::{EPOCH_SHIFT, Recovered};
use crate::Mappings;
use crate::checkpoint::{Overview, ReadObjects};
use crate::layout::LayoutOptions;
use crate::log::{LogKind, LogRecord};
use crate::mapping_log::{Borrowed, MappingLog};
use crate::queue::SavedPlace;
use crate::store::{Invalidated, SavedInvalidated, SavedRanks, SealedBlock, SlotKind, Slots, VirtualCache};
use pumice_blocks::OpenError;
use pumice_blocks::chain::{Head, StreamReader};
use pumice_blocks::footer::Trailer;
use pumice_blocks::log::{self, Kind, LogEnd, PrefixMark};
use pumice_blocks::open::read_twice;
use pumice_blocks::superblock::{CheckpointRef, Superblock};
use pumice_device::Device;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What recovery found out about the device.
#[derive(Default)]
pub(super) struct Found {
    pub(super) usable: bool,
    pub(super) epoch: u32,
    pub(super) time: u32,
    pub(super) log_next: u64,
    pub(super) next_sequence: u64,
    pub(super) flush_at: u32,
    pub(super) checkpoint_blocks: Vec<u32>,
    pub(super) sealed: Vec<SealedBlock>,
    pub(super) places: Vec<SavedPlace>,
    pub(super) ranks: SavedRanks,
    pub(super) virtual_cache: Option<VirtualCache>,
    /// Slots of sealed blocks, where the index has them.
    pub(super) slots: BTreeMap<u32, Slots>,
    /// After a clean stop, where the index asks for it.
    pub(super) invalidated: Option<SavedInvalidated>,
}

/// What the log says, but for what it voids outside the table's range.
pub(super) struct Summary {
    end: LogEnd,
    flush_at: u32,
    version_max: u64,
    /// Copies below this version are void.
    pub(super) flushed: u64,
    /// Highest reclaimed sequence by block.
    reclaimed: Vec<u64>,
    pub(super) void: VoidTable,
    /// What was last said of a prefix of each block, and in which life.
    pub(super) prefixes: BTreeMap<u32, (PrefixMark, u64)>,
}

impl Summary {
    pub(super) fn is_reclaimed(&self, block: u32, sequence: u64) -> bool {
        sequence <= self.reclaimed[block as usize]
    }
}

pub(super) struct Recovery<'a, D: Device, M> {
    pub(super) device: &'a D,
    pub(super) mappings: &'a M,
    pub(super) superblock: Superblock,
    pub(super) layout: LayoutOptions,
    pub(super) mapping_log: Option<&'a Arc<MappingLog<D::Buf>>>,
    pub(super) slot_kind: SlotKind,
    /// Objects start and end at multiples of this many bytes.
    pub(super) unit_bytes: u64,
    pub(super) out: Recovered,
    pub(super) now: u32,
}

impl<D: Device, M: Mappings> Recovery<'_, D, M> {
    pub(super) async fn find(&mut self) -> Found {
        let mut found = Found {
            epoch: self.superblock.epoch,
            time: self.superblock.time,
            ..Found::default()
        };
        if self.superblock.discard && !self.superblock.clean {
            tracing::warn!("the last stop was not clean and no complete log was kept: starting empty");
            return found;
        }
        let named: Vec<CheckpointRef> = self
            .superblock
            .checkpoints
            .into_iter()
            .filter(|c| c.id != 0)
            .collect();
        let mut loaded = None;
        for (age, checkpoint) in named.iter().enumerate() {
            match self.load(checkpoint).await {
                Ok(snapshot) => {
                    self.superblock.checkpoints = [*checkpoint, CheckpointRef::default()];
                    self.out.clean = self.superblock.clean && age == 0;
                    loaded = Some(snapshot);
                    break;
                }
                Err(error) => {
                    tracing::warn!("checkpoint {}: {error}", checkpoint.id);
                    self.clear();
                    self.out.tally.found = 0;
                    self.out.no_memory = 0;
                }
            }
        }
        if loaded.is_none() && (!named.is_empty() || self.superblock.clean) {
            tracing::warn!("no checkpoint is whole: starting empty");
            return found;
        }
        let mut snapshot: Snapshot = loaded.unwrap_or_default();
        // Without a checkpoint the footers tell all keys.
        let geometry = &self.superblock.geometry;
        found.virtual_cache =
            (snapshot.virtual_cache.take()).or_else(|| VirtualCache::of(&self.layout, geometry));
        found.slots = std::mem::take(&mut snapshot.slots);
        found.invalidated = snapshot.invalidated.take().filter(|_| self.out.clean);
        found.checkpoint_blocks = snapshot.blocks.clone();
        found.places = snapshot.overview.places.clone();
        found.ranks = snapshot.overview.ranks.clone();
        found.usable = self.replay(&snapshot, &mut found).await;
        if !found.usable {
            self.out.clean = false;
            found.invalidated = None;
        }
        found
    }

    fn clear(&self) {
        for shard in 0..self.mappings.shards() {
            self.mappings.with_shard(shard, pumice_index::IndexShard::clear);
        }
    }

    async fn load(&mut self, checkpoint: &CheckpointRef) -> Result<Snapshot, OpenError> {
        let geometry = self.superblock.geometry;
        let (device, cache_id, named_at) = (
            self.device,
            self.superblock.cache_id,
            self.superblock.slot_offset(),
        );
        let read = |offset, len| read_twice(device, offset, len);
        let mut reader = StreamReader::open(read, &geometry, cache_id, checkpoint, named_at).await?;
        self.out.bytes_read += checkpoint.len;
        let blocks = reader.blocks().map(|(block, _)| block).collect();
        let head = reader.head().await?;
        let overview = reader.overview().await?;
        let entry_bytes = self.mappings.with_shard(0, |shard| shard.entry_bytes());
        if overview.entry_bytes as usize != entry_bytes || overview.shards as usize != self.mappings.shards()
        {
            // Another number of shards cuts hashes differently. The dump has no whole hashes, so it is
            // of no use; footers have them.
            return Err(reader.bad("it was written with another division of the index"));
        }
        let mut positions = Vec::with_capacity(self.mappings.shards());
        for shard in 0..self.mappings.shards() {
            let (position, len) = reader.shard_head(entry_bytes).await?;
            positions.push(position);
            if self.mapping_log.is_some() {
                let image = reader.take(len).await?;
                self.mappings.make_room(len);
                let loaded = self.mappings.with_shard(shard, |shard| {
                    shard.cascade().is_some_and(|shard| shard.load(&image))
                });
                if !loaded {
                    return Err(reader.bad("a partition is damaged, or there is no DRAM for it"));
                }
                continue;
            }
            self.out.tally.found += len as u64;
            self.mappings.make_room(len * entry_bytes);
            self.mappings.with_shard(shard, |shard| shard.reserve(len));
            let mut left = len;
            while left > 0 {
                let batch = left.min(4096);
                let bytes = reader.take(batch * entry_bytes).await?;
                self.out.no_memory += self.mappings.with_shard(shard, |shard| {
                    bytes
                        .chunks_exact(entry_bytes)
                        .filter(|entry| !shard.load_entry(entry))
                        .count() as u64
                });
                left -= batch;
            }
        }
        let mut virtual_cache = VirtualCache::of(&self.layout, &geometry);
        if virtual_cache.is_some() {
            let policy = self.layout.policy_checksum();
            reader.keys(policy, virtual_cache.as_mut()).await?;
        }
        let (mut slots, mut invalidated) = (BTreeMap::new(), None);
        if self.mapping_log.is_some() {
            let words_max = Invalidated::of(&geometry).words();
            invalidated = Some(reader.invalidated(words_max).await?);
            let bits = self.slot_kind.bits();
            reader
                .slots(bits, |block, saved| drop(slots.insert(block, saved)))
                .await?;
        }
        reader.finish().await?;
        Ok(Snapshot {
            virtual_cache,
            slots,
            invalidated,
            head,
            overview,
            positions,
            blocks,
        })
    }

    /// Reads the log; `None` where it cannot be relied on. Cost: one pass over what is written of it since `start`.
    fn scan_log(&mut self, start: u64, visit: impl FnMut(&LogRecord)) -> Option<LogEnd> {
        let superblock = &self.superblock;
        match log::scan(
            |offset, out| self.device.read_log(offset, out),
            superblock.cache_id,
            &superblock.geometry,
            start,
            visit,
        ) {
            Ok(end) if end.has_gap => {
                tracing::warn!("the invalidation log has a hole: starting empty");
                None
            }
            Ok(end) => {
                self.out.bytes_read += end.bytes_read;
                Some(end)
            }
            Err(error) => {
                tracing::warn!("reading the invalidation log: {error}: starting empty");
                None
            }
        }
    }

    /// Whether the log is still the one that belongs to the snapshot. A cache that was formatted begins with a record, but not
    /// with durability `off`, which has none.
    fn log_reaches(&self, snapshot: &Snapshot) -> bool {
        let (superblock, start) = (&self.superblock, snapshot.head.log_start);
        if start == 0 && !snapshot.blocks.is_empty() {
            return true;
        }
        let read = |offset, out: &mut [u8]| self.device.read_log(offset, out);
        match log::reaches::<LogKind>(read, superblock.cache_id, &superblock.geometry, start) {
            Ok(true) => true,
            Ok(false) => {
                tracing::warn!("the invalidation log is not the one that was written: starting empty");
                false
            }
            Err(error) => {
                tracing::warn!("reading the invalidation log: {error}: starting empty");
                false
            }
        }
    }

    fn summarise_log(&mut self, snapshot: &Snapshot) -> Option<Summary> {
        let geometry = self.superblock.geometry;
        let ignored_bits = self.ignored_bits();
        let mut flush_at = snapshot.overview.flush_at;
        let (mut version_max, mut flushed) = (0, 0);
        let mut reclaimed = vec![0u64; geometry.blocks as usize];
        let mut void = VoidTable::new(0, void_records(geometry.log_slots));
        let mut prefixes = BTreeMap::new();
        let end = self.scan_log(snapshot.head.log_start, |record| match record.kind {
            Kind::Prefix => {
                let mark = PrefixMark::decode(record.a);
                if mark.block < geometry.blocks {
                    prefixes.insert(mark.block, (mark, record.b));
                }
            }
            Kind::Own(LogKind::Invalidate) | Kind::Own(LogKind::Void) => {
                version_max = version_max.max(record.b);
                void.add(record.a >> ignored_bits, record.b);
            }
            Kind::Own(LogKind::FlushAll) => {
                flush_at = 0;
                version_max = version_max.max(record.b);
                flushed = flushed.max(record.b);
            }
            Kind::Own(LogKind::FlushAt) => flush_at = u32::try_from(record.a).unwrap_or(0),
            Kind::Reclaim => {
                let block = usize::try_from(record.a).ok();
                if let Some(highest) = block.and_then(|block| reclaimed.get_mut(block)) {
                    *highest = record.b.max(*highest);
                }
            }
        })?;
        void.finish();
        Some(Summary {
            end,
            flush_at,
            version_max,
            flushed,
            reclaimed,
            void,
            prefixes,
        })
    }

    /// What the log voids from `start` on. It is read anew, and must say the same.
    fn void_from(&mut self, head: &Head, summary: &Summary, start: u64) -> Option<VoidTable> {
        let ignored_bits = self.ignored_bits();
        let mut void = VoidTable::new(start, void_records(self.superblock.geometry.log_slots));
        let end = self.scan_log(head.log_start, |record| {
            if matches!(
                record.kind,
                Kind::Own(LogKind::Invalidate) | Kind::Own(LogKind::Void)
            ) {
                void.add(record.a >> ignored_bits, record.b);
            }
        })?;
        void.finish();
        (end == summary.end).then_some(void)
    }

    pub(super) fn ignored_bits(&self) -> u32 {
        64 - self.mappings.identity_bits()
    }

    /// Brings the snapshot up to date; false where that is not possible.
    async fn replay(&mut self, snapshot: &Snapshot, found: &mut Found) -> bool {
        let geometry = self.superblock.geometry;
        let head = &snapshot.head;
        if !self.out.clean && !self.log_reaches(snapshot) {
            return false;
        }
        let Some(mut summary) = self.summarise_log(snapshot) else {
            return false;
        };
        self.out.log_records = summary.end.records;
        found.log_next = summary.end.next;
        found.flush_at = summary.flush_at;
        note_version(found, summary.version_max);
        if summary.flushed > 0
            && let Some(keys) = &mut found.virtual_cache
        {
            // Since the checkpoint: it fills again.
            keys.clear();
        }

        let (covered, mut new) = self.classify(snapshot, &summary, found).await;
        found.slots.retain(|block, _| covered[*block as usize]);
        self.prepare_mapping_log(snapshot, found, &new).await;
        let uncovered = &mut self.out.tally.uncovered;
        for shard in 0..self.mappings.shards() {
            self.mappings.with_shard(shard, |shard| {
                shard.retain(|mapping| {
                    let block = geometry.block_of(mapping.location.offset);
                    let is_covered = block.is_some_and(|block| covered[block as usize]);
                    *uncovered += u64::from(!is_covered);
                    is_covered
                });
            });
        }
        if summary.end.records > 0 {
            // What it voids is not in those filters.
            found.invalidated = None;
            if !self.apply_log(snapshot, &summary) {
                return false;
            }
        }
        // Where the log has more than fits the table, in rounds: each for a range of hashes.
        let mut is_first = true;
        loop {
            let mut readable = Vec::with_capacity(new.len());
            for (block, trailer) in new {
                let Some(entries) = self.read_entries(block, &trailer).await else {
                    self.out.tally.damaged_blocks += 1;
                    continue;
                };
                if is_first {
                    found.sealed.push(sealed_block(block, &trailer));
                    let slots = Slots::of_entries(self.slot_kind, &entries);
                    if slots.len() > 0 {
                        found.slots.insert(block, slots);
                    }
                    for entry in &entries {
                        note_version(found, entry.version);
                    }
                }
                let keys = found.virtual_cache.as_mut();
                self.add_entries(block, &trailer, &entries, &summary, keys).await;
                readable.push((block, trailer));
            }
            new = readable;
            is_first = false;
            let Some(start) = summary.void.end() else {
                return true;
            };
            let Some(void) = self.void_from(head, &summary, start) else {
                return false;
            };
            summary.void = void;
        }
    }

    /// Lets a cascade index put pages on blocks that nothing else stands on.
    async fn prepare_mapping_log(&mut self, snapshot: &Snapshot, found: &mut Found, new: &[(u32, Trailer)]) {
        let Some(log) = self.mapping_log else { return };
        let geometry = self.superblock.geometry;
        let mut sequences = vec![0; geometry.blocks as usize];
        for block in &found.sealed {
            sequences[block.id as usize] = block.sequence;
        }
        for (block, trailer) in new {
            sequences[*block as usize] = trailer.sequence;
        }
        let is_free = |id: &u32| sequences[*id as usize] == 0 && !snapshot.blocks.contains(id);
        let free = (0..geometry.blocks).filter(is_free).collect();
        let mut pages = Vec::new();
        for shard in 0..self.mappings.shards() {
            self.mappings.with_shard(shard, |shard| {
                pages.extend(shard.cascade().into_iter().flat_map(|shard| shard.pages()))
            });
        }
        let rows = &snapshot.head.rows;
        let mut lives: Vec<u64> = (0..geometry.blocks as usize)
            .map(|id| rows.get(id).map_or(0, |row| row.sequence))
            .collect();
        // Nothing was lent while the checkpoint of a clean stop was written.
        if !self.out.clean {
            self.find_later_lives(snapshot.head.next_sequence, &pages, &sequences, &mut lives)
                .await;
            let latest = lives.iter().copied().max().unwrap_or(0);
            found.next_sequence = found.next_sequence.max(latest + 1);
        }
        let lent = Borrowed {
            free,
            lives,
            next: found.next_sequence.max(1),
        };
        log.recover(
            geometry,
            self.superblock.cache_id,
            sequences.into(),
            pages.into_iter(),
            lent,
        );
    }

    /// Removes from the snapshot's mappings what the log voids; false where it does not say what it said before.
    fn apply_log(&mut self, snapshot: &Snapshot, summary: &Summary) -> bool {
        let mappings = self.mappings;
        let mut voided = 0;
        let end = self.scan_log(snapshot.head.log_start, |record| match record.kind {
            Kind::Own(LogKind::Invalidate) => {
                let shard = mappings.shard_of(record.a);
                if snapshot
                    .positions
                    .get(shard)
                    .is_some_and(|dumped| record.position >= *dumped)
                {
                    let removed = mappings.with_shard(shard, |shard| shard.remove(record.a));
                    voided += u64::from(removed.is_some());
                }
            }
            Kind::Own(LogKind::FlushAll) => {
                for (shard, dumped) in snapshot.positions.iter().enumerate() {
                    if record.position >= *dumped {
                        mappings.with_shard(shard, |shard| {
                            shard.for_each(|_| voided += 1);
                            shard.clear();
                        });
                    }
                }
            }
            Kind::Own(LogKind::FlushAt) | Kind::Reclaim | Kind::Prefix | Kind::Own(LogKind::Void) => {}
        });
        self.out.tally.void += voided;
        end == Some(summary.end)
    }
}

/// Records that the table of void versions has room for.
fn void_records(log_slots: u64) -> usize {
    usize::try_from(log_slots).map_or(VOID_RECORDS_MAX, |slots| slots.clamp(2, VOID_RECORDS_MAX))
}

fn note_version(found: &mut Found, version: u64) {
    let epoch = u32::try_from(version >> EPOCH_SHIFT).unwrap_or(u32::MAX - 1);
    found.epoch = found.epoch.max(epoch);
}

/// A checkpoint, read back; its mappings are in the shards already.
#[derive(Default)]
pub(super) struct Snapshot {
    pub(super) head: Head,
    overview: Overview,
    /// Log position at each shard's dump.
    positions: Vec<u64>,
    pub(super) blocks: Vec<u32>,
    virtual_cache: Option<VirtualCache>,
    slots: BTreeMap<u32, Slots>,
    invalidated: Option<SavedInvalidated>,
}
