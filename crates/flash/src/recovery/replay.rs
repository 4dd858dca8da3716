//! Bringing the mappings up to date: checkpoint, log, footers.

use super::report::Recovered;
use super::void::{VOID_RECORDS_MAX, VoidTable};
use crate::Mappings;
use crate::block::SealedBlock;
use crate::checkpoint::{Overview, ReadObjects};
use crate::footer::{Ending, FooterEntry};
use crate::layout::{Layout, SavedOrder, Slots};
use crate::log::{LogKind, LogRecord};
use crate::mapping_log::{Borrowed, MappingLog};
use pumice_blocks::chain::{Head, StreamReader};
use pumice_blocks::footer::{OWN_BYTES, Trailer};
use pumice_blocks::log::Kind;
use pumice_blocks::recovery::{self, LogEnd, LogSummary, PieceBegin, Restore};
use pumice_blocks::{Old, OpenError};
use pumice_device::Device;
use pumice_index::cascade::SavedHistory;
use pumice_index::{IndexShard, padded_len};
use pumice_memory::Buffer;
use pumice_record::{EPOCH_SHIFT, read_head};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// What recovery found out about the device.
#[derive(Default)]
pub(super) struct Found {
    pub(super) usable: bool,
    pub(super) epoch: u32,
    pub(super) time: u32,
    /// Without the sealed blocks, of which more is known here.
    pub(super) old: Old,
    pub(super) flush_at: u32,
    pub(super) sealed: Vec<SealedBlock>,
    pub(super) order: SavedOrder,
    /// Slots of sealed blocks, where the index has them.
    pub(super) slots: BTreeMap<u32, Slots>,
    /// After a clean stop, where the index asks for it.
    pub(super) history: Option<SavedHistory>,
}

/// What the log says, but for what it voids outside the table's range.
pub(super) struct Summary {
    of_blocks: LogSummary,
    /// Copies below this version are void.
    pub(super) flushed: u64,
    pub(super) void: VoidTable,
}

/// A checkpoint, read back; its mappings are in the shards already. Without one nothing is in it.
#[derive(Default)]
struct CheckpointParts {
    head: Head,
    blocks: Vec<u32>,
    /// Log position at each shard's dump.
    positions: Vec<u64>,
}

/// What is restored of a checkpoint beside mappings.
pub(super) struct Own {
    overview: Overview,
    positions: Vec<u64>,
    slots: BTreeMap<u32, Slots>,
    history: Option<SavedHistory>,
}

/// The owner of the blocks, at a start.
pub(super) struct Objects<'a, B: Buffer, M> {
    pub(super) mappings: &'a M,
    /// The checksum of the name of the policy.
    pub(super) policy: u32,
    pub(super) layout: Box<dyn Layout>,
    pub(super) mapping_log: Option<&'a Arc<MappingLog<B>>>,
    pub(super) slot_bits: u32,
    /// Objects start and end at multiples of this many bytes.
    pub(super) unit_bytes: u64,
    pub(super) cache_id: u64,
    /// Mappings of the checkpoint; and those of them for which there was no DRAM.
    pub(super) found: u64,
    pub(super) no_memory: u64,
}

impl<D: Buffer, M: Mappings> Objects<'_, D, M> {
    pub(super) fn ignored_bits(&self) -> u32 {
        64 - self.mappings.identity_bits()
    }
}

