//! Combining: what a merge of two sections does with the buffer that is no insertion point any more.
//!
//! As in RIPQ (FAST 15, section 4.2), whose lower section gives its buffer to the upper one if it fits, and pads and seals it else. The
//! merge itself happens under the order's lock, often under that of a key, and may take no other key's. So the block is queued to be
//! sealed as any other; and before it is composed its live objects are copied to the one that is filled there now, if all of them fit. They become
//! live there one by one, by compare-and-set. A block in which nothing is left is not written. What found no room after all,
//! because others took it, is written with the block.

use crate::block::OpenBlock;
use crate::footer::footer_len;
use crate::reclaim::ENTRIES_PER_TURN;
use crate::store::{FlashStore, add, give_turn};
use crate::survivors::READ_BYTES_MAX;
use crate::{CopyMove, Mappings};
use pumice_memory::Buffer;
use std::sync::Arc;

impl<B: Buffer> FlashStore<B> {
    /// Copies what lives in a block that nobody appends to any more to the one that is filled in its section, if it fits.
    pub(crate) async fn combine<M: Mappings>(&self, mappings: &M, block: &Arc<OpenBlock<B>>) {
        // A cascade index would be left with mappings on flash to a block that goes on as it is where not all fit.
        if self.mapping_log.get().is_some() {
            return;
        }
        block.wait_for_writers();
        let Some(entries) = block.entries_from(0, usize::MAX) else {
            return;
        };
        let mut live = Vec::new();
        let mut bytes = 0;
        for (at, entry) in entries.into_iter().enumerate() {
            if at % ENTRIES_PER_TURN == ENTRIES_PER_TURN - 1 {
                give_turn().await;
            }
            let location = self.location(block.id, &entry);
            if mappings.with(entry.hash, |shard| shard.is_live(entry.hash, location)) {
                bytes += entry.len as usize;
                live.push(entry);
            }
        }
        if bytes + footer_len(live.len()) > self.room_beside(block.id) {
            return;
        }
        let turn_bytes = READ_BYTES_MAX.min(self.geometry.block_bytes / 8);
        let mut copied = 0;
        for entry in &live {
            // Others get their turn as they do while survivors are moved.
            copied += u64::from(entry.len);
            if copied > turn_bytes {
                copied = 0;
                give_turn().await;
            }
            let from = self.mapping(block.id, entry);
            let Some(record) = self.peek_memory(block, from.location) else {
                return;
            };
            // What died meanwhile stays where it is, and is not written.
            let parts = record.parts();
            let (moved, _) = self.replace(mappings, entry.hash, from, |mapping| {
                self.append_combined(block.id, entry.hash, &parts, mapping)
            });
            if moved == CopyMove::NoRoom {
                return;
            }
        }
        add(&self.counters.combined_blocks, 1);
    }
}
