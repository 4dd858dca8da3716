//! The store: blocks, their states, appending and reading.
//!
//! # States of a block
//!
//! ```text
//! free --open--> active --full--> sealing --written--> sealed --victim--> reclaiming --> free
//! free --checkpoint--> checkpoint --superseded--> free
//! ```
//!
//! From `sealing` on a block counts as flash: what is invalidated in it goes through the log. The state changes before
//! the block is composed, and whoever invalidates reads the state under the lock of the key's shard, which composing
//! takes too: so a copy is either struck from the footer or logged, or both, never neither.
//!
//! Lock order: index shard, then `active`, then `structure`, then `open`. None is held across I/O.

use crate::block::{Appended, OpenBlock};
use crate::geometry::Geometry;
use crate::log::{Log, LogKind};
use crate::record::{Record, RecordParts};
use crate::recovery::OpenOptions;
use crate::superblock::Superblock;
use parking_lot::Mutex;
use pumice_device::{Device, SECTOR_BYTES};
use pumice_index::Location;
use pumice_memory::Buffer;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::task::{Poll, Waker};

/// What a reply promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// Invalidations survive the end of the process, `kill -9` included.
    #[default]
    Process,
    /// They survive a power cut too.
    Power,
    /// Nothing is logged; after a stop that was not clean the cache starts empty.
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    Free,
    Active,
    Sealing,
    Sealed,
    Reclaiming,
    Checkpoint,
}

impl State {
    fn from_u8(value: u8) -> Self {
        match value {
            0 => State::Free,
            1 => State::Active,
            2 => State::Sealing,
            3 => State::Sealed,
            4 => State::Reclaiming,
            _ => State::Checkpoint,
        }
    }
}

/// What DRAM knows of a block.
pub(crate) struct BlockInfo {
    state: AtomicU8,
    pub(crate) sequence: AtomicU64,
    /// Bytes of records that are mapped.
    pub(crate) live: AtomicU64,
    /// Bytes of records that were written.
    pub(crate) filled: AtomicU64,
    pub(crate) footer_len: AtomicU32,
    pub(crate) expiry_max: AtomicU32,
}

impl BlockInfo {
    fn new() -> Self {
        Self {
            state: AtomicU8::new(State::Free as u8),
            sequence: AtomicU64::new(0),
            live: AtomicU64::new(0),
            filled: AtomicU64::new(0),
            footer_len: AtomicU32::new(0),
            expiry_max: AtomicU32::new(0),
        }
    }

    pub(crate) fn state(&self) -> State {
        State::from_u8(self.state.load(Ordering::Acquire))
    }

    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }
}

pub(crate) struct Structure<B> {
    pub(crate) free: VecDeque<u32>,
    /// Sealed blocks in order of sequence, the oldest first.
    pub(crate) queue: VecDeque<u32>,
    pub(crate) to_seal: VecDeque<Arc<OpenBlock<B>>>,
    buffers: Vec<Arc<B>>,
    buffers_made: usize,
    pub(crate) next_sequence: u64,
    pub(crate) reclaiming: bool,
    pub(crate) checkpointing: bool,
    pub(crate) in_flight: usize,
    pub(crate) checkpoint_blocks: [Vec<u32>; 2],
    waiters: Vec<Waker>,
}

/// Background work, to be given to [`FlashStore::perform`].
pub enum Work<B> {
    /// Compose and write a full block.
    Seal(Arc<OpenBlock<B>>),
    /// Make blocks free.
    Reclaim,
    /// Write a snapshot of the mappings.
    Checkpoint,
}

/// Where the bytes of a record can be had; decided under the shard's lock.
pub enum Source<B> {
    /// In an open block's buffer.
    Memory(Arc<OpenBlock<B>>),
    /// On the device, in this life of its block.
    Device {
        /// Sequence of the block when its mapping was seen.
        sequence: u64,
    },
}

