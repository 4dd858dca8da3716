//! The appender: contents and references go to the active block, one behind the other, and changes to the log.

use super::addresses::Mapped;
use super::owner::{Base, Change, Chunks, Open};
use super::read::Spot;
use super::shape::Shape;
use super::starts::Starts;
use crate::lba::Slot;
use crate::piece::{Entry, HEADER_BYTES, Header, Kind, REFERENCE_BYTES, Reference, UNIT_BYTES, piece_len};
use crate::place::Place;
use locks::Mutex;
use pumice_blocks::log::Kind as LogKind;
use pumice_blocks::{Begun, Logged, Reserved, State};
use pumice_device::Device;
use pumice_memory::{Buffer, Payload};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The part of the log that is kept for a block that is being filled.
const HELD_PART: u64 = 16;

/// What the lock of the appender is around.
struct Tail<B: Buffer> {
    active: Option<Arc<Open<B>>>,
    /// By block.
    starts: Vec<Starts>,
}

impl<B: Buffer> Tail<B> {
    fn is_active(&self, block: &Arc<Open<B>>) -> bool {
        let active = self.active.as_ref();
        active.is_some_and(|active| Arc::ptr_eq(active, block))
    }
}

/// The active block, and where the contents of all blocks begin. Its lock is acquired after that of the addresses, and before any of `blocks`.
pub(super) struct Appender<B: Buffer> {
    base: Arc<Base<B>>,
    shape: Shape,
    /// Whether chunks may be dirty.
    keeps: bool,
    tail: Mutex<Tail<B>>,
}

impl<B: Buffer> Appender<B> {
    /// One without an active block. `starts`: by block, where contents begin.
    pub(super) fn new(base: Arc<Base<B>>, shape: Shape, keeps: bool, starts: Vec<Starts>) -> Self {
        Self {
            base,
            shape,
            keeps,
            tail: Mutex::new(Tail { active: None, starts }),
        }
    }

    /// The sequence of a block.
    pub(super) fn sequence(&self, block: u32) -> u64 {
        self.base.blocks[block as usize].sequence.load(Ordering::Acquire)
    }

    /// Whether a chunk may be mapped to a block: it has this sequence, and is not being reclaimed.
    pub(super) fn is_source(&self, block: u32, sequence: u64) -> bool {
        let state = self.base.blocks[block as usize].state();
        let is_there = matches!(state, State::Active | State::Sealing | State::Sealed);
        is_there && self.sequence(block) == sequence
    }

    /// Lets no chunk be mapped to blocks from here on. Duplicates are mapped under the lock of the addresses.
    pub(super) fn retire(&self, _: &Mapped, blocks: &[u32]) {
        for block in blocks {
            self.base.blocks[*block as usize].set_state(State::Reclaiming);
        }
    }

    /// Resolves a place.
    pub(super) fn spot(&self, place: Place) -> Option<Spot<B>> {
        let tail = self.tail.lock();
        let starts = tail.starts.get(place.block as usize)?;
        let (at, len_max) = starts.extent(
            place.number,
            self.base.geometry.block_bytes,
            self.shape.piece_max(),
        )?;
        Some(Spot {
            place,
            is_dirty: false,
            sequence: self.sequence(place.block),
            at,
            len_max,
            open: self.base.find_open(place.block),
        })
    }

    /// Resolves a mapping, while the addresses are locked.
    pub(super) fn spot_of(&self, slot: Slot) -> Option<Spot<B>> {
        let spot = self.spot(slot.place)?;
        let is_dirty = slot.is_dirty;
        Some(Spot { is_dirty, ..spot })
    }

    /// Where the contents of a block begin, in units.
    pub(super) fn starts_of(&self, block: u32) -> Vec<u32> {
        let starts = &self.tail.lock().starts[block as usize];
        (0..starts.len())
            .filter_map(|number| starts.get(number))
            .collect()
    }

    /// Number of contents of a block.
    pub(super) fn contents_of(&self, block: u32) -> u32 {
        self.tail.lock().starts[block as usize].len()
    }

    /// Forgets where contents begin in a block that is about to be free.
    pub(super) fn forget(&self, block: u32) {
        self.tail.lock().starts[block as usize] = Starts::None;
    }

    /// Closes the active block, and forgets where contents begin.
    pub(super) fn forget_all(&self) {
        let mut tail = self.tail.lock();
        self.close_active(&mut tail);
        tail.starts.fill_with(Starts::default);
    }

    /// DRAM of where contents begin, in bytes.
    pub(super) fn dram_bytes(&self) -> u64 {
        let starts = &self.tail.lock().starts;
        let heap: u64 = starts.iter().map(Starts::heap_bytes).sum();
        heap + (starts.capacity() * size_of::<Starts>()) as u64
    }

    /// Whether a block is active.
    pub(super) fn is_open(&self) -> bool {
        self.tail.lock().active.is_some()
    }

    /// Closes the active block, which is then written.
    pub(super) fn close(&self) {
        self.close_active(&mut self.tail.lock());
    }

