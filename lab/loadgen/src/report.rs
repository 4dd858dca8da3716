//! What a run found.

use crate::engine::Finished;
use crate::options::Options;
use crate::run::Preloaded;
use crate::stats::{Example, FAULTS, KINDS, Stats, histogram};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// What was measured.
pub(crate) struct Measured {
    /// The counted window: nanoseconds of the run's clock; an open end is the largest number.
    pub window: Option<(u64, u64)>,
    /// Each thread.
    pub finished: Vec<Finished>,
    /// The preload, if there was one.
    pub preloaded: Option<Preloaded>,
    /// The server's CPU time in the window.
    pub server_cpu: Option<Duration>,
    /// Bytes of a key.
    pub key_size: usize,
}

/// The result of a run.
///
/// Counts and latencies are of requests that were sent (open loop: were to be sent) in the measured window, whenever they
/// were answered; bytes are those of the window; errors are of the whole run, preload and warm-up included.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// How the run was set up.
    pub settings: Settings,
    /// Length of the measured window.
    pub seconds: f64,
    /// Requests answered.
    pub requests: u64,
    /// Over the whole window.
    pub requests_per_second: f64,
    /// Median of the window's whole seconds; the above where it has none.
    pub requests_per_second_median: f64,
    /// Requests answered in each second of the window; the last may be a part, and has those answered after the window.
    pub series: Vec<u64>,
    /// Keys asked for by gets of all kinds.
    pub lookups: u64,
    /// Keys found by them.
    pub hits: u64,
    /// Hits per lookup; none without lookups.
    pub hit_ratio: Option<f64>,
    /// `cas` requests that came too late.
    pub cas_conflicts: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// By kind of request; only kinds that there were.
    pub kinds: BTreeMap<&'static str, KindReport>,
    /// Of all kinds together, and of arrivals that were not sent.
    pub latency: Option<Latency>,
    /// Open loop: what arrived in the window.
    pub arrivals: Option<Arrivals>,
    /// Errors by kind; only kinds that there were.
    pub errors: BTreeMap<&'static str, u64>,
    /// How many of them were wrong answers: values of other keys, damaged or replaced ones, replies that fit no request.
    pub wrong_answers: u64,
    /// The first few errors of each kind.
    pub examples: Vec<Example>,
    /// Requests whose reply never came.
    pub unanswered: u64,
    /// This program.
    pub client: ClientReport,
    /// The server's process, if it was named.
    pub server: Option<ServerReport>,
    /// The preload, if there was one.
    pub preload: Option<PreloadReport>,
}

/// How a run was set up.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "each is the flag of its name")]
pub struct Settings {
    pub target: String,
    pub connections: usize,
    pub threads: usize,
    pub pipeline: usize,
    pub warm_up_seconds: f64,
    pub duration_seconds: Option<f64>,
    pub requests: Option<u64>,
    pub rate: Option<f64>,
    pub poisson: bool,
    pub mix: String,
    pub keys: String,
    pub value_size: String,
    pub key_size: usize,
    pub key_prefix: String,
    pub scan_keys: u32,
    pub ttl: u32,
    pub timeout_seconds: f64,
}

/// One kind of request.
#[derive(Clone, Debug, Serialize)]
pub struct KindReport {
    /// How many were answered.
    pub requests: u64,
    /// How long they took.
    pub latency: Option<Latency>,
}

/// Operations that arrived in the measured window, by the schedule of an open loop. Each counts once: as sent or as not sent.
#[derive(Clone, Debug, Serialize)]
pub struct Arrivals {
    /// All of them.
    pub due: u64,
    /// Sent before the window's end.
    pub sent: u64,
    /// Still waiting for a connection that was free when the window ended.
    pub not_sent: u64,
    /// How long those had waited at least.
    pub not_sent_latency: Option<Latency>,
    /// Those sent, per second.
    pub sent_per_second: f64,
    /// How long the oldest arrival that was not sent at the end had waited.
    pub behind_seconds: f64,
    /// Whether that is more than [`BEHIND_SECONDS`]: the server, or the client, did less than the rate.
    pub fell_behind: bool,
}

/// From here on a schedule was not kept.
const BEHIND_SECONDS: f64 = 0.01;

/// Latencies in microseconds.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "percentiles name themselves")]
pub struct Latency {
    pub count: u64,
    pub mean_us: f64,
    pub min_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p95_us: f64,
    pub p99_us: f64,
    pub p99_9_us: f64,
    pub p99_99_us: f64,
    pub max_us: f64,
}

