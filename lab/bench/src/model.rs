//! `pumice-bench model`: models in virtual time.

mod admission;
mod volume;

use clap::{Args, Subcommand};
use pumice_console::{print, usage};
use pumice_device::Profile;
use pumice_models::{CacheModel, CellOptions, CellReport, Change, Load, run_cell};
use pumice_nhc::{Meter, Objective, Side, Switch};
use pumice_trace::bytes;
use pumice_world::Random;
use serde::Serialize;
use std::hint::black_box;
use std::time::Instant;

/// Flags of `model`.
#[derive(Args, Debug)]
pub struct ModelArgs {
    #[command(subcommand)]
    model: ModelCommand,
}

#[derive(Debug, Subcommand)]
enum ModelCommand {
    /// Non-hierarchical caching: a fast device above a slow one, under one load; beside it classic caching and the best fixed split.
    ///
    /// docs/nhc.md says what the scheduler does and what the words mean.
    Nhc(NhcArgs),
    /// Load splitting of a volume: what it gains, by reads alone and with writes, by the volume that serves on devices of the model.
    Volume(volume::VolumeArgs),
    /// What goes to flash: hits and writes of two exact LRU tiers under a rule.
    Admission(admission::AdmissionArgs),
}

/// Flags of `model nhc`.
#[derive(Args, Debug)]
struct NhcArgs {
    /// The performance device: a kind as of `replay --throttle`
    #[arg(long, value_name = "KIND", default_value = "optane")]
    upper: Profile,

    /// The capacity device
    #[arg(long, value_name = "KIND", default_value = "nvme")]
    lower: Profile,

    /// How much is asked for: closed:TIMES (of N1 waiting clients) or open:TIMES (of the most that classic caching does)
    #[arg(long, value_name = "LOAD", default_value = "closed:2")]
    load: Load,

    /// The share of reads that the performance device has
    #[arg(long, value_name = "SHARE", default_value_t = 0.95)]
    hits: f64,

    /// A cache of blocks in place of that share: BLOCKS/KEYS/THETA. N1 and the best split still are those of --hits
    #[arg(long, value_name = "CACHE")]
    cache: Option<CacheModel>,

    /// The share of reads; the rest are writes to both devices
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    reads: f64,

    /// Bytes of a request
    #[arg(long, value_name = "SIZE", value_parser = bytes::<u64>, default_value = "4KiB")]
    size: u64,

    /// What is to be best: throughput, mean, p99
    #[arg(long, value_name = "NAME", default_value = "throughput")]
    objective: Objective,

    /// Seed of all that is drawn
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Requests of the run, of which the last two thirds count; more where many are under way
    #[arg(long, value_name = "N", default_value_t = 600_000)]
    requests: u64,

    /// A change after the run: load=LOAD, reads=SHARE, hits=SHARE, set=SHARE (of the cache's keys replaced), more of them by commas
    #[arg(long, value_name = "CHANGE")]
    then: Option<Change>,

    /// Seconds after the change
    #[arg(long, value_name = "S", default_value_t = 6.0)]
    then_seconds: f64,

    /// Run a fixed split, latency balancing and the paper's algorithm as it is written, too
    #[arg(long)]
    baselines: bool,

