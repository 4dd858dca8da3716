//! Recovery of the indexes from the device.
//!
//! 1. The checkpoint gives both indexes. Places in blocks that were reclaimed since are dropped.
//! 2. Mappings that the log voids since the dump are dropped.
//! 3. Footers of blocks sealed since add mappings, in order of sequence, which is the order of versions. A mapping counts if neither the
//!    dump nor a void is newer. It supersedes the older ones of its chunk, also if the block of its content was reclaimed since: then the
//!    chunk has no mapping, as its content was clean when that block was reclaimed, or superseded by a mapping that is durable. Only a
//!    mapping whose content was never durable leaves the older one in force.
//! 4. After a power cut, clean mappings in marked regions are dropped: see [`super::regions`].
//!
//! If a void may be missing, the whole cache is forgotten: the volume has everything that a cache of clean chunks has. A cache that may
//! have dirty chunks says so in its superblock. If something of it is missing, the start fails instead. The start checks the contents of
//! blocks that were being written at a crash. A torn content does not count: its chunk has the content from before. A single wrong bit is rot:
//! the content counts, and cannot be read.

use super::owner::{Change, EPOCH_SHIFT, MAX_LEVEL};
use super::read::sectors;
use super::regions::region_of;
use super::shape::{Owned, Shape};
use super::starts::Starts;
use crate::content::{Fingerprint, decompress};
use crate::fp::FpIndex;
use crate::lba::LbaIndex;
use crate::offsets::Offsets;
use crate::piece::{Entry, HEADER_BYTES, Header, Kind, REFERENCE_BYTES, Reference, UNIT_BYTES};
use crate::place::Place;
use pumice_blocks::chain::{BlockRole, StreamReader};
use pumice_blocks::footer::OWN_BYTES;
use pumice_blocks::log::LogRecord;
use pumice_blocks::open::read_twice;
use pumice_blocks::recovery::{
    FoundBlocks, LogEnd, LogSummary, PieceBegin, Recovery, Restore, Restored, Snapshot,
};
use pumice_blocks::rot::wrong_bit;
use pumice_blocks::{Geometry, Old, OpenError};
use pumice_device::Device;
use pumice_memory::Buffer;
use pumice_record::codec::checksum;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

/// The indexes under recovery.
pub(super) struct Image {
    pub(super) shape: Shape,
    pub(super) lba: LbaIndex,
    pub(super) fp: FpIndex,
    pub(super) starts: Vec<Starts>,
    /// Log position at the dump.
    dumped: u64,
    /// The dump supersedes mappings of footers up to this version.
    version: u64,
    /// The sequence of the first block that was opened after the dump.
    next_sequence: u64,
    /// What stands for the time of the volume's last change at a clean stop; else 0.
    modified: u64,
    marked: HashSet<u64>,
    /// Whether a power cut has left marked regions, whose clean mappings were dropped, or a gap in the log.
    pub(super) has_lost: bool,
    /// Whether chunks may be dirty, so that nothing may be missing.
    pub(super) keeps: bool,
    /// Log records since the checkpoint.
    pub(super) log_records: u64,
    /// Blocks that were durable as a whole: number and generation.
    written: HashSet<(u32, u64)>,
    cache_id: u64,
}

/// What the log says of mappings, by level and number of the aligned range: the highest version.
#[derive(Default)]
struct Changes {
    voids: HashMap<(u8, u64), u64>,
    cleans: HashMap<(u8, u64), u64>,
}

impl Changes {
    fn is_void(&self, entry: &Entry) -> bool {
        Self::has(&self.voids, entry)
    }

    fn is_clean(&self, entry: &Entry) -> bool {
        Self::has(&self.cleans, entry)
    }

    fn has(changes: &HashMap<(u8, u64), u64>, entry: &Entry) -> bool {
        (0..=MAX_LEVEL as u8)
            .filter_map(|level| changes.get(&(level, entry.address >> level)))
            .any(|version| entry.version < *version)
    }
}

impl Image {
    pub(super) fn new(shape: Shape, geometry: &Geometry, cache_id: u64) -> Result<Self, OpenError> {
        let too_wide = |error: crate::TooWide| OpenError::Settings(error.to_string());
        let place = shape.place_bits(geometry);
        Ok(Self {
            shape,
            lba: LbaIndex::new(shape.chunks, shape.mappings, place, cache_id).map_err(too_wide)?,
            fp: FpIndex::new(shape.contents, place).map_err(too_wide)?,
            starts: (0..geometry.blocks).map(|_| Starts::None).collect(),
            dumped: 0,
            version: 0,
            next_sequence: 0,
            modified: 0,
            marked: HashSet::new(),
            has_lost: false,
            keeps: false,
            written: HashSet::new(),
            log_records: 0,
            cache_id,
        })
    }

