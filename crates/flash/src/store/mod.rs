//! The store: blocks and their states.
//!
//! # States of a block
//!
//! ```text
//! free --open--> active --full--> sealing --written--> sealed --victim--> reclaiming --> free
//!                                    \
//!                                     `--not written--.
//! free --checkpoint--> checkpoint --superseded--> free |
//! free --borrowed--> mappings --no page wanted--> free
//! bad <--not written once more------------------------ free
//! ```
//!
//! From `sealing` on a block counts as flash: what is invalidated in it goes through the log. The state changes before
//! the block is composed, and whoever invalidates reads the state under the lock of the key's shard, which composing
//! takes too: so a copy is either struck from the footer or logged, or both, never neither.
//!
//! Lock order: index shard, then `order`, then `superblock`, then `structure`, then `open`, then a block's fill. None is held across
//! I/O that is waited for.

mod append;
mod check;
mod counts;
mod hashes;
mod health;
mod invalidated;
mod logging;
mod order;
mod prefix;
mod ranks;
mod read;
mod slices;
mod slots;
mod streams;
mod virtual_cache;
mod work;

pub use append::record_max;
pub use counts::{FlashCounts, MappingDram};
pub use health::{FlashFailure, IN_A_ROW_MAX};
pub use order::Rank;
pub use read::{ReadFault, Source};
pub use virtual_cache::VIRTUAL_KEY_BYTES;
pub use work::Work;

pub(crate) use counts::{Counters, add};
pub(crate) use invalidated::{FILTERS_MAX, Filter, Invalidated, SavedInvalidated};
pub(crate) use order::Order;
pub(crate) use ranks::{Ranks, SavedRanks};
pub use slots::slot_bits;
pub(crate) use slots::{SlotKind, Slots};
pub(crate) use virtual_cache::{SavedFill, SavedKey, VirtualCache};
pub(crate) use work::{Claim, Shared, Task, give_turn};

use crate::block::OpenBlock;
use crate::footer::entries_of;
use crate::layout::{Layout, LayoutOptions};
use crate::mapping_log::MappingLog;
use crate::queue::{QueueShape, SavedPlace};
use crate::reclaim::How;
use crate::recovery::OpenOptions;
use order::queue_shape;
use parking_lot::Mutex;
use pumice_blocks::geometry::Geometry;
use pumice_blocks::log::Log;
use pumice_blocks::superblock::Superblock;
use pumice_index::cascade::Life;
use pumice_memory::Buffer;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use streams::{Division, Tail};

/// What a reply promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// Invalidations survive the end of the process, `kill -9` included.
    #[default]
    Process,
    /// They survive a power cut too.
    Power,
    /// Nothing is logged; after a stop that was not clean the cache starts empty.
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    Free,
    Active,
    Sealing,
    Sealed,
    Reclaiming,
    Checkpoint,
    Mappings,
    Bad,
}

impl State {
    fn from_u8(value: u8) -> Self {
        match value {
            0 => State::Free,
            1 => State::Active,
            2 => State::Sealing,
            3 => State::Sealed,
            4 => State::Reclaiming,
            5 => State::Checkpoint,
            6 => State::Mappings,
            _ => State::Bad,
        }
    }
}

/// Bytes of a device for each byte of DRAM that remembers what was invalidated, with a cascade index.
pub const INVALIDATED_SHARE: u64 = 6000;
/// The same for each byte that remembers what has lost its mapping without a record.
pub const HIDDEN_SHARE: u64 = 16 * INVALIDATED_SHARE;

/// Writes of a block that fail one after the other before it is given up.
const FAILURES_MAX: u8 = 2;

