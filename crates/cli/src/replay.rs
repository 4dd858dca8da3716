//! `pumice replay`: what a cache would have done with a recorded workload.

mod chunks;
mod grid;
mod summary;

use crate::source::Source;
use crate::times::time;
use anyhow::Context;
use clap::Args;
use pumice_console::{Bar, causes, complain, judged, print, usage};
use pumice_server::Flags;
use pumice_server::objects::flash::size_of_new;
use pumice_server::objects::{ServeConfig, TIER1_SHARE, config, options_of_empty};
use pumice_server::settings::{Layers, Settings};
use pumice_sim::{
    AsServed, CacheSize, ExactOptions, FlashOptions, IndexKind, IndexOptions, LayoutName, LayoutOptions,
    MissingSizes, OpsMode, Profile, ReplayDevice, ReplayProgress, ReplayRules, Report, SimError, Timed,
    Warmup, replay_exact, replay_flash,
};
use pumice_trace::{OBJECT_BYTES, SizeDistribution, TraceError, bytes};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use summary::summary;

/// Flags of `replay`. `--layout`, `--policy`, `--flash-size`, `--dram` and `--flash-admit` may be lists with commas.
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    #[command(flatten)]
    source: Source,

    #[command(flatten)]
    chunks: chunks::ChunkArgs,

    /// A file of settings as `serve` takes it: the cache is what `serve` makes of it, of its environment and of the flags of the same
    /// names here (blocks, buffers, division of DRAM, index). Its flash device is not touched
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// exact: the policy on an exact queue, the yardstick; the others: the engine that serves [default: ripq]. Of this flag, --policy,
    /// --flash-size, --dram and --flash-admit a list, as 1%,5%,10%, makes a replay of each combination, and a table
    #[arg(long, value_name = "exact|fifo|clock|sipq|ripq")]
    layout: Option<String>,

    /// fifo, lru, slru-1 to slru-8, gdsf-1 to gdsf-4, lfu; with --layout exact also slru-list-3 and others, and gdsf, in textbook
    /// form; layouts fifo and clock have none [default: slru-3, or with --config as `serve`]
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,

    /// RIPQ: sections are of alpha to 2 alpha of the queue, so it has about 1/alpha insertion points; 0.015625 to 0.5 [default: 0.125]
    #[arg(long, value_name = "FRACTION")]
    alpha: Option<f64>,

    /// Logical occupancy. Ripq: objects in the last 1 - theta of the queue are not kept when their block goes [default: 1; lru and
    /// slru-1 0.75, gdsf-1 0.6, gdsf-2 0.5]; sipq: the share of what the blocks can hold of objects that the queue of keys may have [default: 0.5]
    #[arg(long, value_name = "FRACTION")]
    theta: Option<f64>,

    /// Size of the flash tier: 4GiB, 10% of the trace's footprint, or a plain number (of objects where `exact` has a
    /// trace without sizes) [default: 10%, or with --config as `serve`]
    #[arg(long, value_name = "SIZE|N%", value_delimiter = ',')]
    flash_size: Vec<CacheSize>,

    /// With --layout exact: larger objects are refused even if there is room, as the flash layouts refuse those above half of
    /// their blocks
    #[arg(long, value_name = "SIZE", value_parser = bytes::<u64>)]
    max_object_size: Option<u64>,

    /// DRAM for the whole process, which is divided as `serve` does it; 0: no DRAM tier, and an index as large as it needs to be
    /// [default: 0, or with --config as `serve`]
    #[arg(long, value_name = "SIZE")]
    dram: Option<String>,

    /// In place of --dram, DRAM for items and index alone, of a cache that is otherwise as without it
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["dram", "config"], value_parser = bytes::<u64>)]
    dram_pool: Option<u64>,

    /// With DRAM, when an object is written to flash: insertion, or eviction (from DRAM) [default: insertion]
    #[arg(long, value_name = "WHEN")]
    flash_write: Option<String>,

    /// Which objects are: all, random:F or second-hit [default: all]
    #[arg(long, value_name = "RULE")]
    flash_admit: Option<String>,

    /// The largest object that is, with header and key, or the largest value of those that are stored in slices [default: any]
    #[arg(long, value_name = "SIZE")]
    flash_admit_size_max: Option<String>,

    /// Objects that expire within so many seconds are not; as of `serve`, with no effect here, where none expires [default: 0]
    #[arg(long, value_name = "SECONDS")]
    flash_admit_ttl_min: Option<String>,

    /// Most bytes sent to the device in any such time, by the times of the trace: 2TB/day, 100GB/hour or 20GB/600s [default: no bound]
    #[arg(long, value_name = "SIZE/TIME")]
    flash_write_budget: Option<String>,

    /// Write to a file, for each second of the trace, how many bytes had been sent to the device by its end, and how many of objects
    /// --flash-admit and --flash-write-budget had been asked about, as lines `second,sent,asked`
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,

    /// With --dram or --config, the largest object [default: 1MiB]
    #[arg(long, value_name = "SIZE")]
    max_item_size: Option<String>,

    /// Bytes of a block, a power of two [default: such that there are 1024 to 2047, below 1MiB 512 to 1023; at least 64KiB]
    #[arg(long, value_name = "SIZE", value_parser = bytes::<u64>)]
    block_size: Option<u64>,

    /// Where mappings are: full (all in DRAM; auto is that, but with --dram or --config as `serve`), or cascade (hot ones in DRAM,
    /// the rest on flash) [default: auto]
    #[arg(long, value_name = "auto|full|cascade")]
    index: Option<String>,

    /// With index cascade: mappings in DRAM for each on flash, above 0 and at most 1 [default: 0.03]
    #[arg(long, value_name = "SHARE")]
    tier1: Option<f64>,

    /// Bytes of an object, where the trace has no sizes [default: 4KiB; with --layout exact objects are counted], or none of this object
    #[arg(long, value_name = "SIZE", conflicts_with = "sizes", value_parser = bytes::<u64>)]
    object_size: Option<u64>,

    /// Ignore the sizes that the trace has: all are those of --object-size or --sizes
    #[arg(long)]
    ignore_sizes: bool,

    /// Sizes from a distribution as CacheBench writes it, where the trace has none
    #[arg(long, value_name = "FILE")]
    sizes: Option<PathBuf>,

    /// lookup: every access is a lookup, and a miss inserts; as-recorded: what the trace says; look-aside: what the trace says, and a
    /// get that misses inserts, but where it missed when it was recorded, too (it has no size); where that one hits, the set that followed is left out
    #[arg(long, value_name = "lookup|as-recorded|look-aside", default_value = "lookup")]
    ops: OpsMode,

    /// What the flash tier stands on: sim, or a file or device (a replay's cache that is there is erased)
    #[arg(long, value_name = "sim|PATH", default_value = "sim")]
    device: OsString,

    /// Erase whatever is on --device: without it a server's cache, and anything that is no cache, is refused
    #[arg(long)]
    reformat: bool,

    /// Blocks in one erase unit: with --device sim of the simulated drive, a tenth of which is its own, below 32 units more (0: no
    /// drive, and no device write amplification) [default: 1]
    #[arg(long, value_name = "BLOCKS")]
    superblock: Option<u32>,

    /// That drive is told which blocks are free (TRIM), as `serve` tells none
    #[arg(long)]
    trim: bool,

    /// As slow as another kind of device: dram, nvm, optane, nvme, sata, hdd; nvme*40 is 40 times slower (docs/observe.md has values of
    /// one's own). With --device sim that takes no time, and `device_seconds` says how much it would have been, one request at a time
    #[arg(long, value_name = "KIND")]
    throttle: Option<Profile>,

    /// What a miss takes. With --throttle and --device sim the report then has the mean response time of gets, one after the other in virtual
    /// time, while blocks are written
    #[arg(long, value_name = "TIME", value_parser = time, requires = "throttle")]
    miss_latency: Option<f64>,

    /// With --miss-latency: what a hit in DRAM takes
    #[arg(long, value_name = "TIME", value_parser = time, requires = "miss_latency", default_value = "1us")]
    dram_latency: f64,

    /// The part of the requests that fills the cache before figures are counted, from 0 to below 1
    #[arg(long, value_name = "FRACTION", default_value = "0")]
    warmup: Warmup,

    /// Print one JSON object; of lists an array of them
    #[arg(long)]
    json: bool,

    /// Print a row of csv for each replay, under the names of the columns
    #[arg(long, conflicts_with = "json")]
    csv: bool,

    /// Write a picture (SVG) of the object hit ratio by size to a file, a curve for each combination of the other lists
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    /// Replays of lists that run at a time, each with the memory of its own size
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: u16,
}

