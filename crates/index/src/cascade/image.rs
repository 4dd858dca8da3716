//! A partition as bytes, for a checkpoint: tier 1, and of the other tiers what DRAM has of them. Pages stay where they are.
//!
//! All numbers are little-endian.
//!
//! | size | field        | meaning                                                             |
//! |-----:|--------------|---------------------------------------------------------------------|
//! |    4 | `tier1`      | mappings in tier 1                                                  |
//! |  e·n |              | each: tag over place and flags, in as many bytes as the table has   |
//! |    4 | `generations`| generations of tier 2, the oldest first                             |
//! |      |              | each: a table                                                       |
//! |      |              | the wide table: a table, and how many entries of its filter stand   |
//! |  4·p |              | before those of each page                                           |
//!
//! A table is
//!
//! | size | field     | meaning                                                  |
//! |-----:|-----------|----------------------------------------------------------|
//! |    4 | `pages`   | number of pages                                          |
//! |  4·p |           | their numbers                                            |
//! |    4 | `buckets` | of the filter                                            |
//! |    4 | `len`     | entries of the filter                                    |
//! |      | `unary`   | `len + buckets` bits, in words of 8 bytes                |
//! |      | `rests`   | `len` entries of the filter's width, in words of 8 bytes |

use super::PageNumber;
use super::filter::{Filter, FilterShape};
use super::partition::{CascadeShard, DIRTY, GENERATION_PAGES, Generation, PAGE_HINT};
use super::wide::Wide;

/// A reader of fields that never reads past the end.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (head, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*head))
    }

    fn len(&mut self) -> Option<usize> {
        usize::try_from(self.u32()?).ok()
    }

    fn bytes(&mut self, len: usize) -> Option<&[u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    fn words(&mut self, bits: usize) -> Option<Box<[u64]>> {
        let bytes = self.bytes(bits.div_ceil(64).checked_mul(8)?)?;
        let words = bytes.as_chunks::<8>().0.iter();
        Some(words.map(|word| u64::from_le_bytes(*word)).collect())
    }

    fn pages(&mut self) -> Option<Vec<PageNumber>> {
        let count = self.len()?;
        self.numbers(count)
    }

    fn numbers(&mut self, count: usize) -> Option<Vec<u32>> {
        let bytes = self.bytes(count.checked_mul(4)?)?;
        let numbers = bytes.as_chunks::<4>().0.iter();
        Some(numbers.map(|number| u32::from_le_bytes(*number)).collect())
    }

    fn filter(&mut self, shape: impl FnOnce(usize) -> FilterShape) -> Option<Filter> {
        let buckets = self.len()?;
        let len = self.len()?;
        // A bucket is not much smaller than an entry, so neither is more than the bytes that are there.
        if buckets > 8 * self.0.len().max(8 * GENERATION_PAGES * super::PAGE_ENTRIES) || buckets == 0 {
            return None;
        }
        let shape = shape(buckets);
        let unary = self.words(len.checked_add(buckets)?)?;
        let rests = self.words(len.checked_mul(shape.width())?)?;
        Filter::from_parts(shape, len, unary, rests)
    }
}

fn push_len(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(
        &u32::try_from(len)
            .expect("fewer than 2^32 in a partition")
            .to_le_bytes(),
    );
}

fn push_numbers(out: &mut Vec<u8>, numbers: &[u32]) {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
    out.extend(bytes);
}

fn push_table(out: &mut Vec<u8>, pages: &[PageNumber], filter: &Filter) {
    push_len(out, pages.len());
    push_numbers(out, pages);
    push_len(out, filter.shape().buckets());
    push_len(out, filter.len());
    let (unary, rests) = filter.parts();
    unary
        .iter()
        .chain(rests)
        .for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
}

impl CascadeShard {
    /// Appends the partition to `out`.
    pub fn dump(&self, out: &mut Vec<u8>) {
        push_len(out, self.tier1.len());
        let shape = self.tier1.shape();
        self.tier1.for_each(|tag, payload| {
            let whole = u128::from(tag) << shape.payload_bits() | u128::from(payload);
            out.extend_from_slice(&whole.to_le_bytes()[..shape.entry_bytes()]);
        });
        push_len(out, self.generations.len());
        for generation in &self.generations {
            push_table(out, &generation.pages, &generation.filter);
        }
        push_table(out, self.wide.pages(), self.wide.filter());
        push_numbers(out, self.wide.starts());
    }

    /// Makes an empty partition what [`CascadeShard::dump`] wrote. False where that is no partition, or where there is no memory for
    /// it; it is empty then.
    pub fn load(&mut self, bytes: &[u8]) -> bool {
        let loaded = self.try_load(bytes).is_some();
        if !loaded {
            // The pages that it names are not this partition's to give up.
            self.drop_tables();
        }
        loaded
    }

    fn try_load(&mut self, bytes: &[u8]) -> Option<()> {
        let mut fields = Fields(bytes);
        let shape = self.tier1.shape();
        let mappings = fields.len()?;
        if mappings > fields.0.len() / shape.entry_bytes() {
            return None;
        }
        self.tier1.reserve(mappings);
        for _ in 0..mappings {
            let mut wide = [0; 16];
            wide[..shape.entry_bytes()].copy_from_slice(fields.bytes(shape.entry_bytes())?);
            let whole = u128::from_le_bytes(wide);
            let payload = (whole & ((1 << shape.payload_bits()) - 1)) as u64;
            let tag = (whole >> shape.payload_bits()) as u64;
            self.tier1.insert(tag, payload).ok()?;
            self.dirty += usize::from(self.flags(payload) & DIRTY != 0);
        }
        for _ in 0..fields.len()? {
            let pages = fields.pages()?;
            let filter = fields.filter(|_| self.generation_shape())?;
            let is_named = |hint: u32| ((hint & PAGE_HINT) as usize) < pages.len();
            if !(1..=GENERATION_PAGES).contains(&pages.len())
                || !filter.entries().all(|entry| is_named(entry.hint))
            {
                return None;
            }
            self.generations.push(Generation { pages, filter });
        }
        let pages = fields.pages()?;
        let filter = fields.filter(|buckets| self.wide_shape(buckets))?;
        let starts = fields.numbers(pages.len())?;
        let wide = Wide::from_parts(pages, starts, self.options.page_entries, filter)?;
        if !fields.0.is_empty() {
            return None;
        }
        self.wide = wide;
        self.resize_tier1();
        Some(())
    }

    /// All pages that the partition has.
    pub fn pages(&self) -> impl Iterator<Item = PageNumber> + '_ {
        let tier2 = self.generations.iter().flat_map(|generation| &generation.pages);
        tier2.chain(self.wide.pages()).copied()
    }
}
