//! Reorganising a partition: merging its tier 2 into its tier 3.
//!
//! [`CascadeShard::begin_reorganisation`] names the pages, under the shard's lock. Without it, they are read and merged, and the
//! merged pages are put into the [`MapSpace`](super::MapSpace). [`CascadeShard::finish_reorganisation`] makes them the wide
//! table, under the lock again. Lookups go on meanwhile, in what was there before.

use super::filter::{Filter, FilterEntry, FilterShape};
use super::page::{PAGE_PAYLOAD_BYTES, PageEntry, PageShape};
use super::partition::{CascadeShard, Merging, Wide};
use super::{Life, PageNumber};
use crate::Location;

/// Bits of a cell in tier 3's filter: a stranger is found there by one in 31 at most.
pub(crate) const WIDE_CELL_BITS: u32 = 5;

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

/// A wide table that is to be.
pub struct Merged {
    partition: u32,
    shape: PageShape,
    entries: Vec<PageEntry>,
    page_entries: usize,
    epoch: u32,
}

impl Reorganisation {
    /// The pages to read, in the order in which [`Reorganisation::merge`] wants them.
    pub fn pages(&self) -> impl Iterator<Item = PageNumber> + '_ {
        self.wide.iter().chain(&self.tier2).copied()
    }

    /// Merges the payloads of the pages. `life_at` is as the map space's. `None` where one is no page of this partition.
    pub fn merge<'a>(
        &self,
        payloads: impl IntoIterator<Item = &'a [u8]>,
        life_at: impl Fn(Location) -> Life,
    ) -> Option<Merged> {
        let (mut wide, mut tier2) = (Vec::new(), Vec::new());
        for (at, payload) in payloads.into_iter().enumerate() {
            let page = self.shape.decode(self.partition, payload)?;
            let into = if at < self.wide.len() {
                &mut wide
            } else {
                &mut tier2
            };
            into.extend(page.entries());
        }
        // Stable: of one tag the newest comes last.
        tier2.sort_by_key(|entry| entry.tag);
        let mut entries = Vec::with_capacity(wide.len() + tier2.len());
        let (mut older, mut newer) = (wide.into_iter().peekable(), tier2.into_iter().peekable());
        loop {
            let take_older = match (older.peek(), newer.peek()) {
                (Some(older), Some(newer)) => older.tag < newer.tag,
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (None, None) => break,
            };
            let next = if take_older { older.next() } else { newer.next() };
            let Some(entry) = next else { break };
            if !take_older {
                older.next_if(|superseded| superseded.tag == entry.tag);
                if newer.peek().is_some_and(|newest| newest.tag == entry.tag) {
                    continue;
                }
            }
            let is_valid = entry
                .mapping
                .filter(|_| entry.life != 0)
                .is_some_and(|mapping| self.shape.life(life_at(mapping.location).sequence()) == entry.life);
            if is_valid {
                entries.push(entry);
            }
        }
        Some(Merged {
            partition: self.partition,
            shape: self.shape,
            entries,
            page_entries: self.page_entries,
            epoch: self.epoch,
        })
    }
}

impl Merged {
    /// The pages of the new wide table, to be put in this order.
    pub fn pages(&self) -> impl ExactSizeIterator<Item = [u8; PAGE_PAYLOAD_BYTES]> + '_ {
        (self.entries.chunks(self.page_entries)).map(|entries| self.shape.encode(self.partition, entries))
    }
}

impl CascadeShard {
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

    pub(super) fn wide_shape(&self, entries: usize) -> FilterShape {
        FilterShape::new(self.shape.tag_bits(), entries, WIDE_CELL_BITS, 0)
    }

    /// Begins a reorganisation, if one is due or `now`, and none is under way.
    pub fn begin_reorganisation(&mut self, now: bool) -> Option<Reorganisation> {
        if self.merging.is_some() || !(now || self.wants_reorganisation()) {
            return None;
        }
        self.merging = Some(Merging {
            generations: self.generations.len(),
            forgotten: Vec::new(),
        });
        let pages = self.generations.iter().flat_map(|generation| &generation.pages);
        Some(Reorganisation {
            partition: self.partition,
            shape: self.pages,
            wide: self.wide.pages.clone(),
            tier2: pages.copied().collect(),
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
        let shape = self.wide_shape(merged.entries.len());
        let cells = merged
            .entries
            .iter()
            .map(|entry| FilterEntry::new(shape.cell(entry.tag), 0));
        let mut filter = Filter::build(shape, cells);
        for (tag, location) in merging.forgotten {
            let at = merged.entries.binary_search_by_key(&tag, |entry| entry.tag);
            if let Ok(rank) = at
                && merged.entries[rank].mapping.map(|mapping| mapping.location) == Some(location)
            {
                filter.erase(rank);
            }
        }
        let old = std::mem::replace(&mut self.wide, Wide { pages, filter });
        let merged = self.generations.drain(..merging.generations);
        let released = merged.flat_map(|generation| generation.pages).chain(old.pages);
        for page in released {
            self.space.release(page);
        }
        self.epoch = self.epoch.wrapping_add(1);
        self.counts.reorganisations += 1;
        self.resize_tier1();
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
