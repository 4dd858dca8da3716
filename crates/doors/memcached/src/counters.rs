//! What the door counts: per worker, without sharing, summed when somebody asks.

use pumice_net::{Connections, Counter, Histogram, HistogramSnapshot};
use std::sync::{Arc, Mutex, PoisonError};

pumice_world::figures! {
    /// Sums of counters over workers, under memcached's names.
    pub struct Counts;
    of
    /// One worker's counters. Only the worker writes them.
    pub struct Counters: Counter;
    /// Keys asked for (get, gets, gat, gats, mg).
    Counter cmd_get,
    /// Values sent to be stored.
    Counter cmd_set,
    /// flush_all commands.
    Counter cmd_flush,
    /// Keys to touch (touch, gat, gats, mg T).
    Counter cmd_touch,
    /// Meta commands.
    Counter cmd_meta,
    /// Keys found.
    Counter get_hits,
    /// Keys not found.
    Counter get_misses,
    /// Keys to delete that were there.
    Counter delete_hits,
    /// Keys to delete that were not there.
    Counter delete_misses,
    /// incr of a key that was there.
    Counter incr_hits,
    /// incr of a key that was not there.
    Counter incr_misses,
    /// decr of a key that was there.
    Counter decr_hits,
    /// decr of a key that was not there.
    Counter decr_misses,
    /// cas with the right unique.
    Counter cas_hits,
    /// cas of a key that was not there.
    Counter cas_misses,
    /// cas with another unique.
    Counter cas_badval,
    /// Touched keys that were there.
    Counter touch_hits,
    /// Touched keys that were not there.
    Counter touch_misses,
    /// Values refused because of their size.
    Counter store_too_large,
    /// Values that the cache had no room for.
    Counter store_no_memory,
    /// Values stored.
    Counter total_items,
    /// Bytes received.
    Counter bytes_read,
    /// Bytes sent.
    Counter bytes_written,
    /// Hits answered from DRAM.
    Counter get_hits_dram,
    /// Hits answered from flash.
    Counter get_hits_flash,
    /// Connections closed since their peer was slow while others waited for memory.
    Counter slow_peers_closed,
    /// Connections closed since they speak another protocol: TLS or HTTP.
    Counter foreign_protocols,
    /// Attempts to authenticate.
    Counter auth_cmds,
    /// Attempts to authenticate with a wrong user or password.
    Counter auth_errors,
    /// Connections closed since no command came for the idle timeout.
    Counter idle_kicks,
    /// Connections whose TLS handshake failed or took too long.
    Counter ssl_handshake_errors,
}

impl Counters {
    /// Counts a key that was asked for, and touched perhaps.
    pub(crate) fn gets(&self, hit: bool, touched: bool) {
        match hit {
            true => self.get_hits.add(1),
            false => self.get_misses.add(1),
        }
        if touched {
            self.cmd_touch.add(1);
            match hit {
                true => self.touch_hits.add(1),
                false => self.touch_misses.add(1),
            }
        }
    }

    /// Counts a number that was to be changed.
    pub(crate) fn deltas(&self, up: bool, hit: bool) {
        match (up, hit) {
            (true, true) => self.incr_hits.add(1),
            (true, false) => self.incr_misses.add(1),
            (false, true) => self.decr_hits.add(1),
            (false, false) => self.decr_misses.add(1),
        }
    }
}

/// What latency is measured for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A key found in DRAM.
    GetDram,
    /// A key found on flash.
    GetFlash,
    /// A key not found.
    GetMiss,
    /// A storage command.
    Set,
    /// delete, md.
    Delete,
    /// touch.
    Touch,
    /// gat, gats, mg with T.
    GetTouch,
    /// incr.
    Incr,
    /// decr.
    Decr,
    /// Any other command.
    Other,
}

impl Operation {
    /// All of them, in the order of their numbers.
    pub const ALL: [Operation; 10] = [
        Operation::GetDram,
        Operation::GetFlash,
        Operation::GetMiss,
        Operation::Set,
        Operation::Delete,
        Operation::Touch,
        Operation::GetTouch,
        Operation::Incr,
        Operation::Decr,
        Operation::Other,
    ];

    pub(crate) fn delta(up: bool) -> Self {
        match up {
            true => Operation::Incr,
            false => Operation::Decr,
        }
    }

    /// A name for metrics: the operation, and the tier that answered where there is one.
    pub fn name(self) -> (&'static str, &'static str) {
        match self {
            Operation::GetDram => ("get", "dram"),
            Operation::GetFlash => ("get", "flash"),
            Operation::GetMiss => ("get", "miss"),
            Operation::Set => ("set", ""),
            Operation::Delete => ("delete", ""),
            Operation::Touch => ("touch", ""),
            Operation::GetTouch => ("gat", ""),
            Operation::Incr => ("incr", ""),
            Operation::Decr => ("decr", ""),
            Operation::Other => ("other", ""),
        }
    }
}

/// One worker's counters and histograms, away from the cache lines of others.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct WorkerStats {
    pub(crate) counters: Counters,
    pub(crate) latency: [Histogram; Operation::ALL.len()],
}

/// Everything the door counts.
#[derive(Debug)]
pub struct DoorStats {
    workers: Box<[WorkerStats]>,
    connections: Arc<Connections>,
    /// What `stats reset` takes away from the counts that `stats` shows.
    reset: Mutex<Counts>,
}

impl DoorStats {
    pub(crate) fn new(workers: usize, connections: Arc<Connections>) -> Self {
        Self {
            workers: (0..workers).map(|_| WorkerStats::default()).collect(),
            connections,
            reset: Mutex::new(Counts::default()),
        }
    }

    pub(crate) fn worker(&self, index: usize) -> &WorkerStats {
        &self.workers[index]
    }

    /// Workers.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Sums since the start, `stats reset` or not: for metrics.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for worker in &self.workers {
            counts += worker.counters.snapshot();
        }
        counts
    }

    /// Sums since the last `stats reset`.
    pub fn counts_since_reset(&self) -> Counts {
        let reset = *self.reset.lock().unwrap_or_else(PoisonError::into_inner);
        self.counts().since(&reset)
    }

    /// Lets `stats` count from 0 again.
    pub fn reset(&self) {
        *self.reset.lock().unwrap_or_else(PoisonError::into_inner) = self.counts();
    }

    /// Latency of one operation over all workers, since the start: from the arrival of the bytes with the command to its
    /// reply being ready to send.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_summed_and_reset_only_hides() {
        let stats = DoorStats::new(2, Arc::default());
        stats.worker(0).counters.get_hits.add(3);
        stats.worker(1).counters.get_hits.add(4);
        stats.worker(1).latency[Operation::Set as usize].record(1000, 5);
        assert_eq!(stats.counts_since_reset().get_hits, 7);
        stats.reset();
        stats.worker(0).counters.get_hits.add(1);
        assert_eq!(stats.counts_since_reset().get_hits, 1);
        assert_eq!(stats.counts().get_hits, 8);
        assert_eq!(stats.latency(Operation::Set).count(), 5);
        assert_eq!(stats.latency(Operation::Delete).count(), 0);
    }
}
