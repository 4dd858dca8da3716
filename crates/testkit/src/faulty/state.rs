//! The content, what is under way, and when the device crashes.

use super::plan::{FaultCounts, FaultPlan};
use super::power::Unflushed;
use locks::Mutex;
use pumice_device::ChunkMap;
use pumice_device::Silence;
use pumice_device::{AlignedBuf, Overdue};
use pumice_world::Random;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

/// What an operation does.
#[derive(Clone, Debug)]
pub(super) enum Work {
    Read(u64, usize),
    Write(u64, Arc<AlignedBuf>, Range<usize>),
    Sync,
}

impl Work {
    fn overdue(&self, secs: u32) -> Overdue {
        let (name, offset, len) = match self {
            Work::Read(offset, len) => ("read", *offset, *len),
            Work::Write(offset, _, range) => ("write", *offset, range.len()),
            Work::Sync => ("sync", 0, 0),
        };
        Overdue {
            name,
            offset,
            len,
            secs,
        }
    }
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
    pub(super) content: ChunkMap,
    pub(super) rng: Random,
    pub(super) plan: FaultPlan,
    /// Writes and appends since the plan was set.
    pub(super) since_plan: (u64, u64),
    /// Operations of all kinds but syncs since the plan was set.
    pub(super) operations: u64,
    /// Reads, writes and syncs begun since the plan was set.
    begun: u64,
    pub(super) turns: u64,
    silence: Silence,
    /// Reads, writes and syncs that were carried out.
    answers: u64,
    /// The lowest offset that was ever written, not appended.
    pub(super) lowest_write: Option<u64>,
    pub(super) unflushed: Unflushed,
    pub(super) capacity: u64,
    pub(super) crashed: bool,
    pub(super) pending: Vec<Pending>,
    /// Operations that no turn completes.
    hung: Vec<Pending>,
    pub(super) counts: FaultCounts,
}

#[derive(Debug)]
pub(super) struct Pending {
    work: Work,
    outcome: SharedOutcome,
    /// The first turn that may complete it.
    due: u64,
    /// The second in which it was begun.
    begun: u32,
    is_given_up: bool,
}

/// A slow operation is late by up to so many turns.
const LATE_TURNS: u64 = 64;

pub(super) fn crashed() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the simulated device has crashed")
}

impl State {
    pub(super) fn new(capacity: u64, seed: u64, plan: FaultPlan) -> Self {
        Self {
            content: ChunkMap::default(),
            rng: Random(seed),
            plan,
            since_plan: (0, 0),
            operations: 0,
            begun: 0,
            turns: 0,
            silence: Silence::default(),
            answers: 0,
            lowest_write: None,
            unflushed: Unflushed::default(),
            capacity,
            crashed: false,
            pending: Vec::new(),
            hung: Vec::new(),
            counts: FaultCounts::default(),
        }
    }

    pub(super) fn set_plan(&mut self, plan: FaultPlan) {
        self.plan = plan;
        self.since_plan = (0, 0);
        self.operations = 0;
        self.begun = 0;
        self.pending.append(&mut self.hung);
    }

    pub(super) fn restart(&mut self) {
        self.crashed = false;
        self.plan.crash = None;
        self.lowest_write = None;
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
        self.begun += 1;
        let hangs = self.plan.hangs_at.is_some_and(|at| self.begun >= at);
        let pending = |due, begun| Pending {
            work: work.clone(),
            outcome: Arc::clone(outcome),
            due,
            begun,
            is_given_up: false,
        };
        let begun = self.silence.now();
        if !self.crashed && (hangs || self.rng.chance(self.plan.hang)) {
            self.counts.hung += 1;
            self.hung.push(pending(0, begun));
            return Vec::new();
        }
        if self.plan.delay && !self.crashed {
            let is_late = self.rng.chance(self.plan.slow);
            let late = if is_late {
                1 + self.rng.below(LATE_TURNS)
            } else {
                0
            };
            self.counts.slow += u64::from(is_late);
            self.pending.push(pending(self.turns + late, begun));
            return Vec::new();
        }
        self.answers += 1;
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
            self.answers += 1;
            let result = self.carry_out(work);
            wakers.extend(finish(&outcome, result));
            if self.crashed {
                completed += self.pending.len();
                wakers.extend(self.end_pending());
            }
        }
        (completed, wakers)
    }

    /// Passes a second, and ends what [`Device::tick`](pumice_device::Device::tick) says: it goes on as if its future had been
    /// dropped. Returns what that was, and whom to wake.
    pub(super) fn tick(&mut self, patience: u32) -> (Vec<Overdue>, Vec<Waker>) {
        self.silence.tick(self.answers);
        let (mut ended, mut wakers) = (Vec::new(), Vec::new());
        for pending in self.pending.iter_mut().chain(&mut self.hung) {
            let begun = pending.begun;
            let Some(secs) = self.silence.overdue(begun, Some(begun), patience) else {
                continue;
            };
            if std::mem::replace(&mut pending.is_given_up, true) {
                continue;
            }
            let overdue = pending.work.overdue(secs);
            ended.push(overdue);
            let dropped = Outcome {
                dropped: true,
                ..Outcome::default()
            };
            let outcome = std::mem::replace(&mut pending.outcome, Arc::new(Mutex::new(dropped)));
            wakers.extend(finish(&outcome, Err(overdue.into())));
        }
        (ended, wakers)
    }

    pub(super) fn crash(&mut self) {
        if !self.crashed {
            self.crashed = true;
            self.counts.crashes += 1;
        }
    }

    /// Bytes of the reads that are under way.
    pub(super) fn reads_pending(&self) -> usize {
        let len = |pending: &Pending| match pending.work {
            Work::Read(_, len) => len,
            _ => 0,
        };
        self.pending.iter().map(len).sum()
    }

    /// Tears the writes that are under way at a crash, and fails everything.
    pub(super) fn end_pending(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        self.pending.append(&mut self.hung);
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
