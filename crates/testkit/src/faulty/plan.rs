//! What is to go wrong, and what did.

use std::ops::Range;

/// When the device crashes. Numbers count from 1, over all handles, since the plan was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashPoint {
    /// In the n-th write.
    Write(u64),
    /// In the n-th log append.
    Append(u64),
    /// In the n-th of both together.
    WriteOrAppend(u64),
}

/// The faults to inject; the default injects none. Probabilities are per operation, in [0, 1].
#[derive(Debug, Clone, Default)]
pub struct FaultPlan {
    /// When to crash, if at all; once.
    pub crash: Option<CrashPoint>,
    /// Probability that a write is reported done and never happens.
    pub lost_write: f64,
    /// Probability that a write fails, with each sector old or new.
    pub write_error: f64,
    /// Probability that a log append fails, with some first part of it done.
    pub append_error: f64,
    /// Probability that a write is reported done and goes elsewhere: over another block, or any sectors, in the range that writes have
    /// used. Its own place keeps what it had.
    pub misdirected_write: f64,
    /// Probability that a write or a log append fails for want of space. Nothing is written.
    pub no_space: f64,
    /// Probability that one bit of what a read returns is wrong.
    pub bit_rot: f64,
    /// The same for reads of the log.
    pub log_bit_rot: f64,
    /// Probability that a read fails.
    pub read_error: f64,
    /// Ranges of bytes in which every read, of the log as well, fails.
    pub bad_ranges: Vec<Range<u64>>,
    /// Ranges of bytes in which every write fails, as by [`write_error`](FaultPlan::write_error).
    pub bad_writes: Vec<Range<u64>>,
    /// Ranges of bytes in which every log append fails, as by [`append_error`](FaultPlan::append_error).
    pub bad_appends: Vec<Range<u64>>,
    /// Whether reads, writes and syncs stay under way until a turn completes them, in a seeded order.
    pub delay: bool,
    /// With `delay`, the probability that an operation is late: overtaken by what is started in many turns after it.
    pub slow: f64,
    /// The device dies in its n-th read, write, append or read of the log since the plan was set, counted from 1: from then on every
    /// operation fails. A new plan revives it.
    pub dies_at: Option<u64>,
    /// Probability that an operation hangs: it stays under way until a crash, or until a new plan lets it go on. Not for appends and reads
    /// of the log, which have nobody wait.
    pub hang: f64,
    /// From the n-th read, write or sync on that is begun since the plan was set, counted from 1, all of them hang.
    pub hangs_at: Option<u64>,
    /// Whether what is completed and not synced is lost in a [power cut](super::FaultyMedium::cut_power).
    pub volatile: bool,
}

/// What passed and what was injected, since the medium was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Reads carried out, failed ones included.
    pub reads: u64,
    /// Writes carried out, failed, lost and torn ones included.
    pub writes: u64,
    /// Log appends, failed and torn ones included.
    pub appends: u64,
    /// Syncs carried out.
    pub syncs: u64,
    /// Crashes.
    pub crashes: u64,
    /// Writes that a crash tore, be it into nothing or all.
    pub torn_writes: u64,
    /// Log appends that a crash tore.
    pub torn_appends: u64,
    /// Writes that were reported done and did not happen.
    pub lost_writes: u64,
    /// Bits that were wrong in what a read returned, and bits flipped by `rot_at`.
    pub rotten_bits: u64,
    /// Reads that failed on purpose, of the log as well.
    pub read_errors: u64,
    /// Writes that failed on purpose.
    pub write_errors: u64,
    /// Log appends that failed on purpose.
    pub append_errors: u64,
    /// Writes that went elsewhere.
    pub misdirected_writes: u64,
    /// Writes and appends that failed for want of space.
    pub no_space_errors: u64,
    /// Operations that were late.
    pub slow: u64,
    /// Operations that hung.
    pub hung: u64,
    /// Operations that failed because the device was dead.
    pub dead_operations: u64,
    /// Writes and appends that power cuts undid, in whole or in part.
    pub lost_in_power_cuts: u64,
}
