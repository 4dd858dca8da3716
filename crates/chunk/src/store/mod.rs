//! The store: contents appended to blocks, and the indexes over them.
//!
//! # Writes and fills
//!
//! ```text
//! write 1  void: remove the mapping, append a log record                 (begin_write, under the lock)
//! write 2  wait until the record, or the mark of its region, is durable  (WriteGuard::commit)
//! write 3  write the volume                                              (the caller)
//! write 4  map the new content, unless another write came since 1        (WriteGuard::fill)
//!
//! fill 1   note the stamp of the address                                 (begin_fill)
//! fill 2   read the volume                                               (the caller)
//! fill 3   map the content, unless a write has begun or ended since 1    (fill)
//! ```
//! A void is logged before the volume is written, even if the index has no mapping: an evicted mapping is still in a footer, which a start
//! reads. Voids and mappings have *versions* that rise in the order in which they take the lock.
//!
//! # Reclaim
//!
//! A reclaim takes the oldest hundredth of the blocks. Once their state is `Reclaiming`, no duplicate is mapped to them. A sweep over the
//! LBA-index gives the worth of each of their contents; those of the most worth are appended anew, up to 29 % of the bytes, while the write
//! budget lets it ([`BudgetOwner`]). A second sweep appends a reference for each mapping to one of these; a third removes all other mappings. Other
//! tasks run between the steps. Checkpoints and reclaims exclude each other, so that a place in a checkpoint is of one generation of its block.

mod checkpoint;
mod compute;
mod dirty;
mod fill;
mod image;
mod open;
mod read;
mod reclaim;
mod regions;
mod seal;
mod shape;
mod survey;
mod work;

pub use dirty::Copied;
pub use fill::{Filled, Ticket, WriteGuard};
pub use open::{Found, Options, STORE};
pub use read::{Chunk, Unreadable};
pub use regions::Quiet;
pub use shape::Shape;
pub use survey::{Cached, DamagedChunk, Survey};

use crate::fp::FpIndex;
use crate::lba::{LbaIndex, Slot};
use crate::offsets::Offsets;
use crate::piece::{Entry, REFERENCE_BYTES, UNIT_BYTES};
use crate::place::Place;
use crate::store::regions::Regions;
use parking_lot::Mutex;
use pumice_blocks::log::{Kind, OwnKind};
use pumice_blocks::{
    BlockCounts, Blocks, BudgetLevel, Claim, DeviceFailure, Geometry, Logged, OpenBlock, Owner, Reserved,
    State, add,
};
use pumice_device::Device;
use pumice_memory::Buffer;
use pumice_world::Offload;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Number of stamps that addresses share. The addresses of one write have different ones.
const STRIPES: usize = 4096;
/// Most chunks of one write.
pub const WRITE_CHUNKS_MAX: u64 = STRIPES as u64;
/// One log record voids at most `2^MAX_LEVEL` chunks.
const MAX_LEVEL: u16 = 12;
/// Number of the log records that make `2^0` chunks clean.
const CLEAN: u16 = 128;

pumice_world::figures! {
    /// Running totals of a chunk store since it was opened.
    pub struct ChunkCounts;
    of
    /// The same, while they run.
    pub struct Counters: AtomicU64;
    /// Chunks that were found and read.
    Counter hits,
    /// Chunks that were not in the index.
    Counter misses,
    /// Chunks in the index that could not be read.
    Counter unreadable,
    /// Contents stored for fills and writes.
    Counter stored_contents,
    /// Of these, contents that took the room of their chunk's older content in a block buffer, before that was written to flash.
    Counter absorbed_contents,
    /// Bytes of stored contents before compression.
    Counter stored_bytes,
    /// Bytes of stored contents after compression, with headers.
    Counter stored_flash_bytes,
    /// Chunks of fills and writes whose content was cached already.
    Counter duplicates,
    /// Contents not cached because their chunk was written meanwhile.
    Counter refused_late,
    /// Contents not cached because no block or buffer was free.
    Counter refused_no_room,
    /// Mappings that a full bucket evicted.
    Counter evicted_mappings,
    /// Contents that reclaims kept, and appended anew.
    Counter moved_contents,
    /// Bytes on flash of contents that reclaims kept.
    Counter moved_flash_bytes,
    /// Mappings that reclaims dropped.
    Counter reclaimed_mappings,
    /// Blocks that were reclaimed.
    Counter reclaimed_blocks,
}

