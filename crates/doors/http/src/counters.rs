//! What the door counts: per worker, without sharing, summed when somebody asks.

use crate::origin::OriginError;
use http::StatusCode;
use pumice_net::{Connections, Counter, Histogram, HistogramSnapshot};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pumice_world::figures! {
    /// Sums of counters over workers.
    pub struct Counts;
    of
    /// One worker's counters. Only the worker writes them.
    pub struct Counters: Counter;
    /// Requests answered from DRAM.
    Counter hits_dram,
    /// Requests answered from flash.
    Counter hits_flash,
    /// Requests answered from what was stale, while it is validated or as the origin failed.
    Counter hits_stale,
    /// Requests for which the origin was asked since nothing stored would do.
    Counter misses,
    /// Requests for which the origin confirmed what is stored.
    Counter validated,
    /// Requests that went to the origin as they are, and their answers back.
    Counter passed,
    /// Requests that were answered by another's request to the origin.
    Counter collapsed,
    /// Answers with a status below 300.
    Counter status_2xx,
    /// Answers with a status from 300 to 399.
    Counter status_3xx,
    /// Answers with a status from 400 to 499.
    Counter status_4xx,
    /// Answers with a status of 500 or more.
    Counter status_5xx,
    /// Bytes of bodies sent.
    Counter sent_bytes,
    /// Requests refused since two servers could read them differently, or their head is too long.
    Counter refused,
    /// Responses stored.
    Counter stored,
    /// Bytes of bodies stored.
    Counter stored_bytes,
    /// Responses whose fields were renewed by a 304.
    Counter freshened,
    /// URLs whose stored responses were made void by an unsafe method.
    Counter invalidated,
    /// Requests to the origin.
    Counter origin_requests,
    /// Requests to the origin that it answered by a head that can be used.
    Counter origin_answers,
    /// Requests to the origin for which there was no connection.
    Counter origin_connect_errors,
    /// Requests to the origin that were not answered in time.
    Counter origin_timeouts,
    /// Requests to the origin whose connection broke before the end.
    Counter origin_broken,
    /// Requests to the origin answered by what is no HTTP, or can be read in two ways.
    Counter origin_bad,
    /// Requests to the origin that were not sent since too many waited.
    Counter origin_busy,
    /// Connections closed since their client took nothing of an answer.
    Counter slow_clients_closed,
    /// Connections closed since no request came.
    Counter idle_closed,
    /// Connections whose TLS handshake failed or took too long.
    Counter tls_handshake_errors,
    /// Lines that the access log has not written: the file took none, or not as many as came.
    Counter log_lines_dropped,
}

impl Counters {
    pub(crate) fn status(&self, status: StatusCode) {
        let counter = match status.as_u16() {
            ..300 => &self.status_2xx,
            300..400 => &self.status_3xx,
            400..500 => &self.status_4xx,
            _ => &self.status_5xx,
        };
        counter.add(1);
    }

    pub(crate) fn origin_error(&self, error: OriginError) {
        let counter = match error {
            OriginError::Connect => &self.origin_connect_errors,
            OriginError::Timeout => &self.origin_timeouts,
            OriginError::Broken => &self.origin_broken,
            OriginError::Bad(_) => &self.origin_bad,
            OriginError::Busy => &self.origin_busy,
        };
        counter.add(1);
    }
}

/// What latency is measured for: from a request's head to the head of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A GET or HEAD answered from DRAM.
    GetDram,
    /// A GET or HEAD answered from flash.
    GetFlash,
    /// A GET or HEAD for which the origin was asked.
    GetMiss,
    /// Anything else.
    Other,
}

impl Operation {
    /// All of them, in the order of their numbers.
    pub const ALL: [Operation; 4] = [
        Operation::GetDram,
        Operation::GetFlash,
        Operation::GetMiss,
        Operation::Other,
    ];

    /// A name for metrics: the operation, and the tier that answered where there is one.
    pub fn name(self) -> (&'static str, &'static str) {
        match self {
            Operation::GetDram => ("get", "dram"),
            Operation::GetFlash => ("get", "flash"),
            Operation::GetMiss => ("get", "miss"),
            Operation::Other => ("other", ""),
        }
    }
}

/// One worker's counters and histograms, away from the cache lines of others.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct WorkerStats {
    pub(crate) counters: Counters,
    pub(crate) latency: [Histogram; Operation::ALL.len()],
}

/// Everything the door counts.
#[derive(Debug)]
pub struct DoorStats {
    workers: Box<[WorkerStats]>,
    connections: Arc<Connections>,
    /// Of the access log, which has a thread of its own.
    log_lines_dropped: Arc<AtomicU64>,
}

impl DoorStats {
    pub(crate) fn new(
        workers: usize,
        connections: Arc<Connections>,
        log_lines_dropped: Arc<AtomicU64>,
    ) -> Self {
        Self {
            workers: (0..workers).map(|_| WorkerStats::default()).collect(),
            connections,
            log_lines_dropped,
        }
    }

    pub(crate) fn worker(&self, index: usize) -> &WorkerStats {
        &self.workers[index]
    }

    /// Sums since the start.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts {
            log_lines_dropped: self.log_lines_dropped.load(Ordering::Relaxed),
            ..Counts::default()
        };
        for worker in &self.workers {
            counts += worker.counters.snapshot();
        }
        counts
    }

    /// Latency of one operation over all workers, since the start.
    pub fn latency(&self, operation: Operation) -> HistogramSnapshot {
        let mut snapshot = HistogramSnapshot::default();
        for worker in &self.workers {
            worker.latency[operation as usize].add_to(&mut snapshot);
        }
        snapshot
    }

    /// Open connections.
    pub fn curr_connections(&self) -> u64 {
        self.connections.current()
    }

    /// Connections accepted since the start.
    pub fn total_connections(&self) -> u64 {
        self.connections.total()
    }

    /// Connections turned away because there were too many.
    pub fn rejected_connections(&self) -> u64 {
        self.connections.rejected()
    }
}
