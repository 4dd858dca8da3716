//! Records in blocks that are still buffers.

use crate::footer::FooterEntry;
use crate::objects::{Objects, OpenBlock};
use pumice_blocks::Reserved;
use pumice_index::{Location, Mapping};
use pumice_memory::Buffer;
use pumice_record::{RecordParts, put_head};
use std::sync::Arc;

/// A record that stands in an open block. Its block is not sealed before this is dropped: drop it after the mapping
/// is made.
pub struct Appended<B: Buffer> {
    /// The mapping to make: where the record is, from now on for good.
    pub mapping: Mapping,
    reserved: Reserved<Objects<B>>,
}

impl<B: Buffer> Appended<B> {
    /// Reserves room for a record of padded length `len`; `None` where it does not fit any more. The caller
    /// copies the record with [`Appended::copy`] before anybody hears of the mapping.
    pub(crate) fn reserve(
        block: &Arc<OpenBlock<B>>,
        hash: u64,
        parts: &RecordParts<'_>,
        len: usize,
    ) -> Option<Self> {
        let len_bytes = u32::try_from(len).expect("records are at most 1 MiB");
        let reserved = block.reserve(len, |offset, number| FooterEntry {
            hash,
            version: parts.version,
            offset,
            len: len_bytes,
            expiry: parts.expiry,
            number,
        })?;
        let location = Location {
            offset: block.device_offset + reserved.at as u64,
            len: len_bytes,
        };
        let mapping = Mapping { location, note: 0 };
        Some(Self { mapping, reserved })
    }

    pub(crate) fn block(&self) -> &OpenBlock<B> {
        &self.reserved.block
    }

    /// Copies the record to where it was reserved, once.
    pub(crate) fn copy(&self, cache_id: u64, parts: &RecordParts<'_>) {
        let (block, at) = (self.block(), self.reserved.at);
        let header = parts
            .header(block.sequence)
            .encode(cache_id, parts.key, parts.head);
        // SAFETY: the range was reserved for this record alone, and nothing reads it before the mapping is made.
        unsafe {
            put_head(&*block.buffer, at, &header, [parts.key, parts.head]);
            let value_at = at + header.len() + parts.key.len() + parts.head.len();
            block.buffer.put_in_sequence(value_at, parts.value)
        };
    }
}

/// Where the record at `location` starts in the buffer of its block.
pub(crate) fn position_of<B: Buffer>(block: &OpenBlock<B>, location: Location) -> usize {
    usize::try_from(location.offset - block.device_offset).expect("inside the block")
}
