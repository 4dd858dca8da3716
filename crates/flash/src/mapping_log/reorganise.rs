//! The I/O of a reorganisation.

use super::pages::PageSource;
use super::{Due, MappingBytes};
use crate::Mappings;
use crate::reclaim::ENTRIES_PER_TURN;
use crate::store::{FlashStore, life_of};
use pumice_blocks::{add, give_turn};
use pumice_device::{Device, SECTOR_BYTES};
use pumice_index::cascade::{Life, MapSpace, Merged, PageNumber, Reorganisation};
use pumice_memory::Buffer;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Pages that one read brings, at most.
const READ_PAGES_MAX: usize = 64;
/// Reads under way at once.
const READS_MAX: usize = 4;
/// Pages that are put between two turns of others.
const PAGES_PER_TURN: usize = 16;

/// Gives a reorganisation up unless it was finished: also where its future is dropped.
struct Unfinished<'a, M: Mappings> {
    mappings: &'a M,
    partition: u32,
    begun: &'a Reorganisation,
    pages: Vec<PageNumber>,
    is_lost: bool,
    is_done: bool,
}

impl<M: Mappings> Drop for Unfinished<'_, M> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let pages = std::mem::take(&mut self.pages);
        self.mappings.with_shard(self.partition as usize, |shard| {
            if let Some(shard) = shard.cascade() {
                shard.abandon_reorganisation(self.begun, pages, self.is_lost);
            }
        });
    }
}

impl<B: Buffer> FlashStore<B> {
    /// Reorganises a partition, if it still wants that.
    pub(crate) async fn reorganise<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        due: &Due<B>,
    ) {
        due.is_done.store(true, Ordering::Relaxed);
        let partition = due.partition as usize;
        let begun = mappings.with_shard(partition, |shard| shard.cascade()?.begin_reorganisation(false));
        let Some(begun) = begun else { return };
        let mut unfinished = Unfinished {
            mappings,
            partition: due.partition,
            begun: &begun,
            pages: Vec::new(),
            is_lost: false,
            is_done: false,
        };
        let numbers: Vec<PageNumber> = begun.pages().collect();
        let Some(pages) = self.read_in_runs(device, &numbers).await else {
            unfinished.is_lost = true;
            return;
        };
        let payloads: Option<Vec<&[u8]>> = pages.iter().map(MappingBytes::payload).collect();
        let merged = payloads.and_then(|payloads| {
            begun.merge(payloads, |location| {
                // A page may name any place.
                let block = self.geometry.block_of(location.offset);
                block.map_or(Life::Sequence(0), |block| life_of(&self.blocks[block as usize]))
            })
        });
        let Some(merged) = merged else {
            unfinished.is_lost = true;
            return;
        };
        drop(pages);
        // Before it takes the place of what says so.
        let mut dead = (0, 0);
        for (at, (mapping, sequence)) in merged.superseded().iter().enumerate() {
            if at % ENTRIES_PER_TURN == ENTRIES_PER_TURN - 1 {
                give_turn().await;
            }
            let len = self.note_superseded(*mapping, *sequence);
            dead = (dead.0 + u64::from(len > 0), dead.1 + len);
        }
        mappings.account_rest(dead.0, dead.1);
        if self.put_merged(device, &merged, &mut unfinished.pages).await {
            unfinished.is_done = true;
            let pages = std::mem::take(&mut unfinished.pages);
            mappings.with_shard(partition, |shard| {
                if let Some(shard) = shard.cascade() {
                    shard.finish_reorganisation(&merged, pages);
                }
            });
            add(&self.counters.reorganisations, 1);
        } else {
            // There was no block to be had. Another page of this partition will ask again.
            tracing::debug!("a partition of mappings could not be reorganised for want of a free block");
        }
        self.take_back_blocks();
    }

    /// Puts the pages of a new wide table; false where there is no room for them.
    async fn put_merged<D: Device<Buf = B>>(
        &self,
        device: &D,
        merged: &Merged,
        pages: &mut Vec<PageNumber>,
    ) -> bool {
        let Some(log) = self.mapping_log.get() else {
            return false;
        };
        for (at, page) in merged.pages().enumerate() {
            if at % PAGES_PER_TURN == PAGES_PER_TURN - 1 {
                give_turn().await;
            }
            let number = loop {
                if let Some(number) = log.put(page) {
                    break number;
                }
                // The chunks are full: write one, or wait for one that is being written.
                if let Some(write) = log.take_full() {
                    self.write_mappings(device, &write).await;
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
    async fn read_in_runs<D: Device<Buf = B>>(
        &self,
        device: &D,
        pages: &[PageNumber],
    ) -> Option<Vec<MappingBytes<B>>> {
        let log = self.mapping_log.get()?;
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
                reads.push_back((at, len, self.shared.read(device, offset, len * SECTOR_BYTES)));
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
                    add(&self.totals.read_errors, 1);
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
