//! Values that say what they are, and the check of what comes back.
//!
//! A value is a header of [`HEADER_BYTES`] and a filler:
//!
//! | bytes | what | guards against |
//! |---|---|---|
//! | 0..8 | key, little-endian | another key's value |
//! | 8..16 | stamp of the run that wrote it: nanoseconds since 1970 | taking an earlier run's value for a stale one |
//! | 16..20 | version | a value that a later set has replaced |
//! | 20..24 | check over the above and the length | damage in the header, a value cut or grown |
//! | 24.. | filler, fixed by all of the above | damage anywhere else |
//!
//! The filler is taken from one pseudo-random block, the same in every run, in chunks of [`CHUNK_BYTES`]; where each
//! chunk begins in the block follows from key, stamp, version and the chunk's number. Making a value is then a copy
//! and checking it a comparison, both at the speed of memory.

use pumice_world::{Random, mix64};

/// Bytes of a value's header, and so the least size of a value.
pub const HEADER_BYTES: usize = 24;
/// Bytes of one chunk of filler.
pub const CHUNK_BYTES: usize = 4096;
/// Places where a chunk may begin, times 8; a power of two.
const BLOCK_BYTES: usize = 32 << 10;
const BLOCK_SEED: u64 = 0x7075_6d69_6365_2076;

/// Who wrote a value, as its header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The run.
    pub stamp: u64,
    /// The version that the run gave it.
    pub version: u32,
}

/// What is wrong with the bytes of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadValue {
    /// It is whole, and belongs to this other key.
    Foreign(u64),
    /// Its header does not hold together: damage, or a wrong length, or not written by this program.
    Header,
    /// Its filler differs from what the header says, first at this byte of the value.
    Filler(usize),
}

/// Makes and checks values.
#[derive(Debug)]
pub struct Values {
    block: Box<[u8]>,
    stamp: u64,
}

impl Values {
    /// Values of the run with this stamp.
    pub fn new(stamp: u64) -> Self {
        let mut random = Random(BLOCK_SEED);
        let words = (BLOCK_BYTES + CHUNK_BYTES) / 8;
        let block = (0..words).flat_map(|_| random.next_u64().to_le_bytes()).collect();
        Values { block, stamp }
    }

    /// The stamp of this run.
    pub fn stamp(&self) -> u64 {
        self.stamp
    }

    /// Appends the value of `len` bytes (at least [`HEADER_BYTES`]) for a key and version.
    pub fn append(&self, out: &mut Vec<u8>, key: u64, version: u32, len: usize) {
        let origin = Origin {
            stamp: self.stamp,
            version,
        };
        let seed = seed(key, origin);
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&key.to_le_bytes());
        header[8..16].copy_from_slice(&origin.stamp.to_le_bytes());
        header[16..20].copy_from_slice(&version.to_le_bytes());
        header[20..].copy_from_slice(&check(seed, len).to_le_bytes());
        out.extend_from_slice(&header);
        let mut left = len.saturating_sub(HEADER_BYTES);
        let mut chunk = 0;
        while left > 0 {
            let part = left.min(CHUNK_BYTES);
            out.extend_from_slice(self.filler(seed, chunk, part));
            left -= part;
            chunk += 1;
        }
    }

    /// Checks every byte of a value that was returned for `key`.
    ///
    /// # Errors
    /// What is wrong.
    pub fn verify(&self, key: u64, value: &[u8]) -> Result<Origin, BadValue> {
        let (Some(header), Some(filler)) = (value.first_chunk::<HEADER_BYTES>(), value.get(HEADER_BYTES..))
        else {
            return Err(BadValue::Header);
        };
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&header[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let (owner, last) = (word(0), word(16));
        let origin = Origin {
            stamp: word(8),
            version: last as u32,
        };
        let seed = seed(owner, origin);
        if (last >> 32) as u32 != check(seed, value.len()) {
            return Err(BadValue::Header);
        }
        for (chunk, part) in filler.chunks(CHUNK_BYTES).enumerate() {
            let expected = self.filler(seed, chunk as u64, part.len());
            if part != expected {
                let same = part.iter().zip(expected).take_while(|(a, b)| a == b).count();
                return Err(BadValue::Filler(HEADER_BYTES + chunk * CHUNK_BYTES + same));
            }
        }
        if owner != key {
            return Err(BadValue::Foreign(owner));
        }
        Ok(origin)
    }

    fn filler(&self, seed: u64, chunk: u64, len: usize) -> &[u8] {
        let place = seed.wrapping_add(chunk.wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 32;
        let from = place as usize & (BLOCK_BYTES - 8);
        &self.block[from..from + len]
    }
}

fn seed(key: u64, origin: Origin) -> u64 {
    mix64(key ^ mix64(origin.stamp ^ u64::from(origin.version).rotate_left(32)))
}

fn check(seed: u64, len: usize) -> u32 {
    mix64(seed ^ len as u64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [usize; 8] = [24, 25, 31, 100, 4096, 4120, 4121, 20_000];

    fn value(values: &Values, key: u64, version: u32, len: usize) -> Vec<u8> {
        let mut value = Vec::new();
        values.append(&mut value, key, version, len);
        value
    }

    #[test]
    fn a_good_value_names_its_origin_in_any_run() {
        let (earlier, now) = (Values::new(5), Values::new(9));
        for len in SIZES {
            let value = value(&earlier, 77, 3, len);
            assert_eq!(value.len(), len);
            let origin = Origin { stamp: 5, version: 3 };
            assert_eq!(now.verify(77, &value), Ok(origin));
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let values = Values::new(1);
        for len in SIZES {
            let good = value(&values, 12, 4, len);
            for at in (0..len).filter(|at| *at < 200 || at % 61 == 0 || at + 1 == len) {
                let mut bad = good.clone();
                bad[at] ^= 1 << (at % 8);
                let found = values.verify(12, &bad);
                if at < HEADER_BYTES {
                    assert_eq!(found, Err(BadValue::Header), "byte {at} of {len}");
                } else {
                    assert_eq!(found, Err(BadValue::Filler(at)), "of {len}");
                }
            }
        }
    }

    #[test]
    fn cut_grown_foreign_and_mixed_values_are_found() {
        let values = Values::new(1);
        let good = value(&values, 12, 4, 9000);
        for len in [0, 5, 23, 24, 100, 8999] {
            assert_eq!(values.verify(12, &good[..len]), Err(BadValue::Header), "{len}");
        }
        let mut grown = good.clone();
        grown.push(0);
        assert_eq!(values.verify(12, &grown), Err(BadValue::Header));
        assert_eq!(values.verify(13, &good), Err(BadValue::Foreign(12)));
        // The first page of one version with the second page of another; two pages in the wrong order.
        let mut mixed = good.clone();
        mixed[4096..].copy_from_slice(&value(&values, 12, 5, 9000)[4096..]);
        assert_eq!(values.verify(12, &mixed), Err(BadValue::Filler(4096)));
        let mut swapped = good.clone();
        swapped[24..24 + 4096].copy_from_slice(&good[24 + 4096..24 + 8192]);
        assert!(matches!(values.verify(12, &swapped), Err(BadValue::Filler(_))));
    }
}
