//! `pumice-bench memcached`: load on a memcached server, ours or another's.

use crate::console::{Bar, is_usage, print, seconds, usage};
use clap::Args;
use pumice_loadgen::{LoadError, Mix, Options, Stage, Status, Target, ValueSizes};
use pumice_trace::{Columns, Format, SizeDistribution, TraceOptions, bytes};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Flags of `memcached`.
#[derive(Args, Debug)]
pub struct MemcachedArgs {
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

    /// Where keys come from: a generator such as zipf:keys=1000000,theta=0.9, uniform:, hotspot:, normal: or
    /// latest: as `replay` has them (requests= may be left out), or a trace file, which starts again at its end
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
pub fn run(args: &MemcachedArgs) -> anyhow::Result<()> {
    let options = options(args)?;
    let bar = Bar::new();
    let result = pumice_loadgen::run(&options, &mut |status| show(&bar, status));
    bar.clear();
    let report = result.map_err(load_error)?;
    print(args.json, &report, pumice_loadgen::text)?;
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

/// What the user asked for in vain is usage; what went wrong on the way is not.
pub fn load_error(error: LoadError) -> anyhow::Error {
    match error {
        LoadError::Settings(what) => usage(what),
        LoadError::Keys(ref keys) if is_usage(keys) => usage(error.to_string()),
        error => error.into(),
    }
}

fn show(bar: &Bar, status: Status) {
    let doing = match status.stage {
        Stage::Preload => "preload",
        Stage::WarmUp => "warm-up",
        Stage::Measure => "measuring",
    };
    let wrong = match status.wrong {
        0 => String::new(),
        wrong => format!(", {wrong} WRONG ANSWERS"),
    };
    let rate = format!("{:.0} requests per second{wrong}", status.requests_per_second);
    bar.show(doing, status.fraction, rate);
}
