//! Reorganising a partition: merging its tier 2 into its tier 3.
//!
//! [`CascadeShard::begin_reorganisation`] names the pages, under the shard's lock. Without it, they are read and merged, and the
//! merged pages are put into the [`MapSpace`](super::MapSpace). [`CascadeShard::finish_reorganisation`] makes them the wide
//! table, under the lock again. Lookups go on meanwhile, in what was there before.

use super::page::{MappingPage, PAGE_PAYLOAD_BYTES, PageEntry, PageShape};
use super::partition::{CascadeShard, Merging};
use super::{Generation, PageNumber};
use crate::{Location, Mapping};

/// Tier 2 is merged into tier 3 when it has so many pages for each of tier 3's, in hundredths.
const REORGANISE_PERCENT: usize = 50;
/// And not before it has so many.
const REORGANISE_PAGES_MIN: usize = 4;

/// A reorganisation that was begun.
pub struct Reorganisation {
    partition: u32,
    shape: PageShape,
    wide: Vec<PageNumber>,
    tier2: Vec<PageNumber>,
    page_entries: usize,
    epoch: u32,
}

/// A wide table that is to be, as pages: some 12 bytes a mapping.
pub struct Merged {
    partition: u32,
    shape: PageShape,
    pages: Vec<[u8; PAGE_PAYLOAD_BYTES]>,
    len: usize,
    page_entries: usize,
    epoch: u32,
    superseded: Vec<(Mapping, u64)>,
}

impl Reorganisation {
    /// The pages to read, in the order in which [`Reorganisation::merge`] wants them.
    pub fn pages(&self) -> impl Iterator<Item = PageNumber> + '_ {
        self.wide.iter().chain(&self.tier2).copied()
    }

    /// Merges the payloads of the pages. `generation_at` is as the map space's. `None` where one is no page of this partition.
    pub fn merge<'a>(
        &self,
        payloads: impl IntoIterator<Item = &'a [u8]>,
        generation_at: impl Fn(Location) -> Generation,
    ) -> Option<Merged> {
        let pages: Vec<MappingPage<'a>> = (payloads.into_iter())
            .map(|payload| self.shape.decode(self.partition, payload))
            .collect::<Option<_>>()?;
        let (wide, tier2) = pages.split_at_checked(self.wide.len())?;
        // Tag, page, and place in it: of one tag the newest comes last.
        let mut newer: Vec<(u64, u32, u32)> = (0..)
            .zip(tier2)
            .flat_map(|(at, page)| {
                (0..)
                    .zip(page.entries())
                    .map(move |(slot, entry)| (entry.tag, at, slot))
            })
            .collect();
        newer.sort_unstable();
        let mut newer = newer.into_iter().peekable();
        let mut older = wide.iter().flat_map(MappingPage::entries).peekable();
        let mut merged = Merged {
            partition: self.partition,
            shape: self.shape,
            pages: Vec::with_capacity(pages.len()),
            len: 0,
            page_entries: self.page_entries,
            epoch: self.epoch,
            superseded: Vec::new(),
        };
        // Entries of one tag that are not its newest.
        let mut older_ones: Vec<(PageEntry, u64)> = Vec::new();
        let sequence_of = |entry: &PageEntry| {
            let sequence = entry
                .mapping
                .map(|mapping| generation_at(mapping.location).sequence())?;
            (entry.generation != 0 && self.shape.generation(sequence) == entry.generation).then_some(sequence)
        };
        let mut full = Vec::with_capacity(self.page_entries);
        let mut last = 0;
        loop {
            let take_older = match (older.peek(), newer.peek()) {
                (Some(older), Some((tag, ..))) => older.tag < *tag,
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (None, None) => break,
            };
            let next = if take_older {
                older.next()
            } else {
                newer
                    .next()
                    .map(|(_, at, slot)| tier2[at as usize].entry(slot as usize))
            };
            let Some(entry) = next else { break };
            // Pages are sorted, and tags have so many bits. One that is otherwise is none of ours.
            if entry.tag < last || entry.tag >> self.shape.tag_bits() != 0 {
                return None;
            }
            last = entry.tag;
            if !take_older {
                let same = older.next_if(|superseded| superseded.tag == entry.tag);
                older_ones.extend(same.and_then(|old| Some((old, sequence_of(&old)?))));
                if newer.peek().is_some_and(|(newest, ..)| *newest == entry.tag) {
                    older_ones.extend(sequence_of(&entry).map(|sequence| (entry, sequence)));
                    continue;
                }
            }
            // A start may have mapped anew what a page had already: that is one copy.
            let superseded = older_ones.drain(..).filter(|(old, _)| *old != entry);
            merged
                .superseded
                .extend(superseded.filter_map(|(old, sequence)| Some((old.mapping?, sequence))));
            if sequence_of(&entry).is_some() {
                full.push(entry);
                if full.len() == self.page_entries {
                    merged.push(&mut full);
                }
            }
        }
        if !full.is_empty() {
            merged.push(&mut full);
        }
        Some(merged)
    }
}

