//! What each command does to the cache, and what it answers. No sockets: replies go to an [`Output`].

mod exptime;
mod get;
mod meta;
mod modify;
mod output;
mod stats;
mod store;

pub(crate) use get::{Ask, Asks};
pub(crate) use output::Output;

use crate::counters::{Counters, Operation, WorkerStats};
use crate::parse::{Command, Key, MAX_KEY_BYTES};
use crate::server::Shared;
use pumice::{Cx, ObjectCache};
use pumice_device::Device;
use std::rc::Rc;
use std::sync::Arc;

/// What the door answers to `version`: the level of the protocol that it speaks, as clients derive what they may use
/// from it, and its own.
pub(crate) const VERSION: &str = concat!("1.6.18-pumice-", env!("CARGO_PKG_VERSION"));

const NO_MEMORY: &str = "SERVER_ERROR out of memory storing object\r\n";

/// Whether the connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Continue,
    Close,
}

/// Executes the commands of one worker's connections.
pub(crate) struct Executor<D: Device + Clone> {
    pub(crate) cx: Rc<Cx<D>>,
    pub(crate) cache: Arc<ObjectCache<D>>,
    pub(crate) shared: Arc<Shared>,
    /// The worker's number.
    pub(crate) index: usize,
}

impl<D: Device + Clone> Executor<D> {
    pub(crate) fn stats(&self) -> &WorkerStats {
        self.shared.stats.worker(self.index)
    }

    fn counters(&self) -> &Counters {
        &self.stats().counters
    }

    fn now_secs(&self) -> u32 {
        self.cx.clock.now_secs()
    }

    pub(crate) fn monotonic_ns(&self) -> u64 {
        self.cx.clock.monotonic_ns()
    }

    /// Counts the latency of operations.
    pub(crate) fn record(&self, operation: Operation, ns: u64, count: u64) {
        self.stats().latency[operation as usize].record(ns, count);
    }

    /// Executes a command that never waits, or returns false.
    pub(crate) fn execute_now(
        &self,
        command: &Command<'_>,
        output: &mut Output<D::Buf>,
    ) -> Option<(Flow, Operation)> {
        let operation = match command {
            Command::Store(store) if store::is_immediate(store) => {
                self.set(store, output);
                Operation::Set
            }
            Command::FlushAll { delay, noreply } => {
                self.counters().cmd_flush.add(1);
                let at = exptime::flush_time(*delay, self.now_secs());
                self.cache.flush_all(&self.cx, at);
                output.unless(*noreply, "OK\r\n");
                Operation::Other
            }
            Command::Verbosity { noreply } => {
                output.unless(*noreply, "OK\r\n");
                Operation::Other
            }
            Command::Version => {
                output.text("VERSION ");
                output.text(VERSION);
                output.text("\r\n");
                Operation::Other
            }
            Command::Stats(what) => {
                self.statistics(*what, output);
                Operation::Other
            }
            Command::Shutdown => {
                output.text("ERROR: shutdown not enabled\r\n");
                Operation::Other
            }
            Command::MetaNoop => {
                output.text("MN\r\n");
                Operation::Other
            }
            Command::Quit => return Some((Flow::Close, Operation::Other)),
            _ => return None,
        };
        Some((Flow::Continue, operation))
    }

    /// Executes a command that may have to read flash first. Commands that never wait, and reads that belong into a
    /// run ([`Asks`]), are executed elsewhere.
    pub(crate) async fn execute(&self, command: Command<'_>, output: &mut Output<D::Buf>) -> Operation {
        match command {
            Command::Store(store) => {
                self.store(store, output).await;
                Operation::Set
            }
            Command::TooLarge(large) => {
                self.too_large(large, output).await;
                Operation::Set
            }
            Command::Delete(delete) => {
                self.delete(delete, output).await;
                Operation::Delete
            }
            Command::MetaDelete(delete) => {
                self.meta_delete(delete, output).await;
                Operation::Delete
            }
            Command::Delta(delta) => {
                self.delta(delta, output).await;
                Operation::Other
            }
            Command::Touch(touch) => {
                self.touch(touch, output).await;
                Operation::Other
            }
            Command::Get(get) => {
                self.get_and_touch(get, output).await;
                Operation::Other
            }
            Command::MetaGet(get) => {
                self.meta_get_and_touch(get, output).await;
                Operation::Other
            }
            _ => Operation::Other,
        }
    }
}

/// Room for a decoded key.
fn scratch() -> [u8; MAX_KEY_BYTES] {
    [0; MAX_KEY_BYTES]
}

/// Writes the flags of a meta reply that only repeat the request: the key and the opaque.
fn echo<B: pumice_device::Buffer>(output: &mut Output<B>, letter: u8, argument: &[u8], key: &Key<'_>) {
    match letter {
        b'k' => {
            output.text(" k");
            output.text(key.token());
            if key.is_base64() {
                output.text(" b");
            }
        }
        b'O' => {
            output.text(" O");
            output.text(argument);
        }
        _ => {}
    }
}
