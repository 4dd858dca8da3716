//! The pages of a cascade index on the blocks of a store: blocks that are lent and taken back, the parts of a checkpoint that are
//! about pages, and I/O.

use super::FlashStore;
use crate::block::{BlockInfo, generation_of};
use crate::counts::Counters;
use crate::mapping_log::{Lender, MappingBytes, MappingLog, PageSource, PendingWrite, Shape};
use crate::objects::{Objects, Shared};
use pumice_blocks::{Blocks, Durability, State, add, turn_after};
use pumice_device::{Device, SECTOR_BYTES};
use pumice_index::cascade::{Generation, MapSpace, Merged, PageNumber};
use pumice_memory::Buffer;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks that are left to the store at least, whose reclaims need them.
const BLOCKS_LEFT: usize = 2;
/// Pages that one read brings, at most.
const READ_PAGES_MAX: usize = 64;
/// Reads under way at once.
const READS_MAX: usize = 4;
/// Pages that are put between two turns of others.
const PAGES_PER_TURN: usize = 16;

/// The store as the log sees it.
struct StoreLender<B: Buffer> {
    /// Free blocks that the log leaves to others.
    left: usize,
    shared: Arc<Shared<B>>,
    blocks: Arc<[BlockInfo]>,
}

impl<B: Buffer> Lender for StoreLender<B> {
    fn lend(&self) -> Option<(u32, u64)> {
        let mut pool = self.shared.pool.lock();
        self.shared.has_work.store(true, Ordering::Release);
        pool.own.mappings_want_block = pool.free.len() <= self.left;
        if pool.own.mappings_want_block {
            return None;
        }
        let (id, sequence) = pool.take_free()?;
        let info = &self.blocks[id as usize];
        info.sequence.store(sequence, Ordering::Release);
        info.set_state(State::Lent);
        Some((id, sequence))
    }

    fn lent_sequence(&self, block: u32) -> Option<u64> {
        let info = self.blocks.get(block as usize)?;
        Some(info.sequence.load(Ordering::Acquire))
    }

    fn generation_of(&self, block: u32) -> Generation {
        generation_of(&self.blocks[block as usize])
    }

    fn next_sequence(&self) -> u64 {
        self.shared.pool.lock().next_sequence
    }

    fn note_work(&self) {
        self.shared.has_work.store(true, Ordering::Release);
    }
}

/// The pages of mappings, of a store whose index has any.
pub struct MappingPages<'a, B: Buffer> {
    pub(crate) log: &'a Arc<MappingLog<B>>,
    base: &'a Blocks<Objects<B>>,
    counters: &'a Counters,
}

impl<B: Buffer> FlashStore<B> {
    /// The pages of mappings; `None` where all mappings are in DRAM.
    pub fn mapping_pages(&self) -> Option<MappingPages<'_, B>> {
        Some(MappingPages {
            log: self.mapping_log.get()?,
            base: &self.base,
            counters: &self.counters,
        })
    }

    /// Lends blocks to `log` from now on; those that it has from the start of this cache stay its own.
    pub(crate) fn attach_mapping_log(&self, log: &Arc<MappingLog<B>>) {
        {
            let borrowed = log.borrowed();
            let mut pool = self.shared.pool.lock();
            for (id, sequence) in borrowed {
                let info = &self.blocks[id as usize];
                if info.state() == State::Free {
                    if let Some(sequence) = sequence {
                        info.sequence.store(sequence, Ordering::Relaxed);
                    }
                    info.set_state(State::Lent);
                    pool.free.retain(|free| *free != id);
                }
            }
            pool.next_sequence = pool.next_sequence.max(log.next_generation());
        }
        let shape = Shape::new(self.geometry, self.cache_id);
        let lender = StoreLender {
            // Survivors that find no free block are lost, so half of the reserve is left to them. Not all of it: a reorganisation that gets no
            // block is given up, and until one is made the old pages keep theirs.
            left: (self.geometry.reserved as usize / 2).max(BLOCKS_LEFT),
            shared: Arc::clone(&self.shared),
            blocks: Arc::clone(&self.blocks),
        };
        // A start after a crash reads no checkpoint there.
        log.attach(shape, Box::new(lender), self.durability == Durability::Off);
        if self.mapping_log.set(Arc::clone(log)).is_err() {
            unreachable!("a store has one log");
        }
    }
}

