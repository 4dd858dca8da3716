//! History: which keys were overwritten or deleted since a block was opened, in bounded DRAM; one for all partitions.
//!
//! A partition cannot tell whether a copy in an old block is still the latest: its mapping is on flash. What can be told is whether
//! anything was invalidated under the key's hash since the block was opened. Bloom filters of a fixed size follow each other. A filter is
//! dropped when every block is younger than the filter, or when there are too many filters. For blocks older than a dropped filter
//! nothing is known: every key counts as invalidated.
//!
//! The same filters, smaller, remember under which hashes blocks may have copies that no mapping leads to and no record voids:
//! a start would find them in a footer, so whoever sets such a key next logs that.
//!
//! Cost: 10 bits for each invalidation that is remembered, 5 probes for each that is asked for in each filter that matters. One
//! key in some eighty counts as invalidated that was not.

use super::MapSpace;
use crate::{IndexShape, KeyHash};
use locks::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

/// Filters that are kept, the one being filled included.
const FILTERS_MAX: usize = 8;
/// Bits for each hash.
const BITS_PER_HASH: usize = 10;
/// Bits that stand for one hash.
const PROBES: u32 = 5;
/// Bytes of a device for each byte of DRAM that remembers what was invalidated.
const INVALIDATED_SHARE: u64 = 6000;
/// The same for each byte that remembers what has lost its mapping without a record, which is rare.
const UNLOGGED_SHARE: u64 = 16 * INVALIDATED_SHARE;

/// What is remembered; see the module's text. Its locks come after those of shards, and before those that a [`MapSpace`] takes.
pub struct History {
    /// What was invalidated.
    invalidated: Mutex<Filters>,
    /// What has lost its mapping without a record. What happened before the start does not matter to it: its checkpoint has all
    /// blocks, whose footers are not read again.
    unlogged: Mutex<Filters>,
    /// Whether the store hears of every death that DRAM knew, and says so of a copy ([`Heard::Alive`](crate::Heard::Alive)): then there
    /// is no need to remember it here.
    is_told_elsewhere: AtomicBool,
}

impl History {
    /// An empty one for a device of `capacity` bytes in `blocks` blocks.
    pub fn new(shape: IndexShape, capacity: u64, blocks: u32) -> Self {
        let filters = |share: u64| {
            let bytes = usize::try_from(capacity / share).unwrap_or(usize::MAX);
            // Keys that agree in the other bits are one key to the index.
            Mutex::new(Filters::new(bytes, blocks.into(), 64 - shape.identity_bits()))
        };
        Self {
            invalidated: filters(INVALIDATED_SHARE),
            unlogged: filters(UNLOGGED_SHARE),
            is_told_elsewhere: AtomicBool::new(false),
        }
    }

    /// DRAM that it takes at most for a device of `capacity` bytes, in bytes.
    pub fn bytes_max(capacity: u64) -> u64 {
        capacity / INVALIDATED_SHARE + capacity / UNLOGGED_SHARE
    }

    /// DRAM held, in bytes.
    pub fn dram_bytes(&self) -> usize {
        self.invalidated.lock().dram_bytes() + self.unlogged.lock().dram_bytes()
    }

    /// Remembers that what stands in blocks under `hash` may not be the latest any more. Called under the shard's lock.
    pub(super) fn note(&self, space: &dyn MapSpace, hash: KeyHash) {
        if !self.is_told_elsewhere.load(Ordering::Relaxed) {
            note(&self.invalidated, space, hash);
        }
    }

    /// Remembers that what stands in blocks under `hash` has lost its mapping, and that no record voids it.
    pub(super) fn note_unlogged(&self, space: &dyn MapSpace, hash: KeyHash) {
        self.note(space, hash);
        note(&self.unlogged, space, hash);
    }

    /// Whether a block may have a copy under `hash` that has lost its mapping without a record.
    pub(super) fn may_be_unlogged(&self, space: &dyn MapSpace, hash: KeyHash) -> bool {
        let oldest = space.oldest_generation();
        self.unlogged.lock().since(hash, oldest)
    }

    /// Whether something under `hash` may have been invalidated since the block of this sequence was opened.
    pub(super) fn since(&self, space: &dyn MapSpace, hash: KeyHash, sequence: u64) -> bool {
        let mut invalidated = self.invalidated.lock();
        invalidated.retire(space.oldest_generation());
        invalidated.since(hash, sequence)
    }

    /// Whether nothing is known of the block of this sequence.
    pub(super) fn is_before(&self, sequence: u64) -> bool {
        self.invalidated.lock().is_before(sequence)
    }

