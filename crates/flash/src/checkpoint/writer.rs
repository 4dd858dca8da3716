//! Writing a checkpoint's stream into blocks.

use crate::Mappings;
use crate::store::{FlashStore, State, add};
use pumice_blocks::chain::{NO_BLOCK, PartHeader, chunk_bytes, mix};
use pumice_device::{Device, SECTOR_BYTES};
use pumice_memory::{Buffer, Payload};
use pumice_record::codec::checksum;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Writes a stream into blocks. Dropped before [`StreamWriter::finish`] has ended, it gives them back.
pub(super) struct StreamWriter<'a, B: Buffer, D, M> {
    store: &'a FlashStore<B>,
    device: &'a D,
    mappings: &'a M,
    now: u32,
    id: u64,
    blocks: Vec<u32>,
    pending: Vec<u8>,
    header: PartHeader,
    chunks: u64,
    total: u64,
}

impl<B: Buffer, D, M> Drop for StreamWriter<'_, B, D, M> {
    fn drop(&mut self) {
        self.store
            .free_checkpoint_blocks(std::mem::take(&mut self.blocks));
    }
}

impl<'a, B: Buffer, D: Device<Buf = B>, M: Mappings> StreamWriter<'a, B, D, M> {
    /// A writer of the checkpoint with number `id`.
    pub(super) fn new(store: &'a FlashStore<B>, device: &'a D, mappings: &'a M, now: u32, id: u64) -> Self {
        Self {
            store,
            device,
            mappings,
            now,
            id,
            blocks: Vec::new(),
            pending: Vec::new(),
            header: PartHeader {
                id,
                part: 0,
                next: NO_BLOCK,
                len: 0,
                chunk_crcs: 0,
            },
            chunks: 0,
            total: 0,
        }
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.pending.extend_from_slice(bytes);
        let len = chunk_bytes(&self.store.geometry);
        let whole = self.pending.len() / len * len;
        let rest = self.pending.split_off(whole);
        let chunks = std::mem::replace(&mut self.pending, rest);
        for chunk in chunks.chunks(len) {
            self.chunk(chunk).await?;
        }
        Ok(())
    }

    /// Writes one chunk; all but the last are whole, so none crosses a block's end.
    async fn chunk(&mut self, bytes: &[u8]) -> io::Result<()> {
        let room = self.store.geometry.block_bytes - SECTOR_BYTES as u64;
        if self.blocks.is_empty() || self.header.len + chunk_bytes(&self.store.geometry) as u64 > room {
            self.next_block().await?;
        }
        let block = *self.blocks.last().expect("just made sure");
        let offset = self.store.geometry.block_offset(block) + SECTOR_BYTES as u64 + self.header.len;
        self.put(block, offset, bytes).await?;
        self.header.chunk_crcs = mix(
            self.header.chunk_crcs,
            self.chunks,
            checksum(self.store.cache_id, &[bytes]),
        );
        self.chunks += 1;
        self.header.len += bytes.len() as u64;
        self.total += bytes.len() as u64;
        Ok(())
    }

    async fn next_block(&mut self) -> io::Result<()> {
        if self.blocks.len() * 4 >= self.store.geometry.blocks as usize {
            return Err(io::Error::other(
                "a snapshot of the index would fill a quarter of the device",
            ));
        }
        let block = self
            .store
            .take_checkpoint_block(self.device, self.mappings, self.now)
            .await?;
        let former = self.blocks.last().copied();
        self.blocks.push(block);
        if let Some(former) = former {
            self.close_block(former, block).await?;
        }
        self.header = PartHeader {
            id: self.id,
            part: u32::try_from(self.blocks.len() - 1).expect("fewer than 2^32 blocks"),
            next: NO_BLOCK,
            len: 0,
            chunk_crcs: 0,
        };
        self.chunks = 0;
        Ok(())
    }

    async fn close_block(&mut self, block: u32, next: u32) -> io::Result<()> {
        self.header.next = next;
        let bytes = self.header.encode(self.store.cache_id);
        self.put(block, self.store.geometry.block_offset(block), &bytes)
            .await
    }

    /// Writes what is left.
    pub(super) async fn finish(&mut self) -> io::Result<()> {
        let last = std::mem::take(&mut self.pending);
        if !last.is_empty() {
            self.chunk(&last).await?;
        }
        let block = *self.blocks.last().expect("the head was written");
        self.close_block(block, NO_BLOCK).await
    }

    /// The blocks, which are the caller's now, and the stream's length in bytes.
    pub(super) fn into_parts(mut self) -> (Vec<u32>, u64) {
        (std::mem::take(&mut self.blocks), self.total)
    }

    async fn put(&self, block: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let store = self.store;
        let len = bytes.len().next_multiple_of(SECTOR_BYTES);
        let buffer = B::with_len(len);
        // SAFETY: the buffer was just made; nobody else knows it.
        unsafe { buffer.put(0, Payload::Bytes(bytes)) };
        add(&store.counters.written_bytes, len as u64);
        add(&store.counters.checkpoint_bytes, len as u64);
        let written = store
            .shared
            .write(self.device, offset, Arc::new(buffer), 0..len)
            .await;
        store.blocks[block as usize].note_write(written.is_ok());
        written
    }
}

impl<B: Buffer> FlashStore<B> {
    async fn take_checkpoint_block<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
    ) -> io::Result<u32> {
        for round in 0..self.geometry.blocks {
            // One is left to survivors.
            if let Some(id) = self.take_free_for_checkpoint(1) {
                return Ok(id);
            }
            if let Some(work) = self.claim_early_reclaim(false) {
                self.reclaim_early(device, mappings, now, work.claim(), round as usize)
                    .await;
                work.finish(|_| {});
            } else if self.shared.structure.lock().reclaiming > 0 {
                self.wait_for(|structure| structure.reclaiming == 0 || structure.free.len() >= 2)
                    .await;
            } else if !self.makes_buffer_free(device, mappings, now).await {
                // Nothing is on its way to becoming a victim either. Blocks of mappings wait for this, and survivors there are none.
                if let Some(id) = self.take_free_for_checkpoint(0) {
                    return Ok(id);
                }
                break;
            }
        }
        Err(io::Error::other("no block is free for a checkpoint"))
    }

    /// Takes a free block unless no more than `left` are; the last one only where nothing is being reclaimed.
    fn take_free_for_checkpoint(&self, left: usize) -> Option<u32> {
        let mut structure = self.shared.structure.lock();
        if structure.free.len() <= left || (left == 0 && structure.reclaiming > 0) {
            return None;
        }
        let id = structure.free.pop_front()?;
        let info = &self.blocks[id as usize];
        // Another life: a read that is still under way must not take these bytes for the former one's.
        info.sequence.store(structure.next_sequence, Ordering::Release);
        structure.next_sequence += 1;
        info.set_state(State::Checkpoint);
        Some(id)
    }

    pub(super) fn free_checkpoint_blocks(&self, blocks: Vec<u32>) {
        if blocks.is_empty() {
            return;
        }
        self.shared.change(|structure| {
            for block in blocks {
                self.give_back(structure, block);
            }
        });
    }
}