    fn close_active(&self, tail: &mut Tail<B>) {
        let Some(block) = tail.active.take() else { return };
        tail.starts[block.id as usize].pack();
        self.base.close_block(block);
    }

    /// Begins a checkpoint, while the addresses are locked.
    pub(super) fn begin_checkpoint(&self) -> Begun {
        let mut tail = self.tail.lock();
        // The log is kept from where the oldest block without a footer was opened. A block that was opened long ago is closed, so that
        // the log gets room. Any other stays open: to close it would send the unused rest of it to the device.
        let held = |block: &Arc<Open<B>>| {
            let opened = block.sealing_position.load(Ordering::Acquire);
            self.base.journal.log.position().saturating_sub(opened)
        };
        if self.keeps && tail.active.as_ref().map_or(0, held) > self.base.journal.log.usage().1 / HELD_PART {
            self.close_active(&mut tail);
        }
        self.base.begin_checkpoint(|_| 0)
    }

    /// Reserves room for a piece in the active block; if it is full, in a new one. `entry` is called with the piece's offset and the number
    /// of the next content. `None` if no buffer is free, or a new block would leave fewer than `spare` free.
    fn reserve(
        &self,
        tail: &mut Tail<B>,
        len: usize,
        spare: usize,
        entry: impl Fn(u32, u32) -> Entry,
    ) -> Option<Reserved<Chunks<B>>> {
        for _ in 0..2 {
            if let Some(block) = &tail.active {
                let number = tail.starts[block.id as usize].len();
                let reserved = (number < self.shape.numbers)
                    .then(|| block.reserve(len, |offset, _| entry(offset, number)))
                    .flatten();
                if reserved.is_some() {
                    return reserved;
                }
            }
            self.close_active(tail);
            let mut pool = self.base.shared.pool.lock();
            if pool.free.len() <= spare {
                self.base.shared.has_work.store(true, Ordering::Release);
                return None;
            }
            let block = self.base.open_block(&mut pool, (), |_| {})?;
            if self.keeps {
                self.base.hold_log(&block);
            }
            tail.starts[block.id as usize] = Starts::Growing(Vec::new());
            tail.active = Some(block);
        }
        None
    }

    /// Appends a content. Sets sequence and number in the header. Its version is that of its mapping, or 0 if the chunk is not to be mapped.
    /// `None` if no block or buffer is free, or the device is fenced.
    pub(super) fn content(&self, mut header: Header, stored: &[u8], spare: usize) -> Option<Place> {
        if self.base.is_out() {
            return None;
        }
        let len = piece_len(stored.len());
        let entry = |offset, number| Entry {
            offset,
            len: len as u32,
            address: header.address,
            version: header.version,
            is_dirty: header.is_dirty,
            kind: Kind::Content {
                number,
                hash: header.fingerprint.hash(),
            },
        };
        let mut tail = self.tail.lock();
        let reserved = self.reserve(&mut tail, len, spare, entry)?;
        let block = reserved.block.id;
        let Starts::Growing(starts) = &mut tail.starts[block as usize] else {
            unreachable!("the active block's")
        };
        let number = starts.len() as u32;
        starts.push((reserved.at / UNIT_BYTES) as u32);
        (header.number, header.sequence) = (number, reserved.block.sequence);
        self.put(&reserved, &header, stored);
        Some(Place { block, number })
    }

    /// Appends a mapping to a content that is stored. The caller maps the chunk. False without room.
    pub(super) fn reference(&self, slot: Slot, version: u64, spare: usize) -> bool {
        if self.base.is_out() {
            return false;
        }
        let Slot {
            address,
            place: Place { block, number },
            is_dirty,
        } = slot;
        let target = self.sequence(block);
        let entry = |offset, _| Entry {
            offset,
            len: REFERENCE_BYTES as u32,
            address,
            version,
            is_dirty,
            kind: Kind::Reference {
                block,
                number,
                target,
            },
        };
        let mut tail = self.tail.lock();
        let Some(reserved) = self.reserve(&mut tail, REFERENCE_BYTES, spare, entry) else {
            return false;
        };
        let reference = Reference {
            sequence: reserved.block.sequence,
            address,
            version,
            block,
            number,
            target,
            is_dirty,
        };
        let bytes = reference.encode(self.base.cache_id);
        // SAFETY: the range was reserved for this piece alone, and no reader knows it yet.
        unsafe { reserved.block.buffer.put(reserved.at, Payload::Bytes(&bytes)) };
        tail.starts[block as usize].share(number);
        true
    }

    /// Other chunks may be mapped to a content from now on.
    pub(super) fn share(&self, place: Place) {
        self.tail.lock().starts[place.block as usize].share(place.number);
    }

