//! A B+-tree of objects in order, with the bytes under every child.
//!
//! All leaves are at the same depth, under at least one inner node. How nodes come and go is in [`super::shape`].

use super::homes::Homes;
use super::node::{Inner, LEAF, Leaf, NONE, Rank};
use crate::exact::ObjectNumber;

/// A place in a leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) leaf: u32,
    pub(super) index: usize,
}

#[derive(Debug)]
pub(super) struct Tree<V> {
    pub(super) leaves: Vec<Box<Leaf<V>>>,
    pub(super) inners: Vec<Box<Inner<V>>>,
    /// Nodes that are in no tree, for reuse.
    pub(super) free_leaves: Vec<u32>,
    pub(super) free_inners: Vec<u32>,
    pub(super) homes: Homes,
    pub(super) root: u32,
    /// Levels of inner nodes, at least 1.
    pub(super) height: u32,
    /// The leaf with the lowest objects, and that with the highest.
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) bytes: u64,
    pub(super) len: usize,
}

impl<V: Rank> Tree<V> {
    pub(super) fn new() -> Self {
        let mut leaf = Leaf::new();
        let mut root = Inner::new();
        leaf.parent = 0;
        root.insert(0, 0, 0, V::UNUSED);
        Tree {
            leaves: vec![Box::new(leaf)],
            inners: vec![Box::new(root)],
            free_leaves: Vec::new(),
            free_inners: Vec::new(),
            homes: Homes::default(),
            root: 0,
            height: 1,
            first: 0,
            last: 0,
            bytes: 0,
            len: 0,
        }
    }

    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn contains(&self, object: ObjectNumber) -> bool {
        self.homes.get(object).is_some()
    }

    #[inline]
    pub(super) fn place_of(&self, object: ObjectNumber) -> Option<Place> {
        let leaf = self.homes.get(object)?;
        Some(Place {
            leaf,
            index: self.leaf(leaf).index_of(object),
        })
    }

    #[inline]
    pub(super) fn size_at(&self, place: Place) -> u64 {
        self.leaf(place.leaf).bytes[place.index]
    }

    #[inline]
    pub(super) fn value_at(&self, place: Place) -> V {
        self.leaf(place.leaf).values[place.index]
    }

    /// The place of the lowest object.
    #[inline]
    pub(super) fn lowest(&self) -> Option<Place> {
        (self.len > 0).then_some(Place {
            leaf: self.first,
            index: 0,
        })
    }

    #[inline]
    pub(super) fn object_at(&self, place: Place) -> ObjectNumber {
        self.leaf(place.leaf).ids[place.index]
    }

    /// The place above all objects.
    #[inline]
    pub(super) fn top(&self) -> Place {
        Place {
            leaf: self.last,
            index: self.leaf(self.last).len,
        }
    }

    /// Whether the object at a place is the highest.
    #[inline]
    pub(super) fn is_top(&self, place: Place) -> bool {
        place.leaf == self.last && place.index + 1 == self.leaf(place.leaf).len
    }

    /// The bytes of all objects below a place.
    pub(super) fn bytes_below(&self, place: Place) -> u64 {
        let leaf = self.leaf(place.leaf);
        let mut below = leaf.bytes_below(place.index);
        let (mut child, mut node) = (place.leaf, leaf.parent);
        while node != NONE {
            let inner = self.inner(node);
            below += inner.bytes_below(inner.index_of(child));
            (child, node) = (node, inner.parent);
        }
        below
    }

    /// The place just above all objects whose middle is at or below a point, which is given in half bytes.
    pub(super) fn place_at_bytes(&self, point_doubled: u64) -> Place {
        let mut left = point_doubled;
        let mut node = self.root;
        for _ in 0..self.height {
            let inner = self.inner(node);
            let mut slot = 0;
            // A point at the end of a child is at the start of the next.
            while slot + 1 < inner.len && left >= 2 * inner.bytes[slot] {
                left -= 2 * inner.bytes[slot];
                slot += 1;
            }
            node = inner.ids[slot];
        }
        let leaf = self.leaf(node);
        let mut index = 0;
        while index < leaf.len && left >= leaf.bytes[index] {
            // The middle of this one is at or below the point; what is left may go below its end, and then ends the search.
            match left.checked_sub(2 * leaf.bytes[index]) {
                Some(rest) => left = rest,
                None => {
                    return Place {
                        leaf: node,
                        index: index + 1,
                    };
                }
            }
            index += 1;
        }
        Place { leaf: node, index }
    }