/// Replays a trace and prints the report.
///
/// # Errors
/// Usage, or what failed.
pub fn run(args: &ReplayArgs) -> anyhow::Result<()> {
    if let Some(cache) = args.chunks.chunk_cache {
        return chunks::run(args, cache);
    }
    match &grid::cells(args)[..] {
        [cell] if !args.csv && args.plot.is_none() => run_one(cell),
        cells => grid::run(args, cells),
    }
}

/// Says that a flag changes nothing, and why.
fn note((flag, why): (&'static str, &'static str)) {
    complain(format_args!("pumice: note: {flag} has no effect {why}"));
}

fn run_one(args: &ReplayArgs) -> anyhow::Result<()> {
    check_built(args)?;
    without_effect(args).into_iter().for_each(note);
    let bar = Bar::new("replaying");
    let report = report(args, &mut |at| show(&bar, at));
    bar.clear();
    let report = report?;
    let missed = 1.0 - report.object_hit_ratio.unwrap_or(1.0);
    args.source
        .doubt(report.requests, (missed * report.requests as f64) as u64);
    if let Some(path) = &args.timeline {
        write_timeline(path, &report.timeline).with_context(|| format!("cannot write {}", path.display()))?;
    }
    print(args.json, &report, summary)
}

/// The report of one replay, of flags without lists.
fn report(args: &ReplayArgs, progress: &mut dyn FnMut(ReplayProgress)) -> anyhow::Result<Report> {
    check_built(args)?;
    let is_exact = args.layout() == "exact";
    let (served, flash_size) = if args.is_served() && !is_exact {
        let (served, size) = as_served(args)?;
        (Some(served), size)
    } else {
        let size = args.flash_size.first().cloned();
        (None, size.map_or_else(|| "10%".parse(), Ok)?)
    };
    let trace = args.source.trace()?;
    let rules = ReplayRules {
        ops: args.ops,
        missing_sizes: missing_sizes(args, is_exact)?,
        ignores_sizes: args.ignore_sizes,
        warmup: args.warmup,
    };
    let result = if is_exact {
        let options = ExactOptions {
            policy: args.policy.clone().unwrap_or_else(|| "slru-3".into()),
            size: flash_size,
            object_bytes_max: args.max_object_size,
            rules,
        };
        replay_exact(&trace, &options, progress)
    } else {
        let unserved = Layers::collect(admission_flags(args), None)?;
        let options = FlashOptions {
            layout: layout(args)?,
            index: {
                let kind = args.index.as_deref().and_then(IndexKind::from_name);
                IndexOptions::of(kind.unwrap_or_default(), args.tier1.unwrap_or(TIER1_SHARE))
            },
            served,
            superblock_blocks: args.superblock.unwrap_or(1),
            trim: args.trim,
            throttle: args.throttle,
            timed: args.miss_latency.map(|miss| Timed {
                dram_ns: args.dram_latency as u64,
                miss_ns: miss as u64,
            }),
            reformat: args.reformat,
            size: flash_size,
            dram_bytes: args.dram_pool.unwrap_or(0),
            flash_write: config::flash_write(&unserved)?,
            admission: config::admission(&unserved)?,
            block_bytes: args.block_size,
            device: match args.device.to_str() {
                Some("sim") => ReplayDevice::Sim,
                _ => ReplayDevice::Path(PathBuf::from(&args.device)),
            },
            rules,
        };
        replay_flash(&trace, &options, progress)
    };
    let mut report = result.map_err(sim_error)?;
    report.settings.object_size_is_assumed =
        report.settings.object_size.is_some() && args.object_size.is_none();
    Ok(report)
}

