//! The order of objects: the blocks that are being filled and the layout, behind one lock, and the accounts of what is live in each block.
//!
//! The lock comes after those of the index's shards, and before those of the pool and of single blocks.

mod check;
mod deaths;
mod slices;
mod slots;
mod start;

use crate::block::BlockInfo;
use crate::counts::Counters;
use crate::layout::{
    Arrival, Ground, Hits, Layout, LayoutOptions, NotePlace, Rank, Wants, note_place, slot_bits,
};
use crate::objects::OpenBlock;
use locks::{Mutex, MutexGuard};
use pumice_blocks::Geometry;
use pumice_index::{IndexKind, Location, Mapping};
use pumice_memory::Buffer;
use slices::LastSlice;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The open blocks, and where objects go in them.
pub(crate) struct OrderState<B: Buffer> {
    pub(crate) open: Vec<Arc<OpenBlock<B>>>,
    pub(crate) layout: Box<dyn Layout>,
    /// Where the last slice of a large object went.
    last_slice: Option<LastSlice>,
}

impl<B: Buffer> OrderState<B> {
    /// The open block of an insertion point.
    pub(crate) fn at(&self, point: usize) -> Option<&Arc<OpenBlock<B>>> {
        let id = self.layout.open_block(point)?;
        self.open.iter().find(|block| block.id == id)
    }

    /// An open block with room, of the insertion point nearest to `point`.
    pub(crate) fn nearest_with_room(&self, point: usize, len: usize) -> Option<&Arc<OpenBlock<B>>> {
        let mut points: Vec<usize> = (0..self.layout.points()).collect();
        points.sort_by_key(|other| other.abs_diff(point));
        let mut blocks = points.into_iter().filter_map(|point| self.at(point));
        blocks.find(|block| block.fits(len))
    }

    /// Takes a block out of those that are filled.
    pub(crate) fn close(&mut self, id: u32) -> Option<Arc<OpenBlock<B>>> {
        let at = self.open.iter().position(|block| block.id == id)?;
        Some(self.open.swap_remove(at))
    }
}

/// The order, locked to be changed. When this is dropped the layout is in balance again: insertion points may be others then.
pub(crate) struct OrderGuard<'a, B: Buffer>(MutexGuard<'a, OrderState<B>>);

impl<B: Buffer> Deref for OrderGuard<'_, B> {
    type Target = OrderState<B>;

    fn deref(&self) -> &OrderState<B> {
        &self.0
    }
}

impl<B: Buffer> DerefMut for OrderGuard<'_, B> {
    fn deref_mut(&mut self) -> &mut OrderState<B> {
        &mut self.0
    }
}

