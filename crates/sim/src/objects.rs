//! Keys as dense object numbers.

use pumice_policy::MAX_OBJECTS;

use crate::key_table::{RunTable, SparseTable};

/// Gives every distinct key the next free number, from 0.
///
/// Block traces name long runs of neighbours, most other traces scattered hashes. Keys start in a table that
/// has an entry for 16 neighbouring keys; when it is about to grow and is badly filled, they move to a table that
/// has one for each key, and stay there.
///
/// Memory: 6 to 12 bytes per key in full runs, 21 to 43 bytes per scattered key, and half as much again while it grows.
#[derive(Debug)]
pub struct ObjectNumbers {
    table: Table,
    len: u32,
}

#[derive(Debug)]
enum Table {
    Runs(RunTable),
    Sparse(SparseTable),
}

impl Default for ObjectNumbers {
    fn default() -> Self {
        Self::new()
    }
}

impl ObjectNumbers {
    /// No keys yet.
    pub fn new() -> Self {
        ObjectNumbers {
            table: Table::Runs(RunTable::new()),
            len: 0,
        }
    }

    /// The number of distinct keys.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Brings what `keys` need into the processor's cache, so that numbering them afterwards does not wait for memory
    /// key by key: these loads do not depend on each other and overlap.
    #[inline]
    pub fn touch(&self, keys: impl Iterator<Item = u64>) {
        match &self.table {
            Table::Runs(table) => table.touch(keys),
            Table::Sparse(table) => table.touch(keys),
        }
    }

    /// The number of `key`, and whether it is new; `None` if it would be new and all [`MAX_OBJECTS`] numbers are taken.
    #[inline]
    pub fn number(&mut self, key: u64) -> Option<(u32, bool)> {
        // A mark is an object number + 1; 0 stands for none.
        let mark = match &mut self.table {
            Table::Runs(table) => table.mark(key),
            Table::Sparse(table) => table.mark(key),
        };
        match mark.checked_sub(1) {
            Some(number) => Some((number, false)),
            None => self.insert(key),
        }
    }

    #[cold]
    fn insert(&mut self, key: u64) -> Option<(u32, bool)> {
        if self.len >= MAX_OBJECTS {
            return None;
        }
        let number = self.len;
        self.len += 1;
        if let Table::Runs(table) = &mut self.table
            && table.is_full()
        {
            if table.is_sparse(number) {
                let mut sparse = SparseTable::new();
                for (key, mark) in table.entries() {
                    sparse.insert(key, mark);
                }
                self.table = Table::Sparse(sparse);
            } else {
                table.grow();
            }
        }
        match &mut self.table {
            Table::Runs(table) => table.insert(key, number + 1),
            Table::Sparse(table) => table.insert(key, number + 1),
        }
        Some((number, true))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use pumice_trace::mix64;

    use super::*;

    /// Checks the numbers of `keys` against a map, twice.
    fn agrees_with_a_map(keys: impl Iterator<Item = u64> + Clone) {
        let mut numbers = ObjectNumbers::new();
        let mut map: HashMap<u64, u32> = HashMap::new();
        for key in keys.clone().chain(keys) {
            let next = map.len() as u32;
            let new = !map.contains_key(&key);
            let expected = *map.entry(key).or_insert(next);
            assert_eq!(numbers.number(key), Some((expected, new)), "key {key}");
        }
        assert_eq!(numbers.len() as usize, map.len());
        assert_eq!(numbers.is_empty(), map.is_empty());
    }

    /// The longest way from where a key is looked for first to where it is.
    fn longest_probe(numbers: &ObjectNumbers) -> usize {
        match &numbers.table {
            Table::Runs(table) => table.longest_probe(),
            Table::Sparse(table) => table.longest_probe(),
        }
    }

    #[test]
    fn numbers_are_dense_and_stable_through_growth() {
        agrees_with_a_map((0..20_000u64).map(mix64));
        agrees_with_a_map([0, u64::MAX, 1, 0, u64::MAX].into_iter());
        agrees_with_a_map(0..100_000);
        agrees_with_a_map((0..100_000).map(|n| n * 7));
        // Runs first, then enough scattered keys to change the table.
        agrees_with_a_map((0..50_000).chain((0..50_000).map(mix64)));
        agrees_with_a_map((0..50_000).map(mix64).chain(0..50_000));
        agrees_with_a_map((0..100_000).map(|n| u64::MAX - n));
    }

    #[test]
    fn the_table_suits_the_keys() {
        let table_for = |key_of: fn(u64) -> u64| {
            let mut numbers = ObjectNumbers::new();
            for n in 0..100_000 {
                numbers.number(key_of(n)).unwrap();
            }
            numbers.table
        };
        assert!(matches!(table_for(|n| n), Table::Runs(_)));
        assert!(matches!(table_for(|n| mix64(n / 8) + n % 8), Table::Runs(_)));
        assert!(matches!(table_for(mix64), Table::Sparse(_)));
        assert!(matches!(table_for(|n| n * 4096), Table::Sparse(_)));
    }

    #[test]
    fn regular_keys_do_not_pile_up() {
        type KeyOf = fn(u64) -> u64;
        let shapes: [(&str, KeyOf); 7] = [
            ("consecutive", |n| n),
            ("even multiples", |n| n * 8),
            ("pages", |n| n * 4096),
            ("high bits", |n| n << 40),
            ("sign-extended", |n| {
                (n as u32).wrapping_mul(0x8000_0201) as i32 as i64 as u64
            }),
            ("random", mix64),
            ("runs", |n| mix64(n / 64) + n % 64),
        ];
        for (shape, key_of) in shapes {
            let mut numbers = ObjectNumbers::new();
            for n in 0..200_000 {
                numbers.number(key_of(n)).unwrap();
            }
            let longest = longest_probe(&numbers);
            assert!(longest < 200, "{shape}: {longest}");
        }
    }
}
