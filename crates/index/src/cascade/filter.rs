//! A compact filter over tags that can forget, and that says where it saw a tag.
//!
//! # Benefits
//! - An entry costs `cell_bits + hint_bits` and about 2.2 bits, at any number of entries, without slack.
//! - Entries keep the order of their tags: the rank of a match among all entries is its place in a sorted table.
//! - An entry is taken out by one write.
//!
//! # Costs
//! - It is built once, from sorted entries; adding some means building it again (about 10 ns an entry).
//! - The room of an erased entry comes back with the next build.
//! - Tags that were never put in are found with a chance of (entries / buckets) / (2^cell_bits - 1).
//!
//! # Layout
//! The space of tags is cut into equal *buckets*, a bucket into 2^cell_bits - 1 *cells*. How many entries each bucket has is told
//! in unary (a 0 for each entry, a 1 behind each bucket), as in quotient filters; the entries' cells and hints stand in a
//! packed array beside it. A sample of every 256th bucket's place bounds the walk through the unary bits to some words.
//! Cell 0 is not given out: it marks what was erased.

/// Buckets between two samples.
const SAMPLE: usize = 256;

/// Where in a filter's space a tag belongs. Cells compare as tags do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell(u64);

/// How tags are divided, and how wide entries are. Filters of one shape agree on cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterShape {
    tag_bits: u32,
    cell_bits: u32,
    hint_bits: u32,
    buckets: u32,
}

impl FilterShape {
    /// A shape for about `entries` entries with tags of `tag_bits` bits.
    pub fn new(tag_bits: u32, entries: usize, cell_bits: u32, hint_bits: u32) -> Self {
        debug_assert!((1..=16).contains(&cell_bits) && hint_bits <= 16 && (1..=48).contains(&tag_bits));
        Self {
            tag_bits,
            cell_bits,
            hint_bits,
            buckets: u32::try_from(entries.max(1)).expect("fewer than 2^32 entries in a partition"),
        }
    }

    /// Number of buckets.
    pub fn buckets(&self) -> usize {
        self.buckets as usize
    }

    /// Bits of an entry.
    pub fn width(&self) -> usize {
        (self.cell_bits + self.hint_bits) as usize
    }

    fn cells(&self) -> u64 {
        (1 << self.cell_bits) - 1
    }

    /// An entry without its hint: the cell in its bucket, or 0.
    fn rest(&self, entry: u64) -> u64 {
        entry & self.cells()
    }

    fn hint(&self, entry: u64) -> u32 {
        (entry >> self.cell_bits) as u32
    }

    /// The cell of a tag.
    pub fn cell(&self, tag: u64) -> Cell {
        let all = u128::from(self.cells()) * u128::from(self.buckets);
        let wide = (u128::from(tag) * all) >> self.tag_bits;
        Cell(u64::try_from(wide).expect("below the number of cells"))
    }

    fn split(&self, cell: Cell) -> (usize, u64) {
        ((cell.0 / self.cells()) as usize, cell.0 % self.cells() + 1)
    }
}

/// The filter; see the module's text.
pub struct Filter {
    shape: FilterShape,
    len: usize,
    alive: usize,
    unary: Box<[u64]>,
    samples: Box<[u32]>,
    rests: Box<[u64]>,
}

/// One entry of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterEntry {
    /// Where it belongs.
    pub cell: Cell,
    /// What it says beside that it is there.
    pub hint: u32,
}

/// An entry that matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// The entry's number in the order of tags, erased ones counted.
    pub rank: usize,
    /// What the entry was given.
    pub hint: u32,
}

impl Filter {
    /// A filter of `entries`, which come in the order of their cells.
    pub fn build(shape: FilterShape, entries: impl ExactSizeIterator<Item = FilterEntry>) -> Self {
        Self::build_of(shape, entries.len(), entries)
    }

    /// The filter without what was erased: ranks are lower by the erased entries before them.
    pub fn compacted(&self) -> Self {
        Self::build_of(self.shape, self.alive, self.entries())
    }

    fn build_of(shape: FilterShape, len: usize, entries: impl Iterator<Item = FilterEntry>) -> Self {
        let buckets = shape.buckets as usize;
        let width = shape.width();
        let mut filter = Self {
            shape,
            len,
            alive: len,
            unary: vec![0; (len + buckets).div_ceil(64)].into(),
            samples: vec![0; buckets.div_ceil(SAMPLE)].into(),
            rests: vec![0; (len * width).div_ceil(64)].into(),
        };
        let (mut next_bucket, mut last) = (0, Cell(0));
        for (rank, entry) in entries.enumerate() {
            debug_assert!(last <= entry.cell, "cells out of order");
            last = entry.cell;
            let (bucket, rest) = shape.split(entry.cell);
            filter.end_buckets(&mut next_bucket, bucket, rank);
            filter.write(rank, rest | u64::from(entry.hint) << shape.cell_bits);
        }
        filter.end_buckets(&mut next_bucket, buckets, len);
        filter
    }

