//! Textbook FIFO, LRU and segmented LRU, the baselines beside the twins: L lists of equal capacity, one for FIFO and LRU.
//!
//! Of FIFO a hit changes nothing. Else it takes an object to the newest end of the next list up, or of its own if that is the
//! top; what a list has too much then goes, oldest first, to the newest end of the list below, and out of the cache from the
//! lowest. A new object goes to the lowest list that has room for it, so the upper lists fill with what was never hit until they
//! are full; where none has, the oldest of the lowest list that is not empty are evicted, and it goes to the lowest. It is
//! rejected if it is larger than a list. The lowest list may so hold more than its share, until something is moved down into it.
//!
//! Defined as in libCacheSim's `SLRU` with `n-seg` = L; LRU is that with one list. A twin of slru-L differs: its segments have no borders of their own, new
//! objects never go above the lowest of them once the cache has been full, and an object may be as large as the cache.
//!
//! Cost: O(1) per operation and moved object. Memory: 24 bytes per object ever seen.

use crate::exact::{ExactPolicy, Insertion, ObjectNumber};

/// Marks a node that is in no list.
const ABSENT: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Node {
    newer: u32,
    older: u32,
    size: u64,
    list: u32,
}

const UNLINKED: Node = Node {
    newer: ABSENT,
    older: ABSENT,
    size: 0,
    list: 0,
};

/// An exact cache of lists, in its textbook form: FIFO, LRU or SLRU.
///
/// Node `list` closes the ring of a list: its `older` is the newest object, its `newer` the oldest. Object `n` is the n-th node
/// after these.
#[derive(Debug)]
pub struct Lists {
    name: String,
    /// Whether a hit makes an object the newest, of the list above if there is one.
    raises: bool,
    nodes: Vec<Node>,
    /// The bytes in every list, the lowest first.
    bytes: Vec<u64>,
    list_capacity: u64,
    capacity: u64,
    used: u64,
    len: usize,
}

impl Lists {
    /// An empty FIFO cache: evicts what was inserted first. `capacity` is in the unit of sizes.
    pub fn fifo(capacity: u64) -> Self {
        Self::new("fifo".into(), false, 1, capacity)
    }

    /// An empty LRU cache: evicts what was used least recently. `capacity` as above.
    pub fn lru(capacity: u64) -> Self {
        Self::new("lru".into(), true, 1, capacity)
    }

    /// An empty SLRU cache with so many lists, at least one. `capacity` as above.
    pub fn slru(lists: u32, capacity: u64) -> Self {
        let lists = lists.max(1);
        Self::new(format!("slru-list-{lists}"), true, lists, capacity)
    }

    fn new(name: String, raises: bool, lists: u32, capacity: u64) -> Self {
        let ends = (0..lists).map(|list| Node {
            newer: list,
            older: list,
            size: 0,
            list,
        });
        Lists {
            name,
            raises,
            nodes: ends.collect(),
            bytes: vec![0; lists as usize],
            list_capacity: capacity / u64::from(lists),
            capacity,
            used: 0,
            len: 0,
        }
    }

    fn lists(&self) -> usize {
        self.bytes.len()
    }

    fn node_of(&self, object: ObjectNumber) -> usize {
        object as usize + self.lists()
    }

    fn resident(&self, object: ObjectNumber) -> Option<usize> {
        let index = self.node_of(object);
        let node = self.nodes.get(index)?;
        (node.older != ABSENT).then_some(index)
    }

    fn unlink(&mut self, index: usize) -> Node {
        let node = std::mem::replace(&mut self.nodes[index], UNLINKED);
        self.nodes[node.newer as usize].older = node.older;
        self.nodes[node.older as usize].newer = node.newer;
        self.bytes[node.list as usize] -= node.size;
        node
    }

    fn link_newest(&mut self, list: usize, index: usize, size: u64) {
        let second = self.nodes[list].older;
        // Indexes and lists fit: object numbers and lists together are below 2^32.
        self.nodes[index] = Node {
            newer: list as u32,
            older: second,
            size,
            list: list as u32,
        };
        self.nodes[second as usize].newer = index as u32;
        self.nodes[list].older = index as u32;
        self.bytes[list] += size;
    }

    fn take_out(&mut self, index: usize) -> u64 {
        let size = self.unlink(index).size;
        self.used -= size;
        self.len -= 1;
        size
    }

