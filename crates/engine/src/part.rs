//! Which part of which object a record is, and the hash that stands for it.

use pumice_index::KeyHash;
use pumice_memory::Buffer;
use pumice_record::{Record, RecordParts, SliceId};
use pumice_world::{MIX_STEP, mix64};
use twox_hash::XxHash3_64;

/// One part of an object: the whole of a small one, the head of a large one, or one slice of one set of a large one.
///
/// A whole object and a head stand for the same key. A slice belongs to the set that wrote it, so that two sets of one
/// large key at once do not overwrite each other's slices.
#[derive(Clone, Copy, Debug)]
pub struct PartId<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) slice: SliceId,
    /// The version that all slices of a set share; without meaning for whole objects and heads.
    pub(crate) set: u64,
}

impl<'a, K: AsRef<[u8]> + ?Sized> From<&'a K> for PartId<'a> {
    /// The object under a key.
    fn from(key: &'a K) -> Self {
        Self::object(key.as_ref())
    }
}

impl<'a> PartId<'a> {
    /// The object under a key, whole or as a head.
    pub(crate) fn object(key: &'a [u8]) -> Self {
        Self {
            key,
            slice: SliceId::Whole,
            set: 0,
        }
    }

    /// Slice `number` of the set with version `set`.
    pub(crate) fn slice(key: &'a [u8], number: u32, set: u64) -> Self {
        Self {
            key,
            slice: SliceId::Part(number),
            set,
        }
    }

    /// What a record is.
    pub(crate) fn of(parts: &RecordParts<'a>) -> Self {
        match parts.slice {
            SliceId::Part(number) => Self::slice(parts.key, number, parts.version),
            _ => Self::object(parts.key),
        }
    }

    /// Whether a record is this part.
    pub(crate) fn is<B: Buffer>(&self, record: &Record<B>) -> bool {
        let header = record.header();
        let same = match (header.slice, self.slice) {
            (SliceId::Part(a), SliceId::Part(b)) => a == b && header.version == self.set,
            (SliceId::Part(_), _) | (_, SliceId::Part(_)) => false,
            _ => true,
        };
        same && record.key() == self.key
    }
}

/// Hashes keys: XXH3-64 with the cache's seed.
#[derive(Clone, Copy, Debug)]
pub struct KeyHasher {
    seed: u64,
    limit: HashLimit,
}

/// For tests of collisions: how many bits of the hash to keep, from the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashLimit(pub u32);

impl Default for HashLimit {
    fn default() -> Self {
        Self(64)
    }
}

impl KeyHasher {
    /// A hasher with `seed`.
    pub fn new(seed: u64, limit: HashLimit) -> Self {
        Self { seed, limit }
    }

    /// The hash of a part: of the key, or of a slice's key, number and set.
    pub(crate) fn hash(&self, part: &PartId<'_>) -> KeyHash {
        let mut hash = XxHash3_64::oneshot_with_seed(self.seed, part.key);
        if let SliceId::Part(number) = part.slice {
            // Mixed for each, so that the slices of an object spread over all shards.
            let of_set = hash.wrapping_add(mix64(part.set));
            hash = mix64(of_set.wrapping_add(u64::from(number).wrapping_mul(MIX_STEP)));
        }
        match self.limit.0 {
            0 => hash & 0xFFFF,
            64.. => hash,
            // The lowest bits are below what an index tells apart: collisions there are of keys with different hashes.
            bits => hash & (u64::MAX << (64 - bits) | 0xFFFF),
        }
    }
}
