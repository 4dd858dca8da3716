//! One connection: reads, executes every whole command, sends the replies together.

use super::Worker;
use super::foreign;
use super::input::Input;
use super::key_dump;
use super::reads::{self, Asks, Tally};
use super::sasl;
use super::sender::Sender;
use crate::counters::Operation;
use crate::execute::{Ask, Executor, Flow, Output};
use crate::parse::{
    Attempt, Command, Exptime, Get, GetOne, Needed, Parsed, Protocol, Status, not_for_strangers,
    parse_attempt,
};
use pumice_device::Device;
use pumice_net::Progress;
use pumice_net::Share;
use pumice_net::Stream;
use std::io;
use std::rc::Rc;

/// The longest value that is received in the buffer, behind the longest line.
const INLINE_MAX_BYTES: u32 = 12 << 10;

/// What the commands in the buffer came to.
enum Next {
    /// More bytes are needed, of a value or of whatever comes.
    Read { is_value: bool },
    /// A value that is received apart.
    Large { line_len: usize, value_len: usize },
    /// Bytes to pass over.
    Skip(u64),
    /// The connection is over.
    Close,
}

/// A connection that is served.
pub(super) struct Connection<D: Device + Clone> {
    pub(super) stream: Stream,
    pub(super) worker: Rc<Worker<D>>,
    pub(super) input: Input,
    /// Held while the connection waits with more than the beginning of a small command.
    pub(super) share: Option<Share>,
    pub(super) output: Output<D::Buf>,
    /// Whether a reply that waits is about a change.
    pub(super) changed: bool,
    /// Bytes of a refused value that are still to come.
    pub(super) skip: u64,
    /// Of the peer, in sending.
    pub(super) progress: Progress,
    /// Bytes sent since the socket was known to have room.
    unproven: usize,
    /// Known when the first byte has come.
    pub(super) protocol: Protocol,
    /// Whether its commands are executed; else only attempts to authenticate are.
    is_authenticated: bool,
}

impl<D: Device + Clone> Connection<D> {
    pub(super) fn new(stream: Stream, worker: Rc<Worker<D>>) -> Self {
        Self {
            is_authenticated: worker.executor.shared.config.auth.is_none(),
            stream,
            worker,
            protocol: Protocol::default(),
            input: Input::default(),
            share: None,
            output: Output::new(),
            changed: false,
            skip: 0,
            progress: Progress::default(),
            unproven: 0,
        }
    }

    /// Serves the connection to its end.
    ///
    /// # Errors
    /// What the socket said; of interest to nobody but a log.
    pub(super) async fn serve(mut self) -> io::Result<()> {
        let result = self.serve_commands().await;
        self.stream.close();
        result
    }

    async fn serve_commands(&mut self) -> io::Result<()> {
        let mut is_value = false;
        let mut batches = 0;
        let mut is_first = true;
        loop {
            if !self.read(is_value, &mut batches).await? {
                return Ok(());
            }
            if std::mem::take(&mut is_first)
                && let Some(first) = self.input.bytes().first()
            {
                if let Some(protocol) = foreign::recognise(*first) {
                    self.executor().refuse_protocol(protocol);
                    return Ok(());
                }
                self.protocol = Protocol::of(*first);
            }
            if !self.sender().has_room()? {
                self.input.release(&self.worker.buffers);
                self.sender().wait_for_room().await?;
            }
            let received = self.input.bytes().len();
            loop {
                // Executing takes a few KiB of state, which an idle connection has no use for.
                match Box::pin(self.process()).await? {
                    Next::Read { is_value: next } => {
                        is_value = next;
                        break;
                    }
                    Next::Skip(bytes) => self.pass_over(bytes),
                    Next::Large { line_len, value_len } => {
                        if !Box::pin(self.receive_large(line_len, value_len)).await? {
                            return Ok(());
                        }
                    }
                    Next::Close => return self.flush().await,
                }
            }
            self.flush().await?;
            if self.input.bytes().len() < received {
                self.heard();
            }
        }
    }

    pub(super) async fn flush(&mut self) -> io::Result<()> {
        self.sender().flush().await
    }

