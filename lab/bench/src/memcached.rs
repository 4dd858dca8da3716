//! `pumice-bench memcached`: load on a memcached server, ours or another's.

use clap::Args;
use pumice_console::{Bar, print, usage};
use pumice_loadgen::{LoadError, Options, Stage, Status};

/// Flags of `memcached`.
#[derive(Args, Debug)]
pub struct MemcachedArgs {
    #[command(flatten)]
    options: Options,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the load and prints the report.
///
/// # Errors
/// Usage; a server that is not there; answers that were wrong.
pub fn run(args: &MemcachedArgs) -> anyhow::Result<()> {
    let options = &args.options;
    let bar = Bar::new("preload");
    let result = pumice_loadgen::run(options, &mut |status| show(&bar, status));
    bar.clear();
    let report = result.map_err(load_error)?;
    print(args.json, &report, pumice_loadgen::text)?;
    if report.is_good() {
        return Ok(());
    }
    if report.wrong_answers > 0 {
        let kinds: Vec<String> = report
            .wrong_kinds()
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        anyhow::bail!(
            "{}: {} wrong answers: {}",
            options.target,
            report.wrong_answers,
            kinds.join(", ")
        );
    }
    anyhow::bail!("{}: no request was answered", options.target);
}

/// What the user asked for in vain is usage; what went wrong on the way is not.
pub fn load_error(error: LoadError) -> anyhow::Error {
    match error {
        LoadError::Settings(what) => usage(what),
        LoadError::Keys(ref keys) if keys.is_usage() => usage(error.to_string()),
        error => error.into(),
    }
}

fn show(bar: &Bar, status: Status) {
    let doing = match status.stage {
        Stage::Preload => "preload",
        Stage::WarmUp => "warm-up",
        Stage::Measure => "measuring",
    };
    let wrong = match status.wrong {
        0 => String::new(),
        wrong => format!(", {wrong} WRONG ANSWERS"),
    };
    let rate = format!("{:.0} requests per second{wrong}", status.requests_per_second);
    bar.name(format!("{doing}, {rate}"));
    bar.show((status.fraction * 1000.0) as u64, 1000);
}
