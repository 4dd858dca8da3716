//! Demotion: what leaves tier 1, and the pages of tier 2 that it goes to.
//!
//! A CLOCK goes over tier 1, and what was not asked for leaves. Dirty entries go into a page of the newest generation; the others
//! are dropped, since flash says the same: some at a time, where fewer are dirty than fill a page. Those wait for more, and must not
//! cost the others their place meanwhile: where gets come and no sets, a page is written that is not full.
//!
//! An entry counts how often it was asked for, up to 3, and the hand takes one back in every eighth of its laps: what comes and is
//! not asked for again leaves within a lap, and what is asked for often stays. With Zipf 0.99 and room for 6 % of the keys that
//! finds 77.7 % of them, a CLOCK with one bit 72.3 %, and the best there could be 80.2 %.

use super::filter::{Filter, FilterEntry, FilterShape};
use super::page::PageEntry;
use super::partition::{
    ASKED, CascadeShard, DIRTY, GENERATION_PAGES, Generation, SHIELD, SHIELD_HINT, generation_shape,
};
use crate::PackedTable;
use crate::table::Swept;

/// Laps of the hand of which one makes entries count as less often asked for.
const LAPS_PER_AGING: u32 = 8;
/// Clean entries that leave at a time, where no page of dirty ones does.
const CLEAN_BATCH: usize = 32;
/// Pages' worth of clean entries that leave, each of which cost a read to learn, before dirty ones leave in a page that is not full.
const PATIENCE_PAGES: usize = 4;
/// The part of a page that those must fill.
const PART_MIN: usize = 4;

impl CascadeShard {
    /// Mappings that tier 1 may grow to while flash takes none, beside those that hide something.
    pub(super) fn tier1_limit(&self) -> usize {
        2 * self.tier1_max + 2 * self.options.page_entries
    }

    /// Whether tier 1 may have another entry; what can go goes first.
    pub(super) fn makes_room(&mut self) -> bool {
        if self.tier1.len() >= self.tier1_limit() {
            self.demote_all();
        }
        if self.tier1.len() >= self.tier1_limit() {
            self.drop_clean();
        }
        self.tier1.len() < self.tier1_limit()
    }

    /// Demotes until tier 1 has its share, or flash takes no more.
    pub(super) fn demote_all(&mut self) {
        let mut before = usize::MAX;
        while self.tier1.len() < before {
            before = self.tier1.len();
            self.demote(None);
        }
    }

    /// Takes the next entry out of tier 1 that flash has, too, if there is one.
    pub(super) fn drop_clean(&mut self) {
        if self.dirty == self.tier1.len() {
            return;
        }
        let mut is_found = false;
        let flags_at = self.flags_at();
        let buckets = self.tier1.buckets();
        for _ in 0..buckets {
            self.hand %= buckets;
            let is_done = self.tier1.sweep(self.hand, |_, payload| {
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
                self.hand += 1;
            }
        }
    }

    fn advance_hand(&mut self) {
        self.hand += 1;
        if self.hand >= self.tier1.buckets() {
            self.hand = 0;
            self.laps = self.laps.wrapping_add(1);
        }
    }

    /// Where tier 1 has a page too much: writes out what was not asked for lately. The entry of `kept` stays.
    pub(super) fn demote(&mut self, kept: Option<u64>) {
        let page_entries = self.options.page_entries;
        if self.tier1.len() < self.tier1_max + page_entries || !self.space.has_room() {
            return;
        }
        let flags_at = self.flags_at();
        let one = 1 << flags_at;
        let mut out: Vec<(u64, u64)> = Vec::with_capacity(page_entries);
        // Once round, and then as often as it takes until nothing counts as asked for.
        let buckets = self.tier1.buckets();
        let most = self.tier1.len();
        // The least that a page is written for.
        let mut page_min = page_entries;
        if self.dropped >= PATIENCE_PAGES * page_entries {
            self.dropped = 0;
            page_min = (page_entries / PART_MIN).max(1);
        }
        let fills_page = self.dirty >= page_min;
        for step in 0..(2 + ASKED as usize) * buckets {
            let left = self.tier1.len() + out.len();
            // Dirty ones that are asked for often stay while others can go.
            let seeks_page = fills_page && step < buckets;
            let is_enough = !seeks_page && left + CLEAN_BATCH <= most;
            if out.len() == page_entries || is_enough || left <= self.tier1_max {
                break;
            }
            self.hand %= buckets;
            let ages = self.laps.is_multiple_of(LAPS_PER_AGING) || step >= buckets;
            let mut spare = left.saturating_sub(self.tier1_max);
            let is_done = self.tier1.sweep(self.hand, |tag, payload| {
                let flags = (payload >> flags_at) as u32;
                if flags & ASKED != 0 {
                    return Swept::Keep(if ages { payload - one } else { payload });
                }
                if kept == Some(tag) {
                    return Swept::Keep(payload);
                }
                if flags & DIRTY != 0 {
                    if !fills_page {
                        return Swept::Keep(payload);
                    }
                    if out.len() == page_entries {
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
                self.advance_hand();
            }
        }
        self.dropped += most - self.tier1.len() - out.len();
        self.dirty -= out.len();
        let is_page = out.len() >= page_min && self.put_page(&mut out);
        if !is_page {
            // They were here a moment ago, so there is room.
            for (tag, payload) in out {
                self.dirty += usize::from(self.tier1.insert(tag, payload).is_ok());
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
        self.dropped = 0;
        let number = pages.len() as u32;
        pages.push(page);
        cells.extend(out.iter().map(|(tag, payload)| {
            let shield = if self.flags(*payload) & SHIELD != 0 {
                SHIELD_HINT
            } else {
                0
            };
            FilterEntry {
                cell: shape.cell(*tag),
                hint: number | shield,
            }
        }));
        cells.sort_by_key(|entry: &FilterEntry| entry.cell);
        let filter = Filter::build(shape, cells.into_iter());
        // There are few, and each says much: no room for twice as many.
        self.generations.reserve_exact(1);
        self.generations.push(Generation { pages, filter });
        self.resize_tier1();
        if self.wants_reorganisation() {
            self.space.wants_reorganisation(self.partition);
        }
        true
    }

    pub(super) fn generation_shape(&self) -> FilterShape {
        generation_shape(
            self.shape.tag_bits(),
            GENERATION_PAGES * self.options.page_entries,
        )
    }

    /// Follows what is on flash with the size of tier 1, and tells what it takes.
    pub(super) fn resize_tier1(&mut self) {
        let counts = self.counts();
        let heap = counts.heap_bytes();
        self.space.charge(self.charged, heap);
        self.charged = heap;
        let on_flash: usize = self.filters().map(Filter::alive).sum();
        let mut share = (on_flash as f64 * self.options.tier1_share) as usize;
        // As many as whole pages of DRAM hold: of the last one a part would lie idle.
        let per_page = PackedTable::entries_of_pages(self.shape.table(), 1);
        if share >= per_page {
            share = PackedTable::entries_of_pages(self.shape.table(), (share + per_page / 2) / per_page);
        }
        // It grows by a page before it demotes one.
        let share = share.saturating_sub(self.options.page_entries);
        self.tier1_max = share.max(self.options.tier1_min);
    }

    /// Gives back what tier 1 does not need for its share and a page more.
    pub(super) fn shrink_tier1(&mut self) {
        let most = self.tier1_max + self.options.page_entries;
        self.tier1.shrink_to(most);
    }
}
