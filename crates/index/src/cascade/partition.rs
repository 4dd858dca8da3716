//! One partition of the cascade index: its tiers, what tier 1 says, and what changes it.

use super::counts::CascadeCounts;
use super::flash_tiers::FlashTiers;
use super::page::PageShape;
use super::tier1::{Entry, Tier1};
use super::{History, MapSpace, SavedHistory};
use crate::full::IndexShape;
use crate::{KeyHash, Location, Mapping, TableFull};
use pumice_memory::PagePool;
use std::sync::Arc;

/// How a partition is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CascadeOptions {
    /// Mappings that tier 1 has at least before any goes to flash.
    pub tier1_min: usize,
    /// Mappings that it has for each on flash.
    pub tier1_share: f64,
    /// Mappings of a page, at most [`PAGE_ENTRIES`](super::PAGE_ENTRIES); fewer are for tests, which then have many pages of few.
    pub page_entries: usize,
}

/// A partition; every method is called under its shard's lock.
pub struct CascadeShard {
    pub(super) partition: u32,
    pub(super) shape: IndexShape,
    pub(super) pages: PageShape,
    pub(super) tier1: Tier1,
    pub(super) flash: FlashTiers,
    pub(super) options: CascadeOptions,
    pub(super) tier1_max: usize,
    /// Entries of tier 1 that were dropped since a page was written, or none was found worth it.
    pub(super) dropped: usize,
    pub(super) space: Arc<dyn MapSpace>,
    pub(super) history: Arc<History>,
    /// Goes up when pages are given up, so that a plan for them is known as stale.
    pub(super) epoch: u32,
    pub(super) merging: Option<Merging>,
    /// It forgot what blocks with lower sequences hold, which a start may find again. While one of them is left, nothing is known to
    /// be absent.
    pub(super) blank_before: u64,
    /// DRAM for what is on flash, as the space knows it.
    pub(super) charged: usize,
    pub(super) counts: CascadeCounts,
}

/// What a reorganisation that is under way must be told in the end.
pub(super) struct Merging {
    /// Generations that it merges, the oldest.
    pub(super) generations: usize,
    /// What was forgotten in what it merges.
    pub(super) forgotten: Vec<(u64, Location)>,
}

impl CascadeShard {
    /// An empty partition whose tier 1 takes pages from `pool`. `shape` has
    /// [`IndexShape::CASCADE_NOTE_BITS`] bits of note; all partitions have one `history`.
    pub fn new(
        shape: IndexShape,
        partition: u32,
        options: CascadeOptions,
        pool: Arc<PagePool>,
        space: Arc<dyn MapSpace>,
        history: Arc<History>,
    ) -> Self {
        let pages = PageShape::new(shape);
        let mut shard = Self {
            partition,
            shape,
            pages,
            tier1: Tier1::new(shape, pool),
            flash: FlashTiers::nothing(shape, options.page_entries),
            options,
            tier1_max: options.tier1_min,
            dropped: 0,
            space,
            history,
            epoch: 0,
            merging: None,
            blank_before: 0,
            charged: 0,
            counts: CascadeCounts::default(),
        };
        shard.resize_tier1();
        shard
    }

    /// Where `hash` is mapped to, as far as DRAM knows.
    pub fn mapping(&self, hash: KeyHash) -> Option<Mapping> {
        self.tier1.find(self.shape.tag(hash))?.mapping
    }

    /// The mapping, if it is to `location` and DRAM knows it.
    pub fn live(&self, hash: KeyHash, location: Location) -> Option<Mapping> {
        self.mapping(hash).filter(|mapping| mapping.location == location)
    }

    /// What a checkpoint keeps of the history. Nothing is known of it any more then.
    pub fn take_history(&self) -> SavedHistory {
        self.history.take()
    }

    /// Begins with what a clean stop has saved of what was superseded lately, for all partitions; without it nothing is known. Where the
    /// store `knows_deaths`, and says [`Heard::Alive`](crate::Heard::Alive) of a copy, none are remembered here.
    pub fn begin_history(&self, saved: Option<SavedHistory>, knows_deaths: bool) {
        self.history.begin(&*self.space, saved, knows_deaths);
    }