impl<B: Buffer> OrderGuard<'_, B> {
    /// Brings the layout in balance: insertion points may be others after this.
    pub(crate) fn rebalance(&mut self) {
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

/// Where objects go, and what counts in each block.
pub struct Order<B: Buffer> {
    state: Mutex<OrderState<B>>,
    blocks: Arc<[BlockInfo]>,
    geometry: Geometry,
    options: LayoutOptions,
    pub(crate) wants: Wants,
    /// Where the notes of objects are, and of how many bits a slot is.
    pub(crate) notes: NotePlace,
    pub(crate) slot_bits: u32,
    /// Whether the index knows every death: what counts as live in a block is then exact.
    is_authoritative: bool,
    /// DRAM of the slots of sealed blocks.
    slot_bytes: AtomicU64,
    /// Whether there may be a block that goes before the lowest: one more than half dead, or one whose objects expire.
    pub(crate) has_early_victims: AtomicBool,
    /// Whether objects of virtual places went whose lengths nobody knew: the queue's bytes are then about those of the blocks.
    is_estimate: AtomicBool,
    counters: Arc<Counters>,
}

impl<B: Buffer> Order<B> {
    pub(crate) fn new(
        layout: Box<dyn Layout>,
        options: LayoutOptions,
        index: IndexKind,
        blocks: Arc<[BlockInfo]>,
        geometry: Geometry,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            wants: layout.wants(),
            state: Mutex::new(OrderState {
                open: Vec::new(),
                layout,
                last_slice: None,
            }),
            blocks,
            geometry,
            options,
            notes: note_place(options.layout, index),
            slot_bits: slot_bits(&options, index),
            is_authoritative: index.is_authoritative(),
            slot_bytes: AtomicU64::new(0),
            has_early_victims: AtomicBool::new(true),
            is_estimate: AtomicBool::new(false),
            counters,
        }
    }

    /// Locks it to be read.
    pub(crate) fn lock(&self) -> MutexGuard<'_, OrderState<B>> {
        self.state.lock()
    }

    /// Locks it to be changed.
    pub(crate) fn change(&self) -> OrderGuard<'_, B> {
        OrderGuard(self.state.lock())
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
    pub fn options(&self) -> &LayoutOptions {
        &self.options
    }

    /// The sequence of the block at a location.
    pub fn sequence_at(&self, location: Location) -> u64 {
        self.ground().sequence_at(location)
    }

    /// Bytes of DRAM of the layout's own tables.
    pub fn dram_bytes(&self) -> u64 {
        self.lock().layout.dram_bytes()
    }

    /// Where the object of a mapping stands in the order, in [0, 1]; `None` under a layout without one. Called under its shard's
    /// lock.
    pub fn position(&self, mapping: Mapping) -> Option<f64> {
        self.lock().layout.position(self.ground(), mapping)
    }

    /// The hashes in the queue of keys of layout `sipq`, from the lowest.
    pub fn virtual_keys(&self) -> Vec<u64> {
        let order = self.lock();
        let keys = order.layout.keys().into_iter().flat_map(|keys| keys.save());
        keys.map(|key| key.hash).collect()
    }

    /// Where an object of so many bytes is to go, all its slices together, or a part of it. Called under its shard's lock, before one
    /// that it replaces is invalidated.
    pub fn rank(&self, arrival: Arrival, object_bytes: u64) -> Rank {
        if !self.wants.ranks {
            return Rank::TOP;
        }
        self.lock().layout.rank(self.ground(), arrival, object_bytes)
    }

    /// A mapped object was used: the note that its mapping is to have from now on. Called under its shard's lock.
    pub fn hit(&self, hash: u64, mapping: Mapping, object_bytes: impl FnOnce() -> u64) -> u32 {
        let ground = self.ground();
        let wanted = match self.wants.hits {
            Hits::None => false,
            Hits::First => ground.note(mapping) == Some(0),
            Hits::Every => true,
        };
        if !wanted {
            return mapping.note;
        }
        let bytes = object_bytes();
        let (note, raised) = self.change().layout.hit(ground, hash, mapping, bytes);
        self.counters
            .raises
            .fetch_add(u64::from(raised), Ordering::Relaxed);
        note
    }

    /// Whether the layout wants to know of hits.
    pub fn wants_hits(&self) -> bool {
        self.wants.hits != Hits::None
    }

    /// What is kept of a key beside mappings goes: whatever was mapped under it is void.
    pub(crate) fn forget_key(&self, hash: u64) {
        if self.wants.ranks {
            self.change().layout.forget_key(hash);
        }
    }

    /// Whether a reclaim keeps an object; `is_tail`: of the next victim.
    pub(crate) fn keeps(&self, hash: u64, mapping: Mapping, is_tail: bool) -> bool {
        let order = self.lock();
        order.layout.keeps(self.ground(), hash, mapping, is_tail)
    }

    /// A block leaves the order.
    pub(crate) fn freed(&self, id: u32) {
        self.change().layout.freed(id);
    }

    /// Forgets what is remembered of objects to put them in order.
    pub(crate) fn forget_all(&self) {
        self.change().layout.forget_all();
    }

    /// Where a block stands in the order, for its trailer.
    pub(crate) fn trailer_position(&self, id: u32) -> u16 {
        self.lock().layout.trailer_position(self.ground(), id)
    }
}
