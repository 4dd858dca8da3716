//! The order of blocks by priority, and the blocks that are being filled.

use super::slices::LastSlice;
use super::{FlashStore, Ranks, SavedKey, SavedRanks, SealedBlock, SlotKind, VirtualCache};
use crate::Mappings;
use crate::block::{OpenBlock, Stream};
use crate::checkpoint::KEYS_BATCH;
use crate::layout::{Layout, LayoutOptions, MARKS, Note};
use crate::queue::{Queue, QueueShape, SECTION_BLOCKS_MIN, SavedPlace, Seat};
use crate::reclaim::ENTRIES_PER_TURN;
use pumice_blocks::{Geometry, State, give_turn};
use pumice_index::Mapping;
use pumice_memory::Buffer;
use pumice_policy::{Hit, Priority};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Accesses that a note has at least after a hit, whatever the policy counts: one is an object that was never hit.
const ACCESSED: u32 = 2;

/// A store of which no more than one block in so many is free counts as full: when objects are raised and overwritten, some 6 % of what
/// blocks hold is dead, and the queue will not be longer than it is then.
const FULL_SHARE: usize = 16;

/// What trailers have as the position of a block of kept objects, under a layout without positions.
pub(super) const POSITION_KEPT: u16 = 0;

/// Where a new copy is to go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rank {
    priority: Priority,
    accesses: u32,
}

impl Rank {
    /// For layouts that have one insertion point.
    pub(super) const TOP: Rank = Rank {
        priority: Priority::Relative(1.0),
        accesses: 1,
    };

    pub(super) fn priority(self) -> Priority {
        self.priority
    }

    pub(super) fn accesses(self) -> u32 {
        self.accesses
    }

    pub(super) fn note(self) -> Note {
        Note {
            mark: 0,
            accesses: self.accesses,
        }
    }
}

/// The blocks that are being filled, and under a layout that has one the queue that they are part of.
pub(crate) struct Order<B: Buffer> {
    pub(crate) open: Vec<Arc<OpenBlock<B>>>,
    pub(crate) ranked: Option<Ranked>,
    pub(crate) virtual_cache: Option<VirtualCache>,
    /// Where the last slice of a large object went.
    pub(crate) last_slice: Option<LastSlice>,
}

/// The queue, and what turns absolute priorities into positions in it.
pub(crate) struct Ranked {
    pub(crate) queue: Queue,
    pub(crate) ranks: Ranks,
}

pub(super) fn queue_shape(options: &LayoutOptions, blocks: u32, block_bytes: u64) -> QueueShape {
    QueueShape {
        alpha: options.alpha.max(SECTION_BLOCKS_MIN / f64::from(blocks)).min(1.0),
        marks: MARKS,
        granule: block_bytes,
    }
}

impl<B: Buffer> Order<B> {
    /// An order without open blocks: sealed blocks as a checkpoint has saved them, others by where they stood when they were
    /// sealed.
    pub(super) fn recovered(
        options: &LayoutOptions,
        shape: QueueShape,
        geometry: &Geometry,
        sealed: &[SealedBlock],
        places: &[SavedPlace],
        ranks: &SavedRanks,
    ) -> Self {
        let ranked = (options.layout == Layout::Ripq).then(|| Ranked {
            queue: Self::queue(shape, geometry, sealed, places),
            ranks: Ranks::restore(ranks, options.policy_checksum()),
        });
        Self {
            open: Vec::new(),
            ranked,
            virtual_cache: None,
            last_slice: None,
        }
    }

    fn queue(shape: QueueShape, geometry: &Geometry, sealed: &[SealedBlock], places: &[SavedPlace]) -> Queue {
        let known = sealed.iter().filter(|block| block.position.is_none());
        let known: HashSet<u32> = known.map(|block| block.id).collect();
        let saved = places.iter().map(|place| SavedPlace {
            block: place.block.filter(|block| known.contains(block)),
            ..*place
        });
        let mut queue = Queue::restore(shape, geometry.blocks, saved);
        let unknown = sealed.iter().filter(|block| !queue.has_block(block.id));
        let unknown: Vec<(u32, usize)> = unknown
            .map(|block| {
                let position = f64::from(block.position.unwrap_or(u16::MAX)) / f64::from(u16::MAX);
                (block.id, ((1.0 - position) * sealed.len() as f64) as usize)
            })
            .collect();
        queue.insert_blocks(unknown.into_iter());
        queue
    }

