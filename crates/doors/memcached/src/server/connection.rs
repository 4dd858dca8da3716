//! One connection: reads, executes every whole command, sends the replies together.

use super::Worker;
use super::budget::BudgetShare;
use super::input::Input;
use super::reads::{self, Tally};
use super::stream::Stream;
use crate::execute::{Asks, Executor, Flow, Output};
use crate::parse::{Command, Needed, Parsed, parse, parse_apart};
use pumice_device::Device;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// Replies are sent when this many bytes wait, or when no whole command is left.
const FLUSH_BYTES: usize = 64 << 10;

/// Memory that an idle connection's replies may keep.
const KEEP_OUTPUT_BYTES: usize = 4 << 10;

/// Batches of commands after which a busy connection lets others run.
const BATCHES_PER_TURN: u32 = 8;

/// A value that takes part of the receive budget gets one more second per this many bytes.
const SLOWEST_BYTES_PER_SEC: u64 = 64 << 10;

/// Sends replies.
pub(super) struct Sender<'c, D: Device + Clone> {
    executor: &'c Executor<D>,
    stream: &'c Stream,
    pub(super) output: &'c mut Output<D::Buf>,
    /// Whether a reply that waits is about a change.
    changed: &'c mut bool,
}

impl<D: Device + Clone> Sender<'_, D> {
    /// Sends what waits if it is much.
    pub(super) async fn flush_if_large(&mut self) -> io::Result<()> {
        if self.output.pending() < FLUSH_BYTES {
            return Ok(());
        }
        self.flush().await
    }

    /// Sends all that waits. A peer that does not read is waited for, and is not read from meanwhile.
    async fn flush(&mut self) -> io::Result<()> {
        let pending = self.output.pending();
        if std::mem::take(self.changed) {
            // A change is not reported before it is as durable as was promised; if it cannot be, not at all.
            let committed = self.executor.cache.commit(&self.executor.cx).await;
            committed.inspect_err(|error| tracing::warn!(%error, "cannot make changes durable"))?;
        }
        let mut sent = 0;
        while sent < pending {
            match self
                .output
                .write_from(sent, |slices| self.stream.try_write(slices))
            {
                Ok(now) if now == sent => return Err(io::ErrorKind::WriteZero.into()),
                Ok(now) => sent = now,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.stream.writable().await?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.output.clear(KEEP_OUTPUT_BYTES);
        self.executor.stats().counters.bytes_written.add(sent as u64);
        Ok(())
    }
}

/// What the commands in the buffer came to.
enum Next {
    /// More bytes are needed, so that the buffer holds `whole` of them where that is known.
    Read { whole: usize },
    /// A value that is received apart.
    Large { line_len: usize, value_len: usize },
    /// Bytes to pass over.
    Skip(u64),
    /// The connection is over.
    Close,
}

/// A connection that is served.
pub(super) struct Connection<D: Device + Clone> {
    stream: Rc<Stream>,
    worker: Rc<Worker<D>>,
    input: Input,
    output: Output<D::Buf>,
    /// Whether a reply that waits is about a change.
    changed: bool,
    /// Bytes of a refused value that are still to come.
    skip: u64,
}

impl<D: Device + Clone> Connection<D> {
    pub(super) fn new(stream: Rc<Stream>, worker: Rc<Worker<D>>) -> Self {
        Self {
            stream,
            worker,
            input: Input::default(),
            output: Output::new(),
            changed: false,
            skip: 0,
        }
    }

    /// Serves the connection to its end.
    ///
    /// # Errors
    /// What the socket said; of interest to nobody but a log.
    pub(super) async fn serve(mut self) -> io::Result<()> {
        let worker = Rc::clone(&self.worker);
        // Held while the buffer is larger than an ordinary command needs.
        let mut share: Option<BudgetShare<'_>> = None;
        let mut whole = 0;
        let mut batches = 0;
        loop {
            let ordinary = worker.executor.shared.config.inline_value_bytes as usize * 2;
            if share.is_none() && self.input.size_with_room(whole) > ordinary {
                share = Some(worker.executor.shared.budget.take(worker.largest_line()).await);
            }
            if !self.read(whole, &mut batches).await? {
                return Ok(());
            }
            loop {
                match self.process().await? {
                    Next::Read { whole: bytes } => {
                        whole = bytes;
                        break;
                    }
                    Next::Skip(bytes) => self.pass_over(bytes),
                    Next::Large { line_len, value_len } => {
                        // Whoever waits for a share must hold none, or all could wait for each other.
                        share = None;
                        if !self.receive_large(line_len, value_len).await? {
                            return Ok(());
                        }
                    }
                    Next::Close => return self.flush().await,
                }
            }
            self.flush().await?;
            if self.input.is_empty() && self.input.held_bytes() > ordinary {
                self.input.release(&worker.buffers);
            }
            if self.input.held_bytes() <= ordinary {
                share = None;
            }
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        let mut sender = Sender {
            executor: &self.worker.executor,
            stream: &self.stream,
            output: &mut self.output,
            changed: &mut self.changed,
        };
        sender.flush().await
    }

    fn executor(&self) -> &Executor<D> {
        &self.worker.executor
    }

    /// Reads at least one byte into the buffer; false at the end. An idle connection waits without a buffer.
    async fn read(&mut self, whole: usize, batches: &mut u32) -> io::Result<bool> {
        loop {
            if self.skip > 0 {
                // Nothing of a refused value is kept.
                self.pass_over(0);
            }
            let room = self.input.room(whole, &self.worker.buffers);
            match self.stream.try_read(room) {
                Ok(0) => return Ok(false),
                Ok(count) => {
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
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.worker.stopping.get() {
                        return Ok(false);
                    }
                    self.input.release(&self.worker.buffers);
                    *batches = 0;
                    self.stream.readable().await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Passes over `bytes` more than are already to be passed over, as far as they are there.
    fn pass_over(&mut self, bytes: u64) {
        self.skip = self.skip.saturating_add(bytes);
        let here = usize::try_from(self.skip)
            .unwrap_or(usize::MAX)
            .min(self.input.bytes().len());
        self.input.consume(here);
        self.skip -= here as u64;
    }

    /// Executes all whole commands in the buffer.
    async fn process(&mut self) -> io::Result<Next> {
        let Self {
            stream,
            worker,
            input,
            output,
            changed,
            skip,
        } = self;
        if *skip > 0 {
            return Ok(Next::Read { whole: 0 });
        }
        let executor = &worker.executor;
        let limits = &executor.shared.config.limits;
        let mut sender = Sender {
            executor,
            stream,
            output,
            changed,
        };
        let mut tally = Tally::start(executor);
        let next = loop {
            if input.is_empty() {
                break Next::Read { whole: 0 };
            }
            let (command, consumed) = match parse(input.bytes(), limits) {
                Parsed::Command { command, consumed } => (command, consumed),
                Parsed::Incomplete(Needed::Line) => break Next::Read { whole: 0 },
                Parsed::Incomplete(Needed::Value { line_len, value_len }) => {
                    let value_bytes = value_len as usize;
                    if value_len > executor.shared.config.inline_value_bytes {
                        break Next::Large {
                            line_len,
                            value_len: value_bytes,
                        };
                    }
                    break Next::Read {
                        whole: line_len + value_bytes + 2,
                    };
                }
                Parsed::Malformed {
                    reply,
                    consumed,
                    skip,
                } => {
                    sender.output.text(reply);
                    input.consume(consumed);
                    if skip > 0 {
                        break Next::Skip(skip);
                    }
                    continue;
                }
                Parsed::TooLong => {
                    sender.output.text("CLIENT_ERROR line too long\r\n");
                    break Next::Close;
                }
            };
            let rest = &input.bytes()[consumed..];
            if let Some(mut asks) = Asks::start(&command, rest, limits) {
                reads::run(executor, &mut asks, &mut sender, &mut tally).await?;
                let consumed = consumed + asks.consumed();
                input.consume(consumed);
            } else if let Some((flow, operation)) = executor.execute_now(&command, sender.output) {
                *sender.changed = true;
                tally.count(operation);
                input.consume(consumed);
                if flow == Flow::Close {
                    break Next::Close;
                }
            } else {
                let skip = match &command {
                    Command::TooLarge(large) => large.skip,
                    _ => 0,
                };
                tally.settle(executor);
                let operation = executor.execute(command, sender.output).await;
                *sender.changed = true;
                tally.count(operation);
                tally.settle(executor);
                input.consume(consumed);
                if skip > 0 {
                    break Next::Skip(skip);
                }
            }
            sender.flush_if_large().await?;
        };
        tally.settle(executor);
        Ok(next)
    }

    /// Receives a value apart from the buffer, within the budget of all connections, and executes its command. False where
    /// the peer went away.
    async fn receive_large(&mut self, line_len: usize, value_len: usize) -> io::Result<bool> {
        // Whoever waits for earlier replies gets them now; receiving may take a while.
        self.flush().await?;
        let worker = Rc::clone(&self.worker);
        let total = value_len + 2;
        let config = &worker.executor.shared.config;
        let _share = worker.executor.shared.budget.take(total).await;
        let line = self.input.bytes()[..line_len].to_vec();
        self.input.consume(line_len);
        let mut value = vec![0; total];
        let mut filled = self.input.bytes().len().min(total);
        value[..filled].copy_from_slice(&self.input.bytes()[..filled]);
        self.input.consume(filled);
        let timeout = config.receive_timeout + Duration::from_secs(total as u64 / SLOWEST_BYTES_PER_SEC);
        let received = tokio::time::timeout(timeout, async {
            while filled < total {
                match self.stream.try_read(&mut value[filled..]) {
                    Ok(0) => return Ok(false),
                    Ok(count) => {
                        filled += count;
                        worker.executor.stats().counters.bytes_read.add(count as u64);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        if worker.stopping.get() {
                            return Ok(false);
                        }
                        self.stream.readable().await?;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(true)
        })
        .await;
        match received {
            Ok(Ok(true)) => {}
            Ok(done) => return done,
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
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
}
