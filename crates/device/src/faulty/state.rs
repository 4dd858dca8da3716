//! The content, and the faults done to it.

use super::plan::{CrashPoint, FaultCounts, FaultPlan};
use super::power::Unflushed;
use super::rng::Rng;
use crate::chunks::ChunkMap;
use crate::{AlignedBuf, Buffer, SECTOR_BYTES};
use parking_lot::Mutex;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

/// What an operation does.
#[derive(Debug)]
pub(super) enum Work {
    Read(u64, usize),
    Write(u64, Arc<AlignedBuf>, Range<usize>),
    Sync,
}

/// The place where an operation's outcome meets its future.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) result: Option<io::Result<Option<AlignedBuf>>>,
    pub(super) waker: Option<Waker>,
    pub(super) dropped: bool,
}

/// See [`Outcome`].
pub(super) type SharedOutcome = Arc<Mutex<Outcome>>;

#[derive(Debug)]
pub(super) struct State {
    content: ChunkMap,
    rng: Rng,
    plan: FaultPlan,
    /// Writes and appends since the plan was set.
    since_plan: (u64, u64),
    /// Operations of all kinds but syncs since the plan was set.
    operations: u64,
    turns: u64,
    /// The lowest offset that was ever written, not appended.
    lowest_write: Option<u64>,
    unflushed: Unflushed,
    capacity: u64,
    crashed: bool,
    pending: Vec<Pending>,
    counts: FaultCounts,
}

#[derive(Debug)]
struct Pending {
    work: Work,
    outcome: SharedOutcome,
    /// The first turn that may complete it.
    due: u64,
}

/// A slow operation is late by up to so many turns.
const LATE_TURNS: u64 = 64;

fn crashed() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the simulated device has crashed")
}

impl State {
    pub(super) fn new(capacity: u64, seed: u64, plan: FaultPlan) -> Self {
        Self {
            content: ChunkMap::default(),
            rng: Rng::new(seed),
            plan,
            since_plan: (0, 0),
            operations: 0,
            turns: 0,
            lowest_write: None,
            unflushed: Unflushed::default(),
            capacity,
            crashed: false,
            pending: Vec::new(),
            counts: FaultCounts::default(),
        }
    }

    pub(super) fn set_plan(&mut self, plan: FaultPlan) {
        self.plan = plan;
        self.since_plan = (0, 0);
        self.operations = 0;
    }

    pub(super) fn restart(&mut self) {
        self.crashed = false;
        self.plan.crash = None;
    }

    pub(super) fn counts(&self) -> FaultCounts {
        self.counts
    }

    pub(super) fn lose_unflushed(&mut self) {
        self.counts.lost_in_power_cuts += self.unflushed.lose(&mut self.content, &mut self.rng);
    }

    pub(super) fn rot_at(&mut self, offset: u64) {
        let mut byte = [0];
        self.content.read(offset, &mut byte);
        byte[0] ^= 1 << self.rng.below(8);
        self.content.write(offset, &byte);
        self.counts.rotten_bits += 1;
    }

    /// Carries `work` out, now or in a later turn.
    pub(super) fn begin(&mut self, work: Work, outcome: &SharedOutcome) -> Vec<Waker> {
        if self.plan.delay && !self.crashed {
            let is_late = self.rng.chance(self.plan.slow);
            let late = if is_late {
                1 + self.rng.below(LATE_TURNS)
            } else {
                0
            };
            self.counts.slow += u64::from(is_late);
            self.pending.push(Pending {
                work,
                outcome: Arc::clone(outcome),
                due: self.turns + late,
            });
            return Vec::new();
        }
        let result = self.carry_out(work);
        outcome.lock().result = Some(result);
        if self.crashed {
            self.end_pending()
        } else {
            Vec::new()
        }
    }

    pub(super) fn is_crashed(&self) -> bool {
        self.crashed
    }

