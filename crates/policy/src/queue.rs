//! The objects of a cache in one order, from the newest to the oldest.

use crate::exact::{Insertion, MAX_OBJECTS, ObjectNumber};

/// Marks a node that is not linked.
const ABSENT: u32 = u32::MAX;
/// The node that closes the ring: its `older` is the newest object, its `newer` the oldest.
const ENDS: usize = 0;

/// Links of one object. 16 bytes, so that four share a cache line: objects are numbered in order of first use, and
/// neighbours in that order are often used together again.
#[derive(Debug, Clone, Copy)]
struct Node {
    newer: u32,
    older: u32,
    size: u64,
}

const UNLINKED: Node = Node {
    newer: ABSENT,
    older: ABSENT,
    size: 0,
};

/// A doubly linked ring of objects with sizes and a capacity. Object `n` is node `n + 1`.
///
/// Invariants: `used` is the sum of the sizes of linked nodes and at most `capacity`; `len` is their number; a node that
/// is not linked has both links `ABSENT` and size 0.
#[derive(Debug)]
pub(crate) struct Queue {
    nodes: Vec<Node>,
    capacity: u64,
    used: u64,
    len: usize,
}

impl Queue {
    pub(crate) fn new(capacity: u64) -> Self {
        Queue {
            nodes: vec![Node {
                newer: 0,
                older: 0,
                size: 0,
            }],
            capacity,
            used: 0,
            len: 0,
        }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The size of an object if it is linked.
    #[inline]
    pub(crate) fn size_of(&self, object: ObjectNumber) -> Option<u64> {
        let node = self.nodes.get(node_of(object))?;
        (node.older != ABSENT).then_some(node.size)
    }

    /// Whether an object is linked.
    #[inline]
    pub(crate) fn contains(&self, object: ObjectNumber) -> bool {
        self.nodes
            .get(node_of(object))
            .is_some_and(|node| node.older != ABSENT)
    }

    /// Makes a linked object the newest; returns whether it was linked.
    #[inline]
    pub(crate) fn renew(&mut self, object: ObjectNumber) -> bool {
        let index = node_of(object);
        let Some(&node) = self.nodes.get(index) else {
            return false;
        };
        if node.older == ABSENT {
            return false;
        }
        // The newest object, which is hit most often of all, is where it belongs.
        if node.newer as usize != ENDS {
            self.unlink(node);
            self.link_newest(index, node.size);
        }
        true
    }

    /// Links an object as the newest, removing the oldest until it fits.
    #[inline]
    pub(crate) fn insert(&mut self, object: ObjectNumber, size: u64) -> Insertion {
        assert!(object < MAX_OBJECTS, "object number {object} is out of range");
        let index = node_of(object);
        if index >= self.nodes.len() {
            self.grow(index);
        }
        if self.nodes[index].older != ABSENT {
            self.remove(object);
        }
        if size > self.capacity {
            return Insertion::Rejected;
        }
        while self.capacity - self.used < size {
            let oldest = self.nodes[ENDS].newer;
            // Cannot be the end of the ring: with nothing linked, `used` is 0 and the object fits.
            debug_assert_ne!(oldest as usize, ENDS);
            self.remove_node(oldest as usize);
        }
        self.link_newest(index, size);
        self.used += size;
        self.len += 1;
        Insertion::Inserted
    }

    /// Unlinks an object; returns its size if it was linked.
    pub(crate) fn remove(&mut self, object: ObjectNumber) -> Option<u64> {
        self.contains(object).then(|| self.remove_node(node_of(object)))
    }

    /// Objects from the oldest to the newest.
    pub(crate) fn iter_from_oldest(&self) -> impl Iterator<Item = ObjectNumber> + '_ {
        let mut at = self.nodes[ENDS].newer;
        std::iter::from_fn(move || {
            let object = at.checked_sub(1)?;
            at = self.nodes[at as usize].newer;
            Some(object)
        })
    }

    /// Checks the invariants; panics on a broken one.
    pub(crate) fn check_invariants(&self) {
        let (mut used, mut len, mut newer) = (0, 0, ENDS);
        loop {
            let at = self.nodes[newer].older as usize;
            assert_eq!(
                self.nodes[at].newer as usize, newer,
                "links of node {at} disagree"
            );
            if at == ENDS {
                break;
            }
            used += self.nodes[at].size;
            len += 1;
            assert!(len <= self.nodes.len(), "the ring does not close");
            newer = at;
        }
        assert_eq!((used, len), (self.used, self.len), "used, len");
        assert!(used <= self.capacity, "{used} used of {}", self.capacity);
        let unlinked = self
            .nodes
            .iter()
            .filter(|n| n.older == ABSENT && n.newer == ABSENT && n.size == 0)
            .count();
        assert_eq!(
            unlinked + len + 1,
            self.nodes.len(),
            "nodes neither linked nor clean"
        );
    }

    #[inline]
    fn remove_node(&mut self, index: usize) -> u64 {
        let node = std::mem::replace(&mut self.nodes[index], UNLINKED);
        self.unlink(node);
        self.used -= node.size;
        self.len -= 1;
        node.size
    }

    /// Joins the neighbours of a node.
    #[inline]
    fn unlink(&mut self, node: Node) {
        self.nodes[node.newer as usize].older = node.older;
        self.nodes[node.older as usize].newer = node.newer;
    }

    #[inline]
    fn link_newest(&mut self, index: usize, size: u64) {
        let second = self.nodes[ENDS].older;
        // Indexes fit: `MAX_OBJECTS` is below `u32::MAX`.
        let link = index as u32;
        self.nodes[index] = Node {
            newer: ENDS as u32,
            older: second,
            size,
        };
        self.nodes[second as usize].newer = link;
        self.nodes[ENDS].older = link;
    }

    #[cold]
    fn grow(&mut self, index: usize) {
        self.nodes.resize(index + 1, UNLINKED);
    }
}

#[inline]
fn node_of(object: ObjectNumber) -> usize {
    object as usize + 1
}