impl<D: Buffer, M: Mappings> Restore for Objects<'_, D, M> {
    type Kind = LogKind;
    type Entry = FooterEntry;
    type Own = Own;

    async fn restore<B, R>(&mut self, stream: &mut StreamReader<'_, R>) -> Result<Own, OpenError>
    where
        B: Buffer,
        R: AsyncFn(u64, usize) -> io::Result<B>,
    {
        let overview = stream.overview().await?;
        let entry_bytes = self.mappings.with_shard(0, |shard| shard.size().entry_bytes);
        if overview.entry_bytes as usize != entry_bytes || overview.shards as usize != self.mappings.shards()
        {
            // Another number of shards cuts hashes differently. The dump has no whole hashes, so it is
            // of no use; footers have them.
            return Err(stream.bad("it was written with another division of the index"));
        }
        let mut positions = Vec::with_capacity(self.mappings.shards());
        for shard in 0..self.mappings.shards() {
            let (position, len) = stream.shard_head(entry_bytes).await?;
            positions.push(position);
            if self.mapping_log.is_some() {
                let image = stream.take(len).await?;
                self.mappings.make_room(len);
                let loaded = self.mappings.with_shard(shard, |shard| {
                    shard.cascade().is_some_and(|shard| shard.load(&image))
                });
                if !loaded {
                    return Err(stream.bad("a partition is damaged, or there is no DRAM for it"));
                }
                continue;
            }
            self.found += len as u64;
            self.mappings.make_room(len * entry_bytes);
            self.mappings.with_shard(shard, |shard| {
                if let IndexShard::Full(shard) = shard {
                    shard.reserve(len);
                }
            });
            let mut left = len;
            while left > 0 {
                let batch = left.min(4096);
                let bytes = stream.take(batch * entry_bytes).await?;
                let loaded = self.mappings.with_shard(shard, |shard| match shard {
                    IndexShard::Full(shard) => {
                        let entries = bytes.chunks_exact(entry_bytes);
                        entries.filter(|entry| shard.load(entry)).count()
                    }
                    IndexShard::Cascade(_) => 0,
                });
                self.no_memory += (batch - loaded) as u64;
                left -= batch;
            }
        }
        if let Some(keys) = self.layout.keys_mut() {
            stream.keys(self.policy, Some(keys)).await?;
        }
        let (mut slots, mut history) = (BTreeMap::new(), None);
        if self.mapping_log.is_some() {
            let words_max = SavedHistory::words(stream.geometry().capacity);
            history = Some(stream.history(words_max).await?);
            stream
                .slots(self.slot_bits, |block, saved| drop(slots.insert(block, saved)))
                .await?;
        }
        Ok(Own {
            overview,
            positions,
            slots,
            history,
        })
    }

    fn forget(&mut self) {
        for shard in 0..self.mappings.shards() {
            self.mappings.with_shard(shard, IndexShard::clear);
        }
        self.layout.forget_all();
        (self.found, self.no_memory) = (0, 0);
    }

    fn piece<B: Buffer>(&self, buffer: &B, begin: PieceBegin) -> Option<FooterEntry> {
        let PieceBegin {
            at,
            offset,
            number,
            sequence,
        } = begin;
        let (header, key) = read_head(buffer, at, self.cache_id, sequence)?;
        let len = padded_len(header.encoded_len() as u64, self.unit_bytes);
        Some(FooterEntry {
            hash: self.mappings.hash_of(key, header.slice, header.version),
            version: header.version,
            offset,
            len: u32::try_from(len).unwrap_or(u32::MAX),
            expiry: header.expiry,
            number,
        })
    }

    fn trailer(&self, entries: &[FooterEntry], position: u16) -> [u8; OWN_BYTES] {
        Ending::new(entries, position).encode()
    }
}

pub(super) struct Recovery<'a, D: Device, M> {
    pub(super) base: recovery::Recovery<'a, D>,
    pub(super) objects: Objects<'a, D::Buf, M>,
    pub(super) out: Recovered,
    pub(super) now: u32,
}

