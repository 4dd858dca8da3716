//! What a device is told beside its blocks: the log and the superblock, and how durable they are.

use crate::blocks::{Durability, Totals, add};
use crate::geometry::LOG_RECORD_BYTES;
use crate::log::{Kind, Log, Logged};
use crate::owner::Owner;
use crate::superblock::Superblock;
use crate::work::Shared;
use locks::Mutex;
use pumice_device::{Device, SECTOR_BYTES};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Seconds between two signs of life.
const ALIVE_SECS: u32 = 4;

/// How often it is tried to write a superblock that must be written.
const SUPERBLOCK_TRIES: u32 = 8;

/// The log and the superblock of a device. Shared by all threads.
pub struct Journal<O: Owner> {
    /// The log ring.
    pub log: Log,
    /// The superblock as it was written last.
    pub superblock: Mutex<Superblock>,
    pub(crate) durability: Durability,
    totals: Arc<Totals>,
    pub(crate) shared: Arc<Shared<O>>,
    /// Log records, and marks that make up for such, so far; and how many of them survive a power cut.
    logged: AtomicU64,
    synced: AtomicU64,
    /// Log records wanted until the last checkpoint that failed; 0 = none since the last good one.
    pub(crate) checkpoint_failed_at: AtomicU64,
    /// Lost records were to have positions below this.
    pub(crate) lost_below: AtomicU64,
    /// Changes that wait for room.
    waiters: AtomicUsize,
    /// The most records that one of them wants.
    wanted: AtomicU64,
    /// Somebody is about to write down the time.
    notes_life: AtomicBool,
}

/// A change that waits for room in the log: until there is room, a checkpoint is due.
struct Waiting<'a, O: Owner>(&'a Journal<O>);

impl<'a, O: Owner> Waiting<'a, O> {
    fn new(journal: &'a Journal<O>, records: u64) -> Self {
        // Under the lock under which work is taken: whoever finds none has seen this, or asks again.
        let _pool = journal.shared.pool.lock();
        journal.waiters.fetch_add(1, Ordering::AcqRel);
        journal.wanted.fetch_max(records, Ordering::AcqRel);
        journal.shared.has_work.store(true, Ordering::Release);
        Self(journal)
    }
}

impl<O: Owner> Drop for Waiting<'_, O> {
    fn drop(&mut self) {
        if self.0.waiters.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.wanted.store(0, Ordering::Release);
        }
    }
}

impl<O: Owner> Journal<O> {
    pub(crate) fn new(
        log: Log,
        superblock: Superblock,
        durability: Durability,
        totals: Arc<Totals>,
        shared: Arc<Shared<O>>,
    ) -> Self {
        Self {
            log,
            superblock: Mutex::new(superblock),
            durability,
            totals,
            shared,
            logged: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            checkpoint_failed_at: AtomicU64::new(0),
            lost_below: AtomicU64::new(0),
            waiters: AtomicUsize::new(0),
            wanted: AtomicU64::new(0),
            notes_life: AtomicBool::new(false),
        }
    }

    /// Appends a record, and reports.
    pub fn append<D: Device>(&self, device: &D, kind: impl Into<Kind<O::Kind>>, a: u64, b: u64) -> Logged {
        if self.durability == Durability::Off {
            return Logged::Off;
        }
        if self.shared.is_out() {
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
    /// ([`Journal::mark_discard`]), and keeps it until a checkpoint covers the change.
    pub fn lose_record<D: Device>(&self, device: &D) {
        self.lost_below
            .fetch_max(self.log.position() + 1, Ordering::AcqRel);
        self.totals.log_failures.fetch_add(1, Ordering::AcqRel);
        self.mark_discard(device);
        // Also where the mark was there: another thread may have made it, and not flushed it yet.
        self.logged.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether a quarter of the log has been written since the newest checkpoint, three quarters of it are in use, a change waits for room in
    /// it ([`Journal::wait_for_room`]), or the owner says that one is due; and, where one failed, another sixteenth of the log since that: a device that refuses checkpoints is not asked
    /// all the time.
    pub fn wants_checkpoint(&self, is_due: bool) -> bool {
        let (used, log_slots) = self.log.usage();
        let since = self.log.position().saturating_sub(self.log.last_checkpoint());
        // A checkpoint leaves the log what the one before it needs. Where it began late, that is most of the log, and less than a quarter
        // of it is left before its position stands still.
        let is_awaited = self.room() < self.wanted.load(Ordering::Acquire);
        let is_log_due = since > log_slots / 4 || used > log_slots / 4 * 3 || is_awaited;
        // Records are counted as they are wanted: where the log is full its position stands still.
        let wanted = self.totals.log_records.load(Ordering::Relaxed);
        let failed_at = self.checkpoint_failed_at.load(Ordering::Relaxed);
        self.durability != Durability::Off
            && (is_due || is_log_due)
            && (failed_at == 0 || wanted > failed_at + log_slots / 16)
    }

    /// Records that changes may append now. They leave an eighth of the log to background work, which makes room.
    pub fn room(&self) -> u64 {
        let (used, slots) = self.log.usage();
        (slots / 8 * 7).saturating_sub(used)
    }

    /// Records that background work may append now where it need not append them all.
    pub fn room_of_work(&self) -> u64 {
        let (used, slots) = self.log.usage();
        (slots / 16 * 15).saturating_sub(used)
    }

    /// Whether a checkpoint can make room in the log.
    fn can_make_room(&self) -> bool {
        self.checkpoint_failed_at.load(Ordering::Relaxed) == 0 && !self.shared.is_out()
    }

    /// Whether the log is nearly full, and a checkpoint is about to make room: a change should wait for it ([`Journal::wait_for_room`]).
    pub fn is_short(&self) -> bool {
        self.room() == 0 && self.can_make_room()
    }

    /// Waits until changes may append `records` to the log; until then a checkpoint is due, which another task writes. False if there is no
    /// room, and no checkpoint can make any. A device that is slower than its log fills slows down the changes; without that a crash
    /// would empty a cache of copies, and a store with the only copy would refuse the changes.
    ///
    /// `records`: at most three quarters of the log. Other changes may be faster: look at [`Journal::room`] where they append.
    pub async fn wait_for_room(&self, records: u64) -> bool {
        let has_room = || self.room() >= records;
        if has_room() {
            return true;
        }
        let waiting = Waiting::new(self, records);
        self.shared
            .wait_for(|_| has_room() || !self.can_make_room())
            .await;
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
        if superblock.discard || self.shared.is_out() {
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
        if self.shared.is_out() {
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

    /// Whether nothing has written down the time for some seconds. Whoever is told so calls [`Journal::note_alive`] when the log may be appended to;
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

    /// The next [`Journal::commit`] has something to make durable.
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

    /// A checkpoint failed: another is not due at once.
    pub fn note_checkpoint_failure(&self, error: &io::Error) {
        tracing::warn!("checkpoint: {error}");
        let wanted = self.totals.log_records.load(Ordering::Relaxed).max(1);
        self.checkpoint_failed_at.store(wanted, Ordering::Relaxed);
    }
}
