//! The flash translation layer against a model that is too simple to be wrong.

use proptest::prelude::*;
use pumice_sim::{Ftl, FtlCounts, FtlOptions};

const PAGE: u64 = 4096;

/// Page by page, everything searched for: what `Ftl` must come to.
struct Naive {
    pages: usize,
    free_min: usize,
    separate: bool,
    /// Superblocks with the logical pages written to them, in order; `None` where one became invalid.
    superblocks: Vec<Vec<Option<u64>>>,
    /// When each superblock came to its number of valid pages.
    since: Vec<u64>,
    now: u64,
    free: Vec<usize>,
    open: [Option<usize>; 2],
    erases: Vec<u32>,
    copied: u64,
}

impl Naive {
    fn new(options: &FtlOptions) -> Self {
        let superblocks = (options.physical_bytes / options.superblock_bytes()) as usize;
        let least_free = if options.separate_copies { 2 } else { 1 };
        Self {
            pages: (options.superblock_bytes() / PAGE) as usize,
            free_min: options.free_superblocks.max(least_free) as usize,
            separate: options.separate_copies,
            superblocks: vec![Vec::new(); superblocks],
            since: vec![0; superblocks],
            now: 0,
            free: (0..superblocks).collect(),
            open: [None, None],
            erases: vec![0; superblocks],
            copied: 0,
        }
    }

    fn full(&self, stream: usize) -> bool {
        self.open[stream].is_none_or(|open| self.superblocks[open].len() == self.pages)
    }

    fn open(&mut self, stream: usize) {
        self.now += 1;
        if let Some(closed) = self.open[stream] {
            self.since[closed] = self.now;
        }
        self.open[stream] = Some(self.free.remove(0));
    }

    fn drop_page(&mut self, page: u64) -> bool {
        for (superblock, places) in self.superblocks.iter_mut().enumerate() {
            if let Some(place) = places.iter_mut().find(|place| **place == Some(page)) {
                *place = None;
                self.now += 1;
                self.since[superblock] = self.now;
                return true;
            }
        }
        false
    }

    fn write(&mut self, page: u64) {
        while self.full(0) {
            self.open(0);
            while self.free.len() < self.free_min {
                self.collect();
            }
        }
        self.drop_page(page);
        self.superblocks[self.open[0].unwrap()].push(Some(page));
    }

    fn collect(&mut self) {
        let valid = |places: &Vec<Option<u64>>| places.iter().flatten().count();
        let victim = (0..self.superblocks.len())
            .filter(|superblock| !self.free.contains(superblock) && !self.open.contains(&Some(*superblock)))
            .min_by_key(|superblock| (valid(&self.superblocks[*superblock]), self.since[*superblock]))
            .unwrap();
        let stream = usize::from(self.separate);
        for page in std::mem::take(&mut self.superblocks[victim])
            .into_iter()
            .flatten()
        {
            if self.full(stream) {
                self.open(stream);
            }
            self.superblocks[self.open[stream].unwrap()].push(Some(page));
            self.copied += 1;
        }
        self.erases[victim] += 1;
        self.free.push(victim);
    }
}

#[derive(Debug, Clone)]
enum Op {
    Write(u64, u64),
    Trim(u64, u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let range = (0..1u64 << 32, 1..20u64);
    let op = prop_oneof![
        8 => range.clone().prop_map(|(at, len)| Op::Write(at, len)),
        4 => (0..1u64 << 32).prop_map(|at| Op::Write(at, 1)),
        1 => range.prop_map(|(at, len)| Op::Trim(at, len)),
    ];
    prop::collection::vec(op, 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn the_same_as_a_naive_model(
        ops in ops(),
        superblocks in 6..24u64,
        pages in 1..9u64,
        channels in 1..4u32,
        spare in 1..30u64,
        free_superblocks in 0..4u32,
        separate_copies: bool,
        trim: bool,
    ) {
        let per_superblock = pages * u64::from(channels);
        let reserved = u64::from(free_superblocks).max(1 + u64::from(separate_copies)) + u64::from(separate_copies);
        let logical = ((superblocks - reserved) * per_superblock).saturating_sub(spare).max(1);
        let options = FtlOptions {
            channels,
            free_superblocks,
            separate_copies,
            trim,
            ..FtlOptions::new(logical * PAGE, superblocks * per_superblock * PAGE, pages * PAGE)
        };
        prop_assume!(logical < (superblocks - reserved) * per_superblock);
        let mut naive = Naive::new(&options);
        let mut ftl = Ftl::new(options).unwrap();
        let (mut written, mut trimmed) = (0, 0);
        for op in ops {
            let (Op::Write(at, len) | Op::Trim(at, len)) = op;
            let first = at % logical;
            let range = first..(first + len).min(logical);
            let bytes = (range.end - range.start) * PAGE;
            if matches!(op, Op::Write(..)) {
                ftl.write(first * PAGE, bytes);
                written += range.end - range.start;
                range.for_each(|page| naive.write(page));
            } else {
                ftl.trim(first * PAGE, bytes);
                if trim {
                    trimmed += range.filter(|page| naive.drop_page(*page)).count() as u64;
                }
            }
            ftl.check_invariants();
            let expected = FtlCounts {
                host_bytes: written * PAGE,
                host_pages: written,
                copied_pages: naive.copied,
                trimmed_pages: trimmed,
                erases: naive.erases.iter().map(|count| u64::from(*count)).sum(),
            };
            prop_assert_eq!(ftl.snapshot(), expected);
            prop_assert_eq!(ftl.erases(), &naive.erases[..]);
        }
    }
}
