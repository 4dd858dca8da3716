//! What dies on flash is logged; and what is done where it cannot be.

use super::{BlockInfo, FlashStore, Order};
use crate::layout::{Arrival, NotePlace, Rank};
use crate::log::LogKind;
use pumice_blocks::log::Kind;
use pumice_blocks::{Logged, State};
use pumice_device::Device;
use pumice_index::{Heard, Location, Mapping, StoredCopy, Superseded};
use pumice_memory::Buffer;
use std::sync::atomic::Ordering;

impl<B: Buffer> FlashStore<B> {
    /// Called under the shard's lock after `superseded` has taken the place of what the index had of `hash`: records in the log that
    /// it is void, and counts it no more.
    pub fn invalidate<D: Device>(&self, device: &D, hash: u64, superseded: &Superseded, version: u64) {
        self.log_void(device, hash, superseded, version);
        self.bury(hash, superseded);
    }

    /// What was superseded and logged counts no more.
    pub fn bury(&self, hash: u64, superseded: &Superseded) {
        match superseded.known {
            Some(mapping) => self.forget(Some(hash), mapping),
            None if superseded.may_be_more => self.forget_key(hash),
            None => {}
        }
    }

    /// Records in the log that what was superseded is void, if it counts as flash. `version` is above that of every copy that is to be
    /// void. The copy counts until another takes its place ([`FlashStore::append`], [`FlashStore::rank_over`]).
    pub fn log_void<D: Device>(&self, device: &D, hash: u64, superseded: &Superseded, version: u64) {
        let Some(mapping) = superseded.known else {
            if superseded.may_be_more {
                self.append_log(device, LogKind::Invalidate, hash, version);
            }
            return;
        };
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
        if counts_as_flash || superseded.may_be_more {
            self.append_log(device, LogKind::Invalidate, hash, version);
        }
    }

    /// What was superseded and logged counts no more, and an object of so many bytes comes later: its rank.
    pub fn rank_over(&self, hash: u64, superseded: &Superseded, object_bytes: u64) -> Rank {
        if !self.wants.ranks {
            self.bury(hash, superseded);
            return Rank::TOP;
        }
        self.bury_in(&mut self.order(), hash, superseded, object_bytes)
    }

    /// As [`FlashStore::rank_over`], under the order's lock.
    pub(super) fn bury_in(
        &self,
        order: &mut Order<B>,
        hash: u64,
        superseded: &Superseded,
        object_bytes: u64,
    ) -> Rank {
        let Superseded {
            known: old,
            may_be_more,
            ..
        } = *superseded;
        let ground = self.ground();
        let again = Arrival::Again {
            hash,
            old,
            may_be_more,
        };
        // Before the death: it changes what the layout knows of the former copy.
        let rank = order.layout.rank(ground, again, object_bytes);
        match old {
            Some(mapping) if order.layout.died(ground, Some(hash), mapping) => {
                let info = &self.blocks[self.block_of(mapping.location) as usize];
                self.note_death(info, self.counted_len(mapping));
            }
            None if may_be_more => order.layout.forget_key(hash),
            Some(_) | None => {}
        }
        rank
    }

    /// A record that was just appended under `hash` is mapped by nothing, and no start may find it. The caller still holds what the
    /// append returned.
    pub fn void_appended<D: Device>(&self, device: &D, hash: u64) {
        self.append_log(device, LogKind::Invalidate, hash, self.next_version());
    }

    /// A copy as its mapping has it, and what is known of it here, for the index. Where slots say which objects are dead, all deaths
    /// reach them: at once where DRAM knew the mapping, else with the reorganisation that merges it with what superseded it. Called
    /// under the shard's lock.
    pub fn stored_copy(&self, own: Mapping) -> StoredCopy {
        let heard = if self.was_broken_off(own.location) || self.is_known_dead(own) {
            Heard::Dead
        } else if !self.knows_deaths() {
            Heard::Nothing
        } else if self.ground().note(own).is_some() {
            Heard::Alive
        } else {
            Heard::Lost
        };
        StoredCopy {
            mapping: own,
            opened_at: self.sequence_at(own.location),
            heard,
        }
    }

    /// Whether a reclaim of the block was broken off: what it let go of is not told from what is left.
    fn was_broken_off(&self, location: Location) -> bool {
        let info = &self.blocks[self.block_of(location) as usize];
        info.reclaims.load(Ordering::Relaxed) > 1
    }

