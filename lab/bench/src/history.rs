//! `pumice-bench history`: a history check.

use crate::memcached::load_error;
use clap::Args;
use pumice_console::print;
use pumice_loadgen::{HistoryOptions, HistoryReport, history};

/// Flags of `history`.
#[derive(Args, Debug)]
pub struct HistoryArgs {
    #[command(flatten)]
    options: HistoryOptions,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Makes the check and prints the report.
///
/// # Errors
/// Usage; answers that cannot be explained; no answer at all.
pub fn run(args: &HistoryArgs) -> anyhow::Result<()> {
    let options = &args.options;
    let report = history(options).map_err(load_error)?;
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
