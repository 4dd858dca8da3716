//! Where the cascade index keeps its pages: on blocks that it borrows from the store.
//!
//! Pages of all partitions are put one behind the other into *chunks* of at most 256 KiB, and a chunk is written in one piece,
//! one behind the other on its block: no small random write is made for mappings. A page can be read from the moment it is put. A
//! block goes back to the store when none of its pages is wanted any more: all partitions are reorganised about equally often, so
//! that is soon, and no page is ever copied to make room.
//!
//! A page is one sector:
//!
//! | offset | size | field     | meaning                                             |
//! |-------:|-----:|-----------|-----------------------------------------------------|
//! |      0 |    4 | `crc`     | CRC-32C of the cache id and all that follows        |
//! |      4 |    4 | `magic`   | `PMAP`                                              |
//! |      8 |    4 | `number`  | the page's own number: block times pages, and which |
//! |     12 |    8 | `life`    | the sequence that the block was borrowed with       |
//! |     20 |   12 | zero      |                                                     |
//! |     32 | 4064 | `payload` | the index's, see `pumice_index::cascade`            |
//!
//! A checkpoint names pages by their numbers. So a block of which a checkpoint may name a page is given back only when no start
//! would read that checkpoint any more; where many blocks wait for that, a checkpoint is due.

mod reorganise;
#[cfg(test)]
mod tests;

use crate::codec::checksum;
use crate::geometry::Geometry;
use crate::store::{BlockInfo, Durability, FlashStore, Shared, State, add};
use parking_lot::Mutex;
use pumice_device::{Device, SECTOR_BYTES};
use pumice_index::Location;
use pumice_index::cascade::{MapSpace, PAGE_PAYLOAD_BYTES, PageNumber};
use pumice_memory::{Buffer, Payload};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};

/// A chunk is at most so long, in bytes.
const CHUNK_BYTES_MAX: u64 = 256 << 10;
/// Chunks in DRAM: one that is filled, and others that are being written.
const CHUNKS_MAX: usize = 4;
/// Blocks that are left to the store, whose reclaims need them.
pub(crate) const BLOCKS_LEFT: usize = 2;
const HEADER_BYTES: usize = SECTOR_BYTES - PAGE_PAYLOAD_BYTES;
const MAGIC: [u8; 4] = *b"PMAP";

/// So many blocks may wait for a checkpoint without asking for one.
const HELD_MIN: usize = 4;

/// DRAM that a mapping log takes at most, in bytes, with blocks of this size.
pub fn mapping_log_bytes(block_bytes: u64) -> u64 {
    CHUNKS_MAX as u64 * CHUNK_BYTES_MAX.min(block_bytes)
}

/// The pages; see the module's text.
pub struct MappingLog<B> {
    /// While a cache is opened.
    recovering: OnceLock<Recovering>,
    store: OnceLock<Attached<B>>,
    state: Mutex<Pages<B>>,
    wants_checkpoint: AtomicBool,
    /// DRAM of all partitions for what is on flash, in bytes.
    charged: AtomicU64,
}

/// Where pages stand while a cache is opened, before there is a store.
struct Recovering {
    shape: Shape,
    /// The sequence of each block, 0 where it counts for nothing.
    sequences: Box<[u64]>,
    borrowed: Mutex<Borrowed>,
}

/// Blocks that a start lends.
pub(crate) struct Borrowed {
    pub(crate) free: VecDeque<u32>,
    /// The sequence of each block that holds pages.
    pub(crate) lives: Vec<u64>,
    /// The next sequence.
    pub(crate) next: u64,
}

/// How pages are numbered and signed.
#[derive(Clone, Copy)]
struct Shape {
    geometry: Geometry,
    cache_id: u64,
}

/// What the log needs of the store.
struct Attached<B> {
    shape: Shape,
    shared: Arc<Shared<B>>,
    blocks: Arc<[BlockInfo]>,
}

