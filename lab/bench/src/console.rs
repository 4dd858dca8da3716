//! What all commands share: bad usage, errors in one line, progress, and reports on stdout.

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pumice_trace::TraceError;
use serde::Serialize;
use std::fmt;
use std::io::{IsTerminal, Write};

/// Settings that cannot be obeyed.
#[derive(Debug)]
pub struct Usage(String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// An error of bad usage.
pub fn usage(text: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Usage(text.into()))
}

/// Whether a trace cannot be read because of how it was asked for.
pub fn is_usage(error: &TraceError) -> bool {
    matches!(
        error,
        TraceError::Undetected { .. }
            | TraceError::UnknownFormat { .. }
            | TraceError::NoColumns { .. }
            | TraceError::Columns { .. }
            | TraceError::Generator { .. }
            | TraceError::ColumnsWithout { .. }
            | TraceError::NoFingerprints { .. }
            | TraceError::UnknownKey { .. }
    )
}

/// An error with its causes in one line. Many errors name their cause themselves; it is not said twice.
pub fn causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// A report as JSON, with its origin.
#[derive(Serialize)]
struct Printed<'a, R> {
    version: &'static str,
    command: Vec<String>,
    #[serde(flatten)]
    report: &'a R,
}

/// Prints a report, as one JSON object or for people.
///
/// # Errors
/// It cannot be written as JSON.
pub fn print<R: Serialize>(json: bool, report: &R, text: impl FnOnce(&R) -> String) -> anyhow::Result<()> {
    let text = match json {
        true => serde_json::to_string_pretty(&Printed {
            version: env!("CARGO_PKG_VERSION"),
            command: std::env::args_os()
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
            report,
        })
        .context("cannot write the report")?,
        false => text(report),
    };
    say(text.trim_end());
    Ok(())
}

/// A line on stdout. A reader that is gone does not want it.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Progress on a terminal; silent elsewhere.
pub struct Bar(ProgressBar);

impl Bar {
    /// Nothing is done yet.
    pub fn new() -> Self {
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(1000), target);
        let style = ProgressStyle::with_template("{prefix:<9} [{bar:40}] {msg}");
        bar.set_style(
            style
                .unwrap_or_else(|_| ProgressStyle::default_bar())
                .progress_chars("=> "),
        );
        Self(bar)
    }

    /// Shows what is being done, the share of it that is done, and a remark.
    pub fn show(&self, doing: &'static str, share: f64, remark: String) {
        self.0.set_prefix(doing);
        self.0.set_position((share * 1000.0) as u64);
        self.0.set_message(remark);
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let named = anyhow::Error::msg("b").context("a: b").context("c");
        assert_eq!(causes(&named), "c: a: b");
        let silent: anyhow::Result<()> = Err(anyhow::Error::msg("b"));
        assert_eq!(causes(&silent.context("a").unwrap_err()), "a: b");
    }
}