    /// The place just above all objects that have at most this value.
    pub(super) fn place_of_value(&self, value: V) -> Place {
        let mut node = self.root;
        for _ in 0..self.height {
            let inner = self.inner(node);
            let slot = inner.values[1..inner.len].partition_point(|separator| *separator <= value);
            node = inner.ids[slot];
        }
        let leaf = self.leaf(node);
        Place {
            leaf: node,
            index: leaf.values[..leaf.len].partition_point(|found| *found <= value),
        }
    }

    /// Puts an object that is not in the tree at a place, below what is there.
    pub(super) fn insert(&mut self, place: Place, object: ObjectNumber, size: u64, value: V) {
        let place = if self.leaf(place.leaf).len < LEAF {
            place
        } else {
            self.split_leaf(place, value)
        };
        self.leaf_mut(place.leaf).insert(place.index, object, size, value);
        self.homes.set(object, place.leaf);
        self.add_bytes(place.leaf, size);
        self.bytes += size;
        self.len += 1;
    }

    /// Puts objects that are not in the tree above all that are there, one above the other. Cost: that of a leaf for each leaf.
    pub(super) fn append(&mut self, objects: impl Iterator<Item = (ObjectNumber, u64)>, value: V) {
        // Of the objects that were put into this leaf, above it.
        let (mut leaf, mut bytes) = (self.last, 0);
        for (object, size) in objects {
            let mut place = self.top();
            if self.leaf(place.leaf).len == LEAF {
                self.add_bytes(leaf, std::mem::take(&mut bytes));
                place = self.split_leaf(place, value);
                leaf = place.leaf;
            }
            self.leaf_mut(leaf).insert(place.index, object, size, value);
            self.homes.set(object, leaf);
            bytes += size;
            self.bytes += size;
            self.len += 1;
        }
        self.add_bytes(leaf, bytes);
    }

    /// Takes the object at a place out.
    pub(super) fn remove(&mut self, place: Place) {
        let leaf = self.leaf_mut(place.leaf);
        let (object, size) = (leaf.ids[place.index], leaf.bytes[place.index]);
        leaf.remove(place.index);
        let len = leaf.len;
        self.homes.clear(object);
        self.add_bytes(place.leaf, size.wrapping_neg());
        self.bytes -= size;
        self.len -= 1;
        if len == 0 {
            self.drop_leaf(place.leaf);
        } else if len <= LEAF / 4 {
            self.join_leaf(place.leaf);
        }
    }

    /// All objects from the lowest.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ObjectNumber, u64, V)> + '_ {
        self.iter_from(Place {
            leaf: self.first,
            index: 0,
        })
    }

    /// All objects from a place upwards.
    pub(super) fn iter_from(&self, start: Place) -> impl Iterator<Item = (ObjectNumber, u64, V)> + '_ {
        let mut at = start.leaf;
        let leaves = std::iter::from_fn(move || {
            let leaf = (at != NONE).then(|| self.leaf(at))?;
            at = leaf.next;
            Some(leaf)
        });
        leaves
            .flat_map(|leaf| (0..leaf.len).map(|at| (leaf.ids[at], leaf.bytes[at], leaf.values[at])))
            .skip(start.index)
    }

    #[inline]
    pub(super) fn leaf(&self, id: u32) -> &Leaf<V> {
        &self.leaves[id as usize]
    }

    #[inline]
    pub(super) fn leaf_mut(&mut self, id: u32) -> &mut Leaf<V> {
        &mut self.leaves[id as usize]
    }

    #[inline]
    pub(super) fn inner(&self, id: u32) -> &Inner<V> {
        &self.inners[id as usize]
    }

    #[inline]
    pub(super) fn inner_mut(&mut self, id: u32) -> &mut Inner<V> {
        &mut self.inners[id as usize]
    }

    /// Adds to the bytes of a leaf in all nodes above it; wraps around, so that it can also take away.
    fn add_bytes(&mut self, leaf: u32, bytes: u64) {
        let (mut child, mut node) = (leaf, self.leaf(leaf).parent);
        while node != NONE {
            let inner = self.inner_mut(node);
            let slot = inner.index_of(child);
            inner.bytes[slot] = inner.bytes[slot].wrapping_add(bytes);
            (child, node) = (node, inner.parent);
        }
    }
}
