//! What dies on flash is logged; and what is done where it cannot be.

use super::{BlockInfo, Durability, FlashStore, State, add};
use crate::layout::Layout;
use crate::log::LogKind;
use pumice_blocks::geometry::LOG_RECORD_BYTES;
use pumice_blocks::log::Kind;
use pumice_blocks::superblock::Superblock;
use pumice_device::{Device, SECTOR_BYTES};
use pumice_index::{Location, Mapping};
use pumice_memory::Buffer;
use std::io;
use std::sync::atomic::Ordering;

/// How often it is tried to write a superblock that must be written.
const SUPERBLOCK_TRIES: u32 = 8;

impl<B: Buffer> FlashStore<B> {
    /// Called under the shard's lock for a copy whose mapping is about to be removed or replaced: records it in the log
    /// if it counts as flash. `version` is above that of every copy that is to be void.
    pub fn invalidate<D: Device>(&self, device: &D, hash: u64, mapping: Mapping, version: u64) {
        let location = mapping.location;
        let id = self.block_of(location);
        let info = &self.blocks[id as usize];
        let counts_as_flash = match info.state() {
            State::Free => false,
            State::Active => {
                let end = u64::from(info.prefix_end.load(Ordering::Acquire));
                location.offset < self.geometry.block_offset(id) + end
            }
            _ => true,
        };
        // With a cascade index the block's footer may name the copy although it is dead.
        if counts_as_flash || self.mapping_log.get().is_some() {
            self.append_log(device, LogKind::Invalidate, hash, version);
        }
        self.note_invalidated(hash);
        if self.uncount(Some(hash), mapping) {
            self.note_death(info, self.counted_len(mapping));
        }
    }

    /// As [`FlashStore::invalidate`], for a copy that there may be on flash, nobody knows where.
    pub fn invalidate_unknown<D: Device>(&self, device: &D, hash: u64, version: u64) {
        self.append_log(device, LogKind::Invalidate, hash, version);
        self.note_invalidated(hash);
        self.forget_key(hash);
    }

    /// Remembers that what stands in blocks under `hash` may not be the latest any more.
    pub fn note_invalidated(&self, hash: u64) {
        if self.mapping_log.get().is_some() {
            let structure = self.shared.structure.lock();
            self.invalidated.lock().note(hash, structure.next_sequence);
        }
    }

    /// What stands in blocks under `hash` has lost its mapping, and no record voids it.
    pub fn note_hidden(&self, hash: u64) {
        if self.mapping_log.get().is_some() {
            self.note_invalidated(hash);
            let structure = self.shared.structure.lock();
            self.hidden.lock().note(hash, structure.next_sequence);
        }
    }

    /// Whether blocks may have a copy under `hash` of which no mapping tells, and which the log does not void either: with a cascade
    /// index a copy that comes from DRAM may have taken the place of another key's unseen, and has been reclaimed since. A start would
    /// find it in a footer. (Not one from before this start: its checkpoint has all blocks, whose footers are not read again.)
    pub fn may_have_unmapped(&self, hash: u64) -> bool {
        self.mapping_log.get().is_some() && self.hidden.lock().since_the_oldest(hash)
    }

    /// Records that such a copy is void.
    pub fn void_unmapped<D: Device>(&self, device: &D, hash: u64, version: u64) {
        self.append_log(device, LogKind::Invalidate, hash, version);
        // Nor may a reclaim take it for the last that was written.
        self.note_invalidated(hash);
    }

    /// Everything was flushed: called with all shards locked.
    pub fn note_flush(&self) {
        let structure = self.shared.structure.lock();
        self.invalidated.lock().forget_before(structure.next_sequence);
    }

    /// A record that was just appended under `hash` is mapped by nothing, and no start may find it. The caller still holds what the
    /// append returned.
    pub fn void_appended<D: Device>(&self, device: &D, hash: u64) {
        self.append_log(device, LogKind::Invalidate, hash, self.next_version());
        // Nor may the reclaim of the block take it for the last that was written.
        self.note_invalidated(hash);
    }

    /// Whether nothing was invalidated under `hash` since the block at `location` was opened, so far as is remembered.
    pub fn is_last_written(&self, hash: u64, location: Location) -> bool {
        let info = &self.blocks[self.block_of(location) as usize];
        // What a reclaim that was broken off let go of is not told from what is left.
        info.reclaims.load(Ordering::Relaxed) <= 1
            && !self.invalidated.lock().since(hash, self.sequence_at(location))
    }