/// Pages that stand behind one another on a block.
struct Chunk<B> {
    block: u32,
    /// The sequence that the block was borrowed with.
    life: u64,
    /// Where it starts in its block, in pages.
    at: u32,
    /// How many pages it has room for, and how many it has.
    room: u32,
    len: u32,
    buffer: Arc<B>,
}

impl<B> Chunk<B> {
    fn holds(&self, block: u32, page: u32) -> bool {
        self.block == block && (self.at..self.at + self.len).contains(&page)
    }
}

/// A block that chunks are put on.
#[derive(Clone, Copy)]
struct Filled {
    id: u32,
    /// The sequence that it was borrowed with.
    life: u64,
    /// Where the next chunk starts, in pages.
    next: u32,
}

struct Pages<B> {
    filling: Option<Chunk<B>>,
    full: VecDeque<Arc<Chunk<B>>>,
    writing: Vec<Arc<Chunk<B>>>,
    spare: Vec<Arc<B>>,
    buffers_made: usize,
    /// The block that chunks are put on.
    block: Option<Filled>,
    /// Pages that are wanted, by block.
    wanted: BTreeMap<u32, u32>,
    /// Blocks of which none is, each with the number of checkpoints that were begun before that.
    empty: Vec<(u32, u64)>,
    /// Checkpoints begun since the start; the one that the start read is number 0.
    checkpoints_begun: u64,
    /// The newest checkpoint that a start would read, and the one before.
    checkpoints_kept: [Option<u64>; 2],
    /// One that was begun and is not on the device yet.
    checkpoint_running: Option<u64>,
    /// Partitions that would like to be reorganised.
    due: BTreeSet<u32>,
    /// Who waits for a chunk to be written.
    waiters: Vec<Waker>,
}

impl<B> Default for Pages<B> {
    fn default() -> Self {
        Self {
            filling: None,
            full: VecDeque::new(),
            writing: Vec::new(),
            spare: Vec::new(),
            buffers_made: 0,
            block: None,
            wanted: BTreeMap::new(),
            empty: Vec::new(),
            checkpoints_begun: 0,
            checkpoints_kept: [None; 2],
            checkpoint_running: None,
            due: BTreeSet::new(),
            waiters: Vec::new(),
        }
    }
}

impl<B> Default for MappingLog<B> {
    fn default() -> Self {
        Self {
            recovering: OnceLock::new(),
            store: OnceLock::new(),
            state: Mutex::new(Pages::default()),
            wants_checkpoint: AtomicBool::new(false),
            charged: AtomicU64::new(0),
        }
    }
}

/// Where a page's bytes can be had.
enum PageSource<B> {
    Memory(MappingBytes<B>),
    Device(u64),
}

/// The bytes of a page.
pub struct MappingBytes<B> {
    buffer: Arc<B>,
    at: usize,
}

impl<B: Buffer> MappingBytes<B> {
    /// What the index put there.
    pub fn payload(&self) -> Option<&[u8]> {
        self.buffer.bytes(self.at + HEADER_BYTES, PAGE_PAYLOAD_BYTES)
    }
}

impl Shape {
    fn pages_per_block(&self) -> u32 {
        u32::try_from(self.geometry.block_bytes / SECTOR_BYTES as u64).expect("blocks of at most 256 MiB")
    }

    fn place(&self, page: PageNumber) -> (u32, u32) {
        (page / self.pages_per_block(), page % self.pages_per_block())
    }