/// What DRAM knows of a block.
pub(crate) struct BlockInfo {
    state: AtomicU8,
    /// Writes that failed since the last one that did not.
    failures: AtomicU8,
    /// Of an open block, bytes from its start that a start may find although there is no footer: what dies there is logged.
    prefix_end: AtomicU32,
    /// Reclaims begun in this life: more than one where one was broken off.
    pub(crate) reclaims: AtomicU8,
    pub(crate) sequence: AtomicU64,
    /// Bytes of records that are mapped.
    pub(crate) live: AtomicU64,
    /// Bytes of records that were written; 0 while the block is open.
    pub(crate) filled: AtomicU64,
    pub(crate) footer_len: AtomicU32,
    pub(crate) expiry_max: AtomicU32,
    /// Whether it is being reclaimed, and mappings to it count for nothing any more.
    pub(crate) is_leaving: AtomicBool,
    /// Whether it is of the stream of kept objects.
    pub(crate) is_kept: AtomicBool,
    /// Bytes that each of its objects counts with; 0 = its own.
    pub(crate) mean_len: AtomicU32,
    pub(crate) slots: Mutex<Slots>,
}

impl BlockInfo {
    fn new() -> Self {
        Self {
            state: AtomicU8::new(State::Free as u8),
            failures: AtomicU8::new(0),
            prefix_end: AtomicU32::new(0),
            reclaims: AtomicU8::new(0),
            sequence: AtomicU64::new(0),
            live: AtomicU64::new(0),
            filled: AtomicU64::new(0),
            footer_len: AtomicU32::new(0),
            expiry_max: AtomicU32::new(0),
            is_leaving: AtomicBool::new(false),
            is_kept: AtomicBool::new(false),
            mean_len: AtomicU32::new(0),
            slots: Mutex::new(Slots::default()),
        }
    }

    pub(crate) fn state(&self) -> State {
        State::from_u8(self.state.load(Ordering::Acquire))
    }

    /// What a mapping on flash is compared with.
    pub(crate) fn life(&self) -> Life {
        // In this order: a block begins its next life with both.
        let sequence = self.sequence.load(Ordering::Acquire);
        if self.is_leaving.load(Ordering::Acquire) && sequence != 0 {
            Life::Ending(sequence)
        } else {
            Life::Sequence(sequence)
        }
    }

    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Notes how a write of this block ended.
    pub(crate) fn note_write(&self, succeeded: bool) {
        let failures = self.failures.load(Ordering::Relaxed);
        let failures = if succeeded { 0 } else { failures.saturating_add(1) };
        self.failures.store(failures, Ordering::Relaxed);
    }
}

/// A block that is being reclaimed.
pub(crate) struct Victim {
    pub(crate) id: u32,
    pub(crate) how: How,
    /// Bytes of it that are to be moved, at most.
    pub(crate) stays: u64,
    /// The work that does it.
    pub(crate) claim: Claim,
}

pub(crate) struct Structure<B> {
    pub(crate) free: VecDeque<u32>,
    /// Sealed blocks in order of sequence, the oldest first.
    pub(crate) queue: VecDeque<u32>,
    pub(crate) to_seal: VecDeque<Arc<OpenBlock<B>>>,
    /// Active blocks whose beginnings are to be written.
    to_flush: Vec<Arc<OpenBlock<B>>>,
    /// Numbers of those of which they are being written.
    pub(crate) flushing: Vec<u32>,
    /// Blocks that are being written.
    pub(crate) sealing: usize,
    pub(crate) buffers: Vec<Arc<B>>,
    buffers_made: usize,
    pub(crate) next_sequence: u64,
    /// Pieces of work that reclaim.
    pub(crate) reclaiming: usize,
    pub(crate) victims: Vec<Victim>,
    /// Victims in a row that were chosen while no new object came in, and the objects that had come in before.
    pub(crate) victims_idle: usize,
    appended_at_victim: u64,
    /// How many of those that are being reclaimed wait for a block to move objects to.
    pub(crate) stalled: usize,
    /// Victims whose reclaim was broken off; they go before all others.
    pub(crate) ready: VecDeque<(u32, How)>,
    /// Blocks sealed when the last early reclaim was begun.
    pub(crate) early_at: Option<u64>,
    pub(crate) checkpointing: bool,
    /// How the blocks are divided between new objects and kept ones.
    division: Division,
    /// Whether pages of mappings found no block to stand on.
    pub(crate) mappings_want_block: bool,
    /// Whether a partition of mappings is being reorganised.
    pub(crate) reorganising: bool,
    pub(crate) in_flight: usize,
    /// Pieces of work so far.
    claims: u64,
    pub(crate) checkpoint_blocks: [Vec<u32>; 2],
    /// Blocks of the checkpoint before those, until the superblock that does not name it is safe.
    pub(crate) checkpoint_dropped: Vec<u32>,
    waiters: Vec<Waker>,
}

