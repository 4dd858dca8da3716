//! The store: blocks and their states.
//!
//! Blocks are in one of the states of [`pumice_blocks::State`]; blocks of mappings are *lent*. Whoever invalidates reads the state under
//! the lock of the key's shard, which composing takes too: so a copy is either struck from the footer or logged, or both, never neither.
//!
//! Lock order: index shard, then `order`, then `superblock`, then `pool`, then `open`, then a block's fill. None is held across
//! I/O that is waited for.

mod append;
mod check;
mod counts;
mod logging;
mod order;
mod prefix;
mod read;
mod slices;
mod work;

pub use append::{Coming, record_max};
pub use counts::{FlashCounts, MappingDram};
pub use read::{ReadFault, Source};
pub(crate) use work::Task;
pub use work::Work;

pub(crate) use counts::Counters;
pub(crate) use order::Order;

use crate::block::Stream;
use crate::footer::{FooterEntry, entries_of};
use crate::layout::{Ground, Layout, LayoutOptions, NotePlace, SavedOrder, Slots, Wants, slot_bits};
use crate::log::LogKind;
use crate::mapping_log::MappingLog;
use crate::reclaim::How;
use crate::recovery::OpenOptions;
use parking_lot::Mutex;
use pumice_blocks::{BlockCounts, Blocks, Claim, Owner, State, Superblock, add};
use pumice_index::cascade::Life;
use pumice_memory::Buffer;
use std::collections::{BTreeMap, VecDeque};
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// What DRAM knows of a block of objects beside its state.
pub struct ObjectInfo {
    /// Reclaims begun in this generation: more than one where one was broken off.
    pub(crate) reclaims: AtomicU8,
    /// Bytes of records that are mapped.
    pub(crate) live: AtomicU64,
    /// Bytes of records that were written; 0 while the block is open.
    pub(crate) filled: AtomicU64,
    pub(crate) expiry_max: AtomicU32,
    /// Whether it is being reclaimed, and mappings to it count for nothing any more.
    pub(crate) is_leaving: AtomicBool,
    /// Whether it is of the stream of kept objects.
    pub(crate) is_kept: AtomicBool,
    /// Bytes that each of its objects counts with; 0 = its own.
    pub(crate) mean_len: AtomicU32,
    pub(crate) slots: Mutex<Slots>,
}

impl Default for ObjectInfo {
    fn default() -> Self {
        Self {
            reclaims: AtomicU8::new(0),
            live: AtomicU64::new(0),
            filled: AtomicU64::new(0),
            expiry_max: AtomicU32::new(0),
            is_leaving: AtomicBool::new(false),
            is_kept: AtomicBool::new(false),
            mean_len: AtomicU32::new(0),
            slots: Mutex::new(Slots::default()),
        }
    }
}

pub(crate) type BlockInfo = pumice_blocks::Block<ObjectInfo>;
pub(crate) type Pool<B> = pumice_blocks::Pool<Objects<B>>;
pub(crate) type Shared<B> = pumice_blocks::Shared<Objects<B>>;

/// What a mapping on flash is compared with.
pub(crate) fn life_of(info: &BlockInfo) -> Life {
    // In this order: a block begins its next generation with both.
    let sequence = info.sequence.load(Ordering::Acquire);
    if info.is_leaving.load(Ordering::Acquire) && sequence != 0 {
        Life::Ending(sequence)
    } else {
        Life::Sequence(sequence)
    }
}

/// A store of objects, as far as blocks know it.
pub struct Objects<B>(PhantomData<B>);

impl<B: Buffer> Owner for Objects<B> {
    type Buf = B;
    type Kind = LogKind;
    type Entry = FooterEntry;
    type Tag = Stream;
    type Info = ObjectInfo;
    type State = Reclaims;
    type Task = Task<B>;

    fn task_ended(reclaims: &mut Reclaims, task: &Task<B>) {
        match task {
            Task::Reclaim | Task::EarlyReclaim => reclaims.reclaiming -= 1,
            Task::WriteMappings(_) => {}
            Task::Reorganise(_) => reclaims.reorganising = false,
        }
    }

