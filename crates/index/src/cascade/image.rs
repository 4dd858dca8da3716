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

use super::filter::{Filter, FilterShape};
use super::flash_tiers::{self, FlashTiers, GENERATION_PAGES, Generation};
use super::partition::CascadeShard;
use super::wide::{WIDE_CELL_BITS, Wide};
use super::{PAGE_ENTRIES, PageNumber};
use crate::{IndexShape, Location};

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

/// What [`CascadeShard::dump`] wrote, read back.
pub struct Image {
    shape: IndexShape,
    /// Tags and payloads.
    tier1: Vec<(u64, u64)>,
    generations: Vec<Generation>,
    wide: Wide,
}

impl Image {
    /// `None` where the bytes are no image of a partition of an index of this shape.
    pub fn read(shape: IndexShape, bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let mappings = fields.len()?;
        let entries = fields.bytes(mappings.checked_mul(shape.entry_bytes())?)?;
        let entries = entries.chunks_exact(shape.entry_bytes());
        let tier1 = entries.map(|entry| shape.table().undump(entry)).collect();
        let mut generations = Vec::new();
        for _ in 0..fields.len()? {
            let pages = fields.pages()?;
            let filter = fields.filter(|buckets| Generation::shape_of_buckets(shape.tag_bits(), buckets))?;
            generations.push(Generation::from_parts(pages, filter)?);
        }
        let pages = fields.pages()?;
        let filter =
            fields.filter(|buckets| FilterShape::new(shape.tag_bits(), buckets, WIDE_CELL_BITS, 0))?;
        let starts = fields.numbers(pages.len())?;
        let wide = Wide::from_parts(pages, starts, PAGE_ENTRIES, filter)?;
        fields.0.is_empty().then_some(Self {
            shape,
            tier1,
            generations,
            wide,
        })
    }

    /// Mappings of tier 1, tombstones included.
    pub fn mappings(&self) -> usize {
        self.tier1.len()
    }

    /// Where the mappings of tier 1 lead to.
    pub fn locations(&self) -> impl Iterator<Item = Location> + '_ {
        let places = self.tier1.iter().map(|(_, payload)| self.shape.place(*payload));
        let places = places.filter(|place| *place != 0);
        places.map(|place| self.shape.unpack_place(place))
    }

    /// All pages that it names.
    pub fn pages(&self) -> impl Iterator<Item = PageNumber> + '_ {
        flash_tiers::pages(&self.generations, &self.wide)
    }
}

impl CascadeShard {
    /// Appends the partition to `out`.
    pub fn dump(&self, out: &mut Vec<u8>) {
        push_len(out, self.tier1.len());
        self.tier1.dump(out);
        push_len(out, self.flash.generations().len());
        for generation in self.flash.generations() {
            push_table(out, generation.pages(), generation.filter());
        }
        push_table(out, self.flash.wide().pages(), self.flash.wide().filter());
        push_numbers(out, self.flash.wide().starts());
    }

    /// Makes an empty partition what [`CascadeShard::dump`] wrote. False where that is no partition, or where there is no memory for
    /// it; it is empty then.
    pub fn load(&mut self, bytes: &[u8]) -> bool {
        let loaded = self.try_load(bytes).is_some();
        if !loaded {
            // The pages that it names are not this partition's to give up.
            self.tier1.clear();
            self.flash = FlashTiers::nothing(self.shape, self.options.page_entries);
        }
        loaded
    }

    fn try_load(&mut self, bytes: &[u8]) -> Option<()> {
        let image = Image::read(self.shape, bytes)?;
        let page_entries = self.options.page_entries;
        let flash = FlashTiers::from_parts(self.shape, page_entries, image.generations, image.wide)?;
        self.tier1.load(image.tier1).ok()?;
        self.flash = flash;
        self.resize_tier1();
        Some(())
    }

    /// All pages that the partition has.
    pub fn pages(&self) -> impl Iterator<Item = PageNumber> + '_ {
        self.flash.pages()
    }
}