impl<B: Buffer> MappingPages<'_, B> {
    /// A checkpoint is on the device, the newest there, or, with `alone`, the only one; `number` is what
    /// [`MappingLog::begin_checkpoint`] said.
    pub(crate) fn note_checkpoint(&self, number: u64, alone: bool) {
        self.log.note_checkpoint(number, alone);
        self.take_back();
    }

    /// Whether blocks wait for a checkpoint to be of use again.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        self.log.wants_checkpoint()
    }

    /// Writes all pages that were put, for a checkpoint that names them.
    ///
    /// # Errors
    /// Where the device failed on one: the checkpoint must not be.
    pub(crate) async fn flush<D: Device<Buf = B>>(&self, device: &D) -> io::Result<()> {
        let failed = self.base.totals.write_errors.load(Ordering::Relaxed);
        self.log.close_chunk();
        while let Some(write) = self.log.take_full() {
            self.write(device, &write).await;
        }
        self.log.wait_for_writes(1).await;
        if self.base.totals.write_errors.load(Ordering::Relaxed) != failed {
            return Err(io::Error::other("pages of mappings could not be written"));
        }
        Ok(())
    }

    /// Flash that pages take, in bytes: whole blocks.
    pub fn flash_bytes(&self) -> u64 {
        self.log.borrowed_bytes()
    }

    /// DRAM that pages take until they are written, in bytes.
    pub fn buffer_bytes(&self) -> u64 {
        self.log.dram_bytes()
    }

    /// Takes back blocks of which no page is wanted.
    pub(crate) fn take_back(&self) {
        let empty = self.log.take_back();
        if !empty.is_empty() {
            self.base.shared.change(|pool| {
                for id in empty {
                    self.base.give_back(pool, id);
                }
            });
        }
    }

    /// Writes a chunk.
    pub(crate) async fn write<D: Device<Buf = B>>(&self, device: &D, write: &PendingWrite<B>) {
        let block = write.block();
        let Some((start, buffer, len)) = write.piece() else {
            return write.note_done();
        };
        let written = self.base.shared.write(device, start, buffer, 0..len).await;
        write.note_done();
        self.base.blocks[block as usize].note_write(written.is_ok());
        match written {
            Ok(()) => {
                add(&self.base.totals.written_bytes, len as u64);
                add(&self.counters.mapping_bytes, len as u64);
            }
            Err(error) => {
                // Who looks for a page there finds none, and its partition forgets what it had.
                tracing::error!("writing mappings to block {block}: {error}");
                add(&self.base.totals.write_errors, 1);
            }
        }
    }

    /// Reads pages for a lookup, all at once; `None` stands for one that is not there, or not whole.
    pub async fn read<D: Device<Buf = B>>(
        &self,
        device: &D,
        pages: &[PageNumber],
    ) -> Vec<Option<MappingBytes<B>>> {
        add(&self.counters.mapping_rounds, 1);
        self.read_counted(device, pages, &self.counters.mapping_reads)
            .await
    }

    /// As [`MappingPages::read`], for whatever; `reads` counts them.
    pub(crate) async fn read_counted<D: Device<Buf = B>>(
        &self,
        device: &D,
        pages: &[PageNumber],
        reads: &AtomicU64,
    ) -> Vec<Option<MappingBytes<B>>> {
        // A read starts with the call.
        let reads: Vec<_> = pages
            .iter()
            .map(|page| match self.log.source(*page)? {
                PageSource::Memory(bytes) => Some(Ok(bytes)),
                PageSource::Device(offset) => {
                    add(reads, 1);
                    Some(Err(self.base.shared.read(device, offset, SECTOR_BYTES)))
                }
            })
            .collect();
        let mut found = Vec::with_capacity(pages.len());
        for (page, read) in pages.iter().zip(reads) {
            found.push(match read {
                None => None,
                Some(Ok(bytes)) => Some(bytes),
                Some(Err(read)) => match read.await {
                    Ok(buffer) => self.log.checked(*page, &Arc::new(buffer), 0),
                    Err(error) => {
                        tracing::warn!("reading a page of mappings: {error}");
                        add(&self.base.totals.read_errors, 1);
                        None
                    }
                },
            });
        }
        found
    }

    /// Puts the pages of a new wide table; false where there is no room for them.
    pub(crate) async fn put_merged<D: Device<Buf = B>>(
        &self,
        device: &D,
        merged: &Merged,
        pages: &mut Vec<PageNumber>,
    ) -> bool {
        let log = self.log;
        for (at, page) in merged.pages().enumerate() {
            turn_after(at, PAGES_PER_TURN).await;
            let number = loop {
                if let Some(number) = log.put(page) {
                    break number;
                }
                // The chunks are full: write one, or wait for one that is being written.
                if let Some(write) = log.take_full() {
                    self.write(device, &write).await;
                } else {
                    match log.writing() {
                        0 => return false,
                        writing => log.wait_for_writes(writing).await,
                    }
                }
            };
            pages.push(number);
        }
        true
    }

    /// Reads pages, neighbours in one read; `None` where one is not there or not whole.
    pub(crate) async fn read_in_runs<D: Device<Buf = B>>(
        &self,
        device: &D,
        pages: &[PageNumber],
    ) -> Option<Vec<MappingBytes<B>>> {
        let log = self.log;
        let mut found: Vec<Option<MappingBytes<B>>> = Vec::with_capacity(pages.len());
        let mut reads = VecDeque::new();
        let mut at = 0;
        while at < pages.len() || !reads.is_empty() {
            while at < pages.len() && reads.len() < READS_MAX {
                let offset = match log.source(pages[at])? {
                    PageSource::Memory(bytes) => {
                        found.push(Some(bytes));
                        at += 1;
                        continue;
                    }
                    PageSource::Device(offset) => offset,
                };
                let mut len = 1;
                while len < READ_PAGES_MAX
                    && at + len < pages.len()
                    && pages[at + len] == pages[at] + len as PageNumber
                    && matches!(log.source(pages[at + len])?, PageSource::Device(next) if next == offset + (len * SECTOR_BYTES) as u64)
                {
                    len += 1;
                }
                add(
                    &self.counters.reorganisation_read_bytes,
                    (len * SECTOR_BYTES) as u64,
                );
                reads.push_back((at, len, self.base.shared.read(device, offset, len * SECTOR_BYTES)));
                found.resize_with(at + len, || None);
                at += len;
            }
            let Some((first, len, read)) = reads.pop_front() else {
                continue;
            };
            let buffer = match read.await {
                Ok(buffer) => Arc::new(buffer),
                Err(error) => {
                    tracing::warn!("reading pages of mappings: {error}");
                    add(&self.base.totals.read_errors, 1);
                    return None;
                }
            };
            for i in 0..len {
                found[first + i] = Some(log.checked(pages[first + i], &buffer, i * SECTOR_BYTES)?);
            }
        }
        found.into_iter().collect()
    }
}
