//! Which keys were overwritten or deleted since a block was written, in bounded DRAM.
//!
//! A cascade index cannot tell whether a copy in an old block is still the latest: its mapping is on flash. What can be told is
//! whether anything was invalidated under the key's hash since the block was opened. Bloom filters of a fixed size follow each
//! other; one is dropped when every block is younger than it, or when there are too many: of blocks that are older than what was
//! dropped nothing is known, and then every key counts as invalidated.
//!
//! The same filters, smaller, remember which copies have lost their mapping without a record in the log
//! (`FlashStore::may_have_unmapped`).
//!
//! Cost: 10 bits for each invalidation that is remembered, 5 probes for each that is asked for in each filter that matters. One
//! key in some eighty counts as invalidated that was not.

use super::{HIDDEN_SHARE, INVALIDATED_SHARE};
use pumice_blocks::geometry::Geometry;
use std::collections::VecDeque;

/// Filters that are kept, the one being filled included.
pub(crate) const FILTERS_MAX: usize = 8;
/// Bits for each hash.
const BITS_PER_HASH: usize = 10;
/// Bits that stand for one hash.
const PROBES: u32 = 5;

pub(crate) struct Filter {
    pub(crate) bits: Box<[u64]>,
    pub(crate) hashes: usize,
    /// The sequence that the next block was to get when this filter was full.
    pub(crate) closed_at: u64,
}

impl Filter {
    fn has(&self, hash: u64) -> bool {
        probes(hash, self.bits.len()).all(|bit| self.bits[bit / 64] >> (bit % 64) & 1 == 1)
    }
}

/// What a checkpoint keeps of it.
pub(crate) struct SavedInvalidated {
    pub(crate) known_from: u64,
    pub(crate) filters: Vec<Filter>,
}

/// The filters; see the module's text.
pub(crate) struct Invalidated {
    /// The oldest first; the last is being filled.
    filters: VecDeque<Filter>,
    /// Hashes in each.
    hashes_max: usize,
    /// One is filled for as long as so many blocks are opened, at most: what changed once does not count for ever.
    blocks_max: u64,
    /// The sequence that the next block was to get when the one being filled was begun.
    begun_at: u64,
    /// Of blocks with lower sequences nothing is known.
    known_from: u64,
    /// The lowest sequence that a block has had when that was told last.
    oldest: u64,
    /// Low bits of a hash that the index does not tell apart.
    ignored_bits: u32,
}

impl Invalidated {
    /// Those of a device of this size.
    pub(crate) fn of(geometry: &Geometry) -> Self {
        let bytes = usize::try_from(geometry.capacity / INVALIDATED_SHARE).unwrap_or(usize::MAX);
        Self::new(bytes, geometry.blocks.into())
    }

    /// Those of what has lost its mapping without a record, which is rare. What happened before the start does not matter to them.
    pub(crate) fn hidden(geometry: &Geometry) -> Self {
        let bytes = usize::try_from(geometry.capacity / HIDDEN_SHARE).unwrap_or(usize::MAX);
        Self::new(bytes, geometry.blocks.into())
    }

    /// Filters that take `bytes` of DRAM together, at most, each of what changed while `blocks_max` blocks were opened.
    fn new(bytes: usize, blocks_max: u64) -> Self {
        Self {
            filters: VecDeque::new(),
            hashes_max: (bytes / FILTERS_MAX * 8 / BITS_PER_HASH).max(64),
            blocks_max,
            begun_at: 0,
            known_from: 0,
            oldest: 0,
            ignored_bits: 0,
        }
    }

