//! Reading commands: without a buffer while there is nothing to read, and not from a peer that says nothing for too long.

use super::budget::ByteBudget;
use super::connection::Connection;
use super::input::SMALL_REST_BYTES;
use super::look::Watch;
use pumice_device::Device;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::time::Sleep;

/// Batches of commands after which a busy connection lets others run.
const BATCHES_PER_TURN: u32 = 8;

/// What a read came to.
enum Read {
    /// So many bytes; none at the end.
    Bytes(usize),
    /// Something arrived that is no command yet, and now takes more memory than one may have without a share.
    Held,
}

/// How long a peer may say nothing. The timer is set when it first waits, and again only when that has run out: a request
/// costs a reading of the clock.
#[derive(Default)]
pub(super) struct Silence {
    since: Option<Instant>,
    timer: Option<(Duration, Pin<Box<Sleep>>)>,
}

impl Silence {
    /// The peer said something that counts.
    fn broken(&mut self) {
        self.since = Some(Instant::now());
    }

    /// Ready when nothing that counts was said for `allowance`.
    fn poll(&mut self, cx: &mut Context<'_>, allowance: Duration) -> Poll<()> {
        let deadline = *self.since.get_or_insert_with(Instant::now) + allowance;
        if self
            .timer
            .as_ref()
            .is_none_or(|(set_for, _)| *set_for != allowance)
        {
            let timer = tokio::time::sleep_until(deadline.into());
            self.timer = Some((allowance, Box::pin(timer)));
        }
        let Some((_, timer)) = &mut self.timer else {
            return Poll::Pending;
        };
        while timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
            timer.as_mut().reset(deadline.into());
        }
        Poll::Pending
    }
}

impl<D: Device + Clone> Connection<D> {
    /// Reads at least one byte into the buffer; false at the end. An idle connection waits without a buffer, and one that
    /// waits for more than the rest of a small command waits with a share of the budget.
    pub(super) async fn read(&mut self, whole: usize, batches: &mut u32) -> io::Result<bool> {
        self.hold_input(whole).await;
        loop {
            if self.skip > 0 {
                // Nothing of a refused value is kept.
                self.pass_over(0);
            }
            let read = poll_fn(|cx| self.poll_read_in_time(cx, whole)).await?;
            let count = match read {
                Read::Bytes(0) => return Ok(false),
                Read::Bytes(count) => count,
                Read::Held => {
                    self.hold_input(whole).await;
                    continue;
                }
            };
            if let Some((_, watch)) = &mut self.share {
                watch.moved(count);
            }
            if whole > 0 || self.skip > 0 {
                // A value is not a command yet, but it is not silence either.
                self.heard();
            }
            self.input.filled(count);
            self.executor().stats().counters.bytes_read.add(count as u64);
            self.pass_over(0);
            *batches += 1;
            if *batches >= BATCHES_PER_TURN {
                *batches = 0;
                tokio::task::yield_now().await;
            }
            if !self.input.is_empty() {
                return Ok(true);
            }
        }
    }

    /// Takes a share for what is received and about to be, if that is more than the rest of a small command.
    async fn hold_input(&mut self, whole: usize) {
        if !self.holds_much() {
            self.share = None;
            return;
        }
        let worker = Rc::clone(&self.worker);
        let shared = &worker.executor.shared;
        let budget = &shared.budgets.receive.small;
        let bytes = self.input.size_while_waiting(whole) + self.stream.received_memory();
        let bytes = bytes.min(budget.total_bytes());
        match &mut self.share {
            Some((share, _)) if share.bytes() >= bytes => {}
            // Whoever waits for a share holds none.
            Some((share, watch)) => {
                let asked = Instant::now();
                *share = ByteBudget::none(budget);
                *share = budget.take(bytes).await;
                watch.kept_waiting(asked.elapsed());
            }
            None => {
                let share = budget.take(bytes).await;
                self.share = Some((share, Watch::start(shared.config.peer_timeout)));
            }
        }
    }

    /// Whether more is received than the beginning of a small command.
    fn holds_much(&self) -> bool {
        self.input.bytes().len() + self.stream.received_bytes() > SMALL_REST_BYTES
    }

    /// Says that the peer sent a command.
    pub(super) fn heard(&mut self) {
        if self.executor().shared.config.idle_timeout.is_some() {
            self.silence.broken();
        }
    }

    /// Reads into the buffer. While nothing is there, the buffer is given back as far as that can be.
    fn poll_read(&mut self, cx: &mut Context<'_>, whole: usize) -> Poll<io::Result<Read>> {
        let buffers = &self.worker.buffers;
        let room = self.input.room(whole, buffers);
        match self.stream.poll_read(cx, room, buffers) {
            Poll::Pending => {}
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => cx.waker().wake_by_ref(),
            Poll::Ready(read) => {
                // Whatever comes of a handshake that is not done, its end or an error, is no success.
                if self.stream.is_handshaking() {
                    self.executor().stats().counters.ssl_handshake_errors.add(1);
                }
                return Poll::Ready(read.map(Read::Bytes));
            }
        }
        if self.worker.stopping.get() {
            // What has arrived counts as sent before the stop.
            return Poll::Ready(match self.stream.read_arrived(room, buffers) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Read::Bytes(0)),
                read => read.map(Read::Bytes),
            });
        }
        self.input.release(buffers);
        self.output.release();
        if self.share.is_none() && self.holds_much() {
            return Poll::Ready(Ok(Read::Held));
        }
        if let Err(error) = self.check_silence(cx) {
            return Poll::Ready(Err(error));
        }
        let mut waker = self.waker.borrow_mut();
        if !waker.will_wake(cx.waker()) {
            waker.clone_from(cx.waker());
        }
        Poll::Pending
    }

    /// Fails where the peer has said nothing for too long; else lets the task be woken when that is so.
    fn check_silence(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let config = &self.worker.executor.shared.config;
        let is_handshaking = self.stream.is_handshaking();
        let allowance = match is_handshaking {
            true => Some(config.handshake_timeout),
            false => config.idle_timeout,
        };
        let Some(allowance) = allowance else {
            self.silence = Silence::default();
            return Ok(());
        };
        if self.silence.poll(cx, allowance).is_pending() {
            return Ok(());
        }
        let counters = &self.executor().stats().counters;
        match is_handshaking {
            true => counters.ssl_handshake_errors.add(1),
            false => counters.idle_kicks.add(1),
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Reads into the buffer; fails where a peer that others may be waiting for is too slow.
    fn poll_read_in_time(&mut self, cx: &mut Context<'_>, whole: usize) -> Poll<io::Result<Read>> {
        let read = self.poll_read(cx, whole);
        if read.is_ready() {
            return read;
        }
        let Some((share, watch)) = &mut self.share else {
            return Poll::Pending;
        };
        let must_hurry = self.worker.executor.shared.budgets.is_any_wanted();
        ready!(watch.poll_too_slow(cx, share.is_wanted(), must_hurry));
        self.executor().stats().counters.slow_peers_closed.add(1);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Passes over `bytes` more than are already to be passed over, as far as they are there.
    pub(super) fn pass_over(&mut self, bytes: u64) {
        self.skip = self.skip.saturating_add(bytes);
        let here = usize::try_from(self.skip)
            .unwrap_or(usize::MAX)
            .min(self.input.bytes().len());
        self.input.consume(here);
        self.skip -= here as u64;
    }
}
