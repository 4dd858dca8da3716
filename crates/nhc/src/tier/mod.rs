//! The performance tier: copies of the most read blocks of a device on a faster one.
//!
//! The lower device is divided into blocks, which its store writes whole and then leaves as they are. The upper device has *places* of
//! the same size; a place holds a copy of a block, or nothing. Which block has a copy where is in DRAM alone, in one word for each block
//! ([`table`]): a copy counts or is void, it is never out of date.
//!
//! ```text
//! write below:  1 void the copy, count the version up   2 submit the write below   3 it is done
//! read:         1 find the place   2 pin it   3 find it again   4 read the place   5 check the bytes   6 unpin
//! copy:         1 note the version   2 find no write under way   3 read below   4 write the place   5 enter it, if the version is
//!               still the same: one compare-and-swap
//! reuse:        1 void the copy of the place   2 find no pin on it   3 write the place
//! ```
//!
//! A reader between 3 and 6 holds a pin, so that nothing is written to its place; and between its 2 and its 3 either it sees the void of
//! `reuse`, or `reuse` sees its pin (both sides write first and read then, in one total order). A write that is submitted after copy's 2
//! has counted the version up before, so that 5 fails.
//!
//! Nothing depends on the upper device. What it does not answer, answers with an error, or answers with bytes that fail the reader's
//! check is read below, and the copy is void. Eight failures in a row, or an answer that is overdue, and it is left alone until
//! the next start.
//!
//! After a start a copy counts if both devices show the same last sector of its block, and the store knows this block, with this last
//! sector, as whole. The last sector of a place is cleared before anything else of it is written, and written last.

mod choose;
mod copy;
mod device;
pub mod format;
mod table;
#[cfg(test)]
mod tests;

pub use device::{Start, Tiered};

use crate::split::Split;
use crate::{Counts, Objective, Status, Switch};
use choose::Chooser;
use format::UPPER_DATA_OFFSET;
use locks::Mutex;
use pumice_device::Timeline;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use table::Table;

/// Failures of the upper device in a row, after which it is left alone; however many read a bad copy, it is one.
pub const FAILURES_MAX: u32 = 8;

/// Seconds that the upper device may leave an operation without an answer while it answers nothing at all. Few, because the lower one
/// can answer all the same.
const PATIENCE_SECS: u32 = 2;

/// How the lower device is divided into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// Where block 0 starts, in bytes.
    pub offset: u64,
    /// Bytes of a block, whole sectors.
    pub block_bytes: u64,
    /// Number of blocks.
    pub blocks: u32,
}

impl Division {
    /// Where a block starts, in bytes.
    pub fn block_offset(&self, block: u32) -> u64 {
        self.offset + u64::from(block) * self.block_bytes
    }

    /// The block that holds the whole range.
    fn block_of(&self, offset: u64, len: u64) -> Option<u32> {
        let touched = self.blocks_of(offset, len);
        (touched.len() == 1 && offset >= self.offset && offset + len <= self.block_offset(touched.end))
            .then_some(touched.start)
    }

    /// The blocks that the range touches.
    fn blocks_of(&self, offset: u64, len: u64) -> Range<u32> {
        let clamp = |block: u64| u32::try_from(block).unwrap_or(u32::MAX).min(self.blocks);
        let end = offset.saturating_add(len);
        if end <= self.offset || len == 0 {
            return 0..0;
        }
        let first = offset.saturating_sub(self.offset) / self.block_bytes;
        clamp(first)..clamp((end - self.offset).div_ceil(self.block_bytes))
    }

    /// How many places fit an upper device of so many bytes.
    pub fn places(&self, upper_bytes: u64) -> u32 {
        let places = upper_bytes.saturating_sub(UPPER_DATA_OFFSET) / self.block_bytes;
        u32::try_from(places).unwrap_or(u32::MAX).min(self.blocks)
    }
}

/// Tells from the last sector of a block which block it is, if the store knows that block, with exactly this last sector, as whole: it is
/// written, and will not be written again before it is discarded.
pub type Catalog = Box<dyn Fn(&[u8]) -> Option<u32> + Send + Sync>;

pumice_world::figures! {
    /// What became of reads and copies, since the process started.
    pub struct TierCounts;
    of
    /// Counters shared by all handles.
    pub struct TierCounters: AtomicU64;
    /// Reads of records on flash, of whichever device.
    Counter reads,
    /// Reads of records that a copy answered.
    Counter copy_reads,
    /// Reads of records with a copy that went to the capacity tier, because the performance tier has enough to do.
    Counter redirected_reads,
    /// Reads of records that a copy failed to answer (error, no answer in time, or a wrong checksum), made good from the capacity tier.
    Counter made_good,
    /// Records of copies with a wrong checksum.
    Counter wrong_copies,
    /// Blocks copied.
    Counter copied_blocks,
    /// Bytes written to the performance tier.
    Counter copied_bytes,
    /// Copies that were begun and given up, because the block was written meanwhile or a device failed.
    Counter abandoned_copies,
    /// Copies found valid at the start.
    Counter adopted_copies,
    /// Copies that became void because the capacity tier was written or discarded there.
    Counter void_copies,
    /// Copies that gave way to a block that is read more.
    Counter replaced_copies,
    /// Errors of the performance tier.
    Counter errors,
}

fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// How far it is with the upper device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Stage {
    /// It is not begun yet.
    Waits,
    Works,
    /// It is left alone.
    Out,
}

/// What all handles on one pair of devices share.
pub struct Tier {
    table: Table,
    catalog: OnceLock<Catalog>,
    stage: AtomicU8,
    reason: Mutex<String>,
    /// Failures since the last answer.
    failures: AtomicU32,
    counters: TierCounters,
    /// Reads so far, and how many there were when blocks were chosen last.
    reads: AtomicU64,
    chosen_at: AtomicU64,
    /// Bytes written below, or held there when the tier was made: as many may be copied.
    earned_bytes: AtomicU64,
    is_copying: AtomicBool,
    chooser: Mutex<Chooser>,
    split: Arc<Split>,
}

impl Tier {
    /// A tier over a lower device divided like this, on an upper one of `upper_bytes`, which splits reads for this objective by times of
    /// `time`. It does nothing before [`Tiered::start`].
    pub fn new(
        division: Division,
        upper_bytes: u64,
        objective: Objective,
        time: Arc<dyn Timeline>,
    ) -> Arc<Self> {
        Self::over(division, upper_bytes, Split::new(objective, time))
    }

    /// As [`Tier::new`], with a split that nobody changes: what the scheduler is compared with.
    pub fn held(division: Division, upper_bytes: u64, load_admit: f64, data_admit: bool) -> Arc<Self> {
        Self::over(division, upper_bytes, Split::held(load_admit, data_admit))
    }

    fn over(division: Division, upper_bytes: u64, split: Arc<Split>) -> Arc<Self> {
        let places = division.places(upper_bytes);
        Arc::new(Self {
            table: Table::new(division, places),
            catalog: OnceLock::new(),
            stage: AtomicU8::new(Stage::Waits as u8),
            reason: Mutex::default(),
            failures: AtomicU32::new(0),
            counters: TierCounters::default(),
            reads: AtomicU64::new(0),
            chosen_at: AtomicU64::new(0),
            earned_bytes: AtomicU64::new(0),
            is_copying: AtomicBool::new(false),
            chooser: Mutex::new(Chooser::new(division.blocks, places)),
            split,
        })
    }

    /// What became of reads and copies.
    pub fn counts(&self) -> TierCounts {
        let reads = self.reads.load(Ordering::Relaxed);
        TierCounts {
            reads,
            void_copies: self.table.void_copies(),
            ..self.counters.snapshot()
        }
    }

    /// What the scheduler does.
    pub fn status(&self) -> Status {
        self.split.status()
    }

    /// What was asked of each device, and how long it took.
    pub fn load(&self) -> Counts {
        self.split.counts()
    }

    /// What the scheduler has set last, trials included.
    pub fn switch(&self) -> &Switch {
        self.split.switch()
    }

    /// Copies that the upper device has room for.
    pub fn places(&self) -> u32 {
        self.table.places()
    }

    /// Copies that count.
    pub fn copies(&self) -> u64 {
        self.table.copies()
    }

    /// Whether copies are read.
    pub fn works(&self) -> bool {
        self.stage.load(Ordering::Acquire) == Stage::Works as u8
    }

    /// Why the upper device is left alone, if it is.
    pub fn failure(&self) -> Option<String> {
        let is_out = self.stage.load(Ordering::Acquire) == Stage::Out as u8;
        is_out.then(|| self.reason.lock().clone())
    }

    /// The upper device is left alone from now on.
    pub fn leave_out(&self, reason: String) {
        let mut said = self.reason.lock();
        if self.stage.swap(Stage::Out as u8, Ordering::AcqRel) != Stage::Out as u8 {
            tracing::warn!(
                "the performance tier is left alone until the next start, the capacity tier serves everything: {reason}"
            );
            *said = reason;
        }
    }

    /// The upper device did as asked.
    fn note_success(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// The upper device did not do as asked.
    fn note_failure(&self, what: &dyn std::fmt::Display) {
        if self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= FAILURES_MAX {
            self.leave_out(format!("{FAILURES_MAX} failures in a row, the last: {what}"));
        }
    }

    fn note_error(&self, error: &std::io::Error) {
        add(&self.counters.errors, 1);
        if pumice_device::Overdue::is(error) {
            self.leave_out(format!("it does not answer: {error}"));
        } else {
            self.note_failure(error);
        }
    }
}