    /// Of all blocks that there are nothing is known from here on.
    pub(super) fn forget(&self, space: &dyn MapSpace) {
        let mut invalidated = self.invalidated.lock();
        let next = space.next_generation();
        invalidated.forget_before(next);
    }

    /// Takes out what [`History::begin`] takes, at the end: nothing is known here any more.
    pub(super) fn take(&self) -> SavedHistory {
        self.invalidated.lock().take()
    }

    /// Begins with what a clean stop has saved, as far as that is of use; see [`CascadeShard::begin_history`](super::CascadeShard::begin_history).
    pub(super) fn begin(&self, space: &dyn MapSpace, saved: Option<SavedHistory>, is_told_elsewhere: bool) {
        (self.is_told_elsewhere).store(is_told_elsewhere, Ordering::Relaxed);
        // What the store's own notes in a checkpoint call live may be dead: pages are asked.
        let saved = saved.filter(|_| !is_told_elsewhere);
        let mut invalidated = self.invalidated.lock();
        let next = space.next_generation();
        if !saved.is_some_and(|saved| invalidated.restore(saved, next)) {
            // Of what was invalidated before this start nothing is known.
            invalidated.forget_before(next);
        }
    }
}

fn note(filters: &Mutex<Filters>, space: &dyn MapSpace, hash: KeyHash) {
    let mut filters = filters.lock();
    // Under the lock: what is noted later has no lower sequence.
    let next = space.next_generation();
    filters.retire(space.oldest_generation());
    filters.note(hash, next);
}

/// One Bloom filter over hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryFilter {
    /// Its bits.
    pub bits: Box<[u64]>,
    /// Hashes that it has.
    pub hashes: usize,
    /// The sequence that the next block was to get when this filter was full; the highest number there is: it is not.
    pub closed_at: u64,
}

impl HistoryFilter {
    fn has(&self, hash: u64) -> bool {
        probes(hash, self.bits.len()).all(|bit| self.bits[bit / 64] >> (bit % 64) & 1 == 1)
    }
}

/// What a checkpoint keeps of a [`History`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedHistory {
    /// Of blocks with lower sequences nothing is known.
    pub known_from: u64,
    /// The oldest first.
    pub filters: Vec<HistoryFilter>,
}

impl SavedHistory {
    /// Filters that there are at most.
    pub const FILTERS_MAX: usize = FILTERS_MAX;

    /// One that says that nothing is known.
    pub fn nothing() -> Self {
        Self {
            known_from: u64::MAX,
            filters: Vec::new(),
        }
    }

    /// Words of 64 bits that each filter has for a device of `capacity` bytes.
    pub fn words(capacity: u64) -> usize {
        let bytes = usize::try_from(capacity / INVALIDATED_SHARE).unwrap_or(usize::MAX);
        Filters::new(bytes, 0, 0).words()
    }
}

/// Filters that follow each other.
struct Filters {
    /// The oldest first; the last is being filled.
    filters: VecDeque<HistoryFilter>,
    /// Hashes in each.
    hashes_max: usize,
    /// One is filled for as long as so many blocks are opened, at most: what changed once does not count for ever.
    blocks_max: u64,
    /// The sequence that the next block was to get when the one being filled was begun.
    begun_at: u64,
    /// Of blocks with lower sequences nothing is known.
    known_from: u64,
    /// Low bits of a hash that the index does not tell apart.
    ignored_bits: u32,
}

impl Filters {
    /// Filters that take `bytes` of DRAM together, at most, each of what changed while `blocks_max` blocks were opened. They do
    /// not tell apart hashes that differ in their low `ignored_bits` bits alone.
    fn new(bytes: usize, blocks_max: u64, ignored_bits: u32) -> Self {
        Self {
            filters: VecDeque::new(),
            hashes_max: (bytes / FILTERS_MAX * 8 / BITS_PER_HASH).max(64),
            blocks_max,
            begun_at: 0,
            known_from: 0,
            ignored_bits,
        }
    }

