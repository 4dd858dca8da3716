//! Appending: the active blocks, and the buffers they come from.

use super::{FlashStore, Order, Pool, Rank, Slots, State};
use crate::block::{Appended, OpenBlock, Stream};
use crate::layout::Note;
use crate::queue::Seat;
use parking_lot::MutexGuard;
use pumice_blocks::{Geometry, add};
use pumice_index::{Location, Mapping, padded_len};
use pumice_memory::Buffer;
use pumice_policy::Priority;
use pumice_record::RecordParts;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The longest record that a block may hold, in bytes: a quarter of it, so that what does not fit the rest of a block wastes little.
pub fn record_max(geometry: &Geometry) -> u64 {
    (geometry.block_bytes / 4).min(1 << 20)
}

impl<B: Buffer> FlashStore<B> {
    /// Length of a record in a block, padding included.
    pub fn padded_len(&self, parts: &RecordParts<'_>) -> u64 {
        padded_len(parts.encoded_len() as u64, self.unit_bytes)
    }

    /// The longest record, in bytes.
    pub fn record_max(&self) -> u64 {
        record_max(&self.geometry)
    }

    /// Appends a new record to the active block of its rank. The caller holds the lock of the shard of `hash`, makes the mapping,
    /// and then drops what this returns. `None` where no buffer or block is free, or the record is longer than
    /// [`FlashStore::record_max`]; that is counted.
    pub fn append(&self, hash: u64, parts: &RecordParts<'_>, rank: Rank) -> Option<Appended<B>> {
        if self.is_out() {
            return None;
        }
        let mut order = self.order.lock();
        let beside = self.section_beside(&order, parts.slice, parts.version, parts.key);
        let section = order.ranked.as_mut().map_or(0, |ranked| {
            if let Priority::Absolute(value) = rank.priority() {
                ranked.ranks.put(hash, value, self.padded_len(parts));
            }
            let position = ranked.position(rank.priority());
            beside.unwrap_or_else(|| {
                let section = ranked.queue.insertion_section(position);
                ranked.queue.note_insertion(section, position);
                section
            })
        });
        // Only one layout keeps notes, and it has a queue of blocks.
        let note = (order.ranked.is_some()).then(|| rank.note());
        if let Some(keys) = &mut order.virtual_cache {
            keys.insert(hash, self.padded_len(parts), rank.priority(), rank.accesses());
        }
        let Some(appended) = self.append_at(order, section, hash, parts, note, false) else {
            self.forget_key(hash);
            add(&self.counters.dropped_no_block, 1);
            return None;
        };
        add(&self.counters.appended_objects, 1);
        add(&self.counters.appended_bytes, parts.encoded_len() as u64);
        Some(appended)
    }

    /// Appends the copy of a survivor that `from` maps, where it counts; as [`FlashStore::append`], but a refusal
    /// is not counted: the caller may try again.
    pub(crate) fn append_survivor(
        &self,
        hash: u64,
        parts: &RecordParts<'_>,
        from: Mapping,
    ) -> Option<Appended<B>> {
        if self.is_out() {
            return None;
        }
        let order = self.order.lock();
        let seat = self.seat(from);
        let section = order
            .ranked
            .as_ref()
            .map_or(0, |ranked| ranked.queue.section_of(seat));
        let note = Note {
            mark: 0,
            ..self.note(from).unwrap_or(Note::NEW)
        };
        let note = (order.ranked.is_some()).then_some(note);
        let appended = self.append_at(order, section, hash, parts, note, true)?;
        add(&self.counters.survivors, 1);
        let is_unraised = matches!(seat, Seat::Device(_)) && note.is_some();
        add(&self.counters.survivors_unraised, u64::from(is_unraised));
        add(&self.counters.survivor_bytes, parts.encoded_len() as u64);
        Some(appended)
    }

