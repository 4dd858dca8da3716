//! What dies counts no more: in its block, and in the layout.

use super::{Order, OrderState};
use crate::block::BlockInfo;
use crate::layout::{Arrival, NotePlace, Rank};
use pumice_blocks::State;
use pumice_index::{Heard, Location, Mapping, StoredCopy, Superseded};
use pumice_memory::Buffer;
use std::sync::atomic::Ordering;

impl<B: Buffer> Order<B> {
    /// What was superseded and logged counts no more.
    pub fn bury(&self, hash: u64, superseded: &Superseded) {
        match superseded.known {
            Some(mapping) => self.forget(Some(hash), mapping),
            None if superseded.may_be_more => self.forget_key(hash),
            None => {}
        }
    }

    /// What was superseded and logged counts no more, and an object of so many bytes comes later: its rank.
    pub fn rank_over(&self, hash: u64, superseded: &Superseded, object_bytes: u64) -> Rank {
        if !self.wants.ranks {
            self.bury(hash, superseded);
            return Rank::TOP;
        }
        self.bury_in(&mut self.change(), hash, superseded, object_bytes)
    }

    /// As [`Order::rank_over`], under the order's lock.
    pub(crate) fn bury_in(
        &self,
        order: &mut OrderState<B>,
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
                let info = self.ground().info(mapping.location);
                self.note_death(info, self.ground().counted_len(mapping));
            }
            None if may_be_more => order.layout.forget_key(hash),
            Some(_) | None => {}
        }
        rank
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
            opened_at: self.ground().sequence_at(own.location),
            heard,
        }
    }

    /// Whether a reclaim of the block was broken off: what it let go of is not told from what is left.
    fn was_broken_off(&self, location: Location) -> bool {
        let info = self.ground().info(location);
        info.reclaims.load(Ordering::Relaxed) > 1
    }

    /// A reorganisation has found that a mapping to the block of this sequence is superseded, and nobody knew: the bytes that lived
    /// until now, or 0.
    pub fn note_superseded(&self, mapping: Mapping, sequence: u64) -> u64 {
        let mut order = self.change();
        // A block is opened under this lock.
        if !self.knows_deaths() || self.ground().sequence_at(mapping.location) != sequence {
            return 0;
        }
        let len = self.ground().counted_len(mapping);
        if !order.layout.died(self.ground(), None, mapping) {
            return 0;
        }
        drop(order);
        let info = self.ground().info(mapping.location);
        self.note_death(info, len);
        len
    }

    /// Whether slots say which objects are dead.
    pub(crate) fn knows_deaths(&self) -> bool {
        self.wants.ranks && self.notes == NotePlace::Slot
    }

    /// Whether a slot says that an object is dead.
    pub(crate) fn is_known_dead(&self, mapping: Mapping) -> bool {
        self.knows_deaths() && self.lock().layout.is_dead(self.ground(), mapping)
    }

    /// The mapping of a copy was removed without need for a record (reclaimed, corrupt, expired).
    /// `hash` is `None` where it is not known.
    pub fn forget(&self, hash: Option<u64>, mapping: Mapping) {
        let info = self.ground().info(mapping.location);
        if self.uncount(hash, mapping) {
            self.note_death(info, self.ground().counted_len(mapping));
        }
    }

    /// A mapping was removed: its object counts no more. Without `hash` it lives on elsewhere, or nobody knows it. False where it
    /// did not count before.
    pub(super) fn uncount(&self, hash: Option<u64>, mapping: Mapping) -> bool {
        !self.wants.ranks || self.change().layout.died(self.ground(), hash, mapping)
    }

    /// As [`Order::forget`] for a block that is being reclaimed. Where not all deaths are known, one object may be taken for another
    /// of the block: its count does not fall below 0, and its part of the order goes with it.
    pub fn forget_with_block(&self, hash: u64, mapping: Mapping) {
        if self.is_authoritative {
            return self.forget(Some(hash), mapping);
        }
        let info = self.ground().info(mapping.location);
        self.forget_key(hash);
        Self::uncount_some(info, self.ground().counted_len(mapping));
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
        let live = if self.is_authoritative {
            info.live.fetch_sub(len, Ordering::AcqRel) - len
        } else {
            Self::uncount_some(info, len)
        };
        if self.is_early_victim(info, live) && !self.has_early_victims.load(Ordering::Relaxed) {
            self.has_early_victims.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a sealed block goes before the lowest when room is wanted: an empty one, and where the layout wants compaction, one
    /// that is mostly dead.
    pub(crate) fn is_early_victim(&self, info: &BlockInfo, live: u64) -> bool {
        info.state() == State::Sealed
            && live * 2 < info.filled.load(Ordering::Relaxed)
            && (live == 0 || self.wants.compaction)
    }

    /// Notes whether a block that counts as sealed from now on may go before the lowest. Not earlier: whoever looked for a victim
    /// meanwhile would not find the block, and take the note away.
    pub(crate) fn note_early_victim(&self, info: &BlockInfo) {
        // A read-modify-write of zero, not a load: against a concurrent `note_death` exactly one side sees the other's value and sets
        // the flag.
        let live = info.live.fetch_add(0, Ordering::AcqRel);
        if info.expiry_max.load(Ordering::Relaxed) != u32::MAX || self.is_early_victim(info, live) {
            self.has_early_victims.store(true, Ordering::Relaxed);
        }
    }
}
