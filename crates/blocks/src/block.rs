//! A block that is still a buffer in DRAM.

use crate::footer::{Entry, TRAILER_BYTES, Trailer};
use crate::owner::Owner;
use locks::Mutex;
use pumice_memory::{Buffer, Payload, SECTOR_BYTES};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};

/// A block being filled, or filled and on its way to the device.
///
/// Several threads append at once: each reserves its range under the lock and copies outside it. The block is
/// composed and written only after the last of them has dropped its [`Reserved`].
pub struct OpenBlock<O: Owner> {
    /// Number of the block on the device.
    pub id: u32,
    /// Sequence of this generation.
    pub sequence: u64,
    /// The owner's.
    pub tag: O::Tag,
    /// The bytes.
    pub buffer: Arc<O::Buf>,
    /// Where the block starts on the device, in bytes.
    pub device_offset: u64,
    block_bytes: usize,
    fill: Mutex<Fill<O::Entry>>,
    /// Threads between reserving and publishing, in two turns: of the last prefix that was begun, and since.
    writers: [AtomicU32; 2],
    /// Log position when the block stopped being a mere buffer; `u64::MAX` before.
    pub sealing_position: AtomicU64,
    /// Set when the block is composed, once: a write that did not come to its end is made again with the same bytes.
    pub(crate) composed: OnceLock<Composed<O::Entry>>,
    /// Whether somebody waits until it is written.
    pub(crate) is_awaited: AtomicBool,
    /// Bytes from the start that were sent to the device, or are being sent.
    pub(crate) sent: AtomicUsize,
    /// Bytes from the start where the device file has no hole, as far as was asked.
    pub(crate) filled: AtomicUsize,
}

struct Fill<E> {
    at: usize,
    /// Bytes of all pieces, without what is between prefixes.
    piece_bytes: usize,
    entries: Vec<E>,
    /// Bytes of a footer that lists them all.
    footer_bytes: usize,
    /// Bytes from the start that are on the device, whole sectors.
    written: usize,
    /// Bytes from the start of which a write was begun. They never change again.
    begun: usize,
    /// See [`OpenBlock::unwritten_since`].
    unwritten_since: Option<u32>,
    /// The turn of writers that reserve now.
    turn: usize,
}

impl<E: Entry> Fill<E> {
    /// The longest piece that still fits a block of so many bytes, beside the footer that it needs then.
    fn room(&self, block_bytes: usize) -> usize {
        block_bytes.saturating_sub(self.at + self.footer_bytes + E::BYTES_MAX)
    }
}

/// A part of an active block that is written before the block is full: what was appended since the last one.
pub struct Prefix<E> {
    /// Bytes of the block, whole sectors.
    pub range: Range<usize>,
    /// Bytes of those that hold nothing.
    pub padding: usize,
    /// Its entries.
    pub entries: Vec<E>,
    turn: usize,
}

/// What a block is written with.
pub(crate) struct Composed<E> {
    /// What the footer lists.
    pub(crate) entries: Vec<E>,
    /// `None` where nothing was live: there is nothing to write.
    pub(crate) trailer: Option<Trailer>,
}

/// Room in an open block. Its block is not sealed before this is dropped: drop it after the piece can be found.
pub struct Reserved<O: Owner> {
    /// The block.
    pub block: Arc<OpenBlock<O>>,
    /// Bytes into the block.
    pub at: usize,
    turn: usize,
}

impl<O: Owner> Drop for Reserved<O> {
    fn drop(&mut self) {
        self.block.writers[self.turn].fetch_sub(1, Ordering::Release);
    }
}

impl<O: Owner> OpenBlock<O> {
    /// An empty block over `buffer`, which has the block's length.
    pub(crate) fn new(id: u32, sequence: u64, tag: O::Tag, device_offset: u64, buffer: Arc<O::Buf>) -> Self {
        Self {
            id,
            sequence,
            tag,
            device_offset,
            block_bytes: buffer.len(),
            buffer,
            fill: Mutex::new(Fill {
                at: 0,
                piece_bytes: 0,
                entries: Vec::new(),
                footer_bytes: TRAILER_BYTES,
                written: 0,
                begun: 0,
                unwritten_since: None,
                turn: 0,
            }),
            writers: Default::default(),
            sealing_position: AtomicU64::new(u64::MAX),
            composed: OnceLock::new(),
            is_awaited: AtomicBool::new(false),
            sent: AtomicUsize::new(0),
            filled: AtomicUsize::new(0),
        }
    }

    /// Reserves room for a piece of `len` bytes; `None` where it does not fit any more. `entry` makes its entry of the footer, from
    /// the offset in the block and the number of the entry. The caller alone writes to the range ([`Buffer::put`]), before anybody
    /// hears of it.
    pub fn reserve(
        self: &Arc<Self>,
        len: usize,
        entry: impl FnOnce(u32, u32) -> O::Entry,
    ) -> Option<Reserved<O>> {
        let mut fill = self.fill.lock();
        let number = u32::try_from(fill.entries.len()).expect("a block has fewer than 2^32 bytes");
        let at = fill.at;
        if len > fill.room(self.block_bytes) {
            return None;
        }
        fill.at += len;
        fill.piece_bytes += len;
        let offset = u32::try_from(at).expect("blocks are at most 256 MiB");
        let entry = entry(offset, number);
        fill.footer_bytes += entry.encoded_len(fill.entries.last());
        fill.entries.push(entry);
        self.writers[fill.turn].fetch_add(1, Ordering::Relaxed);
        Some(Reserved {
            block: Arc::clone(self),
            at,
            turn: fill.turn,
        })
    }

