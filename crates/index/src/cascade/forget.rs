//! Forgetting single mappings: those of reclaimed blocks, and those that a page was found to have void.

use super::PageNumber;
use super::filter::{Filter, Match};
use super::partition::{CascadeShard, DIRTY, SHIELD_HINT};
use crate::{KeyHash, Location, Mapping};

impl CascadeShard {
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
    pub(super) fn forget_in_page(&mut self, tag: u64, number: PageNumber, slot: usize) {
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
}
