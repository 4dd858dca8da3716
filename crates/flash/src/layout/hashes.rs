//! Maps whose keys are hashes already.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Takes a 64-bit key as it is. The same keys in the same order make the same table, on every run.
#[derive(Clone, Copy, Default)]
pub(crate) struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are 64-bit numbers");
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

/// A map by hash.
pub(crate) type ByHash<T> = HashMap<u64, T, BuildHasherDefault<AsIs>>;