/// A change of an address in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Mappings of the `2^n` chunks from `a * 2^n` on with versions below `b` are void. `n` is in the kind.
    Void(u8),
    /// Region `a` is marked, since the volume is about to be written there: see [`regions`].
    Mark,
    /// The mark of region `a` is cleared, since the volume was flushed.
    Clear,
    /// Mappings of the `2^n` chunks from `a * 2^n` on with versions below `b` are clean: the volume has their contents, durably.
    Clean(u8),
    /// Block `a` of generation `b` is durable as a whole.
    Written,
}

impl OwnKind for Change {
    fn number(self) -> u16 {
        match self {
            Change::Void(level) => level.into(),
            Change::Mark => 64,
            Change::Clear => 65,
            Change::Written => 66,
            Change::Clean(level) => CLEAN + u16::from(level),
        }
    }

    fn from_number(number: u16) -> Option<Self> {
        match number {
            0..=MAX_LEVEL => Some(Change::Void(number as u8)),
            64 => Some(Change::Mark),
            65 => Some(Change::Clear),
            66 => Some(Change::Written),
            CLEAN.. if number - CLEAN <= MAX_LEVEL => Some(Change::Clean((number - CLEAN) as u8)),
            _ => None,
        }
    }
}

/// Sealed blocks, in the order in which they are reclaimed.
#[derive(Debug, Default)]
pub struct Sealed {
    /// The oldest first.
    order: VecDeque<u32>,
    is_reclaiming: bool,
    /// A reclaim has failed, because chunks of its victims are dirty: none begins before the next second.
    is_paused: bool,
    /// Blocks with lower sequences were sealed when the older, and the newer, of two checkpoints began.
    covered: [u64; 2],
}

/// The types of this store. Its own work is a reclaim of some blocks.
pub struct Chunks<B>(PhantomData<B>);

impl<B: Buffer> Owner for Chunks<B> {
    type Buf = B;
    type Kind = Change;
    type Entry = Entry;
    type Tag = ();
    type Info = ();
    type State = Sealed;
    type Task = Vec<u32>;

    fn task_ended(state: &mut Sealed, _: &Vec<u32>) {
        state.is_reclaiming = false;
    }

    fn put_back(state: &mut Sealed, _: Claim, victims: Vec<u32>) -> Option<Vec<u32>> {
        victims
            .into_iter()
            .rev()
            .for_each(|victim| state.order.push_front(victim));
        None
    }
}

type Open<B> = OpenBlock<Chunks<B>>;

/// Offsets of a block's contents, in units of [`UNIT_BYTES`].
#[derive(Default)]
enum Starts {
    #[default]
    None,
    /// Offsets in a block that is being filled. The top bit marks a content that several chunks may share, so that no write may replace it.
    Growing(Vec<u32>),
    Whole(Offsets),
}

/// The bit of an offset in [`Starts::Growing`] that marks a shared content. A block has fewer units than this, so no offset needs the bit.
const SHARED: u32 = 1 << 31;

impl Starts {
    /// From now on other chunks may be mapped to a content, if the block is still being filled.
    fn share(&mut self, number: u32) {
        if let Starts::Growing(starts) = self {
            starts[number as usize] |= SHARED;
        }
    }

    /// Whether only the chunk that a content was appended for may be mapped to it, and the block is still being filled.
    fn is_unshared(&self, number: u32) -> bool {
        matches!(self, Starts::Growing(starts) if starts[number as usize] & SHARED == 0)
    }

    /// DRAM that those of all blocks of a device take at most, in bytes, where a block has up to `numbers` contents. One block at a time
    /// is being filled.
    fn dram_bytes_max(geometry: &Geometry, numbers: u32) -> u64 {
        let units = geometry.block_bytes / UNIT_BYTES as u64;
        let whole = Offsets::heap_bytes_max(numbers.into(), units);
        // A vector that grows may have twice the room that it needs.
        let growing = u64::from(numbers) * 2 * size_of::<u32>() as u64;
        u64::from(geometry.blocks) * (size_of::<Self>() as u64 + whole) + growing
    }

    fn get(&self, number: u32) -> Option<u32> {
        match self {
            Starts::None => None,
            Starts::Growing(starts) => starts.get(number as usize).map(|start| start & !SHARED),
            Starts::Whole(offsets) => offsets.get(number),
        }
    }

    fn len(&self) -> u32 {
        match self {
            Starts::None => 0,
            Starts::Growing(starts) => starts.len() as u32,
            Starts::Whole(offsets) => offsets.len(),
        }
    }
}