    fn header(&self, page: PageNumber, life: u64, payload: &[u8]) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[4..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&page.to_le_bytes());
        header[12..20].copy_from_slice(&life.to_le_bytes());
        let crc = checksum(self.cache_id, &[&header[4..], payload]);
        header[..4].copy_from_slice(&crc.to_le_bytes());
        header
    }

    /// Whether the sector is that page, put in this life of its block.
    fn is_page(&self, page: PageNumber, life: u64, sector: &[u8]) -> bool {
        sector
            .split_first_chunk::<HEADER_BYTES>()
            .is_some_and(|(header, payload)| *header == self.header(page, life, payload))
    }

    /// Where a page stands on the device; `None` where no page can.
    fn offset(&self, page: PageNumber) -> Option<u64> {
        let (block, at) = self.place(page);
        let start = (block < self.geometry.blocks).then(|| self.geometry.block_offset(block))?;
        Some(start + u64::from(at) * SECTOR_BYTES as u64)
    }
}

impl<B: Buffer> Attached<B> {
    /// Borrows a free block, with a sequence of its own: what a former life has left there is told from its pages.
    fn borrow(&self) -> Option<Filled> {
        let mut structure = self.shared.structure.lock();
        self.shared.has_work.store(true, Ordering::Release);
        structure.mappings_want_block = structure.free.len() <= BLOCKS_LEFT;
        if structure.mappings_want_block {
            return None;
        }
        let id = structure.free.pop_front()?;
        let life = structure.next_sequence;
        structure.next_sequence += 1;
        let info = &self.blocks[id as usize];
        info.sequence.store(life, Ordering::Release);
        info.set_state(State::Mappings);
        Some(Filled { id, life, next: 0 })
    }
}

impl<B: Buffer> Pages<B> {
    /// Sees that there is a chunk with room, if there can be.
    fn open_chunk(&mut self, log: &MappingLog<B>, shape: &Shape) -> Option<&mut Chunk<B>> {
        if self.filling.as_ref().is_some_and(|chunk| chunk.len == chunk.room) {
            self.close_chunk();
            log.note_work();
        }
        if self.filling.is_none() {
            let pages = shape.pages_per_block();
            if self.block.is_none_or(|block| block.next == pages) {
                let full = std::mem::replace(&mut self.block, log.borrow());
                self.note_empty(full.map(|block| block.id));
            }
            let Filled { id, life, next: at } = self.block?;
            let buffer = self.take_buffer(shape.geometry.block_bytes)?;
            let room = (buffer.len() / SECTOR_BYTES) as u32;
            let room = room.min(pages - at);
            let next = at + room;
            self.block = Some(Filled { id, life, next });
            self.filling = Some(Chunk {
                block: id,
                life,
                at,
                room,
                len: 0,
                buffer,
            });
        }
        self.filling.as_mut()
    }

    /// The chunk that is filled takes no more.
    fn close_chunk(&mut self) {
        let Some(mut chunk) = self.filling.take() else {
            return;
        };
        if chunk.len < chunk.room {
            // The next starts where this one ends.
            if let Some(block) = self.block.as_mut().filter(|block| block.id == chunk.block) {
                block.next -= chunk.room - chunk.len;
            }
            chunk.room = chunk.len;
        }
        self.full.push_back(Arc::new(chunk));
    }

    fn take_buffer(&mut self, block_bytes: u64) -> Option<Arc<B>> {
        for at in 0..self.spare.len() {
            if let Some(buffer) = Arc::get_mut(&mut self.spare[at]) {
                buffer.reset();
                return Some(self.spare.swap_remove(at));
            }
        }
        if self.buffers_made == CHUNKS_MAX {
            return None;
        }
        self.buffers_made += 1;
        let len = CHUNK_BYTES_MAX.min(block_bytes);
        Some(Arc::new(B::with_len(
            usize::try_from(len).expect("at most 256 KiB"),
        )))
    }

    /// Notes a block that is not filled any more, if no page of it is wanted.
    fn note_empty(&mut self, block: Option<u32>) {
        let Some(id) = block else { return };
        let is_filled = self.block.is_some_and(|filled| filled.id == id);
        let is_written = !self
            .full
            .iter()
            .chain(&self.writing)
            .any(|chunk| chunk.block == id)
            && self.filling.as_ref().is_none_or(|chunk| chunk.block != id);
        if !is_filled && is_written && !self.wanted.contains_key(&id) && !self.is_empty(id) {
            self.empty.push((id, self.checkpoints_begun));
        }
    }

