//! The contract of exact policies.

/// Stands for an object. Numbers are dense: memory grows with the largest one seen.
pub type ObjectNumber = u32;

/// Object numbers are below this.
pub const MAX_OBJECTS: u32 = u32::MAX - 1;

/// What became of an object that was to be inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insertion {
    /// It is resident now.
    Inserted,
    /// It is larger than the cache takes, which is left as it was (but for an older copy, which is gone).
    Rejected,
}

/// A cache of fixed capacity that keeps the order of its objects exactly.
///
/// # Contract
///
/// Sizes and the capacity are in the same unit, bytes or objects (every size 1). A resident object keeps the size it
/// was inserted with. An insertion evicts until the new object fits, and not more. Operations take constant time, or
/// logarithmic where the policy says so, per evicted object where they evict. Not thread-safe.
///
/// # Panics
/// An implementation may panic on numbers from [`MAX_OBJECTS`] on.
pub trait ExactPolicy {
    /// Name of the policy on the command line.
    fn name(&self) -> String;

    /// The capacity, in the unit of sizes.
    fn capacity(&self) -> u64;

    /// The sum of the sizes of resident objects; never above the capacity.
    fn used(&self) -> u64;

    /// The number of resident objects.
    fn len(&self) -> usize;

    /// Whether nothing is resident.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of an object if it is resident; changes nothing.
    fn size_of(&self, object: ObjectNumber) -> Option<u64>;

    /// Looks an object up as a request does, with whatever a hit does to its place; returns whether it hit.
    fn lookup(&mut self, object: ObjectNumber) -> bool;

    /// Inserts an object as the newest, evicting others until it fits. An older copy is removed first.
    fn insert(&mut self, object: ObjectNumber, size: u64) -> Insertion;

    /// Removes an object; returns its size if it was resident.
    fn remove(&mut self, object: ObjectNumber) -> Option<u64>;

    /// Resident objects from the first to be evicted to the last.
    fn eviction_order(&self) -> impl Iterator<Item = ObjectNumber> + '_;

    /// Re-derives all counts and checks them.
    ///
    /// # Panics
    /// On a broken invariant. For tests: takes time in proportion to all objects ever seen.
    fn check_invariants(&self);
}
