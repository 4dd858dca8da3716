//! Values that are received apart from the connection's buffer.

use super::budget::Pace;
use super::connection::{Connection, LOOK};
use super::reads::Tally;
use crate::parse::{Parsed, parse_apart};
use pumice_device::Device;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

impl<D: Device + Clone> Connection<D> {
    /// Receives a value apart from the buffer, within the budget of all connections, and executes its command. False where
    /// the peer went away.
    pub(super) async fn receive_large(&mut self, line_len: usize, value_len: usize) -> io::Result<bool> {
        // Whoever waits for earlier replies gets them now; receiving may take a while.
        self.flush().await?;
        let worker = Rc::clone(&self.worker);
        let total = value_len + 2;
        let config = &worker.executor.shared.config;
        let _share = worker.executor.shared.budgets.receive.take(total).await;
        let line = self.input.bytes()[..line_len].to_vec();
        self.input.consume(line_len);
        let mut value = vec![0; total];
        let mut filled = self.input.bytes().len().min(total);
        value[..filled].copy_from_slice(&self.input.bytes()[..filled]);
        self.input.consume(filled);
        let mut pace = Pace::start(config.peer_timeout);
        while filled < total {
            let room = &mut value[filled..];
            let read = poll_fn(|cx| self.poll_read_apart(cx, room));
            match tokio::time::timeout(LOOK, read).await {
                Ok(Ok(0)) => return Ok(false),
                Ok(Ok(count)) => {
                    filled += count;
                    pace.moved(count);
                    worker.executor.stats().counters.bytes_read.add(count as u64);
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => {}
            }
            if pace.is_slow() {
                worker.executor.stats().counters.slow_peers_closed.add(1);
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        let executor = &worker.executor;
        let mut tally = Tally::start(executor);
        match parse_apart(&line, &value, &config.limits) {
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

    /// Reads the next bytes of a value that is received apart; 0 at the end.
    fn poll_read_apart(&mut self, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        let buffers = &self.worker.buffers;
        match self.stream.poll_read(cx, room, buffers) {
            // What has arrived counts as sent before the stop.
            Poll::Pending if self.worker.stopping.get() => match self.stream.read_arrived(room, buffers) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Ready(Ok(0)),
                read => Poll::Ready(read),
            },
            Poll::Pending => {
                self.waker.borrow_mut().clone_from(cx.waker());
                Poll::Pending
            }
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            ready @ Poll::Ready(_) => ready,
        }
    }
}
