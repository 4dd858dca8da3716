//! `pumice-bench history`: a history check.

use crate::console::{print, seconds};
use crate::memcached::load_error;
use clap::Args;
use pumice_loadgen::{HistoryOptions, HistoryReport, Target, history};
use pumice_trace::bytes;
use std::time::Duration;

/// Flags of `history`.
#[derive(Args, Debug)]
pub struct HistoryArgs {
    /// The server: HOST:PORT, or the path of a unix socket. It may be stopped, killed and started again at this address
    #[arg(long, value_name = "ADDR")]
    target: Target,

    /// Clients, each with a connection and a thread
    #[arg(long, value_name = "N", default_value_t = 12)]
    connections: usize,

    /// How long it takes
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    seconds: Duration,

    /// Different keys. Each run has keys of its own
    #[arg(long, value_name = "N", default_value_t = 50_000)]
    keys: u32,

    /// Bytes of values at most; of one key in 512 they are 100,000 to 700,000
    #[arg(long, value_name = "SIZE", default_value_t = 4096, value_parser = bytes::<u32>)]
    value_size_max: u32,

    /// How often flush_all comes, on average; 0: never
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    flush_every: Duration,

    /// How long a server that is there may take to answer
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    timeout: Duration,

    /// Fixes what each client draws [default: by the time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Makes the check and prints the report.
///
/// # Errors
/// Usage; answers that cannot be explained; no answer at all.
pub fn run(args: &HistoryArgs) -> anyhow::Result<()> {
    let mut options = HistoryOptions::new(args.target.clone());
    options.connections = args.connections;
    options.duration = args.seconds;
    options.keys = args.keys;
    options.value_bytes_max = args.value_size_max;
    options.flush_every = (!args.flush_every.is_zero()).then_some(args.flush_every);
    options.timeout = args.timeout;
    options.seed = args.seed.unwrap_or_else(|| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        u64::from(since.unwrap_or_default().subsec_nanos())
    });
    let report = history(&options).map_err(load_error)?;
    print(args.json, &report, text)?;
    if report.is_good() {
        return Ok(());
    }
    if report.wrong_answers > 0 {
        anyhow::bail!(
            "{}: {} answers cannot be explained",
            options.target,
            report.wrong_answers
        );
    }
    anyhow::bail!("{}: nothing was answered", options.target);
}

fn text(report: &HistoryReport) -> String {
    let mut text = format!(
        "seed {}: {} operations on {} keys in {:.1} s, {:.0} per second; {} hits, {} misses; \
         {} server processes, {} connections lost, {} operations without an answer; {} explanations at once at most; \
         {} wrong answers\n",
        report.seed,
        report.operations,
        report.keys,
        report.seconds,
        report.operations as f64 / report.seconds.max(1e-9),
        report.hits,
        report.misses,
        report.servers,
        report.connections_lost,
        report.unanswered,
        report.explanations_max,
        report.wrong_answers
    );
    for (line, count) in &report.server_errors {
        text.push_str(&format!("{count} times {line}\n"));
    }
    for example in &report.examples {
        text.push_str(&format!("wrong: {example}\n"));
    }
    text
}
