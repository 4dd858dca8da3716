//! A start of the store.

use super::addresses::Addresses;
use super::appender::Appender;
use super::fingerprints::Fingerprints;
use super::image::Image;
use super::owner::{Change, EPOCH_SHIFT, Sealed};
use super::reclaim::Reclaim;
use super::shape::{Owned, Room, Shape};
use super::{BudgetOwner, ChunkStore};
use pumice_blocks::inspect::{self, Inspection};
use pumice_blocks::open::{check_maker, read_superblock};
use pumice_blocks::recovery::{Recovery, StartClock};
use pumice_blocks::{
    Blocks, Durability, Geometry, Maker, Old, OpenError, STEP_BYTES, Start, StoreId, Superblock, add,
};
use pumice_device::{Device, SECTOR_BYTES};
use pumice_memory::Buffer;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// The number of this kind of store, and the version of its formats.
pub const STORE: StoreId = StoreId { kind: 2, format: 5 };
/// With dirty chunks: seconds after which what was appended is written, also without a flush.
const FLUSH_SECS: u32 = 1;

/// Options of a start.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of a chunk, a power of two from 4 to 128 KiB.
    pub chunk_bytes: u32,
    /// Chunks of the volume.
    pub chunks: u64,
    /// Identity of the volume. If it differs from that of the cache, the cache is forgotten; so too if `chunks` differs.
    pub volume: u64,
    /// Stands for the time of the volume's last change; 0 = unknown. If it differs from that at the last clean stop, the cache is forgotten. With
    /// dirty chunks the start is refused if the upper 32 bits differ, which stand for its bytes; if the lower ones alone do, it warns.
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
    /// Whether chunks may become dirty.
    pub write_back: bool,
    /// A cache in which nothing ran for so many seconds is forgotten, and refused where it has dirty chunks: the volume may have been changed
    /// meanwhile by others. `None`: it is kept.
    pub absence_secs_max: Option<u32>,
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

