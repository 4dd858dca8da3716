//! Limits of the operating system.

use anyhow::Context;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

/// Has the system answer a write beyond the largest size of a file (`ulimit -f`) with an error. It would end the process.
pub fn outlive_large_files(runtime: &Runtime) -> anyhow::Result<()> {
    let _context = runtime.enter();
    // The handler stays when nobody listens.
    let heard = signal(SignalKind::from_raw(Signal::XFSZ.as_raw()));
    heard.map(drop).context("cannot listen for signals")
}

/// Descriptors beside those of connections: sockets, the admin door's 32 connections, the files of devices, and some for each worker's
/// event loop and its ring on each device.
fn others(threads: usize, devices: usize) -> u64 {
    64 + 2 * devices as u64 + 4 * threads as u64 * (1 + devices as u64)
}

/// Raises the limit of open files to what the connections need, as far as the system allows; warns where that is not far
/// enough, since connections are then refused early.
pub fn allow_open_files(connections: usize, threads: usize, devices: usize) {
    let needed = connections as u64 + others(threads, devices);
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return;
    }
    let allowed = limit.maximum.map_or(needed, |maximum| maximum.min(needed));
    let raised = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(allowed),
            maximum: limit.maximum,
        },
    );
    if raised.is_err() || allowed < needed {
        let current = raised.map_or(limit.current.unwrap_or(0), |()| allowed);
        tracing::warn!(
            "{} open files are allowed, {} connections need {needed}: raise the limit (ulimit -n)",
            current,
            connections,
        );
    }
}
