//! Tier 1: the mappings in DRAM, what is said of each, and the CLOCK that chooses which leave.
//!
//! An entry is *dirty* where flash does not say the same, and a *shield* where flash may say something older. One that is neither
//! and has no place says that the key is not on flash: a lookup has read that there.
//!
//! An entry counts how often it was asked for, up to 3, and the hand takes one back in every eighth of its laps: what comes and is
//! not asked for again leaves within a lap, and what is asked for often stays. With Zipf 0.99 and room for 6 % of the keys that
//! finds 77.7 % of them, a CLOCK with one bit 72.3 %, and the best there could be 80.2 %.

use crate::full::{IndexShape, SLOT_BITS};
use crate::table::Swept;
use crate::{Mapping, PackedTable, TableFull};
use pumice_memory::PagePool;
use std::sync::Arc;

/// How often it was asked for, up to 3; the hand of the CLOCK takes some back.
const ASKED: u32 = 3;
/// Not on flash as it is here.
const DIRTY: u32 = 4;
/// An older mapping of this key may be on flash.
const SHIELD: u32 = 8;

/// Laps of the hand of which one makes entries count as less often asked for.
const LAPS_PER_AGING: u32 = 8;
/// Clean entries that leave at a time, where no page of dirty ones does.
const CLEAN_BATCH: usize = 32;

/// The table; see the module's text.
pub(super) struct Tier1 {
    shape: IndexShape,
    table: PackedTable,
    /// Entries that are dirty.
    dirty: usize,
    /// The bucket that the hand of the CLOCK points at, and how often it went round.
    hand: usize,
    laps: u32,
}

/// What an entry says.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    /// `None` where there is none: a tombstone, or the key is not on flash.
    pub(super) mapping: Option<Mapping>,
    flags: u32,
}

impl Entry {
    /// What flash says, too.
    pub(super) fn clean(mapping: Option<Mapping>) -> Self {
        Self { mapping, flags: 0 }
    }

    /// What flash does not say; it is a shield where flash may say something older.
    pub(super) fn dirty(mapping: Option<Mapping>, is_shield: bool) -> Self {
        Self {
            mapping,
            flags: DIRTY | if is_shield { SHIELD } else { 0 },
        }
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.flags & DIRTY != 0
    }

    pub(super) fn is_shield(&self) -> bool {
        self.flags & SHIELD != 0
    }

    /// Whether flash may have a mapping that this one makes void.
    pub(super) fn hides(&self) -> bool {
        // On flash there is no more than what is void already, where that is what it says.
        self.is_shield() || (!self.is_dirty() && self.mapping.is_some())
    }

    pub(super) fn without_shield(self) -> Self {
        Self {
            flags: self.flags & !SHIELD,
            ..self
        }
    }
}