    /// Offsets of a block's contents by its footer; `None` if the contents are not numbered in order.
    fn starts_of(entries: &[Entry]) -> Option<Offsets> {
        let mut starts = Vec::new();
        for entry in entries {
            if let Kind::Content { number, .. } = entry.kind {
                let is_next =
                    number as usize == starts.len() && (entry.offset as usize).is_multiple_of(UNIT_BYTES);
                starts.push(is_next.then_some(entry.offset / UNIT_BYTES as u32)?);
            }
        }
        Offsets::new(&starts)
    }

    /// Whether a place is that of a content.
    fn has(&self, place: Place) -> bool {
        let starts = self.starts.get(place.block as usize);
        starts.is_some_and(|starts| place.number < starts.len())
    }

    /// Restores the checkpoint and applies everything since, or says why the cache cannot be trusted.
    pub(super) async fn find<D: Device>(
        &mut self,
        recovery: &mut Recovery<'_, D>,
        volume: u64,
        modified: u64,
        boot: u64,
    ) -> Result<Old, &'static str> {
        let found = Owned::decode(&recovery.superblock.own);
        self.keeps = found.keeps;
        if found.volume != volume || found.chunks != self.shape.chunks {
            return Err("it is the cache of another volume");
        }
        if recovery.superblock.discard && !recovery.superblock.clean {
            return Err("a change of it was not recorded");
        }
        let snapshot = match recovery.snapshot(self).await {
            Restored::Whole(snapshot) => Some(snapshot),
            Restored::None => None,
            Restored::Lost => return Err("none of its checkpoints is whole"),
        };
        let is_changed = modified != 0 && self.modified != 0 && modified != self.modified;
        if recovery.clean && is_changed {
            if !self.keeps || modified >> 32 != self.modified >> 32 {
                return Err("the volume was changed without it");
            }
            tracing::warn!(
                "owner, permissions, links or attributes of the volume have changed since the last stop, or it was restored with its old time: \
                 if it was restored, its dirty chunks do not fit what it has now"
            );
        }
        let (mut changes, mut since) = (Changes::default(), Vec::new());
        let (mut written, mut epoch, blocks) = (HashSet::new(), 0, self.starts.len());
        let mut marked = std::mem::take(&mut self.marked);
        let dumped = self.dumped;
        let end = recovery.log(snapshot.as_ref(), |change, record: &LogRecord<Change>| {
            let is_since = record.position >= dumped;
            let (level, versions) = match change {
                Change::Void(level) => (level, &mut changes.voids),
                Change::Clean(level) => (level, &mut changes.cleans),
                Change::Mark | Change::Clear => {
                    if is_since && change == Change::Mark {
                        marked.insert(record.a);
                    } else if is_since {
                        marked.remove(&record.a);
                    }
                    return;
                }
                Change::Written => {
                    let block = u32::try_from(record.a).ok();
                    let block = block.filter(|block| (*block as usize) < blocks);
                    written.extend(block.map(|block| (block, record.b)));
                    return;
                }
            };
            // A record of an earlier start behind one of a later: it was left beyond a gap.
            if record.b >> EPOCH_SHIFT < epoch {
                return;
            }
            epoch = record.b >> EPOCH_SHIFT;
            let highest = versions.entry((level, record.a)).or_insert(0);
            *highest = record.b.max(*highest);
            if is_since {
                since.push((change, record.a));
            }
        });
        let is_same_run = boot != 0 && boot == found.boot;
        if !is_same_run {
            self.marked = marked;
        }
        let summary = match end {
            LogEnd::Whole(summary) => summary,
            // A power cut may take records that were not flushed, and leave later ones. Nothing stands on them: see `dirty`.
            LogEnd::Gap(summary) if self.keeps && !is_same_run => {
                self.has_lost = true;
                summary
            }
            _ => return Err("its log is not whole"),
        };
        self.log_records = summary.scan.records;
        self.written = written;
        let blocks = recovery.blocks(snapshot.as_ref(), &summary, self).await;
        if self.keeps && !(blocks.lost.is_empty() && recovery.unread_blocks.is_empty()) {
            return Err("a block is missing, or cannot be read");
        }
        let mut written = self.written.iter();
        let is_there = |(block, sequence): &(u32, u64)| {
            blocks
                .sealed
                .iter()
                .any(|(other, row, _)| (other, row.sequence) == (block, *sequence))
                || blocks
                    .new
                    .iter()
                    .any(|(other, trailer)| (other, trailer.sequence) == (block, *sequence))
        };
        if self.keeps && written.any(|found| !summary.is_reclaimed(found.0, found.1) && !is_there(found)) {
            return Err("a block that was written is not there");
        }
        // The footer of a block that was opened then or later restores what was mapped between the record and the dump.
        for (change, index) in since {
            let (Change::Void(level) | Change::Clean(level)) = change else {
                continue;
            };
            let first = index.saturating_mul(1 << level);
            for address in first..first.saturating_add(1 << level).min(self.shape.chunks) {
                match self.lba.get(address) {
                    Some(slot) if matches!(change, Change::Clean(_)) => {
                        self.lba.clean(address, slot.place);
                    }
                    _ => drop(self.lba.remove(address)),
                }
            }
        }
        self.apply(recovery, snapshot, &summary, blocks, &changes).await
    }

    async fn apply<D: Device>(
        &mut self,
        recovery: &mut Recovery<'_, D>,
        snapshot: Option<Snapshot<()>>,
        summary: &LogSummary,
        blocks: FoundBlocks,
        changes: &Changes,
    ) -> Result<Old, &'static str> {
        let mut sequences: HashMap<u32, u64> = (blocks.sealed.iter())
            .map(|(block, row, _)| (*block, row.sequence))
            .collect();
        let mut sealed: BTreeMap<u64, (u32, u32)> = (blocks.sealed.iter())
            .map(|(block, row, _)| (row.sequence, (*block, row.footer_len)))
            .collect();
        let is_new: HashMap<u32, u64> = (blocks.new.iter())
            .map(|(block, trailer)| (*block, trailer.sequence))
            .collect();
        // A block sealed since the checkpoint may have been open during the dump: the dump's places in it are then of this generation,
        // since no block is reclaimed during a dump. If it was opened after the dump, they are of an earlier one: drop them.
        let next_sequence = self.next_sequence;
        let is_dumped = |block| {
            is_new
                .get(&block)
                .is_some_and(|sequence| *sequence < next_sequence)
        };
        // What it leads to in a block that was open was durable before the checkpoint ended: see below.
        let was_open = |block: u32| {
            let row = snapshot
                .as_ref()
                .and_then(|snapshot| snapshot.head.rows.get(block as usize));
            row.is_some_and(|row| row.role == BlockRole::Open && !summary.is_reclaimed(block, row.sequence))
        };
        self.drop_places(|place| {
            !blocks.covered[place.block as usize] && !is_dumped(place.block) && !was_open(place.block)
        });
        for (block, starts) in self.starts.iter_mut().enumerate() {
            if !blocks.covered[block] {
                *starts = Starts::None;
            }
        }
        let (mut torn, mut rotten) = (HashSet::new(), HashSet::new());
        for (block, trailer) in blocks.new {
            let entries = recovery.entries::<Entry>(block, &trailer).await;
            let starts = entries.as_deref().and_then(Self::starts_of);
            let was_written = self.written.contains(&(block, trailer.sequence));
            let (Some(entries), Some(starts)) = (entries, starts) else {
                match self.keeps && (was_written || !recovery.unread_blocks.is_empty()) {
                    true => return Err("the footer of a block cannot be read"),
                    false => continue,
                }
            };
            if self.keeps && !was_written {
                let damaged = [&mut torn, &mut rotten];
                self.find_damaged(recovery, block, trailer.sequence, &entries, damaged)
                    .await;
            }
            self.starts[block as usize] = Starts::Whole(starts);
            sequences.insert(block, trailer.sequence);
            sealed.insert(trailer.sequence, (block, trailer.footer_len() as u32));
            for entry in entries {
                let (place, target) = match entry.kind {
                    Kind::Content { number, hash } => {
                        let place = Place { block, number };
                        let is_known = self.fp.candidates(hash).any(|known| known == place);
                        if rotten.contains(&place) {
                            // No other chunk is mapped to what cannot be read.
                            self.fp.remove(hash, place);
                        } else if self.has(place) && !is_known && !torn.contains(&place) {
                            self.fp.insert(hash, place);
                        }
                        (place, trailer.sequence)
                    }
                    Kind::Reference {
                        block,
                        number,
                        target,
                    } => (Place { block, number }, target),
                };
                let is_newest = entry.version > self.version && !changes.is_void(&entry);
                if !is_newest || entry.address >= self.shape.chunks {
                    continue;
                }
                let is_whole =
                    self.has(place) && sequences.get(&place.block) == Some(&target) && !torn.contains(&place);
                if is_whole {
                    let is_dirty = entry.is_dirty && !changes.is_clean(&entry);
                    if is_dirty && !self.lba.has_room(entry.address) {
                        return Err("it has more dirty chunks than it can have");
                    }
                    self.lba.insert(entry.address, place, is_dirty);
                } else if summary.is_reclaimed(place.block, target) {
                    self.lba.remove(entry.address);
                }
            }
        }
        // Places of the checkpoint in a block whose footer cannot be read, or does not list them.
        let starts = std::mem::take(&mut self.starts);
        let is_gone = |place: Place| {
            (starts.get(place.block as usize)).is_none_or(|starts| place.number >= starts.len())
        };
        let mut has_lost = false;
        for bucket in 0..self.lba.buckets() {
            self.lba
                .visit_dirty(bucket, |slot| has_lost |= is_gone(slot.place));
        }
        if has_lost {
            return Err("a block that was being filled lacks what was durable there");
        }
        self.drop_places(is_gone);
        self.starts = starts;
        let (marked, chunks) = (std::mem::take(&mut self.marked), self.shape.chunks);
        self.has_lost |= !marked.is_empty();
        for bucket in 0..self.lba.buckets() {
            self.lba
                .retain_addresses(bucket, |address| !marked.contains(&region_of(chunks, address)));
        }
        Ok(Old {
            log_next: summary.scan.next,
            next_sequence: blocks.next_sequence,
            checkpoint_blocks: snapshot.map_or(Vec::new(), |snapshot| snapshot.blocks),
            sealed: (sealed.into_iter())
                .map(|(sequence, (block, footer_len))| (block, sequence, footer_len))
                .collect(),
        })
    }

    /// Adds to `torn` and `rotten` the contents of a block that are not whole. A content that cannot be read may be whole. One with a single
    /// wrong bit was whole: a torn write changes sectors, and its bytes would not have the fingerprint.
    async fn find_damaged<D: Device>(
        &self,
        recovery: &mut Recovery<'_, D>,
        block: u32,
        sequence: u64,
        entries: &[Entry],
        [torn, rotten]: [&mut HashSet<Place>; 2],
    ) {
        let start = recovery.superblock.geometry.block_offset(block);
        for entry in entries {
            let Kind::Content { number, .. } = entry.kind else {
                continue;
            };
            let (range, skipped) = sectors(entry.offset as usize, entry.len as usize);
            recovery.bytes_read += range.len() as u64;
            let read = read_twice(recovery.device, start + range.start as u64, range.len()).await;
            let Ok(buffer) = read else { continue };
            let mended = || {
                let head = buffer.bytes(skipped, HEADER_BYTES)?;
                let header = Header::decode_mended(self.cache_id, head)?;
                let stored = buffer.bytes(skipped + HEADER_BYTES, header.stored_len as usize)?;
                let is_this = header.sequence == sequence && header.number == number;
                let difference = checksum(self.cache_id, &[stored]) ^ header.data_crc;
                let is_whole = difference == 0 && Header::decode(self.cache_id, head).is_some();
                if difference != 0 {
                    let bit = wrong_bit(stored.len(), difference)?.checked_sub(u32::BITS as usize)?;
                    let mut stored = stored.to_vec();
                    stored[bit / 8] ^= 1 << (bit % 8);
                    let bytes = decompress(header.coding, &stored, header.len as usize)?;
                    (Fingerprint::of(header.start, &bytes) == header.fingerprint).then_some(())?;
                }
                is_this.then_some(is_whole)
            };
            let place = Place { block, number };
            match mended() {
                Some(true) => {}
                Some(false) => drop(rotten.insert(place)),
                None => drop(torn.insert(place)),
            }
        }
    }

    fn drop_places(&mut self, is_gone: impl Fn(Place) -> bool) {
        for bucket in 0..self.lba.buckets() {
            self.lba.retain(bucket, |place| !is_gone(place));
        }
        for bucket in 0..self.fp.buckets() {
            self.fp.retain(bucket, |place| !is_gone(place));
        }
    }
}

