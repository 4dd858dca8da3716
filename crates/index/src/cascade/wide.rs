//! Tier 3: the wide table, pages in the order of tags, and one filter over them.
//!
//! The rank of an entry of the filter says which page has it. Entries of mappings that are void are erased, and where they are many
//! the filter is built anew without them: that needs no I/O, since pages keep what they have.

use super::PageNumber;
use super::filter::{Filter, FilterShape, Match};

/// Bits of a cell in tier 3's filter: a stranger is found there by one in 15 at most.
pub(super) const WIDE_CELL_BITS: u32 = 4;

/// The filter is built anew when one in so many of its entries was erased: that is some ten nanoseconds for each entry.
const ERASED_SHARE: usize = 16;
/// And so many at least.
const ERASED_MIN: usize = 64;

/// Tier 3.
pub(super) struct Wide {
    pages: Vec<PageNumber>,
    /// How many entries of the filter stand before those of each page.
    starts: Vec<u32>,
    filter: Filter,
}

impl Wide {
    pub(super) fn nothing(tag_bits: u32) -> Self {
        Self {
            pages: Vec::new(),
            starts: Vec::new(),
            filter: Filter::build(
                FilterShape::new(tag_bits, 0, WIDE_CELL_BITS, 0),
                std::iter::empty(),
            ),
        }
    }

    /// The table of pages that have so many mappings each, all but the last, with an entry for each.
    pub(super) fn new(pages: Vec<PageNumber>, page_entries: usize, filter: Filter) -> Self {
        let starts = (0..filter.len()).step_by(page_entries).map(rank_u32).collect();
        Self {
            pages,
            starts,
            filter,
        }
    }

    /// The table of these parts; `None` where they do not belong together.
    pub(super) fn from_parts(
        pages: Vec<PageNumber>,
        starts: Vec<u32>,
        page_entries: usize,
        filter: Filter,
    ) -> Option<Self> {
        let table = Self {
            pages,
            starts,
            filter,
        };
        // One that is built anew must come in order.
        let is_sorted = table.filter.entries().is_sorted_by_key(|entry| entry.cell);
        (is_sorted && table.is_whole(page_entries)).then_some(table)
    }

    /// Whether each entry of the filter is of a page, which has no more than a page can have.
    pub(super) fn is_whole(&self, page_entries: usize) -> bool {
        let len = self.filter.len();
        let ends = self.starts.iter().skip(1).copied().chain([rank_u32(len)]);
        let is_page = |(start, end): (&u32, u32)| {
            end.checked_sub(*start)
                .is_some_and(|entries| entries as usize <= page_entries)
        };
        self.pages.len() == self.starts.len()
            && self.starts.first().map_or(len == 0, |first| *first == 0)
            && self.starts.iter().zip(ends).all(is_page)
    }

    pub(super) fn pages(&self) -> &[PageNumber] {
        &self.pages
    }

    pub(super) fn starts(&self) -> &[u32] {
        &self.starts
    }

    pub(super) fn filter(&self) -> &Filter {
        &self.filter
    }

    pub(super) fn into_pages(self) -> Vec<PageNumber> {
        self.pages
    }

    /// DRAM of what names pages, in bytes.
    pub(super) fn directory_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<PageNumber>() + self.starts.capacity() * size_of::<u32>()
    }

    /// The page that has the mapping of an entry.
    pub(super) fn page_of(&self, rank: usize) -> PageNumber {
        // Pages of which nothing is left start where the next one does.
        let at = self.starts.partition_point(|start| *start as usize <= rank);
        self.pages[at - 1]
    }

    /// The entries that may be of `tag` and are of this page; `None` where it is none of this table's.
    pub(super) fn matches_in(
        &self,
        tag: u64,
        number: PageNumber,
    ) -> Option<impl Iterator<Item = Match> + '_> {
        let at = self.pages.iter().position(|page| *page == number)?;
        let end = self
            .starts
            .get(at + 1)
            .map_or(self.filter.len(), |start| *start as usize);
        let ranks = self.starts[at] as usize..end;
        Some(
            self.filter
                .matches(tag)
                .filter(move |found| ranks.contains(&found.rank)),
        )
    }

    /// Takes an entry out. Whether the filter was built anew then, and takes less.
    pub(super) fn erase(&mut self, rank: usize) -> bool {
        self.filter.erase(rank);
        let erased = self.filter.len() - self.filter.alive();
        let is_due = erased >= ERASED_MIN && erased * ERASED_SHARE > self.filter.len();
        if is_due {
            self.compact();
        }
        is_due
    }

    fn compact(&mut self) {
        let mut alive = 0;
        let mut rank = 0;
        for start in &mut self.starts {
            let old = *start as usize;
            alive += (rank..old).filter(|rank| self.filter.is_alive(*rank)).count();
            rank = old;
            *start = rank_u32(alive);
        }
        self.filter = self.filter.compacted();
    }
}

