//! The exact twin: a policy on an exact queue with a capacity.
//!
//! Room is made before a new object gets its priority. While none has to be made, new objects go to the top
//! ([`Priority::while_filling`](crate::Priority::while_filling)). Cost: O(log n) per operation and evicted object. Memory: that of
//! the queue, and a byte for every number up to the largest one seen where the policy counts accesses.

use crate::exact::{ExactPolicy, Insertion, ObjectNumber};
use crate::exact_queue::ExactQueue;
use crate::priority::Policy;

/// A policy on an [`ExactQueue`].
#[derive(Debug)]
pub struct Twin {
    policy: Box<dyn Policy>,
    queue: ExactQueue,
    capacity: u64,
    accesses_max: u8,
    /// Accesses since insertion, up to `accesses_max`; empty if that is 1.
    accesses: Vec<u8>,
}

impl Twin {
    /// An empty cache; `capacity` is in the unit of sizes.
    pub fn new(policy: Box<dyn Policy>, capacity: u64) -> Self {
        let queue = ExactQueue::for_policy(policy.as_ref());
        let accesses_max = u8::try_from(policy.accesses_max()).unwrap_or(u8::MAX);
        Twin {
            policy,
            queue,
            capacity,
            accesses_max,
            accesses: Vec::new(),
        }
    }

    /// The queue.
    pub fn queue(&self) -> &ExactQueue {
        &self.queue
    }

    /// Sets the accesses of an object to 1.
    #[inline]
    fn start_counting(&mut self, object: ObjectNumber) {
        if self.accesses_max > 1 {
            let at = object as usize;
            if at >= self.accesses.len() {
                self.accesses.resize(at + 1, 0);
            }
            self.accesses[at] = 1;
        }
    }

    /// Counts an access to a resident object.
    #[inline]
    fn count(&mut self, object: ObjectNumber) -> u32 {
        match self.accesses.get_mut(object as usize) {
            Some(accesses) => {
                *accesses = accesses.saturating_add(1).min(self.accesses_max);
                u32::from(*accesses)
            }
            None => 1,
        }
    }
}

impl ExactPolicy for Twin {
    fn name(&self) -> String {
        self.policy.name()
    }

    fn capacity(&self) -> u64 {
        self.capacity
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
        if !self.queue.contains(object) {
            return false;
        }
        let accesses = self.count(object);
        self.queue.hit(object, accesses, None, self.policy.as_ref())
    }

    fn insert(&mut self, object: ObjectNumber, size: u64) -> Insertion {
        self.queue.remove(object);
        if size > self.capacity {
            return Insertion::Rejected;
        }
        while self.capacity - self.queue.used() < size {
            self.queue.pop_min();
        }
        let priority = self.policy.on_insert(size.max(1), self.queue.lowest());
        self.queue.insert_new(object, size, priority);
        self.start_counting(object);
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
