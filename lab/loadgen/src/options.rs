//! What a run is made of: the flags.

use crate::error::LoadError;
use crate::mix::Mix;
use crate::sizes::ValueSizes;
use crate::target::Target;
use clap::{Args, Parser};
use pumice_trace::{Columns, Format, SizeDistribution, TraceOptions, bytes};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The settings of a run, each the flag of its name.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The server: HOST:PORT, or the path of a unix socket
    #[arg(long, value_name = "ADDR")]
    pub target: Target,

    /// Connections in all
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub connections: usize,

    /// Threads that the connections are spread over
    #[arg(long, value_name = "T", default_value_t = 1)]
    pub threads: usize,

    /// Operations under way on each connection at most
    #[arg(long, value_name = "D", default_value_t = 1)]
    pub pipeline: usize,

    /// Load before anything is measured
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub warm_up: Duration,

    /// How long is measured [default: 10, or until --requests are done]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub seconds: Option<Duration>,

    /// How many operations are measured at most
    #[arg(long, value_name = "N")]
    pub requests: Option<u64>,

    /// Set every key once first, so that hits are hits
    #[arg(long)]
    pub preload: bool,

    /// Set every key once, and no more
    #[arg(long)]
    pub preload_only: bool,

    /// Operations that arrive per second, whatever the server does (open loop)
    #[arg(long, value_name = "R")]
    pub rate: Option<f64>,

    /// Arrivals of --rate at random (a Poisson process) instead of evenly spaced
    #[arg(long)]
    pub poisson: bool,

    /// What is done: get, set, delete, look-aside (a get whose miss is answered by a set), rmw (gets and cas), scan (a
    /// get of several keys), ycsb-a to ycsb-f, trace (what the trace says), or weights such as get:95,set:5. The
    /// protocol has no scan: that of ycsb-e is one get of 1 to --scan-keys keys
    #[arg(long, value_name = "MIX", default_value = "look-aside")]
    pub mix: Mix,

    /// Where keys come from: a generator such as zipf:keys=1000000,theta=0.9, uniform:, hotspot:, normal: or
    /// latest: as `replay` has them (requests= may be left out), or a trace file, which starts again at its end
    #[arg(long, value_name = "TRACE", default_value = "zipf:keys=1000000,theta=0.99")]
    pub keys: String,

    /// The trace's format; auto goes by content
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub format: String,

    /// Columns of format csv, such as time=1,id=2,size=3,header
    #[arg(long, value_name = "SPEC")]
    pub columns: Option<Columns>,

    /// Bytes of values: 100, or 600-4096 (uniform, fixed by the key), or trace (what the trace or generator says). A
    /// value has at least 24 bytes
    #[arg(long, value_name = "SIZE", default_value = "100", conflicts_with = "sizes")]
    pub value_size: String,

    /// Bytes of values from a distribution as CacheBench writes it
    #[arg(long, value_name = "FILE")]
    pub sizes: Option<PathBuf>,

    /// What every key begins with
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub key_prefix: String,

    /// Bytes of every key [default: 16, or what the prefix and 11 digits need]
    #[arg(long, value_name = "SIZE", value_parser = bytes::<usize>)]
    pub key_size: Option<usize>,

    /// Most keys of one scan
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub scan_keys: u32,

    /// Seconds until objects expire; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub ttl: u32,

    /// How long a reply may take before its connection is given up
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub timeout: Duration,

    /// The server's process, to measure its CPU time
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,

    /// Keys whose versions are remembered, at 22 bytes each [default: all of a generator, up to 32 million; 4 million
    /// of a trace]
    #[arg(long, value_name = "N")]
    pub version_keys: Option<usize>,
}

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    options: Options,
}

impl Options {
    /// The default settings against this server: 32 connections of one thread, look-aside over a million keys with
    /// Zipf exponent 0.99 and 100-byte values, 10 s after 1 s of warm-up.
    pub fn new(target: Target) -> Self {
        let mut options = Flags::parse_from(["", "--target=/"]).options;
        options.target = target;
        options
    }

    /// How long is measured; none: until so many operations are done.
    pub(crate) fn duration(&self) -> Option<Duration> {
        match (self.seconds, self.requests) {
            (None, Some(_)) => None,
            (seconds, _) => Some(seconds.unwrap_or(Duration::from_secs(10))),
        }
    }

    /// How the trace is read.
    pub(crate) fn trace(&self) -> Result<TraceOptions, LoadError> {
        let format = Format::parse_or_auto(&self.format);
        Ok(TraceOptions {
            format: format.map_err(|error| LoadError::Settings(format!("--format: {error}")))?,
            columns: self.columns.clone(),
        })
    }

    /// How large values are.
    pub(crate) fn value_sizes(&self) -> Result<ValueSizes, LoadError> {
        match &self.sizes {
            Some(path) => Ok(ValueSizes::Drawn(Arc::new(SizeDistribution::open(path)?))),
            None => {
                (self.value_size.parse()).map_err(|what| LoadError::Settings(format!("--value-size: {what}")))
            }
        }
    }

    /// # Errors
    /// Settings that contradict each other or are out of range.
    pub(crate) fn check(&self) -> Result<(), LoadError> {
        let wrong = |what: &str| Err(LoadError::Settings(what.to_owned()));
        if !(1..=1024).contains(&self.threads) {
            return wrong("--threads: from 1 to 1024");
        }
        if !(self.threads..=65_536).contains(&self.connections) {
            return wrong("--connections: at least one for each thread, and at most 65536");
        }
        if !(1..=65_536).contains(&self.pipeline) {
            return wrong("--pipeline: from 1 to 65536");
        }
        if !(1..=1024).contains(&self.scan_keys) {
            return wrong("--scan-keys: from 1 to 1024");
        }
        if self
            .rate
            .is_some_and(|rate| !(rate.is_finite() && rate > 0.0 && rate <= 1e9))
        {
            return wrong("--rate: operations per second above 0, and at most a billion");
        }
        if self.poisson && self.rate.is_none() {
            return wrong("--poisson: is about the arrivals of --rate");
        }
        if self.seconds.is_some_and(|seconds| seconds.is_zero()) || self.requests == Some(0) {
            return wrong("--seconds and --requests: above 0");
        }
        if self.timeout.is_zero() {
            return wrong("--timeout: above 0");
        }
        Ok(())
    }
}

/// Seconds of a flag, at most a billion.
///
/// # Errors
/// What was expected.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse()
        .ok()
        .filter(|seconds: &f64| (0.0..=1e9).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "expected seconds, such as 10 or 0.5".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_what_they_say() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["", "-1", "x", "inf", "NaN", "1e10"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