    /// DRAM of the history, in bytes, which is that of all partitions.
    pub fn history_bytes(&self) -> usize {
        self.history.dram_bytes()
    }

    /// Maps `hash`, in place of whatever it was mapped to, of which is returned what DRAM knows.
    ///
    /// # Errors
    /// [`TableFull`]; the key is then not mapped.
    pub fn set(&mut self, hash: KeyHash, mapping: Mapping) -> Result<Option<Mapping>, TableFull> {
        let old = self.write(self.shape.tag(hash), Some(mapping))?;
        Ok(old.and_then(|entry| entry.mapping))
    }

    /// Writes a mapping or a tombstone over what tier 1 has, and returns that.
    pub(super) fn write(&mut self, tag: u64, mapping: Option<Mapping>) -> Result<Option<Entry>, TableFull> {
        let old = self.tier1.find(tag);
        let hides = old.map_or_else(|| self.flash.may_hold(tag), |entry| entry.hides());
        let new = Entry::dirty(mapping, hides);
        if mapping.is_none() && !hides {
            // Nothing is left to hide.
            self.tier1.remove(tag);
        } else if old.is_some() {
            // In its place: there is room.
            let _ = self.tier1.put(tag, new);
        } else if self.insert_new(tag, new).is_err() {
            if hides {
                // What is on flash must not speak in its place.
                self.forget_all();
            }
            return Err(TableFull);
        }
        self.demote(None);
        Ok(old)
    }

    /// Adds an entry to tier 1. A shield goes in beyond the bound too, as long as there is DRAM: without it the whole partition would
    /// have to be forgotten.
    fn insert_new(&mut self, tag: u64, new: Entry) -> Result<(), TableFull> {
        if !self.makes_room() && !new.is_shield() {
            return Err(TableFull);
        }
        self.tier1.put(tag, new).or_else(|full| {
            if !new.is_shield() {
                return Err(full);
            }
            self.tier1.drop_clean();
            self.tier1.put(tag, new)
        })
    }

    /// Removes the mapping of `hash`, whatever it is, and returns it as far as DRAM knows it.
    pub fn remove(&mut self, hash: KeyHash) -> Option<Mapping> {
        self.write(self.shape.tag(hash), None).ok()??.mapping
    }

    /// Whether it forgot what a start may find again. That ends when the last block that was there then has been reclaimed.
    pub fn is_blank(&self) -> bool {
        self.blank_before > self.space.oldest_generation()
    }

    /// Forgets everything, when nothing better is safe.
    pub(super) fn forget_all(&mut self) {
        self.drop_all();
        self.blank_before = self.space.next_generation();
        self.counts.forgotten += 1;
    }

    /// Removes everything: no copy that there is now counts any more.
    pub fn clear(&mut self) {
        self.drop_all();
        self.history.forget(&*self.space);
    }

    /// Removes everything and gives all pages back.
    fn drop_all(&mut self) {
        self.tier1.clear();
        let nothing = FlashTiers::nothing(self.shape, self.options.page_entries);
        for page in std::mem::replace(&mut self.flash, nothing).pages() {
            self.space.release(page);
        }
        self.merging = None;
        self.epoch = self.epoch.wrapping_add(1);
        self.resize_tier1();
    }

    /// Calls `visit` with every mapping that DRAM knows.
    pub fn for_each(&self, mut visit: impl FnMut(Mapping)) {
        self.tier1.for_each(|_, entry| {
            if let Some(mapping) = entry.mapping {
                visit(mapping);
            }
        });
    }

    /// Removes the mappings in DRAM that `keep` does not like.
    pub fn retain(&mut self, mut keep: impl FnMut(Mapping) -> bool) {
        let mut gone = Vec::new();
        self.tier1.for_each(|tag, entry| {
            if entry.mapping.is_some_and(|mapping| !keep(mapping)) {
                gone.push(tag);
            }
        });
        for tag in gone {
            // In the place of an entry: there is room.
            let _ = self.write(tag, None);
        }
    }
}
