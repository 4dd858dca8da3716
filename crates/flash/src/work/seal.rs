//! Writing a full block: what its footer is composed of, and what is counted when it is written, or is not.

use super::Worker;
use crate::footer::{Ending, FooterEntry};
use crate::layout::NotePlace;
use crate::objects::{Objects, OpenBlock, Pool, Work};
use crate::{Gone, Mappings};
use pumice_blocks::{Contents, SealEnd, Tenant};
use pumice_device::Device;
use pumice_index::Known;
use pumice_memory::Buffer;
use std::sync::atomic::Ordering;

impl<B: Buffer, D: Device<Buf = B>, M: Mappings> Worker<'_, B, D, M> {
    /// Writes the block of a piece of work.
    pub(super) async fn perform_seal(&self, work: Work<B>) {
        self.store.seal(self.device, self, self.now, work).await;
    }
}

impl<B: Buffer, D: Device<Buf = B>, M: Mappings> Tenant<Objects<B>> for Worker<'_, B, D, M> {
    /// Drops from the footer what has died.
    fn compose(&self, block: &OpenBlock<B>, mut entries: Vec<FooterEntry>) -> Contents<FooterEntry> {
        let store = self.store;
        let lives = |entry: &FooterEntry| {
            let location = store.order.ground().location(block.id, entry);
            self.mappings.with(entry.hash, |shard| {
                shard.known(entry.hash, location) != Known::Dead || store.is_kept(location)
            })
        };
        // With slots all stay, because their numbers are those of the slots.
        if store.order.notes != NotePlace::Slot {
            entries.retain(lives);
        }
        let own = entries
            .iter()
            .any(lives)
            .then(|| Ending::new(&entries, store.order.trailer_position(block.id)).encode());
        Contents { entries, own }
    }

    fn settle(&self, block: &OpenBlock<B>, end: SealEnd, entries: &[FooterEntry]) {
        let store = self.store;
        store.end_kept(self.device, self.mappings, block, block.buffer.len());
        let info = &store.blocks[block.id as usize];
        if end == SealEnd::Written {
            let expiry_max = Ending::new(entries, 0).expiry_max;
            info.expiry_max.store(expiry_max, Ordering::Relaxed);
            info.filled.store(block.piece_bytes(), Ordering::Relaxed);
            info.entries.store(entries.len() as u32, Ordering::Relaxed);
            return store.order.shrink_slots(block.id);
        }
        if let SealEnd::Failed(logged) = end {
            store.make_up_for(self.device, logged);
            info.is_leaving.store(true, Ordering::Release);
            for entry in entries {
                self.mappings.drop_copy(
                    entry.hash,
                    store.order.ground().mapping(block.id, entry),
                    Gone::Lost,
                );
            }
        }
        store.order.settle_slots(block.id, Some(entries));
        info.live.store(0, Ordering::Relaxed);
        if !store.is_authoritative() {
            // No mapping on flash leads to this generation of the block any more.
            info.sequence.store(0, Ordering::Release);
        }
        store.order.freed(block.id);
    }

    fn file(&self, pool: &mut Pool<B>, block: u32, end: SealEnd) {
        if end != SealEnd::Written {
            return;
        }
        let blocks = &self.store.blocks;
        let sequence_of = |id: u32| blocks[id as usize].sequence.load(Ordering::Relaxed);
        // Blocks written at the same time end in any order; the queue is by sequence.
        let queue = &mut pool.own.queue;
        let at = queue.partition_point(|other| sequence_of(*other) < sequence_of(block));
        queue.insert(at, block);
        self.store.order.note_early_victim(&blocks[block as usize]);
    }
}
