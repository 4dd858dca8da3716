//! What DRAM tells of a copy without reading a page, and what it must be told when another takes its place.

use super::partition::CascadeShard;
use crate::{Heard, KeyHash, Known, Location, Mapping, StoredCopy, Superseded, Survivor, TableFull};

impl CascadeShard {
    /// What tier 1 knows of the copy of `hash` at `location`.
    pub fn known(&self, hash: KeyHash, location: Location) -> Known {
        let Some(entry) = self.tier1.find(self.shape.tag(hash)) else {
            return Known::Unknown;
        };
        match entry.mapping {
            Some(known) if known.location == location => Known::Live(known),
            _ => Known::Dead,
        }
    }

    /// Where `hash` is mapped to, as far as DRAM tells.
    pub fn find(&self, hash: KeyHash) -> Known {
        let tag = self.shape.tag(hash);
        match self.tier1.find(tag) {
            Some(entry) => entry.mapping.map_or(Known::Dead, Known::Live),
            None if self.flash.may_hold(tag) => Known::Unknown,
            None => Known::Dead,
        }
    }

    /// Whether tier 1 knows nothing of a tag, and flash may have a copy, or a start may find one.
    fn is_doubtful(&self, tag: u64) -> bool {
        self.tier1.find(tag).is_none() && (self.is_blank() || self.flash.may_hold(tag))
    }

    /// Whether blocks may have copies of `hash` that a start would find: that of tier 1, those of mappings on flash, and those that have
    /// lost theirs without a record.
    pub fn may_be_more(&self, hash: KeyHash) -> bool {
        self.mapping(hash).is_some()
            || self.is_doubtful(self.shape.tag(hash))
            || self.history.may_be_unlogged(&*self.space, hash)
    }

    /// Maps `hash` to `new`, or to nothing, in place of whatever it was mapped to.
    pub fn supersede(&mut self, hash: KeyHash, new: Option<Mapping>) -> Superseded {
        let tag = self.shape.tag(hash);
        let known = self.mapping(hash);
        let may_be_mapped = known.is_some() || self.is_doubtful(tag);
        let may_be_more = may_be_mapped || self.history.may_be_unlogged(&*self.space, hash);
        let is_mapped = match new {
            Some(new) => self.write(tag, Some(new)).is_ok(),
            None => {
                if may_be_mapped {
                    // Where there is no room for a tombstone the partition has forgotten all it had.
                    let _ = self.write(tag, None);
                }
                false
            }
        };
        // Nor may a reclaim take for the latest what is in a block and not mapped.
        if may_be_more || is_mapped != new.is_some() {
            self.history.note(&*self.space, hash);
        }
        Superseded {
            known,
            may_be_more,
            is_mapped,
        }
    }

    /// Remembers that blocks may have copies of `hash` that no mapping leads to, and that no record voids.
    pub fn note_unlogged(&mut self, hash: KeyHash) {
        self.history.note_unlogged(&*self.space, hash);
    }

    /// Maps `hash` to `to`, where its copy was moved from `from`. Returns whether flash still maps it to there, where it is to be
    /// forgotten when its block goes ([`CascadeShard::forget_moved`]).
    ///
    /// # Errors
    /// [`TableFull`]; the key is then not mapped.
    pub fn relocate(&mut self, hash: KeyHash, from: Location, to: Mapping) -> Result<bool, TableFull> {
        let leaves_mapping = self.is_on_flash(hash, from);
        let moved = self.set(hash, to);
        if moved.is_err() {
            // Nothing leads to the new copy, which its block's footer names.
            self.note_unlogged(hash);
        }
        moved.map(|_| leaves_mapping)
    }

    /// What becomes of a copy of `hash` in a block that is reclaimed.
    pub fn survivor(&self, hash: KeyHash, copy: &StoredCopy) -> Survivor {
        let tag = self.shape.tag(hash);
        match self.known(hash, copy.mapping.location) {
            Known::Live(known) => return Survivor::Keep(known),
            Known::Dead => return Survivor::Drop,
            Known::Unknown => {}
        }
        if copy.heard == Heard::Dead || !self.is_doubtful(tag) {
            return Survivor::Drop;
        }
        let is_latest = match copy.heard {
            Heard::Alive => {
                !self.is_blank() && !self.flash.is_contested(tag) && !self.history.is_before(copy.opened_at)
            }
            Heard::Nothing => !self.history.since(&*self.space, hash, copy.opened_at),
            Heard::Lost | Heard::Dead => false,
        };
        if is_latest {
            return Survivor::Keep(copy.mapping);
        }
        self.flash
            .plan(tag, self.epoch)
            .map_or(Survivor::Drop, Survivor::Ask)
    }
}
