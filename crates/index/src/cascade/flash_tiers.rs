//! Tiers 2 and 3: which pages a partition has, and the filters that say which of them may have a tag.
//!
//! Tier 2 is made of generations of pages, the oldest first; an entry of a generation's filter says which of its pages it is of, and
//! whether it is a shield. Tier 3 is the wide table.

use super::PageNumber;
use super::filter::{Filter, FilterEntry, FilterShape, Match};
use super::plan::Plan;
use super::wide::{WIDE_CELL_BITS, Wide};
use crate::IndexShape;

/// Pages of a generation.
pub(super) const GENERATION_PAGES: usize = 8;
const PAGE_HINT_BITS: u32 = GENERATION_PAGES.ilog2();
const SHIELD_HINT: u32 = 1 << PAGE_HINT_BITS;
/// The part of a hint that says which page of its generation it is.
const PAGE_HINT: u32 = SHIELD_HINT - 1;
pub(super) const GENERATION_CELL_BITS: u32 = 7;

/// The shape of a generation's filter over about `entries` entries.
fn generation_shape(tag_bits: u32, entries: usize) -> FilterShape {
    FilterShape::new(tag_bits, entries, GENERATION_CELL_BITS, PAGE_HINT_BITS + 1)
}

/// Pages of tier 2 that follow each other.
pub(super) struct Generation {
    pages: Vec<PageNumber>,
    filter: Filter,
}

impl Generation {
    /// The shape of the filter of one that is full.
    pub(super) fn shape(tag_bits: u32, page_entries: usize) -> FilterShape {
        generation_shape(tag_bits, GENERATION_PAGES * page_entries)
    }

    /// The shape of a filter of so many buckets.
    pub(super) fn shape_of_buckets(tag_bits: u32, buckets: usize) -> FilterShape {
        generation_shape(tag_bits, buckets)
    }

    /// The generation of these parts; `None` where they do not belong together.
    pub(super) fn from_parts(pages: Vec<PageNumber>, filter: Filter) -> Option<Self> {
        let generation = Self { pages, filter };
        generation.is_whole().then_some(generation)
    }

    fn is_whole(&self) -> bool {
        let is_named = |hint: u32| ((hint & PAGE_HINT) as usize) < self.pages.len();
        (1..=GENERATION_PAGES).contains(&self.pages.len())
            && self.filter.entries().all(|entry| is_named(entry.hint))
    }

    pub(super) fn pages(&self) -> &[PageNumber] {
        &self.pages
    }

    pub(super) fn filter(&self) -> &Filter {
        &self.filter
    }
}

/// Both tiers.
pub(super) struct FlashTiers {
    tag_bits: u32,
    page_entries: usize,
    /// The oldest first.
    generations: Vec<Generation>,
    wide: Wide,
}

/// Where a void mapping stands.
#[derive(Clone, Copy)]
pub(super) struct Void {
    pub(super) page: PageNumber,
    /// The tags before and after it in its page.
    pub(super) beside: [Option<u64>; 2],
}

/// What became of an entry that was to be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forgotten {
    /// There is none.
    Absent,
    /// It stays, or its filter is as large as it was.
    Done,
    /// The filter takes less now.
    Shrunk,
}

impl FlashTiers {
    pub(super) fn nothing(shape: IndexShape, page_entries: usize) -> Self {
        Self {
            tag_bits: shape.tag_bits(),
            page_entries,
            generations: Vec::new(),
            wide: Wide::nothing(shape.tag_bits()),
        }
    }

    /// The tiers of these parts; `None` where they are not of partitions with this shape and so many entries a page.
    pub(super) fn from_parts(
        shape: IndexShape,
        page_entries: usize,
        generations: Vec<Generation>,
        wide: Wide,
    ) -> Option<Self> {
        let of_generation = Generation::shape(shape.tag_bits(), page_entries);
        let is_ours = |generation: &Generation| generation.filter.shape() == of_generation;
        let is_whole = generations.iter().all(is_ours) && wide.is_whole(page_entries);
        is_whole.then_some(Self {
            tag_bits: shape.tag_bits(),
            page_entries,
            generations,
            wide,
        })
    }

    pub(super) fn generations(&self) -> &[Generation] {
        &self.generations
    }

