//! Values that are received apart from the connection's buffer.
//!
//! A value takes memory as it arrives, never twice as much as has arrived: whoever announces much and sends little keeps little.

use super::budget::{ReceiveBudgets, Share};
use super::connection::Connection;
use super::input::SMALL_REST_BYTES;
use super::look::Watch;
use super::reads::Tally;
use crate::parse::{Parsed, parse_apart};
use pumice_device::Device;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

/// A value as it arrives.
struct Arriving {
    /// As long as there is memory for it so far; in the end `total`.
    bytes: Vec<u8>,
    filled: usize,
    total: usize,
    /// What it has of the budgets, beyond the first KiB.
    share: Option<Share>,
}

impl Arriving {
    fn new(total: usize) -> Self {
        Self {
            bytes: Vec::new(),
            filled: 0,
            total,
            share: None,
        }
    }

    fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    fn fill(&mut self, bytes: &[u8]) {
        self.room()[..bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
    }

    /// Whether others wait for what it keeps.
    fn is_wanted(&self) -> bool {
        self.share.as_ref().is_some_and(Share::is_wanted)
    }

    /// Makes room for `least` bytes in all, which have arrived or are the next; waits for the memory. Where the part of the budget
    /// that is taken piece by piece has none, the first to get memory for a whole value gives back its pieces.
    async fn make_room(&mut self, least: usize, budgets: &ReceiveBudgets) {
        let size = match least <= SMALL_REST_BYTES {
            true => SMALL_REST_BYTES,
            false => least.next_power_of_two(),
        };
        let size = size.min(self.total);
        let budget = budgets.of_value(self.total);
        let held = self.share.as_ref().map_or(0, Share::bytes);
        if size > SMALL_REST_BYTES && size > held {
            let fits = size <= budget.total_bytes();
            tokio::select! {
                biased;
                more = budget.take(size - held), if fits => match &mut self.share {
                    Some(share) => share.add(more),
                    None => self.share = Some(more),
                },
                whole = budgets.whole.take(self.total) => self.share = Some(whole),
            }
        }
        self.bytes.reserve_exact(size - self.bytes.len());
        self.bytes.resize(size, 0);
    }
}

impl<D: Device + Clone> Connection<D> {
    /// Receives a value apart from the buffer, within the budget of all connections, and executes its command. False where
    /// the peer went away.
    pub(super) async fn receive_large(&mut self, line_len: usize, value_len: usize) -> io::Result<bool> {
        // Whoever waits for earlier replies gets them now; receiving may take a while.
        self.flush().await?;
        let worker = Rc::clone(&self.worker);
        let shared = &worker.executor.shared;
        let config = &shared.config;
        let line = self.input.bytes()[..line_len].to_vec();
        self.input.consume(line_len);
        let mut value = Arriving::new(value_len + 2);
        let here = self.input.bytes().len().min(value.total);
        value.make_room(here, &shared.budgets.receive).await;
        value.fill(&self.input.bytes()[..here]);
        self.input.consume(here);
        self.input.release(&worker.buffers);
        let mut watch = Watch::start(config.peer_timeout);
        while value.filled < value.total {
            if value.room().is_empty() {
                let asked = Instant::now();
                value.make_room(value.filled + 1, &shared.budgets.receive).await;
                watch.kept_waiting(asked.elapsed());
            }
            let count = poll_fn(|cx| self.poll_read_apart(cx, &mut value, &mut watch)).await?;
            if count == 0 {
                return Ok(false);
            }
            value.filled += count;
            watch.moved(count);
            worker.executor.stats().counters.bytes_read.add(count as u64);
        }
        let executor = &worker.executor;
        let mut tally = Tally::start(executor);
        match parse_apart(&line, &value.bytes, &config.limits) {
            Parsed::Command { command, .. } => {
                let operation = match executor.execute_now(&command, &mut self.output) {
                    Some((_, operation)) => operation,
                    None => executor.execute(command, &mut self.output).await,
                };
                self.changed = true;
                tally.count(operation);
                tally.settle(executor);
            }
            Parsed::Malformed { reply, .. } => self.output.text(reply),
            // The line was parsed before, so it cannot be anything else.
            Parsed::Incomplete(_) | Parsed::TooLong => return Ok(false),
        }
        Ok(true)
    }

    /// Reads the next bytes of a value that is received apart; 0 at the end. Fails where the peer is too slow.
    fn poll_read_apart(
        &mut self,
        cx: &mut Context<'_>,
        value: &mut Arriving,
        watch: &mut Watch,
    ) -> Poll<io::Result<usize>> {
        let buffers = &self.worker.buffers;
        match self.stream.poll_read(cx, value.room(), buffers) {
            Poll::Pending => {}
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => cx.waker().wake_by_ref(),
            ready @ Poll::Ready(_) => return ready,
        }
        if self.worker.stopping.get() {
            // What has arrived counts as sent before the stop.
            return Poll::Ready(match self.stream.read_arrived(value.room(), buffers) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                read => read,
            });
        }
        self.waker.borrow_mut().clone_from(cx.waker());
        ready!(watch.poll_too_slow(cx, value.is_wanted(), true));
        self.executor().stats().counters.slow_peers_closed.add(1);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}
