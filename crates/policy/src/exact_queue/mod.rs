//! An exact priority queue of objects, in bytes.
//!
//! Cost of every operation: O(log n), a few microseconds at most; no operation moves more than some nodes, whatever the size of
//! the queue. Memory: about 20 to 25 bytes per object (30 to 40 with absolute priorities), and 4 bytes for every number
//! up to the largest one seen. What objects leave behind is used again.

mod check;
mod homes;
mod node;
mod shape;
#[cfg(test)]
mod tests;
mod tree;

use crate::exact::{MAX_OBJECTS, ObjectNumber};
use crate::priority::{Hit, Policy, Priority};
use tree::Tree;

/// The bytes in a queue stay below this.
pub const MAX_QUEUE_BYTES: u64 = 1 << 62;

/// An exact priority queue: objects in one order, and at any time the bytes below each.
///
/// # Order
///
/// A queue is relative or absolute, for good.
///
/// *Relative*: an object put in at p stands with its upper end at the share p of the bytes, as near as borders between objects
/// allow: just above all those whose middle is at or below where its lower end is to be. 1 is the top, and of objects put at
/// one point into a full queue the newest is on top. [`position`](ExactQueue::position) is an object's middle. A queue
/// whose objects all enter at 1 is FIFO, and LRU if hits raise to 1.
///
/// What [`pop_min`](ExactQueue::pop_min) has made free counts as if it stood at the tail, until objects take it or
/// [`shrink_to`](ExactQueue::shrink_to) gives it up. So what stands above p has the same bytes whatever the sizes of objects: if the
/// lower end went to p, or shares were of what is left when a large object has gone, each object of another size would push some
/// of the segment above into the one below. What [`remove`](ExactQueue::remove) takes out leaves nothing behind.
///
/// *Absolute*: objects stand by value, and of equal values the one that got it last is on top, as in textbook GDSF.
///
/// # Panics
/// On a priority of the other kind or an absolute one that is not finite, on numbers from [`MAX_OBJECTS`] on, and when the
/// bytes reach [`MAX_QUEUE_BYTES`].
#[derive(Debug)]
pub struct ExactQueue {
    order: Order,
    /// Whether something has gone to make room.
    has_been_full: bool,
}

#[derive(Debug)]
enum Order {
    Relative {
        tree: Tree<()>,
        /// Its bytes, and those that are free.
        filled: u64,
    },
    Absolute {
        tree: Tree<f64>,
        /// The lowest priority that was in the queue when it last changed, or a higher one before.
        lowest: f64,
    },
}

/// Runs the same code on the tree of either kind.
macro_rules! on_tree {
    ($queue:expr, $tree:ident => $code:expr) => {
        match $queue {
            Order::Relative { tree: $tree, .. } => $code,
            Order::Absolute { tree: $tree, .. } => $code,
        }
    };
}

impl ExactQueue {
    /// An empty queue for relative priorities.
    pub fn relative() -> Self {
        ExactQueue {
            order: Order::Relative {
                tree: Tree::new(),
                filled: 0,
            },
            has_been_full: false,
        }
    }

    /// An empty queue for absolute priorities.
    pub fn absolute() -> Self {
        ExactQueue {
            order: Order::Absolute {
                tree: Tree::new(),
                lowest: 0.0,
            },
            has_been_full: false,
        }
    }

    /// An empty queue for the priorities of `policy`.
    pub fn for_policy(policy: &dyn Policy) -> Self {
        if policy.is_absolute() {
            Self::absolute()
        } else {
            Self::relative()
        }
    }

    /// The sum of the sizes.
    #[inline]
    pub fn used(&self) -> u64 {
        on_tree!(&self.order, tree => tree.bytes())
    }