fn write_timeline(path: &std::path::Path, timeline: &[(u64, u64, u64)]) -> std::io::Result<()> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    for (second, sent, asked) in timeline {
        writeln!(file, "{second},{sent},{asked}")?;
    }
    file.flush()
}

impl ReplayArgs {
    fn layout(&self) -> &str {
        self.layout.as_deref().unwrap_or("ripq")
    }

    /// Whether the cache is to be what `serve` makes of the settings.
    fn is_served(&self) -> bool {
        let has_dram = self.dram.as_deref().is_some_and(|dram| dram.trim() != "0");
        self.config.is_some() || has_dram
    }
}

/// A flag as `serve` takes it.
fn given(value: &Option<impl ToString>) -> Option<Vec<String>> {
    value.as_ref().map(|value| vec![value.to_string()])
}

/// The flags that say what is let onto flash.
fn admission_flags(args: &ReplayArgs) -> Settings {
    Settings {
        flash_admit: given(&args.flash_admit),
        flash_admit_size_max: given(&args.flash_admit_size_max),
        flash_admit_ttl_min: given(&args.flash_admit_ttl_min),
        flash_write_budget: given(&args.flash_write_budget),
        flash_write: given(&args.flash_write),
        ..Settings::default()
    }
}

/// What `serve` makes of the settings, and the size of its flash tier.
fn as_served(args: &ReplayArgs) -> anyhow::Result<(AsServed, CacheSize)> {
    let settings = Settings {
        dram: given(&args.dram),
        layout: given(&args.layout),
        policy: given(&args.policy),
        alpha: given(&args.alpha),
        theta: given(&args.theta),
        index: given(&args.index),
        block_size: given(&args.block_size),
        max_item_size: given(&args.max_item_size),
        ..admission_flags(args)
    };
    let layers = Layers::collect(settings, args.config.as_deref())?;
    let flags = Flags {
        reformat: true,
        ..Flags::default()
    };
    let config = ServeConfig::resolve(&layers, &flags)?;
    let size = match (args.flash_size.first(), &args.config) {
        (Some(size), _) => size.clone(),
        (None, None) => "10%".parse::<CacheSize>()?,
        (None, Some(_)) => format!("{}B", size_of_new(&config)?).parse::<CacheSize>()?,
    };
    Ok((of_config(config, args.tier1), size))
}

