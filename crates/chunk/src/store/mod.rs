//! The store: contents appended to blocks, and the indexes that lead to them.
//!
//! # What an address goes through
//!
//! ```text
//! write 1  void: out of the index, and a log record          (begin_write, under the lock)
//! write 2  the record, or the mark of its region, is durable (WriteGuard::commit)
//! write 3  the volume has the new content                    (the caller)
//! write 4  the new content enters, unless somebody else has written since 1   (WriteGuard::fill)
//! fill 1   the address' stamp is noted                       (begin_fill)
//! fill 2   the volume is read                                (the caller)
//! fill 3   the content enters, unless a write has begun or ended since 1      (fill)
//! ```
//! So a void always comes before what it makes way for, also where the index knew of no mapping: a mapping that was evicted is still in a
//! footer. Voids and mappings have *versions* that rise in the order of the lock.
//!
//! # Reclaim
//!
//! One hundredth of the blocks at once, the oldest. From the moment when they are `Reclaiming` no duplicate is mapped to them. One sweep over
//! the LBA-index then finds all addresses that lead there, and so what each content is worth. What is worth most is appended anew; all other
//! mappings are forgotten. Checkpoints and reclaims exclude each other: a place in a checkpoint is of one generation of its block.

mod checkpoint;
mod fill;
mod open;
mod read;
mod reclaim;
mod regions;
mod seal;
mod shape;
mod work;

pub use fill::{Filled, Ticket, WriteGuard};
pub use open::{Found, Options, STORE};
pub use read::Chunk;
pub use regions::Quiet;
pub use shape::Shape;

use crate::fp::FpIndex;
use crate::lba::LbaIndex;
use crate::offsets::Offsets;
use crate::piece::{Entry, UNIT_BYTES};
use crate::place::Place;
use crate::store::regions::Regions;
use parking_lot::Mutex;
use pumice_blocks::log::{Kind, OwnKind};
use pumice_blocks::{
    BlockCounts, Blocks, Claim, DeviceFailure, Logged, OpenBlock, Owner, Reserved, State, add,
};
use pumice_device::Device;
use pumice_memory::Buffer;
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Addresses share so many stamps: those of one write have one each.
const STRIPES: usize = 4096;
/// The most chunks of one write.
pub const WRITE_CHUNKS_MAX: u64 = STRIPES as u64;
/// A record voids up to `2^this` chunks.
const MAX_LEVEL: u16 = 12;

pumice_world::figures! {
    /// Running totals of a chunk store since it was opened.
    pub struct ChunkCounts;
    of
    /// The same, while they run.
    pub struct Counters: AtomicU64;
    /// Chunks that were found and read.
    Counter hits,
    /// Chunks that the index does not know.
    Counter misses,
    /// Chunks that were known and could not be read.
    Counter unreadable,
    /// Contents that were appended for a fill or a write.
    Counter stored_contents,
    /// Their length before compression, in bytes.
    Counter stored_bytes,
    /// Their length after compression, headers included, in bytes.
    Counter stored_flash_bytes,
    /// Chunks whose content was there already.
    Counter duplicates,
    /// Fills that came too late: somebody had written.
    Counter refused_late,
    /// Fills for which no block or buffer was free.
    Counter refused_no_room,
    /// Mappings that a full bucket evicted.
    Counter evicted_mappings,
    /// Contents that reclaim appended anew.
    Counter moved_contents,
    /// Their length on flash, in bytes.
    Counter moved_flash_bytes,
    /// Mappings that reclaim forgot.
    Counter reclaimed_mappings,
    /// Blocks that were reclaimed.
    Counter reclaimed_blocks,
}

/// A change of an address in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// What the `2^n` chunks from `a * 2^n` on had before version `b` is void; `n` is in the kind.
    Void(u8),
    /// From here on the volume is written in region `a`: see [`regions`].
    Mark,
    /// It was flushed since: the mark of region `a` goes.
    Clear,
}

