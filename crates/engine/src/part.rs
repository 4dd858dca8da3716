//! Which part of which object a record is.

use pumice_memory::Buffer;
use pumice_record::{Record, RecordParts, SliceId};

/// One part of an object: the whole of a small one, the head of a large one, or one slice of one set of a large one.
///
/// A whole object and a head stand for the same key. A slice belongs to the set that wrote it, so that two sets of one
/// large key at once do not overwrite each other's slices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartId<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) slice: SliceId,
    /// The version that all slices of a set share; without meaning for whole objects and heads.
    pub(crate) set: u64,
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
    pub(crate) fn slice(key: &'a [u8], number: u16, set: u64) -> Self {
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