/// The cache that `serve` makes of its settings, on a flash tier of any size.
pub(crate) fn of_config(config: ServeConfig, tier1: Option<f64>) -> AsServed {
    AsServed(Arc::new(move |capacity| {
        let mut options = options_of_empty(&config, capacity).map_err(|error| causes(&error))?;
        if let (IndexOptions::Cascade(_), Some(share)) = (options.index, tier1) {
            options.index = IndexOptions::cascade(share);
        }
        Ok(options)
    }))
}

/// Flags that were given and change nothing, each with the reason.
fn without_effect(args: &ReplayArgs) -> Vec<(&'static str, &'static str)> {
    let layout = args.layout();
    let is_sim = args.device == *"sim";
    let is_cascade = args.index.as_deref() == Some("cascade");
    let is_served = args.is_served() && layout != "exact";
    let mut flags = Vec::new();
    let mut note = |is_given: bool, flag, has_effect: bool, why| {
        if is_given && !has_effect {
            flags.push((flag, why));
        }
    };
    let has_queue = matches!(layout, "ripq" | "sipq");
    let (on_ripq, on_flash) = ("but with --layout ripq", "with --layout exact");
    note(
        args.alpha.is_some(),
        "--alpha",
        layout == "ripq" || is_served,
        on_ripq,
    );
    note(
        args.theta.is_some(),
        "--theta",
        has_queue || is_served,
        "but with --layout ripq or sipq",
    );
    let is_flash = layout != "exact";
    note(args.block_size.is_some(), "--block-size", is_flash, on_flash);
    note(args.dram.is_some(), "--dram", is_flash, on_flash);
    note(args.config.is_some(), "--config", is_flash, on_flash);
    let unserved = "but with --dram or --config";
    let has_dram = is_served || args.dram_pool.is_some() && is_flash;
    note(
        args.flash_write.is_some(),
        "--flash-write",
        has_dram,
        "without DRAM",
    );
    note(args.dram_pool.is_some(), "--dram-pool", is_flash, on_flash);
    for (is_given, flag) in [
        (args.flash_admit.is_some(), "--flash-admit"),
        (args.flash_admit_size_max.is_some(), "--flash-admit-size-max"),
        (args.flash_write_budget.is_some(), "--flash-write-budget"),
        (args.timeline.is_some(), "--timeline"),
    ] {
        note(is_given, flag, is_flash, on_flash);
    }
    note(
        args.flash_admit_ttl_min.is_some(),
        "--flash-admit-ttl-min",
        false,
        "in a replay: no object of a trace expires",
    );
    note(
        args.max_item_size.is_some(),
        "--max-item-size",
        is_served,
        unserved,
    );
    note(!is_sim, "--device", is_flash, on_flash);
    note(
        args.reformat,
        "--reformat",
        is_flash && !is_sim,
        "but with a flash layout and --device PATH",
    );
    note(
        args.max_object_size.is_some(),
        "--max-object-size",
        !is_flash,
        "but with --layout exact",
    );
    let (has_drive, no_drive) = (is_flash && is_sim, "but with a flash layout and --device sim");
    note(args.superblock.is_some(), "--superblock", has_drive, no_drive);
    let is_none = args.superblock == Some(0);
    let no_drive = if has_drive {
        "with --superblock 0"
    } else {
        no_drive
    };
    note(args.trim, "--trim", has_drive && !is_none, no_drive);
    note(
        args.tier1.is_some(),
        "--tier1",
        is_flash && is_cascade || is_served,
        "but with --index cascade",
    );
    flags
}

