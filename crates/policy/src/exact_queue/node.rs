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

/// Objects of a queue, or nodes of one kind, side by side in the order, the lowest first.
#[derive(Debug)]
pub(super) struct Node<V, const MAX: usize> {
    pub(super) parent: u32,
    /// The leaf above, and the leaf below; none of an inner node.
    pub(super) next: u32,
    pub(super) previous: u32,
    pub(super) len: usize,
    /// The objects, or the children.
    pub(super) ids: [u32; MAX],
    /// The size of each object, or the bytes of the objects in each child.
    pub(super) bytes: [u64; MAX],
    /// What each object is sorted by. Of an inner node a separator for each child: no object in this child is below, nor one in the
    /// child before it above. That of the first child means nothing: the parent has it.
    pub(super) values: [V; MAX],
}

/// Holds objects.
pub(super) type Leaf<V> = Node<V, LEAF>;
/// Holds leaves, or inner nodes.
pub(super) type Inner<V> = Node<V, FANOUT>;

impl<V: Rank, const MAX: usize> Node<V, MAX> {
    pub(super) fn new() -> Self {
        Node {
            parent: NONE,
            next: NONE,
            previous: NONE,
            len: 0,
            ids: [0; MAX],
            bytes: [0; MAX],
            values: [V::UNUSED; MAX],
        }
    }

    /// Where an object or child is that is here.
    #[inline]
    pub(super) fn index_of(&self, id: u32) -> usize {
        position_of(&self.ids[..self.len], id)
    }

    /// The bytes below this place.
    #[inline]
    pub(super) fn bytes_below(&self, index: usize) -> u64 {
        self.bytes[..index].iter().sum()
    }

    #[inline]
    pub(super) fn insert(&mut self, index: usize, id: u32, bytes: u64, value: V) {
        let len = self.len;
        self.ids.copy_within(index..len, index + 1);
        self.bytes.copy_within(index..len, index + 1);
        self.values.copy_within(index..len, index + 1);
        self.ids[index] = id;
        self.bytes[index] = bytes;
        self.values[index] = value;
        self.len += 1;
    }

    #[inline]
    pub(super) fn remove(&mut self, index: usize) {
        let len = self.len;
        self.ids.copy_within(index + 1..len, index);
        self.bytes.copy_within(index + 1..len, index);
        self.values.copy_within(index + 1..len, index);
        self.len -= 1;
    }

    /// Moves what stands here from `cut` on to the front of `upper`.
    pub(super) fn move_up(&mut self, cut: usize, upper: &mut Self) {
        let (moved, held) = (self.len - cut, upper.len);
        upper.ids.copy_within(..held, moved);
        upper.bytes.copy_within(..held, moved);
        upper.values.copy_within(..held, moved);
        upper.ids[..moved].copy_from_slice(&self.ids[cut..self.len]);
        upper.bytes[..moved].copy_from_slice(&self.bytes[cut..self.len]);
        upper.values[..moved].copy_from_slice(&self.values[cut..self.len]);
        upper.len += moved;
        self.len = cut;
    }

    /// Moves all of `upper` to the end of this node.
    pub(super) fn take_all(&mut self, upper: &mut Self) {
        let (len, moved) = (self.len, upper.len);
        self.ids[len..len + moved].copy_from_slice(&upper.ids[..moved]);
        self.bytes[len..len + moved].copy_from_slice(&upper.bytes[..moved]);
        self.values[len..len + moved].copy_from_slice(&upper.values[..moved]);
        self.len += moved;
        upper.len = 0;
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