    fn append_at(
        &self,
        mut order: MutexGuard<'_, Order<B>>,
        section: usize,
        hash: u64,
        parts: &RecordParts<'_>,
        note: Option<Note>,
        survivor: bool,
    ) -> Option<Appended<B>> {
        let len = self.padded_len(parts);
        if len > self.record_max() {
            return None;
        }
        let len = usize::try_from(len).expect("at most 1 MiB");
        let stream = self.stream(survivor);
        let reserved = loop {
            let Some(block) = order.active(section, stream) else {
                if let Some(block) = self.open_new_block(survivor, stream) {
                    if let Some(ranked) = &mut order.ranked {
                        ranked.queue.open(section, block.id);
                        self.note_fill(&ranked.queue);
                    }
                    order.open.push(block);
                    continue;
                }
                // What room there is goes to the reclaim that waits for it.
                if !survivor && self.shared.pool.lock().own.stalled > 0 {
                    break None;
                }
                // Rather somewhat too high or too low than not at all.
                let block = order.nearest_with_room(section, len);
                let reserved = block.and_then(|block| Appended::reserve(block, hash, parts, len));
                if reserved.is_none() {
                    self.give_buffer_up(&mut order);
                }
                break reserved;
            };
            if let Some(reserved) = Appended::reserve(block, hash, parts, len) {
                break Some(reserved);
            }
            let id = block.id;
            self.retire_open(&mut order, id);
        };
        let Some(mut reserved) = reserved else {
            self.rebalance(&mut order);
            return None;
        };
        let location = reserved.mapping.location;
        reserved.mapping.note = self.add_slot(location, note);
        if !survivor {
            self.note_slice(&mut order, section, parts, reserved.block());
        }
        if let Some(ranked) = &mut order.ranked {
            ranked.queue.add(Seat::Device(reserved.block().id), len as u64);
        }
        self.rebalance(&mut order);
        drop(order);
        // Copied outside the lock, into a range that is this call's alone.
        reserved.copy(self.cache_id, parts);
        let info = &self.blocks[reserved.block().id as usize];
        info.live.fetch_add(len as u64, Ordering::Relaxed);
        Some(reserved)
    }

    /// The last thing that each change of the order does, under its lock: sections that are too large split, neighbours that are too
    /// small merge. Numbers of sections from before mean nothing then.
    pub(super) fn rebalance(&self, order: &mut Order<B>) {
        order.rebalance(|block| {
            add(&self.counters.merged_blocks, 1);
            self.retire(block);
        });
    }

    /// Starts sealing an open block. Its section has a new insertion point, and the caller rebalances.
    pub(super) fn retire_open(&self, order: &mut Order<B>, id: u32) {
        let block = order.close(id).expect("it is open");
        if let Some(keys) = &mut order.virtual_cache {
            keys.note_block(block.filled().0, self.blocks_full_at_once());
        }
        self.retire(block);
        if let Some(ranked) = &mut order.ranked {
            let section = ranked.queue.section_of(Seat::Device(id));
            ranked.queue.seal(section);
        }
    }

    /// How many blocks can be full of objects at once: all but those that are kept free, the open one, and those of checkpoints
    /// and mappings. Two checkpoints are kept, and while one is written there are three.
    fn blocks_full_at_once(&self) -> usize {
        let checkpoints = 3 * self.shared.pool.lock().checkpoint_blocks[0].len();
        let states = self.blocks.iter().map(|info| info.state());
        let taken = states.filter(|state| matches!(state, State::Lent | State::Bad));
        let others = self.blocks_kept_free() + 1 + checkpoints + taken.count();
        self.blocks.len().saturating_sub(others)
    }

    /// Where every buffer is some section's that is seldom inserted at, the fullest goes, so that the next record finds one.
    fn give_buffer_up(&self, order: &mut Order<B>) {
        let is_waiting = {
            let pool = self.shared.pool.lock();
            pool.sealing > 0 || !pool.to_seal.is_empty() || self.has_buffer(&pool)
        };
        if is_waiting {
            return;
        }
        let fullest = order.open.iter().max_by_key(|block| block.filled().0);
        if let Some(id) = fullest.map(|block| block.id) {
            self.retire_open(order, id);
        }
    }

    /// Where every buffer is an open block's that has no room, and nothing is under way that would free one, starts sealing the fullest;
    /// false where there is no such block. For callers that wait for room.
    pub fn make_way(&self) -> bool {
        let mut order = self.order.lock();
        let before = order.open.len();
        self.give_buffer_up(&mut order);
        let has_begun = order.open.len() < before;
        self.rebalance(&mut order);
        has_begun
    }

    /// Starts sealing all open blocks, however full they are. For a clean stop, and for tests.
    pub fn retire_active(&self) {
        let mut order = self.order.lock();
        let open = std::mem::take(&mut order.open);
        if let Some(ranked) = &mut order.ranked {
            for section in 0..ranked.queue.sections() {
                if ranked.queue.active_block(section).is_some() {
                    ranked.queue.seal(section);
                }
            }
        }
        open.into_iter().for_each(|block| self.retire(block));
        self.rebalance(&mut order);
    }