    /// The lowest absolute priority.
    fn lowest(&self) -> f64 {
        match (&self.ranked, &self.virtual_cache) {
            (Some(ranked), _) => ranked.ranks.lowest(),
            (_, Some(keys)) => keys.lowest(),
            _ => 0.0,
        }
    }

    pub(super) fn block(&self, id: u32) -> Option<&Arc<OpenBlock<B>>> {
        self.open.iter().find(|block| block.id == id)
    }

    /// The open block of a section, or of a stream under a layout without sections.
    pub(super) fn active(&self, section: usize, stream: Stream) -> Option<&Arc<OpenBlock<B>>> {
        match &self.ranked {
            Some(ranked) => self.block(ranked.queue.active_block(section)?),
            None => self.open.iter().find(|block| block.tag == stream),
        }
    }

    /// An open block with room, of the section nearest to `section`; of any stream.
    pub(super) fn nearest_with_room(&self, section: usize, len: usize) -> Option<&Arc<OpenBlock<B>>>
    where
        B: Buffer,
    {
        let Some(ranked) = &self.ranked else {
            return self.open.iter().find(|block| block.fits(len));
        };
        let queue = &ranked.queue;
        let mut sections: Vec<usize> = (0..queue.sections()).collect();
        sections.sort_by_key(|other| other.abs_diff(section));
        let blocks = sections
            .into_iter()
            .filter_map(|section| queue.active_block(section));
        let mut blocks = blocks.filter_map(|id| self.block(id));
        blocks.find(|block| block.fits(len))
    }

    /// Takes a block out of those that are filled.
    pub(super) fn close(&mut self, id: u32) -> Option<Arc<OpenBlock<B>>> {
        let at = self.open.iter().position(|block| block.id == id)?;
        Some(self.open.swap_remove(at))
    }

    /// Splits and merges; calls `retire` with the blocks that are no insertion points any more because of that.
    pub(super) fn rebalance(&mut self, mut retire: impl FnMut(Arc<OpenBlock<B>>)) {
        let Some(ranked) = &mut self.ranked else { return };
        let open = &mut self.open;
        ranked.queue.rebalance(|id| {
            if let Some(at) = open.iter().position(|block| block.id == id) {
                retire(open.swap_remove(at));
            }
        });
        if cfg!(debug_assertions) {
            ranked.queue.check_balance();
        }
    }
}

impl Ranked {
    /// The position of a priority in the queue.
    pub(super) fn position(&self, priority: Priority) -> f64 {
        match priority {
            Priority::Relative(position) => position,
            Priority::Absolute(value) => self.ranks.position(value),
        }
    }
}

impl<B: Buffer> FlashStore<B> {
    /// How the layout was set up.
    pub fn layout(&self) -> &LayoutOptions {
        &self.layout
    }

    /// Bytes of DRAM of the queue's own tables.
    pub fn order_bytes(&self) -> u64 {
        let order = self.order.lock();
        order
            .ranked
            .as_ref()
            .map_or(0, |ranked| ranked.queue.dram_bytes() + ranked.ranks.dram_bytes())
            + order.virtual_cache.as_ref().map_or(0, VirtualCache::dram_bytes)
    }

    /// Where the object of a mapping counts.
    pub(crate) fn seat(&self, mapping: Mapping) -> Seat {
        match self.note(mapping) {
            Some(Note { mark, .. }) if mark != 0 => Seat::Virtual(mark),
            _ => Seat::Device(self.block_of(mapping.location)),
        }
    }

    /// Where the object of a mapping stands in the queue, in [0, 1]; `None` under a layout without one. Called under its shard's
    /// lock.
    pub fn position(&self, mapping: Mapping) -> Option<f64> {
        let order = self.order.lock();
        let ranked = order.ranked.as_ref()?;
        Some(ranked.queue.position(self.seat(mapping)))
    }

    /// The hashes in the virtual cache of layout `sipq`, from the lowest.
    pub fn virtual_keys(&self) -> Vec<u64> {
        let order = self.order.lock();
        let keys = order.virtual_cache.iter().flat_map(VirtualCache::save);
        keys.map(|key| key.hash).collect()
    }