    /// Notes that something under `hash` is void; the next block is to have `next_sequence`.
    fn note(&mut self, hash: u64, next_sequence: u64) {
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
            self.filters.push_back(HistoryFilter {
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
    fn words(&self) -> usize {
        (self.hashes_max * BITS_PER_HASH).div_ceil(64)
    }

    /// Takes out what [`Filters::restore`] takes, at the end: nothing is known here any more.
    fn take(&mut self) -> SavedHistory {
        SavedHistory {
            known_from: std::mem::replace(&mut self.known_from, u64::MAX),
            filters: std::mem::take(&mut self.filters).into(),
        }
    }

    /// Makes it what another was when it was saved, if its filters were as large and it knew something. Nothing was invalidated since
    /// then; the next block is to have `next_sequence`.
    fn restore(&mut self, saved: SavedHistory, next_sequence: u64) -> bool {
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

    /// Of blocks with lower sequences nothing is known.
    fn forget_before(&mut self, sequence: u64) {
        self.known_from = self.known_from.max(sequence);
    }

    /// Whether nothing is known of the block of this sequence.
    fn is_before(&self, sequence: u64) -> bool {
        sequence < self.known_from
    }

    /// Whether something under `hash` may have become void since the block of this sequence was opened.
    fn since(&self, hash: u64, sequence: u64) -> bool {
        let hash = hash >> self.ignored_bits;
        let mut younger = self
            .filters
            .iter()
            .rev()
            .take_while(|filter| filter.closed_at > sequence);
        self.is_before(sequence) || younger.any(|filter| filter.has(hash))
    }

    /// Drops what matters to no block: the oldest has this sequence.
    fn retire(&mut self, oldest: u64) {
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
    fn dram_bytes(&self) -> usize {
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
    use pumice_world::Random;
    use std::collections::BTreeMap;

    fn hash(n: u64) -> u64 {
        (n + 1)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(17)
            .wrapping_mul(0xBF58_476D_1CE4_E5B9)
    }

    #[test]
    fn a_key_that_is_changed_all_the_time_leaves_room_for_others() {
        let mut filters = Filters::new(64 << 10, 2_000, 0);
        filters.note(hash(1), 2);
        for change in 0..1_000_000 {
            filters.note(hash(2), 3 + change / 1000);
        }
        assert!(filters.since(hash(1), 1) && filters.since(hash(2), 1_000));
        assert!(!filters.since(hash(3), 0), "of all blocks it is still known");
    }

    #[test]
    fn what_changed_once_does_not_count_for_ever() {
        let mut filters = Filters::new(64 << 10, 100, 0);
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
        let (mut filters, mut oldest) = (Filters::new(64 << 10, 10, 0), 0);
        filters.note(hash(1), 2);
        assert!(filters.since(hash(1), oldest) && !filters.since(hash(2), oldest));
        for sequence in 3..50 {
            filters.note(hash(3), sequence);
            // The first block stays.
            oldest = 1;
            filters.retire(oldest);
            assert!(filters.since(hash(1), oldest), "{sequence}");
        }
        for sequence in 50..90 {
            filters.note(hash(3), sequence);
            oldest = sequence - 10;
            filters.retire(oldest);
        }
        assert!(!filters.since(hash(1), oldest), "no block is left from then");
        assert!(filters.since(hash(3), oldest));
    }

    #[test]
    fn what_was_saved_goes_on_and_what_cannot_be_of_use_is_not_taken() {
        const BYTES: usize = 1 << 10;
        let mut random = Random(11);
        let hashes: Vec<(u64, u64)> = (0..600).map(|n| (random.below(u64::MAX), n / 10 + 2)).collect();
        let noted = || {
            let mut filters = Filters::new(BYTES, 1_000, 0);
            for (hash, next_sequence) in &hashes {
                filters.note(*hash, *next_sequence);
            }
            filters.retire(3);
            filters
        };
        let (filters, mut taken) = (noted(), noted());
        let saved = taken.take();
        assert!(
            taken.since(hashes[0].0, u64::MAX - 1),
            "it knows nothing any more"
        );
        assert!(saved.filters.len() > 2);
        let mut other = Filters::new(BYTES, 1_000, 0);
        assert!(other.restore(saved.clone(), 62));
        let mut known = 0;
        for n in 0..5_000 {
            let (hash, _) = hashes.get(n).copied().unwrap_or((random.below(u64::MAX), 0));
            for sequence in [1, 20, 61] {
                assert_eq!(other.since(hash, sequence), filters.since(hash, sequence));
                known += u64::from(other.since(hash, sequence));
            }
        }
        assert!((600..14_000).contains(&known), "{known}");
        for (hash, next_sequence) in &hashes {
            other.note(*hash, *next_sequence + 100);
        }
        assert!(
            hashes.iter().all(|(hash, _)| other.since(*hash, 61)),
            "it goes on"
        );
        // Of another size it is of no use.
        assert!(!Filters::new(2 * BYTES, 1_000, 0).restore(saved, 62));
        // Nor is what knew nothing: later blocks would never be known either.
        assert!(!other.restore(SavedHistory::nothing(), 62));
    }

    #[test]
    fn what_was_invalidated_is_known_and_little_else() {
        for (bytes, blocks) in [(64 << 10, 400), (8 << 10, 400)] {
            let mut filters = Filters::new(bytes, 1_000, 0);
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
