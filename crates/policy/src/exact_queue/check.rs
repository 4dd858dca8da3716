//! The invariants of the tree.

use super::node::{FANOUT, LEAF, NONE, Rank};
use super::tree::Tree;

/// What a walk over a subtree has found.
#[derive(Default)]
struct Found {
    bytes: u64,
    objects: usize,
    leaves: Vec<u32>,
    inners: usize,
}

impl<V: Rank> Tree<V> {
    /// Walks the whole tree.
    ///
    /// # Panics
    /// On a broken invariant.
    pub(super) fn check_invariants(&self) {
        let mut found = Found::default();
        assert!(self.height >= 1, "an inner node over all");
        self.check_inner(self.root, NONE, self.height, &mut found);
        assert_eq!((found.bytes, found.objects), (self.bytes, self.len), "bytes, len");
        assert_eq!(self.homes.count(), self.len, "objects with a home");
        let mut listed = Vec::new();
        let (mut previous, mut at) = (NONE, self.first);
        while at != NONE {
            assert_eq!(self.leaf(at).previous, previous, "the list of leaves at {at}");
            listed.push(at);
            (previous, at) = (at, self.leaf(at).next);
        }
        assert_eq!(previous, self.last, "the last leaf");
        assert_eq!(listed, found.leaves, "leaves in the list and in the tree");
        assert!(listed.len() == 1 || listed.iter().all(|leaf| self.leaf(*leaf).len > 0));
        assert_eq!(listed.len() + self.free_leaves.len(), self.leaves.len(), "leaves");
        assert_eq!(found.inners + self.free_inners.len(), self.inners.len(), "inners");
        let values: Vec<V> = self.iter().map(|(_, _, value)| value).collect();
        assert!(values.is_sorted(), "values in order");
    }

    fn check_inner(&self, id: u32, parent: u32, level: u32, found: &mut Found) {
        let inner = self.inner(id);
        assert_eq!(inner.parent, parent, "the parent of {id}");
        assert!((1..=FANOUT).contains(&inner.len), "the fill of {id}");
        assert!(
            parent != NONE || level == 1 || inner.len > 1,
            "a root of one child"
        );
        found.inners += 1;
        for slot in 0..inner.len {
            let (child, before) = (inner.ids[slot], found.bytes);
            let first_leaf = found.leaves.len();
            if level > 1 {
                self.check_inner(child, id, level - 1, found);
            } else {
                self.check_leaf(child, id, found);
            }
            assert_eq!(found.bytes - before, inner.bytes[slot], "the bytes under {child}");
            if slot > 0 {
                let separator = inner.values[slot];
                let (below, above) = found.leaves.split_at(first_leaf);
                let below = self.leaf(*below.last().expect("a leaf below"));
                let above = self.leaf(above[0]);
                assert!(below.values[..below.len].iter().all(|value| *value <= separator));
                assert!(above.values[..above.len].iter().all(|value| *value >= separator));
            }
        }
    }

    fn check_leaf(&self, id: u32, parent: u32, found: &mut Found) {
        let leaf = self.leaf(id);
        assert_eq!(leaf.parent, parent, "the parent of leaf {id}");
        assert!(leaf.len <= LEAF, "the fill of leaf {id}");
        for object in &leaf.ids[..leaf.len] {
            assert_eq!(self.homes.get(*object), Some(id), "the home of {object}");
        }
        found.bytes += leaf.bytes_below(leaf.len);
        found.objects += leaf.len;
        found.leaves.push(id);
    }
}
