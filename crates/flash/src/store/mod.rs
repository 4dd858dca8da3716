//! The store: blocks and their states.
//!
//! Blocks are in one of the states of [`pumice_blocks::State`]; blocks of mappings are *lent*. Whoever invalidates reads the state under
//! the lock of the key's shard, which composing takes too: so a copy is either struck from the footer or logged, or both, never neither.
//!
//! Lock order: index shard, then `order`, then `superblock`, then `pool`, then `open`, then a block's fill. None is held across
//! I/O that is waited for.

mod append;
mod appended;
mod check;
mod kept;
mod logging;
mod pages;
mod read;
mod work;

pub use append::{Coming, record_max};
pub use appended::Appended;
pub use pages::MappingPages;
pub use read::{ReadFault, Source};

use crate::block::SealedBlock;
use crate::counts::{Counters, FlashCounts, MappingDram};
use crate::layout::{Layout, SavedOrder};
use crate::mapping_log::MappingLog;
use crate::objects::{Objects, Reclaims};
use crate::open_options::OpenOptions;
use crate::order::Order;
use kept::KeptCopies;
use pumice_blocks::{Blocks, Old, STEP_BYTES, Superblock};
use pumice_memory::Buffer;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The flash tier's store; shared by all workers. Methods that do I/O take the worker's own device handle.
pub struct FlashStore<B: Buffer> {
    pub(crate) base: Blocks<Objects<B>>,
    unit_bytes: u64,
    pub(crate) lockstep: bool,
    is_authoritative: bool,
    /// Where objects go, and what counts.
    pub order: Order<B>,
    /// The pages of a cascade index, where there is one.
    mapping_log: OnceLock<Arc<MappingLog<B>>>,
    pub(crate) kept: KeptCopies,
    pub(crate) counters: Arc<Counters>,
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
    /// Without the sealed blocks.
    pub(crate) old: Old,
    pub(crate) first_version: u64,
    pub(crate) flush_at: u32,
    /// Sealed blocks.
    pub(crate) sealed: Vec<SealedBlock>,
    /// The order that a checkpoint has saved.
    pub(crate) order: SavedOrder,
    /// The layout, which has what recovery told it of keys.
    pub(crate) layout: Box<dyn Layout>,
}

impl<B: Buffer> FlashStore<B> {
    pub(crate) fn start(start: Start, options: &OpenOptions) -> Self {
        let geometry = start.superblock.geometry;
        let mut sealed = start.sealed;
        sealed.sort_unstable_by_key(|block| block.sequence);
        let queue = sealed.iter().map(|block| block.id).collect();
        let base: Blocks<Objects<B>> = Blocks::new(pumice_blocks::Start {
            superblock: start.superblock,
            old: Old {
                sealed: (sealed.iter())
                    .map(|block| (block.id, block.sequence, block.footer_len))
                    .collect(),
                ..start.old
            },
            durability: options.durability,
            flush_interval_secs: options.flush_interval_secs,
            buffers_max: options.buffers_max,
            // In lockstep nothing is read meanwhile.
            step_bytes: if options.lockstep { usize::MAX } else { STEP_BYTES },
            now: options.now,
            own: Reclaims::new(queue),
        });
        for block in &sealed {
            let info = &base.blocks[block.id as usize];
            info.expiry_max.store(block.expiry_max, Ordering::Relaxed);
            info.entries.store(block.entries, Ordering::Relaxed);
            // At most. So what a part-full block lacks counts as dead, and such blocks, which a clean stop leaves, are emptied early.
            info.filled.store(
                geometry.block_bytes - u64::from(block.footer_len),
                Ordering::Relaxed,
            );
        }
        let counters = Arc::<Counters>::default();
        let order = Order::new(
            start.layout,
            options.layout,
            options.index,
            Arc::clone(&base.blocks),
            geometry,
            Arc::clone(&counters),
        );
        order.lock().layout.restore(order.ground(), &sealed, start.order);
        Self {
            base,
            unit_bytes: options.unit_bytes,
            lockstep: options.lockstep,
            is_authoritative: options.index.is_authoritative(),
            order,
            mapping_log: OnceLock::new(),
            kept: KeptCopies::default(),
            counters,
            version: AtomicU64::new(start.first_version),
            flush_at: AtomicU32::new(start.flush_at),
        }
    }

    /// Running totals of objects.
    pub fn counts(&self) -> FlashCounts {
        self.counters.snapshot()
    }

    /// DRAM of a cascade index beside its partitions, of which the history of all takes `history_bytes`; cheap.
    pub fn mapping_dram_bytes(&self, history_bytes: u64) -> MappingDram {
        MappingDram {
            buffer_bytes: self.mapping_pages().map_or(0, |pages| pages.buffer_bytes()),
            slot_bytes: self.order.slot_bytes(),
            invalidated_bytes: history_bytes,
        }
    }

    /// DRAM of a cascade index for what is on flash, slots included, in bytes; cheap.
    pub fn mapping_heap_bytes(&self) -> u64 {
        self.mapping_pages()
            .map_or(0, |pages| pages.log.charged() + self.order.slot_bytes())
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
