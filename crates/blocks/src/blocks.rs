//! Blocks on a device, as their owner has them, and the work on them that is due.

use crate::block::OpenBlock;
use crate::geometry::Geometry;
use crate::journal::Journal;
use crate::log::Log;
use crate::owner::Owner;
use crate::pool::{Block, Pool, State};
use crate::superblock::Superblock;
use crate::work::{Shared, Task, Work};
use locks::Mutex;
use pumice_memory::Buffer;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What a reply promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// What was logged survives the end of the process, `kill -9` included.
    #[default]
    Process,
    /// It survives a power cut too.
    Power,
    /// Nothing is logged: only a clean stop leaves anything to rely on.
    Off,
}

pumice_world::figures! {
    /// Running totals of blocks since they were opened.
    pub struct BlockCounts;
    of
    /// The same, while they run.
    pub struct Totals: AtomicU64;
    /// Bytes sent to the device: blocks, zeros into holes of a new file, log, checkpoints, superblocks.
    Counter written_bytes,
    /// Bytes written in checkpoints.
    Counter checkpoint_bytes,
    /// Log records that were to be appended.
    Counter log_records,
    /// Log records that could not be stored and were lost, so that the cache would start empty after a crash.
    Counter log_failures,
    /// Blocks written.
    Counter sealed_blocks,
    /// Writes of the beginnings of blocks that are being filled, after the flush interval.
    Counter prefix_writes,
    /// Bytes of padding to whole sectors in writes of the beginnings of blocks.
    Counter prefix_padding_bytes,
    /// Writes of blocks that failed.
    Counter write_errors,
    /// Blocks not used until the next start, because their writes failed again and again.
    Counter bad_blocks,
    /// Reads that the device failed.
    Counter read_errors,
    /// Checkpoints written.
    Counter checkpoints,
}

/// Adds to a total.
pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// What a device has that a start goes on from; nothing, where there is nothing.
#[derive(Debug, Default)]
pub struct Old {
    /// Position of the next log record.
    pub log_next: u64,
    /// The sequence of the next generation of any block.
    pub next_sequence: u64,
    /// Blocks of the newest checkpoint.
    pub checkpoint_blocks: Vec<u32>,
    /// Sealed blocks, the oldest first: number, sequence, length of the footer in bytes.
    pub sealed: Vec<(u32, u64, u32)>,
}

/// What blocks are opened with; recovery makes most of it.
pub struct Start<S> {
    /// The superblock of this start. Log records before its newest checkpoint are not needed any more.
    pub superblock: Superblock,
    /// What it goes on from.
    pub old: Old,
    /// What a reply promises.
    pub durability: Durability,
    /// Seconds after which what is in a buffer alone is written; 0 = when its block is full.
    pub flush_interval_secs: u32,
    /// The most block buffers.
    pub buffers_max: usize,
    /// Bytes of the shortest step in which a block is written, whole sectors: [`STEP_BYTES`](crate::STEP_BYTES), or a block's where
    /// nothing is read meanwhile.
    pub step_bytes: usize,
    /// Unix time in seconds.
    pub now: u32,
    /// The owner's part of the pool.
    pub own: S,
}

/// The blocks of a device. Shared by all threads; methods that do I/O take the thread's own device handle.
pub struct Blocks<O: Owner> {
    /// The division of the device.
    pub geometry: Geometry,
    /// Part of every checksum: it tells this cache from others on the same device, before and after it.
    pub cache_id: u64,
    /// What a reply promises.
    pub durability: Durability,
    pub(crate) flush_interval_secs: u32,
    /// When the ages of active blocks were last checked, in Unix seconds.
    pub(crate) looked_at: AtomicU32,
    pub(crate) buffers_max: usize,
    /// Bytes of the shortest step in which a block is written.
    pub step_bytes: usize,
    /// Every block.
    pub blocks: Arc<[Block<O::Info>]>,
    /// What work that was taken outlives this with.
    pub shared: Arc<Shared<O>>,
    /// Blocks that are buffers still: active, or sealing.
    pub open: Mutex<Vec<Arc<OpenBlock<O>>>>,
    /// The log and the superblock.
    pub journal: Journal<O>,
    /// Running totals.
    pub totals: Arc<Totals>,
    /// Blocks sealed when the last checkpoint was begun.
    pub(crate) sealed_at_checkpoint: AtomicU64,
}