    /// Completes some of what is under way, in a seeded order; returns how many, and whom to wake.
    pub(super) fn turn(&mut self) -> (usize, Vec<Waker>) {
        if self.pending.is_empty() {
            return (0, Vec::new());
        }
        let mut completed = 0;
        let mut wakers = Vec::new();
        // Where all are late, the time until the first of them passes.
        let first = self.pending.iter().map(|pending| pending.due).min();
        self.turns = (self.turns + 1).max(first.unwrap_or(0));
        let due = self
            .pending
            .iter()
            .filter(|pending| pending.due <= self.turns)
            .count();
        let count = 1 + self.rng.below(due as u64);
        for _ in 0..count {
            let due: Vec<usize> = (0..self.pending.len())
                .filter(|at| self.pending[*at].due <= self.turns)
                .collect();
            if due.is_empty() {
                break;
            }
            let next = due[self.rng.below(due.len() as u64) as usize];
            let Pending { work, outcome, .. } = self.pending.swap_remove(next);
            let dropped = outcome.lock().dropped;
            completed += 1;
            if dropped && self.rng.below(2) == 0 {
                continue;
            }
            let result = self.carry_out(work);
            wakers.extend(finish(&outcome, result));
            if self.crashed {
                completed += self.pending.len();
                wakers.extend(self.end_pending());
            }
        }
        (completed, wakers)
    }

    pub(super) fn append(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.crashed {
            return Err(crashed());
        }
        self.counts.appends += 1;
        self.since_plan.1 += 1;
        if self.passes_away() {
            return Err(self.dead());
        }
        let (writes, appends) = self.since_plan;
        let crash = match self.plan.crash {
            Some(CrashPoint::Append(n)) => n == appends,
            Some(CrashPoint::WriteOrAppend(n)) => n == writes + appends,
            Some(CrashPoint::Write(_)) | None => false,
        };
        if !crash && self.rng.chance(self.plan.no_space) {
            return Err(self.no_space(offset, bytes.len()));
        }
        if !crash && !self.rng.chance(self.plan.append_error) {
            self.put(offset, bytes, true);
            return Ok(());
        }
        let kept = self.rng.below(bytes.len() as u64 + 1) as usize;
        self.put(offset, &bytes[..kept], true);
        if crash {
            self.counts.torn_appends += 1;
            self.crash();
            return Err(crashed());
        }
        self.counts.append_errors += 1;
        Err(io::Error::other(format!(
            "simulated error of a log append at {offset}"
        )))
    }

    pub(super) fn read_log(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.crashed {
            return Err(crashed());
        }
        if self.passes_away() {
            return Err(self.dead());
        }
        self.check_bad_ranges(offset, out.len())?;
        self.content.read(offset, out);
        if self.rng.chance(self.plan.log_bit_rot) {
            self.rot(out);
        }
        Ok(())
    }

    fn carry_out(&mut self, work: Work) -> io::Result<Option<AlignedBuf>> {
        if self.crashed {
            return Err(crashed());
        }
        match work {
            Work::Read(offset, len) => self.read(offset, len).map(Some),
            Work::Write(offset, data, range) => self.write(offset, &data.as_slice()[range]).map(|()| None),
            Work::Sync if self.is_dead() => Err(self.dead()),
            Work::Sync => {
                self.unflushed.flush();
                Ok(None)
            }
        }
    }

    fn read(&mut self, offset: u64, len: usize) -> io::Result<AlignedBuf> {
        self.counts.reads += 1;
        if self.passes_away() {
            return Err(self.dead());
        }
        self.check_bad_ranges(offset, len)?;
        if self.rng.chance(self.plan.read_error) {
            return Err(self.read_error(offset, len));
        }
        let mut buf = AlignedBuf::with_len(len);
        self.content.read(offset, buf.as_mut_slice());
        if self.rng.chance(self.plan.bit_rot) {
            self.rot(buf.as_mut_slice());
        }
        Ok(buf)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.counts.writes += 1;
        self.since_plan.0 += 1;
        let (writes, appends) = self.since_plan;
        let crash = match self.plan.crash {
            Some(CrashPoint::Write(n)) => n == writes,
            Some(CrashPoint::WriteOrAppend(n)) => n == writes + appends,
            Some(CrashPoint::Append(_)) | None => false,
        };
        if crash {
            self.tear(offset, bytes);
            self.crash();
            return Err(crashed());
        }
        let was_dead = self.is_dead();
        if self.passes_away() {
            if !was_dead {
                self.tear(offset, bytes);
            }
            return Err(self.dead());
        }
        if self.rng.chance(self.plan.no_space) {
            return Err(self.no_space(offset, bytes.len()));
        }
        if self.rng.chance(self.plan.write_error) {
            self.counts.write_errors += 1;
            self.write_some_sectors(offset, bytes);
            let len = bytes.len();
            return Err(io::Error::other(format!(
                "simulated error of a write of {len} bytes at {offset}"
            )));
        }
        if self.rng.chance(self.plan.lost_write) {
            self.counts.lost_writes += 1;
            return Ok(());
        }
        if self.rng.chance(self.plan.misdirected_write) {
            self.counts.misdirected_writes += 1;
            let elsewhere = self.elsewhere(offset, bytes.len() as u64);
            self.put(elsewhere, bytes, false);
            return Ok(());
        }
        self.put(offset, bytes, false);
        Ok(())
    }

