//! The blocks that are being filled, and the layout, behind one lock.

use super::FlashStore;
use super::slices::LastSlice;
use crate::Mappings;
use crate::block::OpenBlock;
use crate::checkpoint::KEYS_BATCH;
use crate::layout::{Arrival, Ground, Hits, Layout, LayoutOptions, Rank};
use crate::reclaim::ENTRIES_PER_TURN;
use parking_lot::MutexGuard;
use pumice_blocks::give_turn;
use pumice_index::{Known, Mapping};
use pumice_memory::Buffer;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A store of which no more than one block in so many is free counts as full: when objects are raised and overwritten, some 6 % of what
/// blocks hold is dead, and the queue will not be longer than it is then.
const FULL_SHARE: usize = 16;

/// The open blocks, and where objects go in them.
pub(crate) struct Order<B: Buffer> {
    pub(crate) open: Vec<Arc<OpenBlock<B>>>,
    pub(crate) layout: Box<dyn Layout>,
    /// Where the last slice of a large object went.
    pub(crate) last_slice: Option<LastSlice>,
}

impl<B: Buffer> Order<B> {
    pub(super) fn new(layout: Box<dyn Layout>) -> Self {
        Self {
            open: Vec::new(),
            layout,
            last_slice: None,
        }
    }

    /// The open block of an insertion point.
    pub(super) fn at(&self, point: usize) -> Option<&Arc<OpenBlock<B>>> {
        let id = self.layout.open_block(point)?;
        self.open.iter().find(|block| block.id == id)
    }

    /// An open block with room, of the insertion point nearest to `point`.
    pub(super) fn nearest_with_room(&self, point: usize, len: usize) -> Option<&Arc<OpenBlock<B>>> {
        let mut points: Vec<usize> = (0..self.layout.points()).collect();
        points.sort_by_key(|other| other.abs_diff(point));
        let mut blocks = points.into_iter().filter_map(|point| self.at(point));
        blocks.find(|block| block.fits(len))
    }

    /// Takes a block out of those that are filled.
    pub(super) fn close(&mut self, id: u32) -> Option<Arc<OpenBlock<B>>> {
        let at = self.open.iter().position(|block| block.id == id)?;
        Some(self.open.swap_remove(at))
    }
}

/// The order, locked to be changed. When this is dropped the layout is in balance again: insertion points may be others then.
pub(crate) struct OrderGuard<'a, B: Buffer>(MutexGuard<'a, Order<B>>);

impl<B: Buffer> Deref for OrderGuard<'_, B> {
    type Target = Order<B>;

    fn deref(&self) -> &Order<B> {
        &self.0
    }
}

impl<B: Buffer> DerefMut for OrderGuard<'_, B> {
    fn deref_mut(&mut self) -> &mut Order<B> {
        &mut self.0
    }
}

impl<B: Buffer> OrderGuard<'_, B> {
    /// Brings the layout in balance: insertion points may be others after this.
    pub(super) fn rebalance(&mut self) {
        self.0.layout.rebalance();
    }
}

impl<B: Buffer> Drop for OrderGuard<'_, B> {
    fn drop(&mut self) {
        // Not while a panic unwinds: the checks in it would end the process, and hide the first.
        if !std::thread::panicking() {
            self.rebalance();
        }
    }
}

