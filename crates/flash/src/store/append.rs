//! Appending: the active blocks, and the buffers they come from.

use super::FlashStore;
use super::appended::Appended;
use crate::block::Stream;
use crate::layout::{Placed, Rank, Slots};
use crate::objects::{OpenBlock, Pool};
use crate::order::{OrderGuard, OrderState};
use pumice_blocks::{Geometry, State, add};
use pumice_index::{Mapping, Superseded, padded_len, unpadded_len};
use pumice_memory::Buffer;
use pumice_record::RecordParts;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A store of which no more than one block in so many is free counts as full: when objects are raised and overwritten, some 6 % of what
/// blocks hold is dead, and the queue will not be longer than it is then.
const FULL_SHARE: usize = 16;

/// The longest record that a block may hold, in bytes: a quarter of it, so that what does not fit the rest of a block wastes little.
pub fn record_max(geometry: &Geometry) -> u64 {
    (geometry.block_bytes / 4).min(1 << 20)
}

/// Slices of large objects that fill a block. Half of one stays empty at the end of a block of other records, on average.
const SLICES_IN_BLOCK: u64 = 16;
/// What a block has beside as many slices: their entries in the footer, the trailer, and what rounding costs.
const SLICES_BESIDE_BYTES: u64 = 1 << 10;

/// How a new record comes to flash.
#[derive(Clone, Copy, Debug)]
pub enum Coming {
    /// With a rank.
    Ranked(Rank),
    /// In the place of what was superseded, which was logged and counts until now.
    Over {
        /// What the index knew of it.
        superseded: Superseded,
        /// Bytes of the new object, all slices together.
        object_bytes: u64,
    },
}

impl From<Rank> for Coming {
    fn from(rank: Rank) -> Self {
        Coming::Ranked(rank)
    }
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

    /// The longest slice record of a large object, in bytes: sixteen fill a block, with their entries in its footer. Of blocks above 16 MiB
    /// it is as long as any record.
    pub fn slice_max(&self) -> u64 {
        let room = self.geometry.block_bytes - SLICES_BESIDE_BYTES;
        unpadded_len(room / SLICES_IN_BLOCK, self.unit_bytes).min(self.record_max())
    }

    /// How many slices as long as they may be blocks hold at once: of an object of more the first are gone before the last has come.
    pub fn slices_max(&self) -> u64 {
        let in_block = (self.geometry.block_bytes - SLICES_BESIDE_BYTES) / self.slice_max();
        in_block * self.blocks_for_objects() as u64
    }

