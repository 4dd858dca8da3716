//! Reading commands: without a buffer while there is nothing to read, and not for ever from a peer that says nothing.

use super::Worker;
use super::connection::Connection;
use super::input::SMALL_REST_BYTES;
use pumice_device::Device;
use pumice_net::Late;
use pumice_net::Stream;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// Batches of commands after which a busy connection lets others run.
const BATCHES_PER_TURN: u32 = 8;

impl<D: Device + Clone> Connection<D> {
    /// Reads at least one byte into the buffer; false at the end. An idle connection waits without a buffer, and one that
    /// waits for more than the rest of a small command waits with a share of the budget. `is_value`: a value is on its way.
    pub(super) async fn read(&mut self, is_value: bool, batches: &mut u32) -> io::Result<bool> {
        self.hold_input().await;
        loop {
            if self.skip > 0 {
                // Nothing of a refused value is kept.
                self.pass_over(0);
            }
            let count = self.until_stop(Self::poll_read).await?;
            if count == 0 {
                return Ok(false);
            }
            if is_value || self.skip > 0 {
                // A value is not a command yet, but it is not silence either.
                self.heard();
            }
            self.input.filled(count);
            self.count_read(count);
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

    /// Reads with `poll`; is woken at a stop, too, when it reads what has arrived, or the end.
    pub(super) async fn until_stop(
        &mut self,
        mut poll: impl FnMut(&mut Self, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> io::Result<usize> {
        let worker = Rc::clone(&self.worker);
        tokio::select! {
            biased;
            read = poll_fn(|cx| poll(self, cx)) => return read,
            () = worker.stop.notified(), if !worker.stop.is_stopping() => {}
        }
        poll_fn(|cx| poll(self, cx)).await
    }

    /// Takes a share for what is received, if that is more than the rest of a small command.
    async fn hold_input(&mut self) {
        if self.input.bytes().len() <= SMALL_REST_BYTES {
            self.share = None;
            return;
        }
        let bytes = self.input.size_while_waiting();
        if self.share.as_ref().is_none_or(|share| share.bytes() < bytes) {
            self.take_input(bytes).await;
        }
    }

    /// Waits for a share for `bytes` on their way in.
    pub(super) async fn take_input(&mut self, bytes: usize) {
        // Whoever waits for a share holds none.
        self.share = None;
        let worker = Rc::clone(&self.worker);
        self.share = Some(worker.executor.shared.budgets.input.take(bytes).await);
        self.progress.restart();
    }

    /// Says that the peer sent a command.
    pub(super) fn heard(&mut self) {
        if self.executor().shared.config.idle_timeout.is_some() {
            self.progress.restart();
        }
    }

    pub(super) fn count_read(&mut self, count: usize) {
        self.progress.moved(count);
        self.executor().stats().counters.bytes_read.add(count as u64);
    }

    /// Reads into the buffer; 0 at the end. While nothing is there, the buffer is given back as far as that can be.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let room = self.input.room(&self.worker.buffers);
        let read = poll_stream(&mut self.stream, &self.worker, cx, room);
        if read.is_ready() {
            return read;
        }
        self.input.release(&self.worker.buffers);
        self.output.release();
        self.poll_late(cx)
    }

    /// Reads the next bytes of a value that is received apart; 0 at the end.
    pub(super) fn poll_read_apart(&mut self, cx: &mut Context<'_>, to: &mut [u8]) -> Poll<io::Result<usize>> {
        match poll_stream(&mut self.stream, &self.worker, cx, to) {
            Poll::Pending => self.poll_late(cx),
            ready => ready,
        }
    }

    /// Fails where the peer has sent nothing for too long; else lets the task be woken when that is so.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let shared = &self.worker.executor.shared;
        let limit = shared.config.idle_timeout;
        let holding = self.share.is_some().then_some(&shared.budgets);
        let late = ready!(self.progress.poll_late(cx, limit, holding));
        let counters = &self.executor().stats().counters;
        match late {
            Late::Stalled => counters.slow_peers_closed.add(1),
            Late::Limit => counters.idle_kicks.add(1),
        }
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

/// Reads what is there; 0 at the end, and at a stop where nothing is there.
fn poll_stream<D: Device + Clone>(
    stream: &mut Stream,
    worker: &Worker<D>,
    cx: &mut Context<'_>,
    to: &mut [u8],
) -> Poll<io::Result<usize>> {
    match stream.poll_read(cx, to) {
        Poll::Pending => {}
        Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => cx.waker().wake_by_ref(),
        ready => return ready,
    }
    if !worker.stop.is_stopping() {
        return Poll::Pending;
    }
    // What has arrived counts as sent before the stop.
    Poll::Ready(match stream.read_arrived(to) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        read => read,
    })
}
