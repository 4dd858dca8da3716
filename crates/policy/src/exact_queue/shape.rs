//! How nodes of the tree come and go.
//!
//! Nodes are not held to a smallest fill: a full node splits, a node goes when it is empty, and one that is at most a quarter
//! full joins a neighbour of the same parent if both then fill at most three quarters.

use super::node::{FANOUT, Inner, LEAF, Leaf, NONE, Rank};
use super::tree::{Place, Tree};

impl<V: Rank> Tree<V> {
    /// Makes room at a place in a full leaf; returns where that place is now.
    ///
    /// What is inserted one beside the other fills leaves to the brim: at either end a leaf is opened for it alone, and
    /// inside one the cut is made at the place, if that leaves a quarter on each side.
    pub(super) fn split_leaf(&mut self, place: Place, value: V) -> Place {
        let lower = place.leaf;
        let added = self.take_free_leaf();
        if place.index == 0 {
            let separator = self.leaf(lower).values[0];
            self.link_leaf(self.leaf(lower).previous, added);
            let (parent, slot, bytes) = self.slot_in_parent(lower);
            // The new leaf takes the slot and its separator, the full one the slot above.
            self.inner_mut(parent).ids[slot] = added;
            self.inner_mut(parent).bytes[slot] = 0;
            self.leaf_mut(added).parent = parent;
            self.insert_child(parent, slot + 1, lower, bytes, separator, 0);
            return Place {
                leaf: added,
                index: 0,
            };
        }
        self.link_leaf(lower, added);
        let cut = match place.index {
            LEAF => LEAF,
            index => index.clamp(LEAF / 4, 3 * LEAF / 4),
        };
        let moved = self.move_objects(lower, cut, added);
        let separator = if cut == LEAF {
            value
        } else {
            self.leaf(added).values[0]
        };
        let (parent, slot, _) = self.slot_in_parent(lower);
        self.inner_mut(parent).bytes[slot] -= moved;
        self.insert_child(parent, slot + 1, added, moved, separator, 0);
        match place.index.checked_sub(cut) {
            Some(index) if index > 0 || cut == LEAF => Place { leaf: added, index },
            _ => place,
        }
    }

    /// Moves the objects of a leaf from `cut` on to the empty leaf `upper`; returns their bytes.
    fn move_objects(&mut self, lower: u32, cut: usize, upper: u32) -> u64 {
        let [from, to] = two_of(&mut self.leaves, lower, upper);
        from.move_up(cut, to);
        for object in &to.ids[..to.len] {
            self.homes.set(*object, upper);
        }
        to.bytes_below(to.len)
    }

    /// The parent of a leaf, its slot there, and its bytes.
    fn slot_in_parent(&self, leaf: u32) -> (u32, usize, u64) {
        let parent = self.leaf(leaf).parent;
        let inner = self.inner(parent);
        let slot = inner.index_of(leaf);
        (parent, slot, inner.bytes[slot])
    }

    /// Links a leaf into the list above `below`, or as the first.
    fn link_leaf(&mut self, below: u32, added: u32) {
        let above = if below == NONE {
            self.first
        } else {
            self.leaf(below).next
        };
        let leaf = self.leaf_mut(added);
        (leaf.previous, leaf.next) = (below, above);
        match below {
            NONE => self.first = added,
            below => self.leaf_mut(below).next = added,
        }
        match above {
            NONE => self.last = added,
            above => self.leaf_mut(above).previous = added,
        }
    }

    fn unlink_leaf(&mut self, id: u32) {
        let (previous, next) = (self.leaf(id).previous, self.leaf(id).next);
        match previous {
            NONE => self.first = next,
            previous => self.leaf_mut(previous).next = next,
        }
        match next {
            NONE => self.last = previous,
            next => self.leaf_mut(next).previous = previous,
        }
        self.free_leaves.push(id);
    }

    fn set_parent(&mut self, child: u32, parent: u32, level: u32) {
        if level == 0 {
            self.leaf_mut(child).parent = parent;
        } else {
            self.inner_mut(child).parent = parent;
        }
    }

    /// Makes a node the parent of its children from `slot` on, which are at `level`.
    fn adopt(&mut self, node: u32, slot: usize, level: u32) {
        for slot in slot..self.inner(node).len {
            self.set_parent(self.inner(node).ids[slot], node, level);
        }
    }

    /// Puts a child into a node, at a slot that is not the first. `level` is that of the child: 0 for a leaf. The bytes of
    /// the node in its own parent are those it had, with the child's.
    fn insert_child(&mut self, node: u32, slot: usize, child: u32, bytes: u64, separator: V, level: u32) {
        if self.inner(node).len < FANOUT {
            self.inner_mut(node).insert(slot, child, bytes, separator);
            self.set_parent(child, node, level);
            return;
        }
        let added = self.take_free_inner();
        let cut = if slot == FANOUT { FANOUT } else { FANOUT / 2 };
        let [lower, upper] = two_of(&mut self.inners, node, added);
        lower.move_up(cut, upper);
        self.adopt(added, 0, level);
        // Slot `cut` itself belongs to the lower node unless that is full: there it is not the first.
        if slot > cut || cut == FANOUT {
            self.inner_mut(added).insert(slot - cut, child, bytes, separator);
            self.set_parent(child, added, level);
        } else {
            self.inner_mut(node).insert(slot, child, bytes, separator);
            self.set_parent(child, node, level);
        }
        let added_separator = self.inner(added).values[0];
        let added_bytes = self.inner(added).bytes_below(self.inner(added).len);
        let parent = self.inner(node).parent;
        if parent == NONE {
            let node_bytes = self.inner(node).bytes_below(self.inner(node).len);
            let root = self.take_free_inner();
            let inner = self.inner_mut(root);
            inner.insert(0, node, node_bytes, V::UNUSED);
            inner.insert(1, added, added_bytes, added_separator);
            self.inner_mut(node).parent = root;
            self.inner_mut(added).parent = root;
            self.root = root;
            self.height += 1;
        } else {
            let slot = self.inner(parent).index_of(node);
            let node_bytes = self.inner(node).bytes_below(self.inner(node).len);
            self.inner_mut(parent).bytes[slot] = node_bytes;
            self.insert_child(parent, slot + 1, added, added_bytes, added_separator, level + 1);
        }
    }

