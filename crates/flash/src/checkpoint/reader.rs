//! Reading a checkpoint's stream back.

use super::format::{
    BlockRole, BlockRow, FILL_BYTES, HEAD_BYTES, Head, KEY_BYTES, KEYS_BATCH, NO_BLOCK, PART_HEADER_BYTES,
    PLACE_BYTES, PartHeader, RANK_BYTES, RANKS_HEAD_BYTES, ROW_BYTES, chunk_bytes, decode_bin, decode_fill,
    decode_key, decode_place, decode_sample, mix,
};
use crate::OpenError;
use crate::codec::{Fields, checksum};
use crate::geometry::Geometry;
use crate::store::{FILTERS_MAX, Filter, SavedInvalidated, SavedKey, SavedRanks, Slots, VirtualCache};
use crate::superblock::CheckpointRef;
use pumice_device::{Device, SECTOR_BYTES};
use pumice_memory::Buffer;

/// Reads a checkpoint's stream back, chunk by chunk.
pub(crate) struct StreamReader<'a, D: Device> {
    device: &'a D,
    geometry: &'a Geometry,
    cache_id: u64,
    /// The chain, with the bytes in each block.
    parts: Vec<(u32, PartHeader)>,
    part: usize,
    at: u64,
    chunks: u64,
    crcs: u64,
    pending: Vec<u8>,
}

impl<'a, D: Device> StreamReader<'a, D> {
    /// Follows the chain of headers.
    ///
    /// # Errors
    /// [`OpenError::Checkpoint`] where it is not whole.
    pub(crate) async fn open(
        device: &'a D,
        geometry: &'a Geometry,
        cache_id: u64,
        checkpoint: &CheckpointRef,
    ) -> Result<Self, OpenError> {
        let mut parts = Vec::new();
        let mut block = checkpoint.first_block;
        let mut total: u64 = 0;
        while block != NO_BLOCK {
            if block >= geometry.blocks || parts.len() >= geometry.blocks as usize {
                return Err(OpenError::Checkpoint("its chain leaves the device"));
            }
            let sector = device
                .read(geometry.block_offset(block), SECTOR_BYTES)
                .await
                .map_err(|_| OpenError::Checkpoint("a header cannot be read"))?;
            let header = sector
                .bytes(0, PART_HEADER_BYTES)
                .and_then(|bytes| PartHeader::decode(cache_id, bytes))
                .filter(|h| h.id == checkpoint.id && h.part as usize == parts.len())
                .filter(|h| h.len <= geometry.block_bytes - SECTOR_BYTES as u64)
                .ok_or(OpenError::Checkpoint("a header is damaged"))?;
            total += header.len;
            parts.push((block, header));
            block = header.next;
        }
        if total != checkpoint.len {
            return Err(OpenError::Checkpoint("it is shorter than the superblock says"));
        }
        Ok(Self {
            device,
            geometry,
            cache_id,
            parts,
            part: 0,
            at: 0,
            chunks: 0,
            crcs: 0,
            pending: Vec::new(),
        })
    }

    /// The blocks of the chain.
    pub(crate) fn blocks(&self) -> Vec<u32> {
        self.parts.iter().map(|(block, _)| *block).collect()
    }

    /// The next `len` bytes. Checksums are per block: what is returned may prove bad only at the block's end, so
    /// nothing may be trusted before [`StreamReader::finish`].
    pub(crate) async fn take(&mut self, len: usize) -> Result<Vec<u8>, OpenError> {
        while self.pending.len() < len {
            self.fill().await?;
        }
        let rest = self.pending.split_off(len);
        Ok(std::mem::replace(&mut self.pending, rest))
    }

    async fn fill(&mut self) -> Result<(), OpenError> {
        let (block, header) = *self
            .parts
            .get(self.part)
            .ok_or(OpenError::Checkpoint("it ends early"))?;
        let len = usize::try_from(header.len - self.at)
            .expect("at most 256 MiB")
            .min(chunk_bytes(self.geometry));
        let offset = self.geometry.block_offset(block) + SECTOR_BYTES as u64 + self.at;
        let buffer = self
            .device
            .read(offset, len.next_multiple_of(SECTOR_BYTES))
            .await
            .map_err(|_| OpenError::Checkpoint("it cannot be read"))?;
        let bytes = buffer
            .bytes(0, len)
            .ok_or(OpenError::Checkpoint("it is damaged"))?;
        self.crcs = mix(self.crcs, self.chunks, checksum(self.cache_id, &[bytes]));
        self.chunks += 1;
        self.pending.extend_from_slice(bytes);
        self.at += len as u64;
        if self.at >= header.len {
            if self.crcs != header.chunk_crcs {
                return Err(OpenError::Checkpoint("its checksum is wrong"));
            }
            (self.part, self.at, self.chunks, self.crcs) = (self.part + 1, 0, 0, 0);
        }
        Ok(())
    }