    /// Reserves the room of the piece at `at` again, for a piece that is not longer. `change` updates the entry, whose bytes become no more,
    /// or returns `None` to decline.
    /// Returns `None` if it declines, a write of the old piece has begun, or somebody else holds the block and may be reading the piece.
    ///
    /// The caller has two references to the block, that of the list of open blocks included. Until the new piece is written it lets no reader
    /// get a reference, and nobody close the block.
    pub fn rewrite(
        self: &Arc<Self>,
        at: usize,
        change: impl FnOnce(&mut O::Entry) -> Option<()>,
    ) -> Option<Reserved<O>> {
        if Arc::strong_count(self) > 2 {
            return None;
        }
        // Pairs with the drop of a reader's reference: its reads came before.
        fence(Ordering::Acquire);
        let mut fill = self.fill.lock();
        let first = (fill.entries).partition_point(|entry| entry.range().start < at as u64);
        let entry = (at >= fill.begun).then(|| fill.entries.get_mut(first))??;
        change(entry)?;
        let turn = fill.turn;
        self.writers[turn].fetch_add(1, Ordering::Relaxed);
        Some(Reserved {
            block: Arc::clone(self),
            at,
            turn,
        })
    }

    /// Whether a piece of `len` bytes still fits.
    pub fn fits(&self, len: usize) -> bool {
        len <= self.room()
    }

    /// The longest piece that still fits, in bytes.
    pub fn room(&self) -> usize {
        self.fill.lock().room(self.block_bytes)
    }

    /// When the oldest piece that is not on the device was appended, in Unix seconds, up to a second too early; `seen` where that is
    /// since it was last asked.
    pub(crate) fn unwritten_since(&self, seen: u32) -> Option<u32> {
        let mut fill = self.fill.lock();
        (fill.at > fill.written).then(|| *fill.unwritten_since.get_or_insert(seen))
    }

    /// End of the last piece, in bytes from the start.
    pub(crate) fn end(&self) -> usize {
        self.fill.lock().at
    }

    /// Bytes from the start that are on the device.
    pub fn written(&self) -> usize {
        self.fill.lock().written
    }

    /// Bytes of pieces of which no write has begun.
    pub(crate) fn unsent_bytes(&self) -> usize {
        let at = self.fill.lock().at;
        at.saturating_sub(self.sent.load(Ordering::Relaxed))
    }

    /// Begins to write what was appended since the last write, made up to a sector, so that what is written never changes and no
    /// sector is written twice. `None` where the footer leaves no room for that. At most one prefix of a block is written at a time.
    pub fn begin_prefix(&self) -> Option<Prefix<O::Entry>> {
        let mut fill = self.fill.lock();
        let end = fill.at.next_multiple_of(SECTOR_BYTES);
        if end + fill.footer_bytes > self.block_bytes {
            return None;
        }
        let padding = end - std::mem::replace(&mut fill.at, end);
        fill.begun = end;
        let turn = fill.turn;
        fill.turn = 1 - turn;
        let first = (fill.entries).partition_point(|entry| entry.range().start < fill.written as u64);
        Some(Prefix {
            range: fill.written..end,
            padding,
            entries: fill.entries[first..].to_vec(),
            turn,
        })
    }

    /// Whether a piece that is not on the device is wanted; false once the block is composed.
    pub(crate) fn has_unwritten(&self, is_wanted: impl Fn(&O::Entry) -> bool) -> bool {
        let fill = self.fill.lock();
        let first = (fill.entries).partition_point(|entry| entry.range().start < fill.written as u64);
        fill.entries[first..].iter().any(is_wanted)
    }

    /// Waits for the threads that publish what is in a prefix: for copies of at most a piece's length.
    pub(crate) fn wait_for_prefix(&self, prefix: &Prefix<O::Entry>) {
        while self.writers[prefix.turn].load(Ordering::Acquire) != 0 {
            std::thread::yield_now();
        }
    }

    /// A prefix that was begun at a second is on the device.
    pub(crate) fn note_written(&self, prefix: &Prefix<O::Entry>, begun: u32) {
        let mut fill = self.fill.lock();
        fill.written = prefix.range.end;
        fill.unwritten_since = (fill.at > fill.written).then_some(begun);
    }

    /// Takes the footer entries of a block that gets no more pieces. Waits for threads that are between reserving and publishing:
    /// for copies of at most a piece's length, on other threads, which is short.
    pub(crate) fn finish(&self) -> Vec<O::Entry> {
        while self.writers.iter().any(|turn| turn.load(Ordering::Acquire) != 0) {
            std::thread::yield_now();
        }
        std::mem::take(&mut self.fill.lock().entries)
    }

    /// Writes the footer to the block's end.
    pub(crate) fn put_footer(&self, footer: &[u8]) {
        let at = self.block_bytes - footer.len();
        // SAFETY: the room was kept free by `reserve`, and no piece's range reaches into it.
        unsafe { self.buffer.put(at, Payload::Bytes(footer)) };
    }

    /// Bytes of all pieces that were appended, dead ones included.
    pub fn piece_bytes(&self) -> u64 {
        self.fill.lock().piece_bytes as u64
    }

    /// Bytes appended so far, and pieces.
    pub fn filled(&self) -> (usize, usize) {
        let fill = self.fill.lock();
        (fill.at, fill.entries.len())
    }
}
