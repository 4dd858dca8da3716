//! FIFO and LRU: one queue, which evicts its oldest object. A hit changes nothing, or makes the object the newest.
//!
//! Cost: O(1) per operation and evicted object. Memory: 16 bytes per object ever seen.

use crate::exact::{ExactPolicy, Insertion, ObjectNumber};
use crate::queue::Queue;

/// An exact FIFO cache: evicts what was inserted first.
pub type Fifo = OneQueue<false>;
/// An exact LRU cache: evicts what was used least recently.
pub type Lru = OneQueue<true>;

/// Either of them.
#[derive(Debug)]
pub struct OneQueue<const RENEWS: bool> {
    queue: Queue,
}

impl<const RENEWS: bool> OneQueue<RENEWS> {
    /// An empty cache; `capacity` is in the unit of sizes.
    pub fn new(capacity: u64) -> Self {
        Self {
            queue: Queue::new(capacity),
        }
    }
}

impl<const RENEWS: bool> ExactPolicy for OneQueue<RENEWS> {
    fn name(&self) -> String {
        if RENEWS { "lru" } else { "fifo" }.into()
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
        if RENEWS {
            self.queue.renew(object)
        } else {
            self.queue.contains(object)
        }
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