    pub(super) fn wide(&self) -> &Wide {
        &self.wide
    }

    pub(super) fn filters(&self) -> impl Iterator<Item = &Filter> {
        let tier2 = self.generations.iter().map(|generation| &generation.filter);
        tier2.chain([self.wide.filter()])
    }

    /// Whether there may be a mapping in a page.
    pub(super) fn may_hold(&self, tag: u64) -> bool {
        self.filters().any(|filter| filter.matches(tag).next().is_some())
    }

    /// All pages, those of tier 2 first.
    pub(super) fn pages(&self) -> impl Iterator<Item = PageNumber> + '_ {
        pages(&self.generations, &self.wide)
    }

    /// How many pages tier 2 has.
    pub(super) fn tier2_pages(&self) -> usize {
        self.generations
            .iter()
            .map(|generation| generation.pages.len())
            .sum()
    }

    /// The pages that may have a mapping of `tag`; `None` where there is none.
    pub(super) fn plan(&self, tag: u64, epoch: u32) -> Option<Plan> {
        let mut plan = Plan::empty(epoch);
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
        plan.end_tier2();
        for found in self.wide.filter().matches(tag) {
            plan.push(self.wide.page_of(found.rank));
        }
        (!plan.pages().is_empty()).then_some(plan)
    }

    /// Whether one mapping of a tag may supersede another one here, which no reorganisation has merged yet. Where none does, and
    /// tier 1 knows nothing, a mapping is the latest unless a reorganisation has named it as superseded
    /// ([`Merged::superseded`](super::Merged::superseded)), or tier 1 knew it when it was superseded.
    pub(super) fn is_contested(&self, tag: u64) -> bool {
        let mut has_older = self.wide.filter().matches(tag).next().is_some();
        for generation in &self.generations {
            // Only a shield supersedes what is on flash, and only from a younger page.
            let oldest = (generation.filter.matches(tag))
                .map(|found| found.hint & PAGE_HINT)
                .min();
            let is_over = |found: &Match| {
                found.hint & SHIELD_HINT != 0 && (has_older || oldest < Some(found.hint & PAGE_HINT))
            };
            if generation.filter.matches(tag).any(|found| is_over(&found)) {
                return true;
            }
            has_older |= oldest.is_some();
        }
        false
    }

    /// Adds a page to the newest generation, or begins one with it, where that is full or one of the first `merged`. `entries` are its
    /// tags, in order, and which of them are shields.
    pub(super) fn push(
        &mut self,
        page: PageNumber,
        merged: usize,
        entries: impl Iterator<Item = (u64, bool)>,
    ) {
        let is_open = self.generations.len() > merged
            && (self.generations.last()).is_some_and(|last| last.pages.len() < GENERATION_PAGES);
        let shape = Generation::shape(self.tag_bits, self.page_entries);
        let (mut pages, mut cells) = (Vec::with_capacity(GENERATION_PAGES), Vec::new());
        if is_open && let Some(last) = self.generations.pop() {
            pages = last.pages;
            cells = last.filter.entries().collect();
        }
        let number = pages.len() as u32;
        pages.push(page);
        cells.extend(entries.map(|(tag, is_shield)| FilterEntry {
            cell: shape.cell(tag),
            hint: number | if is_shield { SHIELD_HINT } else { 0 },
        }));
        cells.sort_by_key(|entry: &FilterEntry| entry.cell);
        let filter = Filter::build(shape, cells.into_iter());
        // There are few, and each says much: no room for twice as many.
        self.generations.reserve_exact(1);
        self.generations.push(Generation { pages, filter });
    }

    /// Puts a new wide table in the place of the old one and of the first `merged` generations. `tags` are those of its pages, in order;
    /// entries of the ranks in `erased` are void. Returns the pages that are not used any more.
    pub(super) fn merge(
        &mut self,
        merged: usize,
        pages: Vec<PageNumber>,
        tags: impl ExactSizeIterator<Item = u64>,
        erased: impl Iterator<Item = usize>,
    ) -> Vec<PageNumber> {
        let shape = FilterShape::new(self.tag_bits, tags.len(), WIDE_CELL_BITS, 0);
        let cells = tags.map(|tag| FilterEntry {
            cell: shape.cell(tag),
            hint: 0,
        });
        let mut filter = Filter::build(shape, cells);
        for rank in erased {
            filter.erase(rank);
        }
        let wide = Wide::new(pages, self.page_entries, filter);
        let old = std::mem::replace(&mut self.wide, wide);
        let generations = self.generations.drain(..merged);
        let released = generations.flat_map(|generation| generation.pages);
        released.chain(old.into_pages()).collect()
    }

    /// Forgets `tag`. Where entries of other tags are alike, or it is a shield, or `is_sure` is not, it stays: whoever looks it up finds
    /// it void, and a reorganisation drops it.
    pub(super) fn forget(&mut self, tag: u64, is_sure: bool) -> Forgotten {
        let in_wide = self.wide.filter().matches(tag).map(|found| (None, found));
        let in_tier2 =
            self.generations.iter().enumerate().flat_map(|(at, generation)| {
                generation.filter.matches(tag).map(move |found| (Some(at), found))
            });
        let mut all = in_wide.chain(in_tier2).peekable();
        if all.peek().is_none() {
            return Forgotten::Absent;
        }
        let own = only(all).filter(|(_, own)| own.hint & SHIELD_HINT == 0 && is_sure);
        match own {
            Some((None, own)) => self.erase_wide(own.rank),
            Some((Some(at), own)) => {
                self.generations[at].filter.erase(own.rank);
                Forgotten::Done
            }
            None => Forgotten::Done,
        }
    }

    /// Makes a filter forget a void mapping, unless it is a shield. Where another tag of its page looks the same to the filter it stays: its
    /// own entry may be gone already, and what is found be the other's.
    pub(super) fn forget_in_page(&mut self, tag: u64, void: Void) -> Forgotten {
        let is_alone = |shape: FilterShape| {
            let mut beside = void.beside.iter().flatten();
            beside.all(|other| shape.cell(*other) != shape.cell(tag))
        };
        let in_wide = self.wide.matches_in(tag, void.page).map(only);
        if let Some(found) = in_wide {
            return match found.filter(|_| is_alone(self.wide.filter().shape())) {
                Some(own) => self.erase_wide(own.rank),
                None => Forgotten::Done,
            };
        }
        if !is_alone(Generation::shape(self.tag_bits, self.page_entries)) {
            return Forgotten::Done;
        }
        for generation in &mut self.generations {
            let Some(at) = generation.pages.iter().position(|page| *page == void.page) else {
                continue;
            };
            let alike = |found: &Match| (found.hint & PAGE_HINT) as usize == at;
            let found = only(generation.filter.matches(tag).filter(alike));
            if let Some(own) = found.filter(|found| found.hint & SHIELD_HINT == 0) {
                generation.filter.erase(own.rank);
            }
            return Forgotten::Done;
        }
        Forgotten::Absent
    }

    fn erase_wide(&mut self, rank: usize) -> Forgotten {
        match self.wide.erase(rank) {
            true => Forgotten::Shrunk,
            false => Forgotten::Done,
        }
    }

    /// DRAM of what names pages, in bytes.
    pub(super) fn directory_bytes(&self) -> usize {
        let pages: usize = self
            .generations
            .iter()
            .map(|generation| generation.pages.capacity())
            .sum();
        pages * size_of::<PageNumber>()
            + self.wide.directory_bytes()
            + self.generations.capacity() * size_of::<Generation>()
    }

    /// # Panics
    /// Where an entry is in no page.
    pub(super) fn check_invariants(&self) {
        assert!(
            self.generations.iter().all(Generation::is_whole),
            "an entry of tier 2 is in no page"
        );
        assert!(
            self.wide.is_whole(self.page_entries),
            "an entry of tier 3 is in no page"
        );
    }
}

/// All pages, those of tier 2 first.
pub(super) fn pages<'a>(
    generations: &'a [Generation],
    wide: &'a Wide,
) -> impl Iterator<Item = PageNumber> + 'a {
    let tier2 = generations.iter().flat_map(|generation| &generation.pages);
    tier2.chain(wide.pages()).copied()
}

/// What an iterator has, if that is one.
fn only<T>(mut items: impl Iterator<Item = T>) -> Option<T> {
    let first = items.next()?;
    items.next().is_none().then_some(first)
}
