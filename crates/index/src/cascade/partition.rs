//! One partition of the cascade index: its tiers, what tier 1 says, and what changes it.
//!
//! An entry of tier 1 is *dirty* where flash does not say the same, and a *shield* where flash may say something older. One that
//! is neither and has no place says that the key is not on flash: a lookup has read that there.

use super::counts::CascadeCounts;
use super::filter::{Filter, FilterShape};
use super::page::PageShape;
use super::wide::Wide;
use super::{History, MapSpace, PageNumber, SavedHistory};
use crate::full::{IndexShape, SLOT_BITS};
use crate::{KeyHash, Location, Mapping, PackedTable, TableFull};
use pumice_memory::PagePool;
use std::sync::Arc;

/// How often it was asked for, up to 3; the hand of the CLOCK takes some back.
pub(super) const ASKED: u32 = 3;
/// Not on flash as it is here.
pub(super) const DIRTY: u32 = 4;
/// An older mapping of this key may be on flash.
pub(super) const SHIELD: u32 = 8;

/// Pages of a generation.
pub(super) const GENERATION_PAGES: usize = 8;
pub(super) const PAGE_HINT_BITS: u32 = GENERATION_PAGES.ilog2();
pub(super) const SHIELD_HINT: u32 = 1 << PAGE_HINT_BITS;
/// The part of a hint that says which page of its generation it is.
pub(super) const PAGE_HINT: u32 = SHIELD_HINT - 1;
pub(super) const GENERATION_CELL_BITS: u32 = 7;

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

/// The shape of a generation's filter over about `entries` entries.
pub(super) fn generation_shape(tag_bits: u32, entries: usize) -> FilterShape {
    FilterShape::new(tag_bits, entries, GENERATION_CELL_BITS, PAGE_HINT_BITS + 1)
}

pub(super) struct Generation {
    pub(super) pages: Vec<PageNumber>,
    pub(super) filter: Filter,
}

/// A partition; every method is called under its shard's lock.
pub struct CascadeShard {
    pub(super) partition: u32,
    pub(super) shape: IndexShape,
    pub(super) pages: PageShape,
    pub(super) tier1: PackedTable,
    pub(super) options: CascadeOptions,
    pub(super) tier1_max: usize,
    /// Entries of tier 1 that are dirty.
    pub(super) dirty: usize,
    /// Entries that were dropped since a page was written, or none was found worth it.
    pub(super) dropped: usize,
    /// The bucket that the hand of the CLOCK points at, and how often it went round.
    pub(super) hand: usize,
    pub(super) laps: u32,
    /// The oldest first.
    pub(super) generations: Vec<Generation>,
    pub(super) wide: Wide,
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
            tier1: PackedTable::new(shape.table(), pool),
            options,
            tier1_max: options.tier1_min,
            dirty: 0,
            dropped: 0,
            hand: 0,
            laps: 0,
            generations: Vec::new(),
            wide: Wide::nothing(shape.tag_bits()),
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

    pub(super) fn strip(&self, payload: u64) -> Option<Mapping> {
        let Mapping { location, note } = self.shape.unpack(payload);
        let mapping = Mapping {
            location,
            note: note & ((1 << SLOT_BITS) - 1),
        };
        (self.shape.place(payload) != 0).then_some(mapping)
    }

    pub(super) fn flags(&self, payload: u64) -> u32 {
        self.shape.unpack(payload).note >> SLOT_BITS
    }

    pub(super) fn payload(&self, mapping: Option<Mapping>, flags: u32) -> u64 {
        let place = mapping.map_or(0, |mapping| self.shape.pack(mapping));
        u64::from(flags) << self.flags_at() | place
    }

    /// Where flags begin in a payload.
    pub(super) fn flags_at(&self) -> u32 {
        self.shape.place_bits() + SLOT_BITS
    }

    /// Where `hash` is mapped to, as far as DRAM knows.
    pub fn mapping(&self, hash: KeyHash) -> Option<Mapping> {
        let payload = self.tier1.find(self.shape.tag(hash), |_| true)?;
        self.strip(payload)
    }

    /// The mapping, if it is to `location` and DRAM knows it.
    pub fn live(&self, hash: KeyHash, location: Location) -> Option<Mapping> {
        self.mapping(hash).filter(|mapping| mapping.location == location)
    }

    /// What a checkpoint keeps of the history. Nothing is known of it any more then.
    pub fn take_history(&self) -> SavedHistory {
        self.history.take()
    }

    /// See [`IndexShard::begin_history`](crate::IndexShard::begin_history).
    pub fn begin_history(&self, saved: Option<SavedHistory>, knows_deaths: bool) {
        self.history.begin(&*self.space, saved, knows_deaths);
    }

    /// DRAM of the history, in bytes, which is that of all partitions.
    pub fn history_bytes(&self) -> usize {
        self.history.dram_bytes()
    }

    /// Whether there may be a mapping in a page.
    pub(super) fn may_hold(&self, tag: u64) -> bool {
        self.filters().any(|filter| filter.matches(tag).next().is_some())
    }

    pub(super) fn filters(&self) -> impl Iterator<Item = &Filter> {
        let tier2 = self.generations.iter().map(|generation| &generation.filter);
        tier2.chain([self.wide.filter()])
    }

