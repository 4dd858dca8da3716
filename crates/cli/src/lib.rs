//! The `pumice` program, as a library of one function, so that what hands any text to its settings can call them.
//!
//! Exit status: 0 done, 1 failed, 2 bad usage, or a start that would lose the only copy of something. An error says on stderr what was wrong, where, and what to do.

mod advise;
#[cfg(test)]
#[path = "../../server/src/documents.rs"]
mod documents;
mod familiar;
mod inspect;
mod plot;
mod replay;
mod serve;
mod source;
mod times;
mod trace;

use clap::{Parser, Subcommand};
#[doc(hidden)]
pub use familiar::Familiar;
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
