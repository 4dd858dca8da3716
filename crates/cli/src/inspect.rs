//! `pumice inspect`: what is on a cache device.

use clap::Args;
use pumice_inspect::{Finding, Question, inspect};
use serde_json::{Value, json};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

/// Flags of `inspect`.
#[derive(Args, Debug)]
pub struct InspectArgs {
    /// The cache: a file or a block device that `pumice serve` has used as --flash, --performance-tier or --cache
    #[arg(value_name = "PATH")]
    path: PathBuf,

    /// Read every byte that counts, and name each inconsistency with its place
    #[arg(long)]
    verify: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Of the cache of a volume: say whether this file, device or export is the volume
    #[arg(long, value_name = "PATH")]
    backing: Option<String>,
}

/// Looks at a device and prints what is there. True where no inconsistency was found.
///
/// # Errors
/// Where there is no cache at the path, or a server uses it.
pub fn run(args: &InspectArgs) -> anyhow::Result<bool> {
    let mut out = BufWriter::new(io::stdout().lock());
    let mut findings = 0;
    let question = Question {
        path: &args.path,
        verify: args.verify,
        backing: args.backing.as_deref(),
    };
    // A reader that is gone does not want what is written.
    let report = inspect(question, &mut |finding| {
        let _ = match args.json {
            true => {
                let separator = if findings == 0 { OPEN } else { "," };
                write!(out, "{separator}{}", fields(&finding))
            }
            false => writeln!(out, "{}", line(&finding)),
        };
        findings += 1;
    })?;
    let _ = match (args.json, report.inconsistencies) {
        (false, _) => write!(out, "{}", report.text),
        (true, None) => writeln!(out, "{}", report.fields),
        (true, Some(_)) => {
            // The list was opened by the first finding.
            let open = if findings == 0 { OPEN } else { "" };
            let fields = report.fields.to_string();
            writeln!(out, "{open}],{}", fields.trim_start_matches('{'))
        }
    };
    let _ = out.flush();
    Ok(report.inconsistencies.unwrap_or(0) == 0)
}

/// How the JSON object begins.
const OPEN: &str = "{\"findings\":[";

fn fields(finding: &Finding) -> Value {
    json!({
        "kind": finding.kind,
        "offset": finding.offset,
        "part": finding.part,
        "what": finding.what,
    })
}

fn line(finding: &Finding) -> String {
    let Finding { kind, part, what, .. } = finding;
    match finding.offset {
        Some(offset) => format!("{kind}: byte {offset}, {part}: {what}"),
        None => format!("{kind}: {what}"),
    }
}
