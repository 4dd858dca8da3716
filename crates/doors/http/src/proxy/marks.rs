//! What is remembered of keys for a while, in bounded memory: a key may be forgotten early where another falls on its place, which costs a
//! request to the origin.

use crate::key::EngineKey;
use std::sync::atomic::{AtomicU64, Ordering};

const SLOTS: usize = 1 << 13;

fn slots() -> Box<[AtomicU64]> {
    (0..SLOTS).map(|_| AtomicU64::new(0)).collect()
}

/// Place of a key, and bits that tell it from most others there. Keys are digests.
fn place(key: &EngineKey) -> (usize, u64) {
    let [low, high] = [&key[..8], &key[8..]].map(|half| u64::from_le_bytes(half.try_into().expect("a half")));
    (low as usize % SLOTS, high)
}

/// Keys that are marked until a time.
pub(crate) struct Marks(Box<[AtomicU64]>);

/// The lower bits of a slot are the time.
const TIME_BITS: u32 = 32;

impl Default for Marks {
    fn default() -> Self {
        Self(slots())
    }
}

impl Marks {
    /// Marks a key until a time, in seconds since 1970.
    pub(crate) fn set(&self, key: &EngineKey, until_secs: i64) {
        let (at, tag) = place(key);
        let until = u64::from(u32::try_from(until_secs).unwrap_or(0));
        self.0[at].store(tag >> TIME_BITS << TIME_BITS | until, Ordering::Relaxed);
    }

    /// Whether a key is marked still.
    pub(crate) fn is_set(&self, key: &EngineKey, now_secs: i64) -> bool {
        let (at, tag) = place(key);
        let slot = self.0[at].load(Ordering::Relaxed);
        slot >> TIME_BITS == tag >> TIME_BITS && i64::from(slot as u32) > now_secs
    }
}

/// Counts how often URLs were made void: what was asked for before that must not be stored after.
pub(crate) struct Voids(Box<[AtomicU64]>);

impl Default for Voids {
    fn default() -> Self {
        Self(slots())
    }
}

impl Voids {
    /// The count for a URL; others may share it.
    pub(crate) fn count(&self, key: &EngineKey) -> u64 {
        self.0[place(key).0].load(Ordering::SeqCst)
    }

    /// Counts one more.
    pub(crate) fn add(&self, key: &EngineKey) {
        self.0[place(key).0].fetch_add(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_end_and_are_of_one_key() {
        let marks = Marks::default();
        let (one, other) = ([1; 16], [2; 16]);
        marks.set(&one, 100);
        assert!(marks.is_set(&one, 99) && !marks.is_set(&one, 100) && !marks.is_set(&other, 99));
        let voids = Voids::default();
        voids.add(&one);
        assert_eq!((voids.count(&one), voids.count(&other)), (1, 0));
    }
}
