//! Whether the device still works, and how one that does not is taken out.
//!
//! A device that fails now and then costs the objects that it fails. One that has failed altogether is *taken out*, for as long as
//! the process runs: it is neither read nor written any more, nothing is mapped to it, and DRAM goes on alone. That is so when
//!
//! - reads, or writes, of [`IN_A_ROW_MAX`] blocks failed one after the other, without one between that did not. (Any number of
//!   failures in one block is one: a block may be bad as a whole.)
//! - a flush failed: what was written before may be lost, and the system does not say twice;
//! - the file became shorter, or its file system can no longer be written to;
//! - an operation got no answer in the time that the caller of [`Device::tick`] gives it;
//! - a log record could not be stored, nor the mark in the superblock that makes up for it;
//! - a checkpoint's superblock could not be written, nor the one before it again: what a start would find there nobody knows.
//!
//! From then on deletes are not logged, so what is on the device must never count again, whatever becomes of the process. *Remembering*
//! that is the first thing that is done: both superblocks get `discard` and are flushed, and a note is left beside the
//! device. Either will do. Until one is there, or both have failed, no change is answered ([`FlashStore::commit`]).
//! With durability `off` the mark is there from the start.

use super::{Durability, FlashStore, Shared, Task, Work};
use crate::Mappings;
use crate::geometry::Geometry;
use parking_lot::Mutex;
use pumice_device::{Device, Overdue};
use pumice_memory::Buffer;
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::task::Poll;

/// Failures of reads, or of writes, in so many blocks in a row, and the device is taken out.
pub const IN_A_ROW_MAX: u32 = 8;

/// Seconds between two tries to remember.
const RETRY_SECS: u32 = 1;

/// Seconds after which a try that has not ended counts as failed: the device may hang, and the place of the note with it.
const REMEMBER_SECS: u32 = 10;

/// A device that was taken out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlashFailure {
    /// What it did.
    pub reason: String,
    /// Whether the next start will know: by a mark on the device or by a note beside it.
    pub remembered: bool,
}

/// How far it is with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum Stage {
    Works,
    /// It was just taken out.
    Out,
    /// Both ways to remember that have failed.
    Unremembered,
    Remembered,
}

/// Reads, or writes.
struct Way {
    name: &'static str,
    /// Whether the last one failed.
    has_failed: AtomicBool,
    /// Blocks in which one failed since the last one that did not, each once.
    blocks: Mutex<Vec<u32>>,
}

impl Way {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            has_failed: AtomicBool::new(false),
            blocks: Mutex::default(),
        }
    }

    /// One did not fail.
    fn succeeded(&self) {
        // Nearly always there is nothing to forget.
        if self.has_failed.load(Ordering::Relaxed) {
            let mut blocks = self.blocks.lock();
            blocks.clear();
            self.has_failed.store(false, Ordering::Relaxed);
        }
    }

    /// One failed in `block`; whether that makes too many blocks.
    fn failed(&self, block: u32) -> bool {
        let mut blocks = self.blocks.lock();
        self.has_failed.store(true, Ordering::Relaxed);
        if blocks.len() < IN_A_ROW_MAX as usize && !blocks.contains(&block) {
            blocks.push(block);
        }
        blocks.len() >= IN_A_ROW_MAX as usize
    }
}

/// What is known of a device, of all its handles together.
pub(crate) struct Health {
    geometry: Geometry,
    stage: AtomicU8,
    reads: Way,
    writes: Way,
    /// Whether somebody has to see to a device that was taken out.
    is_due: AtomicBool,
    /// Whether what was mapped to it is given up.
    is_given_up: AtomicBool,
    tried_at: AtomicU32,
    /// The last second that [`FlashStore::tick`] was told.
    now: AtomicU32,
    reason: Mutex<String>,
    /// Why it could not be remembered the last time, as far as that was logged.
    unremembered: Mutex<String>,
}

impl Health {
    pub(super) fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            stage: AtomicU8::new(Stage::Works as u8),
            reads: Way::new("reads of"),
            writes: Way::new("writes of"),
            is_due: AtomicBool::new(false),
            is_given_up: AtomicBool::new(false),
            tried_at: AtomicU32::new(0),
            now: AtomicU32::new(0),
            reason: Mutex::default(),
            unremembered: Mutex::default(),
        }
    }

    fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Acquire) {
            0 => Stage::Works,
            1 => Stage::Out,
            2 => Stage::Unremembered,
            _ => Stage::Remembered,
        }
    }

    pub(crate) fn is_out(&self) -> bool {
        self.stage() != Stage::Works
    }

    /// Whether nothing is mapped any more to a device that was taken out.
    pub(super) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Acquire)
    }

    /// Whether somebody has to see to a device that was taken out.
    pub(super) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Acquire)
    }

    /// Logs why it could not be remembered; not again each second while that stays the same. Returns whether it was news.
    fn log_unremembered(&self, why: &str) -> bool {
        let mut known = self.unremembered.lock();
        let is_news = *known != why;
        if is_news {
            why.clone_into(&mut known);
            tracing::error!(
                "that the flash device was taken out can be stored nowhere: {why}; it is tried again, but should this process end \
                 before, start the next with --reformat, or what was deleted meanwhile may be served again"
            );
        }
        is_news
    }

    /// Somebody has to see to it, maybe once more.
    pub(super) fn set_due(&self) {
        self.is_due.store(true, Ordering::Release);
    }
}

