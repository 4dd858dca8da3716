//! The order at a start: what recovery found is counted, and what is no more is forgotten.

use super::Order;
use crate::Mappings;
use crate::checkpoint::KEYS_BATCH;
use crate::footer::ENTRIES_PER_TURN;
use crate::layout::Slots;
use pumice_blocks::{State, give_turn};
use pumice_index::{Known, Mapping};
use pumice_memory::Buffer;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

impl<B: Buffer> Order<B> {
    /// Counts the objects of all sealed blocks as living, but those that slots know to be dead, and returns how many they are, and
    /// their bytes.
    pub(crate) fn count_all_recovered(&self, slots: BTreeMap<u32, Slots>) -> (u64, u64) {
        for (id, slots) in slots {
            self.restore_slots(id, slots);
        }
        let (mut objects, mut bytes) = (0, 0);
        for (id, info) in (0..).zip(&*self.blocks) {
            if info.state() == State::Sealed {
                let filled = info.filled.load(Ordering::Relaxed);
                let mut order = self.lock();
                let mut slots = info.slots.lock();
                let counted = order.layout.found_block(self.ground(), id, &mut slots, filled);
                info.live.store(counted, Ordering::Relaxed);
                objects += u64::from(info.entries.load(Ordering::Relaxed));
                bytes += counted;
            }
        }
        (objects, bytes)
    }

    /// Counts a mapping that recovery found, and answers with the note that it can have.
    pub(crate) fn count_recovered(&self, mapping: Mapping) -> u32 {
        let ground = self.ground();
        let info = &self.blocks[ground.block_of(mapping.location) as usize];
        info.live
            .fetch_add(u64::from(mapping.location.len), Ordering::Relaxed);
        self.lock().layout.found(ground, mapping)
    }

    /// Forgets the priorities of keys that are not mapped any more: of strangers that took a mapping, of what a crash took.
    pub(crate) async fn prune_ranks<M: Mappings>(&self, mappings: &M) {
        let sampled = self.lock().layout.sampled_keys();
        for (at, hash) in sampled.into_iter().enumerate() {
            if at % ENTRIES_PER_TURN == ENTRIES_PER_TURN - 1 {
                give_turn().await;
            }
            mappings.with(hash, |shard| {
                if shard.find(hash) == Known::Dead {
                    self.forget_key(hash);
                }
            });
        }
        self.lock().layout.pruned();
    }

    /// Forgets the keys of the exact queue that are not mapped: what a crash took, or what went after the checkpoint.
    pub(crate) fn prune_keys<M: Mappings>(&self, mappings: &M) {
        let mut below = 0;
        loop {
            let batch: Vec<_> = match self.lock().layout.keys() {
                Some(keys) => keys.save_from(below).take(KEYS_BATCH).collect(),
                None => return,
            };
            if batch.is_empty() {
                return;
            }
            for key in batch {
                mappings.with(key.hash, |shard| {
                    if shard.find(key.hash) != Known::Dead {
                        below += u64::from(key.bytes);
                    } else {
                        self.forget_key(key.hash);
                    }
                });
            }
        }
    }
}