    /// Takes an empty leaf out, unless it is the only one.
    pub(super) fn drop_leaf(&mut self, id: u32) {
        if self.first == self.last {
            return;
        }
        let (parent, slot, _) = self.slot_in_parent(id);
        self.unlink_leaf(id);
        self.remove_child(parent, slot, 1);
    }

    /// Joins a leaf with a neighbour under the same parent, if there is one that is empty enough.
    pub(super) fn join_leaf(&mut self, id: u32) {
        let (parent, slot, _) = self.slot_in_parent(id);
        let len = self.leaf(id).len;
        let inner = self.inner(parent);
        let Some(lower_slot) = joinable(inner, slot, |other| len + self.leaf(other).len <= 3 * LEAF / 4)
        else {
            return;
        };
        let (lower, upper) = (inner.ids[lower_slot], inner.ids[lower_slot + 1]);
        let [lower_leaf, upper_leaf] = two_of(&mut self.leaves, lower, upper);
        // The smaller part moves.
        let (stays, goes) = if upper_leaf.len <= lower_leaf.len {
            for object in &upper_leaf.ids[..upper_leaf.len] {
                self.homes.set(*object, lower);
            }
            lower_leaf.take_all(upper_leaf);
            (lower, upper)
        } else {
            for object in &lower_leaf.ids[..lower_leaf.len] {
                self.homes.set(*object, upper);
            }
            lower_leaf.move_up(0, upper_leaf);
            (upper, lower)
        };
        self.unlink_leaf(goes);
        let inner = self.inner_mut(parent);
        inner.ids[lower_slot] = stays;
        inner.bytes[lower_slot] += inner.bytes[lower_slot + 1];
        self.remove_child(parent, lower_slot + 1, 1);
    }

    /// Takes a slot out of a node at `level`; its bytes are no longer counted above, or counted in another slot.
    fn remove_child(&mut self, node: u32, slot: usize, level: u32) {
        self.inner_mut(node).remove(slot);
        let (len, parent) = (self.inner(node).len, self.inner(node).parent);
        if parent == NONE {
            while self.inner(self.root).len == 1 && self.height > 1 {
                let child = self.inner(self.root).ids[0];
                self.free_inners.push(self.root);
                self.inner_mut(child).parent = NONE;
                self.root = child;
                self.height -= 1;
            }
        } else if len == 0 {
            let slot = self.inner(parent).index_of(node);
            self.free_inners.push(node);
            self.remove_child(parent, slot, level + 1);
        } else if len <= FANOUT / 4 {
            self.join_inner(node, parent, level);
        }
    }

    /// Joins a node at `level` with a neighbour, as [`Tree::join_leaf`] does.
    fn join_inner(&mut self, node: u32, parent: u32, level: u32) {
        let inner = self.inner(parent);
        let slot = inner.index_of(node);
        let len = self.inner(node).len;
        let Some(lower_slot) = joinable(inner, slot, |other| len + self.inner(other).len <= 3 * FANOUT / 4)
        else {
            return;
        };
        let (lower, upper) = (inner.ids[lower_slot], inner.ids[lower_slot + 1]);
        let separator = inner.values[lower_slot + 1];
        let [lower_inner, upper_inner] = two_of(&mut self.inners, lower, upper);
        upper_inner.values[0] = separator;
        let adopted = lower_inner.len;
        lower_inner.take_all(upper_inner);
        self.adopt(lower, adopted, level - 1);
        self.free_inners.push(upper);
        let inner = self.inner_mut(parent);
        inner.bytes[lower_slot] += inner.bytes[lower_slot + 1];
        self.remove_child(parent, lower_slot + 1, level + 1);
    }

    fn take_free_leaf(&mut self) -> u32 {
        if let Some(id) = self.free_leaves.pop() {
            return id;
        }
        self.leaves.push(Box::new(Leaf::new()));
        // Ids fit: there are fewer leaves than objects.
        self.leaves.len() as u32 - 1
    }

    fn take_free_inner(&mut self) -> u32 {
        if let Some(id) = self.free_inners.pop() {
            let inner = self.inner_mut(id);
            (inner.len, inner.parent) = (0, NONE);
            return id;
        }
        self.inners.push(Box::new(Inner::new()));
        self.inners.len() as u32 - 1
    }
}

/// The lower slot of two neighbours to be joined: the child in `slot`, and one beside it that `fits`, the upper one first.
fn joinable<V>(parent: &Inner<V>, slot: usize, fits: impl Fn(u32) -> bool) -> Option<usize> {
    if slot + 1 < parent.len && fits(parent.ids[slot + 1]) {
        Some(slot)
    } else {
        slot.checked_sub(1).filter(|below| fits(parent.ids[*below]))
    }
}

/// Two different nodes at once.
fn two_of<N>(nodes: &mut [Box<N>], one: u32, other: u32) -> [&mut N; 2] {
    let both = nodes.get_disjoint_mut([one as usize, other as usize]);
    both.expect("two different nodes").map(|node| &mut **node)
}
