//! What one thread counts.

use hdrhistogram::Histogram;
use serde::Serialize;

/// What a request is counted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// `get` of one key.
    Get,
    /// `set`, that after a miss included.
    Set,
    /// `delete`.
    Delete,
    /// `gets` and `cas` of one key: two requests, and one latency from the first to the end of the second.
    ReadModifyWrite,
    /// `get` of several keys.
    Scan,
}

/// Every kind with its name.
pub const KINDS: [(Kind, &str); 5] = [
    (Kind::Get, "get"),
    (Kind::Set, "set"),
    (Kind::Delete, "delete"),
    (Kind::ReadModifyWrite, "rmw"),
    (Kind::Scan, "scan"),
];

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// A value that belongs to another key.
    Foreign,
    /// A value whose bytes are not what was written.
    Corrupt,
    /// A value that an acknowledged set had replaced before the get was sent.
    Stale,
    /// A hit after an acknowledged delete and no set since.
    Deleted,
    /// A reply that does not fit its request, or is none.
    Protocol,
    /// `SERVER_ERROR`.
    ServerError,
    /// `CLIENT_ERROR`.
    ClientError,
    /// `ERROR`.
    UnknownCommand,
    /// `NOT_STORED` for a set.
    NotStored,
    /// A connection that ended.
    Closed,
    /// A connection on which no reply came in time.
    TimedOut,
    /// A connection that could not be made again.
    Refused,
}

/// Every fault with its name, in the order of the enum, and whether the server gave a wrong answer.
pub const FAULTS: [(Fault, &str, bool); 12] = [
    (Fault::Foreign, "foreign_value", true),
    (Fault::Corrupt, "corrupt_value", true),
    (Fault::Stale, "stale_value", true),
    (Fault::Deleted, "hit_after_delete", true),
    (Fault::Protocol, "protocol", true),
    (Fault::ServerError, "server_error", false),
    (Fault::ClientError, "client_error", false),
    (Fault::UnknownCommand, "unknown_command", false),
    (Fault::NotStored, "not_stored", false),
    (Fault::Closed, "closed", false),
    (Fault::TimedOut, "timed_out", false),
    (Fault::Refused, "refused", false),
];

/// Examples that are kept of each kind of fault.
const EXAMPLES_MAX: usize = 5;
/// Latencies above are counted as this: in nanoseconds.
const LATENCY_MAX: u64 = 1_000_000_000_000;

/// Counts of requests that began in the measured window, or of everything where it says so.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Requests answered, by kind.
    pub requests: [u64; KINDS.len()],
    /// Keys asked for by gets of every kind.
    pub lookups: u64,
    /// Keys found by them.
    pub hits: u64,
    /// `cas` requests that came too late.
    pub cas_conflicts: u64,
    /// Bytes received in the window.
    pub bytes_in: u64,
    /// Bytes sent in it.
    pub bytes_out: u64,
    /// Latencies in nanoseconds, by kind.
    pub latencies: Vec<Histogram<u64>>,
    /// Operations of an open loop that arrived in the window and were sent.
    pub arrivals: u64,
    /// How long arrivals of the window waited at least that were never sent.
    pub late: Histogram<u64>,
    /// Requests answered in each second of the window.
    pub seconds: Vec<u64>,
    /// Faults of the whole run.
    pub faults: Faults,
}

/// Faults by kind, and the first few in words.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    counts: [u64; FAULTS.len()],
    examples: Vec<Example>,
}

/// One fault in words.
#[derive(Clone, Debug, Serialize)]
pub struct Example {
    /// The kind's name.
    pub kind: &'static str,
    /// Key and what was wrong.
    pub what: String,
}

impl Stats {
    /// Nothing counted.
    pub fn new() -> Self {
        Stats {
            requests: [0; KINDS.len()],
            lookups: 0,
            hits: 0,
            cas_conflicts: 0,
            bytes_in: 0,
            bytes_out: 0,
            latencies: KINDS.iter().map(|_| histogram()).collect(),
            arrivals: 0,
            late: histogram(),
            seconds: Vec::new(),
            faults: Faults::default(),
        }
    }

