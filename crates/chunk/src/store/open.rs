//! A start: recovery of the indexes from the device.
//!
//! 1. The checkpoint gives both indexes. Places in blocks that were reclaimed since are dropped.
//! 2. Mappings that the log voids since the dump are dropped.
//! 3. Footers of blocks sealed since add mappings, in order of sequence, which is the order of versions. A mapping counts if no void is
//!    newer, and its content stands in a block that counts, of the generation that the mapping names.
//! 4. After a power cut, mappings in marked regions are dropped: see [`super::regions`].
//!
//! The volume has everything that the cache has. So if a void may be missing, the whole cache is forgotten.

use super::regions::{Marked, Regions};
use super::{Change, ChunkStore, MAX_LEVEL, Maps, STRIPES, Sealed, Shape, Starts, Stripe};
use crate::fp::FpIndex;
use crate::lba::LbaIndex;
use crate::offsets::Offsets;
use crate::piece::{Entry, Kind, UNIT_BYTES};
use crate::place::Place;
use crate::store::reclaim::batches;
use parking_lot::Mutex;
use pumice_blocks::chain::StreamReader;
use pumice_blocks::footer::OWN_BYTES;
use pumice_blocks::inspect::{self, Inspection};
use pumice_blocks::log::LogRecord;
use pumice_blocks::open::{check_maker, read_superblock};
use pumice_blocks::recovery::{
    FoundBlocks, LogEnd, LogSummary, Recovery, Restore, Restored, Snapshot, StartClock,
};
use pumice_blocks::superblock::OWN_BYTES as SUPERBLOCK_OWN_BYTES;
use pumice_blocks::{Blocks, Durability, Geometry, Maker, OpenError, Start, StoreId, Superblock};
use pumice_device::{Device, SECTOR_BYTES};
use pumice_memory::Buffer;
use std::collections::{BTreeMap, HashMap};
use std::io;

/// The number of this kind of store, and the version of its formats.
pub const STORE: StoreId = StoreId { kind: 2, format: 1 };
/// The epoch of a start in its versions, from this bit on.
const EPOCH_SHIFT: u32 = 40;

/// Options of a start.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of a chunk, a power of two from 4 to 128 KiB.
    pub chunk_bytes: u32,
    /// Chunks of the volume.
    pub chunks: u64,
    /// Identity of the volume. If it differs from that of the cache, the cache is forgotten; so too if `chunks` differs.
    pub volume: u64,
    /// Time of the volume's last change; 0 = unknown. If it differs from that at the last clean stop, the cache is forgotten.
    pub modified: u64,
    /// Identity of the machine's boot; 0 = unknown. In the same boot as the last start there was no power cut, so the flush that the caller
    /// did has made all writes durable, and marks of regions do not count.
    pub boot: u64,
    /// Slots of the LBA-index.
    pub mappings: u64,
    /// Slots of the FP-index.
    pub contents: u64,
    /// Bytes of a block, if the device is formatted.
    pub block_bytes: u64,
    /// The most block buffers.
    pub buffers_max: usize,
    /// Durability of an answered change.
    pub durability: Durability,
    /// Whether to format the device, even if a cache is on it.
    pub reformat: bool,
    /// The program.
    pub maker: Maker,
    /// Enters the id of a new cache.
    pub random: u64,
    /// Unix time in seconds.
    pub now: u32,
}

/// State of the device at a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The device was empty.
    Nothing,
    /// A cache, which is used.
    Cache,
    /// A cache that had to be forgotten: of another or changed volume, or incomplete.
    Forgotten,
}

/// The indexes under recovery.
struct Image {
    shape: Shape,
    lba: LbaIndex,
    fp: FpIndex,
    starts: Vec<Starts>,
    /// Log position at the dump.
    dumped: u64,
    /// The sequence of the first block that was opened after the dump.
    next_sequence: u64,
    /// Time of the volume's last change at a clean stop; else 0.
    modified: u64,
    marked: Marked,
    /// Whether there were marked regions, whose mappings were dropped.
    has_lost: bool,
}

