//! Whether the device still works, and how one that does not is fenced.
//!
//! A device that fails now and then costs the objects that it fails. One that has failed for good is *fenced*, for as long as
//! the process runs: it is neither read nor written any more. That is so when
//!
//! - reads, or writes, of [`IN_A_ROW_MAX`] blocks failed one after the other, without one between that did not. (Any number of
//!   failures in one block is one: a block may be bad as a whole.)
//! - a flush failed: what was written before may be lost, and the system does not say twice;
//! - the file became shorter, or its file system can no longer be written to;
//! - an operation got no answer in the time that the caller of [`Device::tick`] gives it;
//! - a log record could not be stored, nor the mark in the superblock that makes up for it;
//! - a checkpoint's superblock could not be written, nor the one before it again: what a start would find there is unknown.
//!
//! From then on nothing is logged. What the next start is to make of the device the owner decides, who finds [`Task::TakeOut`] due. A
//! cache of copies lets nothing on it count again ([`Journal::remember_failure`]): both superblocks get `discard` and are flushed,
//! where the device still takes that; where it does not answer that either, again when it may ([`Shared::tick_when_out`]). A store with the only copy leaves the device as it is ([`Shared::keep_after_failure`]). Until that is
//! settled no change is answered ([`Shared::wait_until_settled`]).

use crate::blocks::{Blocks, Durability};
use crate::fence::{IN_A_ROW_MAX, Retry, Stage, Way};
use crate::journal::Journal;
use crate::owner::Owner;
use crate::work::{Shared, Task, Work};
use pumice_device::{Device, Overdue};
use pumice_memory::{Buffer, Payload, SECTOR_BYTES};
use std::future::Future;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Seconds that a fenced device has for its superblocks: it may hang.
const SETTLE_SECS: u32 = 10;

/// A fenced device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFailure {
    /// What it did.
    pub reason: String,
    /// Whether its superblocks say so, and the next start will know.
    pub remembered: bool,
}

fn is_out_error() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the flash device was taken out")
}

