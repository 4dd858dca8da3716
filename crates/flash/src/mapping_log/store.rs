//! What the log and the store have of each other: blocks that are lent and taken back, the parts of a checkpoint that are about
//! them, and writes and reads of pages.

use super::MappingLog;
use super::chunks::{Filled, PendingWrite};
use super::pages::{MappingBytes, PageSource, Shape};
use crate::store::{BlockInfo, FlashStore, Shared};
use pumice_blocks::{Durability, State, add};
use pumice_device::{Device, SECTOR_BYTES};
use pumice_index::cascade::PageNumber;
use pumice_memory::Buffer;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks that are left to the store at least, whose reclaims need them.
const BLOCKS_LEFT: usize = 2;

/// What the log needs of the store.
pub(super) struct Attached<B: Buffer> {
    pub(super) shape: Shape,
    pub(super) shared: Arc<Shared<B>>,
    pub(super) blocks: Arc<[BlockInfo]>,
}

impl<B: Buffer> Attached<B> {
    /// Borrows a free block, with a sequence of its own: what a former life has left there is told from its pages.
    pub(super) fn borrow(&self) -> Option<Filled> {
        let mut pool = self.shared.pool.lock();
        self.shared.has_work.store(true, Ordering::Release);
        // Survivors that find no free block are lost, so half of the reserve is left to them. Not all of it: a reorganisation that gets no
        // block is given up, and until one is made the old pages keep theirs.
        let left = (self.shape.geometry.reserved as usize / 2).max(BLOCKS_LEFT);
        pool.own.mappings_want_block = pool.free.len() <= left;
        if pool.own.mappings_want_block {
            return None;
        }
        let (id, life) = pool.take_free()?;
        let info = &self.blocks[id as usize];
        info.sequence.store(life, Ordering::Release);
        info.set_state(State::Lent);
        Some(Filled { id, life, next: 0 })
    }
}

impl<B: Buffer> FlashStore<B> {
    /// Lends blocks to `log` from now on; those that it has from the start of this cache stay its own.
    pub(crate) fn attach_mapping_log(&self, log: &Arc<MappingLog<B>>) {
        let mut state = log.state.lock();
        if self.durability() == Durability::Off {
            // A start after a crash reads no checkpoint.
            state.checkpoints_kept = [None; 2];
        }
        {
            let mut pool = self.shared.pool.lock();
            let filled = state.block.map(|block| block.id);
            let empty = state.empty.iter().map(|(id, _)| *id);
            let unwritten = state.full.iter().map(|chunk| chunk.block);
            let all = state
                .wanted
                .keys()
                .copied()
                .chain(filled)
                .chain(empty)
                .chain(unwritten);
            for id in all {
                let info = &self.blocks[id as usize];
                if info.state() == State::Free {
                    if let Some(life) = log.life_of(id) {
                        info.sequence.store(life, Ordering::Relaxed);
                    }
                    info.set_state(State::Lent);
                    pool.free.retain(|free| *free != id);
                }
            }
            if let Some(recovering) = log.recovering.get() {
                let next = recovering.borrowed.lock().next;
                pool.next_sequence = pool.next_sequence.max(next);
            }
        }
        drop(state);
        let attached = Attached {
            shape: Shape::new(self.geometry, self.cache_id),
            shared: Arc::clone(&self.shared),
            blocks: Arc::clone(&self.blocks),
        };
        if log.store.set(attached).is_err() || self.mapping_log.set(Arc::clone(log)).is_err() {
            unreachable!("a log is attached once, to one store");
        }
        log.note_work();
    }

    /// A checkpoint is begun. Its number among them is returned; 0 without a cascade index.
    pub(crate) fn begin_mapping_checkpoint(&self) -> u64 {
        self.mapping_log.get().map_or(0, |log| log.begin_checkpoint())
    }

    /// A checkpoint is on the device: see [`FlashStore::begin_mapping_checkpoint`].
    pub(crate) fn note_mapping_checkpoint(&self, number: u64, alone: bool) {
        if let Some(log) = self.mapping_log.get() {
            log.note_checkpoint(number, alone);
        }
        self.take_back_blocks();
    }

    /// No block of objects has a lower sequence any more.
    pub(crate) fn note_oldest_block(&self, sequence: u64) {
        if let Some(log) = self.mapping_log.get() {
            log.note_oldest(sequence);
        }
    }