    /// In write-back: replaces the chunk's older content at `place` in the active buffer, so that the older one is never written to flash. Only
    /// if no write of it has begun, the new one is not longer, no other chunk may share it, and nobody else holds the block. Returns the
    /// hash of the older one. `None`: append it.
    ///
    /// Entries of one chunk stay in the order of their versions, since a chunk is mapped to the last of them.
    pub(super) fn absorb(&self, mut header: Header, stored: &[u8], place: Place) -> Option<u64> {
        if self.base.is_out() {
            return None;
        }
        let tail = self.tail.lock();
        let starts = &tail.starts[place.block as usize];
        let at = starts
            .is_unshared(place.number)
            .then(|| starts.get(place.number))??;
        let block = tail.active.as_ref().filter(|block| block.id == place.block)?;
        (header.number, header.sequence) = (place.number, block.sequence);
        let mut old_hash = None;
        let reserved = block.rewrite(at as usize * UNIT_BYTES, |entry| {
            let spare = (entry.len as usize).checked_sub(piece_len(stored.len()))?;
            debug_assert_eq!(entry.address, header.address);
            let Kind::Content { hash, number } = entry.kind else {
                return None;
            };
            old_hash = Some(hash);
            header.spare_units = (spare / UNIT_BYTES) as u32;
            (entry.version, entry.is_dirty) = (header.version, true);
            let hash = header.fingerprint.hash();
            entry.kind = Kind::Content { number, hash };
            Some(())
        })?;
        self.put(&reserved, &header, stored);
        old_hash
    }

    /// Writes header, content and padding of a piece to the room that was reserved for it, under the lock.
    fn put(&self, reserved: &Reserved<Chunks<B>>, header: &Header, stored: &[u8]) {
        let head = header.encode(self.base.cache_id);
        let padding = [0; UNIT_BYTES];
        let padding = &padding[..piece_len(stored.len()) - HEADER_BYTES - stored.len()];
        let mut at = reserved.at;
        for part in [&head[..], stored, padding] {
            // SAFETY: the room is reserved for this piece alone. It is new, so that no reader knows it; or it held a piece that nobody was
            // reading (`OpenBlock::rewrite`), and new readers wait for the lock of the appender (`spot`), which the caller holds.
            unsafe { reserved.block.buffer.put(at, Payload::Bytes(part)) };
            at += part.len();
        }
    }

    /// Writes what was appended to the active block. If that finds no room for padding, the block is closed, and written as a whole.
    pub(super) async fn write_beginning<D: Device<Buf = B>>(
        &self,
        device: &D,
        block: &Arc<Open<B>>,
        now: u32,
    ) -> io::Result<()> {
        let prefix = {
            let mut tail = self.tail.lock();
            if !tail.is_active(block) {
                return Ok(());
            }
            let Some(prefix) = block.begin_prefix() else {
                self.close_active(&mut tail);
                return Ok(());
            };
            prefix
        };
        self.base.begin_prefix(block, &prefix);
        if prefix.range.is_empty() {
            return Ok(());
        }
        self.base.fill_hole(device, block, &prefix).await;
        // A start finds the others by their headers.
        let own = (prefix.range.start == 0).then_some(0);
        match self.base.write_prefix(device, block, &prefix, own, now).await? {
            Logged::Stored | Logged::Off => Ok(()),
            Logged::Failed => Err(io::Error::other("the log takes no record")),
            // A start finds a full block without a record.
            Logged::NoRoom => {
                let mut tail = self.tail.lock();
                if tail.is_active(block) {
                    self.close_active(&mut tail);
                }
                Ok(())
            }
        }
    }

    /// Appends a log record; false if it is lost and the change must not be made. In a cache of clean chunks a lost record sets `discard`
    /// in the superblock: a crash then empties the cache, until a checkpoint covers the change. On a fenced device nothing needs a record.
    #[must_use = "a change whose record is lost must not be made"]
    pub(super) fn log<D: Device>(
        &self,
        device: &D,
        kind: impl Into<LogKind<Change>>,
        a: u64,
        b: u64,
    ) -> bool {
        let logged = self.base.journal.append(device, kind, a, b);
        self.make_good(device, logged)
    }

    pub(super) fn make_good<D: Device>(&self, device: &D, logged: Logged) -> bool {
        let is_lost = matches!(logged, Logged::NoRoom | Logged::Failed) && !self.base.is_out();
        if is_lost && !self.keeps {
            self.base.journal.lose_record(device);
        }
        !(is_lost && self.keeps)
    }

    /// Waits until logged voids are as durable as [`Options::durability`](super::Options::durability) asks.
    ///
    /// # Errors
    /// Neither the voids nor a fence of the device can be made durable: the volume must not be written.
    pub(super) async fn commit<D: Device<Buf = B>>(&self, device: &D) -> io::Result<()> {
        let committed = self.base.journal.commit(device).await;
        match self.base.is_out() {
            true => self.settled().await,
            false => committed,
        }
    }

    /// Waits until a fence of the device is settled.
    ///
    /// # Errors
    /// It cannot be made durable, or takes the only copy of chunks: the volume must not be written.
    pub(super) async fn settled(&self) -> io::Result<()> {
        match self.base.shared.wait_until_settled().await {
            true => Ok(()),
            false if self.keeps => Err(io::Error::other(
                "it has failed, and has the only copy of chunks: start again, which finds what is durable there",
            )),
            false => Err(io::Error::other(
                "what the cache device has of this chunk can neither be voided nor fenced; start in pass-through, which discards the cache",
            )),
        }
    }
}
