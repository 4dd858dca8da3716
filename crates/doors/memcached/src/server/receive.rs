//! Values that are received apart from the connection's buffer.

use super::connection::Connection;
use super::input::SMALL_REST_BYTES;
use super::reads::Tally;
use crate::counters::Operation;
use crate::parse::{Needed, Parsed, Store, replies};
use futures_util::future::FutureExt;
use pumice_device::Device;
use std::io;
use std::pin::pin;
use std::rc::Rc;

/// What is read at once of a value that is handed on as it comes.
const PIECE_BYTES: usize = 64 << 10;

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
        let worker = Rc::clone(&self.worker);
        let limits = &worker.executor.shared.config.limits;
        if let Parsed::Incomplete(Needed::Value { store, .. }) = self.protocol.parse(&line, limits)
            && worker.executor.is_in_pieces(&store, value_len)
        {
            return self.receive_in_pieces(store, value_len).await;
        }
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
            let count = self.read_apart(&mut value[filled..]).await?;
            if count == 0 {
                return Ok(false);
            }
            filled += count;
        }
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

    /// Receives a large value, and hands it on as it comes: what the connection holds of it at once is bounded, whatever its length. False
    /// where the peer went away: then nothing of it is stored.
    async fn receive_in_pieces(&mut self, store: Store<'_>, value_len: usize) -> io::Result<bool> {
        let worker = Rc::clone(&self.worker);
        let executor = &worker.executor;
        let end = self.protocol.value_end();
        let mut left = value_len + end.len();
        let mut filled = self.input.bytes().len().min(left);
        let mut piece = self.input.bytes()[..filled].to_vec();
        self.input.consume(filled);
        self.input.release(&self.worker.buffers);
        // Its first KiB shows that it comes.
        piece.resize(filled.max(SMALL_REST_BYTES), 0);
        while filled < SMALL_REST_BYTES {
            let count = self.read_apart(&mut piece[filled..]).await?;
            if count == 0 {
                return Ok(false);
            }
            filled += count;
        }
        self.take_input(executor.pieces_bytes(&store, value_len) + PIECE_BYTES)
            .await;
        if let Some(wait) = executor.cache.change_wait(&executor.cx) {
            wait.await;
        }
        let mut incoming = executor.begin(store, value_len).await;
        // All that was not up to the peer.
        self.progress.restart();
        piece.resize(PIECE_BYTES.max(filled), 0);
        let mut ending = Vec::new();
        loop {
            let (value, beyond) = piece[..filled].split_at(filled.min(left.saturating_sub(end.len())));
            ending.extend_from_slice(beyond);
            left -= filled;
            self.not_up_to_peer(incoming.append(value)).await;
            if left == 0 {
                break;
            }
            let room = left.min(piece.len());
            filled = self.read_apart(&mut piece[..room]).await?;
            if filled == 0 {
                return Ok(false);
            }
        }
        let mut tally = Tally::start(executor);
        if ending == end {
            executor.end(incoming, &mut self.output).await;
            self.changed = true;
            tally.count(Operation::Set);
            tally.settle(executor);
        } else {
            drop(incoming);
            self.output.unless(store.reply.is_noreply(), replies::BAD_CHUNK);
        }
        self.share = None;
        Ok(true)
    }

    /// Waits for something that is not up to the peer, whose time stands still if that takes any. What is done at once is no progress of
    /// the peer's either: one that sends byte by byte stays slow.
    async fn not_up_to_peer<T>(&mut self, what: impl Future<Output = T>) -> T {
        let mut what = pin!(what);
        if let Some(done) = what.as_mut().now_or_never() {
            return done;
        }
        let done = what.await;
        self.progress.restart();
        done
    }

    /// Reads what comes next of a value; 0 at the end.
    async fn read_apart(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let count = self
            .until_stop(|connection, cx| connection.poll_read_apart(cx, to))
            .await?;
        if count > 0 {
            self.heard();
            self.count_read(count);
        }
        Ok(count)
    }
}