    /// The number of objects.
    pub fn len(&self) -> usize {
        on_tree!(&self.order, tree => tree.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether an object is there.
    #[inline]
    pub fn contains(&self, object: ObjectNumber) -> bool {
        on_tree!(&self.order, tree => tree.contains(object))
    }

    /// The size of an object that is there.
    pub fn size_of(&self, object: ObjectNumber) -> Option<u64> {
        on_tree!(&self.order, tree => tree.place_of(object).map(|place| tree.size_at(place)))
    }

    /// The value of an object that is there, in an absolute queue.
    pub fn value_of(&self, object: ObjectNumber) -> Option<f64> {
        match &self.order {
            Order::Relative { .. } => None,
            Order::Absolute { tree, .. } => tree.place_of(object).map(|place| tree.value_at(place)),
        }
    }

    /// Where an object stands, in [0, 1]: the bytes below it and half its own, over all bytes; in a relative queue with those
    /// that are free.
    pub fn position(&self, object: ObjectNumber) -> Option<f64> {
        let bytes = match &self.order {
            Order::Relative { filled, .. } => *filled,
            Order::Absolute { tree, .. } => tree.bytes(),
        };
        on_tree!(&self.order, tree => {
            let place = tree.place_of(object)?;
            Some(position(tree, place, bytes))
        })
    }

    /// Shares are of at most so many bytes from now on, or of what the queue holds if that is more: for who has less room than before, or
    /// lets objects go for another reason than room.
    pub fn shrink_to(&mut self, bytes: u64) {
        if let Order::Relative { tree, filled, .. } = &mut self.order {
            *filled = (*filled).min(bytes.max(tree.bytes()));
        }
    }

    /// Whether something has gone to make room. In an absolute queue it makes no difference.
    pub fn has_been_full(&self) -> bool {
        self.has_been_full
    }

    /// Takes up a queue that had been full, before its objects are put in again.
    pub fn note_full(&mut self) {
        self.has_been_full = true;
    }

    /// The lowest absolute priority in the queue, or the highest that it has had where that was higher; never falls. 0 in
    /// a relative queue, and in one that has had nothing.
    #[inline]
    pub fn lowest(&self) -> f64 {
        match &self.order {
            Order::Relative { .. } => 0.0,
            Order::Absolute { tree, lowest } => lowest_now(tree, *lowest),
        }
    }

    /// Puts in an object that is not there.
    ///
    /// # Panics
    /// If it is there.
    pub fn insert(&mut self, object: ObjectNumber, size: u64, priority: Priority) {
        assert!(object < MAX_OBJECTS, "object number {object} is out of range");
        assert!(!self.contains(object), "object {object} is in the queue");
        assert!(
            size < MAX_QUEUE_BYTES - self.used(),
            "the queue has {MAX_QUEUE_BYTES} bytes"
        );
        match (&mut self.order, priority) {
            (Order::Relative { tree, filled, .. }, Priority::Relative(share)) => {
                *filled = (tree.bytes() + size).max(*filled);
                insert_relative(tree, *filled, object, size, share);
            }
            (Order::Absolute { tree, lowest }, Priority::Absolute(value)) => {
                assert!(value.is_finite(), "an absolute priority is {value}");
                *lowest = lowest_now(tree, *lowest);
                tree.insert(tree.place_of_value(value), object, size, value);
            }
            _ => wrong_kind(priority),
        }
    }

    /// Puts objects that are not there at the top of a relative queue, one above the other.
    ///
    /// # Panics
    /// If one is there, or the queue is absolute.
    pub fn append(&mut self, objects: &[(ObjectNumber, u64)]) {
        let sizes: u64 = objects.iter().map(|(_, size)| size).sum();
        assert!(
            sizes < MAX_QUEUE_BYTES - self.used(),
            "the queue has {MAX_QUEUE_BYTES} bytes"
        );
        for (object, _) in objects {
            assert!(*object < MAX_OBJECTS, "object number {object} is out of range");
            assert!(!self.contains(*object), "object {object} is in the queue");
        }
        let Order::Relative { tree, filled } = &mut self.order else {
            wrong_kind(Priority::Relative(1.0))
        };
        *filled = (tree.bytes() + sizes).max(*filled);
        tree.append(objects.iter().copied(), ());
    }

    /// Puts in a new object: as [`insert`](ExactQueue::insert), but with a relative priority at the top until the queue has been full.
    ///
    /// # Panics
    /// As [`insert`](ExactQueue::insert).
    pub fn insert_new(&mut self, object: ObjectNumber, size: u64, priority: Priority) {
        let priority = if self.has_been_full {
            priority
        } else {
            priority.while_filling()
        };
        self.insert(object, size, priority);
    }

    /// Raises an object that is there to a priority; does nothing if that is not above where it stands.
    ///
    /// In a relative queue the place is found as if the object were new. In an absolute one, the value it has already puts it
    /// above its equals.
    pub fn increase(&mut self, object: ObjectNumber, priority: Priority) {
        match &mut self.order {
            Order::Relative { tree, filled, .. } => {
                let Some(place) = tree.place_of(object) else {
                    return;
                };
                raise_relative(tree, *filled, object, place, priority);
            }
            Order::Absolute { tree, lowest } => {
                let Some(place) = tree.place_of(object) else {
                    return;
                };
                raise_absolute(tree, lowest, object, place, priority);
            }
        }
    }

    /// Does what `policy` says to an object that is hit; returns whether it is there. `accesses` as in [`Hit::accesses`]. With
    /// `part_of` it is part of an object of that size, else an object by itself.
    pub fn hit(
        &mut self,
        object: ObjectNumber,
        accesses: u32,
        part_of: Option<u64>,
        policy: &dyn Policy,
    ) -> bool {
        match &mut self.order {
            Order::Relative { tree, filled, .. } => {
                let Some(place) = tree.place_of(object) else {
                    return false;
                };
                let hit = Hit {
                    position: position(tree, place, *filled),
                    accesses,
                    size: part_of.unwrap_or(tree.size_at(place)).max(1),
                    lowest: 0.0,
                };
                if let Some(priority) = policy.on_hit(&hit) {
                    raise_relative(tree, *filled, object, place, priority);
                }
            }
            Order::Absolute { tree, lowest } => {
                let Some(place) = tree.place_of(object) else {
                    return false;
                };
                let hit = Hit {
                    position: position(tree, place, tree.bytes()),
                    accesses,
                    size: part_of.unwrap_or(tree.size_at(place)).max(1),
                    lowest: lowest_now(tree, *lowest),
                };
                if let Some(priority) = policy.on_hit(&hit) {
                    raise_absolute(tree, lowest, object, place, priority);
                }
            }
        }
        true
    }

    /// Takes an object out; returns its size if it was there.
    pub fn remove(&mut self, object: ObjectNumber) -> Option<u64> {
        self.note_lowest();
        let size = on_tree!(&mut self.order, tree => {
            let place = tree.place_of(object)?;
            let size = tree.size_at(place);
            tree.remove(place);
            size
        });
        if let Order::Relative { filled, .. } = &mut self.order {
            *filled -= size;
        }
        Some(size)
    }

    /// The lowest object.
    pub fn min(&self) -> Option<ObjectNumber> {
        on_tree!(&self.order, tree => tree.lowest().map(|place| tree.object_at(place)))
    }

    /// Takes the lowest object out, to make room.
    pub fn pop_min(&mut self) -> Option<(ObjectNumber, u64)> {
        self.note_lowest();
        self.note_full();
        on_tree!(&mut self.order, tree => {
            let place = tree.lowest()?;
            let popped = (tree.object_at(place), tree.size_at(place));
            tree.remove(place);
            Some(popped)
        })
    }

    /// Objects with their sizes, from the lowest.
    pub fn iter(&self) -> Box<dyn Iterator<Item = (ObjectNumber, u64)> + '_> {
        on_tree!(&self.order, tree => Box::new(tree.iter().map(|(object, size, _)| (object, size))))
    }

    /// All objects and their sizes, from the one that `below` bytes of others stand below, upwards.
    pub fn iter_from(&self, below: u64) -> Box<dyn Iterator<Item = (ObjectNumber, u64)> + '_> {
        on_tree!(&self.order, tree => {
            let start = tree.place_at_bytes(below.saturating_mul(2));
            Box::new(tree.iter_from(start).map(|(object, size, _)| (object, size)))
        })
    }

