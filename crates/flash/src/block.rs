//! A block that is still a buffer in DRAM.

use crate::footer::FooterEntry;
use parking_lot::Mutex;
use pumice_blocks::footer::{Trailer, footer_len};
use pumice_index::{Location, Mapping};
use pumice_memory::{Buffer, Payload, SECTOR_BYTES};
use pumice_record::{HEADER_BYTES, RecordParts, put_head};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// What a block is filled with, where new objects and those that reclaims keep do not share blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// New objects; under most layouts all.
    New,
    /// With two-phase reclaim: what was asked for while it stood in another block.
    Kept,
}

/// A block being filled, or filled and on its way to the device.
///
/// Several threads append at once: each reserves its range under the lock and copies outside it. The block is
/// composed and written only after the last of them has dropped its [`Appended`].
pub struct OpenBlock<B> {
    /// Number of the block on the device.
    pub id: u32,
    /// Sequence of this life of it.
    pub sequence: u64,
    /// Which of the layout's streams it is filled from.
    pub(crate) stream: Stream,
    /// The bytes.
    pub buffer: Arc<B>,
    device_offset: u64,
    block_bytes: usize,
    fill: Mutex<Fill>,
    /// Threads between reserving and publishing, in two turns: of the last prefix that was begun, and since.
    writers: [AtomicU32; 2],
    /// Log position when the block stopped being a mere buffer; `u64::MAX` before.
    pub(crate) sealing_position: AtomicU64,
    /// Set when the block is composed, once: a write that did not come to its end is made again with the same bytes.
    pub(crate) composed: OnceLock<Composed>,
}

#[derive(Default)]
struct Fill {
    at: usize,
    entries: Vec<FooterEntry>,
    /// Bytes from the start that are on the device, whole sectors.
    written: usize,
    /// See [`OpenBlock::unwritten_since`].
    unwritten_since: Option<u32>,
    /// The turn of writers that reserve now.
    turn: usize,
}

impl Fill {
    /// The longest record that still fits a block of so many bytes, beside the footer that it needs then.
    fn room(&self, block_bytes: usize) -> usize {
        block_bytes.saturating_sub(self.at + footer_len::<FooterEntry>(self.entries.len() + 1))
    }
}

/// A part of an active block that is written before the block is full.
pub(crate) struct Prefix {
    /// Bytes of the block, whole sectors.
    pub(crate) range: Range<usize>,
    /// Bytes of those that hold nothing.
    pub(crate) padding: usize,
    /// Its records.
    pub(crate) entries: Vec<FooterEntry>,
    turn: usize,
}

/// What a block is written with.
pub(crate) struct Composed {
    /// The objects that the footer lists: those that were live, and with slots all.
    pub(crate) entries: Vec<FooterEntry>,
    /// `None` where nothing was live: there is nothing to write.
    pub(crate) trailer: Option<Trailer>,
    /// Bytes of all records, dead ones included.
    pub(crate) filled: u64,
}

/// A record that stands in an open block. Its block is not sealed before this is dropped: drop it after the mapping
/// is made.
pub struct Appended<B> {
    /// The mapping to make: where the record is, from now on for good.
    pub mapping: Mapping,
    block: Arc<OpenBlock<B>>,
    turn: usize,
}

impl<B> Appended<B> {
    pub(crate) fn block(&self) -> &OpenBlock<B> {
        &self.block
    }
}

impl<B: Buffer> Appended<B> {
    /// Copies the record to where it was reserved, once.
    pub(crate) fn copy(&self, cache_id: u64, parts: &RecordParts<'_>) {
        let at = self.block.position_of(self.mapping.location);
        let header = parts.header(self.block.sequence).encode(cache_id, parts.key);
        put_head(&*self.block.buffer, at, &header, parts.key);
        // SAFETY: the range was reserved for this record alone, and nobody reads it before the mapping is made.
        unsafe {
            self.block
                .buffer
                .put_in_sequence(at + HEADER_BYTES + parts.key.len(), parts.value)
        };
    }
}

impl<B> Drop for Appended<B> {
    fn drop(&mut self) {
        self.block.writers[self.turn].fetch_sub(1, Ordering::Release);
    }
}

impl<B: Buffer> OpenBlock<B> {
    /// An empty block over `buffer`, which has the block's length.
    pub(crate) fn new(id: u32, sequence: u64, stream: Stream, device_offset: u64, buffer: Arc<B>) -> Self {
        Self {
            id,
            sequence,
            stream,
            device_offset,
            block_bytes: buffer.len(),
            buffer,
            fill: Mutex::new(Fill::default()),
            writers: Default::default(),
            sealing_position: AtomicU64::new(u64::MAX),
            composed: OnceLock::new(),
        }
    }

