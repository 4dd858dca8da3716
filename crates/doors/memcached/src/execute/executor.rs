//! What all commands are executed with: the cache, the budgets, the counters, and the replies that several give.

use super::exptime;
use super::frame::Said;
use super::output::Output;
use crate::counters::{Counters, Operation, WorkerStats};
use crate::parse::{Exptime, Key, MAX_KEY_BYTES, MetaRequest, Status};
use crate::recording::Event;
use crate::shared::Shared;
use pumice::{Action, Cx, Object, ObjectCache, Outcome, Permits};
use pumice_device::Device;
use pumice_net::{Budget, Share};
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

/// What a change answers that lost to others too often.
pub(super) const BUSY: Said = Said {
    text: "SERVER_ERROR too many changes to this key at once, try again\r\n",
    status: Status::Busy,
};

/// Nobody keeps a number in more bytes.
pub(super) const NUMBER_BYTES_MAX: usize = 16 << 10;

pub(super) const NO_MEMORY: Said = Said {
    text: "SERVER_ERROR out of memory storing object\r\n",
    status: Status::NoMemory,
};

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

    pub(super) fn counters(&self) -> &Counters {
        &self.stats().counters
    }

    /// Counts a connection that is closed since it speaks another protocol.
    pub(crate) fn refuse_protocol(&self, protocol: &str) {
        self.counters().foreign_protocols.add(1);
        if self.shared.foreign_said.is_due() {
            tracing::warn!("a client speaks {protocol}: closed; foreign_protocols counts them all");
        }
    }

    /// Tells of a request, if somebody records.
    pub(super) fn tell(&self, key: &[u8], event: Event) {
        let recordings = &self.shared.recordings;
        if recordings.is_on() {
            recordings.tell(self.index, key, event, self.now_secs());
        }
    }

    pub(super) fn now_secs(&self) -> u32 {
        self.cx.clock.now_secs()
    }

    /// What an exptime means now. The clock is only read where it matters.
    pub(super) fn expiry(&self, exptime: Exptime) -> u32 {
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

    /// A conditional change, within the budgets: as [`ObjectCache::update`].
    ///
    /// Returns the share with it, for as long as the object that `decide` saw is kept. The caller holds no share.
    pub(super) async fn change<F>(&self, key: &[u8], decide: F) -> (Outcome, Share)
    where
        F: FnMut(Option<&Object<D::Buf>>) -> Action,
    {
        self.change_more(key, false, decide).await
    }

    /// The same. With `had_share` the connection had a share since it was read from last, and takes those of the change as
    /// [`Budget::take_more`](pumice_net::Budget::take_more) does.
    pub(super) async fn change_more<F>(&self, key: &[u8], had_share: bool, decide: F) -> (Outcome, Share)
    where
        F: FnMut(Option<&Object<D::Buf>>) -> Action,
    {
        let mut shares = Shares {
            budget: &self.shared.budgets.output,
            had_share,
        };
        let Ok(changed) = (self.cache)
            .update_within(&self.cx, key, &mut shares, decide)
            .await;
        changed
    }
}

/// Shares for a change: of the old value and the new one.
struct Shares<'b> {
    budget: &'b Budget,
    had_share: bool,
}

impl Permits for Shares<'_> {
    type Permit = Share;
    type Refusal = Infallible;

    async fn take(&mut self, bytes: usize) -> Result<Share, Infallible> {
        Ok(match self.had_share {
            true => self.budget.take_more(2 * bytes).await,
            false => self.budget.take(2 * bytes).await,
        })
    }
}

/// Room for a decoded key.
pub(super) fn scratch() -> [u8; MAX_KEY_BYTES] {
    [0; MAX_KEY_BYTES]
}

/// Writes how long an object has to live, as meta replies have it.
pub(super) fn ttl<B: pumice_device::Buffer>(expiry: u32, now: impl Fn() -> u32, output: &mut Output<B>) {
    if expiry == 0 {
        output.text(" t-1");
    } else {
        output.text(" t");
        output.number(u64::from(expiry.saturating_sub(now())));
    }
}

/// What becomes of a meta command where its reply says nothing of an object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    Done,
    Missed,
    NotFound,
    Exists,
}

/// Writes a meta reply that says nothing of an object.
pub(super) fn bare<B: pumice_device::Buffer>(code: Code, request: &MetaRequest<'_>, output: &mut Output<B>) {
    let (code, status) = match code {
        Code::Done => ("HD", Status::Done),
        Code::Missed => ("EN", Status::NotFound),
        Code::NotFound => ("NF", Status::NotFound),
        Code::Exists => ("EX", Status::Exists),
    };
    match request.frame {
        Some(frame) if status == Status::Done => return output.done(frame, 0),
        Some(frame) => return output.status(frame, status),
        None => output.text(code),
    }
    for (letter, argument) in request.flags.iter() {
        echo(output, letter, argument, &request.key);
    }
    output.text("\r\n");
}

/// Writes the flags of a meta reply that only repeat the request: the key and the opaque.
pub(super) fn echo<B: pumice_device::Buffer>(
    output: &mut Output<B>,
    letter: u8,
    argument: &[u8],
    key: &Key<'_>,
) {
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
