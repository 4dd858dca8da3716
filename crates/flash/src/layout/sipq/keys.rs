//! SIPQ's virtual cache: the keys of objects that a reclaim keeps, in an exact queue (RIPQ paper, section 5, "Single Insertion Priority
//! Queue").
//!
//! Flash is written in a circle. The policy runs on keys in DRAM, with room for a share θ of what flash holds; an object whose
//! key is there when its block is reclaimed is written again. An object that the queue has let go is still a hit as long as it is
//! on flash, and a hit brings it back into the queue as a new object.
//!
//! Cost: O(log n) for each operation; about 60 bytes of DRAM for each key in the queue.

use crate::layout::hashes::ByHash;
use crate::layout::options::LayoutOptions;
use pumice_blocks::geometry::Geometry;
use pumice_policy::{ExactQueue, ObjectNumber, Policy, Priority};

/// DRAM of a key, in bytes, at most; see the figures at [`ExactQueue`].
pub const VIRTUAL_KEY_BYTES: u64 = 96;

/// Parts of the table of hashes that are filled one after the other at a start: each is to fit a processor's cache.
const PARTS: usize = 256;
/// Keys that are put in a table at once: 16 bytes of each are beside it meanwhile.
const AT_ONCE: usize = 1 << 20;

/// Weight of a block's bytes in the mean over blocks, as a divisor.
const BLOCKS_AVERAGED: f64 = 64.0;

pub(crate) struct KeyQueue {
    policy: &'static dyn Policy,
    queue: ExactQueue,
    /// θ, the number of blocks that objects can have, and the mean of the bytes of objects in one.
    theta: f64,
    blocks: f64,
    block_mean: f64,
    /// Bytes that the queue may have, and keys.
    bytes_max: u64,
    keys_max: usize,
    numbers: ByHash<ObjectNumber>,
    /// Hash and accesses of each number.
    keys: Vec<(u64, u8)>,
    free: Vec<ObjectNumber>,
}

/// What a virtual cache has learned, as it is kept on flash before its keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SavedFill {
    /// Whether it let keys go to make room, so that new ones do not enter at the top.
    pub(crate) has_been_full: bool,
    /// Blocks that can be full of objects at once, and the mean of the bytes of objects in one.
    pub(crate) blocks: u32,
    pub(crate) block_mean: f64,
}

/// A key as it is kept on flash, from the lowest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SavedKey {
    pub(crate) hash: u64,
    pub(crate) bytes: u32,
    pub(crate) accesses: u8,
    /// Its absolute priority; 0 where priorities are relative.
    pub(crate) value: f64,
}

impl KeyQueue {
    /// That of a layout, empty.
    pub(crate) fn of(layout: &LayoutOptions, geometry: &Geometry) -> Self {
        let blocks = f64::from(geometry.blocks - geometry.reserved);
        Self::new(
            layout.policy,
            layout.theta,
            blocks,
            geometry.block_bytes as f64,
            layout.virtual_keys_max,
        )
    }