impl<B: Buffer> FlashStore<B> {
    /// Locks the order to change it.
    pub(crate) fn order(&self) -> OrderGuard<'_, B> {
        OrderGuard(self.order.lock())
    }

    /// What the layout sees of the blocks.
    pub(crate) fn ground(&self) -> Ground<'_> {
        Ground {
            blocks: &self.blocks,
            geometry: &self.geometry,
            notes: self.notes,
        }
    }

    /// How the layout was set up.
    pub fn layout(&self) -> &LayoutOptions {
        &self.options
    }

    /// Bytes of DRAM of the layout's own tables.
    pub fn order_bytes(&self) -> u64 {
        self.order.lock().layout.dram_bytes()
    }

    /// Where the object of a mapping stands in the order, in [0, 1]; `None` under a layout without one. Called under its shard's
    /// lock.
    pub fn position(&self, mapping: Mapping) -> Option<f64> {
        self.order.lock().layout.position(self.ground(), mapping)
    }

    /// The hashes in the queue of keys of layout `sipq`, from the lowest.
    pub fn virtual_keys(&self) -> Vec<u64> {
        let order = self.order.lock();
        let keys = order.layout.keys().into_iter().flat_map(|keys| keys.save());
        keys.map(|key| key.hash).collect()
    }

    /// Where an object of so many bytes is to go, all its slices together, or a part of it. Called under its shard's lock, before one
    /// that it replaces is invalidated.
    pub fn rank(&self, arrival: Arrival, object_bytes: u64) -> Rank {
        if !self.wants.ranks {
            return Rank::TOP;
        }
        self.order
            .lock()
            .layout
            .rank(self.ground(), arrival, object_bytes)
    }

    /// Whether few blocks are free, so that the queue will not be longer than it is.
    pub(super) fn is_full(&self) -> bool {
        let free = self.shared.pool.lock().free.len();
        free <= (self.blocks.len() / FULL_SHARE).max(self.blocks_kept_free() + 1)
    }

    /// A mapped object was used: the note that its mapping is to have from now on. Called under its shard's lock.
    pub fn hit(&self, hash: u64, mapping: Mapping, object_bytes: u64) -> u32 {
        let ground = self.ground();
        let wanted = match self.wants.hits {
            Hits::None => false,
            Hits::First => ground.note(mapping) == Some(0),
            Hits::Every => true,
        };
        if !wanted {
            return mapping.note;
        }
        let (note, raised) = self.order().layout.hit(ground, hash, mapping, object_bytes);
        self.counters
            .raises
            .fetch_add(u64::from(raised), Ordering::Relaxed);
        note
    }

    /// Whether the layout wants to know of hits.
    pub fn ranks_hits(&self) -> bool {
        self.wants.hits != Hits::None
    }

    /// What is kept of a key beside mappings goes: whatever was mapped under it is void.
    pub(crate) fn forget_key(&self, hash: u64) {
        if self.wants.ranks {
            self.order().layout.forget_key(hash);
        }
    }

    /// A mapping was removed: its object counts no more. Without `hash` it lives on elsewhere, or nobody knows it. False where it
    /// did not count before.
    pub(super) fn uncount(&self, hash: Option<u64>, mapping: Mapping) -> bool {
        !self.wants.ranks || self.order().layout.died(self.ground(), hash, mapping)
    }

    /// Whether a reclaim keeps an object; `is_tail`: of the next victim.
    pub(crate) fn keeps(&self, hash: u64, mapping: Mapping, is_tail: bool) -> bool {
        let order = self.order.lock();
        order.layout.keeps(self.ground(), hash, mapping, is_tail)
    }

    /// A block leaves the order.
    pub(crate) fn leave_order(&self, id: u32) {
        self.order().layout.freed(id);
    }

    /// Counts a mapping that recovery found, and answers with the note that it can have.
    pub(crate) fn count_recovered(&self, mapping: Mapping) -> u32 {
        let ground = self.ground();
        let info = &self.blocks[ground.block_of(mapping.location) as usize];
        info.live
            .fetch_add(u64::from(mapping.location.len), Ordering::Relaxed);
        self.order.lock().layout.found(ground, mapping)
    }

    /// Forgets the priorities of keys that are not mapped any more: of strangers that took a mapping, of what a crash took.
    pub(crate) async fn prune_ranks<M: Mappings>(&self, mappings: &M) {
        let sampled = self.order.lock().layout.sampled_keys();
        for (at, hash) in sampled.into_iter().enumerate() {
            if at % ENTRIES_PER_TURN == ENTRIES_PER_TURN - 1 {
                give_turn().await;
            }
            mappings.with(hash, |shard| {
                if shard.find(hash) == Known::Dead {
                    self.forget_key(hash);
                }
            });
        }
        self.order.lock().layout.pruned();
    }

    /// Forgets the keys of the exact queue that are not mapped: what a crash took, or what went after the checkpoint.
    pub(crate) fn prune_keys<M: Mappings>(&self, mappings: &M) {
        let mut below = 0;
        loop {
            let batch: Vec<_> = match self.order.lock().layout.keys() {
                Some(keys) => keys.save_from(below).take(KEYS_BATCH).collect(),
                None => return,
            };
            if batch.is_empty() {
                return;
            }
            for key in batch {
                mappings.with(key.hash, |shard| {
                    if shard.find(key.hash) != Known::Dead {
                        below += u64::from(key.bytes);
                    } else {
                        self.forget_key(key.hash);
                    }
                });
            }
        }
    }

    /// After the last mapping that recovery found: what nothing counts in is gone.
    pub(crate) fn settle_order(&self) {
        self.order.lock().layout.settle(self.is_full());
    }

    /// Forgets what is remembered of objects to put them in order.
    pub(crate) fn forget_order(&self) {
        self.order().layout.forget_all();
    }

    /// Where a block stands in the order, for its trailer.
    pub(crate) fn position_of_block(&self, id: u32) -> u16 {
        self.order.lock().layout.trailer_position(self.ground(), id)
    }
}