    /// Whether blocks wait for a checkpoint to be of use again.
    pub(crate) fn wants_mapping_checkpoint(&self) -> bool {
        self.mapping_log.get().is_some_and(|log| log.wants_checkpoint())
    }

    /// Writes all pages that were put, for a checkpoint that names them.
    ///
    /// # Errors
    /// Where the device failed on one: the checkpoint must not be.
    pub(crate) async fn flush_mappings<D: Device<Buf = B>>(&self, device: &D) -> io::Result<()> {
        let Some(log) = self.mapping_log.get() else {
            return Ok(());
        };
        let failed = self.totals.write_errors.load(Ordering::Relaxed);
        log.state.lock().close_chunk();
        while let Some(write) = log.take_full() {
            self.write_mappings(device, &write).await;
        }
        log.wait_for_writes(1).await;
        if self.totals.write_errors.load(Ordering::Relaxed) != failed {
            return Err(io::Error::other("pages of mappings could not be written"));
        }
        Ok(())
    }

    /// Flash that pages of mappings take, in bytes: whole blocks.
    pub fn mapping_flash_bytes(&self) -> u64 {
        self.mapping_log.get().map_or(0, |log| log.borrowed_bytes())
    }

    /// DRAM of a cascade index for what is on flash, slots included, in bytes; cheap.
    pub fn mapping_heap_bytes(&self) -> u64 {
        self.mapping_log
            .get()
            .map_or(0, |log| log.charged.load(Ordering::Relaxed) + self.slot_bytes())
    }

    /// DRAM that pages of mappings take until they are written, in bytes.
    pub fn mapping_buffer_bytes(&self) -> u64 {
        self.mapping_log.get().map_or(0, |log| log.dram_bytes())
    }

    /// Takes back blocks of which no page is wanted.
    pub(crate) fn take_back_blocks(&self) {
        let Some(log) = self.mapping_log.get() else { return };
        let empty = {
            let mut state = log.state.lock();
            let empty = state.take_unnamed();
            log.note_held(&state);
            empty
        };
        if !empty.is_empty() {
            self.shared.change(|pool| {
                for id in empty {
                    self.give_back(pool, id);
                }
            });
        }
    }

    /// Writes a chunk.
    pub(crate) async fn write_mappings<D: Device<Buf = B>>(&self, device: &D, write: &PendingWrite<B>) {
        let written = write.log.write(device, write).await;
        let block = write.chunk.block;
        self.blocks[block as usize].note_write(written.is_ok());
        match written {
            Ok(len) => {
                add(&self.totals.written_bytes, len);
                add(&self.counters.mapping_bytes, len);
            }
            Err(error) => {
                // Who looks for a page there finds none, and its partition forgets what it had.
                tracing::error!("writing mappings to block {block}: {error}");
                add(&self.totals.write_errors, 1);
            }
        }
    }

    /// Reads pages of mappings for a lookup, all at once; `None` stands for one that is not there, or not whole.
    pub async fn read_mappings<D: Device<Buf = B>>(
        &self,
        device: &D,
        pages: &[PageNumber],
    ) -> Vec<Option<MappingBytes<B>>> {
        self.read_pages(device, pages, &self.counters.mapping_reads).await
    }

    /// As [`FlashStore::read_mappings`], for whatever; `reads` counts them.
    pub(crate) async fn read_pages<D: Device<Buf = B>>(
        &self,
        device: &D,
        pages: &[PageNumber],
        reads: &AtomicU64,
    ) -> Vec<Option<MappingBytes<B>>> {
        let Some(log) = self.mapping_log.get() else {
            return Vec::new();
        };
        // A read starts with the call.
        let reads: Vec<_> = pages
            .iter()
            .map(|page| match log.source(*page)? {
                PageSource::Memory(bytes) => Some(Ok(bytes)),
                PageSource::Device(offset) => {
                    add(reads, 1);
                    Some(Err(self.shared.read(device, offset, SECTOR_BYTES)))
                }
            })
            .collect();
        let mut found = Vec::with_capacity(pages.len());
        for (page, read) in pages.iter().zip(reads) {
            found.push(match read {
                None => None,
                Some(Ok(bytes)) => Some(bytes),
                Some(Err(read)) => match read.await {
                    Ok(buffer) => log.checked(*page, &Arc::new(buffer), 0),
                    Err(error) => {
                        tracing::warn!("reading a page of mappings: {error}");
                        add(&self.totals.read_errors, 1);
                        None
                    }
                },
            });
        }
        found
    }
}
