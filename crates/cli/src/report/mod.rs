//! `pumice report`: evaluations as a page to read and a table to compute with.

mod csv;
mod environment;
mod find;
mod layouts;
mod page;
mod sections;
mod svg;
mod table;

use crate::usage::usage;
use anyhow::Context;
use clap::{Args, Subcommand};
use environment::Environment;
use pumice_sim::{Plan, Step, evaluate, summary};
use std::fs;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

/// Flags of `report`.
#[derive(Args, Debug)]
pub struct ReportArgs {
    #[command(subcommand)]
    evaluation: Evaluation,
}

#[derive(Debug, Subcommand)]
enum Evaluation {
    /// Makes the RIPQ paper's evaluation again on given traces.
    ///
    /// Writes ripq.html, a page with charts and tables, and ripq.csv, one line a replay. Traces without sizes get objects of
    /// 4 KiB; the flash is 10 % of a trace's footprint; the first half of the requests fills the cache.
    Ripq(RipqArgs),
}

/// Flags of `report ripq`.
#[derive(Args, Debug)]
struct RipqArgs {
    /// Where trace files are; also distributions/cachelib/, from which traces are generated
    #[arg(long, value_name = "DIR")]
    traces: PathBuf,

    /// Where ripq.html and ripq.csv go; made if it is not there
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Few points and short generated traces, to see that it works
    #[arg(long)]
    quick: bool,

    /// Replays at a time [default: as many as there are cores]
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,

    /// Only traces with this in their name; may be given several times
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
}

/// Runs an evaluation.
///
/// # Errors
/// Usage, or what failed.
pub fn run(args: &ReportArgs) -> anyhow::Result<()> {
    let Evaluation::Ripq(args) = &args.evaluation;
    let start = Instant::now();
    let found = find::find(&args.traces, args.quick, &args.only)?;
    // What cannot be written is said before the work, not after.
    let out = Output::open(&args.out)?;
    let plan = if args.quick { Plan::quick() } else { Plan::full() };
    let jobs = args
        .jobs
        .or_else(|| thread::available_parallelism().ok())
        .map_or(1, NonZeroUsize::get);
    say(&format!(
        "{} traces, {jobs} replays at a time",
        found.workloads.len()
    ));
    for skipped in &found.skipped {
        say(&format!("skipped: {}: {}", skipped.name, skipped.reason));
    }
    let evaluation = evaluate(found.workloads, plan, jobs, &mut |step| show(step, start));
    if evaluation.runs.iter().all(|run| run.result.is_err()) {
        let error = evaluation.runs.iter().find_map(|run| run.result.as_ref().err());
        anyhow::bail!("no trace could be replayed: {}", error.map_or("", |error| error));
    }
    let environment = Environment::find(jobs, start.elapsed());
    let page = page::page(&evaluation, &summary(&evaluation), &found.skipped, &environment);
    out.write("ripq.csv", &csv::csv(&evaluation)?)?;
    out.write("ripq.html", &page)?;
    for row in summary(&evaluation) {
        let line = format!(
            "{}: {} ({}): {}",
            row.verdict.name(),
            row.what,
            row.must,
            row.seen
        );
        // A reader that is gone does not want it.
        let _ = writeln!(std::io::stdout(), "{line}");
    }
    say(&format!(
        "{} and ripq.csv written after {:.0} s",
        args.out.join("ripq.html").display(),
        start.elapsed().as_secs_f64()
    ));
    Ok(())
}

fn say(line: &str) {
    // Nobody can be told where stderr is gone.
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn show(step: &Step, start: Instant) {
    let elapsed = start.elapsed().as_secs_f64();
    say(&format!(
        "[{}/{}] {elapsed:.0} s: {}",
        step.done, step.total, step.what
    ));
}

/// The folder that the results go to.
struct Output<'a>(&'a Path);

impl<'a> Output<'a> {
    fn open(path: &'a Path) -> anyhow::Result<Self> {
        fs::create_dir_all(path).with_context(|| format!("--out: cannot make {}", path.display()))?;
        let out = Self(path);
        let probe = "ripq.html.new";
        out.write(probe, "")?;
        let probe = path.join(probe);
        fs::remove_file(&probe).with_context(|| format!("--out: cannot remove {}", probe.display()))?;
        Ok(out)
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.0.join(name);
        fs::write(&path, text).with_context(|| format!("--out: cannot write {}", path.display()))
    }
}

/// What is wrong with `--traces`.
fn no_traces(directory: &Path, what: &str) -> anyhow::Error {
    usage(format!("--traces {}: {what}", directory.display()))
}
