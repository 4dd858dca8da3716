//! Prefixes of active blocks: flush 2 of [`pumice_blocks::Blocks::begin_prefix`], whose module draws the race.

use super::FlashStore;
use crate::Mappings;
use crate::block::OpenBlock;
use crate::log::LogKind;
use crate::reclaim::ENTRIES_PER_TURN;
use pumice_blocks::give_turn;
use pumice_device::Device;
use pumice_index::Known;
use pumice_memory::Buffer;
use std::io;

impl<B: Buffer> FlashStore<B> {
    /// Writes what an active block begins with. A piece of work: one at a time for each block.
    pub(crate) async fn flush_block<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
        block: &OpenBlock<B>,
    ) -> io::Result<()> {
        let prefix = {
            // A block begins to be sealed under this lock, and is not written before this has ended. One that died before is another
            // generation's by now.
            let mut order = self.order();
            if !self.is_active(block) {
                return Ok(());
            }
            let prefix = block.begin_prefix();
            if prefix.is_none() {
                self.retire_open(&mut order, block.id);
            }
            prefix
        };
        let Some(prefix) = prefix else { return Ok(()) };
        self.begin_prefix(block, &prefix);
        if self.is_authoritative() {
            for (at, entry) in prefix.entries.iter().enumerate() {
                if at % ENTRIES_PER_TURN == ENTRIES_PER_TURN - 1 {
                    give_turn().await;
                }
                let location = self.location(block.id, entry);
                mappings.with(entry.hash, |shard| {
                    if shard.known(entry.hash, location) == Known::Dead {
                        self.append_log(device, LogKind::Void, entry.hash, entry.version + 1);
                    }
                });
            }
        }
        let position = self.position_of_block(block.id);
        let logged = self.write_prefix(device, block, &prefix, position, now).await?;
        self.make_up_for(device, logged);
        Ok(())
    }
}
