//! A table from page to page that is small where neighbours lead to neighbours.

/// Pages of a leaf: 2 MiB of flash with pages of 4 KiB.
const LEAF: usize = 512;
const NONE: u32 = u32::MAX;

/// For each page a number below 2^32 - 1, or [`PageMap::NONE`].
///
/// A leaf in which every page leads one further than the one before takes 16 bytes, any other one 2 KiB. So large writes of
/// neighbours, which is what a cache makes, cost next to nothing, and all others about as much as a plain table.
#[derive(Debug)]
pub(super) struct PageMap {
    leaves: Vec<Leaf>,
    len: u32,
}

#[derive(Debug, Clone)]
enum Leaf {
    /// The number of the first page; all are none if it is.
    Run(u32),
    Table(Box<[u32; LEAF]>),
}

impl PageMap {
    pub const NONE: u32 = NONE;

    /// A table of `len` pages that lead nowhere.
    pub fn new(len: u32) -> Self {
        Self {
            leaves: vec![Leaf::Run(NONE); (len as usize).div_ceil(LEAF)],
            len,
        }
    }

    /// Number of pages.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Where a page leads.
    pub fn get(&self, page: u32) -> u32 {
        debug_assert!(page < self.len);
        self.leaves[page as usize / LEAF].get(page as usize % LEAF)
    }

    /// Makes `count` pages from `page` on lead to `to`, `to + 1` and so on, or all nowhere.
    pub fn set(&mut self, page: u32, count: u32, to: u32) {
        self.replace(page, count, to, |_, _| {});
    }

    /// As [`set`](Self::set); calls `old` with where they led: stretches of neighbours, in the order of the pages, without those
    /// that led nowhere.
    pub fn replace(&mut self, page: u32, count: u32, to: u32, mut old: impl FnMut(u32, u32)) {
        debug_assert!(count <= self.len && page <= self.len - count);
        let (mut page, mut left, mut to) = (page as usize, count as usize, to);
        while left > 0 {
            let at = page % LEAF;
            let count = left.min(LEAF - at);
            self.leaves[page / LEAF].replace(at, count, to, &mut old);
            page += count;
            left -= count;
            to = further(to, count);
        }
    }
}

/// Where the page so many further leads in a run.
#[inline]
fn further(to: u32, pages: usize) -> u32 {
    if to == NONE { NONE } else { to + pages as u32 }
}

impl Leaf {
    fn get(&self, at: usize) -> u32 {
        match self {
            Leaf::Run(first) => further(*first, at),
            Leaf::Table(table) => table[at],
        }
    }

    fn replace(&mut self, at: usize, count: usize, to: u32, old: &mut impl FnMut(u32, u32)) {
        match self {
            Leaf::Run(NONE) => {}
            Leaf::Run(first) => old(further(*first, at), count as u32),
            Leaf::Table(table) => {
                for run in table[at..at + count].chunk_by(|a, b| further(*a, 1) == *b) {
                    if run[0] != NONE {
                        old(run[0], run.len() as u32);
                    }
                }
            }
        }
        if count == LEAF {
            *self = Leaf::Run(to);
            return;
        }
        let table = match self {
            Leaf::Run(first) => {
                let first = *first;
                *self = Leaf::Table(Box::new(std::array::from_fn(|at| further(first, at))));
                match self {
                    Leaf::Table(table) => table,
                    Leaf::Run(_) => return,
                }
            }
            Leaf::Table(table) => table,
        };
        for (further_by, entry) in table[at..at + count].iter_mut().enumerate() {
            *entry = further(to, further_by);
        }
        // Pages are mostly written in rising order, so that a leaf is whole when its end is.
        if at + count == LEAF && table.windows(2).all(|pair| further(pair[0], 1) == pair[1]) {
            *self = Leaf::Run(table[0]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_does_what_a_plain_table_does() {
        const LEN: usize = 5 * LEAF + 100;
        let mut map = PageMap::new(LEN as u32);
        let mut model = vec![NONE; LEN];
        let mut numbers = pumice_world::Random(3);
        let mut random = |below: usize| numbers.below(below as u64) as usize;
        for round in 0..20_000 {
            let longest = [1, 40, LEAF, LEN][round % 4];
            let page = random(LEN);
            let count = 1 + random(longest.min(LEN - page));
            // Often what makes or keeps a run.
            let to = match random(4) {
                0 => NONE,
                1 => 7000 + page as u32,
                _ => random(1_000_000) as u32,
            };
            let mut expected = Vec::new();
            for (by, slot) in model[page..page + count].iter_mut().enumerate() {
                expected.push(std::mem::replace(slot, further(to, by)));
            }
            expected.retain(|old| *old != NONE);
            let mut seen = Vec::new();
            map.replace(page as u32, count as u32, to, |first, count| {
                seen.extend(first..first + count)
            });
            assert_eq!(seen, expected);
            for page in [page, page + count - 1, random(LEN)] {
                assert_eq!(map.get(page as u32), model[page]);
            }
        }
        assert!((0..LEN).all(|page| map.get(page as u32) == model[page]));
    }

    #[test]
    fn leaves_that_are_runs_take_no_table() {
        let mut map = PageMap::new(4 * LEAF as u32);
        let tables = |map: &PageMap| {
            let leaves = map.leaves.iter();
            leaves.filter(|leaf| matches!(leaf, Leaf::Table(_))).count()
        };
        for page in 0..LEAF as u32 + 10 {
            map.set(page, 1, 5000 + page);
        }
        assert_eq!(tables(&map), 1);
        map.set(100, 1, 3);
        assert_eq!(tables(&map), 2);
        map.set(20, 4 * LEAF as u32 - 20, 0);
        assert_eq!(tables(&map), 1);
        map.set(0, 4 * LEAF as u32, PageMap::NONE);
        assert_eq!(tables(&map), 0);
    }
}
