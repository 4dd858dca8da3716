//! The content, and the faults done to it.

use super::plan::{CrashPoint, FaultCounts, FaultPlan};
use super::rng::Rng;
use crate::chunks::ChunkMap;
use crate::{AlignedBuf, Buffer, SECTOR_BYTES};
use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

/// A medium in memory that fails as its [`FaultPlan`] says, shared by its handles. Its content survives crashes, as
/// far as they leave it.
#[derive(Debug)]
pub struct FaultyMedium {
    capacity: u64,
    state: Mutex<State>,
}

impl FaultyMedium {
    /// A medium of `capacity` bytes, rounded down to whole sectors, all zero. `seed` decides every choice.
    pub fn new(capacity: u64, seed: u64, plan: FaultPlan) -> Self {
        Self {
            capacity: capacity - capacity % SECTOR_BYTES as u64,
            state: Mutex::new(State {
                content: ChunkMap::default(),
                rng: Rng::new(seed),
                plan,
                since_plan: (0, 0),
                crashed: false,
                pending: Vec::new(),
                counts: FaultCounts::default(),
            }),
        }
    }

    /// Size in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Takes another plan from the next operation on; the numbers of its crash point count from here.
    pub fn set_plan(&self, plan: FaultPlan) {
        let mut state = self.state.lock();
        state.plan = plan;
        state.since_plan = (0, 0);
    }

    /// Whether the device has crashed and was not restarted.
    pub fn is_crashed(&self) -> bool {
        self.state.lock().crashed
    }

    /// Crashes now, between two operations; writes under way are torn.
    pub fn crash(&self) {
        let wakers = {
            let mut state = self.state.lock();
            state.crash();
            state.end_pending()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Ends a crash: operations work again, on the content that the crash left. The crash point of the plan is
    /// taken out; its other faults go on.
    pub fn restart(&self) {
        let mut state = self.state.lock();
        state.crashed = false;
        state.plan.crash = None;
    }

    /// Flips one bit of the stored byte at `offset`, until it is written again.
    pub fn rot_at(&self, offset: u64) {
        let mut state = self.state.lock();
        let mut byte = [0];
        state.content.read(offset, &mut byte);
        byte[0] ^= 1 << state.rng.below(8);
        state.content.write(offset, &byte);
        state.counts.rotten_bits += 1;
    }

    /// What passed and what was injected.
    pub fn counts(&self) -> FaultCounts {
        self.state.lock().counts
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

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
    crashed: bool,
    pending: Vec<(Work, SharedOutcome)>,
    counts: FaultCounts,
}

fn crashed() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the simulated device has crashed")
}

impl State {
    /// Carries `work` out, now or in a later turn.
    pub(super) fn begin(&mut self, work: Work, outcome: &SharedOutcome) -> Vec<Waker> {
        if self.plan.delay && !self.crashed {
            self.pending.push((work, Arc::clone(outcome)));
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
        let count = 1 + self.rng.below(self.pending.len() as u64);
        for _ in 0..count {
            if self.pending.is_empty() {
                break;
            }
            let next = self.rng.below(self.pending.len() as u64) as usize;
            let (work, outcome) = self.pending.swap_remove(next);
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
        let (writes, appends) = self.since_plan;
        let crash = match self.plan.crash {
            Some(CrashPoint::Append(n)) => n == appends,
            Some(CrashPoint::WriteOrAppend(n)) => n == writes + appends,
            Some(CrashPoint::Write(_)) | None => false,
        };
        if !crash && !self.rng.chance(self.plan.append_error) {
            self.content.write(offset, bytes);
            return Ok(());
        }
        let kept = self.rng.below(bytes.len() as u64 + 1) as usize;
        self.content.write(offset, &bytes[..kept]);
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
            Work::Sync => Ok(None),
        }
    }

    fn read(&mut self, offset: u64, len: usize) -> io::Result<AlignedBuf> {
        self.counts.reads += 1;
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
        self.content.write(offset, bytes);
        Ok(())
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
            0 => self.content.write(offset, &bytes[..cut]),
            1 => self.content.write(offset + cut as u64, &bytes[cut..]),
            _ => self.write_some_sectors(offset, bytes),
        }
    }

    fn write_some_sectors(&mut self, offset: u64, bytes: &[u8]) {
        for (index, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
            if self.rng.below(2) == 0 {
                self.content.write(offset + (index * SECTOR_BYTES) as u64, sector);
            }
        }
    }

    fn crash(&mut self) {
        if !self.crashed {
            self.crashed = true;
            self.counts.crashes += 1;
        }
    }

    /// Tears the writes that are under way at a crash, and fails everything.
    pub(super) fn end_pending(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for (work, outcome) in std::mem::take(&mut self.pending) {
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
