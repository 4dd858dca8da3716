//! Blocks on a device, as their owner has them: the log, the superblock, work that is due.

use crate::block::OpenBlock;
use crate::geometry::{Geometry, LOG_RECORD_BYTES};
use crate::log::{Kind, Log, Logged};
use crate::owner::Owner;
use crate::pool::{Block, Pool, State};
use crate::superblock::Superblock;
use crate::work::{Shared, Task, Work};
use parking_lot::Mutex;
use pumice_device::{Device, SECTOR_BYTES};
use pumice_memory::Buffer;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

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

/// Seconds between two signs of life.
const ALIVE_SECS: u32 = 4;

/// How often it is tried to write a superblock that must be written.
const SUPERBLOCK_TRIES: u32 = 8;

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

/// What blocks are opened with; recovery makes most of it.
pub struct Start<S> {
    /// The superblock of this start.
    pub superblock: Superblock,
    /// Position of the next log record.
    pub log_next: u64,
    /// Records below this position are not needed any more.
    pub log_tail: u64,
    /// The sequence of the next generation of any block.
    pub next_sequence: u64,
    /// Blocks of the newest checkpoint, and of the one before.
    pub checkpoint_blocks: [Vec<u32>; 2],
    /// Sealed blocks: number, sequence, length of the footer.
    pub sealed: Vec<(u32, u64, u32)>,
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
    /// The log ring.
    pub log: Log,
    /// The superblock as it was written last.
    pub superblock: Mutex<Superblock>,
    /// Running totals.
    pub totals: Totals,
    /// Log records, and marks that make up for such, so far; and how many of them survive a power cut.
    logged: AtomicU64,
    synced: AtomicU64,
    /// Blocks sealed when the last checkpoint was begun.
    pub(crate) sealed_at_checkpoint: AtomicU64,
    /// Log records wanted until the last checkpoint that failed; 0 = none since the last good one.
    pub(crate) checkpoint_failed_at: AtomicU64,
    /// Lost records were to have positions below this.
    pub(crate) lost_below: AtomicU64,
    /// Changes that wait for room in the log.
    log_waiters: AtomicUsize,
    /// The most records that one of them wants.
    log_wanted: AtomicU64,
    /// Somebody is about to write down the time.
    notes_life: AtomicBool,
}

/// A change that waits for room in the log: until there is room, a checkpoint is due.
struct Waiting<'a, O: Owner>(&'a Blocks<O>);

impl<'a, O: Owner> Waiting<'a, O> {
    fn new(blocks: &'a Blocks<O>, records: u64) -> Self {
        // Under the lock under which work is taken: whoever finds none has seen this, or asks again.
        let _pool = blocks.shared.pool.lock();
        blocks.log_waiters.fetch_add(1, Ordering::AcqRel);
        blocks.log_wanted.fetch_max(records, Ordering::AcqRel);
        blocks.shared.has_work.store(true, Ordering::Release);
        Self(blocks)
    }
}

impl<O: Owner> Drop for Waiting<'_, O> {
    fn drop(&mut self) {
        if self.0.log_waiters.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.log_wanted.store(0, Ordering::Release);
        }
    }
}

