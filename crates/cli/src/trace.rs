//! `pumice trace`: what is in a trace, and traces in other formats.

mod record;

use crate::replay::trace_error;
use crate::source::Source;
use clap::{Args, Subcommand};
use pumice_console::{Bar, as_json, complain, say, usage};
use pumice_trace::{ConvertOptions, Format, Human, Summary, bytes, convert};
use std::path::PathBuf;

/// Flags of `trace`.
#[derive(Args, Debug)]
pub struct TraceArgs {
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Subcommand, Debug)]
enum TraceCommand {
    /// Prints what a trace holds: requests, objects, footprint, sizes, how often objects are asked for, and writes.
    Info(InfoArgs),
    /// Writes a trace in another format.
    Convert(ConvertArgs),
    /// Records a trace of what a running memcached or Pumice is asked for, with keys replaced by salted hashes.
    Record(record::RecordArgs),
}

#[derive(Args, Debug)]
struct InfoArgs {
    #[command(flatten)]
    source: Source,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct ConvertArgs {
    #[command(flatten)]
    source: Source,

    /// The file to write, which must not be there; compressed with zstd if its name ends in .zst
    #[arg(value_name = "OUT")]
    out: PathBuf,

    /// The format to write: oracle-general, csv, time-id-size or keys-be-i64
    #[arg(long, value_name = "NAME")]
    to: String,

    /// The size written for an object, where the trace has none and the format has [default: 1]
    #[arg(long, value_name = "SIZE", value_parser = bytes::<u64>)]
    object_size: Option<u64>,
}

/// Does what `trace` is asked for.
///
/// # Errors
/// Usage, or what failed.
pub fn run(args: &TraceArgs) -> anyhow::Result<()> {
    let text = match &args.command {
        TraceCommand::Info(args) => info(args)?,
        TraceCommand::Convert(args) => converted(args)?,
        TraceCommand::Record(args) => record::run(args)?,
    };
    say(&text);
    Ok(())
}

fn info(args: &InfoArgs) -> anyhow::Result<String> {
    let trace = args.source.trace()?;
    let bar = Bar::new("reading");
    let summary = Summary::of(&trace, &mut |at| bar.show(at.done, at.total));
    bar.clear();
    let summary = summary.map_err(trace_error)?;
    args.source
        .doubt(summary.accesses.max(summary.requests), summary.objects);
    if args.json {
        as_json(&summary)
    } else {
        Ok(lines(&summary))
    }
}

/// The figures for people.
fn lines(summary: &Summary) -> String {
    let percent =
        |share: Option<f64>| share.map_or("none".to_owned(), |share| format!("{:.2} %", share * 100.0));
    let mut lines = vec![
        ("trace", format!("{}, format {}", summary.trace, summary.format)),
        ("requests", summary.requests.to_string()),
    ];
    match summary.page_bytes {
        Some(page) => {
            let pages = format!("{} accesses to pages of {}", summary.accesses, Human(page));
            let unaligned = summary.unaligned_requests.unwrap_or(0);
            lines.push((
                "pages",
                format!("{pages}; {unaligned} requests are not aligned to them"),
            ));
            lines.push(("distinct pages", summary.objects.to_string()));
        }
        None => lines.push(("objects", summary.objects.to_string())),
    }
    let bytes = |bytes: Option<u64>| {
        bytes.map_or("none: the trace has no sizes".to_owned(), |bytes| {
            format!("{bytes} bytes ({})", Human(bytes))
        })
    };
    lines.push(("footprint", bytes(summary.footprint_bytes)));
    if let (Some(accesses @ 1..), Some(objects)) =
        (summary.accesses_without_size, summary.objects_without_size)
    {
        let found =
            format!("{accesses} accesses; {objects} objects have none at all, and are not in the footprint");
        lines.push(("without size", found));
    }
    if summary.bytes_requested.is_some() {
        lines.push(("requested", bytes(summary.bytes_requested)));
    }
    if let (Some(sizes), None) = (&summary.object_size, summary.page_bytes) {
        lines.push((
            "object size",
            format!(
                "mean {:.0}, median {}, largest {} bytes",
                sizes.mean, sizes.median, sizes.largest
            ),
        ));
        lines.push((
            "percentiles",
            format!(
                "1: {}, 10: {}, 25: {}, 75: {}, 90: {}, 99: {} bytes",
                sizes.p1, sizes.p10, sizes.p25, sizes.p75, sizes.p90, sizes.p99
            ),
        ));
        if let Some(resized @ 1..) = summary.objects_resized {
            lines.push(("several sizes", format!("{resized} objects")));
        }
    }
    lines.push((
        "once",
        format!("{} of the objects", percent(summary.one_hit_share)),
    ));
    lines.push((
        "top 1 %",
        format!("{} of the accesses", percent(summary.top_1_percent_share)),
    ));
    lines.push((
        "writes",
        match summary.write_share {
            None => "unknown: the trace has no operations".to_owned(),
            share => {
                let bytes = summary.write_share_bytes.map_or(String::new(), |bytes| {
                    format!(", {} of their bytes", percent(Some(bytes)))
                });
                format!("{} of the requests{bytes}", percent(share))
            }
        },
    ));
    pumice_console::lines(14, &lines)
}

fn converted(args: &ConvertArgs) -> anyhow::Result<String> {
    let to: Format = args.to.parse().map_err(|_| {
        usage(format!(
            "--to `{}`: no such format (oracle-general, csv, time-id-size, keys-be-i64)",
            args.to
        ))
    })?;
    let trace = args.source.trace()?;
    let bar = Bar::new("converting");
    let object_size = args.object_size.unwrap_or(1);
    let options = ConvertOptions { to, object_size };
    let converted = convert(&trace, &args.out, options, &mut |at| bar.show(at.done, at.total));
    bar.clear();
    let converted = converted.map_err(trace_error)?;
    if converted.without_size > 0 && args.object_size.is_none() {
        complain(format_args!(
            "pumice: note: {} requests have no size, and are written with 1 byte; --object-size gives another size",
            converted.without_size
        ));
    }
    let mut text = format!(
        "{}: {} requests as {to}\n",
        args.out.display(),
        converted.requests
    );
    if converted.sets_without_op > 0 {
        text += &format!("{} sets are plain accesses there\n", converted.sets_without_op);
    }
    if converted.deletes_left_out > 0 {
        text += &format!("{} deletes are left out\n", converted.deletes_left_out);
    }
    if to == Format::KeysBeI64 {
        text += &format!("read it with --format {to}: keys alone do not show their format\n");
    }
    Ok(text)
}