/// Why a record could not be read.
#[derive(Debug)]
pub enum ReadFault {
    /// Its block has been reclaimed since the mapping was seen: look up again.
    Reclaimed,
    /// What stands there is not what was written.
    Corrupt,
    /// The device failed.
    Device(io::Error),
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Running totals since the store was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct FlashCounts { $($(#[$doc])* pub $name: u64,)* }

        #[derive(Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64,)* }

        impl Counters {
            fn snapshot(&self) -> FlashCounts {
                FlashCounts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counts! {
    /// Objects appended for the first time (slices counted singly).
    appended_objects,
    /// Encoded bytes of those, without padding.
    appended_bytes,
    /// Objects moved out of a victim that was mostly dead.
    survivors,
    /// Bytes given to the device: blocks, log, checkpoints, superblocks.
    written_bytes,
    /// Bytes of those in checkpoints.
    checkpoint_bytes,
    /// Log records appended.
    log_records,
    /// Log records that could not be stored, so that the cache would start empty after a crash.
    log_failures,
    /// Blocks written.
    sealed_blocks,
    /// Blocks made free.
    reclaimed_blocks,
    /// Blocks that could not be written.
    write_errors,
    /// Appends refused because no buffer was free.
    dropped_no_buffer,
    /// Appends refused because no block was free.
    dropped_no_block,
    /// Reads of records from the device.
    record_reads,
    /// Reads of records from buffers.
    buffer_reads,
    /// Records that were not what was written.
    corrupt_records,
    /// Reads that the device failed.
    read_errors,
    /// Records that were another key's.
    key_mismatches,
    /// Checkpoints written.
    checkpoints,
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// The flash tier's store; shared by all workers. Methods that do I/O take the worker's own device handle.
pub struct FlashStore<B> {
    pub(crate) geometry: Geometry,
    pub(crate) cache_id: u64,
    unit_bytes: u64,
    durability: Durability,
    buffers_max: usize,
    lockstep: bool,
    pub(crate) blocks: Vec<BlockInfo>,
    pub(crate) active: Mutex<Option<Arc<OpenBlock<B>>>>,
    pub(crate) structure: Mutex<Structure<B>>,
    pub(crate) open: Mutex<Vec<Arc<OpenBlock<B>>>>,
    pub(crate) log: Log,
    pub(crate) superblock: Mutex<Superblock>,
    pub(crate) counters: Counters,
    has_work: AtomicBool,
    /// Log records below this position survive a power cut.
    synced_below: AtomicU64,
    version: AtomicU64,
    pub(crate) flush_at: AtomicU32,
    /// Log records wanted until the last checkpoint that failed; 0 = none since the last good one.
    pub(crate) checkpoint_failed_at: AtomicU64,
    /// Records that could not be stored were to have positions below this.
    pub(crate) log_failed_below: AtomicU64,
}

/// What a store starts from; recovery makes it.
pub(crate) struct Start {
    pub(crate) superblock: Superblock,
    pub(crate) log_next: u64,
    pub(crate) log_tail: u64,
    pub(crate) next_sequence: u64,
    pub(crate) first_version: u64,
    pub(crate) flush_at: u32,
    pub(crate) checkpoint_blocks: [Vec<u32>; 2],
    /// Sealed blocks: number, sequence, footer length, latest expiry.
    pub(crate) sealed: Vec<(u32, u64, u32, u32)>,
}

impl<B: Buffer> FlashStore<B> {
    pub(crate) fn start(start: Start, options: &OpenOptions) -> Self {
        let geometry = start.superblock.geometry;
        let blocks: Vec<BlockInfo> = (0..geometry.blocks).map(|_| BlockInfo::new()).collect();
        let mut sealed = start.sealed;
        sealed.sort_unstable_by_key(|(_, sequence, ..)| *sequence);
        for (block, sequence, footer_len, expiry_max) in &sealed {
            let info = &blocks[*block as usize];
            info.set_state(State::Sealed);
            info.sequence.store(*sequence, Ordering::Relaxed);
            info.footer_len.store(*footer_len, Ordering::Relaxed);
            info.expiry_max.store(*expiry_max, Ordering::Relaxed);
            info.filled
                .store(geometry.block_bytes - u64::from(*footer_len), Ordering::Relaxed);
        }
        for block in start.checkpoint_blocks.iter().flatten() {
            blocks[*block as usize].set_state(State::Checkpoint);
        }
        let free = (0..geometry.blocks)
            .filter(|b| blocks[*b as usize].state() == State::Free)
            .collect();
        Self {
            geometry,
            cache_id: start.superblock.cache_id,
            unit_bytes: options.unit_bytes,
            durability: options.durability,
            buffers_max: options.buffers_max,
            lockstep: options.lockstep,
            blocks,
            active: Mutex::new(None),
            structure: Mutex::new(Structure {
                free,
                queue: sealed.iter().map(|(block, ..)| *block).collect(),
                to_seal: VecDeque::new(),
                buffers: Vec::new(),
                buffers_made: 0,
                next_sequence: start.next_sequence,
                reclaiming: false,
                checkpointing: false,
                in_flight: 0,
                checkpoint_blocks: start.checkpoint_blocks,
                waiters: Vec::new(),
            }),
            open: Mutex::new(Vec::new()),
            log: Log::new(
                start.superblock.cache_id,
                &geometry,
                start.log_tail,
                start.log_next,
            ),
            superblock: Mutex::new(start.superblock),
            counters: Counters::default(),
            has_work: AtomicBool::new(true),
            synced_below: AtomicU64::new(start.log_next),
            version: AtomicU64::new(start.first_version),
            flush_at: AtomicU32::new(start.flush_at),
            checkpoint_failed_at: AtomicU64::new(0),
            log_failed_below: AtomicU64::new(0),
        }
    }

    /// The division of the device.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// What a reply promises.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Running totals.
    pub fn counts(&self) -> FlashCounts {
        self.counters.snapshot()
    }

    /// Reads of records from the device so far.
    pub fn record_reads(&self) -> u64 {
        self.counters.record_reads.load(Ordering::Relaxed)
    }

    /// The next version; versions are given in the order of calls.
    pub fn next_version(&self) -> u64 {
        self.version.fetch_add(1, Ordering::Relaxed)
    }

    /// Length of a record in a block, padding included.
    pub fn padded_len(&self, parts: &RecordParts<'_>) -> u64 {
        (parts.encoded_len() as u64).next_multiple_of(self.unit_bytes)
    }

    /// The longest record, in bytes.
    pub fn record_max(&self) -> u64 {
        self.geometry.record_max()
    }

    /// Appends a record to the active block. The caller holds the lock of the shard of `hash`, makes the mapping, and
    /// then drops what this returns. `None` where no buffer or block is free, or the record is longer than
    /// [`FlashStore::record_max`]; that is counted.
    pub fn append(&self, hash: u64, parts: &RecordParts<'_>, survivor: bool) -> Option<Appended<B>> {
        let len = self.padded_len(parts);
        if len > self.geometry.record_max() {
            return None;
        }
        let len = usize::try_from(len).expect("at most 1 MiB");
        let mut active = self.active.lock();
        let block = loop {
            let Some(block) = &*active else {
                *active = Some(self.open_block(survivor)?);
                continue;
            };
            // Reserved under the `active` lock, copied under the block's own rules.
            if let Some(appended) = block.append(self.cache_id, hash, parts, len) {
                break appended;
            }
            let full = active.take().expect("just matched");
            self.retire(full);
        };
        drop(active);
        if survivor {
            add(&self.counters.survivors, 1);
        } else {
            add(&self.counters.appended_objects, 1);
            add(&self.counters.appended_bytes, parts.encoded_len() as u64);
        }
        self.blocks[self.block_of(block.location) as usize]
            .live
            .fetch_add(u64::from(block.location.len), Ordering::Relaxed);
        Some(block)
    }

    /// Starts sealing the active block, however full it is. For a clean stop, and for tests.
    pub fn retire_active(&self) {
        let full = self.active.lock().take();
        if let Some(full) = full {
            self.retire(full);
        }
    }

    fn retire(&self, block: Arc<OpenBlock<B>>) {
        block
            .sealing_position
            .store(self.log.position(), Ordering::Release);
        self.blocks[block.id as usize].set_state(State::Sealing);
        self.structure.lock().to_seal.push_back(block);
        self.has_work.store(true, Ordering::Release);
    }

    fn open_block(&self, survivor: bool) -> Option<Arc<OpenBlock<B>>> {
        let mut structure = self.structure.lock();
        // The last free block is for survivors and checkpoints, whose work frees others.
        if structure.free.len() < if survivor { 1 } else { 2 } {
            add(&self.counters.dropped_no_block, 1);
            self.has_work.store(true, Ordering::Release);
            return None;
        }
        let Some(buffer) = self.take_buffer(&mut structure) else {
            add(&self.counters.dropped_no_buffer, 1);
            return None;
        };
        let id = structure.free.pop_front().expect("counted above");
        let sequence = structure.next_sequence;
        structure.next_sequence += 1;
        let info = &self.blocks[id as usize];
        info.sequence.store(sequence, Ordering::Relaxed);
        info.live.store(0, Ordering::Relaxed);
        info.set_state(State::Active);
        let block = Arc::new(OpenBlock::new(
            id,
            sequence,
            self.geometry.block_offset(id),
            buffer,
        ));
        self.open.lock().push(Arc::clone(&block));
        drop(structure);
        self.has_work.store(true, Ordering::Release);
        Some(block)
    }

    fn take_buffer(&self, structure: &mut Structure<B>) -> Option<Arc<B>> {
        // A buffer that a reader still looks at stays in the list until that is over.
        for at in 0..structure.buffers.len() {
            if let Some(buffer) = Arc::get_mut(&mut structure.buffers[at]) {
                buffer.reset();
                return Some(structure.buffers.swap_remove(at));
            }
        }
        if structure.buffers_made < self.buffers_max {
            structure.buffers_made += 1;
            let len = usize::try_from(self.geometry.block_bytes).expect("at most 256 MiB");
            return Some(Arc::new(B::with_len(len)));
        }
        None
    }

    /// Whether an append of `len` bytes would find a buffer and a block now, so that a caller that may wait knows when to.
    pub fn has_room(&self, len: u64) -> bool {
        let len = usize::try_from(len.next_multiple_of(self.unit_bytes)).unwrap_or(usize::MAX);
        if self.active.lock().as_ref().is_some_and(|block| block.fits(len)) {
            return true;
        }
        let structure = self.structure.lock();
        let buffer = structure.buffers_made < self.buffers_max
            || structure.buffers.iter().any(|b| Arc::strong_count(b) == 1);
        buffer && structure.free.len() >= 2
    }

    /// Number of blocks that are full but not yet written.
    pub fn unsealed_backlog(&self) -> usize {
        self.open.lock().len()
    }

    pub(crate) fn release(&self, block: Arc<OpenBlock<B>>) {
        self.open.lock().retain(|b| !Arc::ptr_eq(b, &block));
        let buffer = Arc::clone(&block.buffer);
        drop(block);
        self.structure.lock().buffers.push(buffer);
    }

    /// Sequence of the block that holds `location`.
    pub fn sequence_at(&self, location: Location) -> u64 {
        self.blocks[self.block_of(location) as usize]
            .sequence
            .load(Ordering::Acquire)
    }

    pub(crate) fn block_of(&self, location: Location) -> u32 {
        self.geometry
            .block_of(location.offset)
            .expect("locations are made here")
    }

    /// Called under the shard's lock for a copy whose mapping is about to be removed or replaced: records it in the log
    /// if it counts as flash. `version` is above that of every copy that is to be void.
    pub fn invalidate<D: Device>(&self, device: &D, hash: u64, location: Location, version: u64) {
        let info = &self.blocks[self.block_of(location) as usize];
        info.live.fetch_sub(u64::from(location.len), Ordering::Relaxed);
        if matches!(info.state(), State::Active | State::Free) {
            return;
        }
        self.append_log(device, LogKind::Invalidate, hash, version);
    }

    /// The mapping of a copy was removed without need for a record (reclaimed, corrupt, expired).
    pub fn forget(&self, location: Location) {
        self.blocks[self.block_of(location) as usize]
            .live
            .fetch_sub(u64::from(location.len), Ordering::Relaxed);
    }

    /// Appends a record; where that fails, marks the cache so that it starts empty after a crash: nothing void is ever
    /// served.
    pub fn append_log<D: Device>(&self, device: &D, kind: LogKind, a: u64, b: u64) {
        if self.durability == Durability::Off {
            return;
        }
        let stored = match self.log.append(device, kind, a, b) {
            Ok(stored) => stored,
            Err(error) => {
                tracing::error!("invalidation log: {error}");
                false
            }
        };
        add(&self.counters.log_records, 1);
        add(&self.counters.written_bytes, crate::geometry::LOG_RECORD_BYTES);
        if !stored {
            self.log_failed_below
                .fetch_max(self.log.position() + 1, Ordering::AcqRel);
            self.counters.log_failures.fetch_add(1, Ordering::AcqRel);
            self.distrust(device);
        }
        if self.wants_checkpoint() {
            self.has_work.store(true, Ordering::Release);
        }
    }

    /// Whether a quarter of the log has been written since the newest checkpoint, and, where one failed, another sixteenth
    /// since that: a device that refuses checkpoints is not asked all the time.
    fn wants_checkpoint(&self) -> bool {
        // Records are counted as they are wanted: where the log is full its position stands still.
        let wanted = self.counters.log_records.load(Ordering::Relaxed);
        let failed_at = self.checkpoint_failed_at.load(Ordering::Relaxed);
        self.log.position().saturating_sub(self.log.last_checkpoint()) > self.geometry.log_slots / 4
            && (failed_at == 0 || wanted > failed_at + self.geometry.log_slots / 16)
    }

    /// From now until the next checkpoint a crash empties the cache. A failing device gets a few tries; if none succeeds,
    /// the next invalidation tries again.
    pub(crate) fn distrust<D: Device>(&self, device: &D) {
        let mut superblock = self.superblock.lock();
        if superblock.discard {
            return;
        }
        superblock.discard = true;
        let written = (0..8).any(|_| self.write_superblock(device, &mut superblock));
        superblock.discard = written;
    }

    /// Writes the superblock to the slot whose turn it is; whether that succeeded.
    pub(crate) fn write_superblock<D: Device>(&self, device: &D, superblock: &mut Superblock) -> bool {
        superblock.generation += 1;
        let bytes = superblock.encode();
        add(&self.counters.written_bytes, bytes.len() as u64);
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

    /// Waits until what was logged is as durable as was asked for; at once unless that is [`Durability::Power`].
    ///
    /// # Errors
    /// What the device said.
    pub async fn commit<D: Device>(&self, device: &D) -> io::Result<()> {
        let appended_below = self.log.position();
        if self.durability == Durability::Power && self.synced_below.load(Ordering::Acquire) < appended_below
        {
            device.sync().await?;
            self.synced_below.fetch_max(appended_below, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Where the record at `location` can be read; called under the shard's lock that the mapping was seen under.
    pub fn source(&self, location: Location) -> Source<B> {
        let id = self.block_of(location);
        let info = &self.blocks[id as usize];
        if matches!(info.state(), State::Active | State::Sealing)
            && let Some(block) = self.open.lock().iter().find(|b| b.id == id)
        {
            return Source::Memory(Arc::clone(block));
        }
        Source::Device {
            sequence: info.sequence.load(Ordering::Acquire),
        }
    }

    /// Reads a record from an open block.
    pub fn read_memory(&self, block: &OpenBlock<B>, location: Location) -> Option<Record<B>> {
        add(&self.counters.buffer_reads, 1);
        Record::decode(
            Arc::clone(&block.buffer),
            block.position_of(location),
            location.len as usize,
            self.cache_id,
            block.sequence,
            false,
        )
    }

    /// Reads a record from the device: one read of the sectors it touches.
    ///
    /// # Errors
    /// [`ReadFault`].
    pub async fn read_device<D: Device<Buf = B>>(
        &self,
        device: &D,
        location: Location,
        sequence: u64,
    ) -> Result<Record<B>, ReadFault> {
        let sector = SECTOR_BYTES as u64;
        let start = location.offset / sector * sector;
        let end = (location.offset + u64::from(location.len)).next_multiple_of(sector);
        let len = usize::try_from(end - start).expect("at most 1 MiB and two sectors");
        add(&self.counters.record_reads, 1);
        let read = device.read(start, len).await;
        // The block may have begun another life while the read was under way: then the bytes mean nothing.
        let info = &self.blocks[self.block_of(location) as usize];
        if info.sequence.load(Ordering::Acquire) != sequence {
            return Err(ReadFault::Reclaimed);
        }
        let buffer = read.map_err(|error| {
            add(&self.counters.read_errors, 1);
            ReadFault::Device(error)
        })?;
        let at = usize::try_from(location.offset - start).expect("below a sector");
        Record::decode(
            Arc::new(buffer),
            at,
            location.len as usize,
            self.cache_id,
            sequence,
            true,
        )
        .ok_or_else(|| {
            add(&self.counters.corrupt_records, 1);
            ReadFault::Corrupt
        })
    }

    /// Counts a record that was another key's.
    pub fn count_key_mismatch(&self) {
        add(&self.counters.key_mismatches, 1);
    }

    /// Whether [`FlashStore::take_work`] may have something; cheap.
    pub fn has_work(&self) -> bool {
        self.has_work.load(Ordering::Acquire)
    }

    /// The next piece of background work. Whoever takes it must run [`FlashStore::perform`] on it.
    pub fn take_work(&self) -> Option<Work<B>> {
        let mut structure = self.structure.lock();
        if self.lockstep && structure.in_flight > 0 {
            return None;
        }
        if let Some(block) = structure.to_seal.pop_front() {
            structure.in_flight += 1;
            return Some(Work::Seal(block));
        }
        if !structure.reclaiming && self.wants_reclaim(&structure) {
            structure.reclaiming = true;
            structure.in_flight += 1;
            return Some(Work::Reclaim);
        }
        if !structure.checkpointing && self.durability != Durability::Off && self.wants_checkpoint() {
            structure.checkpointing = true;
            structure.in_flight += 1;
            return Some(Work::Checkpoint);
        }
        self.has_work.store(false, Ordering::Release);
        None
    }

    pub(crate) fn wants_reclaim(&self, structure: &Structure<B>) -> bool {
        structure.free.len() < self.geometry.reserved as usize && !structure.queue.is_empty()
    }

    /// Ends a piece of work and wakes who waits for it.
    pub(crate) fn work_done(&self, change: impl FnOnce(&mut Structure<B>)) {
        let waiters = {
            let mut structure = self.structure.lock();
            change(&mut structure);
            std::mem::take(&mut structure.waiters)
        };
        self.has_work.store(true, Ordering::Release);
        waiters.into_iter().for_each(Waker::wake);
    }

    /// Waits until `ready` says so; it is asked again whenever a piece of background work has ended.
    pub(crate) async fn wait_for(&self, mut ready: impl FnMut(&mut Structure<B>) -> bool) {
        std::future::poll_fn(|cx| {
            let mut structure = self.structure.lock();
            if ready(&mut structure) {
                return Poll::Ready(());
            }
            structure.waiters.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Waits until no background work is under way.
    pub async fn quiesce(&self) {
        self.wait_for(|structure| structure.in_flight == 0).await;
    }

    /// Waits until some background work has ended, if any is under way.
    pub async fn wait_for_progress(&self) {
        let before = self.structure.lock().in_flight;
        let sealed = self.counters.sealed_blocks.load(Ordering::Relaxed);
        if before == 0 {
            return;
        }
        self.wait_for(|structure| {
            structure.in_flight < before || self.counters.sealed_blocks.load(Ordering::Relaxed) > sealed
        })
        .await;
    }

    /// Blocks by use: (free, sealed, open, checkpoint).
    pub fn block_usage(&self) -> (usize, usize, usize, usize) {
        let structure = self.structure.lock();
        let checkpoint = structure.checkpoint_blocks.iter().map(Vec::len).sum();
        (
            structure.free.len(),
            structure.queue.len(),
            self.open.lock().len(),
            checkpoint,
        )
    }

    /// DRAM held by block buffers, in bytes.
    pub fn buffer_bytes(&self) -> u64 {
        self.structure.lock().buffers_made as u64 * self.geometry.block_bytes
    }

    /// When a delayed flush is due, in Unix seconds; 0 = none.
    pub fn flush_at(&self) -> u32 {
        self.flush_at.load(Ordering::Acquire)
    }

    /// A flush was logged; a delayed one, if any, is seen to with it.
    pub fn flush_done(&self) {
        self.flush_at.store(0, Ordering::Release);
    }

    /// Whether no background work is under way.
    pub fn is_idle(&self) -> bool {
        self.structure.lock().in_flight == 0
    }

    /// Log records in use, and records that fit.
    pub fn log_usage(&self) -> (u64, u64) {
        self.log.usage()
    }

    /// Schedules (or with 0 takes back) a delayed flush, and records that.
    pub fn set_flush_at<D: Device>(&self, device: &D, at: u32) {
        // Stored first: a checkpoint that begins in between has it, or its log does; both is harmless.
        self.flush_at.store(at, Ordering::Release);
        self.append_log(device, LogKind::FlushAt, u64::from(at), 0);
    }
}