    /// Counts a latency in nanoseconds.
    #[inline]
    pub fn latency(&mut self, kind: Kind, nanoseconds: u64) {
        self.latencies[kind as usize].saturating_record(nanoseconds);
    }

    /// Adds what another thread counted.
    pub fn add(&mut self, other: &Stats) {
        for (sum, count) in self.requests.iter_mut().zip(other.requests) {
            *sum += count;
        }
        self.lookups += other.lookups;
        self.hits += other.hits;
        self.cas_conflicts += other.cas_conflicts;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        for (sum, latencies) in self.latencies.iter_mut().zip(&other.latencies) {
            // Both have the same bounds, so that everything fits.
            let _ = sum.add(latencies);
        }
        self.arrivals += other.arrivals;
        let _ = self.late.add(&other.late);
        if self.seconds.len() < other.seconds.len() {
            self.seconds.resize(other.seconds.len(), 0);
        }
        for (sum, count) in self.seconds.iter_mut().zip(&other.seconds) {
            *sum += count;
        }
        self.faults.add(&other.faults);
    }

    /// Requests answered, of all kinds.
    pub fn requests_all(&self) -> u64 {
        self.requests.iter().sum()
    }
}

impl Default for Stats {
    fn default() -> Self {
        Self::new()
    }
}

/// An empty histogram of nanoseconds, exact to three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX, 3).expect("the bounds are fixed and legal")
}

impl Faults {
    /// Counts a fault; `what` is only asked for while there are few.
    #[cold]
    pub fn count(&mut self, fault: Fault, times: u64, what: impl FnOnce() -> String) {
        let count = &mut self.counts[fault as usize];
        if *count < EXAMPLES_MAX as u64 && times > 0 {
            self.examples.push(Example {
                kind: FAULTS[fault as usize].1,
                what: what(),
            });
        }
        *count += times;
    }

    /// How often a fault was counted.
    pub fn of(&self, fault: Fault) -> u64 {
        self.counts[fault as usize]
    }

    /// The first few of each kind.
    pub fn examples(&self) -> &[Example] {
        &self.examples
    }

    /// How many answers were wrong, as opposed to missing.
    pub fn wrong(&self) -> u64 {
        FAULTS
            .iter()
            .filter(|(_, _, is_wrong)| *is_wrong)
            .map(|(fault, _, _)| self.of(*fault))
            .sum()
    }

    fn add(&mut self, other: &Faults) {
        for (sum, count) in self.counts.iter_mut().zip(other.counts) {
            *sum += count;
        }
        for example in &other.examples {
            if self
                .examples
                .iter()
                .filter(|kept| kept.kind == example.kind)
                .count()
                < EXAMPLES_MAX
            {
                self.examples.push(example.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_in_the_order_of_their_enums() {
        assert!(
            KINDS
                .iter()
                .enumerate()
                .all(|(at, (kind, _))| *kind as usize == at)
        );
        assert!(
            FAULTS
                .iter()
                .enumerate()
                .all(|(at, (fault, _, _))| *fault as usize == at)
        );
    }

    #[test]
    fn sums_keep_every_count_and_few_examples() {
        let (mut sum, mut one) = (Stats::new(), Stats::new());
        one.requests[0] = 3;
        one.seconds = vec![1, 2];
        one.latency(Kind::Get, 1000);
        for at in 0..9 {
            one.faults.count(Fault::Stale, 1, || format!("key {at}"));
        }
        sum.add(&one);
        sum.add(&one);
        assert_eq!((sum.requests_all(), sum.seconds.clone()), (6, vec![2, 4]));
        assert_eq!(sum.latencies[0].len(), 2);
        assert_eq!((sum.faults.of(Fault::Stale), sum.faults.wrong()), (18, 18));
        assert_eq!(sum.faults.examples().len(), EXAMPLES_MAX);
    }
}
