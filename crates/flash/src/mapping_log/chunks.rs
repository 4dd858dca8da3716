//! The chunks that pages are put into, how they are written, and what else stands behind the log's lock.

use super::MappingLog;
use super::pages::Shape;
use pumice_device::{Device, SECTOR_BYTES};
use pumice_memory::Buffer;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

/// A chunk is at least and at most so long, in bytes, where blocks are.
const CHUNK_BYTES_MIN: u64 = 16 << 10;
const CHUNK_BYTES_MAX: u64 = 128 << 10;
/// Bytes of the device for each byte of a chunk: chunks take less than a tenth of what the index has of objects of 300 bytes.
const CHUNK_SHARE: u64 = 16 << 10;
/// Chunks in DRAM: one that is filled, and others that are being written.
const CHUNKS_MAX: usize = 4;

/// DRAM that a mapping log takes at most, in bytes, on a device of `capacity` bytes in blocks of this size.
pub fn mapping_log_bytes(capacity: u64, block_bytes: u64) -> u64 {
    CHUNKS_MAX as u64 * chunk_bytes(capacity, block_bytes)
}

fn chunk_bytes(capacity: u64, block_bytes: u64) -> u64 {
    let power_of_two = 1 << (capacity / CHUNK_SHARE).max(1).ilog2();
    (power_of_two.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX)).min(block_bytes)
}

/// Pages that stand behind one another on a block.
pub(super) struct Chunk<B> {
    pub(super) block: u32,
    /// The sequence that the block was borrowed with.
    pub(super) generation: u64,
    /// Where it starts in its block, in pages.
    pub(super) at: u32,
    /// How many pages it has room for, and how many it has.
    room: u32,
    pub(super) len: u32,
    pub(super) buffer: Arc<B>,
}

impl<B> Chunk<B> {
    fn holds(&self, block: u32, page: u32) -> bool {
        self.block == block && (self.at..self.at + self.len).contains(&page)
    }
}

/// A block that chunks are put on.
#[derive(Clone, Copy)]
pub(super) struct Filled {
    pub(super) id: u32,
    /// The sequence that it was borrowed with.
    pub(super) generation: u64,
    /// Where the next chunk starts, in pages.
    pub(super) next: u32,
}