/// The owner of a write budget. `sent` is [`ChunkStore::sent_bytes`].
pub trait BudgetOwner: Send + Sync {
    /// Resumes the budget with `left`, the level in the superblock. `unpaid`: `None` after a clean stop; after a crash, the most bytes that may
    /// have been sent since that level was stored without asking the budget. Called once, before any other method.
    fn resume(&self, left: BudgetLevel, unpaid: Option<u64>);

    /// What is left now, for the next run.
    fn left(&self, sent: u64) -> BudgetLevel;

    /// Whether a reclaim may keep more contents. Chunks that are dirty are never dropped.
    fn may_keep(&self, sent: u64) -> bool;
}

/// State of the writes to all addresses that share a stamp.
#[derive(Clone, Copy, Default)]
struct Stripe {
    /// Changes when a write begins or ends.
    stamp: u32,
    /// Writes under way.
    writers: u32,
}

/// The indexes and all that changes with them, under one lock. Acquire it before any lock of `blocks`.
struct Maps<B: Buffer> {
    lba: LbaIndex,
    fp: FpIndex,
    /// By block.
    starts: Vec<Starts>,
    active: Option<Arc<Open<B>>>,
    next_version: u64,
    stripes: Box<[Stripe]>,
    regions: Regions,
    /// Dirty chunks that were read to be cleaned and not written since: the number of the last read.
    copies: HashMap<u64, u64>,
}

impl<B: Buffer> Maps<B> {
    fn version(&mut self) -> u64 {
        self.next_version += 1;
        self.next_version
    }
}

/// A deduplicated, compressed cache of the chunks of a volume; see the module's text. Shared by all threads; methods that do I/O take the
/// thread's own device handle.
pub struct ChunkStore<B: Buffer> {
    base: Blocks<Chunks<B>>,
    shape: Shape,
    /// Shared with computations on other threads.
    maps: Arc<Mutex<Maps<B>>>,
    offload: Option<Arc<dyn Offload>>,
    budget: Option<Arc<dyn BudgetOwner>>,
    /// Contents that are computed, or are about to be.
    computing: AtomicUsize,
    counters: Counters,
    /// Whether chunks may be dirty: the cache has their only copy, and a start does not forget it.
    keeps: bool,
    /// The next start is to know when this ran last.
    notes_life: bool,
    /// Calls between the record that chunks are clean and the bits that say so. It rises under the lock of the maps.
    cleaning: AtomicUsize,
    /// A checkpoint waits for these calls: no other begins.
    is_beginning: AtomicBool,
}

/// A place resolved to bytes of its block. Valid while the block has this sequence.
struct Spot<B: Buffer> {
    place: Place,
    /// Whether the mapping that led here is dirty.
    is_dirty: bool,
    /// Sequence of the block.
    sequence: u64,
    /// Offset of the piece in the block, in bytes.
    at: usize,
    /// Upper bound of the piece's length, in bytes.
    len_max: usize,
    /// The block, while it is in DRAM.
    open: Option<Arc<Open<B>>>,
}

impl<B: Buffer> ChunkStore<B> {
    /// The id of this cache. An empty cache gets a new one.
    pub fn cache_id(&self) -> u64 {
        self.base.cache_id
    }

    /// Bytes of its blocks.
    pub fn bytes(&self) -> u64 {
        u64::from(self.base.geometry.blocks) * self.base.geometry.block_bytes
    }

    /// Its settings.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Running totals.
    pub fn counts(&self) -> ChunkCounts {
        self.counters.snapshot()
    }

    /// Running totals of its blocks.
    pub fn block_counts(&self) -> BlockCounts {
        self.base.totals.snapshot()
    }

    /// Bytes sent to the device since it was opened, log and superblocks included, and bytes in block buffers that are not sent yet.
    pub fn sent_bytes(&self) -> u64 {
        self.base.sent_bytes()
    }

    /// Mean bytes on flash of what has entered since the start, duplicates included; before anything has, of a chunk as it is.
    pub fn mean_entry_bytes(&self) -> u64 {
        let counters = &self.counters;
        let [bytes, stored, duplicates] = [
            &counters.stored_flash_bytes,
            &counters.stored_contents,
            &counters.duplicates,
        ]
        .map(|counter| counter.load(Ordering::Relaxed));
        let mean = (bytes + duplicates * REFERENCE_BYTES as u64).checked_div(stored + duplicates);
        mean.unwrap_or(self.shape.piece_max() as u64)
    }

    /// Whether a reclaim may keep a content now.
    pub fn may_keep(&self) -> bool {
        let budget = self.budget.as_ref();
        budget.is_none_or(|budget| budget.may_keep(self.sent_bytes()))
    }