impl<B> Structure<B> {
    /// A victim is about to be chosen, when so many new objects have come in.
    pub(crate) fn note_victim(&mut self, appended: u64) {
        if std::mem::replace(&mut self.appended_at_victim, appended) == appended {
            self.victims_idle += 1;
        } else {
            self.victims_idle = 0;
        }
    }
}

/// The flash tier's store; shared by all workers. Methods that do I/O take the worker's own device handle.
pub struct FlashStore<B> {
    pub(crate) geometry: Geometry,
    pub(crate) cache_id: u64,
    unit_bytes: u64,
    durability: Durability,
    flush_interval_secs: u32,
    /// When active blocks were last looked at, in Unix seconds.
    looked_at: AtomicU32,
    buffers_max: usize,
    pub(crate) lockstep: bool,
    pub(crate) blocks: Arc<[BlockInfo]>,
    layout: LayoutOptions,
    pub(crate) slot_kind: SlotKind,
    /// Of the streams of new and of kept objects.
    tails: [Tail; 2],
    /// DRAM of the slots of sealed blocks.
    slot_bytes: AtomicU64,
    /// Whether there may be a block that goes before the lowest: one more than half dead, or one whose objects expire.
    pub(crate) has_early_victims: AtomicBool,
    /// Whether nearly all blocks have been in use since the store was last empty; see [`FlashStore::note_fill`].
    pub(crate) has_been_full: AtomicBool,
    /// Objects that counted virtually when the store was opened.
    pub(crate) raised_at_start: AtomicU64,
    pub(crate) order: Mutex<Order<B>>,
    /// Whether objects of virtual places went whose lengths nobody knew: the queue's bytes are then about those of the blocks.
    pub(crate) is_order_estimate: AtomicBool,
    pub(crate) shared: Arc<Shared<B>>,
    pub(crate) open: Mutex<Vec<Arc<OpenBlock<B>>>>,
    pub(crate) log: Log,
    /// The pages of a cascade index, where there is one.
    pub(crate) mapping_log: OnceLock<Arc<MappingLog<B>>>,
    /// What was invalidated lately, where an index asks for it.
    pub(crate) invalidated: Mutex<Invalidated>,
    /// Under which hashes a block may have a copy of which neither a mapping tells nor the log.
    pub(crate) hidden: Mutex<Invalidated>,
    pub(crate) superblock: Mutex<Superblock>,
    pub(crate) counters: Counters,
    /// Log records, and marks that make up for such, so far; and how many of them survive a power cut.
    logged: AtomicU64,
    synced: AtomicU64,
    version: AtomicU64,
    pub(crate) flush_at: AtomicU32,
    /// Blocks sealed when the last checkpoint was begun.
    pub(crate) sealed_at_checkpoint: AtomicU64,
    /// Log records wanted until the last checkpoint that failed; 0 = none since the last good one.
    pub(crate) checkpoint_failed_at: AtomicU64,
    /// Records that could not be stored were to have positions below this.
    pub(crate) log_failed_below: AtomicU64,
}

/// What a store starts from; recovery makes it.
pub(crate) struct Start {
    pub(crate) superblock: Superblock,
    pub(crate) log_next: u64,
    pub(crate) log_tail: u64,
    pub(crate) next_sequence: u64,
    pub(crate) first_version: u64,
    pub(crate) flush_at: u32,
    pub(crate) checkpoint_blocks: [Vec<u32>; 2],
    /// Sealed blocks.
    pub(crate) sealed: Vec<SealedBlock>,
    /// The queue in the order that a checkpoint has saved.
    pub(crate) places: Vec<SavedPlace>,
    pub(crate) ranks: SavedRanks,
    pub(crate) virtual_cache: Option<VirtualCache>,
}