    /// Notes that something under `hash` is void; the next block is to have `next_sequence`.
    pub(crate) fn note(&mut self, hash: u64, next_sequence: u64) {
        let hash = hash >> self.ignored_bits;
        let words = self.words();
        // What is filled now is asked for every block. One key that is changed all the time takes no room of others.
        let is_old = next_sequence.saturating_sub(self.begun_at) > self.blocks_max;
        if !is_old && self.filters.back().is_some_and(|filter| filter.has(hash)) {
            return;
        }
        if (self.filters.back()).is_none_or(|filter| is_old || filter.hashes == self.hashes_max) {
            self.begun_at = next_sequence;
            if let Some(full) = self.filters.back_mut() {
                full.closed_at = next_sequence;
            }
            if self.filters.len() == FILTERS_MAX
                && let Some(dropped) = self.filters.pop_front()
            {
                self.known_from = self.known_from.max(dropped.closed_at);
            }
            self.filters.push_back(Filter {
                bits: vec![0; words].into(),
                hashes: 0,
                closed_at: u64::MAX,
            });
        }
        if let Some(filter) = self.filters.back_mut() {
            filter.hashes += 1;
            for bit in probes(hash, words) {
                filter.bits[bit / 64] |= 1 << (bit % 64);
            }
        }
    }

    /// Words of 64 bits in each filter.
    pub(crate) fn words(&self) -> usize {
        (self.hashes_max * BITS_PER_HASH).div_ceil(64)
    }

    /// Takes out what [`Invalidated::restore`] takes, at the end: nothing is known here any more.
    pub(crate) fn take(&mut self) -> SavedInvalidated {
        SavedInvalidated {
            known_from: std::mem::replace(&mut self.known_from, u64::MAX),
            filters: std::mem::take(&mut self.filters).into(),
        }
    }

    /// Makes it what another was when it was saved, if its filters were as large and it knew something. Nothing was invalidated since
    /// then; the next block is to have `next_sequence`.
    pub(crate) fn restore(&mut self, saved: SavedInvalidated, next_sequence: u64) -> bool {
        let words = self.words();
        let is_alike = saved.known_from <= next_sequence
            && saved.filters.len() <= FILTERS_MAX
            && (saved.filters.iter())
                .all(|filter| filter.bits.len() == words && filter.hashes <= self.hashes_max);
        if is_alike {
            self.known_from = saved.known_from;
            self.filters = saved.filters.into();
            self.begun_at = next_sequence;
        }
        is_alike
    }

    /// Keys that agree in the other bits are one key.
    pub(crate) fn ignore_bits(&mut self, bits: u32) {
        self.ignored_bits = bits;
    }

    /// Of blocks with lower sequences nothing is known.
    pub(crate) fn forget_before(&mut self, sequence: u64) {
        self.known_from = self.known_from.max(sequence);
    }

    /// Whether nothing is known of the block of this sequence.
    pub(crate) fn is_before(&self, sequence: u64) -> bool {
        sequence < self.known_from
    }

    /// Whether something under `hash` may have become void since the block of this sequence was opened.
    pub(crate) fn since(&self, hash: u64, sequence: u64) -> bool {
        let hash = hash >> self.ignored_bits;
        let mut younger = self
            .filters
            .iter()
            .rev()
            .take_while(|filter| filter.closed_at > sequence);
        self.is_before(sequence) || younger.any(|filter| filter.has(hash))
    }

    /// Whether something under `hash` may have become void since the oldest block was opened.
    pub(crate) fn since_the_oldest(&self, hash: u64) -> bool {
        self.since(hash, self.oldest)
    }

    /// Drops what matters to no block: the oldest has this sequence.
    pub(crate) fn retire(&mut self, oldest: u64) {
        self.oldest = self.oldest.max(oldest);
        while self
            .filters
            .front()
            .is_some_and(|filter| filter.closed_at <= oldest)
        {
            let dropped = self.filters.pop_front();
            // A block that is older may be on its way out, or in.
            let closed_at = dropped.map_or(0, |filter| filter.closed_at);
            self.known_from = self.known_from.max(closed_at);
        }
    }

    /// DRAM held, in bytes.
    pub(crate) fn dram_bytes(&self) -> usize {
        self.filters.iter().map(|filter| filter.bits.len() * 8).sum()
    }
}