    /// Reserves room for a record of padded length `len`; `None` where it does not fit any more. The caller
    /// copies the record with [`Appended::copy`] before anybody hears of the mapping.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        hash: u64,
        parts: &RecordParts<'_>,
        len: usize,
    ) -> Option<Appended<B>> {
        let len_bytes = u32::try_from(len).expect("records are at most 1 MiB");
        let mut fill = self.fill.lock();
        let number = u32::try_from(fill.entries.len()).expect("a block has fewer than 2^32 bytes");
        let at = fill.at;
        if len > fill.room(self.block_bytes) {
            return None;
        }
        fill.at += len;
        let offset = u32::try_from(at).expect("blocks are at most 256 MiB");
        fill.entries.push(FooterEntry {
            hash,
            version: parts.version,
            offset,
            len: len_bytes,
            expiry: parts.expiry,
            number,
        });
        self.writers[fill.turn].fetch_add(1, Ordering::Relaxed);
        Some(Appended {
            mapping: Mapping {
                location: Location {
                    offset: self.device_offset + at as u64,
                    len: len_bytes,
                },
                note: 0,
            },
            block: Arc::clone(self),
            turn: fill.turn,
        })
    }

    /// Whether a record of padded length `len` still fits.
    pub fn fits(&self, len: usize) -> bool {
        len <= self.room()
    }

    /// The longest record that still fits, padded, in bytes.
    pub fn room(&self) -> usize {
        self.fill.lock().room(self.block_bytes)
    }

    /// Where the record at `location` starts in the buffer.
    pub fn position_of(&self, location: Location) -> usize {
        usize::try_from(location.offset - self.device_offset).expect("inside the block")
    }

    /// When the oldest record that is not on the device was appended, in Unix seconds, up to a second too early; `seen` where that is
    /// since it was last asked.
    pub(crate) fn unwritten_since(&self, seen: u32) -> Option<u32> {
        let mut fill = self.fill.lock();
        (fill.at > fill.written).then(|| *fill.unwritten_since.get_or_insert(seen))
    }

    /// Bytes from the start that are on the device.
    pub(crate) fn written(&self) -> usize {
        self.fill.lock().written
    }

    /// Begins to write what was appended since the last write, made up to a sector, so that what is written never changes and no
    /// sector is written twice. `None` where the footer leaves no room for that. One at a time is written.
    pub(crate) fn begin_prefix(&self) -> Option<Prefix> {
        let mut fill = self.fill.lock();
        let end = fill.at.next_multiple_of(SECTOR_BYTES);
        if end + footer_len::<FooterEntry>(fill.entries.len()) > self.block_bytes {
            return None;
        }
        let padding = end - std::mem::replace(&mut fill.at, end);
        let turn = fill.turn;
        fill.turn = 1 - turn;
        let first = (fill.entries).partition_point(|entry| (entry.offset as usize) < fill.written);
        Some(Prefix {
            range: fill.written..end,
            padding,
            entries: fill.entries[first..].to_vec(),
            turn,
        })
    }

    /// Waits for the threads that publish what is in a prefix: for copies of at most a record's length.
    pub(crate) fn wait_for_prefix(&self, prefix: &Prefix) {
        while self.writers[prefix.turn].load(Ordering::Acquire) != 0 {
            std::thread::yield_now();
        }
    }

    /// A prefix that was begun at a second is on the device.
    pub(crate) fn note_written(&self, prefix: &Prefix, begun: u32) {
        let mut fill = self.fill.lock();
        fill.written = prefix.range.end;
        fill.unwritten_since = (fill.at > fill.written).then_some(begun);
    }

    /// Takes the footer entries of a block that nobody appends to any more. Waits for threads that are between reserving and publishing:
    /// for copies of at most a record's length, on other threads, which is short.
    pub(crate) fn finish(&self) -> Vec<FooterEntry> {
        while self.writers.iter().any(|turn| turn.load(Ordering::Acquire) != 0) {
            std::thread::yield_now();
        }
        std::mem::take(&mut self.fill.lock().entries)
    }

    /// Writes the footer to the block's end.
    pub(crate) fn put_footer(&self, footer: &[u8]) {
        let at = self.block_bytes - footer.len();
        // SAFETY: the room was kept free by `append`, and no record's range reaches into it.
        unsafe { self.buffer.put(at, Payload::Bytes(footer)) };
    }

    /// Bytes appended so far, and records.
    pub fn filled(&self) -> (usize, usize) {
        let fill = self.fill.lock();
        (fill.at, fill.entries.len())
    }
}