    /// Starts sealing the open blocks that were opened before the log was at a position.
    pub(crate) fn retire_older(&self, position: u64) {
        let mut order = self.order.lock();
        let is_old = |block: &&Arc<OpenBlock<B>>| block.sealing_position.load(Ordering::Acquire) < position;
        let old: Vec<u32> = order.open.iter().filter(is_old).map(|block| block.id).collect();
        for id in &old {
            self.retire_open(&mut order, *id);
        }
        self.rebalance(&mut order);
    }

    /// Starts sealing a block, if it is open.
    pub(crate) fn retire_one(&self, id: u32) {
        let mut order = self.order.lock();
        if order.open.iter().any(|block| block.id == id) {
            self.retire_open(&mut order, id);
            self.rebalance(&mut order);
        }
    }

    /// Called under the `order` lock: whoever finds a block open there may go on appending to it.
    pub(super) fn retire(&self, block: Arc<OpenBlock<B>>) {
        self.close_block(block);
    }

    fn open_new_block(&self, survivor: bool, stream: Stream) -> Option<Arc<OpenBlock<B>>> {
        let mut pool = self.shared.pool.lock();
        // The last free blocks are for survivors and checkpoints, whose work frees others.
        let kept_back = if survivor {
            0
        } else {
            self.kept_for_survivors(&pool)
        };
        if pool.free.len() <= kept_back {
            self.shared.has_work.store(true, Ordering::Release);
            return None;
        }
        let block = self.open_block(&mut pool, stream, |info| {
            info.live.store(0, Ordering::Relaxed);
            info.filled.store(0, Ordering::Relaxed);
            info.is_kept.store(stream == Stream::Kept, Ordering::Relaxed);
            info.is_leaving.store(false, Ordering::Release);
            info.mean_len.store(0, Ordering::Relaxed);
            *info.slots.lock() = Slots::new(self.slot_kind.bits());
            info.reclaims.store(0, Ordering::Relaxed);
        })?;
        if self.mapping_log.get().is_some() {
            // Its footer may name what is dead: what is logged from here on concerns it.
            block
                .sealing_position
                .store(self.log.position(), Ordering::Release);
        }
        drop(pool);
        self.shared.has_work.store(true, Ordering::Release);
        Some(block)
    }

    /// Free blocks that new objects leave to survivors: as many as the bytes fill that are still to leave victims, and one at
    /// least.
    fn kept_for_survivors(&self, pool: &Pool<B>) -> usize {
        let moved = pool.own.victims.iter().filter(|victim| victim.how.moves());
        let bytes: u64 = moved
            .map(|victim| {
                victim
                    .stays
                    .min(self.blocks[victim.id as usize].live.load(Ordering::Relaxed))
            })
            .sum();
        usize::try_from(bytes.div_ceil(self.geometry.block_bytes)).map_or(usize::MAX, |blocks| blocks.max(1))
    }

    /// Whether an append of `len` bytes would find a buffer and a block now, so that a caller that may wait knows when to. Where the device
    /// was taken out there is nothing to wait for.
    pub fn has_room(&self, len: u64) -> bool {
        if self.is_out() {
            return true;
        }
        let len = usize::try_from(padded_len(len, self.unit_bytes)).unwrap_or(usize::MAX);
        let order = self.order.lock();
        let mut open = order.open.iter();
        let is_open = open.any(|block| block.tag == Stream::New && block.fits(len));
        drop(order);
        let pool = self.shared.pool.lock();
        (is_open && pool.own.stalled == 0)
            || (self.has_buffer(&pool) && pool.free.len() > self.kept_for_survivors(&pool))
    }

    /// Appends that were refused so far because no block was free, or no buffer for one.
    pub fn dropped_no_block(&self) -> u64 {
        self.counters.dropped_no_block.load(Ordering::Relaxed)
    }

    /// Sequence of the block that holds `location`.
    pub fn sequence_at(&self, location: Location) -> u64 {
        self.blocks[self.block_of(location) as usize]
            .sequence
            .load(Ordering::Acquire)
    }

    pub(crate) fn block_of(&self, location: Location) -> u32 {
        self.geometry
            .block_of(location.offset)
            .expect("locations are made here")
    }
}
