//! The owner's part of a checkpoint: shards of the index, dumped one after the other while requests go on, each with the log position
//! at its dump; the order; and what a cascade index needs. [`pumice_blocks::Blocks::begin_checkpoint`] has the rest.

mod format;
mod reader;
mod room;
#[cfg(test)]
mod tests;

pub(crate) use format::{KEYS_BATCH, Overview};
pub(crate) use reader::ReadObjects;

use crate::Mappings;
use crate::layout::sipq::keys::SavedKey;
use crate::store::{FlashStore, Objects};
use pumice_blocks::chain::NO_BLOCK;
use pumice_blocks::{Begun, Coverage, Durability, State, StreamWriter};
use pumice_device::Device;
use pumice_index::cascade::SavedHistory;
use pumice_memory::Buffer;
use std::io;
use std::sync::atomic::Ordering;

impl<B: Buffer> FlashStore<B> {
    /// Writes a checkpoint. `clean`: nothing will change after it, and the superblock says so.
    ///
    /// # Errors
    /// What the device said, or that the snapshot would take too much of it; the checkpoints before stay good.
    pub async fn checkpoint<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
        clean: bool,
    ) -> io::Result<()> {
        self.prune_ranks(mappings).await;
        let number = self.begin_mapping_checkpoint();
        let (begun, overview) = self.begin_snapshot(mappings);
        let take = async || self.take_checkpoint_block(device, mappings, now).await;
        let mut writer = StreamWriter::new(&self.base, device, &begun, take);
        let mut bytes = Vec::new();
        begun.head.encode(&mut bytes);
        overview.encode(&mut bytes);
        writer.write(&bytes).await?;
        let mut is_whole = true;
        for shard in 0..mappings.shards() {
            bytes.clear();
            bytes.extend_from_slice(&[0; 16]);
            let (position, count) = mappings.with_shard(shard, |shard| {
                shard.dump(&mut bytes);
                is_whole &= shard.cascade().is_none_or(|shard| !shard.is_blank());
                let count = (bytes.len() - 16) / shard.entry_bytes();
                (self.log.position(), count as u64)
            });
            bytes[..8].copy_from_slice(&position.to_le_bytes());
            bytes[8..16].copy_from_slice(&count.to_le_bytes());
            writer.write(&bytes).await?;
        }
        self.write_keys(&mut writer).await?;
        if !self.is_authoritative() {
            // A reclaim that makes room for the checkpoint would drop filters.
            let saved = if clean && is_whole {
                mappings.with_shard(0, |shard| shard.take_history())
            } else {
                SavedHistory::nothing()
            };
            self.write_history(saved, &mut writer).await?;
            self.write_slots(&mut writer).await?;
        }
        let stream = writer.finish().await?;
        self.flush_mappings(device).await?;
        // Without all records what a start would find cannot be told from what is void.
        let discard = |coverage| coverage == Coverage::Partial || self.durability() == Durability::Off;
        let finished = self.finish_checkpoint(device, &begun, stream, now, clean, discard);
        let is_alone = finished.await?;
        self.note_mapping_checkpoint(number, is_alone);
        Ok(())
    }

    /// The exact queue of keys, of a layout that has one, from the lowest. What moves between two batches may be in both or in neither; at a clean
    /// stop nothing moves.
    async fn write_keys<D: Device<Buf = B>, T: AsyncFn() -> io::Result<u32>>(
        &self,
        writer: &mut StreamWriter<'_, Objects<B>, D, T>,
    ) -> io::Result<()> {
        let Some(fill) = self.order.lock().layout.keys().map(|keys| keys.fill()) else {
            return Ok(());
        };
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&self.layout().policy_checksum().to_le_bytes());
        format::encode_fill(fill, &mut bytes);
        let mut below = 0;
        loop {
            let batch: Vec<SavedKey> = match self.order.lock().layout.keys() {
                Some(keys) => keys.save_from(below).take(format::KEYS_BATCH).collect(),
                None => Vec::new(),
            };
            below += batch.iter().map(|key| u64::from(key.bytes)).sum::<u64>();
            bytes.extend_from_slice(&(batch.len() as u32).to_le_bytes());
            batch.iter().for_each(|key| format::encode_key(key, &mut bytes));
            writer.write(&bytes).await?;
            bytes.clear();
            if batch.is_empty() {
                return Ok(());
            }
        }
    }

    /// What was superseded lately, which counts at the next start after a clean stop: nothing is added, and no partition has forgotten
    /// mappings of which it does not know. Else it says that nothing is known.
    async fn write_history<D: Device<Buf = B>, T: AsyncFn() -> io::Result<u32>>(
        &self,
        saved: SavedHistory,
        writer: &mut StreamWriter<'_, Objects<B>, D, T>,
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        format::encode_history(saved.known_from, saved.filters.len(), &mut bytes);
        writer.write(&bytes).await?;
        for filter in saved.filters {
            bytes.clear();
            format::encode_filter(&filter, &mut bytes);
            writer.write(&bytes).await?;
        }
        Ok(())
    }

    /// The slots of sealed blocks.
    async fn write_slots<D: Device<Buf = B>, T: AsyncFn() -> io::Result<u32>>(
        &self,
        writer: &mut StreamWriter<'_, Objects<B>, D, T>,
    ) -> io::Result<()> {
        let mut bytes = vec![self.slot_bits as u8];
        for (id, info) in (0..).zip(&*self.blocks) {
            {
                let slots = info.slots.lock();
                if info.state() == State::Sealed && slots.len() > 0 {
                    format::encode_slots(id, &slots, &mut bytes);
                }
            }
            writer.write(&bytes).await?;
            bytes.clear();
        }
        bytes.extend_from_slice(&NO_BLOCK.to_le_bytes());
        writer.write(&bytes).await
    }

    /// Begins a checkpoint, and says what it has of objects as a whole.
    fn begin_snapshot<M: Mappings>(&self, mappings: &M) -> (Begun, Overview) {
        // Before the locks below: shards come first in the lock order.
        let entry_bytes = mappings.with_shard(0, |shard| shard.entry_bytes());
        let order = self.order.lock();
        let begun = self.begin_checkpoint(|info| info.expiry_max.load(Ordering::Relaxed));
        let overview = Overview {
            flush_at: self.flush_at(),
            shards: u32::try_from(mappings.shards()).expect("few shards"),
            entry_bytes: u32::try_from(entry_bytes).expect("about ten"),
            order: order.layout.save(self.ground()),
        };
        (begun, overview)
    }
}
