//! Forgetting single mappings: those of reclaimed blocks, and those that a page was found to have void.

use super::PageNumber;
use super::filter::Match;
use super::partition::{CascadeShard, DIRTY, PAGE_HINT, SHIELD_HINT};
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
            let alike = |found: &Match| (found.hint & PAGE_HINT) as usize == at;
            let found = only(generation.filter.matches(tag).filter(alike));
            if let Some(own) = found.filter(|found| found.hint & SHIELD_HINT == 0) {
                generation.filter.erase(own.rank);
            }
            return;
        }
    }

    /// Makes the filters forget `tag`, of which a page has the mapping to `location`. Where entries of other tags are alike, or it
    /// is a shield, it stays: whoever looks it up finds it void, and a reorganisation drops it. False where no filter has it.
    fn forget(&mut self, tag: u64, location: Location) -> bool {
        if self.filters().all(|filter| filter.matches(tag).next().is_none()) {
            return false;
        }
        if let Some(merging) = &mut self.merging {
            merging.forgotten.push((tag, location));
        }
        let in_wide = self.wide.filter.matches(tag).map(|found| (None, found));
        let in_tier2 =
            self.generations.iter().enumerate().flat_map(|(at, generation)| {
                generation.filter.matches(tag).map(move |found| (Some(at), found))
            });
        // After everything was forgotten, the one that is alike may be another's.
        let own =
            only(in_wide.chain(in_tier2)).filter(|(_, own)| own.hint & SHIELD_HINT == 0 && !self.is_blank);
        match own {
            Some((None, own)) => self.wide.filter.erase(own.rank),
            Some((Some(at), own)) => self.generations[at].filter.erase(own.rank),
            None => false,
        };
        true
    }
}

/// What an iterator has, if that is one.
fn only<T>(mut items: impl Iterator<Item = T>) -> Option<T> {
    let first = items.next()?;
    items.next().is_none().then_some(first)
}