    fn is_empty(&self, block: u32) -> bool {
        self.empty.iter().any(|(id, _)| *id == block)
    }

    /// Empty blocks that no checkpoint names which a start could read.
    fn take_unnamed(&mut self) -> Vec<u32> {
        let kept = self.checkpoints_kept;
        let running = self.checkpoint_running;
        let is_named = |begun: u64| kept.iter().flatten().chain(&running).any(|kept| *kept <= begun);
        let (named, unnamed) = self.empty.iter().partition(|(_, begun)| is_named(*begun));
        let unnamed: Vec<(u32, u64)> = unnamed;
        self.empty = named;
        unnamed.into_iter().map(|(id, _)| id).collect()
    }

    fn find(&self, block: u32, page: u32) -> Option<(&Arc<B>, usize)> {
        let written = self.full.iter().chain(&self.writing).map(|chunk| &**chunk);
        let chunk = written
            .chain(&self.filling)
            .find(|chunk| chunk.holds(block, page))?;
        Some((&chunk.buffer, (page - chunk.at) as usize * SECTOR_BYTES))
    }
}

impl<B: Buffer> MapSpace for MappingLog<B> {
    fn has_room(&self) -> bool {
        let Some(shape) = self.shape() else { return false };
        self.state.lock().open_chunk(self, shape).is_some()
    }

    fn put(&self, payload: &[u8; PAGE_PAYLOAD_BYTES]) -> Option<PageNumber> {
        let shape = self.shape()?;
        let mut state = self.state.lock();
        let chunk = state.open_chunk(self, shape)?;
        let number = chunk.block * shape.pages_per_block() + chunk.at + chunk.len;
        let mut sector = [0; SECTOR_BYTES];
        sector[..HEADER_BYTES].copy_from_slice(&shape.header(number, chunk.life, payload));
        sector[HEADER_BYTES..].copy_from_slice(payload);
        // SAFETY: under the lock nobody else puts, and nobody was told of this page yet, so nobody reads it.
        unsafe { (chunk.buffer).put(chunk.len as usize * SECTOR_BYTES, Payload::Bytes(&sector)) };
        chunk.len += 1;
        let block = chunk.block;
        *state.wanted.entry(block).or_default() += 1;
        Some(number)
    }

    fn charge(&self, before: usize, after: usize) {
        self.charged.fetch_add(after as u64, Ordering::Relaxed);
        self.charged.fetch_sub(before as u64, Ordering::Relaxed);
    }

    fn wants_reorganisation(&self, partition: u32) {
        self.state.lock().due.insert(partition);
        self.note_work();
    }

    fn release(&self, page: PageNumber) {
        let Some(shape) = self.shape() else { return };
        let (block, _) = shape.place(page);
        let mut state = self.state.lock();
        // It stands for nothing where a start found something else on its block.
        let Some(wanted) = state.wanted.get_mut(&block) else {
            return;
        };
        *wanted -= 1;
        if *wanted == 0 {
            state.wanted.remove(&block);
            state.note_empty(Some(block));
            self.note_held(&state);
            drop(state);
            self.note_work();
        }
    }

    fn sequence_at(&self, location: Location) -> u64 {
        let Some(shape) = self.shape() else { return 0 };
        let Some(block) = shape.geometry.block_of(location.offset) else {
            return 0;
        };
        match (self.store.get(), self.recovering.get()) {
            (Some(store), _) => store.blocks[block as usize].sequence.load(Ordering::Acquire),
            (None, Some(recovering)) => recovering.sequences[block as usize],
            (None, None) => 0,
        }
    }
}

impl<B: Buffer> MappingLog<B> {
    fn shape(&self) -> Option<&Shape> {
        let recovering = || self.recovering.get().map(|recovering| &recovering.shape);
        self.store.get().map(|store| &store.shape).or_else(recovering)
    }