    /// Where a new object is to go, or a part of one. `object_bytes`, here and below, are those of the whole object.
    pub fn rank_new(&self, object_bytes: u64) -> Rank {
        if self.layout.layout == Layout::Fifo {
            return Rank::TOP;
        }
        let lowest = self.order.lock().lowest();
        Rank {
            priority: self.priority_new(object_bytes, lowest),
            accesses: 1,
        }
    }

    /// Takes note of a store that is full, but for what is left of objects that a flush has removed. Called with `order` locked.
    pub(super) fn note_fill(&self, queue: &Queue) {
        if self.has_been_full.load(Ordering::Relaxed) {
            return;
        }
        let free = self.shared.pool.lock().free.len();
        let is_used = free <= (self.blocks.len() / FULL_SHARE).max(self.blocks_kept_free() + 1);
        let bytes = self.geometry.block_bytes * self.blocks.len() as u64;
        if is_used && queue.bytes() * 2 > bytes {
            self.has_been_full.store(true, Ordering::Relaxed);
        }
    }

    fn priority_new(&self, object_bytes: u64, lowest: f64) -> Priority {
        let priority = self.layout.policy.on_insert(object_bytes, lowest);
        // Of `sipq` it is the queue of keys that fills, and it knows.
        if self.layout.layout == Layout::Sipq || self.has_been_full.load(Ordering::Relaxed) {
            priority
        } else {
            priority.while_filling()
        }
    }

    /// Where a new object is to go that was asked for before it came to flash: inserted, and hit once.
    pub fn rank_new_hit(&self, object_bytes: u64) -> Rank {
        let inserted = self.rank_new(object_bytes);
        if self.layout.layout == Layout::Fifo {
            return inserted;
        }
        let order = self.order.lock();
        let policy = self.layout.policy;
        let position = match (&order.ranked, inserted.priority) {
            (Some(ranked), priority) => ranked.position(priority),
            (None, Priority::Relative(position)) => position,
            // Those of absolute priorities do not look at it.
            (None, Priority::Absolute(_)) => 0.0,
        };
        let hit = Hit {
            position,
            accesses: policy.accesses_max().min(ACCESSED),
            size: object_bytes,
            lowest: order.lowest(),
        };
        let raised = policy.on_hit(&hit).unwrap_or(inserted.priority);
        Rank {
            priority: raised.at_least(position),
            accesses: ACCESSED,
        }
    }

    /// Where a new value is to go that replaces one, mapped to `old` as far as is known: a write is a hit, too. Called before the
    /// old one is invalidated, under its shard's lock. Where flash `may_have` one whose mapping DRAM does not know, it counts as one that
    /// was not asked for since it was new.
    pub fn rank_again(&self, hash: u64, old: Option<Mapping>, may_have: bool, object_bytes: u64) -> Rank {
        if self.layout.layout == Layout::Fifo {
            return Rank::TOP;
        }
        if old.is_none() && may_have && self.layout.layout == Layout::Ripq {
            return self.rank_new_hit(object_bytes);
        }
        let order = self.order.lock();
        let policy = self.layout.policy;
        let hit = match (&order.ranked, &order.virtual_cache) {
            (Some(ranked), _) => old.and_then(|old| self.hit_of(ranked, old, object_bytes)),
            (_, Some(keys)) => keys.standing(hash).map(|(position, accesses)| Hit {
                position,
                accesses: (accesses + 1).min(policy.accesses_max()),
                size: object_bytes,
                lowest: keys.lowest(),
            }),
            _ => None,
        };
        let Some(hit) = hit else {
            return Rank {
                priority: self.priority_new(object_bytes, order.lowest()),
                accesses: 1,
            };
        };
        let priority = policy
            .on_hit(&hit)
            .unwrap_or_else(|| policy.on_insert(object_bytes, hit.lowest));
        Rank {
            // A write never makes an object fall.
            priority: priority.at_least(hit.position),
            accesses: hit.accesses.max(ACCESSED),
        }
    }