impl<O: Owner> Blocks<O> {
    /// Blocks as a start has found them.
    pub fn new(start: Start<O::State>) -> Self {
        let geometry = start.superblock.geometry;
        let blocks: Arc<[Block<O::Info>]> = (0..geometry.blocks).map(|_| Block::default()).collect();
        let old = start.old;
        for (id, sequence, footer_len) in old.sealed {
            let block = &blocks[id as usize];
            block.set_state(State::Sealed);
            block.sequence.store(sequence, Ordering::Relaxed);
            block.footer_len.store(footer_len, Ordering::Relaxed);
        }
        for block in &old.checkpoint_blocks {
            blocks[*block as usize].set_state(State::Checkpoint);
        }
        let is_free = |id: &u32| blocks[*id as usize].state() == State::Free;
        let free: VecDeque<u32> = (0..geometry.blocks).filter(is_free).collect();
        let checkpoint_blocks = [old.checkpoint_blocks, Vec::new()];
        let pool = Pool::new(free, old.next_sequence.max(1), checkpoint_blocks, start.own);
        let cache_id = start.superblock.cache_id;
        let log_tail = start.superblock.checkpoints[0].log_start;
        let log = Log::new(cache_id, &geometry, log_tail, old.log_next);
        let (shared, totals) = (Arc::new(Shared::new(pool, geometry)), Arc::default());
        Self {
            geometry,
            cache_id,
            durability: start.durability,
            flush_interval_secs: start.flush_interval_secs,
            looked_at: AtomicU32::new(start.now),
            buffers_max: start.buffers_max,
            step_bytes: start.step_bytes,
            blocks,
            shared: Arc::clone(&shared),
            open: Mutex::new(Vec::new()),
            journal: Journal::new(
                log,
                start.superblock,
                start.durability,
                Arc::clone(&totals),
                shared,
            ),
            totals,
            sealed_at_checkpoint: AtomicU64::new(0),
        }
    }

    /// Counts a piece of work as under way, under the lock of the pool.
    pub fn claim(&self, pool: &mut Pool<O>, task: Task<O>) -> Work<O> {
        Work::claim_of(&self.shared, pool, task)
    }

    /// Whether there may be work to take; cheap.
    pub fn has_work(&self) -> bool {
        self.shared.has_work.load(Ordering::Acquire)
    }

    /// Claims a block that is to be written, if there is one.
    pub fn take_seal(&self, pool: &mut Pool<O>) -> Option<Work<O>> {
        let block = pool.to_seal.pop_front()?;
        pool.sealing += 1;
        Some(self.claim(pool, Task::Seal(block)))
    }

    /// Claims the writing of a block, or else of the beginning of an active one, if one is due.
    pub fn take_write(&self, pool: &mut Pool<O>) -> Option<Work<O>> {
        if let Some(seal) = self.take_seal(pool) {
            return Some(seal);
        }
        let block = pool.to_flush.pop()?;
        pool.flushing.push(block.id);
        Some(self.claim(pool, Task::Flush(block)))
    }

    /// Waits until `ready` says so; it is asked again whenever a piece of background work has ended.
    pub async fn wait_for(&self, ready: impl FnMut(&mut Pool<O>) -> bool) {
        self.shared.wait_for(ready).await;
    }

    /// Waits until no background work is under way.
    pub async fn quiesce(&self) {
        self.wait_for(|pool| pool.in_flight == 0).await;
    }

    /// Waits until some background work has ended, if any is under way.
    pub async fn wait_for_progress(&self) {
        // Another piece may have begun before this is asked again.
        let before = {
            let pool = self.shared.pool.lock();
            if pool.in_flight == 0 {
                return;
            }
            pool.ended()
        };
        let sealed = self.totals.sealed_blocks.load(Ordering::Relaxed);
        self.wait_for(|pool| {
            pool.ended() > before || self.totals.sealed_blocks.load(Ordering::Relaxed) > sealed
        })
        .await;
    }

    /// Whether no background work is under way.
    pub fn is_idle(&self) -> bool {
        self.shared.pool.lock().in_flight == 0
    }