    /// A reorganisation has found that a mapping to the block of this sequence is superseded, and nobody knew: the bytes that lived
    /// until now, or 0.
    pub(crate) fn note_superseded(&self, mapping: Mapping, sequence: u64) -> u64 {
        let mut order = self.order();
        // A block is opened under this lock.
        if !self.knows_deaths() || self.sequence_at(mapping.location) != sequence {
            return 0;
        }
        let len = self.counted_len(mapping);
        if !order.layout.died(self.ground(), None, mapping) {
            return 0;
        }
        drop(order);
        let info = &self.blocks[self.block_of(mapping.location) as usize];
        self.note_death(info, len);
        len
    }

    /// Whether slots say which objects are dead.
    pub(crate) fn knows_deaths(&self) -> bool {
        self.wants.ranks && self.notes == NotePlace::Slot
    }

    /// Whether a slot says that an object is dead.
    pub(crate) fn is_known_dead(&self, mapping: Mapping) -> bool {
        self.knows_deaths() && self.order.lock().layout.is_dead(self.ground(), mapping)
    }

    /// The bytes that an object counts with.
    pub(crate) fn counted_len(&self, mapping: Mapping) -> u64 {
        self.ground().counted_len(mapping)
    }

    /// The mapping of a copy was removed without need for a record (reclaimed, corrupt, expired).
    /// `hash` is `None` where it is not known.
    pub fn forget(&self, hash: Option<u64>, mapping: Mapping) {
        let info = &self.blocks[self.block_of(mapping.location) as usize];
        if self.uncount(hash, mapping) {
            self.note_death(info, self.counted_len(mapping));
        }
    }

    /// As [`FlashStore::forget`] for a block that is being reclaimed. Where not all deaths are known, one object may be taken for another
    /// of the block: its count does not fall below 0, and its part of the order goes with it.
    pub fn forget_with_block(&self, hash: u64, mapping: Mapping) {
        if self.is_authoritative() {
            return self.forget(Some(hash), mapping);
        }
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
        let live = if self.is_authoritative() {
            info.live.fetch_sub(len, Ordering::AcqRel) - len
        } else {
            Self::uncount_some(info, len)
        };
        if self.is_early_victim(info, live) && !self.has_early_victims.load(Ordering::Relaxed) {
            self.has_early_victims.store(true, Ordering::Relaxed);
        }
    }

    /// Appends a record ([`pumice_blocks::Blocks::append_log`]), and sees to a checkpoint that is due. All here is copies: where a
    /// record cannot be stored, the cache starts empty after a crash, and nothing void is ever served.
    pub fn append_log<D: Device>(&self, device: &D, kind: impl Into<Kind<LogKind>>, a: u64, b: u64) {
        let logged = self.base.append_log(device, kind, a, b);
        self.make_up_for(device, logged);
        if !self.is_out() && self.is_checkpoint_due() {
            self.shared.has_work.store(true, Ordering::Release);
        }
    }

    /// A change goes on, whether its record was stored or not. What is on a fenced device is void as it is.
    pub(crate) fn make_up_for<D: Device>(&self, device: &D, logged: Logged) {
        match logged {
            Logged::Stored | Logged::Off => {}
            Logged::NoRoom | Logged::Failed if self.is_out() => {}
            Logged::NoRoom | Logged::Failed => self.lose_record(device),
        }
    }

    /// Whether a checkpoint is due: for the log, for pages of mappings, or, where there is an order to be kept, because as many blocks as
    /// the device has have been sealed since the last.
    pub(crate) fn is_checkpoint_due(&self) -> bool {
        let is_order_old =
            self.wants.checkpoints && self.sealed_since_checkpoint() > u64::from(self.geometry.blocks);
        self.wants_checkpoint(is_order_old || self.wants_mapping_checkpoint())
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

    /// Schedules (or with 0 takes back) a delayed flush, and records that.
    pub fn set_flush_at<D: Device>(&self, device: &D, at: u32) {
        // Stored first: a checkpoint that begins in between has it, or its log does; both is harmless.
        self.flush_at.store(at, Ordering::Release);
        self.append_log(device, LogKind::FlushAt, u64::from(at), 0);
    }
}
