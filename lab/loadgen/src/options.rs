//! What a run is made of.

use crate::error::LoadError;
use crate::mix::Mix;
use crate::sizes::ValueSizes;
use crate::target::Target;
use pumice_trace::TraceOptions;
use std::time::Duration;

/// The settings of a run. [`Options::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server.
    pub target: Target,
    /// Connections in all, at least one per thread.
    pub connections: usize,
    /// Threads; connections are spread over them evenly.
    pub threads: usize,
    /// Requests under way on each connection at most.
    pub pipeline: usize,
    /// How long the load runs before it is measured.
    pub warm_up: Duration,
    /// How long is measured; none: until `requests` operations are done.
    pub duration: Option<Duration>,
    /// How many operations are measured at most.
    pub requests: Option<u64>,
    /// Whether every key is set once first.
    pub preload: bool,
    /// Whether that is all.
    pub preload_only: bool,
    /// Operations that arrive per second (open loop); none: as fast as replies come (closed loop).
    pub rate: Option<f64>,
    /// Whether arrivals are a Poisson process, and not evenly spaced.
    pub poisson: bool,
    /// What is done.
    pub mix: Mix,
    /// The name of the source of keys.
    pub keys: String,
    /// How that is read, where it is a file.
    pub trace: TraceOptions,
    /// How large values are.
    pub sizes: ValueSizes,
    /// How `sizes` was named, for the report.
    pub sizes_name: String,
    /// What every key begins with.
    pub key_prefix: String,
    /// Bytes of a key; none: 16, or what the prefix needs.
    pub key_size: Option<usize>,
    /// Most keys of one scan.
    pub scan_keys_max: u32,
    /// Seconds until objects expire; 0: never.
    pub ttl: u32,
    /// How long a reply, and a connection, may take.
    pub timeout: Duration,
    /// The server's process, to count its CPU time.
    pub server_pid: Option<u32>,
    /// Keys whose versions are remembered; none: all of a generator's, up to 32 million, and 4 million of others.
    pub version_keys: Option<usize>,
}

impl Options {
    /// The default settings against this server: 32 connections of one thread, look-aside over a million keys with
    /// Zipf exponent 0.99 and 100-byte values, 10 s after 1 s of warm-up.
    pub fn new(target: Target) -> Self {
        Options {
            target,
            connections: 32,
            threads: 1,
            pipeline: 1,
            warm_up: Duration::from_secs(1),
            duration: Some(Duration::from_secs(10)),
            requests: None,
            preload: false,
            preload_only: false,
            rate: None,
            poisson: false,
            mix: "look-aside".parse().expect("a known mix"),
            keys: "zipf:keys=1000000,theta=0.99".into(),
            trace: TraceOptions::default(),
            sizes: ValueSizes::Range(100, 100),
            sizes_name: "100".into(),
            key_prefix: String::new(),
            key_size: None,
            scan_keys_max: 16,
            ttl: 0,
            timeout: Duration::from_secs(5),
            server_pid: None,
            version_keys: None,
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
        if !(1..=1024).contains(&self.scan_keys_max) {
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
        if self.duration.is_none() && self.requests.is_none() {
            return wrong("--seconds or --requests is needed");
        }
        if self.duration.is_some_and(|duration| duration.is_zero()) || self.requests == Some(0) {
            return wrong("--seconds and --requests: above 0");
        }
        if self.timeout.is_zero() {
            return wrong("--timeout: above 0");
        }
        Ok(())
    }
}
