//! One partition of the cascade index: its tiers, and what is asked of them.
//!
//! An entry of tier 1 is *dirty* where flash does not say the same, and a *shield* where flash may say something older. One that
//! is neither and has no place says that the key is not on flash: a lookup has read that there.

use super::filter::{Filter, FilterEntry, FilterShape, Match};
use super::page::{PageEntry, PageShape};
use super::reorganise::WIDE_CELL_BITS;
use super::{Life, MapSpace, PageNumber};
use crate::full::IndexShape;
use crate::table::Swept;
use crate::{Candidates, KeyHash, Location, Lookup, Mapping, PackedTable, TableFull};
use pumice_memory::PagePool;
use std::sync::Arc;

/// Bits of a mapping's note that go with it wherever it is: which object of its block it is, of those near its place.
pub const SLOT_BITS: u32 = 6;
/// Bits beside place and slot in tier 1.
pub(crate) const FLAG_BITS: u32 = 3;
/// Asked for since the hand of the CLOCK passed.
const REFERENCED: u32 = 1;
/// Not on flash as it is here.
const DIRTY: u32 = 2;
/// An older mapping of this key may be on flash.
const SHIELD: u32 = 4;

/// Pages of a generation.
pub(crate) const GENERATION_PAGES: usize = 8;
const PAGE_HINT_BITS: u32 = GENERATION_PAGES.ilog2();
const SHIELD_HINT: u32 = 1 << PAGE_HINT_BITS;
/// The part of a hint that says which page of its generation it is.
pub(crate) const PAGE_HINT: u32 = SHIELD_HINT - 1;
pub(crate) const GENERATION_CELL_BITS: u32 = 7;
/// Tier 2 is merged into tier 3 when it has so many pages for each of tier 3's, in hundredths.
const REORGANISE_PERCENT: usize = 50;
/// And not before it has so many.
const REORGANISE_PAGES_MIN: usize = 4;
/// Pages that one lookup asks for, at most; of more the newest.
pub(crate) const PLAN_PAGES_MAX: usize = 8;

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

/// The pages that may have a mapping, the newest first: to be read together, and then brought to [`CascadeShard::resolve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    epoch: u32,
    len: u8,
    /// Whether there were more.
    is_cut: bool,
    pages: [PageNumber; PLAN_PAGES_MAX],
}

impl Plan {
    /// The pages to read, at most eight.
    pub fn pages(&self) -> &[PageNumber] {
        &self.pages[..usize::from(self.len)]
    }

    fn push(&mut self, page: PageNumber) {
        if self.pages().contains(&page) {
            return;
        }
        self.is_cut = usize::from(self.len) == PLAN_PAGES_MAX;
        if !self.is_cut {
            self.pages[usize::from(self.len)] = page;
            self.len += 1;
        }
    }
}

/// What the pages of a plan say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// The key is mapped so, and tier 1 knows it now.
    Hit(Mapping),
    /// The key is not on flash.
    Miss,
    /// Pages have come or gone meanwhile: look it up again.
    Again,
}

/// What a partition has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CascadeCounts {
    /// Mappings in tier 1.
    pub tier1_mappings: u64,
    /// Mappings in pages, superseded and void ones that were not dropped yet included.
    pub flash_mappings: u64,
    /// DRAM of tier 1, in bytes.
    pub tier1_bytes: u64,
    /// DRAM of filters, in bytes.
    pub filter_bytes: u64,
    /// DRAM of what names pages, in bytes.
    pub directory_bytes: u64,
    /// Mappings that pages resolved.
    pub flash_hits: u64,
    /// Lookups that read pages in vain.
    pub false_plans: u64,
    /// Reorganisations.
    pub reorganisations: u64,
    /// Times that a whole partition was forgotten, for want of memory or because a page could not be read.
    pub forgotten: u64,
}

impl std::ops::AddAssign for CascadeCounts {
    fn add_assign(&mut self, other: Self) {
        self.tier1_mappings += other.tier1_mappings;
        self.flash_mappings += other.flash_mappings;
        self.tier1_bytes += other.tier1_bytes;
        self.filter_bytes += other.filter_bytes;
        self.directory_bytes += other.directory_bytes;
        self.flash_hits += other.flash_hits;
        self.false_plans += other.false_plans;
        self.reorganisations += other.reorganisations;
        self.forgotten += other.forgotten;
    }
}

pub(crate) struct Generation {
    pub(crate) pages: Vec<PageNumber>,
    pub(crate) filter: Filter,
}