fn rank_u32(rank: usize) -> u32 {
    u32::try_from(rank).expect("fewer than 2^32 entries in a partition")
}

#[cfg(test)]
mod tests {
    use super::super::filter::FilterEntry;
    use super::*;

    const TAG_BITS: u32 = 30;
    const PAGE_ENTRIES: usize = 7;

    fn table(tags: &[u64]) -> Wide {
        let shape = FilterShape::new(TAG_BITS, tags.len(), WIDE_CELL_BITS, 0);
        let cells = tags.iter().map(|tag| FilterEntry {
            cell: shape.cell(*tag),
            hint: 0,
        });
        let pages = (100..).take(tags.len().div_ceil(PAGE_ENTRIES)).collect();
        Wide::new(pages, PAGE_ENTRIES, Filter::build(shape, cells))
    }

    #[test]
    fn entries_lead_to_their_pages_however_many_were_erased_and_the_table_shrinks() {
        let tags: Vec<u64> = (0..1_000).map(|at| at * 1_000_003).collect();
        let mut wide = table(&tags);
        let before = wide.filter().dram_bytes();
        let mut is_there = vec![true; tags.len()];
        let leads_home = |wide: &Wide, at: usize| {
            let own = 100 + (at / PAGE_ENTRIES) as u32;
            let in_filter = wide
                .filter()
                .matches(tags[at])
                .any(|found| wide.page_of(found.rank) == own);
            let in_page = wide.matches_in(tags[at], own).expect("a page").next().is_some();
            assert_eq!(in_filter, in_page);
            in_filter
        };
        // All of some pages, and parts of others.
        let (mut alike, mut anew) = (0, 0);
        for at in (0..300).chain((300..1_000).step_by(3)) {
            let own = 100 + (at / PAGE_ENTRIES) as u32;
            let found: Vec<Match> = wide.matches_in(tags[at], own).expect("a page").collect();
            match found[..] {
                [found] => {
                    anew += usize::from(wide.erase(found.rank));
                    is_there[at] = false;
                }
                _ => alike += 1,
            }
        }
        assert!(alike < 50 && anew >= 5, "{alike} alike, {anew} times anew");
        for (at, is_there) in is_there.iter().enumerate() {
            assert!(leads_home(&wide, at) || !is_there, "{at} is lost");
        }
        assert!(
            (0..tags.len())
                .filter(|at| !is_there[*at] && leads_home(&wide, *at))
                .count()
                < 50
        );
        assert!(wide.filter().dram_bytes() * 4 < before * 3);
        let erased = wide.filter().len() - wide.filter().alive();
        assert!(erased * ERASED_SHARE <= wide.filter().len() || erased < ERASED_MIN);
        assert!(wide.matches_in(0, 99).is_none());
    }

    #[test]
    fn a_filter_that_is_not_in_order_makes_no_table() {
        // One bucket of 15 cells.
        let shape = FilterShape::new(TAG_BITS, 1, WIDE_CELL_BITS, 0);
        let cells = [1u64, 9].map(|cell| FilterEntry {
            cell: shape.cell((cell << TAG_BITS) / 15 + 1),
            hint: 0,
        });
        let filter = Filter::build(shape, cells.into_iter());
        let (unary, rests) = filter.parts();
        let table = |rest: u64| {
            let filter =
                Filter::from_parts(shape, 2, unary.into(), [rest].into()).expect("a filter all the same");
            Wide::from_parts(vec![5], vec![0], PAGE_ENTRIES, filter)
        };
        assert!(table(rests[0]).is_some());
        assert!(table(rests[0] >> 4 | (rests[0] & 15) << 4).is_none());
    }

    #[test]
    fn parts_that_do_not_belong_together_make_no_table() {
        let of = |pages: u32, starts: &[u32], tags: usize| {
            let tags: Vec<u64> = (0..tags as u64).collect();
            let filter = table(&tags).filter;
            Wide::from_parts((0..pages).collect(), starts.to_vec(), PAGE_ENTRIES, filter).is_some()
        };
        assert!(of(0, &[], 0) && of(2, &[0, 7], 10) && of(3, &[0, 3, 3], 10));
        assert!(!of(0, &[], 1), "entries of no page");
        assert!(!of(2, &[0], 7) && !of(1, &[1], 7));
        assert!(!of(2, &[0, 8], 10) && !of(2, &[0, 2], 10), "more than fit a page");
        assert!(!of(3, &[0, 5, 3], 10) && !of(2, &[0, 11], 10));
    }
}