/// What recovery knows of a sealed block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SealedBlock {
    pub(crate) id: u32,
    pub(crate) sequence: u64,
    pub(crate) footer_len: u32,
    pub(crate) expiry_max: u32,
    /// Where it stood in the queue when it was sealed, in 65,535ths; `None` where a checkpoint knows it in the same life, and with
    /// it its place.
    pub(crate) position: Option<u16>,
}

impl<B: Buffer> FlashStore<B> {
    pub(crate) fn start(start: Start, options: &OpenOptions) -> Self {
        let geometry = start.superblock.geometry;
        let blocks: Arc<[BlockInfo]> = (0..geometry.blocks).map(|_| BlockInfo::new()).collect();
        let mut sealed = start.sealed;
        sealed.sort_unstable_by_key(|block| block.sequence);
        for block in &sealed {
            let info = &blocks[block.id as usize];
            info.set_state(State::Sealed);
            info.sequence.store(block.sequence, Ordering::Relaxed);
            info.footer_len.store(block.footer_len, Ordering::Relaxed);
            info.expiry_max.store(block.expiry_max, Ordering::Relaxed);
            // At most. So what a part-full block lacks counts as dead, and such blocks, which a clean stop leaves, are emptied early.
            info.filled.store(
                geometry.block_bytes - u64::from(block.footer_len),
                Ordering::Relaxed,
            );
        }
        let kept = match options.layout.layout {
            Layout::Fifo => streams::restore_kept(&blocks, &sealed, &start.places),
            Layout::Sipq | Layout::Ripq => 0,
        };
        let slot_kind = SlotKind::of(&options.layout, options.index);
        let shape = QueueShape {
            marks: slot_kind.marks(),
            ..queue_shape(&options.layout, geometry.blocks, geometry.block_bytes)
        };
        let mut order = Order::recovered(
            &options.layout,
            shape,
            &geometry,
            &sealed,
            &start.places,
            &start.ranks,
        );
        order.virtual_cache = start.virtual_cache;
        for block in start.checkpoint_blocks.iter().flatten() {
            blocks[*block as usize].set_state(State::Checkpoint);
        }
        let free = (0..geometry.blocks)
            .filter(|b| blocks[*b as usize].state() == State::Free)
            .collect();
        let structure = Structure {
            free,
            queue: sealed.iter().map(|block| block.id).collect(),
            to_seal: VecDeque::new(),
            to_flush: Vec::new(),
            flushing: Vec::new(),
            sealing: 0,
            buffers: Vec::new(),
            buffers_made: 0,
            next_sequence: start.next_sequence,
            reclaiming: 0,
            victims: Vec::new(),
            victims_idle: 0,
            appended_at_victim: 0,
            stalled: 0,
            ready: VecDeque::new(),
            early_at: None,
            checkpointing: false,
            division: Division::of(sealed.len() - kept, kept),
            mappings_want_block: false,
            reorganising: false,
            in_flight: 0,
            claims: 0,
            checkpoint_blocks: start.checkpoint_blocks,
            checkpoint_dropped: Vec::new(),
            waiters: Vec::new(),
        };
        Self {
            geometry,
            cache_id: start.superblock.cache_id,
            unit_bytes: options.unit_bytes,
            durability: options.durability,
            flush_interval_secs: options.flush_interval_secs,
            looked_at: AtomicU32::new(options.now),
            buffers_max: options.buffers_max,
            lockstep: options.lockstep,
            blocks,
            layout: options.layout,
            slot_kind,
            tails: Default::default(),
            slot_bytes: AtomicU64::new(0),
            has_early_victims: AtomicBool::new(true),
            has_been_full: AtomicBool::new(false),
            raised_at_start: AtomicU64::new(0),
            order: Mutex::new(order),
            is_order_estimate: AtomicBool::new(false),
            shared: Arc::new(Shared::new(structure, geometry)),
            open: Mutex::new(Vec::new()),
            log: Log::new(
                start.superblock.cache_id,
                &geometry,
                start.log_tail,
                start.log_next,
            ),
            mapping_log: OnceLock::new(),
            invalidated: Mutex::new(Invalidated::of(&geometry)),
            hidden: Mutex::new(Invalidated::hidden(&geometry)),
            superblock: Mutex::new(start.superblock),
            counters: Counters::default(),
            logged: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            version: AtomicU64::new(start.first_version),
            flush_at: AtomicU32::new(start.flush_at),
            sealed_at_checkpoint: AtomicU64::new(0),
            checkpoint_failed_at: AtomicU64::new(0),
            log_failed_below: AtomicU64::new(0),
        }
    }