    /// Evicts the oldest object of the lowest list that is not empty.
    fn evict(&mut self) {
        let oldest = (0..self.lists()).map(|list| (list, self.nodes[list].newer as usize));
        let lowest = oldest.into_iter().find(|(list, oldest)| list != oldest);
        if let Some((_, oldest)) = lowest {
            self.take_out(oldest);
        }
    }

    /// Moves down what is too much in a list, and then in the one below it, down to the first that takes it all.
    fn settle(&mut self, from: usize) {
        for list in (0..=from).rev() {
            if self.bytes[list] <= self.list_capacity {
                return;
            }
            while self.bytes[list] > self.list_capacity {
                let oldest = self.nodes[list].newer as usize;
                if list == 0 {
                    self.take_out(oldest);
                } else {
                    let size = self.unlink(oldest).size;
                    self.link_newest(list - 1, oldest, size);
                }
            }
        }
    }
}

impl ExactPolicy for Lists {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    #[inline]
    fn used(&self) -> u64 {
        self.used
    }

    fn len(&self) -> usize {
        self.len
    }

    fn size_of(&self, object: ObjectNumber) -> Option<u64> {
        self.resident(object).map(|index| self.nodes[index].size)
    }

    #[inline]
    fn lookup(&mut self, object: ObjectNumber) -> bool {
        let Some(index) = self.resident(object) else {
            return false;
        };
        let top = self.lists() - 1;
        // The newest object of the top list, which is hit most often of all, is where it belongs.
        if self.raises && self.nodes[index].newer as usize != top {
            let node = self.unlink(index);
            let list = (node.list as usize + 1).min(top);
            self.link_newest(list, index, node.size);
            self.settle(list);
        }
        true
    }

    fn insert(&mut self, object: ObjectNumber, size: u64) -> Insertion {
        assert!(
            self.node_of(object) < ABSENT as usize,
            "object number {object} is out of range"
        );
        self.remove(object);
        if size > self.list_capacity {
            return Insertion::Rejected;
        }
        while self.capacity - self.used < size {
            self.evict();
        }
        // The size is at most that of a list.
        let has_room = |list: &usize| self.bytes[*list] <= self.list_capacity - size;
        let list = (0..self.lists()).find(has_room).unwrap_or(0);
        let index = self.node_of(object);
        if index >= self.nodes.len() {
            self.nodes.resize(index + 1, UNLINKED);
        }
        self.link_newest(list, index, size);
        self.used += size;
        self.len += 1;
        Insertion::Inserted
    }

    fn remove(&mut self, object: ObjectNumber) -> Option<u64> {
        self.resident(object).map(|index| self.take_out(index))
    }

    fn eviction_order(&self) -> impl Iterator<Item = ObjectNumber> + '_ {
        let lists = self.lists();
        (0..lists).flat_map(move |list| {
            let mut at = self.nodes[list].newer as usize;
            std::iter::from_fn(move || {
                let object = at.checked_sub(lists)?;
                at = self.nodes[at].newer as usize;
                Some(object as u32)
            })
        })
    }

    fn check_invariants(&self) {
        let mut linked = 0;
        for list in 0..self.lists() {
            let (mut bytes, mut newer) = (0, list);
            loop {
                let at = self.nodes[newer].older as usize;
                assert_eq!(
                    self.nodes[at].newer as usize, newer,
                    "links of node {at} disagree"
                );
                if at == list {
                    break;
                }
                assert_eq!(self.nodes[at].list as usize, list, "the list of node {at}");
                bytes += self.nodes[at].size;
                linked += 1;
                assert!(linked <= self.nodes.len(), "a ring does not close");
                newer = at;
            }
            assert_eq!(bytes, self.bytes[list], "the bytes of list {list}");
        }
        assert_eq!(
            (self.bytes.iter().sum(), linked),
            (self.used, self.len),
            "used, len"
        );
        let (used, capacity) = (self.used, self.capacity);
        assert!(used <= capacity, "{used} used of {capacity}");
        let unlinked = self
            .nodes
            .iter()
            .filter(|node| node.older == ABSENT && node.size == 0);
        assert_eq!(
            unlinked.count() + linked + self.lists(),
            self.nodes.len(),
            "nodes"
        );
    }
}
