//! What a store may have, and what it must have.

use crate::Store;
use std::collections::HashMap;

/// A plain map beside a store.
#[derive(Debug, Default)]
pub struct Model {
    live: HashMap<u64, u64>,
    /// Values that were seen on the device, and were neither changed nor given up since.
    on_device: HashMap<u64, u64>,
    /// What was there before changes that a crash may undo.
    unsettled: HashMap<u64, Vec<u64>>,
    /// The same of changes before a crash whose keys could not be read since.
    unknown: HashMap<u64, Vec<u64>>,
}

/// What comparisons have seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Values that were found.
    pub hits: u64,
    /// Of those, values that had to be there.
    pub owed: u64,
}

impl Model {
    /// A value was stored, or was to be.
    pub fn set(&mut self, key: u64, value: u64, is_there: bool) {
        self.begin(key);
        if is_there {
            self.live.insert(key, value);
        }
    }

    /// A value was deleted.
    pub fn delete(&mut self, key: u64) {
        self.begin(key);
    }

    fn begin(&mut self, key: u64) {
        let before = self.unsettled.entry(key).or_default();
        before.extend(self.unknown.remove(&key).unwrap_or_default());
        before.extend(self.live.remove(&key));
        self.on_device.remove(&key);
    }

    /// No crash undoes the changes up to now.
    pub fn settle(&mut self) {
        self.unsettled.clear();
    }

    /// Notes which values a crash must leave.
    pub fn look<S: Store>(&mut self, store: &mut S) {
        for (key, value) in &self.live {
            if store.is_on_device(*key) {
                self.on_device.insert(*key, *value);
            } else {
                self.on_device.remove(key);
            }
        }
        self.forget_given_up(store);
    }

    /// What was given up need not be there.
    pub fn forget_given_up<S: Store>(&mut self, store: &mut S) {
        for key in store.given_up() {
            self.on_device.remove(&key);
        }
    }

    /// Nothing need be there any more; what is there must be right.
    pub fn owe_nothing(&mut self) {
        self.on_device.clear();
    }

    /// Compares with a store after a start, and takes over what it has. On a device that fails reads, `is_failing`, what is not found may
    /// be found later.
    ///
    /// # Panics
    /// Where a value is wrong, or one that must be there is not.
    pub fn compare<S: Store>(&mut self, store: &mut S, keys: u64, is_failing: bool, what: &str) -> Seen {
        let mut seen = Seen::default();
        for (key, before) in self.unsettled.drain() {
            self.unknown.entry(key).or_default().extend(before);
        }
        for key in 0..keys {
            let got = store.get(key);
            if let Some(value) = self.on_device.get(&key) {
                assert_eq!(got, Some(*value), "{what}: key {key} was on the device");
                seen.owed += 1;
            }
            let Some(got) = got else {
                if !is_failing {
                    self.live.remove(&key);
                    self.unknown.remove(&key);
                }
                continue;
            };
            let legal: Vec<u64> = (self.live.get(&key).into_iter())
                .chain(self.unknown.get(&key).into_iter().flatten())
                .copied()
                .collect();
            assert!(
                legal.contains(&got),
                "{what}: key {key} came back as {got}, legal is {legal:?}"
            );
            seen.hits += 1;
            self.live.insert(key, got);
            self.unknown.remove(&key);
        }
        self.on_device.clear();
        seen
    }

    /// Compares while the store runs: a value that is there is the last one.
    ///
    /// # Panics
    /// Where it is not.
    pub fn check_get<S: Store>(&self, store: &mut S, key: u64, what: &str) {
        let got = store.get(key);
        let live = self.live.get(&key).copied();
        let before = self.unknown.get(&key);
        let is_unknown = |got| before.is_some_and(|before| before.contains(&got));
        assert!(
            got.is_none_or(|got| live == Some(got) || is_unknown(got)),
            "{what}: key {key} is {got:?}, and was set to {live:?}"
        );
    }
}