/// What the log's lock guards.
pub(super) struct Pages<B> {
    pub(super) filling: Option<Chunk<B>>,
    pub(super) full: VecDeque<Arc<Chunk<B>>>,
    pub(super) writing: Vec<Arc<Chunk<B>>>,
    spare: Vec<Arc<B>>,
    buffers_made: usize,
    /// The block that chunks are put on.
    pub(super) block: Option<Filled>,
    /// Pages that are wanted, by block.
    pub(super) wanted: BTreeMap<u32, u32>,
    /// Blocks of which none is, each with the number of checkpoints that were begun before that.
    pub(super) empty: Vec<(u32, u64)>,
    /// Checkpoints begun since the start; the one that the start read is number 0.
    pub(super) checkpoints_begun: u64,
    /// The newest checkpoint that a start would read, and the one before.
    pub(super) checkpoints_kept: [Option<u64>; 2],
    /// One that was begun and is not on the device yet.
    pub(super) checkpoint_running: Option<u64>,
    /// Partitions that would like to be reorganised.
    pub(super) due: BTreeSet<u32>,
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

impl Shape {
    fn chunk_bytes(&self) -> u64 {
        chunk_bytes(self.geometry.capacity, self.geometry.block_bytes)
    }
}

impl<B: Buffer> Pages<B> {
    /// Sees that there is a chunk with room, if there can be.
    pub(super) fn open_chunk(&mut self, log: &MappingLog<B>, shape: &Shape) -> Option<&mut Chunk<B>> {
        if self.filling.as_ref().is_some_and(|chunk| chunk.len == chunk.room) {
            self.close_chunk();
            log.note_work();
        }
        if self.filling.is_none() {
            let pages = shape.pages_per_block();
            if self.block.is_none_or(|block| block.next == pages) {
                let full = std::mem::replace(&mut self.block, log.lend());
                self.note_empty(full.map(|block| block.id));
            }
            let Filled {
                id,
                generation,
                next: at,
            } = self.block?;
            let buffer = self.take_buffer(shape.chunk_bytes())?;
            let room = (buffer.len() / SECTOR_BYTES) as u32;
            let room = room.min(pages - at);
            let next = at + room;
            self.block = Some(Filled { id, generation, next });
            self.filling = Some(Chunk {
                block: id,
                generation,
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

    fn take_buffer(&mut self, bytes: u64) -> Option<Arc<B>> {
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
        Some(Arc::new(B::with_len(
            usize::try_from(bytes).expect("at most 128 KiB"),
        )))
    }

    pub(super) fn find(&self, block: u32, page: u32) -> Option<(&Arc<B>, usize)> {
        let written = self.full.iter().chain(&self.writing).map(|chunk| &**chunk);
        let chunk = written
            .chain(&self.filling)
            .find(|chunk| chunk.holds(block, page))?;
        Some((&chunk.buffer, (page - chunk.at) as usize * SECTOR_BYTES))
    }
}

impl<B: Buffer> MappingLog<B> {
    fn lend(&self) -> Option<Filled> {
        let (id, generation) = self.lender()?.lend()?;
        Some(Filled {
            id,
            generation,
            next: 0,
        })
    }

    /// Writes the chunks that are full, while a cache is opened, and adds their bytes to `sent`.
    ///
    /// # Errors
    /// What the device said.
    pub(crate) async fn write_full<D: Device<Buf = B>>(
        self: &Arc<Self>,
        device: &D,
        sent: &mut u64,
    ) -> io::Result<()> {
        while let Some(write) = self.take_full() {
            let Some((start, buffer, len)) = write.piece() else {
                continue;
            };
            *sent += len as u64;
            let written = device.write(start, buffer, 0..len).await;
            write.note_done();
            written?;
        }
        Ok(())
    }

    /// The chunk that is filled takes no more, so that it is written, too.
    pub(crate) fn close_chunk(&self) {
        self.state.lock().close_chunk();
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

    /// Waits until fewer than `count` chunks are being written.
    pub(crate) async fn wait_for_writes(&self, count: usize) {
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
    pub(crate) fn writing(&self) -> usize {
        self.state.lock().writing.len()
    }

    /// DRAM held, in bytes.
    pub(crate) fn dram_bytes(&self) -> u64 {
        let Some(shape) = self.shape() else { return 0 };
        self.state.lock().buffers_made as u64 * shape.chunk_bytes()
    }
}

/// A chunk that is to be written; where it is dropped before that, it is due again.
pub struct PendingWrite<B: Buffer> {
    log: Arc<MappingLog<B>>,
    chunk: Arc<Chunk<B>>,
    is_done: AtomicBool,
}

impl<B: Buffer> PendingWrite<B> {
    /// The block that it is for.
    pub(crate) fn block(&self) -> u32 {
        self.chunk.block
    }

    /// Where on the device it goes, what, and how many bytes; `None` where there are none.
    pub(crate) fn piece(&self) -> Option<(u64, Arc<B>, usize)> {
        let (shape, chunk) = (self.log.shape()?, &self.chunk);
        let start = shape.geometry.block_offset(chunk.block) + u64::from(chunk.at) * SECTOR_BYTES as u64;
        let len = chunk.len as usize * SECTOR_BYTES;
        (len > 0).then(|| (start, Arc::clone(&chunk.buffer), len))
    }

    /// The device has answered. Where this is not said, the chunk is written again.
    pub(crate) fn note_done(&self) {
        self.is_done.store(true, Ordering::Relaxed);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_as_large_as_the_device_asks_for_and_no_larger_than_a_block() {
        let kib = |capacity: u64, block: u64| chunk_bytes(capacity << 20, block << 10) >> 10;
        assert_eq!(kib(5, 64), 16);
        assert_eq!(kib(600, 1024), 32, "rounded down");
        assert_eq!((kib(2 << 10, 1024), kib(8 << 20, 1024)), (128, 128));
        assert_eq!(kib(8 << 20, 64), 64);
        assert_eq!(mapping_log_bytes(600 << 20, 1 << 20), 128 << 10);
    }
}