    /// Why the device was fenced; `None` while it is in use.
    pub fn failure(&self) -> Option<DeviceFailure> {
        self.base.failure()
    }

    /// Number of mappings, and of contents in the FP-index. Cost: a pass over the lengths of all buckets.
    pub fn in_use(&self) -> (u64, u64) {
        let maps = self.maps.lock();
        (maps.lba.len(), maps.fp.len())
    }

    /// Place of a chunk's content.
    pub fn place(&self, address: u64) -> Option<Place> {
        self.maps.lock().lba.get(address).map(|slot| slot.place)
    }

    /// Whether the block of a chunk's content is sealed. (After a crash the block of its reference, if it has one, must be sealed, too.)
    pub fn is_on_device(&self, address: u64) -> bool {
        let place = self.place(address);
        place.is_some_and(|place| self.base.blocks[place.block as usize].state() == State::Sealed)
    }

    /// DRAM of the LBA-index, the FP-index and the offsets of contents, in bytes.
    pub fn index_bytes(&self) -> [u64; 3] {
        let maps = self.maps.lock();
        let starts = maps.starts.iter().map(|starts| match starts {
            Starts::None => 0,
            Starts::Growing(starts) => (starts.capacity() * size_of::<u32>()) as u64,
            Starts::Whole(offsets) => offsets.heap_bytes(),
        });
        let starts = starts.sum::<u64>() + (maps.starts.capacity() * size_of::<Starts>()) as u64;
        [maps.lba.dram_bytes(), maps.fp.dram_bytes(), starts]
    }

    /// Marked regions without a write under way; unless `all`, only those without a write since the previous call. Flush the volume, then
    /// pass them to [`ChunkStore::clear`].
    pub fn quiet_regions(&self, all: bool) -> Quiet {
        self.maps.lock().regions.quiet(all)
    }

    /// The volume was flushed since these regions were quiet: after a power cut what is cached of them counts.
    ///
    /// # Errors
    /// What the device said: the marks stay.
    pub async fn clear<D: Device<Buf = B>>(&self, device: &D, quiet: &Quiet) -> io::Result<()> {
        if quiet.is_empty() || self.base.is_out() {
            return Ok(());
        }
        // The voids in these regions must be durable before the marks go, which stand for them.
        self.base.commit(device).await?;
        let mut maps = self.maps.lock();
        let version = maps.version();
        // If the record is lost, a start still finds the mark, which costs hits only.
        maps.regions.clear(quiet, |region| {
            let _ = self.base.append_log(device, Change::Clear, region, version);
        });
        Ok(())
    }

    /// Waits until logged voids are as durable as [`Options::durability`] asks.
    ///
    /// # Errors
    /// Neither the voids nor a fence of the device can be made durable: the volume must not be written.
    async fn commit<D: Device<Buf = B>>(&self, device: &D) -> io::Result<()> {
        let committed = self.base.commit(device).await;
        match self.base.is_out() {
            true => self.settled().await,
            false => committed,
        }
    }

    /// Gives the cache up, since the volume may have lost bytes that are cached: fences the device, so that the next start forgets it.
    /// Waits for background work, which the caller starts.
    ///
    /// # Errors
    /// The fence cannot be made durable: the volume must not be written.
    pub async fn give_up<D: Device>(&self, device: &D, why: &str) -> io::Result<()> {
        if self.keeps {
            // Dirty chunks stay, for the next start.
            self.describe(true, true);
            let mut superblock = self.base.superblock.lock();
            if !(0..2).all(|_| self.base.insist_on_superblock(device, &mut superblock)) {
                tracing::error!(
                    "the cache device cannot say that its clean chunks of marked regions are void"
                );
            }
        }
        self.base.shared.take_out(why.to_owned());
        self.settled().await
    }

    async fn settled(&self) -> io::Result<()> {
        match self.base.wait_until_settled().await {
            true => Ok(()),
            false if self.keeps => Err(io::Error::other(
                "it has failed, and has the only copy of chunks: start again, which finds what is durable there",
            )),
            false => Err(io::Error::other(
                "what the cache device has of this chunk can neither be voided nor fenced; start in pass-through, which discards the cache",
            )),
        }
    }

    /// Appends a log record; false if it is lost and the change must not be made. In a cache of clean chunks a lost record sets `discard`
    /// in the superblock: a crash then empties the cache, until a checkpoint covers the change. On a fenced device nothing needs a record.
    #[must_use = "a change whose record is lost must not be made"]
    fn log<D: Device>(&self, device: &D, kind: impl Into<Kind<Change>>, a: u64, b: u64) -> bool {
        let logged = self.base.append_log(device, kind, a, b);
        self.make_good(device, logged)
    }

