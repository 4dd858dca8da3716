//! The page-mapped translation and its garbage collection.

use super::counts::FtlCounts;
use super::options::{FtlError, FtlOptions, Shape};
use super::page_map::PageMap;
use super::partial::PartialPages;
use super::victims::Victims;
use std::collections::VecDeque;

const NONE: u32 = PageMap::NONE;
const HOST: usize = 0;
const COPIES: usize = 1;

/// A page-mapped drive with greedy garbage collection, without its data.
///
/// Every page written goes to the next place of an open superblock, and the place that held it before becomes invalid.
/// When opening a superblock leaves fewer free ones than [`FtlOptions::free_superblocks`], the closed superblock with
/// the fewest valid pages is collected: those pages are written again, and it is erased. Among equals the one that
/// came to this number first is taken. Free superblocks are used in turn.
///
/// The host's writes may be of any size. A page that a write covers in part waits for the rest of it and counts
/// once, when the host's position has left it ([`Ftl::flush`] counts those that wait); so a log that grows by small
/// records costs the pages that it fills.
///
/// Cost: constant time per page written or copied; memory see [`FtlOptions`].
#[derive(Debug)]
pub struct Ftl {
    options: FtlOptions,
    shape: Shape,
    /// Physical page of each logical page, or `NONE`.
    physical: PageMap,
    /// Logical page that was written to each physical page; valid if `physical` leads back.
    logical: PageMap,
    /// Valid pages of each superblock.
    valid: Vec<u32>,
    erases: Vec<u32>,
    free: VecDeque<u32>,
    closed: Victims,
    /// The open superblocks of the host and, with `separate_copies`, of garbage collection.
    open: [Open; 2],
    partial: PartialPages,
    /// Stretches of places that became invalid; empty but while pages are placed.
    dropped: Vec<(u32, u32)>,
    counts: FtlCounts,
}

/// A superblock that is being filled.
#[derive(Debug, Clone, Copy)]
struct Open {
    superblock: u32,
    /// Its next page, and the end of its pages; equal if it is full, or if there is none yet.
    next: u32,
    end: u32,
}

impl Ftl {
    /// A new drive, nothing written.
    ///
    /// # Errors
    /// [`FtlError`] where the options make no drive that can work.
    pub fn new(options: FtlOptions) -> Result<Self, FtlError> {
        let shape = options.shape()?;
        let none = Open {
            superblock: NONE,
            next: 0,
            end: 0,
        };
        Ok(Self {
            physical: PageMap::new(shape.logical_pages),
            logical: PageMap::new(shape.superblocks * shape.pages_per_superblock),
            valid: vec![0; shape.superblocks as usize],
            erases: vec![0; shape.superblocks as usize],
            free: (0..shape.superblocks).collect(),
            closed: Victims::new(shape.superblocks, shape.pages_per_superblock),
            open: [none; 2],
            partial: PartialPages::default(),
            dropped: Vec::new(),
            counts: FtlCounts::default(),
            options,
            shape,
        })
    }

    /// What this drive was made from.
    pub fn options(&self) -> &FtlOptions {
        &self.options
    }

    /// Logical over physical pages, as they came out of the options.
    pub fn utilisation(&self) -> f64 {
        f64::from(self.shape.logical_pages) / f64::from(self.logical.len())
    }

    /// The host writes `len` bytes at `offset`.
    ///
    /// # Panics
    /// If the range is not inside the logical bytes.
    pub fn write(&mut self, offset: u64, len: u64) {
        self.check(offset, len);
        if len == 0 {
            return;
        }
        self.counts.host_bytes += len;
        let to_write = self.partial.write(self.options.page_bytes, offset, len);
        for page in to_write.single {
            self.program(page, 1);
        }
        self.program(to_write.run.start, to_write.run.len() as u32);
    }

    /// The host no longer needs `len` bytes at `offset`: pages inside become invalid, if the drive has
    /// [`FtlOptions::trim`].
    ///
    /// # Panics
    /// If the range is not inside the logical bytes.
    pub fn trim(&mut self, offset: u64, len: u64) {
        self.check(offset, len);
        if !self.options.trim {
            return;
        }
        let page_bytes = self.options.page_bytes;
        let end = offset + len;
        let first = offset.div_ceil(page_bytes) as u32;
        // The last page may be cut short by the end of the drive.
        let end_page = if end == self.options.logical_bytes {
            self.shape.logical_pages
        } else {
            (end / page_bytes) as u32
        };
        let pages = first..end_page.max(first);
        self.partial.forget(&pages);
        let mut dropped = Vec::new();
        self.physical
            .replace(pages.start, pages.len() as u32, NONE, |place, count| {
                dropped.push((place, count))
            });
        for (place, count) in dropped {
            self.counts.trimmed_pages += u64::from(count);
            self.drop_places(place, count);
        }
    }

    /// Writes the pages that wait for the rest of them.
    pub fn flush(&mut self) {
        for page in self.partial.take() {
            self.program(page, 1);
        }
    }

    /// What was counted up to now.
    pub fn snapshot(&self) -> FtlCounts {
        self.counts
    }

    /// Pages written to flash for one page of the host since the drive was new; `None` if the host wrote none.
    pub fn device_write_amplification(&self) -> Option<f64> {
        self.counts.device_write_amplification()
    }

    /// Erases of each superblock since the drive was new: as many of each of its erase blocks.
    pub fn erases(&self) -> &[u32] {
        &self.erases
    }

