//! The `pumice` program, as a library of one function, so that what hands any text to its settings can call them.
//!
//! Exit status: 0 done, 1 failed, 2 bad usage, or a start that would lose the only copy of something. An error says on stderr what was wrong, where, and what to do.

mod advise;
mod inspect;
mod replay;
mod source;
mod times;
mod trace;

use clap::{Parser, Subcommand};
use pumice_blocks::OpenError;
use pumice_server::{self as server, ServeArgs, lifetime, settings, usage};
use std::io::Write;
use std::process::ExitCode;
use usage::Usage;

/// A flash cache that floats on little DRAM.
#[derive(Debug, Parser)]
#[command(
    name = "pumice",
    version = server::VERSION,
    propagate_version = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the cache server. Most options of memcached are taken as well (docs/operations.md).
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
            let said = usage::causes(&error);
            if tracing::enabled!(tracing::Level::ERROR) {
                tracing::error!("{said}");
            } else {
                // Nobody can be told where stderr is gone.
                let _ = writeln!(std::io::stderr(), "pumice: {said}");
            }
            ExitCode::from(if needs_a_person(&error) { 2 } else { 1 })
        }
    }
}

/// Whether trying again cannot help: settings that cannot be obeyed, or a start that would lose the only copy of something. Who supervises the
/// program does not start it again then.
fn needs_a_person(error: &anyhow::Error) -> bool {
    let is_only_copy = |error: &OpenError| matches!(error, OpenError::OnlyCopy(_));
    error.is::<Usage>() || error.downcast_ref().is_some_and(is_only_copy)
}

/// Runs a command; false where it was done, and what it found is bad.
fn run(cli: Cli) -> anyhow::Result<bool> {
    match cli.command {
        Command::Inspect(args) => return inspect::run(&args),
        Command::Serve(args) => server::run(*args),
        Command::Replay(args) => replay::run(&args),
        Command::Advise(args) => advise::run(&args),
        Command::Trace(args) => trace::run(&args),
    }?;
    Ok(true)
}
