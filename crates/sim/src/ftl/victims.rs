//! Closed superblocks by their number of valid pages.

const NONE: u32 = u32::MAX;

/// Closed superblocks in buckets by their number of valid pages, so that the one with the fewest is at hand.
///
/// Each bucket is a ring of superblocks, linked through two arrays. Among equals the one that came into the bucket
/// first is taken. `insert` and `change` take constant time; `take_least` looks through the empty buckets below,
/// which `least` passed downwards before: so constant time per page that is written or becomes invalid.
#[derive(Debug)]
pub(super) struct Victims {
    /// The first superblock of each bucket.
    first: Vec<u32>,
    next: Vec<u32>,
    previous: Vec<u32>,
    /// No bucket below this one has a superblock.
    least: usize,
}

impl Victims {
    pub fn new(superblocks: u32, pages_per_superblock: u32) -> Self {
        Self {
            first: vec![NONE; pages_per_superblock as usize + 1],
            next: vec![NONE; superblocks as usize],
            previous: vec![NONE; superblocks as usize],
            least: pages_per_superblock as usize,
        }
    }

    pub fn contains(&self, superblock: u32) -> bool {
        self.next[superblock as usize] != NONE
    }

    /// Adds a superblock that is not in yet.
    pub fn insert(&mut self, superblock: u32, valid: u32) {
        let bucket = valid as usize;
        let first = self.first[bucket];
        if first == NONE {
            self.first[bucket] = superblock;
            self.link(superblock, superblock);
        } else {
            let last = self.previous[first as usize];
            self.link(last, superblock);
            self.link(superblock, first);
        }
        self.least = self.least.min(bucket);
    }

    /// Notes that a superblock went from `before` to `now` valid pages; one that is not in stays out.
    pub fn change(&mut self, superblock: u32, before: u32, now: u32) {
        if self.contains(superblock) {
            self.remove(superblock, before);
            self.insert(superblock, now);
        }
    }

    /// Takes out a superblock with the fewest valid pages, and how many it has.
    pub fn take_least(&mut self) -> Option<(u32, u32)> {
        let bucket = (self.least..self.first.len()).find(|bucket| self.first[*bucket] != NONE)?;
        self.least = bucket;
        let superblock = self.first[bucket];
        self.remove(superblock, bucket as u32);
        Some((superblock, bucket as u32))
    }

    fn link(&mut self, left: u32, right: u32) {
        self.next[left as usize] = right;
        self.previous[right as usize] = left;
    }

    fn remove(&mut self, superblock: u32, valid: u32) {
        let (previous, next) = (self.previous[superblock as usize], self.next[superblock as usize]);
        let first = &mut self.first[valid as usize];
        if next == superblock {
            *first = NONE;
        } else {
            if *first == superblock {
                *first = next;
            }
            self.link(previous, next);
        }
        self.next[superblock as usize] = NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_comes_first_and_among_equals_the_oldest() {
        let mut victims = Victims::new(5, 8);
        for (superblock, valid) in [(0, 8), (1, 3), (2, 3), (3, 5), (4, 3)] {
            victims.insert(superblock, valid);
        }
        victims.change(3, 5, 3);
        victims.change(0, 8, 2);
        victims.change(1, 3, 4);
        let order: Vec<_> = std::iter::from_fn(|| victims.take_least()).collect();
        assert_eq!(order, [(0, 2), (2, 3), (4, 3), (3, 3), (1, 4)]);
        assert!(!victims.contains(0));
    }

    #[test]
    fn a_superblock_that_is_out_stays_out() {
        let mut victims = Victims::new(2, 4);
        victims.change(1, 4, 0);
        assert_eq!(victims.take_least(), None);
        victims.insert(1, 4);
        assert_eq!(victims.take_least(), Some((1, 4)));
        victims.change(1, 4, 3);
        assert_eq!(victims.take_least(), None);
    }
}
