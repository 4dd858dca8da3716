//! What is remembered of keys for a while, in bounded memory: a key may be forgotten early where another falls on its place, which costs a
//! request to the origin.

use crate::decide::Failure;
use crate::key::EngineKey;
use http::StatusCode;
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

/// The lower bits of a slot are the time, and those above it what is noted of the key.
const TIME_BITS: u32 = 32;
const NOTE_BITS: u32 = 10;
const TAG_SHIFT: u32 = TIME_BITS + NOTE_BITS;

impl Default for Marks {
    fn default() -> Self {
        Self(slots())
    }
}

impl Marks {
    /// Marks a key until a time, in seconds since 1970.
    pub(crate) fn set(&self, key: &EngineKey, until_secs: i64) {
        self.note(key, 0, until_secs);
    }

    /// Whether a key is marked still.
    pub(crate) fn is_set(&self, key: &EngineKey, now_secs: i64) -> bool {
        self.noted(key, now_secs).is_some()
    }

    /// Marks a key with a number below 1024.
    fn note(&self, key: &EngineKey, number: u16, until_secs: i64) {
        let (at, tag) = place(key);
        let until = u64::from(u32::try_from(until_secs).unwrap_or(0));
        let slot = tag >> TAG_SHIFT << TAG_SHIFT | u64::from(number) << TIME_BITS | until;
        self.0[at].store(slot, Ordering::Relaxed);
    }

    fn noted(&self, key: &EngineKey, now_secs: i64) -> Option<u16> {
        let (at, tag) = place(key);
        let slot = self.0[at].load(Ordering::Relaxed);
        let is_marked = slot >> TAG_SHIFT == tag >> TAG_SHIFT && i64::from(slot as u32) > now_secs;
        is_marked.then_some((slot >> TIME_BITS) as u16 & ((1 << NOTE_BITS) - 1))
    }
}

/// Keys for which the origin is left alone after a failure.
#[derive(Default)]
pub(crate) struct Spared(Marks);

impl Spared {
    pub(crate) fn set(&self, key: &EngineKey, failure: Failure, until_secs: i64) {
        let number = match failure {
            Failure::Unreachable => 0,
            Failure::Answered(status) => status.as_u16(),
        };
        self.0.note(key, number, until_secs);
    }

    /// What the failure was, while the origin is left alone.
    pub(crate) fn failure(&self, key: &EngineKey, now_secs: i64) -> Option<Failure> {
        let number = self.0.noted(key, now_secs)?;
        Some(StatusCode::from_u16(number).map_or(Failure::Unreachable, Failure::Answered))
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
        let spared = Spared::default();
        for failure in [Failure::Unreachable, Failure::Answered(StatusCode::BAD_GATEWAY)] {
            spared.set(&one, failure, 100);
            assert_eq!(spared.failure(&one, 99), Some(failure));
            assert_eq!(
                (spared.failure(&one, 100), spared.failure(&other, 99)),
                (None, None)
            );
        }
        let voids = Voids::default();
        voids.add(&one);
        assert_eq!((voids.count(&one), voids.count(&other)), (1, 0));
    }
}
