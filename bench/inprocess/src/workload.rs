//! What is asked of both sides: the same keys in the same order, and the same values.

use anyhow::{anyhow, ensure};
use pumice_trace::{GeneratedRequests, Generator};
use pumice_world::mix64;
use std::cell::RefCell;

/// Bytes at the start of a value that name its key.
pub const MARK_BYTES: usize = 8;

/// Keys and sizes.
pub struct Workload {
    generator: Generator,
    sizes: (u64, u64),
    filler: RefCell<Vec<u8>>,
}

impl Workload {
    /// `keys` keys, asked for with Zipf exponent `theta`; values from `sizes.0` to `sizes.1` bytes, all alike.
    pub fn new(keys: u64, theta: f64, sizes: (u64, u64)) -> anyhow::Result<Self> {
        ensure!(
            sizes.0 >= MARK_BYTES as u64 && sizes.0 <= sizes.1 && sizes.1 <= 64 << 10,
            "value sizes {}-{}: from {MARK_BYTES} bytes to 64 KiB",
            sizes.0,
            sizes.1
        );
        let generator = Generator::endless(&format!("zipf:keys={keys},theta={theta}"))?;
        // Does not compress.
        let filler = (0..sizes.1.div_ceil(8))
            .flat_map(|n| mix64(n).to_le_bytes())
            .collect();
        Ok(Self {
            generator,
            sizes,
            filler: RefCell::new(filler),
        })
    }

    pub fn requests(&self) -> GeneratedRequests {
        self.generator.stream()
    }

    /// All keys, the least popular first.
    pub fn keys(&self) -> impl Iterator<Item = u64> {
        (1..=self.generator.ranks())
            .rev()
            .map(|rank| self.generator.key_of_rank(rank))
    }

    /// All keys, in an order that has nothing to do with how popular they are.
    pub fn keys_shuffled(&self) -> impl Iterator<Item = u64> {
        let ranks = self.generator.ranks();
        // A prime beyond every number of keys: each rank comes once.
        const STEP: u128 = 1_099_511_627_791;
        (0..ranks).map(move |n| {
            let rank = (u128::from(n) * STEP % u128::from(ranks)) as u64;
            self.generator.key_of_rank(rank + 1)
        })
    }

    /// The size of a key's value in bytes.
    pub fn size(&self, key: u64) -> usize {
        let (first, last) = self.sizes;
        first as usize + ((u128::from(mix64(key)) * u128::from(last - first + 1)) >> 64) as usize
    }

    /// Hands out a key's value, which is only made as long as `take` runs.
    pub fn with_value<T>(&self, key: u64, take: impl FnOnce(&[u8]) -> T) -> T {
        let mut filler = self.filler.borrow_mut();
        filler[..MARK_BYTES].copy_from_slice(&key.to_le_bytes());
        take(&filler[..self.size(key)])
    }

    /// Whether `value` is that of the key, by its size and its mark.
    pub fn check(&self, key: u64, value: &[u8]) -> anyhow::Result<()> {
        if value.len() == self.size(key) && value[..MARK_BYTES] == key.to_le_bytes() {
            return Ok(());
        }
        Err(anyhow!(
            "key {key:x}: another value came back, of {} bytes",
            value.len()
        ))
    }
}
