//! What dies on flash is logged; and what is done where it cannot be.

use super::FlashStore;
use crate::log::LogKind;
use pumice_blocks::log::Kind;
use pumice_blocks::{Logged, State};
use pumice_device::Device;
use pumice_index::Superseded;
use pumice_memory::Buffer;
use std::sync::atomic::Ordering;

impl<B: Buffer> FlashStore<B> {
    /// Called under the shard's lock after `superseded` has taken the place of what the index had of `hash`: records in the log that
    /// it is void, and counts it no more.
    pub fn invalidate<D: Device>(&self, device: &D, hash: u64, superseded: &Superseded, version: u64) {
        self.log_void(device, hash, superseded, version);
        self.order.bury(hash, superseded);
    }

    /// Records in the log that what was superseded is void, if it counts as flash. `version` is above that of every copy that is to be
    /// void. The copy counts until another takes its place ([`FlashStore::append`], [`Order::rank_over`](crate::order::Order::rank_over)).
    pub fn log_void<D: Device>(&self, device: &D, hash: u64, superseded: &Superseded, version: u64) {
        let Some(mapping) = superseded.known else {
            if superseded.may_be_more {
                self.append_log(device, LogKind::Invalidate, hash, version);
            }
            return;
        };
        let location = mapping.location;
        let id = self.order.ground().block_of(location);
        let info = &self.blocks[id as usize];
        let counts_as_flash = match info.state() {
            State::Free => false,
            State::Active => {
                let end = u64::from(info.prefix_end.load(Ordering::Acquire));
                location.offset < self.geometry.block_offset(id) + end
            }
            _ => true,
        };
        let has_kept = self.kept.take(location);
        if counts_as_flash || superseded.may_be_more || has_kept {
            self.append_log(device, LogKind::Invalidate, hash, version);
        }
    }

    /// Appends a record ([`pumice_blocks::Journal::append`]), and sees to a checkpoint that is due. All here is copies: where a
    /// record cannot be stored, the cache starts empty after a crash, and nothing void is ever served.
    pub fn append_log<D: Device>(&self, device: &D, kind: impl Into<Kind<LogKind>>, a: u64, b: u64) {
        let logged = self.base.journal.append(device, kind, a, b);
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
            Logged::NoRoom | Logged::Failed => self.journal.lose_record(device),
        }
    }

    /// Whether a checkpoint is due: for the log, for pages of mappings, or, where there is an order to be kept, because as many blocks as
    /// the device has have been sealed since the last.
    pub(crate) fn is_checkpoint_due(&self) -> bool {
        let is_order_old =
            self.order.wants.checkpoints && self.sealed_since_checkpoint() > u64::from(self.geometry.blocks);
        let do_mappings_wait = || self.mapping_pages().is_some_and(|pages| pages.wants_checkpoint());
        self.journal.wants_checkpoint(is_order_old || do_mappings_wait())
    }

    /// When a delayed flush is due, in Unix seconds; 0 = none.
    pub fn flush_at(&self) -> u32 {
        self.flush_at.load(Ordering::Acquire)
    }

    /// A flush was logged; a delayed one, if any, is seen to with it.
    pub fn flush_done(&self) {
        self.order.forget_all();
        self.kept.clear();
        self.flush_at.store(0, Ordering::Release);
    }

    /// Schedules (or with 0 takes back) a delayed flush, and records that.
    pub fn set_flush_at<D: Device>(&self, device: &D, at: u32) {
        // Stored first: a checkpoint that begins in between has it, or its log does; both is harmless.
        self.flush_at.store(at, Ordering::Release);
        self.append_log(device, LogKind::FlushAt, u64::from(at), 0);
    }
}