    /// Counts everything again, for tests. Time in proportion to the pages.
    ///
    /// # Panics
    /// Where the books disagree.
    pub fn check_invariants(&self) {
        let mut valid = vec![0u32; self.valid.len()];
        for page in 0..self.physical.len() {
            let place = self.physical.get(page);
            if place != NONE {
                assert_eq!(self.logical.get(place), page, "place {place}");
                valid[(place / self.shape.pages_per_superblock) as usize] += 1;
            }
        }
        assert_eq!(valid, self.valid, "valid pages of superblocks");
        let mut pages_taken = 0u64;
        for superblock in 0..self.shape.superblocks {
            let free = self.free.iter().filter(|free| **free == superblock).count();
            let open = self.open.iter().find(|open| open.superblock == superblock);
            let closed = self.closed.contains(superblock);
            let states = free + usize::from(open.is_some()) + usize::from(closed);
            assert_eq!(states, 1, "superblock {superblock} in one state");
            assert!(free == 0 || valid[superblock as usize] == 0);
            let room = open.map_or(0, |open| open.end - open.next);
            if free == 0 {
                pages_taken += u64::from(self.shape.pages_per_superblock - room);
            }
        }
        let erased = self.erases.iter().map(|count| u64::from(*count)).sum::<u64>();
        assert_eq!(erased, self.counts.erases);
        let freed = erased * u64::from(self.shape.pages_per_superblock);
        assert_eq!(self.counts.flash_pages(), pages_taken + freed);
    }

    fn check(&self, offset: u64, len: u64) {
        let logical_bytes = self.options.logical_bytes;
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= logical_bytes),
            "{len} bytes at {offset} are outside of {logical_bytes} logical bytes"
        );
    }

    /// Writes `count` pages from `page` on for the host.
    fn program(&mut self, mut page: u32, mut count: u32) {
        self.counts.host_pages += u64::from(count);
        while count > 0 {
            while self.open[HOST].next == self.open[HOST].end {
                self.open_for_host();
            }
            let Open {
                superblock,
                next,
                end,
            } = self.open[HOST];
            let run = count.min(end - next);
            self.place(page, next, run);
            self.valid[superblock as usize] += run;
            self.open[HOST].next += run;
            page += run;
            count -= run;
        }
    }

    /// Maps `count` pages from `page` on to the places from `place` on.
    fn place(&mut self, page: u32, place: u32, count: u32) {
        self.logical.set(place, count, page);
        let mut dropped = std::mem::take(&mut self.dropped);
        self.physical
            .replace(page, count, place, |old, count| dropped.push((old, count)));
        for (old, count) in dropped.drain(..) {
            self.drop_places(old, count);
        }
        self.dropped = dropped;
    }

    /// `count` places from `place` on became invalid.
    fn drop_places(&mut self, mut place: u32, mut count: u32) {
        while count > 0 {
            let superblock = place / self.shape.pages_per_superblock;
            let end = (superblock + 1) * self.shape.pages_per_superblock;
            let here = count.min(end - place);
            self.invalidate(superblock, here);
            place += here;
            count -= here;
        }
    }

    /// `count` pages of a superblock became invalid.
    fn invalidate(&mut self, superblock: u32, count: u32) {
        if count > 0 {
            let valid = &mut self.valid[superblock as usize];
            *valid -= count;
            self.closed.change(superblock, *valid + count, *valid);
        }
    }

    /// Opens the next superblock for the host and collects until enough are free.
    fn open_for_host(&mut self) {
        self.open_next(HOST);
        while self.free.len() < self.shape.free_min as usize {
            self.collect();
        }
    }

    /// Closes the full superblock of `stream` and opens a free one.
    fn open_next(&mut self, stream: usize) {
        let full = self.open[stream].superblock;
        if full != NONE {
            self.closed.insert(full, self.valid[full as usize]);
        }
        let superblock = self.free.pop_front().expect(
            "one is free: collecting starts before the last is used, and one collection fills at most one",
        );
        let next = superblock * self.shape.pages_per_superblock;
        self.open[stream] = Open {
            superblock,
            next,
            end: next + self.shape.pages_per_superblock,
        };
    }

    /// Copies what is valid in the closed superblock with the fewest valid pages, and erases it.
    fn collect(&mut self) {
        let stream = if self.options.separate_copies {
            COPIES
        } else {
            HOST
        };
        let (victim, mut left) = self
            .closed
            .take_least()
            .expect("all but a few superblocks are closed");
        assert!(
            left < self.shape.pages_per_superblock,
            "there is more flash than logical pages, so that a superblock has invalid pages"
        );
        let first = victim * self.shape.pages_per_superblock;
        self.counts.copied_pages += u64::from(left);
        self.valid[victim as usize] = 0;
        for place in first.. {
            if left == 0 {
                break;
            }
            let page = self.logical.get(place);
            if self.physical.get(page) != place {
                continue;
            }
            if self.open[stream].next == self.open[stream].end {
                self.open_next(stream);
            }
            let open = &mut self.open[stream];
            self.physical.set(page, 1, open.next);
            self.logical.set(open.next, 1, page);
            self.valid[open.superblock as usize] += 1;
            open.next += 1;
            left -= 1;
        }
        self.erases[victim as usize] += 1;
        self.counts.erases += 1;
        self.free.push_back(victim);
    }
}