    /// Appends a new record to the active block of its rank. The caller holds the lock of the shard of `hash`, makes the mapping,
    /// and then drops what this returns. `None` where no buffer or block is free, or the record is longer than
    /// [`FlashStore::record_max`]; that is counted. Rank, death of the former copy and insertion are one section of the order's lock.
    pub fn append(
        &self,
        hash: u64,
        parts: &RecordParts<'_>,
        coming: impl Into<Coming>,
    ) -> Option<Appended<B>> {
        let mut order = self.order.change();
        let rank = match coming.into() {
            Coming::Ranked(rank) => rank,
            Coming::Over {
                superseded,
                object_bytes,
            } => {
                let rank = self.order.bury_in(&mut order, hash, &superseded, object_bytes);
                order.rebalance();
                rank
            }
        };
        if self.is_out() {
            return None;
        }
        let beside = self.order.beside(&order, parts.slice, parts.version, parts.key);
        let placed = order.layout.insert(hash, self.padded_len(parts), rank, beside);
        let Some(appended) = self.append_at(order, placed, hash, parts, false) else {
            self.order.forget_key(hash);
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
        let order = self.order.change();
        let (placed, is_raised) = order.layout.insert_again(self.order.ground(), from);
        let appended = self.append_at(order, placed, hash, parts, true)?;
        add(&self.counters.survivors, 1);
        add(&self.counters.survivors_unraised, u64::from(!is_raised));
        add(&self.counters.survivor_bytes, parts.encoded_len() as u64);
        Some(appended)
    }

    fn append_at(
        &self,
        mut order: OrderGuard<'_, B>,
        placed: Placed,
        hash: u64,
        parts: &RecordParts<'_>,
        survivor: bool,
    ) -> Option<Appended<B>> {
        let len = self.padded_len(parts);
        if len > self.record_max() {
            return None;
        }
        let len = usize::try_from(len).expect("at most 1 MiB");
        let reserved = loop {
            let Some(block) = order.at(placed.point) else {
                if order.layout.adopts(placed.point) {
                    continue;
                }
                if let Some(block) = self.open_new_block(survivor) {
                    let is_full = self.is_full();
                    order.layout.opened(placed.point, block.id, is_full);
                    order.open.push(block);
                    continue;
                }
                // What room there is goes to the reclaim that waits for it.
                if !survivor && self.shared.pool.lock().own.stalled > 0 {
                    break None;
                }
                // Rather somewhat too high or too low than not at all.
                let block = order.nearest_with_room(placed.point, len);
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
        let mut reserved = reserved?;
        let location = reserved.mapping.location;
        reserved.mapping.note = self.order.ground().add_note(location, placed.note);
        if !survivor {
            self.order
                .note_slice(&mut order, placed.point, parts, reserved.block());
        }
        order.layout.appended(reserved.block().id, len as u64);
        drop(order);
        // Copied outside the lock, into a range that is this call's alone.
        reserved.copy(self.cache_id, parts);
        let info = &self.blocks[reserved.block().id as usize];
        info.live.fetch_add(len as u64, Ordering::Relaxed);
        Some(reserved)
    }

    /// Starts sealing an open block, under the order's lock: a caller that finds a block open there may go on appending to it.
    pub(crate) fn retire_open(&self, order: &mut OrderState<B>, id: u32) {
        let block = order.close(id).expect("it is open");
        let bytes = block.filled().0;
        self.close_block(block);
        order
            .layout
            .closed(id, Some((bytes, &|| self.blocks_full_at_once())));
    }

    /// How many blocks can be full of objects at once: all but those that are kept free, the open one, and those of checkpoints
    /// and mappings.
    fn blocks_full_at_once(&self) -> usize {
        let states = self.blocks.iter().map(|info| info.state());
        let taken = states.filter(|state| matches!(state, State::Lent | State::Bad));
        self.blocks_for_objects().saturating_sub(taken.count())
    }

    /// The same without looking at each block: those of mappings, and bad ones, are among them. Two checkpoints are kept, and while one is
    /// written there are three.
    fn blocks_for_objects(&self) -> usize {
        let checkpoints = 3 * self.shared.pool.lock().checkpoint_blocks[0].len();
        let others = self.blocks_kept_free() + 1 + checkpoints;
        self.blocks.len().saturating_sub(others)
    }

    /// Whether few blocks are free, so that the queue will not be longer than it is.
    fn is_full(&self) -> bool {
        let free = self.shared.pool.lock().free.len();
        free <= (self.blocks.len() / FULL_SHARE).max(self.blocks_kept_free() + 1)
    }

    /// After the last mapping that recovery found: what nothing counts in leaves the order.
    pub(crate) fn settle_order(&self) {
        let is_full = self.is_full();
        self.order.lock().layout.settle(is_full);
    }

    /// Where every buffer is some section's that is seldom inserted at, the fullest goes, so that the next record finds one.
    fn give_buffer_up(&self, order: &mut OrderState<B>) {
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
        let mut order = self.order.change();
        let before = order.open.len();
        self.give_buffer_up(&mut order);
        order.open.len() < before
    }

    /// Starts sealing all open blocks, however full they are. For a clean stop, and for tests.
    pub fn retire_active(&self) {
        let mut order = self.order.change();
        for block in std::mem::take(&mut order.open) {
            order.layout.closed(block.id, None);
            self.close_block(block);
        }
    }

    /// Starts sealing the open blocks that were opened before the log was at a position.
    pub(crate) fn retire_older(&self, position: u64) {
        let mut order = self.order.change();
        let is_old = |block: &&Arc<OpenBlock<B>>| block.sealing_position.load(Ordering::Acquire) < position;
        let old: Vec<u32> = order.open.iter().filter(is_old).map(|block| block.id).collect();
        for id in &old {
            self.retire_open(&mut order, *id);
        }
    }

    fn open_new_block(&self, survivor: bool) -> Option<Arc<OpenBlock<B>>> {
        let stream = match survivor && self.order.wants.kept_apart {
            true => Stream::Kept,
            false => Stream::New,
        };
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
            info.entries.store(0, Ordering::Relaxed);
            info.is_kept.store(stream == Stream::Kept, Ordering::Relaxed);
            info.is_leaving.store(false, Ordering::Release);
            info.mean_len.store(0, Ordering::Relaxed);
            *info.slots.lock() = Slots::new(self.order.slot_bits);
            info.reclaims.store(0, Ordering::Relaxed);
        })?;
        if !self.is_authoritative() {
            // Its footer may name what is dead: what is logged from here on concerns it.
            block
                .sealing_position
                .store(self.journal.log.position(), Ordering::Release);
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
}
