//! Forgetting single mappings: those of reclaimed blocks, and those that a page was found to have void.

use super::filter::{FilterShape, Match};
use super::lookup::Void;
use super::partition::{CascadeShard, DIRTY, PAGE_HINT, SHIELD, SHIELD_HINT};
use crate::{KeyHash, Location, Mapping, StoredCopy, Survivor};

impl CascadeShard {
    /// Drops the mapping to a copy whose block is reclaimed, and returns it where it was known to be live: then filters forget it, too.
    pub fn reclaim(&mut self, hash: KeyHash, copy: &StoredCopy) -> Option<Mapping> {
        let tag = self.shape.tag(hash);
        let location = copy.mapping.location;
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
        if matches!(self.survivor(hash, copy), Survivor::Keep(_)) && self.forget(tag, location) {
            return Some(Mapping { location, note: 0 });
        }
        None
    }

    /// Whether flash maps `hash` to `location`, where a copy is known to stand that nothing has superseded.
    pub(super) fn is_on_flash(&self, hash: KeyHash, location: Location) -> bool {
        let payload = self.tier1.find(self.shape.tag(hash), |_| true);
        payload.is_none_or(|payload| {
            self.flags(payload) & DIRTY == 0
                && self
                    .strip(payload)
                    .is_some_and(|known| known.location == location)
        })
    }

    /// Makes flash forget the mapping of `hash` to `from`, which it had ([`CascadeShard::is_on_flash`]) when the copy was moved to
    /// `to`, and whose block is being reclaimed. Only where tier 1 has had the new one ever since: else there is no telling whose
    /// entry it would be.
    pub fn forget_moved(&mut self, hash: KeyHash, from: Location, to: Location) {
        let tag = self.shape.tag(hash);
        let known = self.tier1.find(tag, |_| true);
        // What flash was told is clean.
        let moved = known.filter(|payload| {
            self.flags(*payload) & DIRTY != 0
                && self.strip(*payload).is_some_and(|known| known.location == to)
        });
        let Some(moved) = moved else { return };
        self.forget(tag, from);
        if !self.may_hold(tag) && self.merging.is_none() {
            // Nothing is left to hide.
            let bare = moved & !(u64::from(SHIELD) << self.flags_at());
            self.tier1.update(tag, |_| Some(bare));
        }
    }

    /// Makes a filter forget a void mapping, unless it is a shield. Where another tag of its page looks the same to the filter it stays: its
    /// own entry may be gone already, and what is found be the other's.
    pub(super) fn forget_in_page(&mut self, tag: u64, void: Void) {
        let is_alone = |shape: FilterShape| {
            let mut beside = void.beside.iter().flatten();
            beside.all(|other| shape.cell(*other) != shape.cell(tag))
        };
        let in_wide = self.wide.matches_in(tag, void.page).map(only);
        if let Some(found) = in_wide {
            if let Some(own) = found.filter(|_| is_alone(self.wide.filter().shape())) {
                self.erase_wide(own.rank);
            }
            return;
        }
        if !is_alone(self.generation_shape()) {
            return;
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
        let in_wide = self.wide.filter().matches(tag).map(|found| (None, found));
        let in_tier2 =
            self.generations.iter().enumerate().flat_map(|(at, generation)| {
                generation.filter.matches(tag).map(move |found| (Some(at), found))
            });
        // After everything was forgotten, the one that is alike may be another's.
        let own =
            only(in_wide.chain(in_tier2)).filter(|(_, own)| own.hint & SHIELD_HINT == 0 && !self.is_blank());
        match own {
            Some((None, own)) => self.erase_wide(own.rank),
            Some((Some(at), own)) => {
                self.generations[at].filter.erase(own.rank);
            }
            None => {}
        }
        true
    }

    fn erase_wide(&mut self, rank: usize) {
        if self.wide.erase(rank) {
            self.resize_tier1();
            self.shrink_tier1();
        }
    }
}

/// What an iterator has, if that is one.
fn only<T>(mut items: impl Iterator<Item = T>) -> Option<T> {
    let first = items.next()?;
    items.next().is_none().then_some(first)
}
