//! A cache of blocks that are numbers.

use hashbrown::HashMap;

/// CLOCK: what was used since the hand passed it stays.
pub(super) struct Clock {
    places: HashMap<u64, usize>,
    /// The block, and whether it was used.
    blocks: Vec<(u64, bool)>,
    capacity: usize,
    hand: usize,
}

impl Clock {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            places: HashMap::new(),
            blocks: Vec::new(),
            capacity: capacity.max(1),
            hand: 0,
        }
    }

    /// Uses a block; false where it is not there.
    pub(super) fn touch(&mut self, key: u64) -> bool {
        let place = self.places.get(&key).copied();
        if let Some(place) = place {
            self.blocks[place].1 = true;
        }
        place.is_some()
    }

    /// Takes in a block that is not there.
    pub(super) fn insert(&mut self, key: u64) {
        if self.blocks.len() < self.capacity {
            self.places.insert(key, self.blocks.len());
            self.blocks.push((key, false));
            return;
        }
        while std::mem::replace(&mut self.blocks[self.hand].1, false) {
            self.hand = (self.hand + 1) % self.capacity;
        }
        let (old, _) = std::mem::replace(&mut self.blocks[self.hand], (key, false));
        self.places.remove(&old);
        self.places.insert(key, self.hand);
        self.hand = (self.hand + 1) % self.capacity;
    }
}