    /// Measure what the decision costs a read on this machine, and nothing else
    #[arg(long)]
    decision: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What a read pays, in nanoseconds of real time.
#[derive(Serialize)]
struct Decision {
    /// A random number, and where to by it.
    decision_ns: f64,
    /// Counting the read for the scheduler.
    counting_ns: f64,
}

/// Measures a decision, and the counts of a read.
fn decision() -> Decision {
    const TIMES: u32 = 20_000_000;
    let each = |work: &mut dyn FnMut(u64)| {
        let start = Instant::now();
        (0..u64::from(TIMES)).for_each(work);
        start.elapsed().as_secs_f64() * 1e9 / f64::from(TIMES)
    };
    let (switch, meter, mut random) = (Switch::new(0.7, true), Meter::new(), Random(1));
    let mut upper = 0;
    let decision_ns = each(&mut |_| {
        upper += u64::from(switch.route((random.next_u64() >> 32) as u32) == Side::Upper);
    });
    black_box(upper);
    let counting_ns = each(&mut |now| {
        meter.begin(now * 10);
        meter.hit();
        meter.end_read(Side::Upper, now * 10, now * 10 + 5);
    });
    black_box(meter.completions());
    Decision {
        decision_ns,
        counting_ns,
    }
}

/// Does what `model` is asked for.
///
/// # Errors
/// Usage, or what failed.
pub fn run(args: &ModelArgs) -> anyhow::Result<()> {
    let args = match &args.model {
        ModelCommand::Nhc(args) => args,
        ModelCommand::Volume(args) => return volume::run(args),
        ModelCommand::Admission(args) => return admission::run(args),
    };
    if args.decision {
        return print(args.json, &decision(), |cost| {
            format!(
                "a decision takes {:.2} ns, counting a read {:.2} ns",
                cost.decision_ns, cost.counting_ns
            )
        });
    }
    print(args.json, &run_cell(&cell(args)?), lines)
}

/// The cell that is asked for.
fn cell(args: &NhcArgs) -> anyhow::Result<CellOptions> {
    for (flag, share) in [("--hits", args.hits), ("--reads", args.reads)] {
        if !(0.0..=1.0).contains(&share) {
            return Err(usage(format!("{flag} {share}: it is a share, from 0 to 1")));
        }
    }
    for (flag, value, most) in [
        ("--size", args.size, 1 << 30),
        ("--requests", args.requests, 1_000_000_000),
    ] {
        if !(1..=most).contains(&value) {
            return Err(usage(format!("{flag} {value}: it is from 1 to {most}")));
        }
    }
    if !(0.0..=3_600.0).contains(&args.then_seconds) {
        return Err(usage(format!(
            "--then-seconds {}: it is from 0 to 3600",
            args.then_seconds
        )));
    }
    Ok(CellOptions {
        upper: args.upper,
        lower: args.lower,
        load: args.load,
        hits: args.hits,
        cache: args.cache,
        reads: args.reads,
        bytes: args.size,
        objective: args.objective,
        seed: args.seed,
        requests: args.requests,
        then: args.then,
        then_seconds: args.then_seconds,
        baselines: args.baselines,
    })
}

/// The figures for people.
fn lines(report: &CellReport) -> String {
    let mut lines = vec![format!(
        "{} above {}, {}, {:.1} % hits, {:.0} % reads, seed {}: N1 is {}, classic caching does {:.0} requests/s at most",
        report.upper,
        report.lower,
        report.load,
        report.hits * 100.0,
        report.reads * 100.0,
        report.seed,
        report.n1,
        report.classic_most
    )];
    let runs = [
        ("classic", Some(&report.classic)),
        ("best split", Some(&report.best)),
        ("NHC", Some(&report.nhc)),
        ("fixed split", report.fixed.as_ref()),
        ("balanced", report.balance.as_ref()),
        ("as written", report.literal.as_ref()),
    ];
    for (name, run) in runs {
        let Some(run) = run else { continue };
        lines.push(format!(
            "{name:12}{:12.0} requests/s  mean {:8.2} us  p99 {:8.2} us  load_admit {:.3}  data_admit {}",
            run.per_second,
            run.mean_ns / 1e3,
            run.p99_ns / 1e3,
            run.load_admit,
            u8::from(run.data_admit)
        ));
    }
    lines.push(format!(
        "NHC comes to {:.3} of the best split, and to {:.3} of classic caching",
        report.nhc_to_best, report.nhc_to_classic
    ));
    if let Some(changed) = &report.changed {
        let seconds =
            |seconds: Option<f64>| seconds.map_or("never".to_owned(), |seconds| format!("{seconds:.2} s"));
        lines.push(format!(
            "settled {} after the change",
            seconds(changed.settled_seconds)
        ));
        if changed.refilled_seconds.is_some() || changed.classic_refilled_seconds.is_some() {
            lines.push(format!(
                "hits were back after {}, under classic caching after {}",
                seconds(changed.refilled_seconds),
                seconds(changed.classic_refilled_seconds)
            ));
        }
    }
    lines.join("\n")
}
