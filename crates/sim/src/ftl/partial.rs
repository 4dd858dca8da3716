//! Pages that are written in part.

use std::ops::Range;

/// Pages whose end the host has not reached yet, at most [`PartialPages::MAX`].
///
/// A log grows by records much smaller than a page. They go to the page cache first (or to the drive's buffer), and the
/// page is written once, when it is full. So a write that begins in a page where the last one ended, or behind it,
/// joins it, and the page counts when the position leaves it: when a write reaches its end, when a write begins before
/// the position, or when there are too many such pages and it is the one that waited longest.
#[derive(Debug, Default)]
pub(super) struct PartialPages {
    /// Page and position in it, the one that was written last at the end.
    pages: Vec<(u32, u64)>,
}

/// Pages to write: single ones, then a run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ToWrite {
    pub single: Vec<u32>,
    pub run: Range<u32>,
}

impl PartialPages {
    pub const MAX: usize = 16;

    /// Takes a write of at least one byte and tells what is complete now. All pages must be below 2^32.
    pub fn write(&mut self, page_bytes: u64, offset: u64, len: u64) -> ToWrite {
        let end = offset + len;
        let first = (offset / page_bytes) as u32;
        let last = ((end - 1) / page_bytes) as u32;
        let start = offset % page_bytes;
        let mut single = Vec::new();
        self.pages.retain(|(page, position)| {
            let joined = *page == first && *position <= start;
            let touched = (first..=last).contains(page);
            if touched && !joined {
                single.push(*page);
            }
            !touched
        });
        let position = end % page_bytes;
        if position == 0 {
            return ToWrite {
                single,
                run: first..last + 1,
            };
        }
        if self.pages.len() == Self::MAX {
            single.push(self.pages.remove(0).0);
        }
        self.pages.push((last, position));
        ToWrite {
            single,
            run: first..last,
        }
    }

    /// Forgets the pages in `range`.
    pub fn forget(&mut self, range: &Range<u32>) {
        self.pages.retain(|(page, _)| !range.contains(page));
    }

    /// Takes out all pages.
    pub fn take(&mut self) -> Vec<u32> {
        self.pages.drain(..).map(|(page, _)| page).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(partial: &mut PartialPages, offset: u64, len: u64) -> (Vec<u32>, Range<u32>) {
        let to_write = partial.write(100, offset, len);
        (to_write.single, to_write.run)
    }

    #[test]
    fn appends_count_a_page_when_they_leave_it() {
        let mut partial = PartialPages::default();
        assert_eq!(write(&mut partial, 200, 60), (vec![], 2..2));
        assert_eq!(write(&mut partial, 260, 39), (vec![], 2..2));
        assert_eq!(write(&mut partial, 299, 1), (vec![], 2..3));
        assert_eq!(write(&mut partial, 300, 250), (vec![], 3..5));
        assert_eq!(
            write(&mut partial, 560, 40),
            (vec![], 5..6),
            "a gap does not matter"
        );
        assert!(partial.take().is_empty());
    }

    #[test]
    fn what_begins_anew_counts_again() {
        let mut partial = PartialPages::default();
        write(&mut partial, 200, 60);
        assert_eq!(write(&mut partial, 200, 60), (vec![2], 2..2));
        assert_eq!(write(&mut partial, 200, 100), (vec![2], 2..3));
        write(&mut partial, 700, 1);
        assert_eq!(write(&mut partial, 650, 200), (vec![7], 6..8));
        assert_eq!(partial.take(), [8]);
    }

    #[test]
    fn whole_pages_never_wait() {
        let mut partial = PartialPages::default();
        assert_eq!(write(&mut partial, 300, 300), (vec![], 3..6));
        assert!(partial.take().is_empty());
    }

    #[test]
    fn the_page_that_waited_longest_gives_way() {
        let mut partial = PartialPages::default();
        for page in 0..PartialPages::MAX as u64 {
            assert_eq!(write(&mut partial, page * 100, 10).0, Vec::<u32>::new());
        }
        write(&mut partial, 10, 10);
        assert_eq!(write(&mut partial, 9900, 10).0, [1]);
        partial.forget(&(0..3));
        assert_eq!(partial.take().len(), PartialPages::MAX - 2);
    }
}