    fn put_back(reclaims: &mut Reclaims, claim: Claim, task: Task<B>) -> Option<Task<B>> {
        match task {
            Task::Reclaim | Task::EarlyReclaim => reclaims.give_up_victims(claim),
            // They know what to do when they are dropped.
            Task::WriteMappings(_) | Task::Reorganise(_) => return Some(task),
        }
        None
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

/// Reclaims, and what they choose from: changed in one step with the pool of blocks.
pub struct Reclaims {
    /// Sealed blocks in order of sequence, the oldest first.
    pub(crate) queue: VecDeque<u32>,
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
    /// Whether pages of mappings found no block to stand on.
    pub(crate) mappings_want_block: bool,
    /// Whether a partition of mappings is being reorganised.
    pub(crate) reorganising: bool,
}

impl Reclaims {
    fn new(queue: VecDeque<u32>) -> Self {
        Self {
            queue,
            reclaiming: 0,
            victims: Vec::new(),
            victims_idle: 0,
            appended_at_victim: 0,
            stalled: 0,
            ready: VecDeque::new(),
            early_at: None,
            mappings_want_block: false,
            reorganising: false,
        }
    }

    /// A victim is about to be chosen, when so many new objects have come in.
    pub(crate) fn note_victim(&mut self, appended: u64) {
        if std::mem::replace(&mut self.appended_at_victim, appended) == appended {
            self.victims_idle += 1;
        } else {
            self.victims_idle = 0;
        }
    }

    /// Victims whose reclaim was broken off are the next ones again, for what they were chosen for.
    fn give_up_victims(&mut self, claim: Claim) {
        let ready = &mut self.ready;
        self.victims.retain(|victim| {
            let stays = victim.claim != claim;
            if !stays {
                ready.push_front((victim.id, victim.how));
            }
            stays
        });
    }

    /// Whether there is a block to reclaim.
    pub(crate) fn has_victim(&self) -> bool {
        !self.ready.is_empty() || !self.queue.is_empty()
    }
}

/// The flash tier's store; shared by all workers. Methods that do I/O take the worker's own device handle.
pub struct FlashStore<B: Buffer> {
    pub(crate) base: Blocks<Objects<B>>,
    unit_bytes: u64,
    pub(crate) lockstep: bool,
    options: LayoutOptions,
    is_authoritative: bool,
    pub(crate) wants: Wants,
    /// Where the notes of objects are, and of how many bits a slot is.
    pub(crate) notes: NotePlace,
    pub(crate) slot_bits: u32,
    /// DRAM of the slots of sealed blocks.
    pub(crate) slot_bytes: AtomicU64,
    /// Whether there may be a block that goes before the lowest: one more than half dead, or one whose objects expire.
    pub(crate) has_early_victims: AtomicBool,
    pub(crate) order: Mutex<Order<B>>,
    /// Whether objects of virtual places went whose lengths nobody knew: the queue's bytes are then about those of the blocks.
    pub(crate) is_order_estimate: AtomicBool,
    /// The pages of a cascade index, where there is one.
    pub(crate) mapping_log: OnceLock<Arc<MappingLog<B>>>,
    pub(crate) counters: Counters,
    version: AtomicU64,
    pub(crate) flush_at: AtomicU32,
}

/// A store of objects is blocks with objects on them: what blocks can do, it can.
impl<B: Buffer> Deref for FlashStore<B> {
    type Target = Blocks<Objects<B>>;

    fn deref(&self) -> &Self::Target {
        &self.base
    }
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
    /// The order that a checkpoint has saved.
    pub(crate) order: SavedOrder,
    /// The layout, which has what recovery told it of keys.
    pub(crate) layout: Box<dyn Layout>,
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
        let mut sealed = start.sealed;
        sealed.sort_unstable_by_key(|block| block.sequence);
        let queue = sealed.iter().map(|block| block.id).collect();
        let base: Blocks<Objects<B>> = Blocks::new(pumice_blocks::Start {
            superblock: start.superblock,
            log_next: start.log_next,
            log_tail: start.log_tail,
            next_sequence: start.next_sequence,
            checkpoint_blocks: start.checkpoint_blocks,
            sealed: (sealed.iter())
                .map(|block| (block.id, block.sequence, block.footer_len))
                .collect(),
            durability: options.durability,
            flush_interval_secs: options.flush_interval_secs,
            buffers_max: options.buffers_max,
            now: options.now,
            own: Reclaims::new(queue),
        });
        for block in &sealed {
            let info = &base.blocks[block.id as usize];
            info.expiry_max.store(block.expiry_max, Ordering::Relaxed);
            // At most. So what a part-full block lacks counts as dead, and such blocks, which a clean stop leaves, are emptied early.
            info.filled.store(
                geometry.block_bytes - u64::from(block.footer_len),
                Ordering::Relaxed,
            );
        }
        let notes = NotePlace::of(options.layout.layout, options.index);
        let ground = Ground {
            blocks: &base.blocks,
            geometry: &geometry,
            notes,
        };
        let mut layout = start.layout;
        layout.restore(ground, &sealed, start.order);
        Self {
            base,
            unit_bytes: options.unit_bytes,
            lockstep: options.lockstep,
            options: options.layout,
            is_authoritative: options.index.is_authoritative(),
            wants: layout.wants(),
            notes,
            slot_bits: slot_bits(&options.layout, options.index),
            slot_bytes: AtomicU64::new(0),
            has_early_victims: AtomicBool::new(true),
            order: Mutex::new(Order::new(layout)),
            is_order_estimate: AtomicBool::new(false),
            mapping_log: OnceLock::new(),
            counters: Counters::default(),
            version: AtomicU64::new(start.first_version),
            flush_at: AtomicU32::new(start.flush_at),
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
                let filled = info.filled.load(Ordering::Relaxed);
                let mut order = self.order.lock();
                let mut slots = info.slots.lock();
                let counted = order.layout.found_block(self.ground(), id, &mut slots, filled);
                info.live.store(counted, Ordering::Relaxed);
                objects += entries_of(info.footer_len.load(Ordering::Relaxed));
                bytes += counted;
            }
        }
        (objects, bytes)
    }

