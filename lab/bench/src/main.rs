//! `pumice-bench`, the program of the laboratory: load for servers and devices, checks of their answers, and models in virtual time.
//!
//! It uses the public API of the rooms, and reaches a server through its sockets alone, so any server of the protocol will do. Exit status: 0 done,
//! 1 failed, or an answer was wrong, 2 bad usage.

mod device;
mod history;
mod memcached;
mod model;
mod nbd;

use clap::{Parser, Subcommand};
use pumice_console::{Usage, causes, complain};
use std::process::ExitCode;

/// That of `pumice`: models run its code.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Puts load on a server or a device, verifies what it returns, and measures; or runs a model of a cache.
#[derive(Debug, Parser)]
#[command(
    name = "pumice-bench",
    version,
    propagate_version = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Puts load on a server of the memcached text protocol, and verifies every value that it returns.
    ///
    /// Exit status 1 where a value was another key's, damaged, or older than one whose set the server had
    /// acknowledged before; where a key was found after its acknowledged delete; where replies made no sense; or where
    /// no reply came at all. Errors that the server admits to (SERVER_ERROR) and lost connections are counted.
    ///
    /// Without --rate, each connection starts the next operation when one has ended (closed loop). With it, operations
    /// arrive by a schedule whatever the server does, and their latency counts from then (open loop).
    Memcached(Box<memcached::MemcachedArgs>),

    /// Checks that everything that a memcached server answers can be explained: a history check.
    ///
    /// Many clients get, set, add, replace, delete, cas, touch, incr, append and invalidate the same keys, also while the server
    /// is stopped, killed and started again at its address. Missing is legal at any time. Exit status 1 where an answer
    /// cannot be explained by any order of the operations: a value that was replaced, deleted, expired, another key's or
    /// damaged, a change that was lost or made twice, reads that go back; where the server stopped answering; or where
    /// nothing was answered.
    History(Box<history::HistoryArgs>),

    /// Measures a file or block device: operations a second and their latency, by size, depth and mix, at random places.
    ///
    /// It goes past the page cache where it can. Numbers of a drive depend on what was written to it before, and on how long: give
    /// --seconds 60 or more for writes that last.
    Device(Box<device::DeviceArgs>),

    /// Puts load on an NBD server, and checks every sector that it reads, also through kills of the server.
    ///
    /// Each sector of 512 bytes that is written names its content. A read must find what was written and answered last, or what was under
    /// way. With --resume the server may be killed and started again: then each sector has what a FLUSH or FUA has covered or anything
    /// written later, and stays so. Exit status 1 where a sector was wrong (the first ten are explained: an older content, that of another
    /// sector, unknown bytes), a request failed, or a connection was lost and not made anew.
    ///
    /// SIGINT ends the load, a second one the pass over the range, too. Nobody else may write to the export meanwhile. A lost connection
    /// must mean that the server has stopped: one that lives on, and completes a write of before, is taken for wrong.
    ///
    /// Memory: 8 bytes for each sector of --range (with --journal 16 at the beginning and the end), and some 50 MB for what is not flushed; if
    /// that is not enough, a FLUSH is sent beyond those of --mix. One thread does it all: if it is 100 % busy, the client is what is measured.
    Nbd(Box<nbd::NbdArgs>),

    /// Runs a model of what the cache does, in virtual time.
    Model(Box<model::ModelArgs>),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Memcached(args) => memcached::run(&args),
        Command::History(args) => history::run(&args),
        Command::Device(args) => device::run(&args),
        Command::Nbd(args) => nbd::run(&args),
        Command::Model(args) => model::run(&args),
    };
    let Err(error) = done else {
        return ExitCode::SUCCESS;
    };
    complain(format_args!("pumice-bench: {}", causes(&error)));
    ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
}