/// Tier 3.
pub(crate) struct Wide {
    pub(crate) pages: Vec<PageNumber>,
    pub(crate) filter: Filter,
}

impl Wide {
    fn nothing(shape: IndexShape) -> Self {
        let filter = FilterShape::new(shape.tag_bits(), 0, WIDE_CELL_BITS, 0);
        Self {
            pages: Vec::new(),
            filter: Filter::build(filter, std::iter::empty()),
        }
    }
}

/// A partition; every method is called under its shard's lock.
pub struct CascadeShard {
    pub(crate) partition: u32,
    shape: IndexShape,
    pub(crate) pages: PageShape,
    tier1: PackedTable,
    pub(crate) options: CascadeOptions,
    tier1_max: usize,
    hand: usize,
    /// The oldest first.
    pub(crate) generations: Vec<Generation>,
    pub(crate) wide: Wide,
    pub(crate) space: Arc<dyn MapSpace>,
    /// Goes up when pages are given up, so that a plan for them is known as stale.
    pub(crate) epoch: u32,
    pub(crate) merging: Option<Merging>,
    /// Whether it forgot what a start may find again: then nothing is known to be absent.
    is_blank: bool,
    /// DRAM for what is on flash, as the space knows it.
    charged: usize,
    pub(crate) counts: CascadeCounts,
}

/// What a reorganisation that is under way must be told in the end.
pub(crate) struct Merging {
    /// Generations that it merges, the oldest.
    pub(crate) generations: usize,
    /// What was forgotten in what it merges.
    pub(crate) forgotten: Vec<(u64, Location)>,
}

impl CascadeShard {
    /// An empty partition whose tier 1 takes pages from `pool`. `shape` has
    /// [`IndexShape::CASCADE_NOTE_BITS`] bits of note.
    pub fn new(
        shape: IndexShape,
        partition: u32,
        options: CascadeOptions,
        pool: Arc<PagePool>,
        space: Arc<dyn MapSpace>,
    ) -> Self {
        let pages = PageShape::new(shape);
        let mut shard = Self {
            partition,
            shape,
            pages,
            tier1: PackedTable::new(shape.table(), pool),
            options,
            tier1_max: options.tier1_min,
            hand: 0,
            generations: Vec::new(),
            wide: Wide::nothing(shape),
            space,
            epoch: 0,
            merging: None,
            is_blank: false,
            charged: 0,
            counts: CascadeCounts::default(),
        };
        shard.resize_tier1();
        shard
    }

    fn strip(&self, payload: u64) -> Option<Mapping> {
        let Mapping { location, note } = self.shape.unpack(payload);
        let mapping = Mapping {
            location,
            note: note & ((1 << SLOT_BITS) - 1),
        };
        (self.shape.place(payload) != 0).then_some(mapping)
    }

    fn flags(&self, payload: u64) -> u32 {
        self.shape.unpack(payload).note >> SLOT_BITS
    }

    fn payload(&self, mapping: Option<Mapping>, flags: u32) -> u64 {
        let place = mapping.map_or(0, |mapping| self.shape.pack(mapping));
        u64::from(flags) << self.flags_at() | place
    }

    /// Where flags begin in a payload.
    fn flags_at(&self) -> u32 {
        self.shape.place_bits() + SLOT_BITS
    }

    /// Asks for the memory that a question about `hash` will need.
    pub fn prefetch(&self, hash: KeyHash) {
        self.tier1.prefetch(self.shape.tag(hash));
    }