/// Says whether chunks may be dirty after this, once the superblock is written. With `is_distrusted` the next start goes by the marks of
/// regions, as after a power cut.
pub(super) fn describe(superblock: &mut Superblock, keeps: bool, is_distrusted: bool) {
    superblock.own[Owned::KEEPS] = keeps.into();
    if is_distrusted {
        superblock.own[Owned::BOOT..][..8].fill(0);
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

/// The shape that a superblock has, if its indexes fit its checkpoints.
pub(super) fn shape_of(superblock: &Superblock) -> Result<Shape, OpenError> {
    let geometry = superblock.geometry;
    let found = Shape::decode(&superblock.own).filter(|found| found.is_possible(&geometry));
    let found = found.ok_or(OpenError::UnknownSettings)?;
    let (chunks, mappings, contents) = (found.chunks, found.mappings, found.contents);
    let shape = Shape::new(&geometry, found.chunk_bytes, chunks, mappings, contents)?;
    match shape.checkpoint_blocks(&geometry) > geometry.blocks as usize {
        true => Err(OpenError::UnknownSettings),
        false => Ok(shape),
    }
}

/// Checks that a volume of which chunks may be dirty was neither grown nor shrunk.
fn check_size(options: &Options, superblock: &Superblock) -> Result<(), OpenError> {
    let had = Owned::decode(&superblock.own);
    if !had.keeps || had.chunks == options.chunks {
        return Ok(());
    }
    let size = |chunks: u64| match chunks.saturating_mul(options.chunk_bytes.into()) {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes => format!("{} KiB", bytes >> 10),
    };
    let why = format!(
        "the volume has {}, and had {} when this cache was used last, or it is another volume",
        size(options.chunks),
        size(had.chunks)
    );
    Err(OpenError::OnlyCopy(why.into()))
}

/// Writes a superblock to both slots, durably.
async fn write_both<D: Device>(device: &D, mut superblock: Superblock) -> Result<(), OpenError> {
    let failed = |source| OpenError::Device {
        what: "discarding the cache",
        source,
    };
    for _ in 0..2 {
        superblock.generation += 1;
        device
            .append_log(superblock.slot_offset(), &superblock.encode())
            .map_err(failed)?;
    }
    device.sync().await.map_err(failed)
}

impl<B: Buffer> ChunkStore<B> {
    /// Opens the cache on a device, or formats an empty device. The caller has flushed the volume. Cost: reads the checkpoint, the log, the
    /// trailers, and the footers of blocks sealed since the checkpoint; after a crash it writes a new checkpoint. `budget`: the owner of the
    /// write budget, if there is one.
    ///
    /// # Errors
    /// [`OpenError`]: the device holds something else, was made with other settings, or fails.
    pub async fn open<D: Device<Buf = B>>(
        device: &D,
        options: &Options,
        budget: Option<Arc<dyn BudgetOwner>>,
    ) -> Result<(Self, Found), OpenError> {
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
            check_size(options, &superblock)?;
            check(device, options, &superblock, &shape)?;
        }
        let (newest, left) = (superblock.checkpoints[0], Owned::decode(&superblock.own).budget);
        let mut recovery = Recovery::new(device, superblock);
        let mut restored = Image::new(shape, &geometry, superblock.cache_id)?;
        let absent_secs = superblock.absent_secs(0, options.now);
        let is_absent = !formatted && options.absence_secs_max.is_some_and(|most| absent_secs >= most);
        let old = match formatted {
            true => None,
            false => match restored
                .find(&mut recovery, options.volume, options.modified, options.boot)
                .await
            {
                Err(why) if restored.keeps => return Err(OpenError::OnlyCopy(why.into())),
                Ok(_) if is_absent && restored.lba.dirty() > 0 => {
                    let why = format!(
                        "nothing ran for {absent_secs} s, --max-absence or longer: the volume may have been changed meanwhile"
                    );
                    return Err(OpenError::OnlyCopy(why.into()));
                }
                found => found.ok().filter(|_| !is_absent),
            },
        };
        if is_absent {
            tracing::warn!(
                "nothing ran for {absent_secs} s, --max-absence or longer: the cache begins empty"
            );
        }
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
                Old::default()
            }
        };
        // Chunks do not expire, so no clock is checked.
        let clock = StartClock {
            now: options.now,
            accept_clock: true,
        };
        let (charged, unpaid) = match formatted || was_clean {
            true => (left, None),
            false => {
                let (charged, unpaid) = left.after_crash(newest.len, restored.log_records);
                (charged, Some(unpaid))
            }
        };
        superblock.own = Owned {
            chunks,
            volume: options.volume,
            // If this start crashes before its checkpoint, the marks must count for the next start too.
            boot: if restored.has_lost { 0 } else { options.boot },
            // Until the checkpoint of this start, what is there was left by the last. Of a new cache: see below.
            keeps: match (found, was_clean) {
                (Found::Cache, false) => restored.keeps,
                (Found::Cache, true) => options.write_back || restored.lba.dirty() > 0,
                (Found::Nothing | Found::Forgotten, _) => false,
            },
            budget: charged,
        }
        .encode(&shape);
        superblock.begin_start(0, 0, clock, formatted);
        superblock.discard = options.durability == Durability::Off;
        if let Some(budget) = &budget {
            budget.resume(left, unpaid);
        }
        let store = Self::with(options, superblock, restored, old, budget);
        add(&store.base.totals.written_bytes, recovery.bytes_written);
        let is_new = found != Found::Cache;
        store
            .base
            .record_start(device, is_new.then_some(Change::Void(0)))
            .await?;
        if is_new && store.keeps {
            // Not before its log is there: without a log the next start would be refused, although nothing is lost.
            describe(&mut store.base.journal.superblock.lock(), true, false);
            store.base.record_start(device, None).await?;
        }
        if !is_new && !was_clean {
            store.settle_start(device, options.now, options.boot).await?;
        }
        Ok((store, found))
    }

    /// Discards the cache on a device, durably: the next start forgets it. Dirty chunks go with it only if the caller `insists`.
    ///
    /// # Errors
    /// [`OpenError`]: the device holds something else, or fails.
    pub async fn discard<D: Device<Buf = B>>(device: &D, insists: bool) -> Result<(), OpenError> {
        let mut superblock = match read_superblock(device, STORE) {
            Ok(Some(superblock)) => superblock,
            // An empty device, or one that no start would read.
            Ok(None) | Err(OpenError::Damaged) => return Ok(()),
            Err(error) => return Err(error),
        };
        if Owned::decode(&superblock.own).keeps && !insists {
            return Err(OpenError::OnlyCopy("it would be discarded".into()));
        }
        (superblock.clean, superblock.discard) = (false, true);
        superblock.own[Owned::KEEPS] = 0;
        write_both(device, superblock).await
    }

    /// The volume may have lost what was written since its last flush. The next start forgets the cache; if chunks may be dirty, it forgets the
    /// clean ones of marked regions.
    ///
    /// # Errors
    /// [`OpenError`]: the device holds something else, or fails.
    pub async fn distrust<D: Device<Buf = B>>(device: &D) -> Result<(), OpenError> {
        let mut superblock = match read_superblock(device, STORE) {
            Ok(Some(superblock)) if Owned::decode(&superblock.own).keeps => superblock,
            _ => return Self::discard(device, false).await,
        };
        superblock.own[Owned::BOOT..][..8].fill(0);
        write_both(device, superblock).await
    }

    /// Inspects the cache on a device, without writing; `None` if the device is empty. DRAM: the indexes of its settings, no more bytes than the
    /// device has.
    ///
    /// # Errors
    /// [`OpenError`]: the device holds something else, its superblocks cannot be read, or its indexes would not fit its checkpoints.
    pub async fn inspect<D: Device<Buf = B>>(device: &D) -> Result<Option<Inspection>, OpenError> {
        let Some(superblock) = read_superblock(device, STORE)? else {
            return Ok(None);
        };
        let shape = shape_of(&superblock)?;
        let mut image = Image::new(shape, &superblock.geometry, superblock.cache_id)?;
        Ok(Some(inspect::inspect(device, &superblock, &mut image).await))
    }

    fn with(
        options: &Options,
        superblock: Superblock,
        restored: Image,
        old: Old,
        budget: Option<Arc<dyn BudgetOwner>>,
    ) -> Self {
        let Image {
            shape,
            lba,
            fp,
            starts,
            ..
        } = restored;
        let order = old.sealed.iter().map(|(block, ..)| *block).collect();
        let keeps = options.write_back || lba.dirty() > 0;
        let base = Arc::new(Blocks::new(Start {
            superblock,
            old,
            durability: options.durability,
            flush_interval_secs: if options.write_back { FLUSH_SECS } else { 0 },
            buffers_max: options.buffers_max,
            step_bytes: STEP_BYTES,
            now: options.now,
            own: Sealed {
                order,
                is_reclaiming: false,
                is_paused: false,
                covered: [0; 2],
            },
        }));
        let version = u64::from(superblock.epoch) << EPOCH_SHIFT;
        Self {
            room: Room::of(&shape, &base.geometry),
            addresses: Addresses::new(lba, version, shape.chunks),
            fingerprints: Fingerprints::new(fp, base.cache_id),
            appender: Appender::new(Arc::clone(&base), shape, keeps, starts),
            base,
            shape,
            keeps,
            notes_life: options.absence_secs_max.is_some(),
            budget,
            counters: Default::default(),
            cleaning: AtomicUsize::new(0),
            is_beginning: AtomicBool::new(false),
        }
    }

    /// Writes a checkpoint after a crash, so that no later start depends on the blocks and records that this start read.
    async fn settle_start<D: Device<Buf = B>>(
        &self,
        device: &D,
        now: u32,
        boot: u64,
    ) -> Result<(), OpenError> {
        loop {
            let victim = {
                let mut pool = self.base.shared.pool.lock();
                if self.keeps || pool.free.len() >= self.room.checkpoint {
                    break;
                }
                pool.own.order.pop_front()
            };
            let Some(victim) = victim else { break };
            Reclaim::new(self, device, &[victim]).run().await;
        }
        describe(&mut self.base.journal.superblock.lock(), self.keeps, false);
        let is_only = match self.checkpoint(device, now, None).await {
            Ok(()) => {
                // From here on nothing is left of what a power cut took: the marks of this run are no older than this boot.
                self.base.journal.superblock.lock().own[Owned::BOOT..][..8]
                    .copy_from_slice(&boot.to_le_bytes());
                self.base.forget_previous_checkpoint(device)
            }
            Err(error) => {
                tracing::warn!("the checkpoint of this start: {error}");
                false
            }
        };
        match is_only {
            true => Ok(()),
            false if self.keeps => Err(OpenError::OnlyCopy(
                "this start could not write a checkpoint".into(),
            )),
            false => {
                self.base.journal.mark_discard(device);
                Ok(())
            }
        }
    }
}