impl Tier1 {
    pub(super) fn new(shape: IndexShape, pool: Arc<PagePool>) -> Self {
        Self {
            shape,
            table: PackedTable::new(shape.table(), pool),
            dirty: 0,
            hand: 0,
            laps: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Entries that are dirty.
    pub(super) fn dirty_len(&self) -> usize {
        self.dirty
    }

    pub(super) fn prefetch(&self, tag: u64) {
        self.table.prefetch(tag);
    }

    pub(super) fn find(&self, tag: u64) -> Option<Entry> {
        self.table.find(tag, |_| true).map(|payload| self.unpack(payload))
    }

    /// As [`Tier1::find`], and counts that it was asked for.
    pub(super) fn ask(&mut self, tag: u64) -> Option<Entry> {
        let (one, most) = (1 << self.flags_at(), u64::from(ASKED) << self.flags_at());
        let asked = |payload| {
            if payload & most == most {
                payload
            } else {
                payload + one
            }
        };
        let (_, payload) = self.table.update(tag, |payload| Some(asked(payload)))?;
        Some(self.unpack(payload))
    }

    /// Puts an entry, in place of the one of this tag.
    ///
    /// # Errors
    /// [`TableFull`]; it then has none of this tag.
    pub(super) fn put(&mut self, tag: u64, entry: Entry) -> Result<(), TableFull> {
        let new = self.pack(entry);
        match self.table.update(tag, |_| Some(new)) {
            Some((old, _)) => self.dirty -= usize::from(self.unpack(old).is_dirty()),
            None => self.table.insert(tag, new)?,
        }
        self.dirty += usize::from(entry.is_dirty());
        Ok(())
    }

    pub(super) fn remove(&mut self, tag: u64) {
        let old = self.table.remove(tag, |_| true);
        self.dirty -= usize::from(old.is_some_and(|old| self.unpack(old).is_dirty()));
    }

    pub(super) fn clear(&mut self) {
        self.table.clear();
        self.dirty = 0;
    }

    /// Calls `visit` with every tag and its entry.
    pub(super) fn for_each(&self, mut visit: impl FnMut(u64, Entry)) {
        self.table
            .for_each(|tag, payload| visit(tag, self.unpack(payload)));
    }

    /// Takes the next entry out that flash has, too, if there is one.
    pub(super) fn drop_clean(&mut self) {
        if self.dirty == self.table.len() {
            return;
        }
        let mut is_found = false;
        let flags_at = self.flags_at();
        let buckets = self.table.buckets();
        for _ in 0..buckets {
            self.hand %= buckets;
            let is_done = self.table.sweep(self.hand, |_, payload| {
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

    /// Takes out what was not asked for lately, until `left_min` are left: up to `dirty_max` dirty ones, which are returned, or some
    /// clean ones. With a `dirty_max` of 0 dirty ones stay. So does the entry of `kept`.
    pub(super) fn sweep(
        &mut self,
        left_min: usize,
        dirty_max: usize,
        kept: Option<u64>,
    ) -> Vec<(u64, Entry)> {
        let flags_at = self.flags_at();
        let one = 1 << flags_at;
        let mut out: Vec<(u64, u64)> = Vec::with_capacity(dirty_max);
        // Once round, and then as often as it takes until nothing counts as asked for.
        let buckets = self.table.buckets();
        let most = self.table.len();
        for step in 0..(2 + ASKED as usize) * buckets {
            let left = self.table.len() + out.len();
            // Dirty ones that are asked for often stay while others can go.
            let seeks_page = dirty_max > 0 && step < buckets;
            let is_enough = !seeks_page && left + CLEAN_BATCH <= most;
            let is_page = dirty_max > 0 && out.len() == dirty_max;
            if is_page || is_enough || left <= left_min {
                break;
            }
            self.hand %= buckets;
            let ages = self.laps.is_multiple_of(LAPS_PER_AGING) || step >= buckets;
            let mut spare = left.saturating_sub(left_min);
            let is_done = self.table.sweep(self.hand, |tag, payload| {
                let flags = (payload >> flags_at) as u32;
                if flags & ASKED != 0 {
                    return Swept::Keep(if ages { payload - one } else { payload });
                }
                if kept == Some(tag) {
                    return Swept::Keep(payload);
                }
                if flags & DIRTY != 0 {
                    if dirty_max == 0 {
                        return Swept::Keep(payload);
                    }
                    if out.len() == dirty_max {
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
                self.hand += 1;
                if self.hand >= self.table.buckets() {
                    self.hand = 0;
                    self.laps = self.laps.wrapping_add(1);
                }
            }
        }
        self.dirty -= out.len();
        out.into_iter()
            .map(|(tag, payload)| (tag, self.unpack(payload)))
            .collect()
    }

    /// Entries that so many whole pages of DRAM hold, as near as can be to `entries`; fewer than one page holds are left as they are.
    pub(super) fn in_whole_pages(&self, entries: usize) -> usize {
        let per_page = PackedTable::entries_of_pages(self.shape.table(), 1);
        if entries < per_page {
            return entries;
        }
        PackedTable::entries_of_pages(self.shape.table(), (entries + per_page / 2) / per_page)
    }

    /// Gives DRAM back that so many entries do not need.
    pub(super) fn shrink_to(&mut self, entries: usize) {
        self.table.shrink_to(entries);
    }

    /// DRAM held, in bytes, slack included.
    pub(super) fn dram_bytes(&self) -> usize {
        self.table.dram_bytes()
    }

    /// Appends all entries to `out`, as the table has them.
    pub(super) fn dump(&self, out: &mut Vec<u8>) {
        self.table.dump(out);
    }

    /// Puts all entries of a dump, tags and payloads.
    ///
    /// # Errors
    /// [`TableFull`]; some were put then.
    pub(super) fn load(&mut self, entries: Vec<(u64, u64)>) -> Result<(), TableFull> {
        self.table.reserve(entries.len());
        for (tag, payload) in entries {
            self.table.insert(tag, payload)?;
            self.dirty += usize::from(self.unpack(payload).is_dirty());
        }
        Ok(())
    }

    /// # Panics
    /// Where what is counted does not agree with what there is.
    pub(super) fn check_invariants(&self) {
        self.table.check_invariants();
        let mut dirty = 0;
        self.for_each(|_, entry| dirty += usize::from(entry.is_dirty()));
        assert_eq!(dirty, self.dirty, "dirty entries are counted otherwise");
    }

    fn unpack(&self, payload: u64) -> Entry {
        let Mapping { location, note } = self.shape.unpack(payload);
        let mapping = Mapping {
            location,
            note: note & ((1 << SLOT_BITS) - 1),
        };
        Entry {
            mapping: (self.shape.place(payload) != 0).then_some(mapping),
            flags: note >> SLOT_BITS,
        }
    }

    fn pack(&self, entry: Entry) -> u64 {
        let place = entry.mapping.map_or(0, |mapping| self.shape.pack(mapping));
        u64::from(entry.flags) << self.flags_at() | place
    }

    /// Where flags begin in a payload.
    fn flags_at(&self) -> u32 {
        self.shape.place_bits() + SLOT_BITS
    }
}
