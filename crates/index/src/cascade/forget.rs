//! Forgetting single mappings: those of reclaimed blocks, and those that a page was found to have void.

use super::flash_tiers::{Forgotten, Void};
use super::partition::CascadeShard;
use crate::{KeyHash, Location, Mapping, StoredCopy, Survivor};

impl CascadeShard {
    /// Drops the mapping to a copy whose block is reclaimed, and returns it where it was known to be live: then filters forget it, too.
    pub fn reclaim(&mut self, hash: KeyHash, copy: &StoredCopy) -> Option<Mapping> {
        let tag = self.shape.tag(hash);
        let location = copy.mapping.location;
        if let Some(entry) = self.tier1.find(tag) {
            let known = entry.mapping.filter(|known| known.location == location)?;
            if entry.is_dirty() {
                self.remove(hash);
            } else {
                // Flash has the very same, which is void by its block's sequence.
                self.tier1.remove(tag);
                self.forget(tag, location);
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
        (self.tier1.find(self.shape.tag(hash))).is_none_or(|entry| {
            !entry.is_dirty() && entry.mapping.is_some_and(|known| known.location == location)
        })
    }

    /// Makes flash forget the mapping of `hash` to `from`, which it had ([`CascadeShard::is_on_flash`]) when the copy was moved to
    /// `to`, and whose block is being reclaimed. Only where tier 1 has had the new one ever since: else there is no telling whose
    /// entry it would be.
    pub fn forget_moved(&mut self, hash: KeyHash, from: Location, to: Location) {
        let tag = self.shape.tag(hash);
        // What flash was told is clean.
        let moved = self
            .tier1
            .find(tag)
            .filter(|entry| entry.is_dirty() && entry.mapping.is_some_and(|known| known.location == to));
        let Some(moved) = moved else { return };
        self.forget(tag, from);
        if !self.flash.may_hold(tag) && self.merging.is_none() {
            // Nothing is left to hide. It takes the place of an entry: there is room.
            let _ = self.tier1.put(tag, moved.without_shield());
        }
    }

    /// Makes a filter forget a void mapping: [`FlashTiers::forget_in_page`](super::flash_tiers::FlashTiers::forget_in_page).
    pub(super) fn forget_in_page(&mut self, tag: u64, void: Void) {
        let forgotten = self.flash.forget_in_page(tag, void);
        self.note_forgotten(forgotten);
    }

    /// Makes the filters forget `tag`, of which a page has the mapping to `location`. False where no filter has it.
    fn forget(&mut self, tag: u64, location: Location) -> bool {
        // After everything was forgotten, the one that is alike may be another's.
        let is_sure = !self.is_blank();
        let forgotten = self.flash.forget(tag, is_sure);
        if forgotten == Forgotten::Absent {
            return false;
        }
        if let Some(merging) = &mut self.merging {
            merging.forgotten.push((tag, location));
        }
        self.note_forgotten(forgotten);
        true
    }

    fn note_forgotten(&mut self, forgotten: Forgotten) {
        if forgotten == Forgotten::Shrunk {
            self.resize_tier1();
            self.shrink_tier1();
        }
    }
}