    /// `None` where the object is known to be dead.
    fn hit_of(&self, ranked: &Ranked, mapping: Mapping, object_bytes: u64) -> Option<Hit> {
        let policy = self.layout.policy;
        let before = self.note(mapping)?.accesses;
        Some(Hit {
            position: ranked.queue.position(self.seat(mapping)),
            accesses: (before + 1).min(policy.accesses_max()),
            size: object_bytes,
            lowest: ranked.ranks.lowest(),
        })
    }

    /// A mapped object was used: the note that its mapping is to have from now on. Called under its shard's lock.
    pub fn hit(&self, hash: u64, mapping: Mapping, object_bytes: u64) -> u32 {
        if self.layout.layout == Layout::Fifo {
            self.put_hit(mapping);
            return mapping.note;
        }
        let mut order = self.order.lock();
        let len = self.counted_len(mapping);
        if let Some(keys) = &mut order.virtual_cache {
            keys.hit(hash, len, object_bytes);
        }
        let Some(ranked) = &mut order.ranked else {
            return mapping.note;
        };
        let (Some(hit), Some(mut note)) = (self.hit_of(ranked, mapping, object_bytes), self.note(mapping))
        else {
            return mapping.note;
        };
        note.accesses = hit.accesses.max(ACCESSED);
        if !self.has_slot(mapping) {
            // Nothing would say where it counts.
            return mapping.note;
        }
        if let Some(priority) = self.layout.policy.on_hit(&hit) {
            let position = ranked.position(priority);
            if let Priority::Absolute(value) = priority {
                ranked.ranks.put(hash, value, len);
            }
            if let Some(mark) = ranked.queue.increase(self.seat(mapping), len, position) {
                note.mark = mark;
                self.counters.raises.fetch_add(1, Ordering::Relaxed);
                self.rebalance(&mut order);
            }
        }
        self.put_note(mapping, note)
    }

    /// Whether the layout wants to know of hits.
    pub fn ranks_hits(&self) -> bool {
        self.layout.layout != Layout::Fifo || self.slot_kind != SlotKind::None
    }

    /// What is kept of a key beside mappings goes: whatever was mapped under it is void.
    pub(crate) fn forget_key(&self, hash: u64) {
        if self.layout.layout == Layout::Fifo {
            return;
        }
        let mut order = self.order.lock();
        if let Some(keys) = &mut order.virtual_cache {
            keys.remove(hash);
        }
        if let Some(ranked) = &mut order.ranked {
            ranked.ranks.take(hash);
        }
    }

    /// A mapping was removed: its object counts no more. Without `hash` it lives on elsewhere, or nobody knows it. False where it
    /// did not count before.
    pub(super) fn uncount(&self, hash: Option<u64>, mapping: Mapping) -> bool {
        if self.layout.layout == Layout::Fifo {
            return true;
        }
        self.uncount_in(&mut self.order.lock(), hash, mapping)
    }

    pub(super) fn uncount_in(&self, order: &mut Order<B>, hash: Option<u64>, mapping: Mapping) -> bool {
        if let (Some(keys), Some(hash)) = (&mut order.virtual_cache, hash) {
            keys.remove(hash);
        }
        let Some(ranked) = &mut order.ranked else {
            return true;
        };
        let (seat, len) = (self.seat(mapping), self.counted_len(mapping));
        if let Some(hash) = hash {
            ranked.ranks.take(hash);
        }
        if !self.put_dead(mapping) {
            return false;
        }
        if self.slot_kind.has_seats() {
            ranked.queue.remove_about(seat, len);
        } else {
            ranked.queue.remove(seat, len);
        }
        self.rebalance(order);
        true
    }

    /// Whether a reclaim keeps an object; `is_tail`: of the lowest block.
    pub(crate) fn keeps(&self, hash: u64, mapping: Mapping, is_tail: bool) -> bool {
        let order = self.order.lock();
        if let Some(keys) = &order.virtual_cache {
            return keys.contains(hash);
        }
        let Some(ranked) = &order.ranked else {
            return self.was_hit(mapping);
        };
        if self.note(mapping).is_none() {
            return false;
        }
        let seat = self.seat(mapping);
        if !is_tail {
            return true;
        }
        let position = ranked.queue.position(seat);
        matches!(seat, Seat::Virtual(_))
            && position >= 1.0 - self.layout.theta
            && !ranked.queue.is_nearest_the_end(position)
    }