/// I/O that counts towards the health of the device. Each operation starts with the call, as with [`Device`].
impl<O: Owner> Shared<O> {
    /// Whether the device is fenced; cheap.
    pub fn is_out(&self) -> bool {
        self.health.is_out()
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// What the device said, or that it is fenced.
    pub fn read<D: Device<Buf = O::Buf>>(
        &self,
        device: &D,
        offset: u64,
        len: usize,
    ) -> impl Future<Output = io::Result<O::Buf>> {
        let read = (!self.is_out()).then(|| device.read(offset, len));
        async move {
            let result = read.ok_or_else(is_out_error)?.await;
            self.saw(&self.health.reads, offset, &result);
            result
        }
    }

    /// Writes bytes of a buffer.
    ///
    /// # Errors
    /// What the device said, or that it is fenced.
    pub fn write<D: Device<Buf = O::Buf>>(
        &self,
        device: &D,
        offset: u64,
        data: Arc<O::Buf>,
        range: Range<usize>,
    ) -> impl Future<Output = io::Result<()>> {
        let write = (!self.is_out()).then(|| device.write(offset, data, range));
        async move {
            let result = write.ok_or_else(is_out_error)?.await;
            self.saw(&self.health.writes, offset, &result);
            result
        }
    }

    /// Flushes the device, and fences it where that fails.
    ///
    /// # Errors
    /// What the device said, or that it is fenced.
    pub fn sync<D: Device<Buf = O::Buf>>(&self, device: &D) -> impl Future<Output = io::Result<()>> {
        let sync = (!self.is_out()).then(|| device.sync());
        async move {
            let result = sync.ok_or_else(is_out_error)?.await;
            if let Err(error) = &result {
                self.take_out(format!("a flush failed: {error}"));
            }
            result
        }
    }

    fn saw<T>(&self, way: &Way, offset: u64, result: &io::Result<T>) {
        let Err(error) = result else {
            return way.succeeded();
        };
        let block = self.health.geometry.block_of(offset).unwrap_or(u32::MAX);
        if way.failed(block) {
            let name = way.name;
            self.take_out(format!(
                "{name} {IN_A_ROW_MAX} blocks in a row failed, the last with: {error}"
            ));
        }
        self.saw_error(error);
    }

    /// Some errors fence the device at once.
    pub fn saw_error(&self, error: &io::Error) {
        if Overdue::is(error) {
            return self.take_out(format!("it does not answer: {error}"));
        }
        match error.kind() {
            io::ErrorKind::UnexpectedEof => self.take_out(format!("it became shorter: {error}")),
            io::ErrorKind::ReadOnlyFilesystem => self.take_out(error.to_string()),
            _ => {}
        }
    }

    /// Fences the device, once. What is left to do is a piece of work.
    pub fn take_out(&self, reason: String) {
        let mut said = self.health.reason.lock();
        if self.is_out() {
            return;
        }
        tracing::error!("the flash device is taken out until the next start: {reason}");
        *said = reason;
        self.health.stage.store(Stage::Out as u8, Ordering::Release);
        self.health.set_due();
        // Under the lock: a thread that is finding nothing to do looks again afterwards.
        let _pool = self.pool.lock();
        self.has_work.store(true, Ordering::Release);
    }

    /// Why the device is fenced, if it is.
    pub fn failure(&self) -> Option<DeviceFailure> {
        self.is_out().then(|| DeviceFailure {
            reason: self.health.reason.lock().clone(),
            remembered: self.is_remembered(),
        })
    }

    /// Whether the next start will know that the device was fenced.
    pub fn is_remembered(&self) -> bool {
        self.health.stage() == Stage::Remembered
    }

    /// Waits until the superblocks of a fenced device say so, or cannot; true where they do.
    pub async fn wait_until_settled(&self) -> bool {
        self.wait_for(|_| self.health.stage() > Stage::Settling).await;
        self.is_remembered()
    }

    /// A second of a fenced device has passed, and it is `now`, in seconds: returns those that it has to answer, for [`Device::tick`]. Where it
    /// did not answer, and its superblocks do not say that nothing on it counts, [`Task::TakeOut`] becomes due once more from time to time: its
    /// file system may have been frozen, and be thawed.
    pub fn tick_when_out(&self, now: u32) -> u32 {
        self.retry_failure(now);
        let health = &self.health;
        match health.stage() {
            Stage::Settling => {}
            Stage::Unremembered => {
                let retry = health.retry.lock();
                let is_tried = retry.as_ref().is_some_and(|retry| retry.is_under_way(now));
                return if is_tried { SETTLE_SECS } else { 0 };
            }
            _ => return 0,
        }
        // The superblocks may wait behind what hangs, and are then not the device's to answer.
        let until = now.saturating_add(SETTLE_SECS);
        let (set, get) = (Ordering::AcqRel, Ordering::Acquire);
        let until = health
            .settle_until
            .compare_exchange(0, until, set, get)
            .err()
            .unwrap_or(until);
        if now < until { SETTLE_SECS } else { 0 }
    }

    /// An operation has timed out, as [`Device::tick`] has found, maybe one that nothing waits for: the device is fenced.
    pub fn saw_overdue(&self, overdue: Overdue) {
        self.saw_error(&overdue.into());
    }

    /// Whether the work that follows a fence is due.
    pub fn is_failure_due(&self) -> bool {
        self.health.is_due()
    }

    fn retry_failure(&self, now: u32) {
        let health = &self.health;
        if health.stage() != Stage::Unremembered || !health.is_given_up() {
            return;
        }
        let is_due = |retry: &mut Retry| retry.begin(now, SETTLE_SECS);
        if !health.retry.lock().as_mut().is_some_and(is_due) {
            return;
        }
        health.set_due();
        let _pool = self.pool.lock();
        self.has_work.store(true, Ordering::Release);
    }

    /// Leaves a fenced device as it is, for the next start to find. The first half of [`Task::TakeOut`], for an owner of the
    /// only copy, which refuses all changes from here on.
    pub async fn keep_after_failure(&self) {
        self.settle_failure(Stage::Unremembered).await;
    }

    async fn settle_failure(&self, stage: Stage) {
        self.health.stage.fetch_max(stage as u8, Ordering::AcqRel);
        self.change(|_| ());
        // What is under way beside this ends by itself, and accounts for what it drops.
        self.wait_for(|pool| pool.in_flight == 1).await;
    }

    /// Nothing leads to the fenced device any more: blocks that wait to be written need not be.
    pub fn note_given_up(&self) {
        self.health.is_given_up.store(true, Ordering::Release);
    }

    /// Whether nothing leads to the fenced device any more.
    pub fn is_given_up(&self) -> bool {
        self.health.is_given_up()
    }
}

impl<O: Owner> Blocks<O> {
    /// Whether the device is fenced; cheap.
    pub fn is_out(&self) -> bool {
        self.shared.is_out()
    }

