//! Counters and latency of each export. Each worker writes its own; a reader adds them up.

use pumice_net::{Connections, Counter, Histogram, HistogramSnapshot};
use std::sync::Arc;

pumice_world::figures! {
    /// Requests of one export, and their outcomes.
    pub struct Counts;
    of
    /// One worker's counters of one export. Only the worker writes them.
    pub struct Counters: Counter;
    /// Handshakes that chose this export.
    Counter sessions,
    /// Reads.
    Counter reads,
    /// Bytes sent in reply to reads.
    Counter read_bytes,
    /// Writes.
    Counter writes,
    /// Bytes received with writes.
    Counter written_bytes,
    /// WRITE_ZEROES requests.
    Counter zeroes,
    /// TRIM requests.
    Counter trims,
    /// Flushes.
    Counter flushes,
    /// BLOCK_STATUS requests.
    Counter statuses,
    /// CACHE requests.
    Counter prefetches,
    /// Requests refused for their flags, length or range, or because the export is read-only.
    Counter refused_requests,
    /// Requests that the export failed.
    Counter failed_requests,
    /// Connections closed because a request did not begin with the magic number.
    Counter lost_connections,
}

/// Kinds of requests whose latency is measured separately.
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
    /// All kinds, in the order of their numbers.
    pub const ALL: [Operation; 6] = [
        Operation::Read,
        Operation::Write,
        Operation::Zero,
        Operation::Trim,
        Operation::Flush,
        Operation::Other,
    ];

    /// Its name in metrics.
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

/// One worker's counters and histograms of one export. Aligned, so that workers share no cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ExportStats {
    pub(crate) counters: Counters,
    pub(crate) latency: [Histogram; Operation::ALL.len()],
}

/// Counters of all workers and exports.
#[derive(Debug)]
pub struct DoorStats {
    /// By worker, then by export.
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
    /// If `export` is not below the number of exports.
    pub fn counts(&self, export: usize) -> Counts {
        let mut counts = Counts::default();
        for worker in &self.workers {
            counts += worker[export].counters.snapshot();
        }
        counts
    }

    /// Latency of one operation of one export over all workers, since the start: from the moment when the request has its memory and data,
    /// until its reply is ready to send. A write in pieces counts from before its first piece.
    ///
    /// # Panics
    /// If `export` is not below the number of exports.
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
