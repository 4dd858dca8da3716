//! `pumice-bench model volume`: load splitting of a volume.

use clap::Args;
use pumice_console::{print, usage};
use pumice_device::Profile;
use pumice_models::{VolumeOptions, VolumeReport, run_volume};
use pumice_nhc::Objective;
use pumice_volume::{Mode, WriteBack};

/// Flags of `model volume`.
#[derive(Args, Debug)]
pub struct VolumeArgs {
    /// The cache device: a kind as of `serve --throttle`
    #[arg(long, value_name = "KIND", default_value = "optane*40")]
    upper: Profile,

    /// The backing device
    #[arg(long, value_name = "KIND", default_value = "nvme*40")]
    lower: Profile,

    /// Clients that wait for each answer, as so many times N1: the fewest with which a cache that is not split comes to 95 % of its most
    #[arg(long, value_name = "TIMES", default_value_t = 4.0)]
    closed: f64,

    /// So many clients, in place of that
    #[arg(long, value_name = "N")]
    clients: Option<u64>,

    /// The share of reads that the cache has
    #[arg(long, value_name = "SHARE", default_value_t = 0.95)]
    hits: f64,

    /// The share of writes, in the runs that have some
    #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
    writes: f64,

    /// Chunks of 4 KiB that are read and written again and again
    #[arg(long, value_name = "N", default_value_t = 8192)]
    chunks: u64,

    /// The exponent of Zipf's law among them; 0: all are alike
    #[arg(long, value_name = "THETA", default_value_t = 0.0)]
    theta: f64,

    /// The mode of the volume
    #[arg(long, value_name = "MODE", default_value = "write-back")]
    mode: String,

    /// Seconds between two passes of the cleaner
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    dirty_age: u32,

    /// What is to be best: throughput, mean, p99
    #[arg(long, value_name = "NAME", default_value = "throughput")]
    objective: Objective,

    /// Seconds of virtual time before requests count
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    after: u64,

    /// Seconds of virtual time in which requests count
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    seconds: u64,

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
pub fn run(args: &VolumeArgs) -> anyhow::Result<()> {
    print(args.json, &run_volume(&options(args)?)?, lines)
}

fn options(args: &VolumeArgs) -> anyhow::Result<VolumeOptions> {
    let refuse = |flag: &str, what: &str| Err(usage(format!("{flag}: {what}")));
    for (flag, share) in [("--hits", args.hits), ("--writes", args.writes)] {
        if !(0.0..=1.0).contains(&share) {
            return refuse(flag, "it is a share, from 0 to 1");
        }
    }
    if !(0.01..=100.0).contains(&args.closed) {
        return refuse("--closed", "it is from 0.01 to 100");
    }
    if args.clients.is_some_and(|clients| !(1..=4096).contains(&clients)) {
        return refuse("--clients", "it is from 1 to 4096");
    }
    if !(16..=1 << 18).contains(&args.chunks) {
        return refuse("--chunks", "it is from 16 to 262144");
    }
    if !(0.0..=20.0).contains(&args.theta) {
        return refuse("--theta", "it is from 0 to 20");
    }
    if args.after > 86_400 || !(1..=86_400).contains(&args.seconds) {
        return refuse(
            "--after, --seconds",
            "they are up to 86400, and at least one second counts",
        );
    }
    let cached = Mode::ALL.into_iter().filter(|mode| *mode != Mode::PassThrough);
    let Some(mode) = cached.into_iter().find(|mode| mode.name() == args.mode) else {
        return refuse("--mode", "it is a mode with a cache, as of serve");
    };
    if mode == Mode::ReadOnly && args.writes > 0.0 {
        return refuse("--mode read-only", "give --writes 0 with it");
    }
    Ok(VolumeOptions {
        upper: args.upper,
        lower: args.lower,
        closed: args.closed,
        clients: args.clients,
        hits: args.hits,
        writes: args.writes,
        chunks: args.chunks,
        theta: args.theta,
        chunk_bytes: 4096,
        mode,
        write_back: WriteBack {
            age_secs: args.dirty_age.max(1),
            ..WriteBack::default()
        },
        objective: args.objective,
        ahead_secs: args.after,
        seconds: args.seconds,
        seed: args.seed,
    })
}

/// The figures for people.
fn lines(report: &VolumeReport) -> String {
    let mut lines = vec![format!(
        "{} above {}, {}, seed {}: N1 is {}, {} clients",
        report.upper, report.lower, report.mode, report.seed, report.n1, report.clients
    )];
    let writes = format!("{:.0} % writes", report.writes * 100.0);
    for (what, how, run) in [
        ("reads alone", "classic", &report.reads_classic),
        ("reads alone", "split", &report.reads_split),
        (writes.as_str(), "classic", &report.writes_classic),
        (writes.as_str(), "split", &report.writes_split),
    ] {
        lines.push(format!(
            "{what:12} {how:8}{:10.0} requests/s  hits {:.3}  redirected {:.3}  movable {:.3}  cleaned {:.3}  load_admit {:.3}  data_admit {}",
            run.per_second,
            run.hits,
            run.redirected,
            run.movable,
            run.cleaned,
            run.load_admit,
            u8::from(run.data_admit)
        ));
    }
    lines.push(format!(
        "splitting gains {:.1} % by reads alone and {:.1} % with writes: {:.2} of it is kept",
        report.reads_gain * 100.0,
        report.writes_gain * 100.0,
        report.gain_kept
    ));
    lines.join("\n")
}
