//! The log: one stream, on stderr, with a time stamp on every line.

use crate::settings::Given;
use pumice_console::usage;
use std::io::IsTerminal;
use tracing_subscriber::filter::LevelFilter;

/// Levels, each with all before it.
const LEVELS: [LevelFilter; 6] = [
    LevelFilter::OFF,
    LevelFilter::ERROR,
    LevelFilter::WARN,
    LevelFilter::INFO,
    LevelFilter::DEBUG,
    LevelFilter::TRACE,
];

/// Starts the log. Its level is that of `PUMICE_LOG`, and each `-v` raises it by one.
///
/// # Errors
/// Usage: no such format or level.
pub fn start(format: &Given<'_>, verbosity: u8) -> anyhow::Result<()> {
    let is_json = format
        .one_of(&[("text", false), ("json", true)])?
        .unwrap_or(false);
    let text = std::env::var("PUMICE_LOG").unwrap_or_else(|_| "info".to_owned());
    let base = LEVELS.iter().position(|level| level.to_string() == text);
    let base = base.ok_or_else(|| {
        usage(format!(
            "PUMICE_LOG `{text}`: expected off, error, warn, info, debug or trace"
        ))
    })?;
    // https://no-color.org: whatever its value, but for an empty one.
    let wants_color = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let level = LEVELS[(base + usize::from(verbosity)).min(LEVELS.len() - 1)];
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(wants_color && std::io::stderr().is_terminal())
        .with_target(false)
        // It would panic where stderr is gone, which nobody can be told.
        .log_internal_errors(false);
    match is_json {
        true => log.json().flatten_event(true).init(),
        false => log.init(),
    }
    std::panic::set_hook(Box::new(|info| {
        tracing::error!("{}", info.to_string().replace('\n', " "));
    }));
    Ok(())
}
