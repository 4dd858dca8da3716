//! The event loop of one thread: sockets that do not block, no task per connection, no allocation per request.
//!
//! A turn of the loop starts what is due, hands the requests of all connections to the kernel, waits, and works off
//! what came. The clock is read twice a turn: once before sending, which stamps the requests of the turn, and once
//! after waking, which is when their replies are said to have come.

mod client;
mod connection;
mod dial;
mod feed;
mod phase;
mod sockets;
mod worker;

pub use client::Shared;
pub use feed::Feed;
pub use phase::{Finished, Pace, Phase, Progress, WorkerOptions};
pub use worker::Worker;
pub(crate) use worker::nanoseconds;

use crate::error::LoadError;
use sockets::Sockets;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// How long a turn waits.
#[derive(Clone, Copy, Debug)]
enum Wait {
    /// For anything, and at most about [`TICK`].
    Tick,
    /// For anything, and at most this long.
    For(Duration),
    /// Not at all.
    Poll,
}

/// How often time-outs are looked for and progress is shown.
const TICK: Duration = Duration::from_millis(20);

/// Runs a worker through the phases that `next_phase` gives, on these connected sockets.
///
/// # Errors
/// The event loop's own, and those of reading a trace. Connections that fail are counted and made again.
pub fn run(
    worker: &mut Worker,
    sockets: Vec<OwnedFd>,
    next_phase: &mut dyn FnMut() -> Option<Phase>,
) -> Result<(), LoadError> {
    let mut transport = Sockets::new(sockets.len(), worker.receive_bytes()).map_err(LoadError::Loop)?;
    for (conn, socket) in sockets.into_iter().enumerate() {
        transport.open(conn, socket).map_err(LoadError::Loop)?;
    }
    while let Some(phase) = next_phase() {
        worker.begin(phase);
        loop {
            worker.start_due(&mut transport);
            worker.flush(&mut transport);
            if worker.is_done() {
                break;
            }
            let wait = worker.wait();
            let came = transport.turn(wait, worker).map_err(LoadError::Loop)?;
            worker.after_turn(came, wait);
            worker.tick(&mut transport).map_err(LoadError::Loop)?;
        }
        worker.end()?;
    }
    Ok(())
}