    /// What tier 1 knows: `Err` nothing, `Ok(None)` that the key is not on flash.
    fn known(&mut self, tag: u64) -> Result<Option<Mapping>, Unknown> {
        let mark = u64::from(REFERENCED) << self.flags_at();
        match self.tier1.update(tag, |payload| Some(payload | mark)) {
            Some((_, payload)) => Ok(self.strip(payload)),
            None => Err(Unknown),
        }
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

    /// Whether nothing maps `hash` to `location` any more, as far as DRAM knows.
    pub fn is_dead(&self, hash: KeyHash, location: Location) -> bool {
        let payload = self.tier1.find(self.shape.tag(hash), |_| true);
        payload.is_some_and(|payload| self.strip(payload).is_none_or(|known| known.location != location))
    }

    /// Looks `hash` up: the mapping, a miss, or the pages that tell more.
    pub fn lookup(&mut self, hash: KeyHash) -> Lookup {
        let tag = self.shape.tag(hash);
        if let Ok(known) = self.known(tag) {
            return known.map_or(Lookup::Miss, |mapping| Lookup::Hit(Candidates(mapping)));
        }
        let plan = self.plan(tag);
        if plan.len == 0 {
            Lookup::Miss
        } else {
            Lookup::Read(plan)
        }
    }

    fn plan(&self, tag: u64) -> Plan {
        let mut plan = Plan {
            epoch: self.epoch,
            len: 0,
            is_cut: false,
            pages: [0; PLAN_PAGES_MAX],
        };
        for generation in self.generations.iter().rev() {
            let mut named = 0u32;
            for found in generation.filter.matches(tag) {
                named |= 1 << (found.hint & PAGE_HINT);
            }
            while named != 0 {
                let newest = named.ilog2();
                plan.push(generation.pages[newest as usize]);
                named ^= 1 << newest;
            }
        }
        for found in self.wide.filter.matches(tag) {
            plan.push(self.wide.pages[found.rank / self.options.page_entries]);
        }
        plan
    }

    /// Whether flash may have a copy of `hash` that tier 1 does not supersede, or a start may find one.
    pub fn is_unsure(&self, hash: KeyHash) -> bool {
        let tag = self.shape.tag(hash);
        self.tier1.find(tag, |_| true).is_none() && (self.is_blank || self.may_hold(tag))
    }

    /// Whether there may be a mapping in a page, also one that filters have forgotten: some of those are taken for others, and
    /// live on.
    fn may_hold(&self, tag: u64) -> bool {
        self.filters().any(|filter| filter.remembers(tag) > 0)
    }

    fn filters(&self) -> impl Iterator<Item = &Filter> {
        let tier2 = self.generations.iter().map(|generation| &generation.filter);
        tier2.chain([&self.wide.filter])
    }

    /// Says what the pages of `plan`, in its order, have for `hash`; `None` stands for a page that could not be read. A mapping
    /// that is found is known to tier 1 from then on.
    pub fn resolve<'a>(
        &mut self,
        hash: KeyHash,
        plan: &Plan,
        payloads: impl IntoIterator<Item = Option<&'a [u8]>>,
    ) -> Resolved {
        let tag = self.shape.tag(hash);
        if let Ok(known) = self.known(tag) {
            return known.map_or(Resolved::Miss, Resolved::Hit);
        }
        if self.plan(tag) != *plan {
            return Resolved::Again;
        }
        let mut is_void = None;
        for (number, payload) in plan.pages().iter().zip(payloads) {
            let Some(page) = payload.and_then(|payload| self.pages.decode(self.partition, payload)) else {
                // What it said is lost, and an older page must not speak in its place.
                self.forget_all();
                return Resolved::Miss;
            };
            let Some((slot, entry)) = page.find(tag) else {
                continue;
            };
            // The newest there is. Where it is void there is nothing: an older one was superseded.
            let life = entry.mapping.map(|mapping| self.space.life_at(mapping.location));
            let is_own =
                entry.life != 0 && life.is_some_and(|life| self.pages.life(life.sequence()) == entry.life);
            if is_own && matches!(life, Some(Life::Ending(_))) {
                // Whoever reclaims the block makes the filter forget it.
                break;
            }
            let Some(mapping) = entry.mapping.filter(|_| is_own) else {
                is_void = Some((*number, slot));
                break;
            };
            self.counts.flash_hits += 1;
            // Whoever changes the object looks for it there.
            if self.tier1.len() >= self.tier1_limit() {
                self.drop_clean();
            }
            let _ = self.tier1.insert(tag, self.payload(Some(mapping), REFERENCED));
            self.demote();
            return Resolved::Hit(mapping);
        }
        self.counts.false_plans += 1;
        let all: usize = self.filters().map(|filter| filter.remembers(tag)).sum();
        let found: usize = self.filters().map(|filter| filter.matches(tag).count()).sum();
        if !plan.is_cut && !self.is_blank && all == found && self.tier1.len() < self.tier1_limit() {
            // Often the key is set next. It is known by then that nothing has to be hidden: what is void stays so.
            let _ = self.tier1.insert(tag, self.payload(None, 0));
            self.demote();
        }
        if let Some((number, slot)) = is_void {
            self.forget_in_page(tag, number, slot);
        }
        Resolved::Miss
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
    fn write(&mut self, tag: u64, mapping: Option<Mapping>) -> Result<Option<u64>, TableFull> {
        let old = self.tier1.find(tag, |_| true);
        let hides = match old.map(|payload| self.flags(payload)) {
            // On flash there is no more than what is void already.
            Some(0 | REFERENCED) if self.shape.place(old.unwrap_or_default()) == 0 => false,
            Some(flags) => flags & DIRTY == 0 || flags & SHIELD != 0,
            None => self.may_hold(tag),
        };
        let mut flags = DIRTY;
        if hides {
            flags |= SHIELD;
        }
        let new = self.payload(mapping, flags);
        if mapping.is_none() && !hides {
            // Nothing is left to hide.
            self.tier1.remove(tag, |_| true);
        } else if old.is_some() {
            self.tier1.update(tag, |_| Some(new));
        } else if self.tier1.len() >= self.tier1_limit() || self.tier1.insert(tag, new).is_err() {
            if hides {
                // What is on flash must not speak in its place.
                self.forget_all();
            }
            return Err(TableFull);
        }
        self.demote();
        Ok(old)
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

    /// Lets go of an object whose block is reclaimed; whether it was known. `is_last` says that nothing has taken the object's
    /// place since it was written, so far as is known: then flash is told to forget it, too.
    pub fn reclaim(&mut self, hash: KeyHash, location: Location, is_last: bool) -> Option<Mapping> {
        let tag = self.shape.tag(hash);
        let payload = self.tier1.find(tag, |_| true);
        if let Some(payload) = payload {
            let known = self.strip(payload).filter(|known| known.location == location)?;
            let flags = self.flags(payload);
            if flags & DIRTY == 0 {
                // Flash has the very same, which is void by its block's sequence.
                self.tier1.remove(tag, |_| true);
                self.forget(tag, location);
            } else {
                self.remove(hash);
            }
            return Some(known);
        }
        if is_last && self.forget(tag, location) {
            return Some(Mapping { location, note: 0 });
        }
        None
    }

    /// Makes a filter forget the entry of a page, which is void, unless it is a shield.
    fn forget_in_page(&mut self, tag: u64, number: PageNumber, slot: usize) {
        if let Some(at) = self.wide.pages.iter().position(|page| *page == number) {
            self.wide.filter.erase(at * self.options.page_entries + slot);
            return;
        }
        for generation in &mut self.generations {
            let Some(at) = generation.pages.iter().position(|page| *page == number) else {
                continue;
            };
            let alike = |found: &Match| found.hint as usize == at;
            let mut found = generation.filter.matches(tag).filter(alike);
            let first = found.next();
            drop(found);
            if let Some(one) = first {
                generation.filter.kill(one.rank);
            }
            return;
        }
    }

    /// Makes a filter forget one entry like `tag`, the oldest, but no shield. The key's own entry is there: where it is the only
    /// one that is alike it is erased, else it may be another's that lives on in its page, and stays remembered.
    fn forget(&mut self, tag: u64, location: Location) -> bool {
        let alike: usize = self.filters().map(|filter| filter.remembers(tag)).sum();
        let is_own = alike == 1 && !self.is_blank;
        let forget = |filter: &mut Filter, rank| {
            if is_own {
                filter.erase(rank);
            } else {
                filter.kill(rank);
            }
        };
        let merged = self.merging.as_ref().map_or(0, |merging| merging.generations);
        let in_wide = self.wide.filter.matches(tag).next();
        let mut is_merged = true;
        if let Some(found) = in_wide {
            forget(&mut self.wide.filter, found.rank);
        } else {
            let oldest = self
                .generations
                .iter_mut()
                .enumerate()
                .find_map(|(at, generation)| {
                    let plain = generation
                        .filter
                        .matches(tag)
                        .filter(|found| found.hint & SHIELD_HINT == 0);
                    let found = plain.min_by_key(|found| found.hint)?;
                    Some((at, generation, found.rank))
                });
            let Some((at, generation, rank)) = oldest else {
                return false;
            };
            forget(&mut generation.filter, rank);
            is_merged = at < merged;
        }
        if is_merged && let Some(merging) = &mut self.merging {
            merging.forgotten.push((tag, location));
        }
        true
    }

    /// Mappings that tier 1 may grow to while flash takes none.
    fn tier1_limit(&self) -> usize {
        2 * self.tier1_max + 2 * self.options.page_entries
    }

    /// Takes the next entry out of tier 1 that flash has, too, if there is one.
    fn drop_clean(&mut self) {
        let mut is_found = false;
        let flags_at = self.flags_at();
        for _ in 0..self.tier1.buckets() {
            let bucket = self.hand % self.tier1.buckets();
            let is_done = self.tier1.sweep(bucket, |_, payload| {
                let flags = (payload >> flags_at) as u32;
                if is_found {
                    Swept::Stop
                } else if flags & DIRTY != 0 {
                    Swept::Keep(payload)
                } else {
                    is_found = true;
                    Swept::Take
                }
            });
            if is_found {
                return;
            }
            if is_done {
                self.hand = bucket + 1;
            }
        }
    }

    /// Where tier 1 has a page too much: writes out what was not asked for lately.
    fn demote(&mut self) {
        if self.tier1.len() < self.tier1_max + self.options.page_entries || !self.space.has_room() {
            return;
        }
        let flags_at = self.flags_at();
        let mut out: Vec<(u64, u64)> = Vec::with_capacity(self.options.page_entries);
        // Two rounds: after the first nothing is referenced.
        for _ in 0..2 * self.tier1.buckets() {
            if out.len() == self.options.page_entries || self.tier1.len() + out.len() <= self.tier1_max {
                break;
            }
            let bucket = self.hand % self.tier1.buckets();
            let mut spare = (self.tier1.len() + out.len()).saturating_sub(self.tier1_max);
            let is_done = self.tier1.sweep(bucket, |tag, payload| {
                let flags = (payload >> flags_at) as u32;
                if flags & REFERENCED != 0 {
                    return Swept::Keep(payload & !(u64::from(REFERENCED) << flags_at));
                }
                if flags & DIRTY != 0 {
                    if out.len() == self.options.page_entries {
                        return Swept::Stop;
                    }
                    out.push((tag, payload));
                } else if spare == 0 {
                    return Swept::Stop;
                } else {
                    spare -= 1;
                }
                Swept::Take
            });
            if is_done {
                self.hand = bucket + 1;
            }
        }
        let is_page = out.len() == self.options.page_entries && self.put_page(&mut out);
        if !is_page {
            // They were here a moment ago, so there is room.
            for (tag, payload) in out {
                let _ = self.tier1.insert(tag, payload);
            }
        }
    }

    /// Puts entries of tier 1 into a page of the newest generation.
    fn put_page(&mut self, out: &mut [(u64, u64)]) -> bool {
        out.sort_unstable_by_key(|(tag, _)| *tag);
        let entries: Vec<PageEntry> = out
            .iter()
            .map(|(tag, payload)| {
                let mapping = self.strip(*payload);
                let sequence = mapping.map_or(0, |mapping| self.space.life_at(mapping.location).sequence());
                PageEntry {
                    tag: *tag,
                    mapping,
                    life: self.pages.life(sequence),
                }
            })
            .collect();
        let Some(page) = self.space.put(&self.pages.encode(self.partition, &entries)) else {
            return false;
        };
        let merged = self.merging.as_ref().map_or(0, |merging| merging.generations);
        let is_open = self.generations.len() > merged
            && (self.generations.last()).is_some_and(|last| last.pages.len() < GENERATION_PAGES);
        let shape = self.generation_shape();
        let (mut pages, mut cells) = (Vec::with_capacity(GENERATION_PAGES), Vec::new());
        if is_open && let Some(last) = self.generations.pop() {
            pages = last.pages;
            cells = last.filter.entries().collect();
        }
        let number = pages.len() as u32;
        pages.push(page);
        cells.extend(out.iter().map(|(tag, payload)| {
            let shield = if self.flags(*payload) & SHIELD != 0 {
                SHIELD_HINT
            } else {
                0
            };
            FilterEntry::new(shape.cell(*tag), number | shield)
        }));
        cells.sort_by_key(|entry: &FilterEntry| entry.cell);
        let filter = Filter::build(shape, cells.into_iter());
        self.generations.push(Generation { pages, filter });
        self.resize_tier1();
        if self.wants_reorganisation() {
            self.space.wants_reorganisation(self.partition);
        }
        true
    }

    pub(crate) fn generation_shape(&self) -> FilterShape {
        FilterShape::new(
            self.shape.tag_bits(),
            GENERATION_PAGES * self.options.page_entries,
            GENERATION_CELL_BITS,
            PAGE_HINT_BITS + 1,
        )
    }

    pub(crate) fn wide_shape(&self, entries: usize) -> FilterShape {
        FilterShape::new(self.shape.tag_bits(), entries, WIDE_CELL_BITS, 0)
    }

    pub(crate) fn tier1(&self) -> &PackedTable {
        &self.tier1
    }

    /// Puts an entry of an image into tier 1.
    pub(crate) fn restore(&mut self, tag: u64, payload: u64) -> Option<()> {
        self.tier1.insert(tag, payload).ok()
    }

    /// Follows what is on flash with the size of tier 1, and tells what it takes.
    pub(crate) fn resize_tier1(&mut self) {
        let counts = self.counts();
        let heap = (counts.filter_bytes + counts.directory_bytes) as usize;
        self.space.charge(self.charged, heap);
        self.charged = heap;
        let on_flash: usize = self.filters().map(Filter::alive).sum();
        let share = (on_flash as f64 * self.options.tier1_share) as usize;
        self.tier1_max = share.max(self.options.tier1_min);
    }

    /// Whether tier 2 has grown enough to be merged into tier 3.
    pub fn wants_reorganisation(&self) -> bool {
        let tier2: usize = self
            .generations
            .iter()
            .map(|generation| generation.pages.len())
            .sum();
        let share = self.wide.pages.len() * REORGANISE_PERCENT / 100;
        self.merging.is_none() && tier2 >= share.max(REORGANISE_PAGES_MIN)
    }

    /// Forgets everything, when nothing better is safe.
    pub(crate) fn forget_all(&mut self) {
        self.clear();
        self.is_blank = true;
        self.counts.forgotten += 1;
    }

    /// Removes everything and gives all pages back.
    pub fn clear(&mut self) {
        self.tier1.clear();
        let wide = std::mem::replace(&mut self.wide, Wide::nothing(self.shape));
        let pages = self.generations.drain(..).flat_map(|generation| generation.pages);
        for page in pages.chain(wide.pages) {
            self.space.release(page);
        }
        self.merging = None;
        self.epoch = self.epoch.wrapping_add(1);
        self.resize_tier1();
    }

    /// Makes the partition empty without giving a page back.
    pub(crate) fn drop_tables(&mut self) {
        self.tier1.clear();
        self.generations.clear();
        self.wide = Wide::nothing(self.shape);
    }

    /// What is counted, and what it takes.
    pub fn counts(&self) -> CascadeCounts {
        let filters = || {
            self.generations
                .iter()
                .map(|generation| &generation.filter)
                .chain([&self.wide.filter])
        };
        let pages: usize = self
            .generations
            .iter()
            .map(|generation| generation.pages.capacity())
            .sum();
        let directory = (pages + self.wide.pages.capacity()) * size_of::<PageNumber>()
            + self.generations.capacity() * size_of::<Generation>();
        CascadeCounts {
            tier1_mappings: self.tier1.len() as u64,
            flash_mappings: filters().map(|filter| filter.alive() as u64).sum(),
            tier1_bytes: self.tier1.dram_bytes() as u64,
            filter_bytes: filters().map(|filter| filter.dram_bytes() as u64).sum(),
            directory_bytes: (directory + size_of::<Self>()) as u64,
            ..self.counts
        }
    }

    /// DRAM held, in bytes, slack included.
    pub fn dram_bytes(&self) -> usize {
        let counts = self.counts();
        (counts.tier1_bytes + counts.filter_bytes + counts.directory_bytes) as usize
    }

    /// Number of mappings, superseded and void ones that were not dropped yet included.
    pub fn len(&self) -> usize {
        let counts = self.counts();
        (counts.tier1_mappings + counts.flash_mappings) as usize
    }

    /// Whether there is no mapping.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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

    /// Re-derives what is counted.
    ///
    /// # Panics
    /// Where it does not agree.
    pub fn check_invariants(&self) {
        self.tier1.check_invariants();
        let merged = self.merging.as_ref().map_or(0, |merging| merging.generations);
        assert!(merged <= self.generations.len());
        for generation in &self.generations {
            assert!((1..=GENERATION_PAGES).contains(&generation.pages.len()));
            let named = generation
                .filter
                .entries()
                .all(|entry| ((entry.hint & PAGE_HINT) as usize) < generation.pages.len());
            assert!(named, "an entry is in no page");
        }
        assert_eq!(
            self.wide.pages.len(),
            self.wide.filter.len().div_ceil(self.options.page_entries)
        );
    }
}

/// Tier 1 has no entry.
struct Unknown;
