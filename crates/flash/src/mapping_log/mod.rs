//! Where the cascade index keeps its pages: on blocks that it borrows from the store.
//!
//! Pages of all partitions are put one behind the other into *chunks* of 16 to 128 KiB, and a chunk is written in one piece,
//! one behind the other on its block: no small random write is made for mappings. A page can be read from the moment it is put. A
//! block goes back to the store when none of its pages is wanted any more: all partitions are reorganised about equally often, so
//! that is soon, and no page is ever copied to make room.
//!
//! A page is one sector:
//!
//! | offset | size | field        | meaning                                             |
//! |-------:|-----:|--------------|-----------------------------------------------------|
//! |      0 |    4 | `crc`        | CRC-32C of the cache id and all that follows        |
//! |      4 |    4 | `magic`      | `PMAP`                                              |
//! |      8 |    4 | `number`     | the page's own number: block times pages, and which |
//! |     12 |    8 | `generation` | the sequence that the block was borrowed with       |
//! |     20 |   12 | zero         |                                                     |
//! |     32 | 4064 | `payload`    | the index's, see `pumice_index::cascade`            |
//!
//! A checkpoint names pages by their numbers. So a block of which a checkpoint may name a page is given back only when no start
//! would read that checkpoint any more; where many blocks wait for that, a checkpoint is due.

mod chunks;
mod lender;
mod pages;
#[cfg(test)]
mod tests;

use chunks::Pages;
use lender::StartLender;
use locks::Mutex;
use pages::HEADER_BYTES;
use pumice_blocks::geometry::Geometry;
use pumice_device::SECTOR_BYTES;
use pumice_index::Location;
use pumice_index::cascade::{Generation, MapSpace, PAGE_PAYLOAD_BYTES, PageNumber};
use pumice_memory::{Buffer, Payload};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

pub(crate) use chunks::PendingWrite;
pub use chunks::mapping_log_bytes;
pub(crate) use lender::{Borrowed, Lender};
pub use pages::MappingBytes;
pub(crate) use pages::{PageSource, Shape};

/// So many blocks may wait for a checkpoint without asking for one, or one for so many that hold pages. They are not for objects: twice as
/// many cost 0.1 to 0.3 points of hits under `ripq`; fewer write more checkpoints.
const HELD_MIN: usize = 4;
const HELD_SHARE: usize = 4;

/// The pages; see the module's text.
pub struct MappingLog<B: Buffer> {
    /// Lends while a cache is opened.
    start: OnceLock<(Shape, StartLender)>,
    /// Lends after that. Its shape is another where the cache began anew.
    store: OnceLock<(Shape, Box<dyn Lender>)>,
    state: Mutex<Pages<B>>,
    wants_checkpoint: AtomicBool,
    /// DRAM of all partitions for what is on flash, in bytes.
    charged: AtomicU64,
    /// The lowest sequence of a block of objects, when that was told last.
    oldest: AtomicU64,
}

impl<B: Buffer> Default for MappingLog<B> {
    fn default() -> Self {
        Self {
            start: OnceLock::new(),
            store: OnceLock::new(),
            state: Mutex::new(Pages::default()),
            wants_checkpoint: AtomicBool::new(false),
            charged: AtomicU64::new(0),
            oldest: AtomicU64::new(0),
        }
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
        sector[..HEADER_BYTES].copy_from_slice(&shape.header(number, chunk.generation, payload));
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

    fn generation_at(&self, location: Location) -> Generation {
        let block = self
            .shape()
            .and_then(|shape| shape.geometry.block_of(location.offset));
        let Some(block) = block else {
            return Generation::Sequence(0);
        };
        self.lender()
            .map_or(Generation::Sequence(0), |lender| lender.generation_of(block))
    }

    fn oldest_generation(&self) -> u64 {
        self.oldest.load(Ordering::Relaxed)
    }

    fn next_generation(&self) -> u64 {
        self.lender().map_or(0, Lender::next_sequence)
    }
}

impl<B: Buffer> MappingLog<B> {
    fn shape(&self) -> Option<&Shape> {
        let start = || self.start.get().map(|(shape, _)| shape);
        self.store.get().map(|(shape, _)| shape).or_else(start)
    }

    fn lender(&self) -> Option<&dyn Lender> {
        let start = || self.start.get().map(|(_, start)| start as &dyn Lender);
        self.store.get().map(|(_, store)| &**store).or_else(start)
    }

