//! What a lookup has to read.

use super::PageNumber;

/// Pages that one lookup asks for, at most; of more the newest.
const PLAN_PAGES_MAX: usize = 8;

/// The pages that may have a mapping, the newest first: to be read together, and then brought to [`CascadeShard::resolve`](super::CascadeShard::resolve).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    epoch: u32,
    len: u8,
    /// How many of them are of tier 2; the others are of tier 3.
    pub(super) tier2: u8,
    /// Whether there were more.
    pub(super) is_cut: bool,
    pages: [PageNumber; PLAN_PAGES_MAX],
}

impl Plan {
    pub(super) fn empty(epoch: u32) -> Self {
        Self {
            epoch,
            len: 0,
            tier2: 0,
            is_cut: false,
            pages: [0; PLAN_PAGES_MAX],
        }
    }

    /// The pages to read, at most eight.
    pub fn pages(&self) -> &[PageNumber] {
        &self.pages[..usize::from(self.len)]
    }

    /// What is pushed from now on is of tier 3.
    pub(super) fn end_tier2(&mut self) {
        self.tier2 = self.len;
    }

    pub(super) fn push(&mut self, page: PageNumber) {
        if self.pages().contains(&page) {
            return;
        }
        self.is_cut = usize::from(self.len) == PLAN_PAGES_MAX;
        if !self.is_cut {
            self.pages[usize::from(self.len)] = page;
            self.len += 1;
        }
    }
}