    /// Running totals of objects.
    pub fn counts(&self) -> FlashCounts {
        self.counters.snapshot()
    }

    /// Running totals of blocks.
    pub fn block_counts(&self) -> BlockCounts {
        self.totals.snapshot()
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

    /// DRAM of a cascade index beside its partitions, of which the history of all takes `history_bytes`; cheap.
    pub fn mapping_dram_bytes(&self, history_bytes: u64) -> MappingDram {
        MappingDram {
            buffer_bytes: self.mapping_buffer_bytes(),
            slot_bytes: self.slot_bytes(),
            invalidated_bytes: history_bytes,
        }
    }

    /// Whether the index knows every death ([`pumice_index::IndexKind::is_authoritative`]): what counts as live in a block is then
    /// exact, its footer names nothing that was dead, and a death needs a record only once its copy is on flash.
    pub fn is_authoritative(&self) -> bool {
        self.is_authoritative
    }

    /// The next version; versions are given in the order of calls.
    pub fn next_version(&self) -> u64 {
        self.version.fetch_add(1, Ordering::Relaxed)
    }

    /// Blocks by use: (free, sealed, open, checkpoint). Bad ones are none of these, nor is one that is being reclaimed.
    pub fn block_usage(&self) -> (usize, usize, usize, usize) {
        let pool = self.shared.pool.lock();
        let checkpoint = pool.checkpoint_blocks.iter().map(Vec::len).sum();
        (
            pool.free.len(),
            pool.own.queue.len() + pool.own.ready.len(),
            self.open.lock().len(),
            checkpoint,
        )
    }
}
