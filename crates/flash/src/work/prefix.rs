//! Prefixes of active blocks: flush 2 of [`pumice_blocks::Blocks::begin_prefix`], whose module draws the race.

use super::Worker;
use crate::Mappings;
use crate::footer::ENTRIES_PER_TURN;
use crate::log::LogKind;
use crate::objects::OpenBlock;
use pumice_blocks::turn_after;
use pumice_device::Device;
use pumice_index::Known;
use pumice_memory::Buffer;
use std::io;

impl<B: Buffer, D: Device<Buf = B>, M: Mappings> Worker<'_, B, D, M> {
    /// Writes what an active block begins with. A piece of work: one at a time for each block.
    pub(super) async fn flush_block(&self, block: &OpenBlock<B>) -> io::Result<()> {
        let prefix = {
            // A block begins to be sealed under this lock, and is not written before this has ended. One that died before is another
            // generation's by now.
            let mut order = self.store.order.change();
            if !self.store.is_active(block) {
                return Ok(());
            }
            let prefix = block.begin_prefix();
            if prefix.is_none() {
                self.store.retire_open(&mut order, block.id);
            }
            prefix
        };
        let Some(prefix) = prefix else { return Ok(()) };
        self.store.begin_prefix(block, &prefix);
        if self.store.is_authoritative() {
            for (at, entry) in prefix.entries.iter().enumerate() {
                turn_after(at, ENTRIES_PER_TURN).await;
                let location = self.store.order.ground().location(block.id, entry);
                self.mappings.with(entry.hash, |shard| {
                    if shard.known(entry.hash, location) == Known::Dead && !self.store.is_kept(location) {
                        self.store
                            .append_log(self.device, LogKind::Void, entry.hash, entry.version + 1);
                    }
                });
            }
        }
        let position = self.store.order.trailer_position(block.id);
        let logged = self
            .store
            .write_prefix(self.device, block, &prefix, Some(position), self.now)
            .await?;
        self.store.make_up_for(self.device, logged);
        self.store
            .end_kept(self.device, self.mappings, block, prefix.range.end);
        Ok(())
    }
}