    /// The work that follows a fence.
    pub fn take_failure_work(&self) -> Option<Work<O>> {
        let mut pool = self.shared.pool.lock();
        // First, and under the lock. A thread that makes something due sets the flag under the lock afterwards: either it is found here, or
        // there is work again when this is through.
        self.shared.has_work.store(false, Ordering::Release);
        let work = match self.shared.health.is_due.swap(false, Ordering::AcqRel) {
            true => Some(self.claim(&mut pool, Task::TakeOut)),
            // Blocks that wait are not written: nothing leads to them any more.
            false if self.shared.is_given_up() => self.take_seal(&mut pool),
            false => None,
        };
        if work.is_some() {
            self.shared.has_work.store(true, Ordering::Release);
        }
        work
    }
}

impl<O: Owner> Journal<O> {
    /// Gives both superblocks of a fenced device `discard`, where it takes that; whether it did. The first half of
    /// [`Task::TakeOut`], for an owner of copies: it then drops everything that leads to the device, and calls
    /// [`Shared::note_given_up`].
    pub async fn remember_failure<D: Device<Buf = O::Buf>>(&self, device: &D) -> io::Result<()> {
        let health = &self.shared.health;
        health.stage.fetch_max(Stage::Settling as u8, Ordering::AcqRel);
        let stored = self.store_discard(device).await;
        if stored.as_ref().is_err_and(Overdue::is) {
            health.retry.lock().get_or_insert_with(Retry::new);
        }
        self.shared
            .settle_failure(if stored.is_ok() {
                Stage::Remembered
            } else {
                Stage::Unremembered
            })
            .await;
        stored
    }

    /// Writes `discard` to both superblocks and flushes it, past the page cache as blocks are, so that a device that hangs holds no
    /// thread. It counts only where all of that succeeded; but what can be done is done.
    async fn store_discard<D: Device<Buf = O::Buf>>(&self, device: &D) -> io::Result<()> {
        if self.durability == Durability::Off {
            return Ok(());
        }
        let writes = {
            let mut superblock = self.superblock.lock();
            (superblock.clean, superblock.discard) = (false, true);
            // Both, so that the one that is left when the other cannot be read says the same.
            [(); 2].map(|()| {
                superblock.generation += 1;
                let buffer = O::Buf::with_len(SECTOR_BYTES);
                // SAFETY: the buffer was just made; nobody else knows it.
                unsafe { buffer.put(0, Payload::Bytes(&superblock.encode())) };
                device.write(superblock.slot_offset(), Arc::new(buffer), 0..SECTOR_BYTES)
            })
        };
        let mut written = Ok(());
        for write in writes {
            written = write.await.and(written);
        }
        if written.as_ref().is_err_and(Overdue::is) {
            return written;
        }
        let synced = device.sync().await;
        written.and(synced)
    }
}