    fn note_work(&self) {
        if let Some(lender) = self.lender() {
            lender.note_work();
        }
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
        let shape = Shape::new(geometry, cache_id);
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
        let start = StartLender {
            sequences,
            borrowed: Mutex::new(lent),
        };
        if self.start.set((shape, start)).is_err() {
            unreachable!("a cache is opened once");
        }
    }

    /// A store lends from now on. Blocks that the log has from the start of this cache stay its own: [`MappingLog::borrowed`].
    /// `reads_none`: a start after a crash reads no checkpoint.
    pub(crate) fn attach(&self, shape: Shape, store: Box<dyn Lender>, reads_none: bool) {
        if reads_none {
            self.state.lock().checkpoints_kept = [None; 2];
        }
        if self.store.set((shape, store)).is_err() {
            unreachable!("a log is attached once, to one store");
        }
        self.note_work();
    }

    /// Blocks that the log has, each with the sequence that it was lent with.
    pub(crate) fn borrowed(&self) -> Vec<(u32, Option<u64>)> {
        let state = self.state.lock();
        let filled = state.block.map(|block| block.id);
        let empty = state.empty.iter().map(|(id, _)| *id);
        let unwritten = state.full.iter().map(|chunk| chunk.block);
        let wanted = state.wanted.keys().copied();
        let all = wanted.chain(filled).chain(empty).chain(unwritten);
        let sequence = |id| self.lender()?.lent_sequence(id);
        all.map(|id| (id, sequence(id))).collect()
    }

    /// DRAM of all partitions for what is on flash, in bytes.
    pub(crate) fn charged(&self) -> u64 {
        self.charged.load(Ordering::Relaxed)
    }

    /// Takes back the blocks of which no page is wanted, and that no checkpoint names which a start could read.
    pub(crate) fn take_back(&self) -> Vec<u32> {
        let mut state = self.state.lock();
        let empty = state.take_unnamed();
        self.note_held(&state);
        empty
    }

    /// No block of objects has a lower sequence any more.
    pub(crate) fn note_oldest(&self, sequence: u64) {
        self.oldest.fetch_max(sequence, Ordering::Relaxed);
    }

    /// Forgets what a start has found: it begins anew.
    pub(crate) fn reset(&self) {
        *self.state.lock() = Pages::default();
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

    /// Whether there is something to write or to reorganise.
    pub(crate) fn is_pending(&self) -> bool {
        let state = self.state.lock();
        !state.full.is_empty() || !state.due.is_empty()
    }

    /// Bytes of the blocks that are borrowed.
    pub(crate) fn borrowed_bytes(&self) -> u64 {
        let Some(shape) = self.shape() else { return 0 };
        let state = self.state.lock();
        let filled = state.block.filter(|block| !state.wanted.contains_key(&block.id));
        (state.wanted.len() + state.empty.len() + usize::from(filled.is_some())) as u64
            * shape.geometry.block_bytes
    }
}

/// Blocks that are held for checkpoints.
impl<B: Buffer> Pages<B> {
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
}

/// Checkpoints, and what is held for them.
impl<B: Buffer> MappingLog<B> {
    /// A checkpoint is begun: what is wanted from now on may be named by it.
    pub(crate) fn begin_checkpoint(&self) -> u64 {
        let mut state = self.state.lock();
        state.checkpoints_begun += 1;
        state.checkpoint_running = Some(state.checkpoints_begun);
        state.checkpoints_begun
    }

    /// A checkpoint is the newest that a start would read, or, with `alone`, the only one.
    pub(crate) fn note_checkpoint(&self, number: u64, alone: bool) {
        let mut state = self.state.lock();
        let before = state.checkpoints_kept[0].filter(|_| !alone);
        state.checkpoints_kept = [Some(number), before];
        state.checkpoint_running = None;
        drop(state);
        self.note_work();
    }

    /// Whether too many blocks wait for a checkpoint. Asked under the pool's lock, which comes
    /// after that of the pages.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        self.wants_checkpoint.load(Ordering::Relaxed)
    }

    fn note_held(&self, state: &Pages<B>) {
        let wants = state.empty.len() > HELD_MIN.max(state.wanted.len() / HELD_SHARE);
        self.wants_checkpoint.store(wants, Ordering::Relaxed);
    }
}

/// A partition that is to be reorganised; where this is dropped before its end, it is due again.
pub struct Due<B: Buffer> {
    log: Arc<MappingLog<B>>,
    pub(crate) partition: u32,
    pub(crate) is_done: AtomicBool,
}

impl<B: Buffer> Drop for Due<B> {
    fn drop(&mut self) {
        if !self.is_done.load(Ordering::Relaxed) {
            self.log.state.lock().due.insert(self.partition);
            self.log.note_work();
        }
    }
}
