//! Values that are received apart from the connection's buffer.

use super::connection::Connection;
use super::input::SMALL_REST_BYTES;
use super::reads::Tally;
use crate::parse::Parsed;
use pumice_device::Device;
use std::io;
use std::rc::Rc;

impl<D: Device + Clone> Connection<D> {
    /// Receives a value apart from the buffer, within the budget of all connections, and executes its command. False where
    /// the peer went away.
    ///
    /// Its first KiB shows that the value comes; only then it takes its share, and waits for that with little in hand.
    pub(super) async fn receive_large(&mut self, line_len: usize, value_len: usize) -> io::Result<bool> {
        // Whoever waits for earlier replies gets them now; receiving may take a while.
        self.flush().await?;
        let line = self.input.bytes()[..line_len].to_vec();
        self.input.consume(line_len);
        let total = value_len + self.protocol.value_end().len();
        let mut filled = self.input.bytes().len().min(total);
        let mut value = self.input.bytes()[..filled].to_vec();
        self.input.consume(filled);
        self.input.release(&self.worker.buffers);
        value.resize(filled.max(SMALL_REST_BYTES.min(total)), 0);
        while filled < total {
            if filled == value.len() {
                self.take_input(total).await;
                value.reserve_exact(total - filled);
                value.resize(total, 0);
            }
            let count = self
                .until_stop(|connection, cx| connection.poll_read_apart(cx, &mut value[filled..]))
                .await?;
            if count == 0 {
                return Ok(false);
            }
            filled += count;
            self.heard();
            self.count_read(count);
        }
        let worker = Rc::clone(&self.worker);
        let executor = &worker.executor;
        if let Some(wait) = executor.cache.change_wait(&executor.cx) {
            wait.await;
        }
        let mut tally = Tally::start(executor);
        match self
            .protocol
            .parse_apart(&line, &value, &executor.shared.config.limits)
        {
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
            Parsed::Incomplete(_) | Parsed::Keys { .. } | Parsed::TooLong | Parsed::BadFrame { .. } => {
                return Ok(false);
            }
        }
        self.share = None;
        Ok(true)
    }
}