    /// Reads and checks what is left.
    pub(crate) async fn finish(mut self) -> Result<(), OpenError> {
        while self.part < self.parts.len() {
            self.fill().await?;
            self.pending.clear();
        }
        Ok(())
    }

    /// Reads the head of the stream.
    pub(crate) async fn head(&mut self) -> Result<Head, OpenError> {
        const DAMAGED: OpenError = OpenError::Checkpoint("its head is damaged");
        let bytes = self.take(HEAD_BYTES).await?;
        let mut fields = Fields(&bytes);
        let next_sequence = fields.count().ok_or(DAMAGED)?;
        let log_start = fields.count().ok_or(DAMAGED)?;
        let flush_at = fields.u32().ok_or(DAMAGED)?;
        let shards = fields.u32().ok_or(DAMAGED)?;
        let entry_bytes = fields.u32().ok_or(DAMAGED)?;
        let count = fields.u32().ok_or(DAMAGED)?;
        if count != self.geometry.blocks {
            return Err(DAMAGED);
        }
        let bytes = self.take(count as usize * ROW_BYTES).await?;
        let mut fields = Fields(&bytes);
        let mut rows = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let sequence = fields.count().ok_or(DAMAGED)?;
            let role = match fields.array::<1>().ok_or(DAMAGED)? {
                [0] => BlockRole::Other,
                [1] => BlockRole::Sealed,
                [2] => BlockRole::Open,
                _ => return Err(DAMAGED),
            };
            let footer_len = fields.u32().ok_or(DAMAGED)?;
            if u64::from(footer_len) > self.geometry.block_bytes {
                return Err(DAMAGED);
            }
            let expiry_max = fields.u32().ok_or(DAMAGED)?;
            rows.push(BlockRow {
                sequence,
                role,
                footer_len,
                expiry_max,
            });
        }
        let places = self.list(PLACE_BYTES, decode_place).await?;
        let bytes = self.take(RANKS_HEAD_BYTES).await?;
        let mut fields = Fields(&bytes);
        let policy = fields.u32().ok_or(DAMAGED)?;
        let lowest = f64::from_bits(fields.u64().ok_or(DAMAGED)?);
        let threshold = fields.u64().ok_or(DAMAGED)?;
        let bins = self.list(RANK_BYTES, decode_bin).await?;
        let sample = self.list(RANK_BYTES, decode_sample).await?;
        Ok(Head {
            next_sequence,
            log_start,
            flush_at,
            shards,
            entry_bytes,
            rows,
            places,
            ranks: SavedRanks {
                policy,
                lowest,
                bins,
                threshold,
                sample,
            },
        })
    }

    /// Reads what was invalidated before the checkpoint. Filters have up to `words_max` words each.
    pub(crate) async fn invalidated(&mut self, words_max: usize) -> Result<SavedInvalidated, OpenError> {
        const DAMAGED: OpenError = OpenError::Checkpoint("its filters over what was invalidated are damaged");
        let bytes = self.take(12).await?;
        let mut fields = Fields(&bytes);
        let known_from = fields.u64().ok_or(DAMAGED)?;
        let count = fields.u32().ok_or(DAMAGED)? as usize;
        if count > FILTERS_MAX {
            return Err(DAMAGED);
        }
        let mut filters = Vec::new();
        for _ in 0..count {
            let bytes = self.take(24).await?;
            let mut fields = Fields(&bytes);
            let closed_at = fields.u64().ok_or(DAMAGED)?;
            let hashes = fields.u64().and_then(|hashes| usize::try_from(hashes).ok());
            let words = fields.u64().and_then(|words| usize::try_from(words).ok());
            let words = words.filter(|words| *words <= words_max).ok_or(DAMAGED)?;
            let bytes = self.take(words * 8).await?;
            let bits = bytes.as_chunks::<8>().0.iter();
            filters.push(Filter {
                bits: bits.map(|word| u64::from_le_bytes(*word)).collect(),
                hashes: hashes.ok_or(DAMAGED)?,
                closed_at,
            });
        }
        Ok(SavedInvalidated { known_from, filters })
    }

    /// Reads the slots of blocks; `visit` gets none of another width than `bits`.
    pub(crate) async fn slots(
        &mut self,
        bits: u32,
        mut visit: impl FnMut(u32, Slots),
    ) -> Result<(), OpenError> {
        const DAMAGED: OpenError = OpenError::Checkpoint("its slots are damaged");
        let saved_bits = u32::from(self.take(1).await?[0]);
        if saved_bits > 8 {
            return Err(DAMAGED);
        }
        loop {
            let block = Fields(&self.take(4).await?).u32().ok_or(DAMAGED)?;
            if block == NO_BLOCK {
                return Ok(());
            }
            let len = Fields(&self.take(4).await?).u32().ok_or(DAMAGED)?;
            if block >= self.geometry.blocks || u64::from(len) > self.geometry.block_bytes {
                return Err(DAMAGED);
            }
            let (strides, words) = Slots::parts_len(saved_bits, len);
            let bytes = self.take(strides * 4).await?;
            let strides = bytes.as_chunks::<4>().0.iter();
            let strides = strides.map(|offset| u32::from_le_bytes(*offset)).collect();
            let bytes = self.take(words * 8).await?;
            let words = bytes.as_chunks::<8>().0.iter();
            let words = words.map(|word| u64::from_le_bytes(*word)).collect();
            let slots = Slots::from_parts(saved_bits, len, strides, words, self.geometry.block_bytes);
            let slots = slots.ok_or(DAMAGED)?;
            if saved_bits == bits {
                visit(block, slots);
            }
        }
    }

    /// Reads what a virtual cache has learned and its keys, from the lowest. The absolute priorities of another policy count for
    /// nothing.
    pub(crate) async fn keys(&mut self, policy: u32, cache: &mut VirtualCache) -> Result<(), OpenError> {
        const DAMAGED: OpenError = OpenError::Checkpoint("its keys are damaged");
        let bytes = self.take(4 + FILL_BYTES).await?;
        let mut fields = Fields(&bytes);
        let is_same = fields.u32().ok_or(DAMAGED)? == policy;
        cache.restore_fill(decode_fill(&mut fields, self.geometry).ok_or(DAMAGED)?);
        loop {
            let bytes = self.take(4).await?;
            let batch = Fields(&bytes).u32().ok_or(DAMAGED)? as usize;
            if batch == 0 {
                return Ok(());
            }
            if batch > KEYS_BATCH {
                return Err(DAMAGED);
            }
            let bytes = self.take(batch * KEY_BYTES).await?;
            let mut fields = Fields(&bytes);
            for _ in 0..batch {
                let key = decode_key(&mut fields).ok_or(DAMAGED)?;
                cache.restore(SavedKey {
                    value: if is_same { key.value } else { 0.0 },
                    ..key
                });
            }
        }
    }

    /// Reads a counted list. Its checksum may not have been seen yet, so its length is not trusted.
    async fn list<T>(
        &mut self,
        item_bytes: usize,
        decode: impl Fn(&mut Fields<'_>) -> Option<T>,
    ) -> Result<Vec<T>, OpenError> {
        const DAMAGED: OpenError = OpenError::Checkpoint("its head is damaged");
        let bytes = self.take(4).await?;
        let count = Fields(&bytes).u32().ok_or(DAMAGED)?;
        let mut list = Vec::new();
        let mut left = count as usize;
        while left > 0 {
            let batch = left.min(4096);
            let bytes = self.take(batch * item_bytes).await?;
            let mut fields = Fields(&bytes);
            for _ in 0..batch {
                list.push(decode(&mut fields).ok_or(DAMAGED)?);
            }
            left -= batch;
        }
        Ok(list)
    }

    /// Reads the head of a shard's dump: log position and number of entries.
    pub(crate) async fn shard_head(&mut self) -> Result<(u64, u64), OpenError> {
        let bytes = self.take(16).await?;
        let mut fields = Fields(&bytes);
        match (fields.u64(), fields.u64()) {
            (Some(position), Some(count)) => Ok((position, count)),
            _ => Err(OpenError::Checkpoint("a shard's head is damaged")),
        }
    }
}
