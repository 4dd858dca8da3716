//! The rules of the accounting, for tests.

use super::{FlashStore, State, VirtualCache};
use crate::queue::Queue;
use pumice_index::Mapping;
use pumice_memory::Buffer;
use std::sync::atomic::Ordering;

impl<B: Buffer> FlashStore<B> {
    /// Re-derives the queue's accounting, and compares its bytes with those of the blocks, which are the result. While nothing else
    /// runs.
    ///
    /// # Panics
    /// Where they do not agree, a block is in two lists or in none, or a block that goes before the lowest would not be found.
    pub fn check_order(&self) -> u64 {
        self.check_blocks();
        let order = self.order.lock();
        if let Some(keys) = &order.virtual_cache {
            keys.check_invariants();
        }
        let mut live = 0;
        for (id, info) in self.blocks.iter().enumerate() {
            let bytes = info.live.load(Ordering::Relaxed);
            let is_known = self.has_early_victims.load(Ordering::Relaxed);
            assert!(
                is_known || !self.is_early_victim(info, bytes),
                "block {id} is forgotten"
            );
            live += bytes;
        }
        let Some(ranked) = &order.ranked else { return live };
        ranked.queue.check_invariants();
        ranked.queue.check_balance();
        if !self.is_order_estimate.load(Ordering::Relaxed) {
            assert_eq!(ranked.queue.bytes(), live, "bytes in the queue and in blocks");
        }
        self.check_slots(&ranked.queue);
        // Without a cascade index, where what is raised is partly guessed.
        if self.mapping_log.get().is_none() {
            let counts = self.counters.snapshot();
            let (written, raised) = (counts.survivors - counts.survivors_unraised, counts.raises);
            let restored = self.raised_at_start.load(Ordering::Relaxed);
            assert!(
                written <= raised + restored,
                "{written} objects written again, of {raised} raised, and {restored} before the start"
            );
        }
        live
    }

    /// What a clean stop keeps of priorities, as text to compare: the histogram and the sample under `ripq`, the queue of keys under
    /// `sipq`.
    pub fn priorities(&self) -> String {
        let order = self.order.lock();
        let ranks = (order.ranked.as_ref()).map(|ranked| ranked.ranks.save(self.layout().policy_checksum()));
        let keys: Vec<_> = order.virtual_cache.iter().flat_map(VirtualCache::save).collect();
        format!("{ranks:?} {keys:?}")
    }

    /// Whether each block is in one list, and is what that says.
    fn check_blocks(&self) {
        let pool = self.shared.pool.lock();
        let [newest, older] = &pool.checkpoint_blocks;
        let dropped = &pool.checkpoint_dropped;
        let lists: [(&[State], Vec<u32>); 3] = [
            (&[State::Free], pool.free.iter().copied().collect()),
            (&[State::Sealed], pool.own.queue.iter().copied().collect()),
            (
                &[State::Checkpoint, State::Bad],
                [newest, older, dropped].into_iter().flatten().copied().collect(),
            ),
        ];
        let mut is_listed = vec![false; self.blocks.len()];
        for (states, ids) in lists {
            for id in ids {
                let state = self.blocks[id as usize].state();
                assert!(states.contains(&state), "block {id} is {state:?}, not {states:?}");
                assert!(
                    !std::mem::replace(&mut is_listed[id as usize], true),
                    "block {id} is listed twice"
                );
            }
        }
        if pool.in_flight > 0 {
            // Somebody may have one in hand, as for a checkpoint that is being written.
            return;
        }
        for (id, info) in self.blocks.iter().enumerate() {
            let is_lost = matches!(info.state(), State::Free | State::Sealed | State::Checkpoint);
            assert!(
                is_listed[id] || !is_lost,
                "block {id}, {:?}, is in no list",
                info.state()
            );
        }
    }

    /// Compares what counts in each block and each virtual place with the mappings that say they count there; all that there are, of an
    /// index that knows all. While nothing else runs.
    ///
    /// # Panics
    /// Where they do not agree: an object counts nowhere, twice, or elsewhere than it says.
    pub fn check_seats(&self, mappings: impl Iterator<Item = Mapping>) {
        let order = self.order.lock();
        let Some(ranked) = &order.ranked else { return };
        if self.slot_kind.has_seats() {
            return;
        }
        ranked
            .queue
            .check_seats(mappings.map(|mapping| (self.seat(mapping), self.counted_len(mapping))));
    }

    /// Compares the objects that slots know in virtual places with those that count there.
    ///
    /// # Panics
    /// Where they do not agree.
    fn check_slots(&self, queue: &Queue) {
        if !self.slot_kind.has_seats() {
            return;
        }
        let mut counted = vec![0; self.slot_kind.marks() as usize];
        for info in &*self.blocks {
            let slots = info.slots.lock();
            let notes = (0..slots.len()).filter_map(|number| self.slot_kind.decode(slots.get(number)));
            notes.for_each(|note| counted[note.mark as usize] += 1);
        }
        for (mark, counted) in (1..).zip(&counted[1..]) {
            assert_eq!(*counted, queue.virtual_objects(mark), "objects with mark {mark}");
        }
    }
}