impl Latency {
    /// Those of a histogram of nanoseconds; `None` of an empty one.
    pub fn of(times: &Histogram<u64>) -> Option<Self> {
        let us = |ns: u64| ns as f64 / 1e3;
        let at = |percentile: f64| us(times.value_at_percentile(percentile));
        (!times.is_empty()).then(|| Latency {
            count: times.len(),
            mean_us: times.mean() / 1e3,
            min_us: us(times.min()),
            p50_us: at(50.0),
            p90_us: at(90.0),
            p95_us: at(95.0),
            p99_us: at(99.0),
            p99_9_us: at(99.9),
            p99_99_us: at(99.99),
            max_us: us(times.max()),
        })
    }
}

/// What the measuring cost.
#[derive(Clone, Debug, Serialize)]
pub struct ClientReport {
    /// CPU time of all load threads in the window, without that of waiting for arrivals.
    pub cpu_seconds: f64,
    /// The same per request, in microseconds.
    pub cpu_us_per_request: f64,
    /// The share of the window in which the busiest load thread had nothing to do.
    pub idle_share: f64,
    /// The same for each thread.
    pub thread_idle_shares: Vec<f64>,
}

/// What the server spent.
#[derive(Clone, Debug, Serialize)]
pub struct ServerReport {
    /// Its process.
    pub pid: u32,
    /// CPU time of all its threads in the window.
    pub cpu_seconds: f64,
    /// CPU time per second: 1 is one core.
    pub cores: f64,
    /// CPU time per request, in microseconds.
    pub cpu_us_per_request: f64,
}

/// The preload.
#[derive(Clone, Debug, Serialize)]
pub struct PreloadReport {
    /// Keys that were set.
    pub keys: u64,
    /// How long it took.
    pub seconds: f64,
}

impl Report {
    /// The wrong answers by kind.
    pub fn wrong_kinds(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let wrong = FAULTS.iter().filter(|(_, _, is_wrong)| *is_wrong);
        wrong.filter_map(|(_, name, _)| Some((*name, *self.errors.get(name)?)))
    }

    /// Whether the server can be believed: no wrong answer, and, where something was measured, any answer at all.
    pub fn is_good(&self) -> bool {
        self.wrong_answers == 0 && (self.requests > 0 || self.seconds == 0.0)
    }
}

pub(crate) fn report(options: &Options, measured: Measured) -> Report {
    let mut stats = Stats::new();
    for thread in &measured.finished {
        stats.add(&thread.stats);
    }
    if measured.window.is_none() {
        // Nothing but the preload: its counts are no measurement.
        let faults = std::mem::take(&mut stats.faults);
        stats = Stats::new();
        stats.faults = faults;
    }
    let nanoseconds = measured.window.map_or(0, |(start, stop)| {
        let last = measured
            .finished
            .iter()
            .map(|thread| thread.last_counted)
            .max()
            .unwrap_or(start);
        // A budget of requests may end the run before its time.
        let stop = if stop == u64::MAX || options.requests.is_some() {
            last.min(stop)
        } else {
            stop
        };
        stop.saturating_sub(start)
    });
    let seconds = nanoseconds as f64 / 1e9;
    let requests = stats.requests_all();
    let overall = per(requests as f64, seconds);
    let mut all = histogram();
    for latencies in stats.latencies.iter().chain([&stats.late]) {
        // All have the same bounds.
        let _ = all.add(latencies);
    }
    let kinds = KINDS
        .iter()
        .filter(|(kind, _)| stats.requests[*kind as usize] > 0 || !stats.latencies[*kind as usize].is_empty())
        .map(|(kind, name)| {
            let kind = *kind as usize;
            let report = KindReport {
                requests: stats.requests[kind],
                latency: Latency::of(&stats.latencies[kind]),
            };
            (*name, report)
        })
        .collect();
    let errors = FAULTS
        .iter()
        .map(|(fault, name, _)| (*name, stats.faults.of(*fault)))
        .filter(|(_, count)| *count > 0)
        .collect();
    let micros_per_request = |time: f64| per(time * 1e6, requests as f64);
    let server = options
        .server_pid
        .zip(measured.server_cpu)
        .map(|(pid, cpu)| ServerReport {
            pid,
            cpu_seconds: cpu.as_secs_f64(),
            cores: per(cpu.as_secs_f64(), seconds),
            cpu_us_per_request: micros_per_request(cpu.as_secs_f64()),
        });
    let idle: Vec<f64> = measured.finished.iter().map(idle_share).collect();
    let behind = measured.finished.iter().map(|thread| thread.behind.as_secs_f64());
    let behind = behind.fold(0.0, f64::max);
    let cpu: f64 = measured.finished.iter().map(worked).sum();
    Report {
        settings: settings(options, measured.key_size),
        seconds,
        requests,
        requests_per_second: overall,
        requests_per_second_median: median_second(&stats.seconds, nanoseconds).unwrap_or(overall),
        series: stats.seconds.clone(),
        lookups: stats.lookups,
        hits: stats.hits,
        hit_ratio: (stats.lookups > 0).then(|| stats.hits as f64 / stats.lookups as f64),
        cas_conflicts: stats.cas_conflicts,
        bytes_in: stats.bytes_in,
        bytes_out: stats.bytes_out,
        kinds,
        latency: Latency::of(&all),
        arrivals: (options.rate.is_some() && measured.window.is_some()).then(|| Arrivals {
            due: stats.arrivals + stats.late.len(),
            sent: stats.arrivals,
            not_sent: stats.late.len(),
            not_sent_latency: Latency::of(&stats.late),
            sent_per_second: stats.arrivals as f64 / seconds.max(1e-9),
            behind_seconds: behind,
            fell_behind: behind > BEHIND_SECONDS,
        }),
        errors,
        wrong_answers: stats.faults.wrong(),
        examples: stats.faults.examples().to_vec(),
        unanswered: measured.finished.iter().map(|thread| thread.lost).sum(),
        client: ClientReport {
            cpu_seconds: cpu,
            cpu_us_per_request: micros_per_request(cpu),
            idle_share: idle.iter().copied().fold(1.0, f64::min),
            thread_idle_shares: idle,
        },
        server,
        preload: measured.preloaded.map(|preloaded| PreloadReport {
            keys: preloaded.keys,
            seconds: preloaded.took.as_secs_f64(),
        }),
    }
}

