//! The store: contents appended to blocks, and the indexes over them.
//!
//! # Parts
//!
//! Three types know nothing of each other, and [`ChunkStore`] composes them. Their locks are acquired in this order, before any of `blocks`:
//!
//! - [`Addresses`]: address to place, versions, writes under way. Changes are logged and mapped under its lock.
//! - `Appender`: the active block, and place to bytes of a block.
//! - `Fingerprints`: fingerprint to places that may have the content.
//!
//! A read acquires the first two once; a write of a new content the first and the last twice, the appender's once.
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

mod addresses;
mod appender;
mod checkpoint;
mod dirty;
mod fill;
mod fingerprints;
mod image;
mod open;
mod owner;
mod read;
mod reclaim;
mod regions;
mod seal;
mod shape;
mod starts;
mod survey;
mod work;

pub use addresses::{Addresses, Copied, Stamp, Ticket, WRITE_CHUNKS_MAX};
pub use fill::{Filled, WriteGuard};
pub use open::{Found, Options, STORE};
pub use owner::{Change, Chunks, Sealed};
pub use read::{Chunk, Unreadable};
pub use regions::Quiet;
pub use shape::Shape;
pub use survey::{Cached, DamagedChunk, Survey};

use crate::piece::REFERENCE_BYTES;
use crate::place::Place;
use appender::Appender;
use fingerprints::Fingerprints;
use owner::Base;
use pumice_blocks::{BlockCounts, BudgetLevel, DeviceFailure, State};
use pumice_device::Device;
use pumice_memory::Buffer;
use pumice_world::Offload;
use shape::Room;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

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

/// A deduplicated, compressed cache of the chunks of a volume; see the module's text. Shared by all threads; methods that do I/O take the
/// thread's own device handle.
pub struct ChunkStore<B: Buffer> {
    base: Arc<Base<B>>,
    shape: Shape,
    room: Room,
    addresses: Addresses,
    fingerprints: Fingerprints,
    appender: Appender<B>,
    budget: Option<Arc<dyn BudgetOwner>>,
    counters: Counters,
    /// Whether chunks may be dirty: the cache has their only copy, and a start does not forget it.
    keeps: bool,
    /// The next start is to know when this ran last.
    notes_life: bool,
    /// Calls between the record that chunks are clean and the bits that say so. It rises under the lock of the addresses.
    cleaning: AtomicUsize,
    /// A checkpoint waits for these calls: no other begins.
    is_beginning: AtomicBool,
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
        self.base.shared.failure()
    }

    /// The side of the addresses.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// From now on contents are computed there if that pays. Until then all is computed on the caller's thread.
    pub fn offload_to(&mut self, offload: Arc<dyn Offload>) {
        self.fingerprints.offload_to(offload);
    }

    /// Number of mappings, and of contents in the FP-index. Cost: a pass over the lengths of all buckets.
    pub fn in_use(&self) -> (u64, u64) {
        (self.addresses.lock().index.len(), self.fingerprints.lock().len())
    }

    /// Place of a chunk's content.
    pub fn place(&self, address: u64) -> Option<Place> {
        self.addresses.lock().index.get(address).map(|slot| slot.place)
    }

    /// Whether the block of a chunk's content is sealed. (After a crash the block of its reference, if it has one, must be sealed, too.)
    pub fn is_on_device(&self, address: u64) -> bool {
        let place = self.place(address);
        place.is_some_and(|place| self.base.blocks[place.block as usize].state() == State::Sealed)
    }

    /// DRAM of the LBA-index, the FP-index and the offsets of contents, in bytes.
    pub fn index_bytes(&self) -> [u64; 3] {
        [
            self.addresses.lock().index.dram_bytes(),
            self.fingerprints.lock().dram_bytes(),
            self.appender.dram_bytes(),
        ]
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
        self.base.journal.commit(device).await?;
        let mut mapped = self.addresses.lock();
        let version = mapped.next_version();
        // If the record is lost, a start still finds the mark, which costs hits only.
        self.addresses.regions.clear(quiet, |region| {
            let _ = self.base.journal.append(device, Change::Clear, region, version);
        });
        Ok(())
    }

    /// Gives the cache up, since the volume may have lost bytes that are cached: fences the device, so that the next start forgets it.
    /// Waits for background work, which the caller starts.
    ///
    /// # Errors
    /// The fence cannot be made durable: the volume must not be written.
    pub async fn give_up<D: Device>(&self, device: &D, why: &str) -> io::Result<()> {
        if self.keeps {
            // Dirty chunks stay, for the next start.
            let mut superblock = self.base.journal.superblock.lock();
            open::describe(&mut superblock, true, true);
            if !(0..2).all(|_| self.base.journal.insist_on_superblock(device, &mut superblock)) {
                tracing::error!(
                    "the cache device cannot say that its clean chunks of marked regions are void"
                );
            }
        }
        self.base.shared.take_out(why.to_owned());
        self.appender.settled().await
    }
}
