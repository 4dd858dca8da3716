//! Demotion: what leaves tier 1, and the pages of tier 2 that it goes to.
//!
//! A CLOCK goes over tier 1, and what was not asked for leaves. Dirty entries go into a page of the newest generation; the others
//! are dropped, since flash says the same: some at a time, where fewer are dirty than fill a page. Those wait for more, and must not
//! cost the others their place meanwhile: where gets come and no sets, a page is written that is not full.

use super::filter::Filter;
use super::page::PageEntry;
use super::partition::CascadeShard;
use super::tier1::Entry;

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
            self.tier1.drop_clean();
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

    /// Where tier 1 has a page too much: writes out what was not asked for lately. The entry of `kept` stays.
    pub(super) fn demote(&mut self, kept: Option<u64>) {
        let page_entries = self.options.page_entries;
        if self.tier1.len() < self.tier1_max + page_entries || !self.space.has_room() {
            return;
        }
        let most = self.tier1.len();
        // The least that a page is written for.
        let mut page_min = page_entries;
        if self.dropped >= PATIENCE_PAGES * page_entries {
            self.dropped = 0;
            page_min = (page_entries / PART_MIN).max(1);
        }
        let fills_page = self.tier1.dirty_len() >= page_min;
        let dirty_max = if fills_page { page_entries } else { 0 };
        let mut out = self.tier1.sweep(self.tier1_max, dirty_max, kept);
        self.dropped += most - self.tier1.len() - out.len();
        let is_page = out.len() >= page_min && self.put_page(&mut out);
        if !is_page {
            for (tag, entry) in out {
                // They were here a moment ago, so there is room.
                let _ = self.tier1.put(tag, entry);
            }
        }
    }

    /// Puts entries of tier 1 into a page of the newest generation.
    fn put_page(&mut self, out: &mut [(u64, Entry)]) -> bool {
        out.sort_unstable_by_key(|(tag, _)| *tag);
        let entries: Vec<PageEntry> = out
            .iter()
            .map(|(tag, Entry { mapping, .. })| {
                let sequence =
                    mapping.map_or(0, |mapping| self.space.generation_at(mapping.location).sequence());
                PageEntry {
                    tag: *tag,
                    mapping: *mapping,
                    generation: self.pages.generation(sequence),
                }
            })
            .collect();
        let Some(page) = self.space.put(&self.pages.encode(self.partition, &entries)) else {
            return false;
        };
        self.dropped = 0;
        let merged = self.merging.as_ref().map_or(0, |merging| merging.generations);
        let tags = out.iter().map(|(tag, entry)| (*tag, entry.is_shield()));
        self.flash.push(page, merged, tags);
        self.resize_tier1();
        if self.wants_reorganisation() {
            self.space.wants_reorganisation(self.partition);
        }
        true
    }

    /// Follows what is on flash with the size of tier 1, and tells what it takes.
    pub(super) fn resize_tier1(&mut self) {
        let counts = self.counts();
        let heap = counts.heap_bytes();
        self.space.charge(self.charged, heap);
        self.charged = heap;
        let on_flash: usize = self.flash.filters().map(Filter::alive).sum();
        let share = (on_flash as f64 * self.options.tier1_share) as usize;
        // Of the last page of DRAM a part would lie idle.
        let share = self.tier1.in_whole_pages(share);
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
