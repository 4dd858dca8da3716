//! The slots of blocks, and the DRAM that they take.

use super::Order;
use crate::footer::FooterEntry;
use crate::layout::{NotePlace, Slots};
use pumice_memory::Buffer;
use std::sync::atomic::Ordering;

impl<B: Buffer> Order<B> {
    /// A block is sealed: it gets no slot any more.
    pub(crate) fn shrink_slots(&self, id: u32) {
        let mut slots = self.blocks[id as usize].slots.lock();
        slots.shrink();
        self.charge_slots(0, slots.dram_bytes());
    }

    /// Slots of a block that a checkpoint has saved.
    pub(crate) fn restore_slots(&self, id: u32, mut slots: Slots) {
        slots.shrink();
        self.charge_slots(0, slots.dram_bytes());
        *self.blocks[id as usize].slots.lock() = slots;
    }

    /// Everything in a block counts nowhere any more. `entries` are all that its footer lists, where that could be read.
    pub(crate) fn settle_slots(&self, id: u32, entries: Option<&[FooterEntry]>) {
        if self.notes != NotePlace::Slot {
            return;
        }
        let info = &self.blocks[id as usize];
        let mut order = self.change();
        let slots = std::mem::take(&mut *info.slots.lock());
        if info.filled.load(Ordering::Relaxed) != 0 {
            self.charge_slots(slots.dram_bytes(), 0);
        }
        let lens: Option<Vec<u32>> = entries.map(|entries| entries.iter().map(|entry| entry.len).collect());
        if !order.layout.emptied(self.ground(), id, &slots, lens.as_deref()) {
            self.is_estimate.store(true, Ordering::Relaxed);
        }
    }

    /// DRAM of slots has changed from `before` to `after`.
    fn charge_slots(&self, before: usize, after: usize) {
        self.slot_bytes.fetch_add(after as u64, Ordering::Relaxed);
        self.slot_bytes.fetch_sub(before as u64, Ordering::Relaxed);
    }

    /// DRAM of all slots of sealed blocks, in bytes.
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes.load(Ordering::Relaxed)
    }
}