    fn sender(&mut self) -> Sender<'_, D> {
        Sender {
            input_bytes: self.input.held_bytes(),
            holds_share: self.share.is_some(),
            had_share: false,
            value_share: None,
            executor: &self.worker.executor,
            stream: &mut self.stream,
            output: &mut self.output,
            changed: &mut self.changed,
            unproven: &mut self.unproven,
        }
    }

    pub(super) fn executor(&self) -> &Executor<D> {
        &self.worker.executor
    }

    /// Executes all whole commands in the buffer.
    async fn process(&mut self) -> io::Result<Next> {
        if self.skip > 0 {
            return Ok(Next::Read { is_value: true });
        }
        if !self.is_authenticated
            && self.protocol == Protocol::Text
            && let Some(next) = self.authenticate()
        {
            return Ok(next);
        }
        let (input_bytes, holds_share) = (self.input.held_bytes(), self.share.is_some());
        let Self {
            stream,
            worker,
            input,
            output,
            changed,
            unproven,
            protocol,
            is_authenticated,
            ..
        } = self;
        let protocol = *protocol;
        let executor = &worker.executor;
        let limits = &executor.shared.config.limits;
        let inline_max = executor.shared.config.inline_value_bytes.min(INLINE_MAX_BYTES);
        let mut sender = Sender {
            executor,
            stream,
            output,
            changed,
            unproven,
            input_bytes,
            holds_share,
            had_share: false,
            value_share: None,
        };
        let mut tally = Tally::start(executor);
        let next = loop {
            if input.is_empty() {
                break Next::Read { is_value: false };
            }
            if !*is_authenticated && let Some(frame) = not_for_strangers(input.bytes()) {
                sender.output.status(frame, Status::AuthFailed);
                break Next::Close;
            }
            let (command, consumed) = match protocol.parse(input.bytes(), limits) {
                Parsed::Command { command, consumed } => (command, consumed),
                Parsed::Incomplete(Needed::Line) => break Next::Read { is_value: false },
                Parsed::Incomplete(Needed::Value {
                    line_len, value_len, ..
                }) => {
                    if value_len <= inline_max {
                        break Next::Read { is_value: true };
                    }
                    break Next::Large {
                        line_len,
                        value_len: value_len as usize,
                    };
                }
                Parsed::Malformed {
                    reply,
                    consumed,
                    skip,
                } => {
                    tracing::debug!("a command was refused: {}", reply.trim_end());
                    sender.output.text(reply);
                    input.consume(consumed);
                    if skip > 0 {
                        break Next::Skip(skip);
                    }
                    continue;
                }
                Parsed::Keys { get, head_len, rest } => {
                    let mut asks = Asks::part(get, limits);
                    if let Some(exptime) = get.touch {
                        if !get_and_touch(executor, asks, exptime, &mut sender).await? {
                            break Next::Close;
                        }
                    } else {
                        reads::run(executor, &mut asks, &mut sender, &mut tally).await?;
                    }
                    input.cut(head_len, rest);
                    sender.flush_if_large().await?;
                    continue;
                }
                Parsed::TooLong => {
                    sender.output.text("CLIENT_ERROR line too long\r\n");
                    break Next::Close;
                }
                Parsed::BadFrame { reply, len } => {
                    if let Some((frame, status)) = reply {
                        tracing::debug!("a frame was refused: {}", status.message());
                        sender.output.status(frame, status);
                    }
                    break len.map_or(Next::Close, Next::Skip);
                }
            };
            if command.changes()
                && let Some(wait) = executor.cache.change_wait(&executor.cx)
            {
                sender.flush().await?;
                wait.await;
            }
            if command.is_read() {
                let mut asks = Asks::new(command, &input.bytes()[consumed..], protocol, limits);
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
            } else if let Command::Authenticate(attempt) = &command {
                *is_authenticated = sasl::answer(executor, attempt, sender.output);
                input.consume(consumed);
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
                    Command::Get(Get {
                        touch: Some(exptime), ..
                    })
                    | Command::GetOne(GetOne {
                        touch: Some(exptime), ..
                    }) => {
                        let asks = Asks::new(command, b"", protocol, limits);
                        get_and_touch(executor, asks, exptime, &mut sender).await?;
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
}

impl<D: Device + Clone> Connection<D> {
    /// Answers what comes before the connection has authenticated itself; `None` when it has.
    fn authenticate(&mut self) -> Option<Next> {
        let shared = &self.worker.executor.shared;
        let counters = &self.worker.executor.stats().counters;
        while let Some(auth) = &shared.config.auth {
            let skip = match parse_attempt(self.input.bytes(), shared.config.limits.max_line_bytes) {
                Attempt::Incomplete { is_value } => return Some(Next::Read { is_value }),
                Attempt::TooLong => return Some(Next::Close),
                Attempt::Http => {
                    self.worker.executor.refuse_protocol("HTTP");
                    return Some(Next::Close);
                }
                Attempt::Refused {
                    reply,
                    consumed,
                    skip,
                } => {
                    self.output.text(reply);
                    self.input.consume(consumed);
                    skip
                }
                Attempt::Credentials {
                    user,
                    password,
                    consumed,
                } => {
                    let is_allowed = auth.is_allowed(user, password);
                    self.input.consume(consumed);
                    counters.auth_cmds.add(1);
                    if is_allowed {
                        self.output.text(Attempt::GRANTED);
                        self.is_authenticated = true;
                        return None;
                    }
                    counters.auth_errors.add(1);
                    self.output.text(Attempt::FAILED);
                    0
                }
            };
            if skip > 0 {
                return Some(Next::Skip(skip));
            }
        }
        None
    }
}

/// gat, gats and gatk: key by key, each object sent before the next is read, since it holds a share. False where the reply ends with
/// an error.
async fn get_and_touch<D: Device + Clone>(
    executor: &Executor<D>,
    asks: Asks<'_>,
    exptime: Exptime,
    sender: &mut Sender<'_, D>,
) -> io::Result<bool> {
    for ask in asks {
        if let Ask::Text(text) = ask {
            sender.output.text(text);
            continue;
        }
        sender.flush_before_waiting().await?;
        // Each key is a change, and a line may have any number of them.
        if let Some(wait) = executor.cache.change_wait(&executor.cx) {
            sender.flush().await?;
            wait.await;
        }
        *sender.changed = true;
        let had_share = std::mem::replace(&mut sender.had_share, true);
        if !executor
            .get_and_touch(&ask, exptime, had_share, sender.output)
            .await
        {
            return Ok(false);
        }
    }
    Ok(true)
}
