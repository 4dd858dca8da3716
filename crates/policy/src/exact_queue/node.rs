//! The nodes of the tree: leaves hold objects, inner nodes hold children and the bytes below each.

use std::fmt;

/// Objects in a leaf, at most: what fills size classes of the allocator in both kinds of queue; few in
/// tests of the tree, which makes them deep.
pub(super) const LEAF: usize = if cfg!(test) { 8 } else { 72 };
/// Children of an inner node, at most.
pub(super) const FANOUT: usize = if cfg!(test) { 5 } else { 64 };
/// No node.
pub(super) const NONE: u32 = u32::MAX;

/// What objects are sorted by, if by anything.
pub(super) trait Rank: Copy + PartialOrd + fmt::Debug {
    /// Fills unused places.
    const UNUSED: Self;
}

/// Relative queues: objects stand where they were put.
impl Rank for () {
    const UNUSED: Self = ();
}

/// Absolute queues: objects stand by their value.
impl Rank for f64 {
    const UNUSED: Self = 0.0;
}

/// Objects side by side in the order, the lowest first.
#[derive(Debug)]
pub(super) struct Leaf<V> {
    pub(super) parent: u32,
    /// The leaf above, and the leaf below.
    pub(super) next: u32,
    pub(super) previous: u32,
    pub(super) len: usize,
    pub(super) objects: [u32; LEAF],
    pub(super) sizes: [u64; LEAF],
    pub(super) values: [V; LEAF],
}

impl<V: Rank> Leaf<V> {
    pub(super) fn new() -> Self {
        Leaf {
            parent: NONE,
            next: NONE,
            previous: NONE,
            len: 0,
            objects: [0; LEAF],
            sizes: [0; LEAF],
            values: [V::UNUSED; LEAF],
        }
    }

    /// Where an object is that is here.
    #[inline]
    pub(super) fn index_of(&self, object: u32) -> usize {
        position_of(&self.objects[..self.len], object)
    }

    /// The bytes of the objects below this place.
    #[inline]
    pub(super) fn bytes_below(&self, index: usize) -> u64 {
        self.sizes[..index].iter().sum()
    }

    #[inline]
    pub(super) fn insert(&mut self, index: usize, object: u32, size: u64, value: V) {
        let len = self.len;
        self.objects.copy_within(index..len, index + 1);
        self.sizes.copy_within(index..len, index + 1);
        self.values.copy_within(index..len, index + 1);
        self.objects[index] = object;
        self.sizes[index] = size;
        self.values[index] = value;
        self.len += 1;
    }

    #[inline]
    pub(super) fn remove(&mut self, index: usize) {
        let len = self.len;
        self.objects.copy_within(index + 1..len, index);
        self.sizes.copy_within(index + 1..len, index);
        self.values.copy_within(index + 1..len, index);
        self.len -= 1;
    }

    /// Moves the objects from `cut` on to the front of `upper`.
    pub(super) fn move_up(&mut self, cut: usize, upper: &mut Self) {
        let (moved, held) = (self.len - cut, upper.len);
        upper.objects.copy_within(..held, moved);
        upper.sizes.copy_within(..held, moved);
        upper.values.copy_within(..held, moved);
        upper.objects[..moved].copy_from_slice(&self.objects[cut..self.len]);
        upper.sizes[..moved].copy_from_slice(&self.sizes[cut..self.len]);
        upper.values[..moved].copy_from_slice(&self.values[cut..self.len]);
        upper.len += moved;
        self.len = cut;
    }

    /// Moves all objects of `upper` to the end of this leaf.
    pub(super) fn take_all(&mut self, upper: &mut Self) {
        let (len, moved) = (self.len, upper.len);
        self.objects[len..len + moved].copy_from_slice(&upper.objects[..moved]);
        self.sizes[len..len + moved].copy_from_slice(&upper.sizes[..moved]);
        self.values[len..len + moved].copy_from_slice(&upper.values[..moved]);
        self.len += moved;
        upper.len = 0;
    }
}

/// Nodes side by side in the order, all leaves or all inner nodes.
#[derive(Debug)]
pub(super) struct Inner<V> {
    pub(super) parent: u32,
    pub(super) len: usize,
    pub(super) children: [u32; FANOUT],
    /// The bytes of the objects in each child.
    pub(super) bytes: [u64; FANOUT],
    /// A value that no object in this child is below, nor one in the child before it above. That of the first child
    /// means nothing: the parent has it.
    pub(super) separators: [V; FANOUT],
}

impl<V: Rank> Inner<V> {
    pub(super) fn new() -> Self {
        Inner {
            parent: NONE,
            len: 0,
            children: [0; FANOUT],
            bytes: [0; FANOUT],
            separators: [V::UNUSED; FANOUT],
        }
    }

    /// Where a child is that is here.
    #[inline]
    pub(super) fn slot_of(&self, child: u32) -> usize {
        position_of(&self.children[..self.len], child)
    }

    #[inline]
    pub(super) fn bytes_below(&self, slot: usize) -> u64 {
        self.bytes[..slot].iter().sum()
    }

    pub(super) fn insert(&mut self, slot: usize, child: u32, bytes: u64, separator: V) {
        let len = self.len;
        self.children.copy_within(slot..len, slot + 1);
        self.bytes.copy_within(slot..len, slot + 1);
        self.separators.copy_within(slot..len, slot + 1);
        self.children[slot] = child;
        self.bytes[slot] = bytes;
        self.separators[slot] = separator;
        self.len += 1;
    }

    pub(super) fn remove(&mut self, slot: usize) {
        let len = self.len;
        self.children.copy_within(slot + 1..len, slot);
        self.bytes.copy_within(slot + 1..len, slot);
        self.separators.copy_within(slot + 1..len, slot);
        self.len -= 1;
    }

    /// Moves the children from `cut` on to `upper`, which is empty.
    pub(super) fn move_up(&mut self, cut: usize, upper: &mut Self) {
        upper.take_range(self, cut);
        self.len = cut;
    }

    /// Moves all children of `upper` to the end of this node.
    pub(super) fn take_all(&mut self, upper: &mut Self) {
        self.take_range(upper, 0);
        upper.len = 0;
    }

    fn take_range(&mut self, from: &Self, start: usize) {
        let (len, moved) = (self.len, from.len - start);
        self.children[len..len + moved].copy_from_slice(&from.children[start..from.len]);
        self.bytes[len..len + moved].copy_from_slice(&from.bytes[start..from.len]);
        self.separators[len..len + moved].copy_from_slice(&from.separators[start..from.len]);
        self.len += moved;
    }
}

/// The place of `wanted`, which is there once; without a branch per element.
#[inline]
fn position_of(all: &[u32], wanted: u32) -> usize {
    let mut place = 0;
    for (at, found) in all.iter().enumerate() {
        place |= if *found == wanted { at as u32 } else { 0 };
    }
    debug_assert_eq!(all[place as usize], wanted);
    place as usize
}