    /// A place of the same length where a write may go astray: another of its kind, or any sectors, from where writes begin.
    fn elsewhere(&mut self, offset: u64, len: u64) -> u64 {
        let lowest = self.lowest_write.unwrap_or(offset).min(offset);
        let room = self.capacity - lowest - len;
        let step = if self.rng.below(2) == 0 {
            len
        } else {
            SECTOR_BYTES as u64
        };
        lowest + self.rng.below(room / step + 1) * step
    }

    /// Changes the content.
    fn put(&mut self, offset: u64, bytes: &[u8], is_append: bool) {
        if !is_append {
            self.lowest_write = Some(self.lowest_write.map_or(offset, |lowest| lowest.min(offset)));
        }
        if self.plan.volatile {
            self.unflushed.note(&self.content, offset, bytes, is_append);
        }
        self.content.write(offset, bytes);
    }

    /// Counts an operation; whether the device is dead by then.
    fn passes_away(&mut self) -> bool {
        self.operations += 1;
        self.is_dead()
    }

    fn is_dead(&self) -> bool {
        self.plan.dies_at.is_some_and(|at| self.operations >= at)
    }

    fn dead(&mut self) -> io::Error {
        self.counts.dead_operations += 1;
        io::Error::other("the simulated device has died")
    }

    fn no_space(&mut self, offset: u64, len: usize) -> io::Error {
        self.counts.no_space_errors += 1;
        io::Error::new(
            io::ErrorKind::StorageFull,
            format!("simulated lack of space for {len} bytes at {offset}"),
        )
    }

    fn check_bad_ranges(&mut self, offset: u64, len: usize) -> io::Result<()> {
        let end = offset + len as u64;
        let bad = self
            .plan
            .bad_ranges
            .iter()
            .any(|bad| bad.start < end && offset < bad.end);
        if bad {
            Err(self.read_error(offset, len))
        } else {
            Ok(())
        }
    }

    fn read_error(&mut self, offset: u64, len: usize) -> io::Error {
        self.counts.read_errors += 1;
        io::Error::other(format!("simulated error of a read of {len} bytes at {offset}"))
    }

    fn rot(&mut self, bytes: &mut [u8]) {
        let at = self.rng.below(bytes.len() as u64) as usize;
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= 1 << self.rng.below(8);
            self.counts.rotten_bits += 1;
        }
    }

    /// Writes a first part, a last part, or a scattered choice of the sectors.
    fn tear(&mut self, offset: u64, bytes: &[u8]) {
        self.counts.torn_writes += 1;
        let sectors = bytes.len() / SECTOR_BYTES;
        let cut = self.rng.below(sectors as u64 + 1) as usize * SECTOR_BYTES;
        match self.rng.below(3) {
            0 => self.put(offset, &bytes[..cut], false),
            1 => self.put(offset + cut as u64, &bytes[cut..], false),
            _ => self.write_some_sectors(offset, bytes),
        }
    }

    fn write_some_sectors(&mut self, offset: u64, bytes: &[u8]) {
        for (index, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
            if self.rng.below(2) == 0 {
                self.put(offset + (index * SECTOR_BYTES) as u64, sector, false);
            }
        }
    }

    pub(super) fn crash(&mut self) {
        if !self.crashed {
            self.crashed = true;
            self.counts.crashes += 1;
        }
    }

    /// Tears the writes that are under way at a crash, and fails everything.
    pub(super) fn end_pending(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for Pending { work, outcome, .. } in std::mem::take(&mut self.pending) {
            if let Work::Write(offset, data, range) = work {
                self.counts.writes += 1;
                self.tear(offset, &data.as_slice()[range]);
            }
            wakers.extend(finish(&outcome, Err(crashed())));
        }
        wakers
    }
}

fn finish(outcome: &SharedOutcome, result: io::Result<Option<AlignedBuf>>) -> Option<Waker> {
    let mut outcome = outcome.lock();
    outcome.result = Some(result);
    outcome.waker.take()
}
