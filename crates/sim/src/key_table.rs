//! Hash tables from keys to marks (nonzero numbers): one for keys that come in runs, one for scattered keys.
//!
//! Both are open-addressed with linear probing, at most three quarters full, and never forget a key. What they cost is
//! waiting for memory, so they are laid out for few cache lines per lookup.

/// Keys of one entry of a [`RunTable`].
const RUN: usize = 16;
/// Entries of an empty table, a power of two.
const START_ENTRIES: usize = 4096;
/// Slots that share a home in a [`SparseTable`]: one cache line.
const GROUP: usize = 4;

/// A hash of which the high bits may be used: a 128-bit product folded, since a plain product would let regular keys
/// collide.
#[inline]
fn hash(number: u64) -> u64 {
    let product = u128::from(number ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
    (product as u64) ^ (product >> 64) as u64
}

/// A table with an entry of 72 bytes for 16 neighbouring keys.
#[derive(Debug)]
pub(crate) struct RunTable {
    entries: Vec<Run>,
    /// Entries in use.
    used: usize,
    /// The entry found last: the next key is often its neighbour.
    last: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Run {
    /// Key / 16 + 1; 0 marks a free entry.
    tag: u64,
    marks: [u32; RUN],
}

impl RunTable {
    pub(crate) fn new() -> Self {
        RunTable {
            entries: vec![Run::default(); START_ENTRIES],
            used: 0,
            last: 0,
        }
    }

    /// Whether there is room for one more entry.
    pub(crate) fn is_full(&self) -> bool {
        (self.used + 1) * 4 > self.entries.len() * 3
    }

    /// Whether `keys` keys fill so little of the entries that a [`SparseTable`] is smaller.
    pub(crate) fn is_sparse(&self, keys: u32) -> bool {
        (keys as usize) < self.used * 4
    }

    #[inline]
    pub(crate) fn touch(&self, keys: impl Iterator<Item = u64>) {
        let (mut last, mut touched) = (0, 0);
        for key in keys {
            let tag = tag_of(key);
            if tag != last {
                last = tag;
                touched |= self.entries[self.home(tag)].tag;
            }
        }
        std::hint::black_box(touched);
    }

    /// The mark of a key, 0 if it has none.
    #[inline]
    pub(crate) fn mark(&mut self, key: u64) -> u32 {
        let tag = tag_of(key);
        if self.entries[self.last].tag != tag {
            let at = self.find(tag);
            if self.entries[at].tag == 0 {
                return 0;
            }
            self.last = at;
        }
        self.entries[self.last].marks[key as usize % RUN]
    }

    /// Marks a key. The table is not full.
    pub(crate) fn insert(&mut self, key: u64, mark: u32) {
        let tag = tag_of(key);
        let at = self.find(tag);
        let entry = &mut self.entries[at];
        if entry.tag == 0 {
            entry.tag = tag;
            self.used += 1;
        }
        entry.marks[key as usize % RUN] = mark;
    }

    /// All keys with their marks.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.entries.iter().filter(|run| run.tag != 0).flat_map(|run| {
            let marked = run.marks.iter().enumerate().filter(|(_, mark)| **mark != 0);
            marked.map(|(at, &mark)| ((run.tag - 1) * RUN as u64 + at as u64, mark))
        })
    }

    /// Doubles the table.
    pub(crate) fn grow(&mut self) {
        let doubled = vec![Run::default(); self.entries.len() * 2];
        let old = std::mem::replace(&mut self.entries, doubled);
        self.last = 0;
        for run in old.into_iter().filter(|run| run.tag != 0) {
            let at = self.find(run.tag);
            self.entries[at] = run;
        }
    }

    /// Where a tag is, or the free entry where it belongs.
    #[inline]
    fn find(&self, tag: u64) -> usize {
        let mask = self.entries.len() - 1;
        let mut at = self.home(tag);
        while self.entries[at].tag != tag && self.entries[at].tag != 0 {
            at = (at + 1) & mask;
        }
        at
    }

    #[inline]
    fn home(&self, tag: u64) -> usize {
        (hash(tag) >> (u64::BITS - self.entries.len().trailing_zeros())) as usize
    }

    /// The longest way from a home to an entry.
    #[cfg(test)]
    pub(crate) fn longest_probe(&self) -> usize {
        let mask = self.entries.len() - 1;
        let used = self.entries.iter().enumerate().filter(|(_, run)| run.tag != 0);
        used.map(|(at, run)| at.wrapping_sub(self.home(run.tag)) & mask)
            .max()
            .unwrap_or(0)
    }
}

/// Cannot overflow: a key / 16 is below 2^60.
#[inline]
fn tag_of(key: u64) -> u64 {
    key / RUN as u64 + 1
}

/// A table with a slot of 16 bytes per key.
///
/// The two lowest bits of a key pick the place in a group of four slots and a hash of the other bits picks the group, so
/// that the odd neighbours share a cache line here too.
#[derive(Debug)]
pub(crate) struct SparseTable {
    slots: Vec<Slot>,
    used: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    key: u64,
    /// 0 marks a free slot.
    mark: u32,
}

impl SparseTable {
    pub(crate) fn new() -> Self {
        SparseTable {
            slots: vec![Slot::default(); START_ENTRIES],
            used: 0,
        }
    }

    #[inline]
    pub(crate) fn touch(&self, keys: impl Iterator<Item = u64>) {
        let mut touched = 0;
        for key in keys {
            touched |= self.slots[self.home(key)].mark;
        }
        std::hint::black_box(touched);
    }

    /// The mark of a key, 0 if it has none.
    #[inline]
    pub(crate) fn mark(&self, key: u64) -> u32 {
        self.slots[self.find(key)].mark
    }

    /// Marks a key that has no mark.
    pub(crate) fn insert(&mut self, key: u64, mark: u32) {
        if (self.used + 1) * 4 > self.slots.len() * 3 {
            let doubled = vec![Slot::default(); self.slots.len() * 2];
            let old = std::mem::replace(&mut self.slots, doubled);
            for slot in old.into_iter().filter(|slot| slot.mark != 0) {
                let at = self.find(slot.key);
                self.slots[at] = slot;
            }
        }
        let at = self.find(key);
        self.slots[at] = Slot { key, mark };
        self.used += 1;
    }

    /// Where a key is, or the free slot where it belongs.
    #[inline]
    fn find(&self, key: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = self.home(key);
        while self.slots[at].mark != 0 && self.slots[at].key != key {
            at = (at + 1) & mask;
        }
        at
    }

    #[inline]
    fn home(&self, key: u64) -> usize {
        let groups = self.slots.len() / GROUP;
        (hash(key / GROUP as u64) >> (u64::BITS - groups.trailing_zeros())) as usize * GROUP
            + key as usize % GROUP
    }

    /// The longest way from a home to a slot.
    #[cfg(test)]
    pub(crate) fn longest_probe(&self) -> usize {
        let mask = self.slots.len() - 1;
        let used = self.slots.iter().enumerate().filter(|(_, slot)| slot.mark != 0);
        used.map(|(at, slot)| at.wrapping_sub(self.home(slot.key)) & mask)
            .max()
            .unwrap_or(0)
    }
}
