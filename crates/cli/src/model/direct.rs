//! `pumice model direct`: reads of flash while blocks are written.

use crate::usage::usage;
use anyhow::Context;
use clap::Args;
use pumice_device::Profile;
use pumice_sim::{DirectOptions, DirectReport, run_direct};
use pumice_trace::bytes;
use std::io::Write;
use std::path::PathBuf;

/// Flags of `model direct`.
#[derive(Args, Debug)]
pub struct DirectArgs {
    /// The flash device: a kind as of `replay --throttle`
    #[arg(long, value_name = "KIND", default_value = "nvme")]
    device: Profile,

    /// Measure this file, in the time that passes; the kind of device says how much is asked of it. A cache of an earlier measurement or replay
    /// that is there is erased
    #[arg(long, value_name = "FILE")]
    path: Option<PathBuf>,

    /// Erase whatever is in --path: without it a server's cache, and anything that is no cache, is refused
    #[arg(long, requires = "path")]
    reformat: bool,

    /// Bytes of a block
    #[arg(long, value_name = "SIZE", value_parser = bytes::<u64>, default_value = "4MiB")]
    block: u64,

    /// Block buffers
    #[arg(long, value_name = "N", default_value_t = 8)]
    buffers: usize,

    /// Bytes of a value
    #[arg(long, value_name = "SIZE", value_parser = bytes::<u64>, default_value = "4KiB")]
    object: u64,

    /// Reads that arrive, as a share of the most that the device does of this length
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    reads: f64,

    /// Bytes that are set, as a share of the bytes that the device writes in the same time
    #[arg(long, value_name = "SHARE", default_value_t = 0.25)]
    writes: f64,

    /// Seconds that count
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    seconds: f64,

    /// Seed of all that is drawn
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the model, and prints what it came to.
///
/// # Errors
/// Usage, or what failed.
pub fn run(args: &DirectArgs) -> anyhow::Result<()> {
    let report = run_direct(&options(args)?)?;
    let text = match args.json {
        true => serde_json::to_string_pretty(&report).context("cannot write the figures")?,
        false => lines(&report),
    };
    // A reader that is gone does not want it.
    let _ = writeln!(std::io::stdout(), "{text}");
    Ok(())
}

fn options(args: &DirectArgs) -> anyhow::Result<DirectOptions> {
    let refuse = |flag: &str, what: &str| Err(usage(format!("{flag}: {what}")));
    if !args.block.is_power_of_two() || !(64 << 10..=256 << 20).contains(&args.block) {
        return refuse("--block", "it is a power of two from 64 KiB to 256 MiB");
    }
    if !(2..=64).contains(&args.buffers) {
        return refuse("--buffers", "it is from 2 to 64");
    }
    if !(1..=args.block / 8).contains(&args.object) {
        return refuse("--object", "it is up to an eighth of a block");
    }
    for (flag, share) in [("--reads", args.reads), ("--writes", args.writes)] {
        if !(0.001..=10.0).contains(&share) {
            return refuse(flag, "it is from 0.001 to 10");
        }
    }
    if !(0.001..=3_600.0).contains(&args.seconds) {
        return refuse("--seconds", "it is from 0.001 to 3600");
    }
    Ok(DirectOptions {
        device: args.device,
        path: args.path.clone(),
        reformat: args.reformat,
        block_bytes: args.block,
        buffers: args.buffers,
        object_bytes: args.object,
        reads: args.reads,
        writes: args.writes,
        seconds: args.seconds,
        seed: args.seed,
    })
}

/// The figures for people.
fn lines(report: &DirectReport) -> String {
    let mut lines = vec![format!(
        "{}, blocks of {} bytes, values of {}, {:.0} reads/s, seed {}",
        report.device, report.block_bytes, report.object_bytes, report.reads_per_second, report.seed
    )];
    for (name, run) in [("idle", &report.idle), ("writing", &report.writing)] {
        lines.push(format!(
            "{name:8}{:9} hits of flash  p50 {:8.1} us  p99 {:8.1} us  longest {:8.1} us  {:6.0} MB/s written  {} sets dropped",
            run.reads,
            run.p50_ns as f64 / 1e3,
            run.p99_ns as f64 / 1e3,
            run.max_ns as f64 / 1e3,
            run.written_bytes_per_second / 1e6,
            run.dropped
        ));
    }
    lines.push(format!(
        "while blocks are written the median is {:.2} times as long, the 99th percentile {:.2} times",
        report.p50_ratio, report.p99_ratio
    ));
    lines.join("\n")
}