/// State of the log and the blocks from which a start goes on.
struct Old {
    log_next: u64,
    next_sequence: u64,
    checkpoint_blocks: Vec<u32>,
    /// By sequence: number of the block, length of its footer in bytes.
    sealed: BTreeMap<u64, (u32, u32)>,
}

impl Image {
    fn new(shape: Shape, geometry: &Geometry, cache_id: u64) -> Result<Self, OpenError> {
        let too_wide = |error: crate::TooWide| OpenError::Settings(error.to_string());
        let place = shape.place_bits(geometry);
        Ok(Self {
            shape,
            lba: LbaIndex::new(shape.chunks, shape.mappings, place, cache_id).map_err(too_wide)?,
            fp: FpIndex::new(shape.contents, place).map_err(too_wide)?,
            starts: (0..geometry.blocks).map(|_| Starts::None).collect(),
            dumped: 0,
            next_sequence: 0,
            modified: 0,
            marked: Marked::default(),
            has_lost: false,
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

    /// Restores the checkpoint and applies everything since; `None` if the cache cannot be trusted.
    async fn find<D: Device>(&mut self, recovery: &mut Recovery<'_, D>, options: &Options) -> Option<Old> {
        let found = Owned::decode(&recovery.superblock.own);
        if found.volume != options.volume || found.chunks != self.shape.chunks {
            return None;
        }
        if recovery.superblock.discard && !recovery.superblock.clean {
            return None;
        }
        let snapshot = match recovery.snapshot(self).await {
            Restored::Whole(snapshot) => Some(snapshot),
            Restored::None => None,
            Restored::Lost => return None,
        };
        let is_changed = options.modified != 0 && self.modified != 0 && options.modified != self.modified;
        if recovery.clean && is_changed {
            return None;
        }
        let (mut voids, mut since) = (HashMap::new(), Vec::new());
        let mut marked = std::mem::take(&mut self.marked);
        let dumped = self.dumped;
        let end = recovery.log(snapshot.as_ref(), |change, record: &LogRecord<Change>| {
            let is_since = record.position >= dumped;
            match change {
                Change::Void(level) => {
                    let highest = voids.entry((level, record.a)).or_insert(0);
                    *highest = record.b.max(*highest);
                    if is_since {
                        since.push((level, record.a));
                    }
                }
                Change::Mark | Change::Clear if is_since => marked.set(record.a, change == Change::Mark),
                Change::Mark | Change::Clear => {}
            }
        });
        let is_same_run = options.boot != 0 && options.boot == found.boot;
        if !is_same_run {
            self.marked = marked;
        }
        let LogEnd::Whole(summary) = end else { return None };
        let blocks = recovery.blocks(snapshot.as_ref(), &summary, self).await;
        for (level, index) in since {
            let first = index.saturating_mul(1 << level);
            for address in first..first.saturating_add(1 << level).min(self.shape.chunks) {
                self.lba.remove(address);
            }
        }
        let old = self.apply(recovery, snapshot, &summary, blocks, &voids).await;
        Some(old)
    }

    async fn apply<D: Device>(
        &mut self,
        recovery: &mut Recovery<'_, D>,
        snapshot: Option<Snapshot<()>>,
        summary: &LogSummary,
        blocks: FoundBlocks,
        voids: &HashMap<(u8, u64), u64>,
    ) -> Old {
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
        self.drop_places(|place| !blocks.covered[place.block as usize] && !is_dumped(place.block));
        for (block, starts) in self.starts.iter_mut().enumerate() {
            if !blocks.covered[block] {
                *starts = Starts::None;
            }
        }
        for (block, trailer) in blocks.new {
            let entries = recovery.entries::<Entry>(block, &trailer).await;
            let starts = entries.as_deref().and_then(Self::starts_of);
            let (Some(entries), Some(starts)) = (entries, starts) else {
                continue;
            };
            self.starts[block as usize] = Starts::Whole(starts);
            sequences.insert(block, trailer.sequence);
            sealed.insert(trailer.sequence, (block, trailer.footer_len() as u32));
            for entry in entries {
                let (place, target) = match entry.kind {
                    Kind::Content { number, hash } => {
                        let place = Place { block, number };
                        if self.has(place) && !self.fp.candidates(hash).any(|known| known == place) {
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
                let is_void = (0..=MAX_LEVEL as u8)
                    .filter_map(|level| voids.get(&(level, entry.address >> level)))
                    .any(|void| entry.version < *void);
                let is_whole = self.has(place) && sequences.get(&place.block) == Some(&target);
                if entry.version > 0 && !is_void && is_whole && entry.address < self.shape.chunks {
                    self.lba.insert(entry.address, place);
                }
            }
        }
        // Places of the checkpoint in a block whose footer cannot be read, or does not list them.
        let starts = std::mem::take(&mut self.starts);
        self.drop_places(|place| {
            (starts.get(place.block as usize)).is_none_or(|starts| place.number >= starts.len())
        });
        self.starts = starts;
        let (marked, chunks) = (std::mem::take(&mut self.marked), self.shape.chunks);
        self.has_lost = !marked.is_empty();
        for bucket in 0..self.lba.buckets() {
            self.lba
                .retain_addresses(bucket, |address| !marked.has(chunks, address));
        }
        Old {
            log_next: summary.scan.next,
            next_sequence: blocks.next_sequence,
            checkpoint_blocks: snapshot.map_or(Vec::new(), |snapshot| snapshot.blocks),
            sealed,
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
        let [dumped, modified] = stream.words::<Vec<u64>>(2).await?[..] else {
            return Err(stream.bad("its position is missing"));
        };
        (self.dumped, self.modified) = (dumped, modified);
        for region in stream.list("marked region", 4, |fields| fields.u32()).await? {
            self.marked.set(region.into(), true);
        }
        for batch in batches(self.lba.buckets()) {
            let lens = stream.take(batch.len()).await?;
            let slots: usize = lens.iter().map(|len| usize::from(*len)).sum();
            let bytes = stream.take(slots * self.lba.slot_bytes()).await?;
            if !self
                .lba
                .load(batch, &lens, &bytes, |place| shape.has(&geometry, place))
            {
                return Err(stream.bad("a mapping of a chunk is damaged"));
            }
        }
        for batch in batches(self.fp.buckets()) {
            let lens = stream.take(batch.len()).await?;
            let slots: usize = lens.iter().map(|len| usize::from(*len)).sum();
            let bytes = stream.take(slots * self.fp.slot_bytes()).await?;
            if !self
                .fp
                .load(batch, &lens, &bytes, |place| shape.has(&geometry, place))
            {
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
        (self.dumped, self.next_sequence, self.modified) = (0, 0, 0);
        self.marked.clear();
    }

    /// Blocks are written only when they are full, so there are no prefixes.
    fn piece<B: Buffer>(&self, _: &B, _: usize, _: u32, _: u32, _: u64) -> Option<Entry> {
        None
    }

    fn trailer(&self, _: &[Entry], _: u16) -> [u8; OWN_BYTES] {
        [0; OWN_BYTES]
    }
}

/// The store's fields of the superblock, beside the rest of the shape.
struct Owned {
    chunks: u64,
    volume: u64,
    boot: u64,
}

impl Owned {
    /// Offsets behind the shape.
    const VOLUME: usize = 32;
    const BOOT: usize = 40;

    fn decode(own: &[u8; SUPERBLOCK_OWN_BYTES]) -> Self {
        let word = |at: usize| {
            own[at..]
                .first_chunk()
                .map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        Self {
            chunks: Shape::decode(own).map_or(0, |shape| shape.chunks),
            volume: word(Self::VOLUME),
            boot: word(Self::BOOT),
        }
    }

    fn encode(&self, shape: &Shape) -> [u8; SUPERBLOCK_OWN_BYTES] {
        let mut own = shape.encode();
        own[Self::VOLUME..][..8].copy_from_slice(&self.volume.to_le_bytes());
        own[Self::BOOT..][..8].copy_from_slice(&self.boot.to_le_bytes());
        own
    }
}

/// The superblock of an empty device.
fn format<D: Device>(device: &D, options: &Options) -> Result<Superblock, OpenError> {
    Ok(Superblock {
        store: STORE,
        geometry: Geometry::plan(device.capacity(), options.block_bytes)?,
        maker: options.maker,
        time: options.now,
        ..Superblock::default()
    })
}

/// Checks that a device was formatted with the settings of this start.
fn check<D: Device>(
    device: &D,
    options: &Options,
    superblock: &Superblock,
    shape: &Shape,
) -> Result<(), OpenError> {
    check_maker(superblock, options.maker)?;
    let disagrees = |what, wanted: u64, found: u64| match wanted == found {
        true => Ok(()),
        false => Err(OpenError::Disagrees {
            what,
            wanted: wanted.to_string(),
            found: found.to_string(),
        }),
    };
    let found = Shape::decode(&superblock.own).ok_or(OpenError::UnknownSettings)?;
    let capacity = device.capacity() / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
    disagrees(
        "the size of the cache device, in bytes,",
        capacity,
        superblock.geometry.capacity,
    )?;
    disagrees(
        "the chunk size, in bytes,",
        shape.chunk_bytes.into(),
        found.chunk_bytes.into(),
    )?;
    if found.chunks == shape.chunks {
        // With another number of chunks the cache is forgotten.
        disagrees("the number of mappings", shape.mappings, found.mappings)?;
    }
    disagrees("the number of contents", shape.contents, found.contents)?;
    disagrees(
        "the number of contents of a block",
        shape.numbers.into(),
        found.numbers.into(),
    )
}

impl<B: Buffer> ChunkStore<B> {
    /// Opens the cache on a device; formats an empty device. The caller has flushed the volume. Cost: reads checkpoint, log, trailers, and
    /// the footers of blocks sealed since the checkpoint; after a crash a new checkpoint is written.
    ///
    /// # Errors
    /// [`OpenError`]: the device holds something else, was made with other settings, or fails.
    pub async fn open<D: Device<Buf = B>>(device: &D, options: &Options) -> Result<(Self, Found), OpenError> {
        let found = match options.reformat {
            true => None,
            false => read_superblock(device, STORE)?,
        };
        let formatted = found.is_none();
        let mut superblock = found.map_or_else(|| format(device, options), Ok)?;
        let geometry = superblock.geometry;
        let Options {
            chunk_bytes,
            chunks,
            mappings,
            contents,
            ..
        } = *options;
        let shape = Shape::new(&geometry, chunk_bytes, chunks, mappings, contents)?;
        if formatted {
            superblock.begin_anew(options.random);
        } else {
            check(device, options, &superblock, &shape)?;
        }
        let mut recovery = Recovery::new(device, superblock);
        let mut restored = Image::new(shape, &geometry, superblock.cache_id)?;
        let old = match formatted {
            true => None,
            false => restored.find(&mut recovery, options).await,
        };
        let (was_clean, mut superblock) = (recovery.clean && old.is_some(), recovery.superblock);
        let found = match (formatted, &old) {
            (true, _) => Found::Nothing,
            (_, Some(_)) => Found::Cache,
            (_, None) => Found::Forgotten,
        };
        let old = match old {
            Some(old) => old,
            None => {
                superblock.begin_anew(options.random);
                restored = Image::new(shape, &geometry, superblock.cache_id)?;
                Old {
                    log_next: 0,
                    next_sequence: 1,
                    checkpoint_blocks: Vec::new(),
                    sealed: BTreeMap::new(),
                }
            }
        };
        // Chunks do not expire, so no clock is checked.
        let clock = StartClock {
            now: options.now,
            accept_clock: true,
        };
        superblock.own = Owned {
            chunks,
            volume: options.volume,
            // If this start crashes before its checkpoint, the marks must count for the next start too.
            boot: if restored.has_lost { 0 } else { options.boot },
        }
        .encode(&shape);
        superblock.begin_start(0, 0, clock, formatted);
        superblock.discard = options.durability == Durability::Off;
        let store = Self::with(options, superblock, restored, old);
        let is_new = found != Found::Cache;
        store
            .base
            .record_start(device, is_new.then_some(Change::Void(0)))
            .await?;
        if !is_new && !was_clean {
            store.settle_start(device, options.now).await;
        }
        Ok((store, found))
    }

    /// Discards the cache on a device, durably: the next start forgets it.
    ///
    /// # Errors
    /// [`OpenError`]: the device holds something else, or fails.
    pub async fn discard<D: Device<Buf = B>>(device: &D) -> Result<(), OpenError> {
        let mut superblock = match read_superblock(device, STORE) {
            Ok(Some(superblock)) => superblock,
            // An empty device, or one that no start would read.
            Ok(None) | Err(OpenError::Damaged) => return Ok(()),
            Err(error) => return Err(error),
        };
        let failed = |source| OpenError::Device {
            what: "discarding the cache",
            source,
        };
        (superblock.clean, superblock.discard) = (false, true);
        for _ in 0..2 {
            superblock.generation += 1;
            device
                .append_log(superblock.slot_offset(), &superblock.encode())
                .map_err(failed)?;
        }
        device.sync().await.map_err(failed)
    }

    /// Inspects the cache on a device, without writing; `None` if the device is empty. DRAM: the indexes of its settings.
    ///
    /// # Errors
    /// [`OpenError`]: the device holds something else, or its superblocks cannot be read.
    pub async fn inspect<D: Device<Buf = B>>(device: &D) -> Result<Option<Inspection>, OpenError> {
        let Some(superblock) = read_superblock(device, STORE)? else {
            return Ok(None);
        };
        let geometry = superblock.geometry;
        let found = Shape::decode(&superblock.own).ok_or(OpenError::UnknownSettings)?;
        let (chunks, mappings, contents) = (found.chunks, found.mappings, found.contents);
        let shape = Shape::new(&geometry, found.chunk_bytes, chunks, mappings, contents)?;
        let mut image = Image::new(shape, &geometry, superblock.cache_id)?;
        Ok(Some(inspect::inspect(device, &superblock, &mut image).await))
    }

    fn with(options: &Options, superblock: Superblock, restored: Image, old: Old) -> Self {
        let Image {
            shape,
            lba,
            fp,
            starts,
            ..
        } = restored;
        let order = old.sealed.values().map(|(block, _)| *block).collect();
        Self {
            base: Blocks::new(Start {
                superblock,
                log_next: old.log_next,
                log_tail: superblock.checkpoints[0].log_start,
                next_sequence: old.next_sequence.max(1),
                checkpoint_blocks: [old.checkpoint_blocks, Vec::new()],
                sealed: (old.sealed.iter())
                    .map(|(sequence, (block, footer_len))| (*block, *sequence, *footer_len))
                    .collect(),
                durability: options.durability,
                flush_interval_secs: 0,
                buffers_max: options.buffers_max,
                now: options.now,
                own: Sealed {
                    order,
                    is_reclaiming: false,
                },
            }),
            shape,
            maps: Mutex::new(Maps {
                lba,
                fp,
                starts,
                active: None,
                next_version: u64::from(superblock.epoch) << EPOCH_SHIFT,
                stripes: vec![Stripe::default(); STRIPES].into(),
                regions: Regions::new(shape.chunks),
            }),
            counters: Default::default(),
        }
    }

    /// Writes a checkpoint after a crash, so that no later start depends on the blocks and records that this start read.
    async fn settle_start<D: Device<Buf = B>>(&self, device: &D, now: u32) {
        let wanted = self.shape.checkpoint_blocks(&self.base.geometry);
        loop {
            let victim = {
                let mut pool = self.base.shared.pool.lock();
                if pool.free.len() >= wanted {
                    break;
                }
                pool.own.order.pop_front()
            };
            let Some(victim) = victim else { break };
            self.reclaim(device, &[victim]).await;
        }
        let is_only = match self.checkpoint(device, now, None).await {
            Ok(()) => self.base.forget_previous_checkpoint(device),
            Err(error) => {
                tracing::warn!("the checkpoint of this start: {error}");
                false
            }
        };
        if !is_only {
            self.base.mark_discard(device);
        }
    }
}
