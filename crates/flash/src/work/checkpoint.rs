//! The owner's part of a checkpoint: shards of the index, dumped one after the other while requests go on, each with the log position
//! at its dump; the order; and what a cascade index needs. [`pumice_blocks::Blocks::begin_checkpoint`] has the rest.

use super::Worker;
use crate::Mappings;
use crate::checkpoint::{KEYS_BATCH, Overview, format};
use crate::layout::sipq::keys::SavedKey;
use crate::objects::Objects;
use crate::settings::Settings;
use pumice_blocks::chain::NO_BLOCK;
use pumice_blocks::{Begun, Coverage, Durability, State, StreamWriter};
use pumice_device::Device;
use pumice_index::IndexShard;
use pumice_index::cascade::SavedHistory;
use pumice_memory::Buffer;
use std::io;
use std::sync::atomic::Ordering;

impl<B: Buffer, D: Device<Buf = B>, M: Mappings> Worker<'_, B, D, M> {
    /// Writes a checkpoint. `clean`: nothing will change after it, and the superblock says so.
    ///
    /// # Errors
    /// What the device said, or that the snapshot would take too much of it; the checkpoints before stay good.
    pub async fn checkpoint(&self, clean: bool) -> io::Result<()> {
        self.store.order.prune_ranks(self.mappings).await;
        let number = self
            .store
            .mapping_pages()
            .map(|pages| pages.log.begin_checkpoint());
        let (begun, overview) = self.begin_snapshot();
        let take = async || self.take_checkpoint_block().await;
        let mut writer = StreamWriter::new(&self.store.base, self.device, &begun, take);
        let mut bytes = Vec::new();
        begun.head.encode(&mut bytes);
        overview.encode(&mut bytes);
        writer.write(&bytes).await?;
        let mut is_whole = true;
        for shard in 0..self.mappings.shards() {
            bytes.clear();
            bytes.extend_from_slice(&[0; 16]);
            let number = shard;
            let (position, count) = self.mappings.with_shard(shard, |shard| {
                self.store
                    .dump_with_kept(self.mappings, number, shard, &mut bytes);
                is_whole &= shard.cascade().is_none_or(|shard| !shard.is_blank());
                let count = (bytes.len() - 16) / shard.size().entry_bytes;
                (self.store.journal.log.position(), count as u64)
            });
            bytes[..8].copy_from_slice(&position.to_le_bytes());
            bytes[8..16].copy_from_slice(&count.to_le_bytes());
            writer.write(&bytes).await?;
        }
        self.write_keys(&mut writer).await?;
        if !self.store.is_authoritative() {
            // A reclaim that makes room for the checkpoint would drop filters.
            let saved = (clean && is_whole).then(|| {
                let take = |shard: &mut IndexShard| Some(shard.cascade()?.take_history());
                self.mappings.with_shard(0, take)
            });
            let saved = saved.flatten().unwrap_or_else(SavedHistory::nothing);
            self.write_history(saved, &mut writer).await?;
            self.write_slots(&mut writer).await?;
        }
        let stream = writer.finish().await?;
        if let Some(pages) = self.store.mapping_pages() {
            pages.flush(self.device).await?;
        }
        let budget = self.mappings.budget().unwrap_or_default();
        budget
            .at_checkpoint()
            .put(&mut self.store.journal.superblock.lock().own, Settings::BUDGET);
        // Without all records what a start would find cannot be told from what is void.
        let discard = |coverage| coverage == Coverage::Partial || self.store.durability == Durability::Off;
        let finished = self
            .store
            .finish_checkpoint(self.device, &begun, stream, self.now, clean, discard);
        let is_alone = finished.await?;
        if let (Some(pages), Some(number)) = (self.store.mapping_pages(), number) {
            pages.note_checkpoint(number, is_alone);
        }
        Ok(())
    }

    /// The exact queue of keys, of a layout that has one, from the lowest. What moves between two batches may be in both or in neither; at a clean
    /// stop nothing moves.
    async fn write_keys<T: AsyncFn() -> io::Result<u32>>(
        &self,
        writer: &mut StreamWriter<'_, Objects<B>, D, T>,
    ) -> io::Result<()> {
        let Some(fill) = self.store.order.lock().layout.keys().map(|keys| keys.fill()) else {
            return Ok(());
        };
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&self.store.order.options().policy_checksum().to_le_bytes());
        format::encode_fill(fill, &mut bytes);
        let mut below = 0;
        loop {
            let batch: Vec<SavedKey> = match self.store.order.lock().layout.keys() {
                Some(keys) => keys.save_from(below).take(KEYS_BATCH).collect(),
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
    async fn write_history<T: AsyncFn() -> io::Result<u32>>(
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
    async fn write_slots<T: AsyncFn() -> io::Result<u32>>(
        &self,
        writer: &mut StreamWriter<'_, Objects<B>, D, T>,
    ) -> io::Result<()> {
        let mut bytes = vec![self.store.order.slot_bits as u8];
        for (id, info) in (0..).zip(&*self.store.blocks) {
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
    fn begin_snapshot(&self) -> (Begun, Overview) {
        // Before the locks below: shards come first in the lock order.
        let entry_bytes = self.mappings.with_shard(0, |shard| shard.size().entry_bytes);
        let order = self.store.order.lock();
        let begun = self
            .store
            .begin_checkpoint(|info| info.expiry_max.load(Ordering::Relaxed));
        let overview = Overview {
            flush_at: self.store.flush_at(),
            shards: u32::try_from(self.mappings.shards()).expect("few shards"),
            entry_bytes: u32::try_from(entry_bytes).expect("about ten"),
            entries: (self.store.blocks.iter())
                .map(|info| info.entries.load(Ordering::Relaxed))
                .collect(),
            order: order.layout.save(self.store.order.ground()),
        };
        (begun, overview)
    }
}