impl<O: Owner> Blocks<O> {
    /// Blocks as a start has found them.
    pub fn new(start: Start<O::State>) -> Self {
        let geometry = start.superblock.geometry;
        let blocks: Arc<[Block<O::Info>]> = (0..geometry.blocks).map(|_| Block::new()).collect();
        for (id, sequence, footer_len) in start.sealed {
            let block = &blocks[id as usize];
            block.set_state(State::Sealed);
            block.sequence.store(sequence, Ordering::Relaxed);
            block.footer_len.store(footer_len, Ordering::Relaxed);
        }
        for block in start.checkpoint_blocks.iter().flatten() {
            blocks[*block as usize].set_state(State::Checkpoint);
        }
        let is_free = |id: &u32| blocks[*id as usize].state() == State::Free;
        let free: VecDeque<u32> = (0..geometry.blocks).filter(is_free).collect();
        let pool = Pool::new(free, start.next_sequence, start.checkpoint_blocks, start.own);
        let cache_id = start.superblock.cache_id;
        Self {
            geometry,
            cache_id,
            durability: start.durability,
            flush_interval_secs: start.flush_interval_secs,
            looked_at: AtomicU32::new(start.now),
            buffers_max: start.buffers_max,
            step_bytes: start.step_bytes,
            blocks,
            shared: Arc::new(Shared::new(pool, geometry)),
            open: Mutex::new(Vec::new()),
            log: Log::new(cache_id, &geometry, start.log_tail, start.log_next),
            superblock: Mutex::new(start.superblock),
            totals: Totals::default(),
            logged: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            sealed_at_checkpoint: AtomicU64::new(0),
            checkpoint_failed_at: AtomicU64::new(0),
            lost_below: AtomicU64::new(0),
            log_waiters: AtomicUsize::new(0),
            log_wanted: AtomicU64::new(0),
            notes_life: AtomicBool::new(false),
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
    pub fn take_seal(&self) -> Option<Work<O>> {
        let mut pool = self.shared.pool.lock();
        let block = pool.to_seal.pop_front()?;
        pool.sealing += 1;
        Some(self.claim(&mut pool, Task::Seal(block)))
    }

    /// Claims the writing of the beginning of an active block, if one is due.
    pub fn take_flush(&self, pool: &mut Pool<O>) -> Option<Work<O>> {
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
            .fetch_min(self.log.position(), Ordering::Release);
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

    /// Appends a record, and reports.
    pub fn append_log<D: Device>(
        &self,
        device: &D,
        kind: impl Into<Kind<O::Kind>>,
        a: u64,
        b: u64,
    ) -> Logged {
        if self.durability == Durability::Off {
            return Logged::Off;
        }
        if self.is_out() {
            return Logged::Failed;
        }
        let logged = match self.log.append(device, kind.into(), a, b) {
            Ok(true) => Logged::Stored,
            Ok(false) => Logged::NoRoom,
            Err(error) => {
                tracing::error!("log: {error}");
                self.shared.saw_error(&error);
                Logged::Failed
            }
        };
        add(&self.totals.log_records, 1);
        if logged != Logged::NoRoom {
            add(&self.totals.written_bytes, LOG_RECORD_BYTES);
        }
        if logged == Logged::Stored {
            self.logged.fetch_add(1, Ordering::AcqRel);
        }
        if self.wants_checkpoint(false) {
            self.shared.has_work.store(true, Ordering::Release);
        }
        logged
    }

    /// The owner makes a change without its record, which could not be stored: the superblock gets `discard`
    /// ([`Blocks::mark_discard`]), and keeps it until a checkpoint covers the change.
    pub fn lose_record<D: Device>(&self, device: &D) {
        self.lost_below
            .fetch_max(self.log.position() + 1, Ordering::AcqRel);
        self.totals.log_failures.fetch_add(1, Ordering::AcqRel);
        self.mark_discard(device);
        // Also where the mark was there: another thread may have made it, and not flushed it yet.
        self.logged.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether a quarter of the log has been written since the newest checkpoint, three quarters of it are in use, a change waits for room in
    /// it ([`Blocks::wait_for_log`]), or the owner says that one is due; and, where one failed, another sixteenth of the log since that: a device that refuses checkpoints is not asked
    /// all the time.
    pub fn wants_checkpoint(&self, is_due: bool) -> bool {
        let log_slots = self.geometry.log_slots;
        let since = self.log.position().saturating_sub(self.log.last_checkpoint());
        // A checkpoint leaves the log what the one before it needs. Where it began late, that is most of the log, and less than a quarter
        // of it is left before its position stands still.
        let is_awaited = self.log_room() < self.log_wanted.load(Ordering::Acquire);
        let is_log_due = since > log_slots / 4 || self.log.usage().0 > log_slots / 4 * 3 || is_awaited;
        // Records are counted as they are wanted: where the log is full its position stands still.
        let wanted = self.totals.log_records.load(Ordering::Relaxed);
        let failed_at = self.checkpoint_failed_at.load(Ordering::Relaxed);
        self.durability != Durability::Off
            && (is_due || is_log_due)
            && (failed_at == 0 || wanted > failed_at + log_slots / 16)
    }

    /// Blocks sealed since the last checkpoint was begun.
    pub fn sealed_since_checkpoint(&self) -> u64 {
        let sealed = self.totals.sealed_blocks.load(Ordering::Relaxed);
        // A checkpoint may begin between the two.
        sealed.saturating_sub(self.sealed_at_checkpoint.load(Ordering::Relaxed))
    }

    /// Records that changes may append now. They leave an eighth of the log to background work, which makes room.
    pub fn log_room(&self) -> u64 {
        let (used, slots) = self.log.usage();
        (slots / 8 * 7).saturating_sub(used)
    }

    /// Records that background work may append now where it need not append them all.
    pub fn log_room_of_work(&self) -> u64 {
        let (used, slots) = self.log.usage();
        (slots / 16 * 15).saturating_sub(used)
    }

    /// Whether a checkpoint can make room in the log.
    fn can_make_log_room(&self) -> bool {
        self.checkpoint_failed_at.load(Ordering::Relaxed) == 0 && !self.is_out()
    }

    /// Whether the log is nearly full, and a checkpoint is about to make room: a change should wait for it ([`Blocks::wait_for_log`]).
    pub fn is_log_short(&self) -> bool {
        self.log_room() == 0 && self.can_make_log_room()
    }

    /// Waits until changes may append `records` to the log; until then a checkpoint is due, which another task writes. False if there is no
    /// room, and no checkpoint can make any. A device that is slower than its log fills slows down the changes; without that a crash
    /// would empty a cache of copies, and a store with the only copy would refuse the changes.
    ///
    /// `records`: at most three quarters of the log. Other changes may be faster: look at [`Blocks::log_room`] where they append.
    pub async fn wait_for_log(&self, records: u64) -> bool {
        let has_room = || self.log_room() >= records;
        if has_room() {
            return true;
        }
        let waiting = Waiting::new(self, records);
        self.wait_for(|_| has_room() || !self.can_make_log_room()).await;
        drop(waiting);
        if has_room() {
            return true;
        }
        // What is not appended is wanted all the same: another checkpoint is tried after some of these.
        add(&self.totals.log_records, records);
        if self.wants_checkpoint(false) {
            self.shared.has_work.store(true, Ordering::Release);
        }
        false
    }

    /// The owner wants a start to discard everything that it finds, until the next checkpoint. A failing device gets a few tries; if
    /// none succeeds, it is fenced.
    pub fn mark_discard<D: Device>(&self, device: &D) {
        let mut superblock = self.superblock.lock();
        if superblock.discard || self.is_out() {
            return;
        }
        superblock.discard = true;
        // Both, so that the one that is left when the other cannot be read says the same.
        let mut written = [false; 2];
        for written in &mut written {
            *written = self.insist_on_superblock(device, &mut superblock);
        }
        // Both of what follows before the lock is released: a thread that finds the mark then finds that it is to be flushed, or that
        // the device is out, and does not answer before that is seen to.
        self.logged.fetch_add(1, Ordering::AcqRel);
        if written == [false; 2] {
            self.shared
                .take_out("neither its log nor its superblocks can be written".to_owned());
        }
    }

    /// After a superblock that could not be written: its slot may hold it all the same, as a write that fails may have been done in
    /// part or whole. What is true is written over it; where that fails too, what a start would find is unknown, and the device is
    /// fenced.
    pub fn write_superblock_again<D: Device>(&self, device: &D, superblock: &mut Superblock) {
        if !self.insist_on_superblock(device, superblock) {
            self.shared
                .take_out("its superblocks cannot be written".to_owned());
        }
    }

    /// Writes the superblock to the slot whose turn it is; whether one of a few tries succeeded.
    pub fn insist_on_superblock<D: Device>(&self, device: &D, superblock: &mut Superblock) -> bool {
        (0..SUPERBLOCK_TRIES).any(|_| self.write_superblock(device, superblock))
    }

    /// Writes the superblock to the slot whose turn it is; whether that succeeded. Else the slot holds what it held, this one, or
    /// nothing whole.
    pub fn write_superblock<D: Device>(&self, device: &D, superblock: &mut Superblock) -> bool {
        // `discard` is the last thing that is written there then.
        if self.is_out() {
            return false;
        }
        superblock.generation += 1;
        add(&self.totals.written_bytes, SECTOR_BYTES as u64);
        let bytes = superblock.encode();
        match device.append_log(superblock.slot_offset(), &bytes) {
            Ok(()) => true,
            Err(error) => {
                tracing::error!("writing the superblock: {error}");
                // The same slot again: the other one still holds the last good generation.
                superblock.generation -= 1;
                false
            }
        }
    }

    /// Whether nothing has written down the time for some seconds. Whoever is told so calls [`Blocks::note_alive`] when the log may be appended to;
    /// until then no other is.
    pub fn should_note_alive(&self, now: u32) -> bool {
        let Some(superblock) = self.superblock.try_lock() else {
            return false;
        };
        now >= superblock.time.max(superblock.ahead).saturating_add(ALIVE_SECS)
            && !self.notes_life.swap(true, Ordering::AcqRel)
    }

    /// Writes down the time, so that a start knows for how long nothing ran.
    pub fn note_alive<D: Device>(&self, device: &D, now: u32) {
        let mut superblock = self.superblock.lock();
        let before = (superblock.time, superblock.ahead);
        superblock.saw(now);
        if !self.write_superblock(device, &mut superblock) {
            (superblock.time, superblock.ahead) = before;
        }
        self.notes_life.store(false, Ordering::Release);
    }

    /// The next [`Blocks::commit`] has something to make durable.
    pub(crate) fn wants_sync(&self) {
        self.logged.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits until what was logged, and prefixes without a record, are as durable as was asked for; at once unless that is [`Durability::Power`].
    ///
    /// # Errors
    /// What the device said, which is then fenced; or that it is fenced, and what was logged last may not be durable.
    pub async fn commit<D: Device<Buf = O::Buf>>(&self, device: &D) -> io::Result<()> {
        // Not the position of the log: a lost record does not move it, and its answer stands on a mark.
        let logged = self.logged.load(Ordering::Acquire);
        if self.durability == Durability::Power && self.synced.load(Ordering::Acquire) < logged {
            self.shared.sync(device).await?;
            self.synced.fetch_max(logged, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Log records in use, and records that fit.
    pub fn log_usage(&self) -> (u64, u64) {
        self.log.usage()
    }
}
