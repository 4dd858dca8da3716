//! The I/O of a reorganisation.

use super::Worker;
use crate::Mappings;
use crate::block::generation_of;
use crate::footer::ENTRIES_PER_TURN;
use crate::mapping_log::{Due, MappingBytes};
use pumice_blocks::{add, turn_after};
use pumice_device::Device;
use pumice_index::cascade::{Generation, PageNumber, Reorganisation};
use pumice_memory::Buffer;
use std::sync::atomic::Ordering;

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

impl<B: Buffer, D: Device<Buf = B>, M: Mappings> Worker<'_, B, D, M> {
    /// Reorganises a partition, if it still wants that.
    pub(super) async fn reorganise(&self, due: &Due<B>) {
        due.is_done.store(true, Ordering::Relaxed);
        let Some(log_pages) = self.store.mapping_pages() else {
            return;
        };
        let partition = due.partition as usize;
        let begun = self
            .mappings
            .with_shard(partition, |shard| shard.cascade()?.begin_reorganisation(false));
        let Some(begun) = begun else { return };
        let mut unfinished = Unfinished {
            mappings: self.mappings,
            partition: due.partition,
            begun: &begun,
            pages: Vec::new(),
            is_lost: false,
            is_done: false,
        };
        let numbers: Vec<PageNumber> = begun.pages().collect();
        let Some(pages) = log_pages.read_in_runs(self.device, &numbers).await else {
            unfinished.is_lost = true;
            return;
        };
        let payloads: Option<Vec<&[u8]>> = pages.iter().map(MappingBytes::payload).collect();
        let merged = payloads.and_then(|payloads| {
            begun.merge(payloads, |location| {
                // A page may name any place.
                let block = self.store.geometry.block_of(location.offset);
                block.map_or(Generation::Sequence(0), |block| {
                    generation_of(&self.store.blocks[block as usize])
                })
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
            turn_after(at, ENTRIES_PER_TURN).await;
            let len = self.store.order.note_superseded(*mapping, *sequence);
            dead = (dead.0 + u64::from(len > 0), dead.1 + len);
        }
        self.mappings.account_rest(dead.0, dead.1);
        if log_pages
            .put_merged(self.device, &merged, &mut unfinished.pages)
            .await
        {
            unfinished.is_done = true;
            let pages = std::mem::take(&mut unfinished.pages);
            self.mappings.with_shard(partition, |shard| {
                if let Some(shard) = shard.cascade() {
                    shard.finish_reorganisation(&merged, pages);
                }
            });
            add(&self.store.counters.reorganisations, 1);
        } else {
            // There was no block to be had. Another page of this partition will ask again.
            tracing::debug!("a partition of mappings could not be reorganised for want of a free block");
        }
        log_pages.take_back();
    }
}