    /// Takes the next free block and a buffer for it. `prepare` makes the owner's part of the block that of a new generation, before
    /// anybody finds it active. `None` where no buffer is free, or no block.
    pub fn open_block(
        &self,
        pool: &mut Pool<O>,
        tag: O::Tag,
        prepare: impl FnOnce(&Block<O::Info>),
    ) -> Option<Arc<OpenBlock<O>>> {
        if pool.free.is_empty() {
            return None;
        }
        let buffer = self.take_buffer(pool)?;
        let (id, sequence) = pool.take_free().expect("seen above");
        let info = &self.blocks[id as usize];
        info.sequence.store(sequence, Ordering::Relaxed);
        info.prefix_end.store(0, Ordering::Relaxed);
        prepare(info);
        info.set_state(State::Active);
        let block = Arc::new(OpenBlock::new(
            id,
            sequence,
            tag,
            self.geometry.block_offset(id),
            buffer,
        ));
        self.open.lock().push(Arc::clone(&block));
        Some(block)
    }

    /// Checkpoints keep the log from here on, as long as the block has no footer. Call it for a block that was just opened, if its footer
    /// lists entries that were superseded.
    pub fn hold_log(&self, block: &OpenBlock<O>) {
        block
            .sealing_position
            .fetch_min(self.journal.log.position(), Ordering::Release);
    }

    /// Starts sealing an open block. Called under the lock of the owner's under which it appends.
    pub fn close_block(&self, block: Arc<OpenBlock<O>>) {
        self.hold_log(&block);
        self.blocks[block.id as usize].set_state(State::Sealing);
        let mut pool = self.shared.pool.lock();
        pool.to_seal.push_back(block);
        self.shared.has_work.store(true, Ordering::Release);
    }

    /// The open block with this number.
    pub fn find_open(&self, id: u32) -> Option<Arc<OpenBlock<O>>> {
        let is_open = self.blocks[id as usize].state().is_open();
        let open = is_open.then(|| self.open.lock());
        open?.iter().find(|block| block.id == id).cloned()
    }

    fn take_buffer(&self, pool: &mut Pool<O>) -> Option<Arc<O::Buf>> {
        // A buffer that a reader still has stays in the list.
        for at in 0..pool.buffers.len() {
            if let Some(buffer) = Arc::get_mut(&mut pool.buffers[at]) {
                buffer.reset();
                return Some(pool.buffers.swap_remove(at));
            }
        }
        if pool.buffers_made < self.buffers_max {
            pool.buffers_made += 1;
            let len = usize::try_from(self.geometry.block_bytes).expect("at most 256 MiB");
            return Some(Arc::new(O::Buf::with_len(len)));
        }
        None
    }

    /// Whether a block that is opened now would find a buffer.
    pub fn has_buffer(&self, pool: &Pool<O>) -> bool {
        pool.buffers_made < self.buffers_max || pool.buffers.iter().any(|b| Arc::strong_count(b) == 1)
    }

    /// DRAM held by block buffers, in bytes.
    pub fn buffer_bytes(&self) -> u64 {
        self.shared.pool.lock().buffers_made as u64 * self.geometry.block_bytes
    }

    /// Number of blocks that are buffers still.
    pub fn unsealed_backlog(&self) -> usize {
        self.open.lock().len()
    }

    /// Gives a block back: to the free list, or, where writing it has failed again and again, to none until the next start.
    pub fn give_back(&self, pool: &mut Pool<O>, id: u32) {
        let info = &self.blocks[id as usize];
        if info.is_bad() {
            tracing::error!("block {id} is not used any more: its writes failed again and again");
            info.set_state(State::Bad);
            add(&self.totals.bad_blocks, 1);
        } else {
            info.set_state(State::Free);
            pool.free.push_back(id);
        }
    }

    /// Blocks sealed since the last checkpoint was begun.
    pub fn sealed_since_checkpoint(&self) -> u64 {
        let sealed = self.totals.sealed_blocks.load(Ordering::Relaxed);
        // A checkpoint may begin between the two.
        sealed.saturating_sub(self.sealed_at_checkpoint.load(Ordering::Relaxed))
    }
}
