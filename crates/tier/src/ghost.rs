//! The ghost queue of S3-FIFO: hashes of items that left the small queue without a second hit.
//!
//! Source: Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023. The paper keeps a FIFO of as many
//! ghosts as the main queue has objects; here each of many buckets is a FIFO of four 32-bit fingerprints, so a ghost costs
//! four bytes and no link, is found in one cache line, and is forgotten somewhat earlier or later than in one queue.

use crate::segments::Queue;

/// Remembers hashes, approximately in FIFO order.
pub struct Ghost {
    buckets: Vec<[u32; WAYS]>,
}

const WAYS: usize = 4;

impl Ghost {
    /// Room for at least `entries` hashes, four bytes each.
    pub fn new(entries: usize) -> Self {
        let buckets = entries.div_ceil(WAYS).next_power_of_two();
        Self {
            buckets: vec![[0; WAYS]; buckets],
        }
    }

    /// DRAM held, in bytes.
    pub fn dram_bytes(&self) -> usize {
        self.buckets.len() * size_of::<[u32; WAYS]>()
    }

    /// Remembers `hash`.
    pub fn insert(&mut self, hash: u64) {
        let (bucket, print) = self.place(hash);
        let ways = &mut self.buckets[bucket];
        ways.rotate_right(1);
        ways[0] = print;
    }

    /// Where a new item goes: to the main queue where it is remembered, which it is no more then.
    pub fn queue_for(&mut self, hash: u64) -> Queue {
        let (bucket, print) = self.place(hash);
        let ways = &mut self.buckets[bucket];
        match ways.iter().position(|way| *way == print) {
            Some(at) => {
                ways[at..].rotate_left(1);
                ways[WAYS - 1] = 0;
                Queue::Main
            }
            None => Queue::Small,
        }
    }

    fn place(&self, hash: u64) -> (usize, u32) {
        let mixed = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let bucket = (mixed >> 32) as usize & (self.buckets.len() - 1);
        // 0 stands for an empty way.
        (bucket, (mixed as u32).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_the_recent_and_forgets_the_old() {
        let mut ghost = Ghost::new(1024);
        (0..100_000u64).for_each(|hash| ghost.insert(hash));
        let mut remove = |hash| ghost.queue_for(hash) == Queue::Main;
        let recent = (99_900..100_000u64).filter(|hash| remove(*hash)).count();
        let old = (0..90_000u64).filter(|hash| remove(*hash)).count();
        assert!(recent > 90, "{recent} of 100 recent ones");
        assert!(old < 50, "{old} of 90,000 old ones");
        assert!(!remove(99_999), "removed above");
    }
}
