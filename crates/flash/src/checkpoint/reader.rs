//! Reading a checkpoint's stream back.

use super::format::{
    FILL_BYTES, HEAD_BYTES, Head, KEY_BYTES, KEYS_BATCH, NO_BLOCK, PART_HEADER_BYTES, PLACE_BYTES,
    PartHeader, RANK_BYTES, RANKS_HEAD_BYTES, ROW_BYTES, chunk_bytes, decode_bin, decode_fill, decode_key,
    decode_place, decode_row, decode_sample, mix,
};
use crate::OpenError;
use crate::geometry::Geometry;
use crate::store::{FILTERS_MAX, Filter, SavedInvalidated, SavedKey, SavedRanks, Slots, VirtualCache};
use crate::superblock::CheckpointRef;
use pumice_device::SECTOR_BYTES;
use pumice_memory::Buffer;
use pumice_record::codec::{Fields, checksum};
use std::io;

/// Reads a checkpoint's stream back, chunk by chunk. `R` reads bytes of the device, of which offset and length are whole sectors.
pub(crate) struct StreamReader<'a, R> {
    read: R,
    geometry: &'a Geometry,
    cache_id: u64,
    /// The chain, with the bytes in each block.
    parts: Vec<(u32, PartHeader)>,
    part: usize,
    at: u64,
    chunks: u64,
    crcs: u64,
    pending: Vec<u8>,
    /// Bytes of the stream before those that were taken last, and with them.
    taken: [u64; 2],
}

fn bad(offset: u64, what: impl Into<String>) -> OpenError {
    let what = what.into();
    OpenError::Checkpoint { offset, what }
}

async fn read_from<B, R>(read: &R, offset: u64, len: usize) -> Result<B, OpenError>
where
    R: AsyncFn(u64, usize) -> io::Result<B>,
{
    let read = read(offset, len).await;
    read.map_err(|error| bad(offset, format!("{len} bytes cannot be read: {error}")))
}

impl<'a, B: Buffer, R: AsyncFn(u64, usize) -> io::Result<B>> StreamReader<'a, R> {
    /// Follows the chain of headers of a checkpoint that the superblock at `named_at` names.
    ///
    /// # Errors
    /// [`OpenError::Checkpoint`] where it is not whole.
    pub(crate) async fn open(
        read: R,
        geometry: &'a Geometry,
        cache_id: u64,
        checkpoint: &CheckpointRef,
        mut named_at: u64,
    ) -> Result<Self, OpenError> {
        let mut parts = Vec::new();
        let mut block = checkpoint.first_block;
        let mut total: u64 = 0;
        while block != NO_BLOCK {
            let number = parts.len();
            if block >= geometry.blocks || number >= geometry.blocks as usize {
                let what = format!("its chain leads to block {block}, of {}", geometry.blocks);
                return Err(bad(named_at, what));
            }
            named_at = geometry.block_offset(block);
            let sector = read_from(&read, named_at, SECTOR_BYTES).await?;
            let header = sector
                .bytes(0, PART_HEADER_BYTES)
                .and_then(|bytes| PartHeader::decode(cache_id, bytes))
                .filter(|h| h.id == checkpoint.id && h.part as usize == number)
                .filter(|h| (1..=geometry.block_bytes - SECTOR_BYTES as u64).contains(&h.len))
                .ok_or_else(|| {
                    bad(
                        named_at,
                        format!("the header of its part {number} is not there, or damaged"),
                    )
                })?;
            total += header.len;
            parts.push((block, header));
            block = header.next;
        }
        if total != checkpoint.len {
            let what = format!(
                "its blocks hold {total} bytes, and the superblock says {}",
                checkpoint.len
            );
            return Err(bad(named_at, what));
        }
        Ok(Self {
            read,
            geometry,
            cache_id,
            parts,
            part: 0,
            at: 0,
            chunks: 0,
            crcs: 0,
            pending: Vec::new(),
            taken: [0; 2],
        })
    }