    /// Maps `hash`, in place of whatever it was mapped to, of which is returned what DRAM knows.
    ///
    /// # Errors
    /// [`TableFull`]; the key is then not mapped.
    pub fn set(&mut self, hash: KeyHash, mapping: Mapping) -> Result<Option<Mapping>, TableFull> {
        let old = self.write(self.shape.tag(hash), Some(mapping))?;
        Ok(old.and_then(|payload| self.strip(payload)))
    }

    /// Writes a mapping or a tombstone over what tier 1 has, and returns that.
    pub(super) fn write(&mut self, tag: u64, mapping: Option<Mapping>) -> Result<Option<u64>, TableFull> {
        let old = self.tier1.find(tag, |_| true);
        let hides = match old.map(|payload| self.flags(payload)) {
            // On flash there is no more than what is void already.
            Some(0..=ASKED) if self.shape.place(old.unwrap_or_default()) == 0 => false,
            Some(flags) => flags & DIRTY == 0 || flags & SHIELD != 0,
            None => self.may_hold(tag),
        };
        let mut flags = DIRTY;
        if hides {
            flags |= SHIELD;
        }
        let new = self.payload(mapping, flags);
        let was_dirty = old.is_some_and(|payload| self.flags(payload) & DIRTY != 0);
        if mapping.is_none() && !hides {
            // Nothing is left to hide.
            self.tier1.remove(tag, |_| true);
            self.dirty -= usize::from(was_dirty);
        } else if old.is_some() {
            self.tier1.update(tag, |_| Some(new));
            self.dirty += usize::from(!was_dirty);
        } else if self.insert_new(tag, new, hides).is_err() {
            if hides {
                // What is on flash must not speak in its place.
                self.forget_all();
            }
            return Err(TableFull);
        } else {
            self.dirty += 1;
        }
        self.demote(None);
        Ok(old)
    }

    /// Adds an entry to tier 1. One that `hides` an older mapping goes in beyond the bound too, as long as there is DRAM: without it the
    /// whole partition would have to be forgotten.
    fn insert_new(&mut self, tag: u64, payload: u64, hides: bool) -> Result<(), TableFull> {
        if !self.makes_room() && !hides {
            return Err(TableFull);
        }
        self.tier1.insert(tag, payload).or_else(|full| {
            if !hides {
                return Err(full);
            }
            self.drop_clean();
            self.tier1.insert(tag, payload)
        })
    }

    /// Maps `hash` to `new` if DRAM knows it at `old`, and returns what was there.
    pub fn compare_and_set(&mut self, hash: KeyHash, old: Location, new: Mapping) -> Option<Mapping> {
        let known = self.live(hash, old)?;
        // It takes the place of an entry: there is room.
        self.write(self.shape.tag(hash), Some(new)).ok()?;
        Some(known)
    }

    /// Removes the mapping of `hash`, whatever it is, and returns it as far as DRAM knows it.
    pub fn remove(&mut self, hash: KeyHash) -> Option<Mapping> {
        let old = self.write(self.shape.tag(hash), None).ok()??;
        self.strip(old)
    }

    /// Removes the mapping of `hash` if DRAM knows it at `location`.
    pub fn remove_at(&mut self, hash: KeyHash, location: Location) -> Option<Mapping> {
        self.live(hash, location)?;
        self.remove(hash)
    }

    /// Whether it forgot what a start may find again. That ends when the last block that was there then has been reclaimed.
    pub fn is_blank(&self) -> bool {
        self.blank_before > self.space.oldest_life()
    }

    /// Forgets everything, when nothing better is safe.
    pub(super) fn forget_all(&mut self) {
        self.drop_all();
        self.blank_before = self.space.next_life();
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
        self.dirty = 0;
        let wide = std::mem::replace(&mut self.wide, Wide::nothing(self.shape.tag_bits()));
        let pages = self.generations.drain(..).flat_map(|generation| generation.pages);
        for page in pages.chain(wide.into_pages()) {
            self.space.release(page);
        }
        self.merging = None;
        self.epoch = self.epoch.wrapping_add(1);
        self.resize_tier1();
    }

    /// Makes the partition empty without giving a page back.
    pub(super) fn drop_tables(&mut self) {
        self.tier1.clear();
        self.dirty = 0;
        self.generations.clear();
        self.wide = Wide::nothing(self.shape.tag_bits());
    }

    /// Calls `visit` with every mapping that DRAM knows.
    pub fn for_each(&self, mut visit: impl FnMut(Mapping)) {
        self.tier1.for_each(|_, payload| {
            if let Some(mapping) = self.strip(payload) {
                visit(mapping);
            }
        });
    }

    /// Removes the mappings in DRAM that `keep` does not like.
    pub fn retain(&mut self, mut keep: impl FnMut(Mapping) -> bool) {
        let mut gone = Vec::new();
        self.tier1.for_each(|tag, payload| {
            if self.strip(payload).is_some_and(|mapping| !keep(mapping)) {
                gone.push(tag);
            }
        });
        for tag in gone {
            // In the place of an entry: there is room.
            let _ = self.write(tag, None);
        }
    }
}