    fn note_work(&self) {
        if let Some(store) = self.store.get() {
            store.shared.has_work.store(true, Ordering::Release);
        }
    }

    fn borrow(&self) -> Option<Filled> {
        if let Some(store) = self.store.get() {
            return store.borrow();
        }
        let mut borrowed = self.recovering.get()?.borrowed.lock();
        let id = borrowed.free.pop_front()?;
        let life = borrowed.next;
        borrowed.next += 1;
        borrowed.lives[id as usize] = life;
        Some(Filled { id, life, next: 0 })
    }

    /// The sequence that a block of pages was borrowed with.
    fn life_of(&self, block: u32) -> Option<u64> {
        if let Some(store) = self.store.get() {
            let info = store.blocks.get(block as usize)?;
            return Some(info.sequence.load(Ordering::Acquire));
        }
        let borrowed = self.recovering.get()?.borrowed.lock();
        borrowed.lives.get(block as usize).copied()
    }

    /// Prepares for mappings that a start finds: `sequences` are those of the blocks that count, `named` the pages that the
    /// checkpoint names, and the blocks of `lent.free` neither of these nor anything else.
    pub(crate) fn recover(
        &self,
        geometry: Geometry,
        cache_id: u64,
        sequences: Box<[u64]>,
        named: impl Iterator<Item = PageNumber>,
        mut lent: Borrowed,
    ) {
        let shape = Shape { geometry, cache_id };
        let mut state = self.state.lock();
        for page in named {
            let (block, _) = shape.place(page);
            // Blocks of objects are read as such: then the page is not there any more.
            if block < geometry.blocks && sequences[block as usize] == 0 {
                *state.wanted.entry(block).or_default() += 1;
            }
        }
        state.checkpoints_kept = [Some(0), None];
        lent.free.retain(|id| !state.wanted.contains_key(id));
        drop(state);
        let recovering = Recovering {
            shape,
            sequences,
            borrowed: Mutex::new(lent),
        };
        if self.recovering.set(recovering).is_err() {
            unreachable!("a cache is opened once");
        }
    }

    /// Forgets what a start has found: it begins anew.
    pub(crate) fn reset(&self) {
        *self.state.lock() = Pages::default();
    }

    /// Writes the chunks that are full, while a cache is opened.
    ///
    /// # Errors
    /// What the device said.
    pub(crate) async fn write_full<D: Device<Buf = B>>(self: &Arc<Self>, device: &D) -> io::Result<()> {
        while let Some(write) = self.take_full() {
            self.write(device, &write).await?;
        }
        Ok(())
    }

    async fn write<D: Device<Buf = B>>(&self, device: &D, write: &PendingWrite<B>) -> io::Result<u64> {
        let chunk = &write.chunk;
        let (Some(shape), len) = (self.shape(), chunk.len as usize * SECTOR_BYTES) else {
            return Ok(0);
        };
        let start = shape.geometry.block_offset(chunk.block) + u64::from(chunk.at) * SECTOR_BYTES as u64;
        let mut written = Ok(());
        if len > 0 {
            written = device.write(start, Arc::clone(&chunk.buffer), 0..len).await;
        }
        // Where this is dropped before, the chunk is written again.
        write.is_done.store(true, Ordering::Relaxed);
        written.map(|()| len as u64)
    }

    /// A checkpoint is begun: what is wanted from now on may be named by it.
    fn begin_checkpoint(&self) -> u64 {
        let mut state = self.state.lock();
        state.checkpoints_begun += 1;
        state.checkpoint_running = Some(state.checkpoints_begun);
        state.checkpoints_begun
    }