    fn new(policy: &'static dyn Policy, theta: f64, blocks: f64, block_mean: f64, keys_max: usize) -> Self {
        Self {
            policy,
            queue: ExactQueue::for_policy(policy),
            theta,
            blocks,
            block_mean,
            bytes_max: (theta * blocks * block_mean) as u64,
            keys_max,
            numbers: ByHash::default(),
            keys: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn fill(&self) -> SavedFill {
        SavedFill {
            has_been_full: self.queue.has_been_full(),
            blocks: self.blocks as u32,
            block_mean: self.block_mean,
        }
    }

    /// Takes up what was learned, before the keys.
    pub(crate) fn restore_fill(&mut self, saved: SavedFill) {
        if saved.has_been_full {
            self.queue.note_full();
        }
        self.blocks = f64::from(saved.blocks);
        self.block_mean = saved.block_mean;
        self.bytes_max = (self.theta * self.blocks * self.block_mean) as u64;
    }

    /// A block was filled with so many bytes of objects, and so many blocks can be full of them at once. Footers, what is left at
    /// a block's end, and blocks that are free or something else's are not for objects: θ is a share of what flash can hold of
    /// them, or a θ near 1 would write everything again and again.
    pub(crate) fn note_block(&mut self, bytes: usize, blocks: usize) {
        self.block_mean += (bytes as f64 - self.block_mean) / BLOCKS_AVERAGED;
        self.blocks = blocks as f64;
        self.bytes_max = (self.theta * self.blocks * self.block_mean) as u64;
        while self.queue.used() > self.bytes_max
            && let Some((number, _)) = self.queue.pop_min()
        {
            self.forget(number);
        }
        self.queue.shrink_to(self.bytes_max);
    }

    pub(crate) fn contains(&self, hash: u64) -> bool {
        self.numbers.contains_key(&hash)
    }

    pub(crate) fn lowest(&self) -> f64 {
        self.queue.lowest()
    }

    /// The position and the accesses of a key that is there.
    pub(crate) fn standing(&self, hash: u64) -> Option<(f64, u32)> {
        let number = *self.numbers.get(&hash)?;
        Some((self.queue.position(number)?, self.keys[number as usize].1.into()))
    }

    /// Puts a key in, in place of itself; what is lowest goes until it fits.
    pub(crate) fn insert(&mut self, hash: u64, bytes: u64, priority: Priority, accesses: u32) {
        self.remove(hash);
        if !self.make_room(bytes) {
            return;
        }
        let number = self.number(hash, accesses);
        self.numbers.insert(hash, number);
        self.queue.insert_new(number, bytes, priority);
    }

    /// Lets the lowest keys go until one more fits; whether it can.
    fn make_room(&mut self, bytes: u64) -> bool {
        if bytes > self.bytes_max || self.keys_max == 0 {
            return false;
        }
        while self.queue.len() >= self.keys_max || self.queue.used() + bytes > self.bytes_max {
            let is_for_room = self.queue.len() < self.keys_max;
            let Some((number, _)) = self.queue.pop_min() else {
                return false;
            };
            self.forget(number);
            if !is_for_room {
                // Of short objects so many keys have fewer bytes. Shares of those before would put new keys where the next one to go is.
                self.queue.shrink_to(self.queue.used() + bytes);
            }
        }
        true
    }

    /// A number for a key.
    fn number(&mut self, hash: u64, accesses: u32) -> ObjectNumber {
        let key = (hash, u8::try_from(accesses).unwrap_or(u8::MAX));
        match self.free.pop() {
            Some(number) => {
                self.keys[number as usize] = key;
                number
            }
            None => {
                self.keys.push(key);
                self.keys.len() as ObjectNumber - 1
            }
        }
    }

    /// What takes so many bytes of flash, and is all or part of an object of `object_bytes`, was used.
    pub(crate) fn hit(&mut self, hash: u64, bytes: u64, object_bytes: u64) {
        let Some(number) = self.numbers.get(&hash).copied() else {
            let priority = self.policy.on_insert(object_bytes, self.lowest());
            return self.insert(hash, bytes, priority, 1);
        };
        let accesses = &mut self.keys[number as usize].1;
        *accesses = accesses.saturating_add(1).min(self.policy.accesses_max() as u8);
        let accesses = u32::from(*accesses);
        self.queue.hit(number, accesses, Some(object_bytes), self.policy);
    }

    pub(crate) fn remove(&mut self, hash: u64) {
        if let Some(number) = self.numbers.get(&hash).copied() {
            self.queue.remove(number);
            self.forget(number);
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new(
            self.policy,
            self.theta,
            self.blocks,
            self.block_mean,
            self.keys_max,
        );
    }

    pub(crate) fn dram_bytes(&self) -> u64 {
        let table = self.numbers.capacity() * (size_of::<(u64, ObjectNumber)>() + 1);
        let keys = self.keys.capacity() * size_of::<(u64, u8)>() + self.free.capacity() * 4;
        (table + keys + self.queue.len() * 40) as u64
    }

    /// All keys from the lowest.
    pub(crate) fn save(&self) -> impl Iterator<Item = SavedKey> + '_ {
        self.save_from(0)
    }

    /// The keys above `below` bytes of others, upwards.
    pub(crate) fn save_from(&self, below: u64) -> impl Iterator<Item = SavedKey> + '_ {
        self.queue.iter_from(below).map(|(number, bytes)| {
            let (hash, accesses) = self.keys[number as usize];
            SavedKey {
                hash,
                bytes: u32::try_from(bytes).expect("a record is at most 1 MiB"),
                accesses,
                value: self.queue.value_of(number).unwrap_or(0.0),
            }
        })
    }

    /// Puts saved keys above all that are there, without looking for their hashes: [`KeyQueue::end_restore`] is to follow. No record has 0
    /// bytes, and one that had would keep who walks the queue by bytes where it is.
    pub(crate) fn restore(&mut self, saved: &[SavedKey]) {
        let bytes: u64 = saved.iter().map(|key| u64::from(key.bytes)).sum();
        let fits =
            self.queue.len() + saved.len() <= self.keys_max && self.queue.used() + bytes <= self.bytes_max;
        let is_relative = !self.policy.is_absolute();
        if fits && is_relative && saved.iter().all(|key| key.bytes > 0) {
            let numbered = saved
                .iter()
                .map(|key| (self.number(key.hash, self.saved_accesses(key)), key.bytes.into()));
            let numbered: Vec<(ObjectNumber, u64)> = numbered.collect();
            return self.queue.append(&numbered);
        }
        for key in saved.iter().filter(|key| key.bytes > 0) {
            let priority = match is_relative {
                true => Priority::Relative(1.0),
                false => Priority::Absolute(if key.value.is_finite() { key.value } else { 0.0 }),
            };
            if self.make_room(key.bytes.into()) {
                let number = self.number(key.hash, self.saved_accesses(key));
                self.queue.insert_new(number, key.bytes.into(), priority);
            }
        }
    }

    fn saved_accesses(&self, key: &SavedKey) -> u32 {
        u32::from(key.accesses).clamp(1, self.policy.accesses_max())
    }

    /// Makes the table of the hashes of keys that were restored; of two with the same hash the later stays. By parts of the table that lie
    /// side by side: in the order of the queue each key would have to wait for another line of memory.
    pub(crate) fn end_restore(&mut self) {
        self.numbers.clear();
        self.numbers.reserve(self.queue.len());
        let places = (self.numbers.capacity() + 1).next_power_of_two();
        let shift = places.trailing_zeros().saturating_sub(PARTS.trailing_zeros());
        let part = |hash: u64| (hash >> shift) as usize % PARTS;
        for first in (0..self.keys.len()).step_by(AT_ONCE) {
            let keys = &self.keys[first..self.keys.len().min(first + AT_ONCE)];
            let restored = (ObjectNumber::try_from(first).expect("as many numbers as keys")..)
                .zip(keys)
                .filter(|(number, _)| self.queue.contains(*number));
            let mut ends = [0; PARTS];
            restored.clone().for_each(|(_, (hash, _))| ends[part(*hash)] += 1);
            let mut sum = 0;
            for end in &mut ends {
                sum += std::mem::replace(end, sum);
            }
            let mut parted = vec![(0, 0); sum];
            for (number, (hash, _)) in restored {
                let place = &mut ends[part(*hash)];
                parted[*place] = (*hash, number);
                *place += 1;
            }
            for (hash, number) in parted {
                if let Some(before) = self.numbers.insert(hash, number) {
                    self.queue.remove(before);
                    self.free.push(before);
                }
            }
        }
    }

    /// An object was found on flash that no saved key was known of: it counts as new.
    pub(crate) fn found(&mut self, hash: u64, bytes: u64) {
        if !self.contains(hash) {
            let priority = self.policy.on_insert(bytes, self.lowest());
            self.insert(hash, bytes, priority, 1);
        }
    }

    fn forget(&mut self, number: ObjectNumber) {
        self.numbers.remove(&self.keys[number as usize].0);
        self.free.push(number);
    }

    /// Re-derives all counts.
    ///
    /// # Panics
    /// Where they do not agree.
    pub(crate) fn check_invariants(&self) {
        self.queue.check_invariants();
        assert_eq!(self.queue.len(), self.numbers.len());
        assert_eq!(self.numbers.len() + self.free.len(), self.keys.len());
        assert!(self.queue.used() <= self.bytes_max && self.numbers.len() <= self.keys_max);
        for (hash, number) in &self.numbers {
            assert_eq!(self.keys[*number as usize].0, *hash);
            assert!(self.queue.contains(*number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::options::policy;

    #[test]
    fn it_keeps_what_an_exact_queue_keeps_within_bytes_and_keys() {
        let (bytes_max, keys_max) = (10_000, 70);
        let lru = policy("lru").unwrap();
        let mut cache = KeyQueue::new(lru, 1.0, 1.0, bytes_max as f64, keys_max);
        let mut plain: Vec<(u64, u64)> = Vec::new();
        let mut random = pumice_world::Random(7);
        for _ in 0..20_000 {
            let state = random.next_u64();
            let (hash, bytes) = (state >> 56, 50 + (state >> 40) % 300);
            let known = plain.iter().position(|(key, _)| *key == hash);
            if state.is_multiple_of(7) {
                cache.remove(hash);
                known.map(|at| plain.remove(at));
            } else {
                // A hit keeps the size that the key came with.
                let bytes = known.map_or(bytes, |at| plain.remove(at).1);
                plain.push((hash, bytes));
                cache.hit(hash, bytes, bytes);
                while plain.len() > keys_max || plain.iter().map(|(_, bytes)| bytes).sum::<u64>() > bytes_max
                {
                    plain.remove(0);
                }
            }
            let keys: Vec<u64> = cache.save().map(|key| key.hash).collect();
            assert_eq!(keys, plain.iter().map(|(hash, _)| *hash).collect::<Vec<_>>());
        }
        cache.check_invariants();
        let mut restored = KeyQueue::new(lru, 1.0, 1.0, bytes_max as f64, keys_max);
        let saved: Vec<SavedKey> = cache.save().collect();
        saved.chunks(20).for_each(|batch| restored.restore(batch));
        restored.end_restore();
        restored.check_invariants();
        assert!(restored.save().eq(cache.save()));
        let empty = SavedKey {
            hash: 1 << 40,
            bytes: 0,
            accesses: 1,
            value: 0.0,
        };
        restored.restore(&[empty]);
        restored.end_restore();
        assert!(restored.save().eq(cache.save()), "no record is so short");
        // A checkpoint with a key that stands there twice: the later one counts.
        let twice = saved.iter().chain(&saved[..3]).copied().collect::<Vec<_>>();
        let mut restored = KeyQueue::new(lru, 1.0, 1.0, 2.0 * bytes_max as f64, 2 * keys_max);
        restored.restore(&twice);
        restored.end_restore();
        restored.check_invariants();
        assert!(restored.save().eq(saved[3..].iter().chain(&saved[..3]).copied()));
        // With less room than before the highest stay.
        let mut restored = KeyQueue::new(lru, 1.0, 1.0, bytes_max as f64, keys_max / 2);
        saved.chunks(20).for_each(|batch| restored.restore(batch));
        restored.end_restore();
        restored.check_invariants();
        assert!(
            restored
                .save()
                .eq(saved[saved.len() - restored.queue.len()..].iter().copied())
        );
        assert!(restored.queue.len() > keys_max / 3);
        // In steps, as a checkpoint takes them.
        let (mut below, mut walked) = (0, Vec::new());
        loop {
            let batch: Vec<SavedKey> = cache.save_from(below).take(7).collect();
            if batch.is_empty() {
                break;
            }
            below += batch.iter().map(|key| u64::from(key.bytes)).sum::<u64>();
            walked.extend(batch);
        }
        assert!(cache.save().eq(walked.iter().copied()));
    }

    #[test]
    fn what_blocks_cannot_hold_is_not_counted_on() {
        let mut cache = KeyQueue::new(policy("lru").unwrap(), 1.0, 10.0, 1_000.0, 1_000);
        (0..100).for_each(|hash| cache.hit(hash, 100, 100));
        assert_eq!(cache.queue.used(), 10_000);
        (0..1_000).for_each(|_| cache.note_block(900, 10));
        assert!((9_000..9_100).contains(&cache.bytes_max), "{}", cache.bytes_max);
        cache.check_invariants();
        assert!(!cache.contains(0) && cache.contains(99) && cache.queue.used() >= 9_000);
    }

    #[test]
    fn new_keys_stay_for_a_while_whatever_bounds_the_queue() {
        let slru = policy("slru-3").unwrap();
        // By keys, after objects that were ten times as long; and by bytes that have become a third.
        let mut by_keys = KeyQueue::new(slru, 1.0, 1.0, 1_000_000.0, 300);
        (0..1_000).for_each(|hash| by_keys.hit(hash, 1_000, 1_000));
        let mut by_bytes = KeyQueue::new(slru, 1.0, 10.0, 9_000.0, usize::MAX);
        (0..1_000).for_each(|hash| by_bytes.hit(hash, 300, 300));
        (0..1_000).for_each(|_| by_bytes.note_block(3_000, 10));
        for (cache, name) in [(&mut by_keys, "keys"), (&mut by_bytes, "bytes")] {
            let first = 10_000;
            for hash in first..first + 2_000 {
                cache.hit(hash, 100, 100);
                if hash % 2 == 0 {
                    cache.hit(hash, 100, 100);
                }
                // A third of the queue is for new keys, and for those that sink.
                let least = hash.saturating_sub(40).max(first);
                let new = (least..=hash).filter(|hash| cache.contains(*hash)).count() as u64;
                let settled = hash > first + 1_000;
                assert!(
                    !settled || new == hash - least + 1,
                    "{name}: {new} of {}",
                    hash - least + 1
                );
            }
            cache.check_invariants();
        }
    }

    #[test]
    fn what_is_larger_than_all_of_it_is_not_kept() {
        let mut cache = KeyQueue::new(policy("gdsf-3").unwrap(), 1.0, 1.0, 1_000.0, 10);
        cache.hit(1, 600, 600);
        cache.hit(2, 1_001, 1_001);
        assert!(!cache.contains(2) && cache.contains(1));
        let mut none = KeyQueue::new(policy("slru-3").unwrap(), 1.0, 0.0, 1_000.0, 10);
        none.hit(1, 1, 1);
        assert!(!none.contains(1));
    }
}