impl OwnKind for Change {
    fn number(self) -> u16 {
        match self {
            Change::Void(level) => level.into(),
            Change::Mark => 64,
            Change::Clear => 65,
        }
    }

    fn from_number(number: u16) -> Option<Self> {
        match number {
            0..=MAX_LEVEL => Some(Change::Void(number as u8)),
            64 => Some(Change::Mark),
            65 => Some(Change::Clear),
            _ => None,
        }
    }
}

/// Blocks in the order in which they are reclaimed.
#[derive(Debug, Default)]
pub struct Sealed {
    /// The oldest first.
    order: VecDeque<u32>,
    is_reclaiming: bool,
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

/// Where the contents of a block begin, in units.
#[derive(Default)]
enum Starts {
    #[default]
    None,
    /// Of a block that is being filled.
    Growing(Vec<u32>),
    Whole(Offsets),
}

impl Starts {
    fn get(&self, number: u32) -> Option<u32> {
        match self {
            Starts::None => None,
            Starts::Growing(starts) => starts.get(number as usize).copied(),
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

/// Writes to addresses that share it.
#[derive(Clone, Copy, Default)]
struct Stripe {
    /// Changes when one begins or ends.
    stamp: u32,
    /// Writes under way.
    writers: u32,
}

/// All that leads to contents, under one lock. It comes before all locks of blocks.
struct Maps<B: Buffer> {
    lba: LbaIndex,
    fp: FpIndex,
    /// By block.
    starts: Vec<Starts>,
    active: Option<Arc<Open<B>>>,
    next_version: u64,
    stripes: Box<[Stripe]>,
    regions: Regions,
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
    maps: Mutex<Maps<B>>,
    counters: Counters,
}

/// Where a content is, and until when that holds.
struct Spot<B: Buffer> {
    place: Place,
    /// Of the block.
    sequence: u64,
    /// Where its piece begins in the block, in bytes.
    at: usize,
    /// The most bytes that the piece has.
    len_max: usize,
    /// Its block, where that is a buffer still.
    open: Option<Arc<Open<B>>>,
}

impl<B: Buffer> ChunkStore<B> {
    /// The number of this cache: whoever makes an empty one gives it another.
    pub fn cache_id(&self) -> u64 {
        self.base.cache_id
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

    /// Why the device was taken out, if it was.
    pub fn failure(&self) -> Option<DeviceFailure> {
        self.base.failure()
    }

    /// Mappings, and contents in the FP-index. Cost: a pass over the buckets of both.
    pub fn in_use(&self) -> (u64, u64) {
        let maps = self.maps.lock();
        (maps.lba.len(), maps.fp.len())
    }

    /// Where the content of a chunk is.
    pub fn place(&self, address: u64) -> Option<Place> {
        self.maps.lock().lba.get(address)
    }

    /// Whether a crash leaves what is cached of a chunk: the blocks of its content and of its mapping were sealed, as far as DRAM can tell.
    pub fn is_on_device(&self, address: u64) -> bool {
        let maps = self.maps.lock();
        let place = maps.lba.get(address);
        place.is_some_and(|place| self.base.blocks[place.block as usize].state() == State::Sealed)
    }

    /// DRAM of the indexes, in bytes: of addresses, of fingerprints, and of where contents begin.
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

    /// Regions of the volume that are marked as written, and in which no write is under way; unless `all`, only those in which none was
    /// at the last call either. When the volume was flushed after this, [`ChunkStore::clear`] them.
    pub fn quiet_regions(&self, all: bool) -> Quiet {
        self.maps.lock().regions.quiet(all)
    }

    /// The chunks that were written since the volume was flushed, and others of their regions, in ranges that one write may have.
    pub fn marked_chunks(&self) -> Vec<Range<u64>> {
        let maps = self.maps.lock();
        maps.regions.marked_chunks(self.shape.chunks, WRITE_CHUNKS_MAX)
    }

    /// The volume was flushed since these regions were quiet: after a power cut what is cached of them counts.
    ///
    /// # Errors
    /// What the device said: the marks stay.
    pub async fn clear<D: Device<Buf = B>>(&self, device: &D, quiet: &Quiet) -> io::Result<()> {
        if quiet.is_empty() || self.base.is_out() {
            return Ok(());
        }
        // The voids of writes there are durable before no mark stands for them.
        self.base.commit(device).await?;
        let mut maps = self.maps.lock();
        let version = maps.version();
        // A record that is lost leaves the mark, which costs a few hits.
        maps.regions.clear(quiet, |region| {
            let _ = self.base.append_log(device, Change::Clear, region, version);
        });
        Ok(())
    }

    /// Waits until what was voided is as durable as was asked for.
    ///
    /// # Errors
    /// Where that cannot be, nor the next start be told that all is void: then the volume must not be written.
    async fn commit<D: Device<Buf = B>>(&self, device: &D) -> io::Result<()> {
        let committed = self.base.commit(device).await;
        if !self.base.is_out() {
            return committed;
        }
        match self.base.wait_until_settled().await {
            true => Ok(()),
            false => Err(io::Error::other(
                "what the cache device has of this chunk can neither be voided nor fenced; discard the cache",
            )),
        }
    }

    /// Appends a log record. Where it cannot be stored the change is made all the same, and a crash empties the cache from here until a
    /// checkpoint covers the change; what is on a fenced device is void as it is.
    fn log<D: Device>(&self, device: &D, kind: impl Into<Kind<Change>>, a: u64, b: u64) {
        let logged = self.base.append_log(device, kind, a, b);
        self.make_good(device, logged);
    }

    fn make_good<D: Device>(&self, device: &D, logged: Logged) {
        let is_lost = matches!(logged, Logged::NoRoom | Logged::Failed);
        if is_lost && !self.base.is_out() {
            self.base.lose_record(device);
        }
    }

    fn sequence(&self, block: u32) -> u64 {
        self.base.blocks[block as usize].sequence.load(Ordering::Acquire)
    }

    /// Where a place's content is. Places that the index has are of their block's generation now.
    fn spot(&self, maps: &Maps<B>, place: Place) -> Option<Spot<B>> {
        let starts = maps.starts.get(place.block as usize)?;
        let start = starts.get(place.number)? as usize * UNIT_BYTES;
        let end = starts.get(place.number + 1);
        let block_bytes = self.base.geometry.block_bytes as usize;
        let end = end.map_or(block_bytes, |end| end as usize * UNIT_BYTES);
        Some(Spot {
            place,
            sequence: self.sequence(place.block),
            at: start,
            len_max: end.checked_sub(start)?.min(self.shape.piece_max()),
            open: self.base.find_open(place.block),
        })
    }

    /// Reserves room for a piece in the active block; where it is full, in the next. `entry` hears of the offset and of the number that a
    /// content has there. `spare` blocks stay free.
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
            maps.starts[block.id as usize] = Starts::Growing(Vec::new());
            maps.active = Some(block);
        }
        None
    }

    /// Ends the active block.
    fn close_active(&self, maps: &mut Maps<B>) {
        let Some(block) = maps.active.take() else { return };
        let starts = &mut maps.starts[block.id as usize];
        if let Starts::Growing(growing) = starts {
            *starts = Starts::Whole(Offsets::new(growing).expect("pieces stand one behind the other"));
        }
        self.base.close_block(block);
    }

    /// Blocks that stay free for reclaims and checkpoints.
    fn spare(&self) -> usize {
        self.shape.checkpoint_blocks(&self.base.geometry) + self.moved_blocks_max()
    }

    /// Blocks that are reclaimed at once.
    fn batch(&self) -> usize {
        (self.base.geometry.blocks as usize / 100).max(1)
    }

    /// Blocks that what one reclaim keeps may begin.
    fn moved_blocks_max(&self) -> usize {
        (self.batch() * 3).div_ceil(10)
    }

    /// Whether a block counts: something may be mapped to it.
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
