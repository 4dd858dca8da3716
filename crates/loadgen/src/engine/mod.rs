//! The event loop of one thread: sockets that do not block, no task per connection, no allocation per request.
//!
//! A turn of the loop starts what is due, hands the requests of all connections to the kernel, waits, and works off
//! what came. The clock is read twice a turn: once before sending, which stamps the requests of the turn, and once
//! after waking, which is when their replies are said to have come.

mod client;
mod connection;
mod dial;
mod epoll;
mod feed;
mod phase;
mod receive;
mod uring;
mod worker;

pub use client::Shared;
pub use feed::Feed;
pub use phase::{Finished, Pace, Phase, Progress, WorkerOptions};
pub use worker::Worker;
pub(crate) use worker::nanoseconds;

use crate::error::LoadError;
use serde::Serialize;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// What the event loop stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// One system call per turn for all sends and receives.
    IoUring,
    /// One system call per turn, one per send and one per receive.
    Epoll,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::IoUring => "io_uring",
            Backend::Epoll => "epoll",
        })
    }
}

impl Backend {
    /// io_uring where the kernel has what is needed, else epoll.
    pub fn detect() -> Self {
        match uring::probe() {
            Ok(()) => Backend::IoUring,
            Err(_) => Backend::Epoll,
        }
    }
}

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

/// Sockets, and the buffers of what is to be sent.
trait Transport {
    /// Takes a connected socket as connection `conn` and receives from it.
    fn open(&mut self, conn: usize, socket: OwnedFd) -> io::Result<()>;

    /// Ends a connection. [`Sink::closed`] follows in a later turn.
    fn close(&mut self, conn: usize);

    /// Where requests of an open connection are put.
    fn out(&mut self, conn: usize) -> &mut Vec<u8>;

    /// Sends what is in the buffer, now or when what was sent before has gone; failures are told by
    /// [`Sink::closed`].
    fn flush(&mut self, conn: usize);

    /// Waits, and hands over what came. Whether anything did.
    fn turn(&mut self, wait: Wait, sink: &mut impl Sink) -> io::Result<bool>;
}

/// Who works off what comes.
trait Sink {
    /// The wait is over.
    fn woke(&mut self);

    /// Bytes have come; replies to them may be put into `out`. Whether the connection is to be kept.
    fn data(&mut self, conn: usize, bytes: &[u8], out: &mut Vec<u8>) -> bool;

    /// The connection is gone, and was if not closed by us ended for this reason (none: by the other side).
    fn closed(&mut self, conn: usize, error: Option<io::Error>);
}

/// Runs a worker through the phases that `next_phase` gives, on these connected sockets.
///
/// # Errors
/// The event loop's own, and those of reading a trace. Connections that fail are counted and made again.
pub fn run(
    backend: Backend,
    worker: &mut Worker,
    sockets: Vec<OwnedFd>,
    next_phase: &mut dyn FnMut() -> Option<Phase>,
) -> Result<(), LoadError> {
    match backend {
        Backend::IoUring => {
            let transport = uring::UringTransport::new(sockets.len(), worker.receive_bytes());
            run_with(transport.map_err(LoadError::Loop)?, worker, sockets, next_phase)
        }
        Backend::Epoll => {
            let transport = epoll::EpollTransport::new(sockets.len(), worker.receive_bytes());
            run_with(transport.map_err(LoadError::Loop)?, worker, sockets, next_phase)
        }
    }
}

fn run_with(
    mut transport: impl Transport,
    worker: &mut Worker,
    sockets: Vec<OwnedFd>,
    next_phase: &mut dyn FnMut() -> Option<Phase>,
) -> Result<(), LoadError> {
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