    /// The unary bits and the entries, as [`Filter::from_parts`] takes them.
    pub fn parts(&self) -> (&[u64], &[u64]) {
        (&self.unary, &self.rests)
    }

    /// The filter of these parts; `None` where they are not those of a filter.
    pub fn from_parts(shape: FilterShape, len: usize, unary: Box<[u64]>, rests: Box<[u64]>) -> Option<Self> {
        let buckets = shape.buckets();
        let bits = len + buckets;
        let ones: usize = unary.iter().map(|word| word.count_ones() as usize).sum();
        // Behind the last bucket there is nothing, and it ends where the bits do.
        let is_last = |at: usize| unary[at / 64] >> (at % 64) == 1;
        if unary.len() != bits.div_ceil(64)
            || rests.len() != (len * shape.width()).div_ceil(64)
            || ones != buckets
            || !is_last(bits - 1)
        {
            return None;
        }
        let mut samples = Vec::with_capacity(buckets.div_ceil(SAMPLE));
        let (mut bucket, mut start) = (0, 0);
        for at in 0..bits {
            if unary[at / 64] >> (at % 64) & 1 == 1 {
                if bucket % SAMPLE == 0 {
                    samples.push(u32::try_from(start).ok()?);
                }
                bucket += 1;
                start = at + 1;
            }
        }
        let mut filter = Self {
            shape,
            len,
            alive: 0,
            unary,
            samples: samples.into(),
            rests,
        };
        filter.alive = (0..len)
            .filter(|rank| shape.rest(filter.read(*rank)) != 0)
            .count();
        Some(filter)
    }

    /// Writes the ones behind the buckets from `*next` to before `end`, `rank` entries being before them.
    fn end_buckets(&mut self, next: &mut usize, end: usize, rank: usize) {
        while *next < end {
            if next.is_multiple_of(SAMPLE) {
                self.samples[*next / SAMPLE] = self.start_for_sample(*next, rank);
            }
            let at = rank + *next;
            self.unary[at / 64] |= 1 << (at % 64);
            *next += 1;
        }
    }

    /// Where a sampled bucket starts in the unary bits: right behind the end of the one before.
    fn start_for_sample(&self, bucket: usize, rank: usize) -> u32 {
        // The bucket's own entries are already counted in `rank`: go back over their zeros.
        let mut at = rank + bucket;
        while at > 0 && self.unary[(at - 1) / 64] >> ((at - 1) % 64) & 1 == 0 {
            at -= 1;
        }
        u32::try_from(at).expect("fewer than 2^32 bits")
    }

    /// Number of entries, erased ones counted.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Number of entries that were not erased.
    pub fn alive(&self) -> usize {
        self.alive
    }

    /// How entries are divided.
    pub fn shape(&self) -> FilterShape {
        self.shape
    }

    /// DRAM held, in bytes.
    pub fn dram_bytes(&self) -> usize {
        size_of::<Self>() + (self.unary.len() + self.rests.len()) * 8 + self.samples.len() * 4
    }