fn is_out_error() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the flash device was taken out")
}

/// The ways to the device that are watched. Each starts with the call, as with [`Device`].
impl<B: Buffer> Shared<B> {
    pub(crate) fn is_out(&self) -> bool {
        self.health.is_out()
    }

    pub(crate) fn read<D: Device<Buf = B>>(
        &self,
        device: &D,
        offset: u64,
        len: usize,
    ) -> impl Future<Output = io::Result<B>> {
        let read = (!self.is_out()).then(|| device.read(offset, len));
        async move {
            let result = read.ok_or_else(is_out_error)?.await;
            self.saw(&self.health.reads, offset, &result);
            result
        }
    }

    pub(crate) fn write<D: Device<Buf = B>>(
        &self,
        device: &D,
        offset: u64,
        data: Arc<B>,
        range: Range<usize>,
    ) -> impl Future<Output = io::Result<()>> {
        let write = (!self.is_out()).then(|| device.write(offset, data, range));
        async move {
            let result = write.ok_or_else(is_out_error)?.await;
            self.saw(&self.health.writes, offset, &result);
            result
        }
    }

    pub(crate) fn sync<D: Device<Buf = B>>(&self, device: &D) -> impl Future<Output = io::Result<()>> {
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

    /// Some errors say by themselves that nothing is to be expected of the device any more.
    pub(super) fn saw_error(&self, error: &io::Error) {
        if Overdue::is(error) {
            return self.take_out(format!("it does not answer: {error}"));
        }
        match error.kind() {
            io::ErrorKind::UnexpectedEof => self.take_out(format!("it became shorter: {error}")),
            io::ErrorKind::ReadOnlyFilesystem => self.take_out(error.to_string()),
            _ => {}
        }
    }

    /// Takes the device out, if it is not out yet. What is left to do is a piece of work.
    pub(crate) fn take_out(&self, reason: String) {
        let mut said = self.health.reason.lock();
        if self.is_out() {
            return;
        }
        tracing::error!("the flash device is taken out, DRAM serves alone until the next start: {reason}");
        *said = reason;
        self.health.stage.store(Stage::Out as u8, Ordering::Release);
        self.health.set_due();
        // Under the lock: whoever is finding that there is nothing to do finds this afterwards.
        let _structure = self.structure.lock();
        self.has_work.store(true, Ordering::Release);
    }
}

impl<B: Buffer> FlashStore<B> {
    /// Whether the device was taken out; cheap.
    pub fn is_out(&self) -> bool {
        self.shared.is_out()
    }

    /// Why the device was taken out, if it was.
    pub fn failure(&self) -> Option<FlashFailure> {
        self.is_out().then(|| FlashFailure {
            reason: self.shared.health.reason.lock().clone(),
            remembered: self.is_remembered(),
        })
    }

    /// Whether a device that was taken out is known as such at the next start.
    pub fn is_remembered(&self) -> bool {
        self.shared.health.stage() == Stage::Remembered
    }

    /// Waits until it was tried to remember that the device was taken out, if it was; whether that succeeded.
    pub async fn wait_until_remembered(&self) -> bool {
        self.wait_for(|_| self.shared.health.stage() != Stage::Out).await;
        self.is_remembered()
    }

    /// A second has passed, or about that. Needed only where the device was taken out.
    pub fn tick(&self, now: u32) {
        let health = &self.shared.health;
        health.now.fetch_max(now, Ordering::AcqRel);
        self.remember_again(now);
        if health.stage() == Stage::Out {
            // Whoever waits for the end of a try looks at the time.
            self.shared.change(|_| ());
        }
    }

    /// The device owes an answer, which [`Device::tick`] has found out, maybe for an operation that nobody waits for: it is taken out.
    pub fn saw_overdue(&self, overdue: Overdue) {
        self.shared.saw_error(&overdue.into());
    }

    /// Flushes the device, and takes it out where that fails.
    ///
    /// # Errors
    /// What the device said, or that it was taken out.
    pub fn sync<D: Device<Buf = B>>(&self, device: &D) -> impl Future<Output = io::Result<()>> {
        self.shared.sync(device)
    }

    /// Where remembering has failed, it is due again when a second has passed.
    pub fn remember_again(&self, now: u32) {
        let health = &self.shared.health;
        let tried_at = health.tried_at.load(Ordering::Relaxed);
        if health.stage() == Stage::Unremembered && now >= tried_at.saturating_add(RETRY_SECS) {
            health.tried_at.store(now, Ordering::Relaxed);
            health.set_due();
            self.shared.change(|_| ());
        }
    }