    /// The blocks of the chain, and how many bytes of the stream each holds.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (u32, u64)> {
        self.parts.iter().map(|(block, header)| (*block, header.len))
    }

    /// Where on the device byte `at` of the stream stands.
    pub(crate) fn offset_of(&self, mut at: u64) -> u64 {
        let holds = |(_, header): &&(u32, PartHeader)| {
            let is_here = at < header.len;
            at -= if is_here { 0 } else { header.len };
            is_here
        };
        let part = self.parts.iter().find(holds).or(self.parts.last());
        part.map_or(0, |(block, _)| {
            self.geometry.block_offset(*block) + SECTOR_BYTES as u64 + at
        })
    }

    /// Where on the device those bytes begin that were taken last.
    pub(crate) fn offset(&self) -> u64 {
        self.offset_of(self.taken[0])
    }

    /// That the bytes that were taken last cannot be.
    pub(crate) fn bad(&self, what: impl Into<String>) -> OpenError {
        bad(self.offset(), what)
    }

    /// The next `len` bytes. Checksums are per block: what is returned may prove bad only at the block's end, so
    /// nothing may be trusted before [`StreamReader::finish`].
    pub(crate) async fn take(&mut self, len: usize) -> Result<Vec<u8>, OpenError> {
        while self.pending.len() < len {
            self.fill().await?;
        }
        self.taken = [self.taken[1], self.taken[1] + len as u64];
        let rest = self.pending.split_off(len);
        Ok(std::mem::replace(&mut self.pending, rest))
    }

    async fn fill(&mut self) -> Result<(), OpenError> {
        let Some((block, header)) = self.parts.get(self.part).copied() else {
            return Err(self.bad("it ends early"));
        };
        let len = usize::try_from(header.len - self.at)
            .expect("at most 256 MiB")
            .min(chunk_bytes(self.geometry));
        let start = self.geometry.block_offset(block) + SECTOR_BYTES as u64;
        let buffer = read_from(&self.read, start + self.at, len.next_multiple_of(SECTOR_BYTES)).await?;
        let bytes = buffer.bytes(0, len).ok_or_else(|| bad(start, "it is damaged"))?;
        self.crcs = mix(self.crcs, self.chunks, checksum(self.cache_id, &[bytes]));
        self.pending.extend_from_slice(bytes);
        self.chunks += 1;
        self.at += len as u64;
        if self.at >= header.len {
            if self.crcs != header.chunk_crcs {
                return Err(bad(
                    start,
                    format!("the checksum of its part in block {block} is wrong"),
                ));
            }
            (self.part, self.at, self.chunks, self.crcs) = (self.part + 1, 0, 0, 0);
        }
        Ok(())
    }

    /// Reads and checks what is left, and returns how much that was.
    pub(crate) async fn finish(mut self) -> Result<u64, OpenError> {
        while self.part < self.parts.len() {
            self.fill().await?;
            self.pending.clear();
        }
        let all: u64 = self.blocks().map(|(_, len)| len).sum();
        Ok(all - self.taken[1])
    }

    /// Reads the head of the stream.
    pub(crate) async fn head(&mut self) -> Result<Head, OpenError> {
        let bytes = self.take(HEAD_BYTES).await?;
        let mut fields = Fields(&bytes);
        let [next_sequence, log_start] = [(); 2].map(|()| fields.count());
        let [flush_at, shards, entry_bytes, count] = [(); 4].map(|()| fields.u32());
        let head = (next_sequence, log_start, flush_at, shards, entry_bytes, count);
        let (
            Some(next_sequence),
            Some(log_start),
            Some(flush_at),
            Some(shards),
            Some(entry_bytes),
            Some(count),
        ) = head
        else {
            return Err(self.bad("its head is damaged"));
        };
        if count != self.geometry.blocks {
            let what = format!(
                "it is of {count} blocks, and the device has {}",
                self.geometry.blocks
            );
            return Err(self.bad(what));
        }
        let block_bytes = self.geometry.block_bytes;
        let row = |fields: &mut Fields<'_>| decode_row(fields, block_bytes);
        let rows = self.items("row of block", count, ROW_BYTES, row).await?;
        let places = self.list("place", PLACE_BYTES, decode_place).await?;
        let bytes = self.take(RANKS_HEAD_BYTES).await?;
        let mut fields = Fields(&bytes);
        let (Some(policy), Some(lowest), Some(threshold)) = (fields.u32(), fields.u64(), fields.u64()) else {
            return Err(self.bad("its head is damaged"));
        };
        let bins = self.list("bin", RANK_BYTES, decode_bin).await?;
        let sample = self.list("sampled key", RANK_BYTES, decode_sample).await?;
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
                lowest: f64::from_bits(lowest),
                bins,
                threshold,
                sample,
            },
        })
    }

    /// Reads what was invalidated before the checkpoint. Filters have up to `words_max` words each.
    pub(crate) async fn invalidated(&mut self, words_max: usize) -> Result<SavedInvalidated, OpenError> {
        let bytes = self.take(12).await?;
        let mut fields = Fields(&bytes);
        let known_from = fields.u64();
        let count = fields.u32().filter(|count| *count as usize <= FILTERS_MAX);
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
            filters.push(Filter {
                bits: self.words(words).await?,
                hashes,
                closed_at,
            });
        }
        Ok(SavedInvalidated { known_from, filters })
    }

    async fn words<T: FromIterator<u64>>(&mut self, words: usize) -> Result<T, OpenError> {
        let bytes = self.take(words * 8).await?;
        let words = bytes.as_chunks::<8>().0.iter();
        Ok(words.map(|word| u64::from_le_bytes(*word)).collect())
    }

    async fn u32(&mut self) -> Result<u32, OpenError> {
        let bytes = self.take(4).await?;
        Ok(Fields(&bytes).u32().expect("four bytes were taken"))
    }

    /// Reads the slots of blocks; `visit` gets none of another width than `bits`.
    pub(crate) async fn slots(
        &mut self,
        bits: u32,
        mut visit: impl FnMut(u32, Slots),
    ) -> Result<(), OpenError> {
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
            if block >= self.geometry.blocks || u64::from(len) > self.geometry.block_bytes {
                return Err(self.bad(damaged));
            }
            let (strides, words) = Slots::parts_len(saved_bits, len);
            let bytes = self.take(strides * 4).await?;
            let strides = bytes.as_chunks::<4>().0.iter();
            let strides = strides.map(|offset| u32::from_le_bytes(*offset)).collect();
            let words = self.words(words).await?;
            let slots = Slots::from_parts(saved_bits, len, strides, words, self.geometry.block_bytes);
            let slots = slots.ok_or_else(|| self.bad(damaged))?;
            if saved_bits == bits {
                visit(block, slots);
            }
        }
    }

    /// Reads what a virtual cache has learned and its keys, from the lowest, into `cache`, if there is one. The absolute priorities of
    /// another policy than `policy` count for nothing. Returns whose they are.
    pub(crate) async fn keys(
        &mut self,
        policy: u32,
        mut cache: Option<&mut VirtualCache>,
    ) -> Result<u32, OpenError> {
        let saved_policy = self.u32().await?;
        let bytes = self.take(FILL_BYTES).await?;
        let fill = decode_fill(&mut Fields(&bytes), self.geometry);
        let fill =
            fill.ok_or_else(|| self.bad("its keys are damaged: what the queue has learned cannot be"))?;
        if let Some(cache) = &mut cache {
            cache.restore_fill(fill);
        }
        loop {
            let batch = self.u32().await?;
            if batch == 0 {
                return Ok(saved_policy);
            }
            if batch as usize > KEYS_BATCH {
                return Err(self.bad(format!("its keys are damaged: a batch of {batch} is too long")));
            }
            let keys = self.items("key", batch, KEY_BYTES, decode_key).await?;
            let Some(cache) = &mut cache else { continue };
            for key in keys {
                let value = if saved_policy == policy { key.value } else { 0.0 };
                cache.restore(SavedKey { value, ..key });
            }
        }
    }

    /// Reads a counted list.
    async fn list<T>(
        &mut self,
        what: &str,
        item_bytes: usize,
        decode: impl Fn(&mut Fields<'_>) -> Option<T>,
    ) -> Result<Vec<T>, OpenError> {
        let count = self.u32().await?;
        self.items(what, count, item_bytes, decode).await
    }

    /// Reads `count` items. Its checksum may not have been seen yet, so it is not trusted.
    async fn items<T>(
        &mut self,
        what: &str,
        count: u32,
        item_bytes: usize,
        decode: impl Fn(&mut Fields<'_>) -> Option<T>,
    ) -> Result<Vec<T>, OpenError> {
        let mut items = Vec::new();
        let mut left = count as usize;
        while left > 0 {
            let batch = left.min(4096);
            let bytes = self.take(batch * item_bytes).await?;
            let mut fields = Fields(&bytes);
            for _ in 0..batch {
                let item = decode(&mut fields);
                items.push(item.ok_or_else(|| self.bad(format!("its {what} {} is damaged", items.len())))?);
            }
            left -= batch;
        }
        Ok(items)
    }

    /// Reads the head of a shard's dump: log position, and how many items of `item_bytes` it has.
    pub(crate) async fn shard_head(&mut self, item_bytes: usize) -> Result<(u64, usize), OpenError> {
        let bytes = self.take(16).await?;
        let mut fields = Fields(&bytes);
        let position = fields.u64();
        let all: u64 = self.blocks().map(|(_, len)| len).sum();
        let count = fields.u64().filter(|count| *count <= all / item_bytes as u64);
        match (position, count.and_then(|count| usize::try_from(count).ok())) {
            (Some(position), Some(count)) => Ok((position, count)),
            _ => Err(self.bad("a shard is too long")),
        }
    }
}
