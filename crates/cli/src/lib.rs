//! The `pumice` program, as a library of one function, so that what hands any text to its settings can call them.
//!
//! Exit status: 0 done, 1 failed, 2 bad usage, or a start that would lose the only copy of something. An error says on stderr what was wrong, where, and what to do.

mod advise;
#[cfg(test)]
#[path = "../../server/src/documents.rs"]
mod documents;
mod familiar;
mod inspect;
mod replay;
mod serve;
mod source;
mod times;
mod trace;

use clap::{Parser, Subcommand};
use pumice_console::{causes, complain};
use serve::ServeArgs;
use std::process::ExitCode;

/// A flash cache that floats on little DRAM.
#[derive(Debug, Parser)]
#[command(
    name = "pumice",
    version = pumice_console::VERSION,
    propagate_version = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the cache server. Most options of memcached are taken as well (docs/install.md).
    Serve(Box<ServeArgs>),
    /// Replays a trace through the same code and prints what the cache would have done.
    Replay(Box<replay::ReplayArgs>),
    /// Says how much DRAM and flash to buy for the workload of a trace.
    Advise(Box<advise::AdviseArgs>),
    /// Tells what is in a trace, or writes it in another format.
    Trace(Box<trace::TraceArgs>),
    /// Says what is on a cache device, and whether all of it is as it must be. Reads only; a running server must be stopped first.
    Inspect(inspect::InspectArgs),
}

/// The program.
pub fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let said = causes(&error);
            if tracing::enabled!(tracing::Level::ERROR) {
                tracing::error!("{said}");
            } else {
                complain(format_args!("pumice: {said}"));
            }
            ExitCode::from(if pumice_server::needs_a_person(&error) {
                2
            } else {
                1
            })
        }
    }
}

/// Runs a command; false where it was done, and what it found is bad.
fn run(cli: Cli) -> anyhow::Result<bool> {
    match cli.command {
        Command::Inspect(args) => return inspect::run(&args),
        Command::Serve(args) => serve::run(*args),
        Command::Replay(args) => replay::run(&args),
        Command::Advise(args) => advise::run(&args),
        Command::Trace(args) => trace::run(&args),
    }?;
    Ok(true)
}

/// What `crates/fuzz` needs; nothing else should.
#[doc(hidden)]
pub mod fuzzing {
    use clap::Parser;
    use pumice_server::settings::Layers;

    pub use crate::familiar::Familiar;
    pub use pumice_server::objects::ServeConfig;
    pub use pumice_server::settings::Settings;
    pub use pumice_trace::{Human, Size};

    #[derive(Debug, Parser)]
    struct Words {
        #[command(flatten)]
        settings: Settings,
        #[command(flatten)]
        familiar: Familiar,
    }

    /// Settings from the text of a file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_file(text: &str) -> Result<Settings, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    /// The text of a file with these settings.
    ///
    /// # Panics
    /// Never: settings are lists of strings.
    pub fn to_file(settings: &Settings) -> String {
        toml::to_string(settings).expect("lists of strings")
    }

    /// Settings from arguments of `serve`, memcached's options among them.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn from_words(words: impl IntoIterator<Item = String>) -> Result<(Settings, Familiar), String> {
        let words = std::iter::once("serve".to_owned()).chain(words);
        let mut words = Words::try_parse_from(words).map_err(|error| error.to_string())?;
        (words.familiar.fold_into(&mut words.settings)).map_err(|error| error.to_string())?;
        Ok((words.settings, words.familiar))
    }

    /// Flags with these settings; `None` where one of them is an empty list.
    ///
    /// # Panics
    /// Never: as for [`to_file`].
    pub fn to_flags(settings: &Settings) -> Option<Vec<String>> {
        let table = toml::Table::try_from(settings).expect("lists of strings");
        let mut flags = Vec::new();
        for (name, texts) in &table {
            let texts = texts.as_array().filter(|texts| !texts.is_empty())?;
            let texts = texts.iter().filter_map(toml::Value::as_str);
            flags.extend(texts.map(|text| format!("--{name}={text}")));
        }
        Some(flags)
    }

    /// What `serve` is told by these settings and memcached's options.
    ///
    /// # Errors
    /// The first setting that makes no sense.
    pub fn resolve(settings: Settings, familiar: &Familiar) -> Result<ServeConfig, String> {
        let layers = Layers::collect(settings, None).map_err(|error| error.to_string())?;
        ServeConfig::resolve(&layers, &familiar.flags()).map_err(|error| error.to_string())
    }
}
