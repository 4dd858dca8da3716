//! A start: what is on the device.
//!
//! The checkpoint has both indexes; places in blocks that do not count any more are dropped. What the log voids since the dump is dropped
//! from it. Then the footers of blocks that were sealed since, in order of sequence, which is the order of versions: a mapping counts where
//! no void is newer, and where its content stands in a block that counts, in the generation that the mapping names.
//!
//! A cache has nothing that the volume has not: where something is missing that could tell of a void, all is forgotten.

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

/// Its number among the kinds of stores, and the version of its formats.
pub const STORE: StoreId = StoreId { kind: 2, format: 1 };
/// Versions of a start begin with its epoch.
const EPOCH_SHIFT: u32 = 40;

/// What a store is opened with.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of a chunk, a power of two from 4 to 128 KiB.
    pub chunk_bytes: u32,
    /// Chunks of the volume.
    pub chunks: u64,
    /// Which volume it is: another one's chunks are forgotten.
    pub volume: u64,
    /// When it was changed last; 0 where that is not known. Where it was changed since a clean stop, its chunks are forgotten.
    pub modified: u64,
    /// Which run of the machine this is; 0 where that is not known. A start after a crash in the same run knows that no power cut took
    /// anything from the volume, which the caller has flushed.
    pub boot: u64,
    /// Slots of the LBA-index.
    pub mappings: u64,
    /// Slots of the FP-index.
    pub contents: u64,
    /// Bytes of a block, where the device is formatted.
    pub block_bytes: u64,
    /// The most block buffers.
    pub buffers_max: usize,
    /// What an answer promises.
    pub durability: Durability,
    /// Whether the device is formatted, whatever cache is on it.
    pub reformat: bool,
    /// The program.
    pub maker: Maker,
    /// A number that need not differ from that of another start.
    pub random: u64,
    /// Unix time in seconds.
    pub now: u32,
}

/// What a start has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The device was empty.
    Nothing,
    /// A cache, and all that is left of it counts.
    Cache,
    /// A cache that had to be forgotten.
    Forgotten,
}

/// What is being restored.
struct Image {
    shape: Shape,
    lba: LbaIndex,
    fp: FpIndex,
    starts: Vec<Starts>,
    /// Log position at the dump.
    dumped: u64,
    /// The sequence of the first block that was opened after the dump.
    next_sequence: u64,
    /// When the volume was changed last, at a clean stop.
    modified: u64,
    marked: Marked,
    /// Whether this start forgot what is cached of marked regions.
    has_lost: bool,
}

/// What a start goes on with.
struct Old {
    log_next: u64,
    next_sequence: u64,
    checkpoint_blocks: Vec<u32>,
    /// By sequence: number, length of the footer.
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

    /// Where the contents of a block begin, by the entries of its footer; `None` where they are not numbered as they stand.
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

    /// Whether a place leads to a content that is there.
    fn has(&self, place: Place) -> bool {
        let starts = self.starts.get(place.block as usize);
        starts.is_some_and(|starts| place.number < starts.len())
    }

    /// Brings what the checkpoint had up to date; `None` where it cannot be trusted.
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
        // Places of the checkpoint in blocks that are new are of the same generation where that was opened before the end of the dump: no
        // block is reclaimed meanwhile. A later generation has other contents under the same numbers.
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
        // Of the checkpoint, in a block whose footer does not have them, or cannot be read.
        let starts = std::mem::take(&mut self.starts);
        self.drop_places(|place| {
            (starts.get(place.block as usize)).is_none_or(|starts| place.number >= starts.len())
        });
        self.starts = starts;
        let (marked, chunks) = (std::mem::take(&mut self.marked), self.shape.chunks);
        self.has_lost = !marked.is_empty();
        for bucket in 0..self.lba.buckets() {
            self.lba.retain(bucket, |slot| !marked.has(chunks, slot.address));
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
            self.lba.retain(bucket, |slot| !is_gone(slot.place));
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

    /// Blocks are written when they are full: no log has a prefix.
    fn piece<B: Buffer>(&self, _: &B, _: usize, _: u32, _: u32, _: u64) -> Option<Entry> {
        None
    }

    fn trailer(&self, _: &[Entry], _: u16) -> [u8; OWN_BYTES] {
        [0; OWN_BYTES]
    }
}

/// What the superblock has beside the shape.
struct Owned {
    chunks: u64,
    volume: u64,
    boot: u64,
}

impl Owned {
    /// Where it stands, behind the shape.
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

/// Whether a device was formatted with the settings of this start.
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
        // Else all is forgotten.
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
    /// Opens what is on a device, formats an empty one.
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
        // Nothing here expires.
        let clock = StartClock {
            now: options.now,
            accept_clock: true,
        };
        superblock.own = Owned {
            chunks,
            volume: options.volume,
            // Marks count for the next start too, where this one crashes before its checkpoint.
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

    /// Discards what is on a device: the next start forgets all of it.
    ///
    /// # Errors
    /// [`OpenError`]: it holds something else, or fails.
    pub async fn discard<D: Device<Buf = B>>(device: &D) -> Result<(), OpenError> {
        let mut superblock = match read_superblock(device, STORE) {
            Ok(Some(superblock)) => superblock,
            // Nothing is there, or nothing that a start would read.
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

    /// After a crash: a checkpoint, so that no later start depends on what this one read.
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