    /// A checkpoint is the newest that a start would read, or, with `alone`, the only one.
    fn note_checkpoint(&self, number: u64, alone: bool) {
        let mut state = self.state.lock();
        let before = state.checkpoints_kept[0].filter(|_| !alone);
        state.checkpoints_kept = [Some(number), before];
        state.checkpoint_running = None;
        drop(state);
        self.note_work();
    }

    /// Whether as many blocks wait for a checkpoint as half of those that hold pages. Asked under the structure's lock, which comes
    /// after that of the pages.
    fn wants_checkpoint(&self) -> bool {
        self.wants_checkpoint.load(Ordering::Relaxed)
    }

    fn note_held(&self, state: &Pages<B>) {
        let wants = state.empty.len() > HELD_MIN.max(state.wanted.len() / 2);
        self.wants_checkpoint.store(wants, Ordering::Relaxed);
    }

    /// The next chunk to write.
    pub(crate) fn take_full(self: &Arc<Self>) -> Option<PendingWrite<B>> {
        let mut state = self.state.lock();
        let chunk = state.full.pop_front()?;
        state.writing.push(Arc::clone(&chunk));
        Some(PendingWrite {
            log: Arc::clone(self),
            chunk,
            is_done: AtomicBool::new(false),
        })
    }

    /// A partition that would like to be reorganised.
    pub(crate) fn take_due(self: &Arc<Self>) -> Option<Due<B>> {
        let partition = self.state.lock().due.pop_first()?;
        Some(Due {
            log: Arc::clone(self),
            partition,
            is_done: AtomicBool::new(false),
        })
    }