impl Merged {
    fn push(&mut self, entries: &mut Vec<PageEntry>) {
        self.len += entries.len();
        self.pages.push(self.shape.encode(self.partition, entries));
        entries.clear();
    }

    /// The pages of the new wide table, to be put in this order.
    pub fn pages(&self) -> impl ExactSizeIterator<Item = &[u8; PAGE_PAYLOAD_BYTES]> {
        self.pages.iter()
    }

    fn page(&self, number: usize) -> MappingPage<'_> {
        let page = self.shape.decode(self.partition, &self.pages[number]);
        page.expect("it was encoded for this partition")
    }

    /// The mappings that newer ones or tombstones have superseded, each with the sequence of its block: those copies are dead, and
    /// when this is the wide table nothing on flash says so any more.
    pub fn superseded(&self) -> &[(Mapping, u64)] {
        &self.superseded
    }

    /// All tags, in order.
    fn tags(&self) -> impl ExactSizeIterator<Item = u64> {
        (0..self.len).map(|rank| {
            self.page(rank / self.page_entries)
                .entry(rank % self.page_entries)
                .tag
        })
    }

    /// The number of the mapping of `tag`, if that is to `location`.
    fn rank_of(&self, tag: u64, location: Location) -> Option<usize> {
        let begins_before = |payload: &[u8; PAGE_PAYLOAD_BYTES]| {
            let page = self.shape.decode(self.partition, payload);
            page.is_some_and(|page| page.entry(0).tag <= tag)
        };
        let number = self.pages.partition_point(begins_before).checked_sub(1)?;
        let (slot, entry) = self.page(number).find(tag)?;
        let is_there = entry.mapping.is_some_and(|mapping| mapping.location == location);
        is_there.then_some(number * self.page_entries + slot)
    }
}

impl CascadeShard {
    /// Whether tier 2 has grown enough to be merged into tier 3.
    pub fn wants_reorganisation(&self) -> bool {
        let share = self.flash.wide().pages().len() * REORGANISE_PERCENT / 100;
        self.merging.is_none() && self.flash.tier2_pages() >= share.max(REORGANISE_PAGES_MIN)
    }

    /// Begins a reorganisation, if one is due or `now`, and none is under way.
    pub fn begin_reorganisation(&mut self, now: bool) -> Option<Reorganisation> {
        if self.merging.is_some() || !(now || self.wants_reorganisation()) {
            return None;
        }
        self.merging = Some(Merging {
            generations: self.flash.generations().len(),
            forgotten: Vec::new(),
        });
        let wide = self.flash.wide().pages();
        Some(Reorganisation {
            partition: self.partition,
            shape: self.pages,
            wide: wide.to_vec(),
            tier2: self.flash.pages().take(self.flash.tier2_pages()).collect(),
            page_entries: self.options.page_entries,
            epoch: self.epoch,
        })
    }

    /// Makes `pages`, which hold what was merged, the wide table. Where the partition was cleared meanwhile they are given up.
    pub fn finish_reorganisation(&mut self, merged: &Merged, pages: Vec<PageNumber>) {
        let merging =
            (self.merging).take_if(|_| merged.epoch == self.epoch && pages.len() == merged.pages().len());
        let Some(merging) = merging else {
            for page in pages {
                self.space.release(page);
            }
            return;
        };
        let forgotten = merging.forgotten.iter();
        let erased = forgotten.filter_map(|(tag, location)| merged.rank_of(*tag, *location));
        let released = self
            .flash
            .merge(merging.generations, pages, merged.tags(), erased);
        for page in released {
            self.space.release(page);
        }
        self.epoch = self.epoch.wrapping_add(1);
        self.counts.reorganisations += 1;
        self.resize_tier1();
        // Its share may be far smaller now.
        self.demote_all();
        self.shrink_tier1();
    }

    /// Ends a reorganisation that could not be finished. Where that is because a page could not be read, `is_lost` says so: the
    /// partition then forgets everything, since what the page said may have hidden something older.
    pub fn abandon_reorganisation(&mut self, begun: &Reorganisation, pages: Vec<PageNumber>, is_lost: bool) {
        for page in pages {
            self.space.release(page);
        }
        if begun.epoch == self.epoch && self.merging.take().is_some() && is_lost {
            self.forget_all();
        }
    }
}