    /// Sealed blocks from the tail to the head.
    pub(crate) fn sealed_in_order(
        &self,
        order: &Order<B>,
        by_sequence: impl Iterator<Item = u32>,
    ) -> Vec<u32> {
        match &order.ranked {
            Some(ranked) => {
                let sealed = |id: &u32| self.blocks[*id as usize].state() == State::Sealed;
                ranked.queue.blocks().filter(sealed).collect()
            }
            None => by_sequence.collect(),
        }
    }

    /// A block leaves the order.
    pub(crate) fn leave_order(&self, id: u32) {
        let mut order = self.order.lock();
        if let Some(ranked) = &mut order.ranked
            && ranked.queue.has_block(id)
        {
            ranked.queue.release(id);
            self.rebalance(&mut order);
        }
    }

    /// Counts a mapping that recovery found, and answers with the note that it can have.
    pub(crate) fn count_recovered(&self, mapping: Mapping) -> u32 {
        let info = &self.blocks[self.block_of(mapping.location) as usize];
        info.live
            .fetch_add(u64::from(mapping.location.len), Ordering::Relaxed);
        let mut order = self.order.lock();
        let Some(ranked) = &mut order.ranked else { return 0 };
        let mut note = Note::of(mapping);
        if !ranked.queue.has_mark(note.mark) {
            note.mark = 0;
        }
        let known = Mapping {
            note: note.bits(),
            ..mapping
        };
        ranked.queue.add(self.seat(known), mapping.location.len.into());
        known.note
    }

    /// Forgets the priorities of keys that are not mapped any more: of strangers that took a mapping, of what a crash took.
    pub(crate) async fn prune_ranks<M: Mappings>(&self, mappings: &M) {
        let sampled: Vec<u64> = match &self.order.lock().ranked {
            Some(ranked) => ranked.ranks.sampled().collect(),
            None => return,
        };
        for (at, hash) in sampled.into_iter().enumerate() {
            if at % ENTRIES_PER_TURN == ENTRIES_PER_TURN - 1 {
                give_turn().await;
            }
            mappings.with(hash, |shard| {
                if shard.get(hash).is_none()
                    && !shard.is_unsure(hash)
                    && let Some(ranked) = &mut self.order.lock().ranked
                {
                    ranked.ranks.take(hash);
                }
            });
        }
        if let Some(ranked) = &mut self.order.lock().ranked {
            ranked.ranks.shrink();
        }
    }

    /// Forgets the keys of the virtual cache that are not mapped: what a crash took, or what went after the checkpoint.
    pub(crate) fn prune_keys<M: Mappings>(&self, mappings: &M) {
        let mut below = 0;
        loop {
            let batch: Vec<SavedKey> = match &self.order.lock().virtual_cache {
                Some(keys) => keys.save_from(below).take(KEYS_BATCH).collect(),
                None => return,
            };
            if batch.is_empty() {
                return;
            }
            for key in batch {
                mappings.with(key.hash, |shard| {
                    if shard.get(key.hash).is_some() || shard.is_unsure(key.hash) {
                        below += u64::from(key.bytes);
                    } else if let Some(keys) = &mut self.order.lock().virtual_cache {
                        keys.remove(key.hash);
                    }
                });
            }
        }
    }

    /// After the last mapping that recovery found: what nothing counts in is gone.
    pub(crate) fn settle_order(&self) {
        if let Some(ranked) = &mut self.order.lock().ranked {
            self.note_fill(&ranked.queue);
            ranked.queue.drop_bare_places();
            let raised = ranked.queue.all_virtual_objects();
            self.raised_at_start.store(raised, Ordering::Relaxed);
            ranked.queue.rebalance(|_| unreachable!("no block is open"));
        }
    }

    /// Where a block stands in the queue, in 65,535ths, for its trailer; under a layout without one what tells its stream.
    pub(crate) fn position_of_block(&self, id: u32) -> u16 {
        let order = self.order.lock();
        let Some(ranked) = &order.ranked else {
            let is_kept = self.blocks[id as usize].is_kept.load(Ordering::Relaxed);
            return if is_kept { POSITION_KEPT } else { u16::MAX };
        };
        let position = ranked.queue.position(Seat::Device(id));
        (position * f64::from(u16::MAX)) as u16
    }
}
