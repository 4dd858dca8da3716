//! Connects again where a connection was lost, on a thread of its own, so that the event loop does not wait.

use crate::target::Target;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

/// How long after a failed attempt the next is made.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// A request for connections, and those that were made.
#[derive(Debug)]
pub struct Dialer {
    target: Target,
    timeout: Duration,
    thread: Option<Channels>,
}

#[derive(Debug)]
struct Channels {
    wanted: Sender<usize>,
    made: Receiver<(usize, io::Result<OwnedFd>)>,
}

impl Dialer {
    /// Makes connections to `target`, each within `timeout`.
    pub fn new(target: Target, timeout: Duration) -> Self {
        Dialer {
            target,
            timeout,
            thread: None,
        }
    }

    /// Asks for connection `conn`. Failed attempts are reported and repeated until one succeeds or the dialer goes.
    pub fn want(&mut self, conn: usize) {
        let channels = self.thread.get_or_insert_with(|| {
            let (wanted, requests) = mpsc::channel();
            let (results, made) = mpsc::channel();
            let (target, timeout) = (self.target.clone(), self.timeout);
            thread::spawn(move || dial(&target, timeout, &requests, &results));
            Channels { wanted, made }
        });
        // The thread ends only after this sender.
        let _ = channels.wanted.send(conn);
    }

    /// A connection that was made, or an attempt that failed.
    pub fn poll(&self) -> Option<(usize, io::Result<OwnedFd>)> {
        self.thread.as_ref()?.made.try_recv().ok()
    }
}

fn dial(
    target: &Target,
    timeout: Duration,
    wanted: &Receiver<usize>,
    made: &Sender<(usize, io::Result<OwnedFd>)>,
) {
    while let Ok(conn) = wanted.recv() {
        loop {
            let result = target.connect(timeout);
            let failed = result.is_err();
            if made.send((conn, result)).is_err() {
                return;
            }
            if !failed {
                break;
            }
            thread::sleep(RETRY_AFTER);
        }
    }
}