impl<D: Device, M: Mappings> Recovery<'_, D, M> {
    /// Where checkpoint or log cannot be relied on, what is found is of no use: the cache starts empty, and nothing wrong is served.
    pub(super) async fn find(&mut self) -> Found {
        let superblock = self.base.superblock;
        let mut found = Found {
            epoch: superblock.epoch,
            time: superblock.time,
            ..Found::default()
        };
        if superblock.discard && !superblock.clean {
            tracing::warn!("the last stop was not clean and no complete log was kept: starting empty");
            return found;
        }
        let snapshot = match self.base.snapshot(&mut self.objects).await {
            recovery::Restored::Whole(snapshot) => Some(snapshot),
            recovery::Restored::None => None,
            recovery::Restored::Lost => {
                tracing::warn!("no checkpoint is whole: starting empty");
                return found;
            }
        };
        self.out.tally.found = self.objects.found;
        self.out.no_memory = self.objects.no_memory;
        found.usable = self.replay(snapshot, &mut found).await;
        if !found.usable {
            self.base.clean = false;
            found.history = None;
        }
        found
    }

    /// Brings the snapshot up to date; false where that is not possible.
    async fn replay(&mut self, mut snapshot: Option<recovery::Snapshot<Own>>, found: &mut Found) -> bool {
        let geometry = self.base.superblock.geometry;
        let ignored_bits = self.objects.ignored_bits();
        let mut flush_at = snapshot.as_ref().map_or(0, |s| s.own.overview.flush_at);
        let (mut version_max, mut flushed) = (0, 0);
        let mut void = VoidTable::new(0, void_records(geometry.log_slots));
        let end = self.base.log(snapshot.as_ref(), |kind, record| match kind {
            LogKind::Invalidate | LogKind::Void => {
                version_max = version_max.max(record.b);
                void.add(record.a >> ignored_bits, record.b);
            }
            LogKind::FlushAll => {
                flush_at = 0;
                version_max = version_max.max(record.b);
                flushed = flushed.max(record.b);
            }
            LogKind::FlushAt => flush_at = u32::try_from(record.a).unwrap_or(0),
        });
        void.finish();
        let of_blocks = match end {
            LogEnd::Whole(summary) => summary,
            LogEnd::Gap(_) => return starts_empty("the invalidation log has a hole"),
            LogEnd::Missing => {
                return starts_empty("the invalidation log is not the one that was written");
            }
            LogEnd::Failed(error) => {
                return starts_empty(&format!("reading the invalidation log: {error}"));
            }
        };
        self.out.log_records = of_blocks.scan.records;
        found.old.log_next = of_blocks.scan.next;
        found.flush_at = flush_at;
        note_version(found, version_max);
        let blocks = self
            .base
            .blocks(snapshot.as_ref(), &of_blocks, &self.objects)
            .await;
        found.old.next_sequence = blocks.next_sequence;
        found.time = found.time.max(blocks.time);
        self.out.prefixes = blocks.prefixes;
        let covered = blocks.covered;
        let entries = |id: u32| {
            let overview = snapshot.as_ref().map(|snapshot| &snapshot.own.overview);
            overview.map_or(0, |overview| overview.entries[id as usize])
        };
        found.sealed = (blocks.sealed.iter())
            .map(|(id, row, trailer)| SealedBlock {
                position: None,
                ..trailer.as_ref().map_or(
                    SealedBlock {
                        id: *id,
                        sequence: row.sequence,
                        footer_len: row.footer_len,
                        entries: entries(*id),
                        expiry_max: row.own,
                        position: None,
                    },
                    |trailer| SealedBlock::of(*id, trailer, entries(*id)),
                )
            })
            .collect();
        let base = self.take_base(snapshot.take(), found);
        if flushed > 0 {
            // Since the checkpoint: the queue of keys fills again.
            self.objects.layout.forget_all();
        }
        let mut summary = Summary {
            of_blocks,
            flushed,
            void,
        };
        let mut new = blocks.new;
        found.slots.retain(|block, _| covered[*block as usize]);
        self.prepare_mapping_log(&base, found, &new).await;
        let uncovered = &mut self.out.tally.uncovered;
        for shard in 0..self.objects.mappings.shards() {
            self.objects.mappings.with_shard(shard, |shard| {
                shard.retain(|mapping| {
                    let block = geometry.block_of(mapping.location.offset);
                    let is_covered = block.is_some_and(|block| covered[block as usize]);
                    *uncovered += u64::from(!is_covered);
                    is_covered
                });
            });
        }
        if summary.of_blocks.scan.records > 0 {
            // What it voids is not in those filters.
            found.history = None;
            if !self.apply_log(&base, &summary) {
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
                    found
                        .sealed
                        .push(SealedBlock::of(block, &trailer, entries.len() as u32));
                    let slots = Slots::of_entries(self.objects.slot_bits, &entries);
                    if slots.len() > 0 {
                        found.slots.insert(block, slots);
                    }
                    for entry in &entries {
                        note_version(found, entry.version);
                    }
                }
                self.add_entries(block, &trailer, &entries, &summary).await;
                readable.push((block, trailer));
            }
            new = readable;
            is_first = false;
            let Some(start) = summary.void.end() else {
                return true;
            };
            let Some(void) = self.void_from(&base, &summary, start) else {
                return false;
            };
            summary.void = void;
        }
    }

    /// Parts what a checkpoint has into what the store starts from and what mappings are brought up to date with.
    fn take_base(&self, snapshot: Option<recovery::Snapshot<Own>>, found: &mut Found) -> CheckpointParts {
        // Without a checkpoint the footers tell all keys.
        let Some(recovery::Snapshot { head, blocks, own }) = snapshot else {
            return CheckpointParts::default();
        };
        found.slots = own.slots;
        found.history = own.history.filter(|_| self.base.clean);
        found.old.checkpoint_blocks = blocks.clone();
        found.order = own.overview.order;
        CheckpointParts {
            head,
            blocks,
            positions: own.positions,
        }
    }

    /// What the log voids from `start` on. It is read anew, and must say the same.
    fn void_from(&mut self, base: &CheckpointParts, summary: &Summary, start: u64) -> Option<VoidTable> {
        let ignored_bits = self.objects.ignored_bits();
        let mut void = VoidTable::new(start, void_records(self.base.superblock.geometry.log_slots));
        let visit = |record: &LogRecord| {
            if let Kind::Own(LogKind::Invalidate | LogKind::Void) = record.kind {
                void.add(record.a >> ignored_bits, record.b);
            }
        };
        let is_same = self
            .base
            .log_again(base.head.log_start, &summary.of_blocks.scan, visit);
        void.finish();
        is_same.then_some(void)
    }

    /// Lets a cascade index put pages on blocks that nothing else stands on.
    async fn prepare_mapping_log(
        &mut self,
        snapshot: &CheckpointParts,
        found: &mut Found,
        new: &[(u32, Trailer)],
    ) {
        let Some(log) = self.objects.mapping_log else {
            return;
        };
        let geometry = self.base.superblock.geometry;
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
        for shard in 0..self.objects.mappings.shards() {
            self.objects.mappings.with_shard(shard, |shard| {
                pages.extend(shard.cascade().into_iter().flat_map(|shard| shard.pages()))
            });
        }
        let rows = &snapshot.head.rows;
        let mut generations: Vec<u64> = (0..geometry.blocks as usize)
            .map(|id| rows.get(id).map_or(0, |row| row.sequence))
            .collect();
        // Nothing was lent while the checkpoint of a clean stop was written.
        if !self.base.clean {
            self.find_later_generations(snapshot.head.next_sequence, &pages, &sequences, &mut generations)
                .await;
            let latest = generations.iter().copied().max().unwrap_or(0);
            found.old.next_sequence = found.old.next_sequence.max(latest + 1);
        }
        let lent = Borrowed {
            free,
            generations,
            next: found.old.next_sequence.max(1),
        };
        log.recover(
            geometry,
            self.base.superblock.cache_id,
            sequences.into(),
            pages.into_iter(),
            lent,
        );
    }

    /// Removes from the snapshot's mappings what the log voids; false where it does not say what it said before.
    fn apply_log(&mut self, base: &CheckpointParts, summary: &Summary) -> bool {
        let mappings = self.objects.mappings;
        let mut voided = 0;
        let visit = |record: &LogRecord| match record.kind {
            Kind::Own(LogKind::Invalidate) => {
                let shard = mappings.shard_of(record.a);
                let dumped = base.positions.get(shard);
                if dumped.is_some_and(|dumped| record.position >= *dumped) {
                    let removed = mappings.with_shard(shard, |shard| shard.remove(record.a));
                    voided += u64::from(removed.is_some());
                }
            }
            Kind::Own(LogKind::FlushAll) => {
                for (shard, dumped) in base.positions.iter().enumerate() {
                    if record.position >= *dumped {
                        mappings.with_shard(shard, |shard| {
                            shard.for_each(|_| voided += 1);
                            shard.clear();
                        });
                    }
                }
            }
            Kind::Own(LogKind::FlushAt | LogKind::Void) | Kind::Reclaim | Kind::Prefix => {}
        };
        let is_same = self
            .base
            .log_again(base.head.log_start, &summary.of_blocks.scan, visit);
        self.out.tally.void += voided;
        is_same
    }
}

/// Says why what was found is of no use.
fn starts_empty(why: &str) -> bool {
    tracing::warn!("{why}: starting empty");
    false
}

/// Records that the table of void versions has room for.
fn void_records(log_slots: u64) -> usize {
    usize::try_from(log_slots).map_or(VOID_RECORDS_MAX, |slots| slots.clamp(2, VOID_RECORDS_MAX))
}

fn note_version(found: &mut Found, version: u64) {
    let epoch = u32::try_from(version >> EPOCH_SHIFT).unwrap_or(u32::MAX - 1);
    found.epoch = found.epoch.max(epoch);
}
