//! What the door counts: per worker and export, without sharing, summed when somebody asks.

use pumice_net::{Connections, Counter, Histogram, HistogramSnapshot};
use std::sync::Arc;

pumice_world::figures! {
    /// What clients asked of one export, and got.
    pub struct Counts;
    of
    /// One worker's counters of one export. Only the worker writes them.
    pub struct Counters: Counter;
    /// Handshakes that chose this export.
    Counter sessions,
    /// Reads.
    Counter reads,
    /// Bytes sent of them.
    Counter read_bytes,
    /// Writes.
    Counter writes,
    /// Bytes received of them.
    Counter written_bytes,
    /// Ranges that were made zero.
    Counter zeroes,
    /// Ranges that were trimmed.
    Counter trims,
    /// Flushes.
    Counter flushes,
    /// Questions what a range consists of.
    Counter statuses,
    /// Ranges that were to be brought into the cache.
    Counter prefetches,
    /// Requests refused for their flags, length or range, or since the export is read-only.
    Counter refused_requests,
    /// Requests that failed behind the door.
    Counter failed_requests,
    /// Connections that ended since what came was no request.
    Counter lost_connections,
}

/// What latency is measured for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// READ.
    Read,
    /// WRITE.
    Write,
    /// WRITE_ZEROES.
    Zero,
    /// TRIM.
    Trim,
    /// FLUSH.
    Flush,
    /// BLOCK_STATUS and CACHE.
    Other,
}

impl Operation {
    /// All of them, in the order of their numbers.
    pub const ALL: [Operation; 6] = [
        Operation::Read,
        Operation::Write,
        Operation::Zero,
        Operation::Trim,
        Operation::Flush,
        Operation::Other,
    ];

    /// A name for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Zero => "zero",
            Operation::Trim => "trim",
            Operation::Flush => "flush",
            Operation::Other => "other",
        }
    }
}

/// One worker's counters and histograms of one export, away from the cache lines of others.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ExportStats {
    pub(crate) counters: Counters,
    pub(crate) latency: [Histogram; Operation::ALL.len()],
}

/// Everything the door counts.
#[derive(Debug)]
pub struct DoorStats {
    /// Of each worker, for each export.
    workers: Box<[Box<[ExportStats]>]>,
    connections: Arc<Connections>,
}

impl DoorStats {
    pub(crate) fn new(workers: usize, exports: usize, connections: Arc<Connections>) -> Self {
        let worker = || (0..exports).map(|_| ExportStats::default()).collect();
        Self {
            workers: (0..workers).map(|_| worker()).collect(),
            connections,
        }
    }

    pub(crate) fn of(&self, worker: usize, export: usize) -> &ExportStats {
        &self.workers[worker][export]
    }

    /// Sums of one export over workers, since the start.
    ///
    /// # Panics
    /// On a number that is not below that of the exports.
    pub fn counts(&self, export: usize) -> Counts {
        let mut counts = Counts::default();
        for worker in &self.workers {
            counts += worker[export].counters.snapshot();
        }
        counts
    }

    /// Latency of one operation of one export over all workers, since the start: from the arrival of the request, with its data, to its
    /// reply being ready to send.
    ///
    /// # Panics
    /// On a number that is not below that of the exports.
    pub fn latency(&self, export: usize, operation: Operation) -> HistogramSnapshot {
        let mut snapshot = HistogramSnapshot::default();
        for worker in &self.workers {
            worker[export].latency[operation as usize].add_to(&mut snapshot);
        }
        snapshot
    }

    /// How many connections there are.
    pub fn connections(&self) -> &Connections {
        &self.connections
    }
}