    fn make_good<D: Device>(&self, device: &D, logged: Logged) -> bool {
        let is_lost = matches!(logged, Logged::NoRoom | Logged::Failed) && !self.base.is_out();
        if is_lost && !self.keeps {
            self.base.lose_record(device);
        }
        !(is_lost && self.keeps)
    }

    fn sequence(&self, block: u32) -> u64 {
        self.base.blocks[block as usize].sequence.load(Ordering::Acquire)
    }

    /// Resolves a mapping from the index, whose place is always of its block's current generation.
    fn spot_of(&self, maps: &Maps<B>, slot: Slot) -> Option<Spot<B>> {
        let spot = self.spot(maps, slot.place)?;
        let is_dirty = slot.is_dirty;
        Some(Spot { is_dirty, ..spot })
    }

    fn spot(&self, maps: &Maps<B>, place: Place) -> Option<Spot<B>> {
        let starts = maps.starts.get(place.block as usize)?;
        let start = starts.get(place.number)? as usize * UNIT_BYTES;
        let end = starts.get(place.number + 1);
        let block_bytes = self.base.geometry.block_bytes as usize;
        let end = end.map_or(block_bytes, |end| end as usize * UNIT_BYTES);
        Some(Spot {
            place,
            is_dirty: false,
            sequence: self.sequence(place.block),
            at: start,
            len_max: end.checked_sub(start)?.min(self.shape.piece_max()),
            open: self.base.find_open(place.block),
        })
    }

    /// Reserves room for a piece in the active block; if it is full, in a new one. `entry` is called with the piece's offset and the number
    /// of the next content. `None` if no buffer is free, or a new block would leave fewer than `spare` free.
    fn reserve(
        &self,
        maps: &mut Maps<B>,
        len: usize,
        spare: usize,
        entry: impl Fn(u32, u32) -> Entry,
    ) -> Option<Reserved<Chunks<B>>> {
        for _ in 0..2 {
            if let Some(block) = &maps.active {
                let number = maps.starts[block.id as usize].len();
                let reserved = (number < self.shape.numbers)
                    .then(|| block.reserve(len, |offset, _| entry(offset, number)))
                    .flatten();
                if reserved.is_some() {
                    return reserved;
                }
            }
            self.close_active(maps);
            let mut pool = self.base.shared.pool.lock();
            if pool.free.len() <= spare {
                self.base.shared.has_work.store(true, Ordering::Release);
                return None;
            }
            let block = self.base.open_block(&mut pool, (), |_| {})?;
            if self.keeps {
                self.base.hold_log(&block);
            }
            maps.starts[block.id as usize] = Starts::Growing(Vec::new());
            maps.active = Some(block);
        }
        None
    }

    /// Closes the active block, which is then written.
    fn close_active(&self, maps: &mut Maps<B>) {
        let Some(block) = maps.active.take() else { return };
        let starts = &mut maps.starts[block.id as usize];
        if let Starts::Growing(growing) = starts {
            growing.iter_mut().for_each(|start| *start &= !SHARED);
            *starts = Starts::Whole(Offsets::new(growing).expect("pieces stand one behind the other"));
        }
        self.base.close_block(block);
    }

    /// Blocks that fills leave free for reclaims and checkpoints.
    fn spare(&self) -> usize {
        self.shape.checkpoint_blocks(&self.base.geometry) + self.moved_blocks_max()
    }

    /// Blocks of one reclaim.
    fn batch(&self) -> usize {
        (self.base.geometry.blocks as usize / 100).max(1)
    }

    /// Most blocks that one reclaim opens: for the contents that it keeps, and after them for their references.
    fn moved_blocks_max(&self) -> usize {
        let percent = reclaim::KEPT_PERCENT as usize + reclaim::REFERENCES_PERCENT;
        (self.batch() * percent).div_ceil(100)
    }

    /// Whether a chunk may be mapped to a block: it has this sequence, and is not being reclaimed.
    fn counts_as_source(&self, block: u32, sequence: u64) -> bool {
        let is_there = matches!(
            self.base.blocks[block as usize].state(),
            State::Active | State::Sealing | State::Sealed
        );
        is_there && self.sequence(block) == sequence
    }

    fn count(&self, counter: &AtomicU64) {
        add(counter, 1);
    }
}
