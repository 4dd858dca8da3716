//! What each command does to the cache, and what it answers. No sockets: replies go to an [`Output`].

mod exptime;
mod get;
mod key_dump;
mod marks;
mod meta;
mod meta_get;
mod modify;
mod output;
mod stats;
mod store;

pub(crate) use get::Ask;
pub(crate) use key_dump::line as key_dump_line;
pub(crate) use meta_get::MetaChange;
pub(crate) use output::Output;

use crate::budget::Share;
use crate::counters::{Counters, Operation, WorkerStats};
use crate::parse::{Command, Exptime, Key, MAX_KEY_BYTES, MetaRequest};
use crate::shared::Shared;
use pumice::{Action, Cx, Object, ObjectCache, Outcome, Reads};
use pumice_device::Device;
use std::rc::Rc;
use std::sync::Arc;

/// What the door answers to `version`: the level of the protocol that it speaks, as clients derive what they may use
/// from it. Nothing else, since they take it for numbers with points between.
pub(crate) const VERSION: &str = "1.6.18";

/// What a change answers that lost to others too often.
const BUSY: &str = "SERVER_ERROR too many changes to this key at once, try again\r\n";

/// Objects up to this size are changed under a share of the small lane, larger ones under one of the large lane.
const SMALL_CHANGE_BYTES: u64 = 16 << 10;

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

    /// Counts a connection that is closed since it speaks another protocol.
    pub(crate) fn refuse_protocol(&self, protocol: &str) {
        self.counters().foreign_protocols.add(1);
        if self.shared.foreign_said.is_due() {
            tracing::warn!("a client speaks {protocol}: closed; foreign_protocols counts them all");
        }
    }

    fn now_secs(&self) -> u32 {
        self.cx.clock.now_secs()
    }

    /// What an exptime means now. The clock is only read where it matters.
    fn expiry(&self, exptime: Exptime) -> u32 {
        match exptime {
            Exptime(0) => 0,
            some => exptime::absolute(some, self.now_secs()),
        }
    }

    pub(crate) fn monotonic_ns(&self) -> u64 {
        self.cx.clock.monotonic_ns()
    }

    /// Counts the latency of operations.
    pub(crate) fn record(&self, operation: Operation, ns: u64, count: u64) {
        self.stats().latency[operation as usize].record(ns, count);
    }

    /// A conditional change, within the budgets: as [`ObjectCache::update`]. `value` says whether `decide` looks at the value.
    ///
    /// Returns the share with it, for as long as the object that `decide` saw is kept. The caller holds no share.
    async fn change<F>(&self, key: &[u8], value: bool, mut decide: F) -> (Outcome, Share)
    where
        F: FnMut(Option<&Object<D::Buf>>) -> Action,
    {
        let output = &self.shared.budgets.output;
        let mut reads = Reads {
            value,
            bytes_max: SMALL_CHANGE_BYTES,
        };
        // The old value and the new one.
        let mut share = output.take(2 * SMALL_CHANGE_BYTES as usize).await;
        loop {
            let outcome = self.cache.update(&self.cx, key, reads, &mut decide).await;
            let Outcome::NeedsMemory { bytes } = outcome else {
                return (outcome, share);
            };
            drop(share);
            let twice = usize::try_from(bytes.saturating_mul(2)).unwrap_or(usize::MAX);
            share = output.take(twice).await;
            reads.bytes_max = bytes;
        }
    }

    /// Executes a command that never waits, or returns false.
    pub(crate) fn execute_now(
        &self,
        command: &Command<'_>,
        output: &mut Output<D::Buf>,
    ) -> Option<(Flow, Operation)> {
        match command {
            Command::Store(store) if store::is_immediate(store) => {
                self.set(store, output);
                return Some((Flow::Continue, Operation::Set));
            }
            Command::FlushAll { delay, noreply } => {
                self.counters().cmd_flush.add(1);
                let at = exptime::flush_time(*delay, self.now_secs());
                self.cache.flush_all(&self.cx, at);
                output.unless(*noreply, "OK\r\n");
            }
            Command::Verbosity { noreply } => output.unless(*noreply, "OK\r\n"),
            Command::Version => output.text(format!("VERSION {VERSION}\r\n")),
            Command::Stats(what) => self.statistics(*what, output),
            Command::Shutdown => output.text("ERROR: shutdown not enabled\r\n"),
            Command::MetaNoop => output.text("MN\r\n"),
            Command::MetaDebug(debug) => self.meta_debug(*debug, output),
            Command::Quit => return Some((Flow::Close, Operation::Other)),
            Command::Http => {
                // As memcached does: whoever has a browser or a server send a request here is not to have its body executed.
                self.refuse_protocol("HTTP");
                return Some((Flow::Close, Operation::Other));
            }
            _ => return None,
        }
        Some((Flow::Continue, Operation::Other))
    }

    /// Executes a command that may have to read flash first. Commands that never wait, and reads that belong into a
    /// run ([`Ask`]), are executed elsewhere.
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
            Command::MetaDelta(delta) => {
                self.meta_delta(delta, output).await;
                Operation::delta(delta.up)
            }
            Command::Delta(delta) => {
                self.delta(delta, output).await;
                Operation::delta(delta.up)
            }
            Command::Touch(touch) => {
                self.touch(touch, output).await;
                Operation::Touch
            }
            Command::MetaGet(get) => self.meta_get_changing(MetaChange::new(get), output).await,
            _ => Operation::Other,
        }
    }
}

/// Room for a decoded key.
fn scratch() -> [u8; MAX_KEY_BYTES] {
    [0; MAX_KEY_BYTES]
}

/// Writes how long an object has to live, as meta replies have it.
fn ttl<B: pumice_device::Buffer>(expiry: u32, now: impl Fn() -> u32, output: &mut Output<B>) {
    if expiry == 0 {
        output.text(" t-1");
    } else {
        output.text(" t");
        output.number(u64::from(expiry.saturating_sub(now())));
    }
}

/// Writes a meta reply that says nothing of an object.
fn bare<B: pumice_device::Buffer>(code: &str, request: &MetaRequest<'_>, output: &mut Output<B>) {
    output.text(code);
    for (letter, argument) in request.flags.iter() {
        echo(output, letter, argument, &request.key);
    }
    output.text("\r\n");
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