fn probes(hash: u64, words: usize) -> impl Iterator<Item = usize> {
    let bits = words as u64 * 64;
    // The upper bits of a hash choose a shard, and are alike where shards are; these are all of them.
    let first = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let step = hash.rotate_left(32).wrapping_mul(0xD6E8_FEB8_6659_FD93) | 1;
    (0..u64::from(PROBES)).map(move |n| {
        let mixed = first.wrapping_add(step.wrapping_mul(n));
        ((u128::from(mixed) * u128::from(bits)) >> 64) as usize
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn hash(n: u64) -> u64 {
        (n + 1)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(17)
            .wrapping_mul(0xBF58_476D_1CE4_E5B9)
    }

    #[test]
    fn a_key_that_is_changed_all_the_time_leaves_room_for_others() {
        let mut filters = Invalidated::new(64 << 10, 2_000);
        filters.note(hash(1), 2);
        for change in 0..1_000_000 {
            filters.note(hash(2), 3 + change / 1000);
        }
        assert!(filters.since(hash(1), 1) && filters.since(hash(2), 1_000));
        assert!(!filters.since(hash(3), 0), "of all blocks it is still known");
    }

    #[test]
    fn what_changed_once_does_not_count_for_ever() {
        let mut filters = Invalidated::new(64 << 10, 100);
        filters.note(hash(1), 2);
        for sequence in 3..500 {
            filters.note(hash(2), sequence);
            filters.retire(sequence.saturating_sub(100));
        }
        assert!(filters.since(hash(2), 400), "it changes all the time");
        assert!(!filters.since(hash(1), 400), "no block is left from before");
    }

    #[test]
    fn what_changed_since_the_oldest_block_is_known_as_long_as_that_stands() {
        let mut filters = Invalidated::new(64 << 10, 10);
        filters.note(hash(1), 2);
        assert!(filters.since_the_oldest(hash(1)) && !filters.since_the_oldest(hash(2)));
        for sequence in 3..50 {
            filters.note(hash(3), sequence);
            // The first block stays.
            filters.retire(1);
            assert!(filters.since_the_oldest(hash(1)), "{sequence}");
        }
        for sequence in 50..90 {
            filters.note(hash(3), sequence);
            filters.retire(sequence - 10);
        }
        assert!(!filters.since_the_oldest(hash(1)), "no block is left from then");
        assert!(filters.since_the_oldest(hash(3)));
    }

    #[test]
    fn what_was_invalidated_is_known_and_little_else() {
        for (bytes, blocks) in [(64 << 10, 400), (8 << 10, 400)] {
            let mut filters = Invalidated::new(bytes, 1_000);
            let mut noted = BTreeMap::new();
            let (mut wrong, mut asked) = (0, 0);
            for sequence in 1..=blocks {
                for n in 0..100 {
                    let key = (sequence * 7919 + n * n * 31) % 60_000;
                    filters.note(hash(key), sequence + 1);
                    noted.insert(key, sequence + 1);
                }
                let oldest = sequence.saturating_sub(100);
                filters.retire(oldest);
                for key in (0..60_000).step_by(977) {
                    for since in [oldest, sequence - (sequence - oldest) / 2, sequence] {
                        let is_noted = noted.get(&key).is_some_and(|at| *at > since);
                        let found = filters.since(hash(key), since);
                        assert!(found || !is_noted, "key {key} since {since}");
                        asked += u64::from(!is_noted);
                        wrong += u64::from(found && !is_noted);
                    }
                }
            }
            assert!(filters.dram_bytes() <= bytes + FILTERS_MAX * 8);
            if bytes > 32 << 10 {
                // One in eighty for each of eight filters, and what was invalidated right before the block.
                assert!(wrong * 5 < asked, "{wrong} of {asked}");
            } else {
                assert!(wrong > 0, "this is to be too little");
            }
        }
    }
}