    /// The mapping of a copy was removed without need for a record (reclaimed, corrupt, expired).
    /// `hash` is `None` where it is not known.
    pub fn forget(&self, hash: Option<u64>, mapping: Mapping) {
        let info = &self.blocks[self.block_of(mapping.location) as usize];
        if self.uncount(hash, mapping) {
            self.note_death(info, self.counted_len(mapping));
        }
    }

    /// As [`FlashStore::forget`] for a block that is being reclaimed, where what is forgotten may be something else of the block:
    /// its count does not fall below 0. The block's part of the order goes with it.
    pub fn forget_some(&self, hash: u64, mapping: Mapping) {
        let info = &self.blocks[self.block_of(mapping.location) as usize];
        self.forget_key(hash);
        Self::uncount_some(info, self.counted_len(mapping));
    }

    /// Takes `len` from what lives in a block, down to 0, and returns the rest. With a cascade index one object may be taken for
    /// another, and be counted twice.
    fn uncount_some(info: &BlockInfo, len: u64) -> u64 {
        let uncounted = info
            .live
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |live| {
                Some(live.saturating_sub(len))
            });
        uncounted.map_or(0, |live| live.saturating_sub(len))
    }

    /// The last thing that is done for a mapping that goes: a block in which nothing lives any more may leave the order, and
    /// then nothing may count there.
    fn note_death(&self, info: &BlockInfo, len: u64) {
        let live = if self.mapping_log.get().is_some() {
            Self::uncount_some(info, len)
        } else {
            info.live.fetch_sub(len, Ordering::AcqRel) - len
        };
        if self.is_early_victim(info, live) && !self.has_early_victims.load(Ordering::Relaxed) {
            self.has_early_victims.store(true, Ordering::Relaxed);
        }
    }

    /// Appends a record; where that fails, marks the cache so that it starts empty after a crash: nothing void is ever
    /// served.
    pub fn append_log<D: Device>(&self, device: &D, kind: impl Into<Kind<LogKind>>, a: u64, b: u64) {
        // What is on a device that was taken out is void as it is.
        if self.durability == Durability::Off || self.is_out() {
            return;
        }
        let stored = match self.log.append(device, kind.into(), a, b) {
            Ok(stored) => stored,
            Err(error) => {
                tracing::error!("invalidation log: {error}");
                self.shared.saw_error(&error);
                false
            }
        };
        add(&self.counters.log_records, 1);
        add(&self.counters.written_bytes, LOG_RECORD_BYTES);
        if !stored {
            self.log_failed_below
                .fetch_max(self.log.position() + 1, Ordering::AcqRel);
            self.counters.log_failures.fetch_add(1, Ordering::AcqRel);
            self.distrust(device);
        }
        self.logged.fetch_add(1, Ordering::AcqRel);
        if self.wants_checkpoint() {
            self.shared.has_work.store(true, Ordering::Release);
        }
    }

    /// Whether a quarter of the log has been written since the newest checkpoint, or three quarters of it are in use, or, where there is
    /// an order to be kept, as many blocks as the device has have been sealed; and, where one failed, another sixteenth of the log since that: a device that refuses
    /// checkpoints is not asked all the time.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        let sealed = self.counters.sealed_blocks.load(Ordering::Relaxed);
        // A checkpoint may begin between the two.
        let sealed = sealed.saturating_sub(self.sealed_at_checkpoint.load(Ordering::Relaxed));
        let has_order = match self.layout.layout {
            Layout::Fifo => false,
            Layout::Sipq => self.layout.theta > 0.0,
            Layout::Ripq => true,
        };
        let log_slots = self.geometry.log_slots;
        let since = self.log.position().saturating_sub(self.log.last_checkpoint());
        // A checkpoint leaves the log what the one before it needs. Where it began late, that is most of the log, and less than a quarter
        // of it is left before its position stands still.
        let is_log_due = since > log_slots / 4 || self.log.usage().0 > log_slots / 4 * 3;
        let is_order_old = has_order && sealed > u64::from(self.geometry.blocks);
        // Records are counted as they are wanted: where the log is full its position stands still.
        let wanted = self.counters.log_records.load(Ordering::Relaxed);
        let failed_at = self.checkpoint_failed_at.load(Ordering::Relaxed);
        self.durability != Durability::Off
            && (is_order_old || is_log_due || self.wants_mapping_checkpoint())
            && (failed_at == 0 || wanted > failed_at + log_slots / 16)
    }

    /// Whether the log is nearly full, and a checkpoint is about to make room: a change should wait for it ([`FlashStore::wait_for_log`]).
    pub fn is_log_short(&self) -> bool {
        let (used, slots) = self.log.usage();
        used > slots / 8 * 7 && self.checkpoint_failed_at.load(Ordering::Relaxed) == 0 && !self.is_out()
    }

    /// Waits until the log has room, or nothing is under way that would make any. A device that is slower than its log fills slows down
    /// the changes; without that a crash would empty the cache.
    pub async fn wait_for_log(&self) {
        self.wait_for(|structure| structure.in_flight == 0 || !self.is_log_short())
            .await;
    }

    /// From now until the next checkpoint a crash empties the cache. A failing device gets a few tries; if none succeeds,
    /// it is taken out.
    pub(crate) fn distrust<D: Device>(&self, device: &D) {
        let mut superblock = self.superblock.lock();
        if superblock.discard || self.is_out() {
            return;
        }
        superblock.discard = true;
        // Both, so that the one that is left when the other cannot be read says the same.
        let mut written = [false; 2];
        for written in &mut written {
            *written = self.insist_on_superblock(device, &mut superblock);
        }
        // Both of what follows before the lock is let go of: whoever finds the mark made then finds that it is to be flushed, or that
        // the device is out, and does not answer before that is seen to.
        self.logged.fetch_add(1, Ordering::AcqRel);
        if written == [false; 2] {
            self.shared
                .take_out("neither its log nor its superblocks can be written".to_owned());
        }
    }

    /// After a superblock that could not be written: its slot may hold it all the same, as a write that fails may have been done in
    /// part or whole. What is true is written over it; where that fails too, nobody knows what a start would find, and the device is
    /// taken out.
    pub(crate) fn write_superblock_again<D: Device>(&self, device: &D, superblock: &mut Superblock) {
        if !self.insist_on_superblock(device, superblock) {
            self.shared
                .take_out("its superblocks cannot be written".to_owned());
        }
    }

    /// Writes the superblock to the slot whose turn it is; whether one of a few tries succeeded.
    pub(crate) fn insist_on_superblock<D: Device>(&self, device: &D, superblock: &mut Superblock) -> bool {
        (0..SUPERBLOCK_TRIES).any(|_| self.write_superblock(device, superblock))
    }

    /// Writes the superblock to the slot whose turn it is; whether that succeeded. Else the slot holds what it held, this one, or
    /// nothing whole.
    pub(crate) fn write_superblock<D: Device>(&self, device: &D, superblock: &mut Superblock) -> bool {
        // `discard` is the last thing that is written there then.
        if self.is_out() {
            return false;
        }
        superblock.generation += 1;
        add(&self.counters.written_bytes, SECTOR_BYTES as u64);
        let bytes = superblock.encode();
        match device.append_log(superblock.slot_offset(), &bytes) {
            Ok(()) => true,
            Err(error) => {
                tracing::error!("writing the superblock: {error}");
                // The same slot again: the other one still holds the last good generation.
                superblock.generation -= 1;
                false
            }
        }
    }

    /// Waits until what was logged is as durable as was asked for; at once unless that is [`Durability::Power`], and where the
    /// device was taken out.
    ///
    /// # Errors
    /// What the device said, which is then taken out.
    pub async fn commit<D: Device<Buf = B>>(&self, device: &D) -> io::Result<()> {
        // Not the position of the log: a record that could not be stored does not move it, and its answer stands on a mark.
        let logged = self.logged.load(Ordering::Acquire);
        if self.durability == Durability::Power
            && !self.is_out()
            && self.synced.load(Ordering::Acquire) < logged
        {
            self.shared.sync(device).await?;
            self.synced.fetch_max(logged, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Log records in use, and records that fit.
    pub fn log_usage(&self) -> (u64, u64) {
        self.log.usage()
    }

    /// When a delayed flush is due, in Unix seconds; 0 = none.
    pub fn flush_at(&self) -> u32 {
        self.flush_at.load(Ordering::Acquire)
    }

    /// A flush was logged; a delayed one, if any, is seen to with it.
    pub fn flush_done(&self) {
        self.forget_order();
        self.flush_at.store(0, Ordering::Release);
    }

    /// Forgets what is remembered of objects to put them in order.
    pub(super) fn forget_order(&self) {
        let mut order = self.order.lock();
        self.has_been_full.store(false, Ordering::Relaxed);
        if let Some(ranked) = &mut order.ranked {
            ranked.ranks.clear();
        }
        if let Some(keys) = &mut order.virtual_cache {
            keys.clear();
        }
    }

    /// Schedules (or with 0 takes back) a delayed flush, and records that.
    pub fn set_flush_at<D: Device>(&self, device: &D, at: u32) {
        // Stored first: a checkpoint that begins in between has it, or its log does; both is harmless.
        self.flush_at.store(at, Ordering::Release);
        self.append_log(device, LogKind::FlushAt, u64::from(at), 0);
    }
}