/// Refuses what is not built, and values that no layout takes.
fn check_built(args: &ReplayArgs) -> anyhow::Result<()> {
    if let Some(share) = args.tier1.filter(|share| !(*share > 0.0 && *share <= 1.0)) {
        return Err(usage(format!("--tier1 {share}: not a share above 0, up to 1")));
    }
    LayoutOptions::new(LayoutName::Ripq, None, args.alpha, args.theta)
        .map_err(|error| usage(error.to_string()))?;
    let index = args.index.as_deref().unwrap_or("auto");
    match IndexKind::from_name(index) {
        None if index == "auto" => {}
        None => {
            let names = IndexKind::names();
            return Err(usage(format!("--index `{index}`: no such index (auto, {names})")));
        }
        Some(IndexKind::Cascade) if args.layout() == "exact" => {
            return Err(usage("--index cascade with --layout exact: that has no index"));
        }
        Some(_) => {}
    }
    if args.throttle.is_some() && args.layout() == "exact" {
        return Err(usage("--throttle with --layout exact: that has no device"));
    }
    if args.miss_latency.is_some() && args.device != *"sim" {
        return Err(usage(
            "--miss-latency with --device PATH: response times are told of --device sim alone",
        ));
    }
    Ok(())
}

fn layout(args: &ReplayArgs) -> anyhow::Result<LayoutOptions> {
    let name: LayoutName = args.layout().parse().map_err(|_| {
        usage(format!(
            "--layout `{}`: no such layout (exact, {})",
            args.layout(),
            LayoutName::names()
        ))
    })?;
    LayoutOptions::new(name, args.policy.as_deref(), args.alpha, args.theta)
        .map_err(|error| usage(error.to_string()))
}

fn missing_sizes(args: &ReplayArgs, is_exact: bool) -> anyhow::Result<MissingSizes> {
    if let Some(path) = &args.sizes {
        let sizes = SizeDistribution::open(path).map_err(trace_error)?;
        return Ok(MissingSizes::Drawn(Arc::new(sizes)));
    }
    match args.object_size {
        Some(0) => Err(usage("--object-size `0`: an object has at least 1 byte")),
        Some(size) => Ok(MissingSizes::Fixed(size)),
        None if is_exact => Ok(MissingSizes::Unit),
        None => Ok(MissingSizes::Fixed(OBJECT_BYTES)),
    }
}

/// What the user asked for in vain is usage, under the flag that alone is at fault where there is one.
pub(crate) fn sim_error(error: SimError) -> anyhow::Error {
    match (error.flag(), error) {
        (_, SimError::Ftl(error)) => usage(format!("--superblock: {error}; 0 is no drive")),
        (Some(flag), error) => usage(format!("{flag}: {error}")),
        (None, error) => judged(error, SimError::is_usage),
    }
}

/// The same for a trace.
pub fn trace_error(error: TraceError) -> anyhow::Error {
    judged(error, TraceError::is_usage)
}

/// Shows how far a replay has come.
pub(crate) fn show(bar: &Bar, at: ReplayProgress) {
    bar.show(at.progress.done, at.progress.total);
    if at.passes > 1 {
        bar.name(format!("pass {} of {}", at.pass, at.passes));
    }
}
