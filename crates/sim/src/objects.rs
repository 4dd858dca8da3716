//! Keys as dense object numbers.

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use pumice_policy::MAX_OBJECTS;

/// Gives every distinct key the next free number, from 0.
///
/// Memory: 19 to 38 bytes per key, and half as much again while the table grows.
#[derive(Debug, Default)]
pub struct ObjectNumbers(HashMap<u64, u32>);

impl ObjectNumbers {
    /// The number of distinct keys.
    pub fn len(&self) -> u32 {
        self.0.len() as u32
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of `key`, and whether it is new; `None` if it would be new and all [`MAX_OBJECTS`] numbers are taken.
    #[inline]
    pub fn number(&mut self, key: u64) -> Option<(u32, bool)> {
        let next = self.len();
        match self.0.entry(key) {
            Entry::Occupied(known) => Some((*known.get(), false)),
            Entry::Vacant(_) if next >= MAX_OBJECTS => None,
            Entry::Vacant(new) => Some((*new.insert(next), true)),
        }
    }
}