    /// Re-derives all counts and checks them.
    ///
    /// # Panics
    /// On a broken invariant. For tests.
    pub fn check_invariants(&self) {
        on_tree!(&self.order, tree => tree.check_invariants());
    }

    #[inline]
    fn note_lowest(&mut self) {
        if let Order::Absolute { tree, lowest } = &mut self.order {
            *lowest = lowest_now(tree, *lowest);
        }
    }
}

fn lowest_now(tree: &Tree<f64>, before: f64) -> f64 {
    tree.lowest()
        .map_or(before, |place| tree.value_at(place).max(before))
}

/// Of an object among so many bytes, of which those that nothing has are below all.
#[inline]
fn position<V: node::Rank>(tree: &Tree<V>, place: tree::Place, bytes: u64) -> f64 {
    let below = bytes - tree.bytes() + tree.bytes_below(place);
    match bytes {
        0 => 0.0,
        bytes => (2 * below + tree.size_at(place)) as f64 / (2 * bytes) as f64,
    }
}

/// Puts in an object that is not there; it fits into `filled`.
fn insert_relative(tree: &mut Tree<()>, filled: u64, object: ObjectNumber, size: u64, share: f64) {
    let place = match doubled_point(share, filled, tree.bytes() + size, size) {
        None => tree.top(),
        Some(point) => tree.place_at_bytes(point),
    };
    tree.insert(place, object, size, ());
}

fn raise_relative(
    tree: &mut Tree<()>,
    filled: u64,
    object: ObjectNumber,
    place: tree::Place,
    priority: Priority,
) {
    let Priority::Relative(share) = priority else {
        wrong_kind(priority)
    };
    let (below, size) = (tree.bytes_below(place), tree.size_at(place));
    // From a point at or above its lower end the object cannot fall: all below it have their middles at or below the point.
    let point = doubled_point(share, filled, tree.bytes(), size);
    if point.is_none_or(|point| point >= 2 * below) && !tree.is_top(place) {
        tree.remove(place);
        insert_relative(tree, filled, object, size, share);
    }
}

fn raise_absolute(
    tree: &mut Tree<f64>,
    lowest: &mut f64,
    object: ObjectNumber,
    place: tree::Place,
    priority: Priority,
) {
    let Priority::Absolute(value) = priority else {
        wrong_kind(priority)
    };
    assert!(value.is_finite(), "an absolute priority is {value}");
    if value < tree.value_at(place) {
        return;
    }
    *lowest = lowest_now(tree, *lowest);
    let size = tree.size_at(place);
    tree.remove(place);
    tree.insert(tree.place_of_value(value), object, size, value);
}

/// Where the lower end of an object of `size` is to be, in half bytes above the tail's end: its upper end is at the share of
/// `filled`, of which all but `bytes` is below the tail's end. `None`: at the top.
#[inline]
fn doubled_point(share: f64, filled: u64, bytes: u64, size: u64) -> Option<u64> {
    (share < 1.0).then(|| ((share * (2 * filled) as f64) as u64).saturating_sub(2 * (filled - bytes + size)))
}

#[cold]
fn wrong_kind(priority: Priority) -> ! {
    panic!("{priority:?} in a queue of the other kind")
}