    /// Counts the objects of all sealed blocks as living, but those that slots know to be dead, and returns how many they are, and
    /// their bytes.
    pub(crate) fn count_all_recovered(&self, slots: BTreeMap<u32, Slots>) -> (u64, u64) {
        for (id, slots) in slots {
            self.restore_slots(id, slots);
        }
        let (mut objects, mut bytes) = (0, 0);
        for (id, info) in (0..).zip(&*self.blocks) {
            if info.state() == State::Sealed {
                let counted = self.count_slots(id);
                info.live.store(counted, Ordering::Relaxed);
                objects += entries_of(info.footer_len.load(Ordering::Relaxed));
                bytes += counted;
            }
        }
        (objects, bytes)
    }

    /// The division of the device.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// What a reply promises.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Running totals.
    pub fn counts(&self) -> FlashCounts {
        self.counters.snapshot()
    }

    /// Reads for lookups from the device so far: of records, of pages of mappings, and how many lookups read such pages.
    pub fn lookup_reads(&self) -> (u64, u64, u64) {
        let counters = &self.counters;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (
            count(&counters.record_reads),
            count(&counters.mapping_reads),
            count(&counters.mapping_rounds),
        )
    }

    /// Counts a lookup that reads pages of mappings first.
    pub fn count_mapping_round(&self) {
        add(&self.counters.mapping_rounds, 1);
    }

    /// DRAM of a cascade index beside its partitions; cheap.
    pub fn mapping_dram_bytes(&self) -> MappingDram {
        MappingDram {
            buffer_bytes: self.mapping_buffer_bytes(),
            slot_bytes: self.slot_bytes(),
            invalidated_bytes: (self.invalidated.lock().dram_bytes() + self.hidden.lock().dram_bytes())
                as u64,
        }
    }

    /// The next version; versions are given in the order of calls.
    pub fn next_version(&self) -> u64 {
        self.version.fetch_add(1, Ordering::Relaxed)
    }

    /// Gives a block back: to the free list, or, where writing it has failed again and again, to none until the next start.
    pub(crate) fn give_back(&self, structure: &mut Structure<B>, id: u32) {
        let info = &self.blocks[id as usize];
        if info.failures.load(Ordering::Relaxed) >= FAILURES_MAX {
            tracing::error!("block {id} is not used any more: {FAILURES_MAX} writes failed");
            info.set_state(State::Bad);
            add(&self.counters.bad_blocks, 1);
        } else {
            info.set_state(State::Free);
            structure.free.push_back(id);
        }
    }

    /// Blocks by use: (free, sealed, open, checkpoint). Bad ones are none of these, nor is one that is being reclaimed.
    pub fn block_usage(&self) -> (usize, usize, usize, usize) {
        let structure = self.shared.structure.lock();
        let checkpoint = structure.checkpoint_blocks.iter().map(Vec::len).sum();
        (
            structure.free.len(),
            structure.queue.len() + structure.ready.len(),
            self.open.lock().len(),
            checkpoint,
        )
    }

    /// DRAM held by block buffers, in bytes.
    pub fn buffer_bytes(&self) -> u64 {
        self.shared.structure.lock().buffers_made as u64 * self.geometry.block_bytes
    }
}