    /// Waits until fewer than `count` chunks are being written.
    async fn wait_for_writes(&self, count: usize) {
        std::future::poll_fn(|cx| {
            let mut state = self.state.lock();
            if state.writing.len() < count {
                return Poll::Ready(());
            }
            state.waiters.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Chunks that are being written.
    fn writing(&self) -> usize {
        self.state.lock().writing.len()
    }

    /// Whether there is something to write or to reorganise.
    pub(crate) fn is_pending(&self) -> bool {
        let state = self.state.lock();
        !state.full.is_empty() || !state.due.is_empty()
    }

    /// Bytes of the blocks that are borrowed.
    fn borrowed_bytes(&self) -> u64 {
        let Some(shape) = self.shape() else { return 0 };
        let state = self.state.lock();
        let filled = state.block.filter(|block| !state.wanted.contains_key(&block.id));
        (state.wanted.len() + state.empty.len() + usize::from(filled.is_some())) as u64
            * shape.geometry.block_bytes
    }

    /// DRAM held, in bytes.
    fn dram_bytes(&self) -> u64 {
        let Some(shape) = self.shape() else { return 0 };
        self.state.lock().buffers_made as u64 * CHUNK_BYTES_MAX.min(shape.geometry.block_bytes)
    }
}

/// A chunk that is to be written; where it is dropped before that, it is due again.
pub(crate) struct PendingWrite<B: Buffer> {
    log: Arc<MappingLog<B>>,
    chunk: Arc<Chunk<B>>,
    is_done: AtomicBool,
}

impl<B: Buffer> Drop for PendingWrite<B> {
    fn drop(&mut self) {
        let mut state = self.log.state.lock();
        state.writing.retain(|chunk| !Arc::ptr_eq(chunk, &self.chunk));
        if self.is_done.load(Ordering::Relaxed) {
            state.spare.push(Arc::clone(&self.chunk.buffer));
            state.note_empty(Some(self.chunk.block));
        } else {
            state.full.push_front(Arc::clone(&self.chunk));
        }
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        self.log.note_work();
        waiters.into_iter().for_each(Waker::wake);
    }
}

/// A partition that is to be reorganised; where this is dropped before its end, it is due again.
pub(crate) struct Due<B: Buffer> {
    log: Arc<MappingLog<B>>,
    pub(crate) partition: u32,
    is_done: AtomicBool,
}

impl<B: Buffer> Drop for Due<B> {
    fn drop(&mut self) {
        if !self.is_done.load(Ordering::Relaxed) {
            self.log.state.lock().due.insert(self.partition);
            self.log.note_work();
        }
    }
}

impl<B: Buffer> FlashStore<B> {
    /// Lends blocks to `log` from now on; those that it has from the start of this cache stay its own.
    pub(crate) fn attach_mapping_log(&self, log: &Arc<MappingLog<B>>, identity_bits: u32) {
        let mut state = log.state.lock();
        if self.durability() == Durability::Off {
            // A start after a crash reads no checkpoint.
            state.checkpoints_kept = [None; 2];
        }
        {
            let mut structure = self.shared.structure.lock();
            // Of what was invalidated before this start nothing is known.
            let mut invalidated = self.invalidated.lock();
            invalidated.ignore_bits(64 - identity_bits);
            invalidated.forget_before(structure.next_sequence);
            drop(invalidated);
            let filled = state.block.map(|block| block.id);
            let empty = state.empty.iter().map(|(id, _)| *id);
            let unwritten = state.full.iter().map(|chunk| chunk.block);
            let all = state
                .wanted
                .keys()
                .copied()
                .chain(filled)
                .chain(empty)
                .chain(unwritten);
            for id in all {
                let info = &self.blocks[id as usize];
                if info.state() == State::Free {
                    if let Some(life) = log.life_of(id) {
                        info.sequence.store(life, Ordering::Relaxed);
                    }
                    info.set_state(State::Mappings);
                    structure.free.retain(|free| *free != id);
                }
            }
            if let Some(recovering) = log.recovering.get() {
                let next = recovering.borrowed.lock().next;
                structure.next_sequence = structure.next_sequence.max(next);
            }
        }
        drop(state);
        let attached = Attached {
            shape: Shape {
                geometry: self.geometry,
                cache_id: self.cache_id,
            },
            shared: Arc::clone(&self.shared),
            blocks: Arc::clone(&self.blocks),
        };
        if log.store.set(attached).is_err() || self.mapping_log.set(Arc::clone(log)).is_err() {
            unreachable!("a log is attached once, to one store");
        }
        log.note_work();
    }

    /// A checkpoint is begun. Its number among them is returned; 0 without a cascade index.
    pub(crate) fn begin_mapping_checkpoint(&self) -> u64 {
        self.mapping_log.get().map_or(0, |log| log.begin_checkpoint())
    }

    /// A checkpoint is on the device: see [`FlashStore::begin_mapping_checkpoint`].
    pub(crate) fn note_mapping_checkpoint(&self, number: u64, alone: bool) {
        if let Some(log) = self.mapping_log.get() {
            log.note_checkpoint(number, alone);
        }
        self.take_back_blocks();
    }

    /// Whether blocks wait for a checkpoint to be of use again.
    pub(crate) fn wants_mapping_checkpoint(&self) -> bool {
        self.mapping_log.get().is_some_and(|log| log.wants_checkpoint())
    }

    /// Writes all pages that were put, for a checkpoint that names them.
    ///
    /// # Errors
    /// Where the device failed on one: the checkpoint must not be.
    pub(crate) async fn flush_mappings<D: Device<Buf = B>>(&self, device: &D) -> io::Result<()> {
        let Some(log) = self.mapping_log.get() else {
            return Ok(());
        };
        let failed = self.counters.write_errors.load(Ordering::Relaxed);
        log.state.lock().close_chunk();
        while let Some(write) = log.take_full() {
            self.write_mappings(device, &write).await;
        }
        log.wait_for_writes(1).await;
        if self.counters.write_errors.load(Ordering::Relaxed) != failed {
            return Err(io::Error::other("pages of mappings could not be written"));
        }
        Ok(())
    }

    /// Flash that pages of mappings take, in bytes: whole blocks.
    pub fn mapping_flash_bytes(&self) -> u64 {
        self.mapping_log.get().map_or(0, |log| log.borrowed_bytes())
    }

    /// DRAM of a cascade index for what is on flash, in bytes; cheap.
    pub fn mapping_heap_bytes(&self) -> u64 {
        self.mapping_log
            .get()
            .map_or(0, |log| log.charged.load(Ordering::Relaxed))
    }

    /// DRAM that pages of mappings take until they are written, in bytes.
    pub fn mapping_buffer_bytes(&self) -> u64 {
        self.mapping_log.get().map_or(0, |log| log.dram_bytes())
    }

    /// Takes back blocks of which no page is wanted.
    pub(crate) fn take_back_blocks(&self) {
        let Some(log) = self.mapping_log.get() else { return };
        let empty = {
            let mut state = log.state.lock();
            let empty = state.take_unnamed();
            log.note_held(&state);
            empty
        };
        if !empty.is_empty() {
            self.shared.change(|structure| {
                for id in empty {
                    self.give_back(structure, id);
                }
            });
        }
    }

    /// Writes a chunk.
    pub(crate) async fn write_mappings<D: Device<Buf = B>>(&self, device: &D, write: &PendingWrite<B>) {
        let written = write.log.write(device, write).await;
        let block = write.chunk.block;
        self.blocks[block as usize].note_write(written.is_ok());
        match written {
            Ok(len) => {
                add(&self.counters.written_bytes, len);
                add(&self.counters.mapping_bytes, len);
            }
            Err(error) => {
                // Who looks for a page there finds none, and its partition forgets what it had.
                tracing::error!("writing mappings to block {block}: {error}");
                add(&self.counters.write_errors, 1);
            }
        }
    }

    /// Reads pages of mappings, all at once; `None` stands for one that is not there, or not whole.
    pub async fn read_mappings<D: Device<Buf = B>>(
        &self,
        device: &D,
        pages: &[PageNumber],
    ) -> Vec<Option<MappingBytes<B>>> {
        let Some(log) = self.mapping_log.get() else {
            return Vec::new();
        };
        // A read starts with the call.
        let reads: Vec<_> = pages
            .iter()
            .map(|page| match log.source(*page)? {
                PageSource::Memory(bytes) => Some(Ok(bytes)),
                PageSource::Device(offset) => {
                    add(&self.counters.mapping_reads, 1);
                    Some(Err(device.read(offset, SECTOR_BYTES)))
                }
            })
            .collect();
        let mut found = Vec::with_capacity(pages.len());
        for (page, read) in pages.iter().zip(reads) {
            found.push(match read {
                None => None,
                Some(Ok(bytes)) => Some(bytes),
                Some(Err(read)) => match read.await {
                    Ok(buffer) => log.checked(*page, &Arc::new(buffer), 0),
                    Err(error) => {
                        tracing::warn!("reading a page of mappings: {error}");
                        add(&self.counters.read_errors, 1);
                        None
                    }
                },
            });
        }
        found
    }
}

impl<B: Buffer> MappingLog<B> {
    /// Where a page is; `None` where there can be no such page.
    fn source(&self, page: PageNumber) -> Option<PageSource<B>> {
        let shape = self.shape()?;
        let (block, at) = shape.place(page);
        if let Some((buffer, at)) = self.state.lock().find(block, at) {
            return Some(PageSource::Memory(MappingBytes {
                buffer: Arc::clone(buffer),
                at,
            }));
        }
        Some(PageSource::Device(shape.offset(page)?))
    }

    /// The page that stands at `at` in what was read, if it is that page.
    fn checked(&self, page: PageNumber, buffer: &Arc<B>, at: usize) -> Option<MappingBytes<B>> {
        let sector = buffer.bytes(at, SECTOR_BYTES)?;
        let shape = self.shape()?;
        let life = self.life_of(shape.place(page).0)?;
        shape.is_page(page, life, sector).then(|| MappingBytes {
            buffer: Arc::clone(buffer),
            at,
        })
    }
}
