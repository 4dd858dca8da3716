//! `pumice bench`: load for a server, ours or another's, and what it makes of it.

pub(crate) mod device;
mod history;
mod nbd;

use crate::usage::usage;
use anyhow::Context;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pumice_loadgen::{LoadError, Mix, Options, Stage, Status, Target, ValueSizes};
use pumice_trace::{Columns, Format, SizeDistribution, TraceError, TraceOptions, bytes};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Flags of `bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    #[command(subcommand)]
    protocol: Protocol,
}

#[derive(Debug, Subcommand)]
enum Protocol {
    /// Puts load on a server of the memcached text protocol, and verifies every value that it returns.
    ///
    /// Exit status 1 where a value was another key's, damaged, or older than one whose set the server had
    /// acknowledged before; where a key was found after its acknowledged delete; where replies made no sense; or where
    /// no reply came at all. Errors that the server admits to (SERVER_ERROR) and lost connections are counted.
    ///
    /// Without --rate, each connection starts the next operation when one has ended (closed loop). With it, operations
    /// arrive by a schedule whatever the server does, and their latency counts from then (open loop).
    Memcached(Box<MemcachedArgs>),

    /// Checks that everything that a memcached server answers can be explained: a history check.
    ///
    /// Many clients get, set, add, replace, delete, cas, touch, incr, append and invalidate the same keys, also while the server
    /// is stopped, killed and started again at its address. Missing is legal at any time. Exit status 1 where an answer
    /// cannot be explained by any order of the operations: a value that was replaced, deleted, expired, another key's or
    /// damaged, a change that was lost or made twice, reads that go back; where the server stopped answering; or where
    /// nothing was answered.
    History(Box<history::HistoryArgs>),

    /// Measures a file or block device: operations a second and their latency, by size, depth and mix, at random places.
    ///
    /// It goes past the page cache where it can. Numbers of a drive depend on what was written to it before, and on how long: give
    /// --seconds 60 or more for writes that last.
    Device(Box<device::DeviceArgs>),

    /// Puts load on an NBD server, and checks every sector that it reads, also through kills of the server.
    ///
    /// Each sector of 512 bytes that is written names its content. A read must find what was written and answered last, or what was under
    /// way. With --resume the server may be killed and started again: then each sector has what a FLUSH or FUA has covered or anything
    /// written later, and stays so. Exit status 1 where a sector was wrong (the first ten are explained: an older content, that of another
    /// sector, unknown bytes), a request failed, or a connection was lost and not made anew.
    ///
    /// SIGINT ends the load, a second one the pass over the range, too. Nobody else may write to the export meanwhile. A lost connection
    /// must mean that the server has stopped: one that lives on, and completes a write of before, is taken for wrong.
    ///
    /// Memory: 8 bytes for each sector of --range (with --journal 16 at the beginning and the end), and some 50 MB for what is not flushed; if
    /// that is not enough, a FLUSH is sent beyond those of --mix. One thread does it all: if it is 100 % busy, the client is what is measured.
    Nbd(Box<nbd::NbdArgs>),
}

/// Flags of `bench memcached`.
#[derive(Args, Debug)]
struct MemcachedArgs {
    /// The server: HOST:PORT, or the path of a unix socket
    #[arg(long, value_name = "ADDR")]
    target: Target,

    /// Connections in all
    #[arg(long, value_name = "N", default_value_t = 32)]
    connections: usize,

    /// Threads that the connections are spread over
    #[arg(long, value_name = "T", default_value_t = 1)]
    threads: usize,

    /// Operations under way on each connection at most
    #[arg(long, value_name = "D", default_value_t = 1)]
    pipeline: usize,

    /// Load before anything is measured
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    warm_up: Duration,

    /// How long is measured [default: 10, or until --requests are done]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,

    /// How many operations are measured at most
    #[arg(long, value_name = "N")]
    requests: Option<u64>,

    /// Set every key once first, so that hits are hits
    #[arg(long)]
    preload: bool,

    /// Set every key once, and no more
    #[arg(long)]
    preload_only: bool,

    /// Operations that arrive per second, whatever the server does (open loop)
    #[arg(long, value_name = "R")]
    rate: Option<f64>,

    /// Arrivals of --rate at random (a Poisson process) instead of evenly spaced
    #[arg(long)]
    poisson: bool,

    /// What is done: get, set, delete, look-aside (a get whose miss is answered by a set), rmw (gets and cas), scan (a
    /// get of several keys), ycsb-a to ycsb-f, trace (what the trace says), or weights such as get:95,set:5. The
    /// protocol has no scan: that of ycsb-e is one get of 1 to --scan-keys keys
    #[arg(long, value_name = "MIX", default_value = "look-aside")]
    mix: Mix,

    /// Where keys come from: a generator such as zipf:keys=1000000,theta=0.9, uniform:, hotspot:, normal:, latest: or
    /// cachelib: as `replay` has them (requests= may be left out), or a trace file, which starts again at its end
    #[arg(long, value_name = "TRACE", default_value = "zipf:keys=1000000,theta=0.99")]
    keys: String,

    /// The trace's format; auto goes by content
    #[arg(long, value_name = "NAME", default_value = "auto")]
    format: String,

    /// Columns of format csv, such as time=1,id=2,size=3,header
    #[arg(long, value_name = "SPEC")]
    columns: Option<Columns>,

    /// Bytes of values: 100, or 600-4096 (uniform, fixed by the key), or trace (what the trace or generator says). A
    /// value has at least 24 bytes
    #[arg(long, value_name = "SIZE", default_value = "100", conflicts_with = "sizes")]
    value_size: String,

    /// Bytes of values from a distribution as CacheBench writes it
    #[arg(long, value_name = "FILE")]
    sizes: Option<PathBuf>,

    /// What every key begins with
    #[arg(long, value_name = "TEXT", default_value = "")]
    key_prefix: String,

    /// Bytes of every key [default: 16, or what the prefix and 11 digits need]
    #[arg(long, value_name = "SIZE", value_parser = bytes::<usize>)]
    key_size: Option<usize>,

    /// Most keys of one scan
    #[arg(long, value_name = "N", default_value_t = 16)]
    scan_keys: u32,

    /// Seconds until objects expire; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    ttl: u32,

    /// How long a reply may take before its connection is given up
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    timeout: Duration,

    /// The server's process, to measure its CPU time
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,

    /// Keys whose versions are remembered, at 22 bytes each [default: all of a generator, up to 32 million; 4 million
    /// of a trace]
    #[arg(long, value_name = "N")]
    version_keys: Option<usize>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the load and prints the report.
///
/// # Errors
/// Usage; a server that is not there; answers that were wrong.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    match &args.protocol {
        Protocol::Memcached(args) => memcached(args),
        Protocol::History(args) => history::run(args),
        Protocol::Device(args) => device::run(args),
        Protocol::Nbd(args) => nbd::run(args),
    }
}

fn memcached(args: &MemcachedArgs) -> anyhow::Result<()> {
    let options = options(args)?;
    let bar = Bar::new();
    let result = pumice_loadgen::run(&options, &mut |status| bar.show(status));
    bar.clear();
    let report = result.map_err(load_error)?;
    let text = if args.json {
        serde_json::to_string_pretty(&report).context("cannot write the report")?
    } else {
        pumice_loadgen::text(&report)
    };
    // A reader that is gone does not want the report.
    let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
    if report.is_good() {
        return Ok(());
    }
    if report.wrong_answers > 0 {
        let kinds: Vec<String> = report
            .wrong_kinds()
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        anyhow::bail!(
            "{}: {} wrong answers: {}",
            options.target,
            report.wrong_answers,
            kinds.join(", ")
        );
    }
    anyhow::bail!("{}: no request was answered", options.target);
}

fn options(args: &MemcachedArgs) -> anyhow::Result<Options> {
    let mut options = Options::new(args.target.clone());
    options.connections = args.connections;
    options.threads = args.threads;
    options.pipeline = args.pipeline;
    options.warm_up = args.warm_up;
    options.duration = match (args.seconds, args.requests) {
        (None, Some(_)) => None,
        (seconds, _) => seconds.or(options.duration),
    };
    options.requests = args.requests;
    options.preload = args.preload;
    options.preload_only = args.preload_only;
    options.rate = args.rate;
    options.poisson = args.poisson;
    options.mix = args.mix.clone();
    options.keys.clone_from(&args.keys);
    options.trace = TraceOptions {
        format: Format::parse_or_auto(&args.format).map_err(|error| usage(error.to_string()))?,
        columns: args.columns.clone(),
    };
    options.sizes_name.clone_from(&args.value_size);
    options.sizes = match &args.sizes {
        None => args
            .value_size
            .parse()
            .map_err(|what| usage(format!("--value-size: {what}")))?,
        Some(path) => {
            options.sizes_name = path.display().to_string();
            let sizes = SizeDistribution::open(path).map_err(|error| load_error(LoadError::Keys(error)))?;
            ValueSizes::Drawn(Arc::new(sizes))
        }
    };
    options.key_prefix.clone_from(&args.key_prefix);
    options.key_size = args.key_size;
    options.scan_keys_max = args.scan_keys;
    options.ttl = args.ttl;
    options.timeout = args.timeout;
    options.server_pid = args.server_pid;
    options.version_keys = args.version_keys;
    Ok(options)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse()
        .ok()
        .filter(|seconds: &f64| (0.0..=1e9).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "expected seconds, such as 10 or 0.5".to_owned())
}

/// What the user asked for in vain is usage; what went wrong on the way is not.
fn load_error(error: LoadError) -> anyhow::Error {
    match error {
        LoadError::Settings(what) => usage(what),
        LoadError::Keys(
            TraceError::Undetected { .. }
            | TraceError::UnknownFormat { .. }
            | TraceError::NoColumns { .. }
            | TraceError::Columns { .. }
            | TraceError::Generator { .. }
            | TraceError::ColumnsWithout { .. },
        ) => usage(error.to_string()),
        error => error.into(),
    }
}

/// Progress on a terminal; silent elsewhere.
struct Bar(ProgressBar);

impl Bar {
    fn new() -> Self {
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(1000), target);
        let style = ProgressStyle::with_template("{prefix:<9} [{bar:40}] {msg}");
        bar.set_style(
            style
                .unwrap_or_else(|_| ProgressStyle::default_bar())
                .progress_chars("=> "),
        );
        Self(bar)
    }

    fn show(&self, status: Status) {
        let bar = &self.0;
        bar.set_prefix(match status.stage {
            Stage::Preload => "preload",
            Stage::WarmUp => "warm-up",
            Stage::Measure => "measuring",
        });
        bar.set_position((status.fraction * 1000.0) as u64);
        let wrong = match status.wrong {
            0 => String::new(),
            wrong => format!(", {wrong} WRONG ANSWERS"),
        };
        bar.set_message(format!(
            "{:.0} requests per second{wrong}",
            status.requests_per_second
        ));
    }

    fn clear(&self) {
        self.0.finish_and_clear();
    }
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
