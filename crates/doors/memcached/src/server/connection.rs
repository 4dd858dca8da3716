//! One connection: reads, executes every whole command, sends the replies together.

use super::Worker;
use super::budget::{ByteBudget, Pace, Share};
use super::input::{Input, SMALL_REST_BYTES};
use super::key_dump;
use super::reads::{self, Tally};
use super::sender::Sender;
use super::stream::Stream;
use crate::counters::Operation;
use crate::execute::{Asks, Executor, Flow, Output};
use crate::parse::{Command, Get, Needed, Parsed, parse, parse_apart};
use pumice_device::Device;
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Batches of commands after which a busy connection lets others run.
const BATCHES_PER_TURN: u32 = 8;

/// How often a peer that takes its time is looked at.
const LOOK: Duration = Duration::from_secs(1);

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
    stream: Stream,
    /// Wakes this connection while it waits for its peer.
    waker: Rc<RefCell<Waker>>,
    worker: Rc<Worker<D>>,
    input: Input,
    /// Held while the connection waits with more than the beginning of a small command, and how fast the rest comes.
    share: Option<(Share, Pace)>,
    output: Output<D::Buf>,
    /// Whether a reply that waits is about a change.
    changed: bool,
    /// Bytes of a refused value that are still to come.
    skip: u64,
}

impl<D: Device + Clone> Connection<D> {
    pub(super) fn new(stream: Stream, waker: Rc<RefCell<Waker>>, worker: Rc<Worker<D>>) -> Self {
        Self {
            stream,
            waker,
            worker,
            input: Input::default(),
            share: None,
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
        let mut whole = 0;
        let mut batches = 0;
        loop {
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
                        self.share = None;
                        if !self.receive_large(line_len, value_len).await? {
                            return Ok(());
                        }
                    }
                    Next::Close => return self.flush().await,
                }
            }
            self.flush().await?;
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

    /// Reads at least one byte into the buffer; false at the end. An idle connection waits without a buffer, and one that
    /// waits for more than the rest of a small command waits with a share of the budget.
    async fn read(&mut self, whole: usize, batches: &mut u32) -> io::Result<bool> {
        self.hold_input(whole).await;
        loop {
            if self.skip > 0 {
                // Nothing of a refused value is kept.
                self.pass_over(0);
            }
            let count = if self.share.is_none() {
                poll_fn(|cx| self.poll_read(cx, whole)).await?
            } else {
                self.read_in_time(whole).await?
            };
            if count == 0 {
                return Ok(false);
            }
            if let Some((_, pace)) = &mut self.share {
                pace.moved(count);
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

    /// Takes a share for what the input buffer holds and is about to hold, if that is more than the rest of a small command.
    async fn hold_input(&mut self, whole: usize) {
        if self.input.bytes().len() <= SMALL_REST_BYTES {
            self.share = None;
            return;
        }
        let worker = Rc::clone(&self.worker);
        let shared = &worker.executor.shared;
        let budget = &shared.budgets.receive;
        let bytes = self.input.size_with_room(whole).min(budget.total_bytes());
        match &mut self.share {
            Some((share, _)) if share.bytes() >= bytes => {}
            // Whoever waits for a share holds none.
            Some((share, _)) => {
                *share = ByteBudget::none(budget);
                *share = budget.take(bytes).await;
            }
            None => {
                let share = budget.take(bytes).await;
                self.share = Some((share, Pace::start(shared.config.peer_timeout)));
            }
        }
    }

    /// Reads into the buffer; 0 at the end. While nothing is there, the buffer is given back as far as that can be.
    fn poll_read(&mut self, cx: &mut Context<'_>, whole: usize) -> Poll<io::Result<usize>> {
        let room = self.input.room(whole, &self.worker.buffers);
        match self.stream.poll_read(cx, room) {
            Poll::Pending => {}
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => cx.waker().wake_by_ref(),
            ready @ Poll::Ready(_) => return ready,
        }
        if self.worker.stopping.get() {
            // What has arrived counts as sent before the stop.
            return Poll::Ready(match self.stream.read_arrived(room) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                read => read,
            });
        }
        self.input.release(&self.worker.buffers);
        self.output.release();
        let mut waker = self.waker.borrow_mut();
        if !waker.will_wake(cx.waker()) {
            waker.clone_from(cx.waker());
        }
        Poll::Pending
    }

    /// Reads into the buffer, from a peer that others may be waiting for.
    async fn read_in_time(&mut self, whole: usize) -> io::Result<usize> {
        loop {
            let read = poll_fn(|cx| self.poll_read(cx, whole));
            let read = tokio::time::timeout(LOOK, read).await;
            let is_slow = self.share.as_ref().is_some_and(|(_, pace)| pace.is_slow());
            if is_slow && self.executor().shared.budgets.is_any_wanted() {
                self.executor().stats().counters.slow_peers_closed.add(1);
                return Err(io::ErrorKind::TimedOut.into());
            }
            if let Ok(read) = read {
                return read;
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
            ..
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
            } else if let Command::MetaDump { class_1 } = command {
                input.consume(consumed);
                // Its time says nothing of other commands.
                tally.settle(executor);
                key_dump::run(executor, class_1, &mut sender).await?;
                tally = Tally::start(executor);
            } else {
                let skip = match &command {
                    Command::TooLarge(large) => large.skip,
                    _ => 0,
                };
                tally.settle(executor);
                // Whoever waits for a share holds none.
                sender.flush_before_waiting().await?;
                let operation = match command {
                    Command::Get(get) => {
                        get_and_touch(executor, get, &mut sender).await?;
                        Operation::GetTouch
                    }
                    command => executor.execute(command, sender.output).await,
                };
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
        match self.stream.poll_read(cx, room) {
            Poll::Pending if self.worker.stopping.get() => Poll::Ready(Ok(0)),
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

/// gat and gats: key by key, each object sent before the next is read, since it holds a share.
async fn get_and_touch<D: Device + Clone>(
    executor: &Executor<D>,
    get: Get<'_>,
    sender: &mut Sender<'_, D>,
) -> io::Result<()> {
    for key in get.keys {
        sender.flush_before_waiting().await?;
        *sender.changed = true;
        if !executor.get_and_touch(key, &get, sender.output).await {
            return Ok(());
        }
    }
    sender.output.text("END\r\n");
    Ok(())
}
