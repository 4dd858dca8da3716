//! LRU: evicts what was used least recently; a hit makes an object the newest.
//!
//! Cost: O(1) per operation and evicted object. Memory: 16 bytes per object ever seen.

use crate::exact::{ExactPolicy, Insertion, ObjectNumber};
use crate::queue::Queue;

/// An exact LRU cache.
#[derive(Debug)]
pub struct Lru {
    queue: Queue,
}

impl Lru {
    /// An empty cache; `capacity` is in the unit of sizes.
    pub fn new(capacity: u64) -> Self {
        Lru {
            queue: Queue::new(capacity),
        }
    }
}

impl ExactPolicy for Lru {
    fn name(&self) -> String {
        "lru".into()
    }

    fn capacity(&self) -> u64 {
        self.queue.capacity()
    }

    #[inline]
    fn used(&self) -> u64 {
        self.queue.used()
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    #[inline]
    fn size_of(&self, object: ObjectNumber) -> Option<u64> {
        self.queue.size_of(object)
    }

    #[inline]
    fn lookup(&mut self, object: ObjectNumber) -> bool {
        self.queue.renew(object)
    }

    #[inline]
    fn insert(&mut self, object: ObjectNumber, size: u64) -> Insertion {
        self.queue.insert(object, size)
    }

    fn remove(&mut self, object: ObjectNumber) -> Option<u64> {
        self.queue.remove(object)
    }

    fn eviction_order(&self) -> impl Iterator<Item = ObjectNumber> + '_ {
        self.queue.iter_from_oldest()
    }

    fn check_invariants(&self) {
        self.queue.check_invariants();
    }
}
