//! What the programs share where they speak with a person: bad usage, errors in one line, progress, reports on stdout, and their version.

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::fmt;
use std::io::{IsTerminal, Write};

/// The version, with the commit that it is built from behind it, if that is known.
pub const VERSION: &str = env!("VERSION_OF_PUMICE");

/// The commit that it is built from, if that is known.
pub const COMMIT: Option<&str> = option_env!("COMMIT_OF_PUMICE");

/// Settings that cannot be obeyed: what ends with exit status 2.
#[derive(Debug)]
pub struct Usage(pub String);

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

/// What a user asked for in vain is usage; what went wrong on the way is not.
pub fn judged<E: std::error::Error + Send + Sync + 'static>(
    error: E,
    is_usage: impl Fn(&E) -> bool,
) -> anyhow::Error {
    match is_usage(&error) {
        true => usage(error.to_string()),
        false => error.into(),
    }
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

/// A report as JSON, and what made it.
#[derive(Serialize)]
pub struct Printed<'a, R> {
    #[serde(flatten)]
    report: &'a R,
    version: &'static str,
    /// The commit that the program was built from, where that is known.
    commit: Option<&'static str>,
    command: Vec<String>,
}

impl<'a, R> Printed<'a, R> {
    /// Of a report of this run of the program.
    pub fn of(report: &'a R) -> Self {
        Self {
            report,
            version: env!("CARGO_PKG_VERSION"),
            commit: COMMIT,
            command: std::env::args_os()
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
        }
    }
}

/// Prints a report, as one JSON object with what made it, or for people.
///
/// # Errors
/// It cannot be written as JSON.
pub fn print<R: Serialize>(json: bool, report: &R, text: impl FnOnce(&R) -> String) -> anyhow::Result<()> {
    say(&match json {
        true => as_json(&Printed::of(report))?,
        false => text(report),
    });
    Ok(())
}

/// A value as JSON for a file or a terminal.
///
/// # Errors
/// It has no place in JSON.
pub fn as_json(value: &impl Serialize) -> anyhow::Result<String> {
    serde_json::to_string_pretty(value).context("cannot write the report")
}

/// Lines on stdout, without space at their end. A reader that is gone does not want them.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
}

/// A line on stderr. Nobody can be told where that is gone.
pub fn complain(text: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Names and what is said of each, as lines in which names have so many columns.
pub fn lines<N: fmt::Display>(columns: usize, lines: &[(N, String)]) -> String {
    let line = |(name, text): &(N, String)| format!("{name:<columns$} {text}\n");
    lines.iter().map(line).collect()
}

/// Progress on a terminal; silent elsewhere.
pub struct Bar(ProgressBar);

impl Bar {
    /// A bar for what is being done, such as "replaying".
    pub fn new(doing: &'static str) -> Self {
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let style = ProgressStyle::with_template("{msg} [{bar:40}] {percent:>3} %, {eta} left");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("=> "));
        bar.set_message(doing);
        Self(bar)
    }

    /// Says what is being done now.
    pub fn name(&self, doing: String) {
        self.0.set_message(doing);
    }

    /// Shows how far it has come; a total of 0 is not known yet.
    pub fn show(&self, done: u64, total: u64) {
        if total > 0 {
            self.0.set_length(total);
        }
        self.0.set_position(done);
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
