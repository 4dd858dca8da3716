//! `pumice-bench model admission`: what an admission rule saves of the writes to flash, and what it costs in hits.

use clap::Args;
use pumice_admit::Rule;
use pumice_console::{Bar, judged, print};
use pumice_models::{TierCounts, TiersOptions, TiersReport, replay_tiers};
use pumice_sim::{CacheSize, MissingSizes, OpsMode, ReplayRules, SimError};
use pumice_trace::{Columns, Format, Trace, TraceError, TraceKey, TraceOptions, bytes};
use std::ffi::OsString;

/// Flags of `model admission`.
#[derive(Args, Debug)]
pub struct AdmissionArgs {
    /// A trace file or a generator, as of `pumice replay`
    #[arg(value_name = "TRACE")]
    trace: OsString,

    /// The trace's format; auto goes by content
    #[arg(long, value_name = "NAME", default_value = "auto")]
    format: String,

    /// Columns of format csv, such as time=1,id=2,size=3,header
    #[arg(long, value_name = "SPEC")]
    columns: Option<Columns>,

    /// What stands for the object: object (the key or address), or fingerprint (the content, in format fiu)
    #[arg(long, value_name = "object|fingerprint", default_value = "object")]
    key: TraceKey,

    /// Objects in DRAM: a size, or a share of the trace's footprint
    #[arg(long, value_name = "SIZE|N%")]
    dram: CacheSize,

    /// Objects on flash
    #[arg(long, value_name = "SIZE|N%")]
    flash: CacheSize,

    /// What goes to flash: all, random:F (each object with probability F), second-hit (what missed before lately)
    #[arg(long, value_name = "RULE", default_value = "all")]
    flash_admit: Rule,

    /// Larger objects do not go there
    #[arg(long, value_name = "SIZE", value_parser = size_max)]
    flash_admit_size_max: Option<u64>,

    /// Bytes of every object, where the trace has no sizes
    #[arg(long, value_name = "SIZE", value_parser = bytes::<u64>, default_value = "4KiB")]
    object_size: u64,

    /// What requests mean, as of `replay`
    #[arg(long, value_name = "lookup|as-recorded|look-aside", default_value = "lookup")]
    ops: OpsMode,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn size_max(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        0 => Err("nothing would be let onto flash".into()),
        bytes => Ok(bytes),
    }
}

/// Runs the model, and prints what it came to.
///
/// # Errors
/// Usage, or what failed.
pub fn run(args: &AdmissionArgs) -> anyhow::Result<()> {
    let format = Format::parse_or_auto(&args.format).map_err(|error| judged(error, TraceError::is_usage))?;
    let columns = args.columns.clone();
    let trace = Trace::new(&args.trace, TraceOptions { format, columns })
        .map_err(|error| judged(error, TraceError::is_usage))?;
    let trace = trace.with_key(args.key);
    let options = TiersOptions {
        dram: args.dram.clone(),
        flash: args.flash.clone(),
        rule: args.flash_admit,
        object_bytes_max: args.flash_admit_size_max.unwrap_or(0),
        rules: ReplayRules {
            ops: args.ops,
            missing_sizes: MissingSizes::Fixed(args.object_size),
            ..ReplayRules::default()
        },
    };
    let bar = Bar::new("replaying");
    let report = replay_tiers(&trace, &options, &mut |at| {
        bar.name(format!("replaying, pass {} of {}", at.pass, at.passes));
        bar.show(at.progress.done, at.progress.total);
    });
    bar.clear();
    print(
        args.json,
        &report.map_err(|error| judged(error, SimError::is_usage))?,
        lines,
    )
}

/// The figures for people.
fn lines(report: &TiersReport) -> String {
    let mut lines = vec![format!(
        "{}: {} {} in DRAM above {} on flash, exact LRU, {} (in DRAM: {} bytes)",
        report.trace, report.dram, report.unit, report.flash, report.rule, report.rule_bytes
    )];
    for (what, counts) in [("whole", &report.whole), ("second half", &report.second_half)] {
        let share = |count: u64| count as f64 / counts.lookups.max(1) as f64 * 100.0;
        let TierCounts {
            dram_hits,
            flash_hits,
            written_objects,
            written_bytes,
            ..
        } = *counts;
        lines.push(format!(
            "{what:12} hits {:6.2} % (DRAM {:6.2}, flash {:6.2}), {written_objects} objects of {written_bytes} bytes written",
            share(dram_hits + flash_hits),
            share(dram_hits),
            share(flash_hits),
        ));
    }
    let figures = report.admission.iter().filter(|(_, value)| **value > 0);
    let figures: Vec<String> = figures.map(|(name, value)| format!("{name} {value}")).collect();
    lines.push(figures.join(", "));
    lines.join("\n")
}
