//! Reading the owner's part of a checkpoint's stream back.

use super::format::{
    FILL_BYTES, KEY_BYTES, KEYS_BATCH, OVERVIEW_BYTES, Overview, PLACE_BYTES, RANK_BYTES, RANKS_HEAD_BYTES,
    decode_bin, decode_fill, decode_key, decode_place, decode_sample,
};
use crate::layout::ripq::ranks::SavedRanks;
use crate::layout::sipq::keys::KeyQueue;
use crate::layout::{SavedOrder, Slots};
use pumice_blocks::OpenError;
use pumice_blocks::chain::{NO_BLOCK, StreamReader};
use pumice_index::cascade::{HistoryFilter, SavedHistory};
use pumice_memory::Buffer;
use pumice_record::codec::Fields;
use std::io;

/// The objects' parts of a checkpoint's stream. They follow its head in this order.
pub(crate) trait ReadObjects {
    /// Reads what it says of objects as a whole.
    async fn overview(&mut self) -> Result<Overview, OpenError>;

    /// Reads the head of a shard's dump: log position, and how many items of `item_bytes` it has.
    async fn shard_head(&mut self, item_bytes: usize) -> Result<(u64, usize), OpenError>;

    /// Reads what a queue of keys has learned and its keys, from the lowest, into `cache`, if there is one. The absolute priorities of
    /// another policy than `policy` count for nothing. Returns whose they are.
    async fn keys(&mut self, policy: u32, cache: Option<&mut KeyQueue>) -> Result<u32, OpenError>;

    /// Reads what was invalidated before the checkpoint. Filters have up to `words_max` words each.
    async fn history(&mut self, words_max: usize) -> Result<SavedHistory, OpenError>;

    /// Reads the slots of blocks; `visit` gets none of another width than `bits`.
    async fn slots(&mut self, bits: u32, visit: impl FnMut(u32, Slots)) -> Result<(), OpenError>;
}

impl<B: Buffer, R: AsyncFn(u64, usize) -> io::Result<B>> ReadObjects for StreamReader<'_, R> {
    async fn overview(&mut self) -> Result<Overview, OpenError> {
        let bytes = self.take(OVERVIEW_BYTES).await?;
        let mut fields = Fields(&bytes);
        let [flush_at, shards, entry_bytes] =
            [(); 3].map(|()| fields.u32().expect("twelve bytes were taken"));
        let bytes = self.take(4 * self.geometry().blocks as usize).await?;
        let entries = bytes.as_chunks::<4>().0.iter();
        let entries = entries.map(|entries| u32::from_le_bytes(*entries)).collect();
        let places = self.list("place", PLACE_BYTES, decode_place).await?;
        let bytes = self.take(RANKS_HEAD_BYTES).await?;
        let mut fields = Fields(&bytes);
        let (Some(policy), Some(lowest), Some(threshold)) = (fields.u32(), fields.u64(), fields.u64()) else {
            return Err(self.bad("its head is damaged"));
        };
        let bins = self.list("bin", RANK_BYTES, decode_bin).await?;
        let sample = self.list("sampled key", RANK_BYTES, decode_sample).await?;
        Ok(Overview {
            flush_at,
            shards,
            entry_bytes,
            entries,
            order: SavedOrder {
                places,
                ranks: SavedRanks {
                    policy,
                    lowest: f64::from_bits(lowest),
                    bins,
                    threshold,
                    sample,
                },
            },
        })
    }

    async fn history(&mut self, words_max: usize) -> Result<SavedHistory, OpenError> {
        let bytes = self.take(12).await?;
        let mut fields = Fields(&bytes);
        let known_from = fields.u64();
        let count = fields
            .u32()
            .filter(|count| *count as usize <= SavedHistory::FILTERS_MAX);
        let (Some(known_from), Some(count)) = (known_from, count) else {
            return Err(self.bad("its filters over what was invalidated are damaged"));
        };
        let mut filters = Vec::new();
        for _ in 0..count {
            let bytes = self.take(24).await?;
            let mut fields = Fields(&bytes);
            let closed_at = fields.u64();
            let hashes = fields.u64().and_then(|hashes| usize::try_from(hashes).ok());
            let words = fields.u64().and_then(|words| usize::try_from(words).ok());
            let words = words.filter(|words| *words <= words_max);
            let (Some(closed_at), Some(hashes), Some(words)) = (closed_at, hashes, words) else {
                return Err(self.bad("its filters over what was invalidated are damaged"));
            };
            filters.push(HistoryFilter {
                bits: self.words(words).await?,
                hashes,
                closed_at,
            });
        }
        Ok(SavedHistory { known_from, filters })
    }

    async fn slots(&mut self, bits: u32, mut visit: impl FnMut(u32, Slots)) -> Result<(), OpenError> {
        let saved_bits = u32::from(self.take(1).await?[0]);
        if saved_bits > 8 {
            return Err(self.bad("its slots are damaged: they are too wide"));
        }
        loop {
            let block = self.u32().await?;
            if block == NO_BLOCK {
                return Ok(());
            }
            let len = self.u32().await?;
            let damaged = format!("its slots are damaged: those of block {block}");
            if block >= self.geometry().blocks || u64::from(len) > self.geometry().block_bytes {
                return Err(self.bad(damaged));
            }
            let (strides, words) = Slots::parts_len(saved_bits, len);
            let bytes = self.take(strides * 4).await?;
            let strides = bytes.as_chunks::<4>().0.iter();
            let strides = strides.map(|offset| u32::from_le_bytes(*offset)).collect();
            let words = self.words(words).await?;
            let slots = Slots::from_parts(saved_bits, len, strides, words, self.geometry().block_bytes);
            let slots = slots.ok_or_else(|| self.bad(damaged))?;
            if saved_bits == bits {
                visit(block, slots);
            }
        }
    }

    async fn keys(&mut self, policy: u32, mut cache: Option<&mut KeyQueue>) -> Result<u32, OpenError> {
        let saved_policy = self.u32().await?;
        let bytes = self.take(FILL_BYTES).await?;
        let fill = decode_fill(&mut Fields(&bytes), self.geometry());
        let fill =
            fill.ok_or_else(|| self.bad("its keys are damaged: what the queue has learned cannot be"))?;
        if let Some(cache) = &mut cache {
            cache.restore_fill(fill);
        }
        loop {
            let batch = self.u32().await?;
            if batch == 0 {
                cache.into_iter().for_each(|cache| cache.end_restore());
                return Ok(saved_policy);
            }
            if batch as usize > KEYS_BATCH {
                return Err(self.bad(format!("its keys are damaged: a batch of {batch} is too long")));
            }
            let mut keys = self.items("key", batch, KEY_BYTES, decode_key).await?;
            if saved_policy != policy {
                keys.iter_mut().for_each(|key| key.value = 0.0);
            }
            cache.iter_mut().for_each(|cache| cache.restore(&keys));
        }
    }

    async fn shard_head(&mut self, item_bytes: usize) -> Result<(u64, usize), OpenError> {
        let bytes = self.take(16).await?;
        let mut fields = Fields(&bytes);
        let position = fields.u64();
        let all = self.len();
        let count = fields.u64().filter(|count| *count <= all / item_bytes as u64);
        match (position, count.and_then(|count| usize::try_from(count).ok())) {
            (Some(position), Some(count)) => Ok((position, count)),
            _ => Err(self.bad("a shard is too long")),
        }
    }
}