/// 0 of nothing.
fn per(amount: f64, of: f64) -> f64 {
    if of > 0.0 { amount / of } else { 0.0 }
}

fn idle_share(thread: &Finished) -> f64 {
    let watched = thread.watched.as_secs_f64();
    if watched == 0.0 {
        return 1.0;
    }
    (1.0 - worked(thread) / watched).clamp(0.0, 1.0)
}

/// CPU seconds that a thread did not spend waiting.
fn worked(thread: &Finished) -> f64 {
    thread.cpu.saturating_sub(thread.spun).as_secs_f64()
}

/// The median of the whole seconds.
fn median_second(seconds: &[u64], nanoseconds: u64) -> Option<f64> {
    let whole = usize::try_from(nanoseconds / 1_000_000_000)
        .ok()?
        .min(seconds.len());
    let mut sorted = seconds[..whole].to_vec();
    sorted.sort_unstable();
    let middle = whole / 2;
    match whole {
        0 => None,
        whole if whole % 2 == 1 => Some(sorted[middle] as f64),
        _ => Some((sorted[middle - 1] + sorted[middle]) as f64 / 2.0),
    }
}

fn settings(options: &Options, key_size: usize) -> Settings {
    Settings {
        target: options.target.to_string(),
        connections: options.connections,
        threads: options.threads,
        pipeline: options.pipeline,
        warm_up_seconds: options.warm_up.as_secs_f64(),
        duration_seconds: options.duration().map(|duration| duration.as_secs_f64()),
        requests: options.requests,
        rate: options.rate,
        poisson: options.poisson,
        mix: options.mix.to_string(),
        keys: options.keys.clone(),
        value_size: (options.sizes.as_ref())
            .map_or_else(|| options.value_size.clone(), |path| path.display().to_string()),
        key_size,
        key_prefix: options.key_prefix.clone(),
        scan_keys: options.scan_keys,
        ttl: options.ttl,
        timeout_seconds: options.timeout.as_secs_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_of_whole_seconds() {
        assert_eq!(median_second(&[5, 1, 9, 2], 3_500_000_000), Some(5.0));
        assert_eq!(median_second(&[5, 1], 2_000_000_000), Some(3.0));
        assert_eq!(median_second(&[5], 900_000_000), None);
    }

    #[test]
    fn percentiles_are_those_of_what_was_counted() {
        let mut latencies = histogram();
        for request in 1..=1000u64 {
            latencies.record(request * 1000).unwrap();
        }
        let found = Latency::of(&latencies).unwrap();
        assert!(
            (found.p99_us - 990.0).abs() < 2.0 && (found.max_us - 1000.0).abs() < 2.0,
            "{found:?}"
        );
        assert!(Latency::of(&histogram()).is_none());
    }
}