    /// The entries that may be of `tag`, in order.
    pub fn matches(&self, tag: u64) -> impl Iterator<Item = Match> + '_ {
        let (bucket, rest) = self.shape.split(self.shape.cell(tag));
        self.bucket(bucket).filter_map(move |rank| {
            let entry = self.read(rank);
            (self.shape.rest(entry) == rest).then(|| Match {
                rank,
                hint: self.shape.hint(entry),
            })
        })
    }

    /// Whether an entry was not erased.
    pub fn is_alive(&self, rank: usize) -> bool {
        self.shape.rest(self.read(rank)) != 0
    }

    /// Takes an entry out: it is not found any more. False where it was erased before.
    pub fn erase(&mut self, rank: usize) -> bool {
        let entry = self.read(rank);
        let was_there = self.shape.rest(entry) != 0;
        self.alive -= usize::from(was_there);
        self.write(rank, entry & !self.shape.cells());
        was_there
    }

    /// All entries that were not erased, in order: to build another filter of the same shape.
    pub fn entries(&self) -> impl Iterator<Item = FilterEntry> + '_ {
        let mut bucket = 0;
        let mut at = 0;
        (0..self.len).filter_map(move |rank| {
            while self.unary[at / 64] >> (at % 64) & 1 == 1 {
                bucket += 1;
                at += 1;
            }
            at += 1;
            let entry = self.read(rank);
            let rest = self.shape.rest(entry);
            let cell = Cell(bucket * self.shape.cells() + rest.max(1) - 1);
            (rest != 0).then(|| FilterEntry {
                cell,
                hint: self.shape.hint(entry),
            })
        })
    }

    /// The ranks of a bucket's entries.
    fn bucket(&self, bucket: usize) -> std::ops::Range<usize> {
        let mut at = self.samples[bucket / SAMPLE] as usize;
        // As many buckets end before this one starts, from the sample on.
        let mut ends_left = bucket % SAMPLE;
        let mut word = self.unary[at / 64] & u64::MAX << (at % 64);
        let mut base = at / 64 * 64;
        while ends_left > 0 {
            let ones = word.count_ones() as usize;
            if ones >= ends_left {
                for _ in 1..ends_left {
                    word &= word - 1;
                }
                at = base + word.trailing_zeros() as usize + 1;
                word &= word - 1;
                break;
            }
            ends_left -= ones;
            base += 64;
            word = self.unary[base / 64];
        }
        let start = at - bucket;
        while word == 0 {
            base += 64;
            word = self.unary[base / 64];
        }
        start..base + word.trailing_zeros() as usize - bucket
    }

    fn width(&self) -> usize {
        self.shape.width()
    }

    fn read(&self, rank: usize) -> u64 {
        let (at, width) = (rank * self.width(), self.width());
        let (word, shift) = (at / 64, at % 64);
        let mut bits = self.rests[word] >> shift;
        if shift + width > 64 {
            bits |= self.rests[word + 1] << (64 - shift);
        }
        bits & ((1 << width) - 1)
    }

    fn write(&mut self, rank: usize, entry: u64) {
        let (at, width) = (rank * self.width(), self.width());
        let (word, shift) = (at / 64, at % 64);
        let mask = (1u64 << width) - 1;
        self.rests[word] = self.rests[word] & !(mask << shift) | entry << shift;
        if shift + width > 64 {
            let low = 64 - shift;
            self.rests[word + 1] = self.rests[word + 1] & !(mask >> low) | entry >> low;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pumice_world::Random;
    use std::collections::BTreeMap;

    fn random(state: &mut Random) -> u64 {
        state.next_u64()
    }

    fn filled(shape: FilterShape, tags: &mut [(u64, u32)]) -> Filter {
        tags.sort_unstable();
        Filter::build(
            shape,
            tags.iter().map(|(tag, hint)| FilterEntry {
                cell: shape.cell(*tag),
                hint: *hint,
            }),
        )
    }

    #[test]
    fn finds_all_that_was_put_in_in_order_and_forgets_what_was_erased() {
        let mut state = Random(7);
        for (entries, cell_bits, hint_bits, skew) in [
            (0, 5, 0, 0),
            (1, 5, 4, 0),
            (300, 7, 4, 0),
            (40_000, 5, 0, 0),
            (5_000, 8, 5, 20),
        ] {
            let shape = FilterShape::new(30, entries, cell_bits, hint_bits);
            let mut tags: Vec<(u64, u32)> = (0..entries)
                .map(|_| {
                    let tag = random(&mut state) >> 34 >> skew;
                    (tag, random(&mut state) as u32 & ((1 << hint_bits) - 1))
                })
                .collect();
            let mut filter = filled(shape, &mut tags);
            assert_eq!(filter.len(), entries);
            for (rank, (tag, hint)) in tags.iter().enumerate() {
                let wanted = Match { rank, hint: *hint };
                assert!(filter.matches(*tag).any(|found| found == wanted), "{tag:x}");
            }
            let listed = filter.entries().map(|entry| entry.cell);
            assert!(listed.eq(tags.iter().map(|(tag, _)| shape.cell(*tag))));
            for rank in (0..entries).step_by(3) {
                assert!(filter.erase(rank));
                assert!(!filter.erase(rank), "erased twice");
            }
            for (rank, (tag, _)) in tags.iter().enumerate() {
                let found = filter.matches(*tag).any(|found| found.rank == rank);
                assert_eq!(found, rank % 3 != 0);
            }
            assert_eq!(filter.alive(), entries - entries.div_ceil(3));
            let again = filter.compacted();
            assert_eq!((again.len(), again.alive()), (filter.alive(), filter.alive()));
            assert!(again.entries().eq(filter.entries()));
        }
    }

    #[test]
    fn a_stranger_is_found_as_seldom_as_the_shape_says_at_the_bits_it_says() {
        let mut state = Random(1);
        for (cell_bits, most) in [(5, 0.04), (7, 0.010)] {
            let entries = 30_000;
            let shape = FilterShape::new(30, entries, cell_bits, 0);
            let known: BTreeMap<u64, ()> = (0..entries).map(|_| (random(&mut state) >> 34, ())).collect();
            let mut tags: Vec<_> = known.keys().map(|tag| (*tag, 0)).collect();
            let filter = filled(shape, &mut tags);
            let bits = filter.dram_bytes() as f64 * 8.0 / tags.len() as f64;
            assert!(bits < f64::from(cell_bits) + 2.2, "{bits} bits an entry");
            let asked = 100_000;
            let strangers = (0..asked).map(|_| random(&mut state) >> 34);
            let wrong = strangers
                .filter(|tag| !known.contains_key(tag))
                .filter(|tag| filter.matches(*tag).next().is_some())
                .count();
            let rate = wrong as f64 / f64::from(asked);
            assert!(rate < most && rate > most / 3.0, "{rate} of strangers found");
        }
    }
}
