//! A ghost of the keys that a cache in front of flash was asked for last: about as many as flash holds, two bytes each, and how often.
//!
//! Source: the ghost entries of ARC (Megiddo and Modha, FAST 2003), kept as short fingerprints in buckets as a cuckoo filter does. A bucket is
//! one cache line of 32 slots, the newest first; a new key pushes the oldest out. A key so is forgotten after about as many others as there are
//! slots, give or take a sixth. A bucket has no lock: where two threads change one at once a key may be lost or stay twice, which costs a
//! write or a hit and no more. Two ageing Bloom filters of the same size forget all of a generation at once, and do not count.

use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering::Relaxed};

/// Slots of a bucket.
pub(crate) const WAYS: usize = 32;
/// The bits of a slot that count accesses; 0 in them: the slot is empty. The others are a part of the key's hash.
const TIMES: u16 = 7;
/// How many answers [`Ghost::note`] has.
pub(crate) const COUNTS: usize = TIMES as usize + 1;
/// New keys of a million that are taken for known ones, about, once the ghost is full.
pub(crate) const MISTAKEN_PPM: u64 = 1_000_000 * WAYS as u64 * COUNTS as u64 / (1 << 16);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Bucket([AtomicU16; WAYS]);

/// What keys were asked for lately.
#[derive(Debug)]
pub(crate) struct Ghost {
    buckets: Box<[Bucket]>,
    /// Buckets in use.
    used: AtomicUsize,
}

impl Ghost {
    /// One of at most so many keys, but at least of one bucket.
    pub(crate) fn new(keys: usize) -> Self {
        let buckets = (keys / WAYS).max(1);
        Self {
            buckets: (0..buckets).map(|_| Bucket::default()).collect(),
            used: AtomicUsize::new(buckets),
        }
    }

    /// How many keys it would have for so many.
    pub(crate) fn keys_at(&self, keys: usize) -> usize {
        (keys / WAYS).clamp(1, self.buckets.len()) * WAYS
    }

    /// It is to have about so many keys from now on, or as many as there is room for. Where that is much more or less than before, it
    /// forgets most.
    pub(crate) fn resize(&self, keys: usize) {
        let wanted = self.keys_at(keys) / WAYS;
        let used = self.used.load(Relaxed);
        if wanted * 4 < used * 3 || wanted * 3 > used * 4 {
            self.used.store(wanted, Relaxed);
        }
    }

    /// How many keys it has when it is full.
    #[cfg(test)]
    pub(crate) fn keys(&self) -> usize {
        self.used.load(Relaxed) * WAYS
    }

    /// DRAM held.
    pub(crate) fn bytes(&self) -> usize {
        std::mem::size_of_val(&*self.buckets)
    }

    /// Makes a key the newest. Returns how often it was noted before, as far as is known: 0 to 7, which stands for more, too.
    #[inline]
    pub(crate) fn note(&self, hash: u64) -> usize {
        // The upper bits choose the bucket, the lower ones are the fingerprint.
        let at = (u128::from(hash) * self.used.load(Relaxed) as u128) >> 64;
        let slots = &self.buckets[at as usize].0;
        let fingerprint = hash as u16 & !TIMES;
        let mut carried = fingerprint | 1;
        for slot in slots {
            let held = slot.load(Relaxed);
            slot.store(carried, Relaxed);
            let times = held & TIMES;
            if times == 0 {
                return 0;
            }
            if held & !TIMES == fingerprint {
                slots[0].store(fingerprint | (times + 1).min(TIMES), Relaxed);
                return times.into();
            }
            carried = held;
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pumice_world::mix64;

    #[test]
    fn keys_are_counted_up_to_seven() {
        let ghost = Ghost::new(1 << 12);
        for times in [0, 1, 2, 3, 4, 5, 6, 7, 7] {
            assert_eq!(ghost.note(mix64(1)), times);
        }
        // The others are not.
        assert_eq!(ghost.note(mix64(2)), 0);
    }

    #[test]
    fn a_key_is_known_for_as_many_others_as_there_are_slots() {
        let ghost = Ghost::new(1 << 14);
        let known_after = |others: u64, from: u64| {
            let keys = from..from + 2000;
            keys.clone().for_each(|key| _ = ghost.note(mix64(key)));
            let others = from + 1_000_000..from + 1_000_000 + others - 1000;
            others.for_each(|key| _ = ghost.note(mix64(key)));
            keys.filter(|key| ghost.note(mix64(*key)) > 0).count()
        };
        assert!(known_after(1 << 13, 0) > 1980);
        let half = known_after(1 << 14, 10_000_000);
        assert!((600..1400).contains(&half), "{half}");
        // But for those that are mistaken.
        assert!(known_after(1 << 15, 20_000_000) < 40);
    }

    #[test]
    fn new_keys_are_taken_for_known_ones_seldom() {
        let ghost = Ghost::new(1 << 14);
        let keys = 0..1_000_000u64;
        let mistaken = keys.filter(|key| ghost.note(mix64(*key)) > 0).count() as u64;
        assert!(
            (MISTAKEN_PPM * 9 / 10..MISTAKEN_PPM * 11 / 10).contains(&mistaken),
            "{mistaken}"
        );
    }

    #[test]
    fn threads_lose_hardly_a_key() {
        let ghost = Ghost::new(1 << 16);
        let known: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4u64)
                .map(|thread| {
                    let ghost = &ghost;
                    scope.spawn(move || {
                        let keys = (0..10_000u64).map(move |key| mix64(thread << 32 | key));
                        keys.clone().for_each(|hash| _ = ghost.note(hash));
                        keys.filter(|hash| ghost.note(*hash) > 0).count()
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .sum()
        });
        assert!(known > 39_900, "{known} of 40000");
    }

    #[test]
    fn a_ghost_takes_two_bytes_for_a_key() {
        for keys in [64, 1000, 1_000_000] {
            let ghost = Ghost::new(keys);
            assert!(ghost.bytes() <= 2 * keys && ghost.keys() + WAYS > keys);
        }
        assert_eq!(Ghost::new(0).bytes(), 64);
    }
}
