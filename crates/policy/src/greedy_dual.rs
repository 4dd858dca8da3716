//! Textbook Greedy-Dual-Size-Frequency, the baseline beside the twins of gdsf-L: frequency without a cap.
//!
//! The n-th access to an object of s bytes gives it the value L + n / s, where L is the value of the object evicted last (0
//! before); the lowest value is evicted, and of equal values the one used least recently. A new object is in the queue when
//! room is made for it, and is itself evicted if its value is the lowest. A twin of gdsf-L differs in three ways: n stops at
//! L, it counts from the lowest value in the queue, evicted or not, as RIPQ does, and it makes room first, so that a new object
//! always stays.
//!
//! Defined as in libCacheSim's `GDSF`, its scale of a million included, so that rounding is the same.
//!
//! Cost: O(log n) per operation and evicted object.

use crate::exact::{ExactPolicy, Insertion, ObjectNumber};
use crate::exact_queue::ExactQueue;
use crate::priority::Priority;

const SCALE: f64 = 1.0e6;

/// An exact GDSF cache, in its textbook form.
#[derive(Debug)]
pub struct GreedyDual {
    queue: ExactQueue,
    capacity: u64,
    /// The value of the object evicted last.
    evicted: f64,
    /// Accesses to every object since it was inserted.
    accesses: Vec<u32>,
}

impl GreedyDual {
    /// An empty cache; `capacity` is in the unit of sizes.
    pub fn new(capacity: u64) -> Self {
        GreedyDual {
            queue: ExactQueue::absolute(),
            capacity,
            evicted: 0.0,
            accesses: Vec::new(),
        }
    }

    fn value(&self, accesses: u32, size: u64) -> Priority {
        Priority::Absolute(self.evicted + f64::from(accesses) * SCALE / size.max(1) as f64)
    }
}

impl ExactPolicy for GreedyDual {
    fn name(&self) -> String {
        "gdsf".into()
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self) -> u64 {
        self.queue.used()
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    fn size_of(&self, object: ObjectNumber) -> Option<u64> {
        self.queue.size_of(object)
    }

    fn lookup(&mut self, object: ObjectNumber) -> bool {
        let Some(size) = self.queue.size_of(object) else {
            return false;
        };
        let accesses = self.accesses[object as usize].saturating_add(1);
        self.accesses[object as usize] = accesses;
        self.queue.increase(object, self.value(accesses, size));
        true
    }

    fn insert(&mut self, object: ObjectNumber, size: u64) -> Insertion {
        self.queue.remove(object);
        if size > self.capacity {
            return Insertion::Rejected;
        }
        if object as usize >= self.accesses.len() {
            self.accesses.resize(object as usize + 1, 0);
        }
        self.accesses[object as usize] = 1;
        self.queue.insert(object, size, self.value(1, size));
        while self.queue.used() > self.capacity {
            let lowest = self.queue.min().and_then(|lowest| self.queue.value_of(lowest));
            self.evicted = lowest.unwrap_or(self.evicted);
            self.queue.pop_min();
        }
        Insertion::Inserted
    }

    fn remove(&mut self, object: ObjectNumber) -> Option<u64> {
        self.queue.remove(object)
    }

    fn eviction_order(&self) -> impl Iterator<Item = ObjectNumber> + '_ {
        self.queue.iter().map(|(object, _)| object)
    }

    fn check_invariants(&self) {
        self.queue.check_invariants();
        let (used, capacity) = (self.used(), self.capacity);
        assert!(used <= capacity, "{used} used of {capacity}");
    }
}