    /// What there is to do for a device that was taken out.
    pub(super) fn take_failure_work(&self) -> Option<Work<B>> {
        let work = self.find_failure_work();
        if work.is_some() {
            self.shared.has_work.store(true, Ordering::Release);
        }
        work
    }

    fn find_failure_work(&self) -> Option<Work<B>> {
        {
            let mut structure = self.shared.structure.lock();
            // First, and under the lock. Whoever makes something due says so under the lock afterwards: either it is found here, or
            // there is work again when this is through.
            self.shared.has_work.store(false, Ordering::Release);
            if self.shared.health.is_due.swap(false, Ordering::AcqRel) {
                structure.taking_out += 1;
                return Some(self.claim(&mut structure, Task::TakeOut));
            }
        }
        // Their blocks are not written: nothing in them is mapped any more.
        self.shared
            .health
            .is_given_up()
            .then(|| self.take_seal())
            .flatten()
    }

    /// Remembers that the device was taken out, and gives up what is mapped to it.
    pub(crate) async fn perform_take_out<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
    ) {
        self.remember(device, now).await;
        // What is under way ends by itself, and accounts for what it gives up.
        self.wait_for(|structure| structure.in_flight == structure.taking_out)
            .await;
        if !self.shared.health.is_given_up() {
            mappings.give_up_all();
            self.shared.health.is_given_up.store(true, Ordering::Release);
            self.note_flush();
            self.forget_order();
            self.retire_active();
            self.shared.change(|_| ());
        }
    }

    /// Sees to it that the next start trusts nothing that is on the device; whether that succeeded.
    pub async fn remember<D: Device<Buf = B>>(&self, device: &D, now: u32) -> bool {
        let health = &self.shared.health;
        if health.stage() == Stage::Remembered {
            return true;
        }
        health.tried_at.store(now, Ordering::Relaxed);
        let until = now.saturating_add(REMEMBER_SECS);
        let tried = match self.durability() {
            Durability::Off => Ok(()),
            _ => self.mark_or_note(device, until).await,
        };
        let remembered = tried.is_ok();
        if let Err(why) = tried {
            health.log_unremembered(&why);
        }
        let stage = if remembered {
            Stage::Remembered
        } else {
            Stage::Unremembered
        };
        health.stage.fetch_max(stage as u8, Ordering::AcqRel);
        self.shared.change(|_| ());
        remembered
    }

    /// Marks the device and leaves a note beside it, both at once; done when one has succeeded, or both have failed, or at a time.
    async fn mark_or_note<D: Device<Buf = B>>(&self, device: &D, until: u32) -> Result<(), String> {
        let mut note = pin!(device.note_failure(self.cache_id));
        let mut mark = pin!(self.mark_out(device));
        let mut over = pin!(self.wait_for(|_| self.shared.health.now.load(Ordering::Acquire) >= until));
        let (mut noted, mut marked) = (None, None);
        std::future::poll_fn(|cx| {
            if noted.is_none()
                && let Poll::Ready(end) = note.as_mut().poll(cx)
            {
                noted = Some(end);
            }
            if marked.is_none()
                && let Poll::Ready(end) = mark.as_mut().poll(cx)
            {
                marked = Some(end);
            }
            match (&noted, &marked) {
                (Some(Ok(())), _) | (_, Some(Ok(()))) => Poll::Ready(Ok(())),
                (Some(Err(note)), Some(Err(mark))) => Poll::Ready(Err(format!(
                    "marking it: {mark}; noting its failure beside it: {note}"
                ))),
                _ => over.as_mut().poll(cx).map(|()| {
                    Err(format!(
                        "neither marking it nor noting its failure beside it has ended within {REMEMBER_SECS} s"
                    ))
                }),
            }
        })
        .await
    }

    /// Writes the mark to both superblocks and flushes it. It counts only where all of that succeeded; but what can be done is done.
    async fn mark_out<D: Device<Buf = B>>(&self, device: &D) -> io::Result<()> {
        let marks = Cell::new(None);
        // Whoever has the superblock may be writing it to a device that hangs, so nobody blocks here: it is looked for at each change,
        // and there is one each second.
        self.wait_for(|_| {
            let made = self.try_encode_marks();
            let is_made = made.is_some();
            marks.set(made);
            is_made
        })
        .await;
        device.mark(marks.take().unwrap_or_default()).await
    }

    /// Both superblocks with the mark, each with its offset, unless another one has the superblock just now.
    fn try_encode_marks(&self) -> Option<Vec<(u64, Vec<u8>)>> {
        let mut superblock = self.superblock.try_lock()?;
        (superblock.clean, superblock.discard) = (false, true);
        // Both, so that the one that is left when the other cannot be read says the same.
        let marks = [(); 2].map(|()| {
            superblock.generation += 1;
            (superblock.slot_offset(), superblock.encode())
        });
        Some(marks.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_tried_each_second_is_logged_when_its_reason_changes() {
        let health = Health::new(Geometry::plan(64 << 20, 64 << 10).unwrap());
        let news = ["a", "a", "b", "b", "a"].map(|why| health.log_unremembered(why));
        assert_eq!(news, [true, false, true, false, true]);
    }
}