impl Restore for Image {
    type Kind = Change;
    type Entry = Entry;
    type Own = ();

    async fn restore<B, R>(&mut self, stream: &mut StreamReader<'_, R>) -> Result<(), OpenError>
    where
        B: Buffer,
        R: AsyncFn(u64, usize) -> io::Result<B>,
    {
        let (shape, geometry) = (self.shape, *stream.geometry());
        let [dumped, modified, version] = stream.words::<Vec<u64>>(3).await?[..] else {
            return Err(stream.bad("its position is missing"));
        };
        (self.dumped, self.modified, self.version) = (dumped, modified, version);
        let marked = stream.list("marked region", 4, |fields| fields.u32()).await?;
        self.marked = marked.into_iter().map(u64::from).collect();
        let has = |place| shape.has(&geometry, place);
        for batch in self.lba.batches() {
            let lens = stream.take(batch.len()).await?;
            let slots: usize = lens.iter().map(|len| usize::from(*len)).sum();
            let bytes = stream.take(slots * self.lba.slot_bytes()).await?;
            if !self.lba.load(batch, &lens, &bytes, has) {
                return Err(stream.bad("a mapping of a chunk is damaged"));
            }
        }
        for batch in self.fp.batches() {
            let lens = stream.take(batch.len()).await?;
            let slots: usize = lens.iter().map(|len| usize::from(*len)).sum();
            let bytes = stream.take(slots * self.fp.slot_bytes()).await?;
            if !self.fp.load(batch, &lens, &bytes, has) {
                return Err(stream.bad("a place of a content is damaged"));
            }
        }
        let [next_sequence] = stream.words::<Vec<u64>>(1).await?[..] else {
            return Err(stream.bad("its sequence is missing"));
        };
        self.next_sequence = next_sequence;
        for _ in 0..stream.u32().await? {
            let block = stream.u32().await? as usize;
            let starts = stream
                .list("start of a content", 4, |fields| fields.u32())
                .await?;
            let offsets =
                Offsets::new(&starts).ok_or_else(|| stream.bad("contents do not stand in order"))?;
            let known = self.starts.get_mut(block);
            *known.ok_or_else(|| stream.bad("a block is beyond the device"))? = Starts::Whole(offsets);
        }
        Ok(())
    }

    fn forget(&mut self) {
        self.lba.clear();
        self.fp.clear();
        self.starts.fill_with(Starts::default);
        (self.dumped, self.next_sequence, self.modified, self.version) = (0, 0, 0, 0);
        self.marked.clear();
    }

    fn piece<B: Buffer>(&self, buffer: &B, begin: PieceBegin) -> Option<Entry> {
        let PieceBegin {
            at,
            offset,
            number,
            sequence,
        } = begin;
        if let Some(header) = (buffer.bytes(at, HEADER_BYTES))
            .and_then(|bytes| Header::decode_mended(self.cache_id, bytes))
            .filter(|header| header.sequence == sequence && header.number <= number)
        {
            return Some(Entry {
                offset,
                len: header.piece_len() as u32,
                address: header.address,
                version: header.version,
                is_dirty: header.is_dirty,
                kind: Kind::Content {
                    number: header.number,
                    hash: header.fingerprint.hash(),
                },
            });
        }
        let reference = (buffer.bytes(at, REFERENCE_BYTES))
            .and_then(|bytes| Reference::decode_mended(self.cache_id, bytes))
            .filter(|reference| reference.sequence == sequence)?;
        Some(Entry {
            offset,
            len: REFERENCE_BYTES as u32,
            address: reference.address,
            version: reference.version,
            is_dirty: reference.is_dirty,
            kind: Kind::Reference {
                block: reference.block,
                number: reference.number,
                target: reference.target,
            },
        })
    }

    fn finds_ends(&self) -> bool {
        self.keeps
    }

    fn was_whole(&self, block: u32, sequence: u64) -> bool {
        self.written.contains(&(block, sequence))
    }

    fn trailer(&self, _: &[Entry], _: u16) -> [u8; OWN_BYTES] {
        [0; OWN_BYTES]
    }
}
