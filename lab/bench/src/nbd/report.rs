//! What a run has found.

use super::model::Wrong;
use super::requests::KINDS;
use hdrhistogram::Histogram;
use pumice_loadgen::{Latency, histogram};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Wrong sectors that are told.
const EXAMPLES: usize = 10;

/// What a run counts, and has found.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub seed: u64,
    /// Bytes of the range.
    pub range: u64,
    /// Whether a journal said what an earlier run knew.
    pub is_resumed: bool,
    /// How long the load took, and how long it had a CPU.
    pub seconds: f64,
    pub cpu_seconds: f64,
    /// Requests of the load that were answered without an error.
    pub requests: u64,
    pub requests_per_second: f64,
    pub bytes_per_second: f64,
    /// The same by kind.
    pub kinds: BTreeMap<&'static str, Kind>,
    /// Errors that were answered, also beside the load.
    pub errors: BTreeMap<String, u64>,
    /// Stops of the server that the run has outlived.
    pub stops: u64,
    /// Why there is no connection any more.
    pub lost: Option<String>,
    /// Whether a signal has ended it.
    pub is_interrupted: bool,
    /// Whether the whole range was read at the end.
    pub is_passed: bool,
    pub checked_sectors: u64,
    pub wrong_sectors: u64,
    /// The first wrong ones.
    pub examples: Vec<String>,
    #[serde(skip)]
    times: Vec<(u64, Histogram<u64>)>,
}

/// Requests of one kind.
#[derive(Debug, Serialize)]
pub struct Kind {
    requests: u64,
    bytes_per_second: f64,
    #[serde(flatten)]
    latency: Latency,
}

impl Report {
    /// Nothing is found yet.
    pub fn new(seed: u64, range: u64, is_resumed: bool) -> Self {
        Report {
            seed,
            range,
            is_resumed,
            times: KINDS.iter().map(|_| (0, histogram())).collect(),
            ..Report::default()
        }
    }

    /// A request of the load was answered.
    pub fn note(&mut self, kind: usize, took: Duration, bytes: u64) {
        let (sum, times) = &mut self.times[kind];
        *sum += bytes;
        times.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// A sector was wrong.
    pub fn note_wrong(&mut self, Wrong { sector, what }: Wrong) {
        self.wrong_sectors += 1;
        if self.examples.len() < EXAMPLES {
            self.examples.push(format!("sector {sector}: {what}"));
        }
    }

    /// The load has ended.
    pub fn end_load(&mut self, took: Duration, cpu: Duration) {
        (self.seconds, self.cpu_seconds) = (took.as_secs_f64(), cpu.as_secs_f64());
        let rate = |count: u64| count as f64 / took.as_secs_f64().max(1e-9);
        for ((_, name), (bytes, times)) in KINDS.iter().zip(&self.times) {
            let kind = Latency::of(times).map(|latency| Kind {
                requests: times.len(),
                bytes_per_second: rate(*bytes),
                latency,
            });
            self.kinds.extend(kind.map(|kind| (*name, kind)));
            self.requests += times.len();
            self.bytes_per_second += rate(*bytes);
        }
        self.requests_per_second = rate(self.requests);
    }

    /// Whether all was as it must be, and something was answered.
    pub fn is_good(&self) -> bool {
        let has_answered = self.requests > 0 || self.checked_sectors > 0;
        self.wrong_sectors == 0 && self.errors.is_empty() && self.lost.is_none() && has_answered
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        let mut text = format!(
            "{} requests in {:.2} s: {:.0} per second, {:.1} MiB/s; the client was {:.0} % busy; seed {}\n{:<9}",
            self.requests,
            self.seconds,
            self.requests_per_second,
            mib(self.bytes_per_second),
            100.0 * self.cpu_seconds / self.seconds.max(1e-9),
            self.seed,
            "us"
        );
        let heads = ["requests", "MiB/s", "mean", "p50", "p99", "p99.9", "max"];
        text.extend(heads.map(|head| format!(" {head:>10}")));
        for (name, kind) in &self.kinds {
            let l = &kind.latency;
            let cells = [
                mib(kind.bytes_per_second),
                l.mean_us,
                l.p50_us,
                l.p99_us,
                l.p99_9_us,
                l.max_us,
            ];
            let cells = cells.map(|cell| format!(" {cell:>10.1}")).concat();
            // Writing to a string cannot fail.
            let _ = write!(text, "\n{name:<9} {:>10}{cells}", kind.requests);
        }
        for (what, count) in &self.errors {
            let _ = write!(text, "\n{what}, {count} times");
        }
        if self.stops > 0 {
            let _ = write!(text, "\n{} stops of the server", self.stops);
        }
        if let Some(lost) = &self.lost {
            let _ = write!(text, "\nthe connection is lost: {lost}");
        }
        for example in &self.examples {
            let _ = write!(text, "\nwrong: {example}");
        }
        let known = if self.is_resumed {
            " (also against the journal)"
        } else {
            ""
        };
        let pass = if self.is_passed {
            ", the whole range at the end"
        } else {
            ""
        };
        let (checked, wrong) = (self.checked_sectors, self.wrong_sectors);
        let _ = write!(text, "\nchecked {checked} sectors{known}{pass}, wrong {wrong}");
        text
    }
}
