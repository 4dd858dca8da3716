//! The `pumice` program.
//!
//! Exit status: 0 done, 1 failed, 2 bad usage. An error says on stderr what was wrong, where, and what to do.

mod allocator;
mod bench;
mod inspect;
mod replay;
mod report;
mod serve;
mod settings;
mod size;
mod source;
mod trace;
mod usage;

use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use usage::Usage;

/// A flash cache that floats on little DRAM.
#[derive(Debug, Parser)]
#[command(name = "pumice", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the cache server.
    ///
    /// With no options at all: a file `pumice.flash` in the working directory as flash, memcached on 127.0.0.1:11211,
    /// admin on 127.0.0.1:9150.
    Serve(Box<serve::ServeArgs>),
    /// Replays a trace through the same code and prints what the cache would have done.
    Replay(Box<replay::ReplayArgs>),
    /// Puts load on a server, verifies what it returns, and measures.
    Bench(bench::BenchArgs),
    /// Tells what is in a trace, or writes it in another format.
    Trace(trace::TraceArgs),
    /// Makes a published evaluation again on given traces, as a page and a table.
    Report(report::ReportArgs),
    /// Says what is on a cache device, and whether all of it is as it must be. Reads only; a running server must be stopped first.
    Inspect(inspect::InspectArgs),
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let result = match serve::split_memcached_options(arguments) {
        Ok((words, memcached)) => run(Cli::parse_from(words), memcached),
        Err(error) => Err(error),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // Nobody can be told where stderr is gone.
            let _ = writeln!(std::io::stderr(), "pumice: {}", usage::causes(&error));
            ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
        }
    }
}

/// Runs a command; false where it was done, and what it found is bad.
fn run(cli: Cli, memcached: serve::Familiar) -> anyhow::Result<bool> {
    match cli.command {
        Command::Inspect(args) => return inspect::run(&args),
        Command::Serve(args) => serve::run(*args, memcached),
        Command::Replay(args) => replay::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Report(args) => report::run(&args),
    }?;
    Ok(true)
}
