//! Runs of reads: DRAM hits at once, flash reads together, replies in order.

use super::sender::Sender;
use crate::counters::Operation;
use crate::execute::{Ask, Executor, MetaChange};
use crate::parse::{Command, Get, GetOne, Limits, MAX_KEY_BYTES, Parsed, Protocol};
use futures_util::future::FutureExt;
use futures_util::stream::{FuturesOrdered, StreamExt};
use pumice::{Access, Fetch, Lookup, Permits};
use pumice_device::Device;
use pumice_net::{SMALL_BYTES, Share};
use std::collections::VecDeque;
use std::io;
use std::pin::pin;

/// Steps of a run that may wait at once: flash reads, and what stands behind them.
const MAX_WAITING: usize = 64;

/// What stands in the queue behind one connection's flash read may take this part of the small lane.
const PART_AHEAD: usize = 8;

/// Operations since the last reading of the clock. All of them get the same latency: the time until the batch was done.
pub(super) struct Tally {
    since_ns: u64,
    counts: [u64; Operation::ALL.len()],
}

impl Tally {
    pub(super) fn start<D: Device + Clone>(executor: &Executor<D>) -> Self {
        Self {
            since_ns: executor.monotonic_ns(),
            counts: [0; Operation::ALL.len()],
        }
    }

    pub(super) fn count(&mut self, operation: Operation) {
        self.counts[operation as usize] += 1;
    }

    /// Records what was counted, and starts anew; returns the time now.
    pub(super) fn settle<D: Device + Clone>(&mut self, executor: &Executor<D>) -> u64 {
        let now_ns = executor.monotonic_ns();
        let ns = now_ns.saturating_sub(self.since_ns);
        for operation in Operation::ALL {
            let count = std::mem::take(&mut self.counts[operation as usize]);
            if count > 0 {
                executor.record(operation, ns, count);
            }
        }
        self.since_ns = now_ns;
        now_ns
    }
}

/// A run of reads: consecutive get, gets, mg and mn commands, or gets and noops in frames, as steps, in order. They may be looked up in
/// any order, but for what an mg changes.
pub(super) struct Asks<'a> {
    /// The command whose steps are next.
    command: Option<Command<'a>>,
    /// Whether its line goes on behind the keys.
    is_part: bool,
    rest: &'a [u8],
    consumed: usize,
    protocol: Protocol,
    limits: &'a Limits,
}

impl<'a> Asks<'a> {
    /// The run that starts with a command that reads ([`Command::is_read`]) and goes on in `rest`.
    pub(super) fn new(first: Command<'a>, rest: &'a [u8], protocol: Protocol, limits: &'a Limits) -> Self {
        Self {
            command: Some(first),
            is_part: false,
            rest,
            consumed: 0,
            protocol,
            limits,
        }
    }

    /// The first keys of a line that goes on.
    pub(super) fn part(get: Get<'a>, limits: &'a Limits) -> Self {
        Self {
            is_part: true,
            ..Self::new(Command::Get(get), b"", Protocol::Text, limits)
        }
    }

    /// Bytes of `rest` that the run took so far.
    pub(super) fn consumed(&self) -> usize {
        self.consumed
    }
}

impl<'a> Iterator for Asks<'a> {
    type Item = Ask<'a>;

    fn next(&mut self) -> Option<Ask<'a>> {
        if self.command.is_none() && !self.rest.is_empty() {
            match self.protocol.parse(self.rest, self.limits) {
                Parsed::Command { command, consumed } if command.is_read() => {
                    self.command = Some(command);
                    self.consumed += consumed;
                    self.rest = &self.rest[consumed..];
                }
                _ => {}
            }
        }
        if let Some(Command::Get(get)) = &mut self.command {
            let with_cas = get.with_cas;
            if let Some(key) = get.keys.next() {
                return Some(Ask::Classic { key, with_cas });
            }
        }
        match self.command.take()? {
            Command::MetaGet(get) => Some(Ask::Meta(get)),
            Command::GetOne(GetOne { key, frame, .. }) => Some(Ask::Frame { key, frame }),
            Command::Noop(frame) => Some(Ask::Noop(frame)),
            Command::MetaNoop => Some(Ask::Text("MN\r\n")),
            _ => (!self.is_part).then_some(Ask::Text("END\r\n")),
        }
    }
}

/// A step whose turn it is.
struct Turn<'a, B> {
    ask: Ask<'a>,
    /// What is known of its object, or was read ahead; nothing: it is looked up now.
    found: Option<Lookup<B>>,
    /// The memory that it was read under.
    share: Option<Share>,
    /// When it was asked for, if it waited for flash.
    asked_ns: Option<u64>,
}

impl<'a, B> Turn<'a, B> {
    /// One for which nothing was kept.
    fn new(ask: Ask<'a>) -> Self {
        Self {
            ask,
            found: None,
            share: None,
            asked_ns: None,
        }
    }
}

/// Answers a whole run.
pub(super) async fn run<'a, D: Device + Clone>(
    executor: &'a Executor<D>,
    asks: &mut Asks<'a>,
    sender: &mut Sender<'_, D>,
    tally: &mut Tally,
) -> io::Result<()> {
    let mut next = None;
    while let Some(ask) = next.take().or_else(|| asks.next()) {
        let mut scratch = [0; MAX_KEY_BYTES];
        let key = ask.key(&mut scratch);
        match executor.cache.lookup(&executor.cx, key, ask.access()) {
            Lookup::Known(Some(object)) if object.is_large() => {
                let turn = Turn {
                    asked_ns: Some(tally.settle(executor)),
                    found: Some(Lookup::Known(Some(object))),
                    ..Turn::new(ask)
                };
                give(executor, turn, &[], sender, tally).await?;
            }
            Lookup::Known(object) => match executor.change_of(&ask, object.as_ref()) {
                None => tally.count(executor.answer(&ask, object, None, None, sender.output)),
                Some(change) => {
                    drop(object);
                    tally.count(answer_changing(executor, change, sender).await?);
                }
            },
            Lookup::Read(fetch) => {
                let asked_ns = tally.settle(executor);
                let share = sender.take(fetch.bytes()).await?;
                next = behind_flash(executor, asks, (ask, fetch, share, asked_ns), sender, tally).await?;
            }
        }
        sender.flush_if_large().await?;
    }
    Ok(())
}

/// Answers an mg that changes the cache.
async fn answer_changing<D: Device + Clone>(
    executor: &Executor<D>,
    change: MetaChange<'_>,
    sender: &mut Sender<'_, D>,
) -> io::Result<Operation> {
    sender.flush_before_waiting().await?;
    *sender.changed = true;
    Ok(executor.meta_get_changing(change, sender.output).await)
}

/// Answers the step whose turn it is; returns whether that changed the cache. Of a large object the slices are read only now. `changed` are the steps
/// that changed their objects since this one was read: only a step of the same key is looked up again, because a second look finds the
/// mark of the first, and would tell of a hit that no client made.
async fn give<D: Device + Clone>(
    executor: &Executor<D>,
    turn: Turn<'_, D::Buf>,
    changed: &[Ask<'_>],
    sender: &mut Sender<'_, D>,
    tally: &mut Tally,
) -> io::Result<bool> {
    let Turn {
        ask,
        found,
        mut share,
        asked_ns,
    } = turn;
    let mut scratch = [0; MAX_KEY_BYTES];
    let key = ask.key(&mut scratch);
    let mut other = [0; MAX_KEY_BYTES];
    let is_stale = changed.iter().any(|ask| ask.key(&mut other) == key);
    let found = found.filter(|_| !is_stale).unwrap_or_else(|| {
        share = None;
        executor.cache.lookup(&executor.cx, key, ask.access())
    });
    let (object, share) = match found {
        Lookup::Known(object) => (object, share),
        Lookup::Read(fetch) => {
            // Whoever waits for a share holds none.
            drop(share);
            let cache = &executor.cache;
            cache.read(&executor.cx, key, fetch, ask.access(), sender).await?
        }
    };
    let mut change = executor.change_of(&ask, object.as_ref());
    let (mut object, mut share) = (object, share);
    if change.is_none()
        && let Some(large) = object.take_if(|object| object.is_large())
    {
        drop(share.take());
        let take = async |bytes| sender.take(bytes).await;
        (object, share) = (executor.begin_large(key, large, ask.wants_value(), take)).await?;
        change = executor.change_of(&ask, object.as_ref());
    }
    let changes = change.is_some();
    let operation = match change {
        None => executor.answer(&ask, object, share, None, sender.output),
        Some(change) => {
            drop((object, share));
            answer_changing(executor, change, sender).await?
        }
    };
    match asked_ns {
        Some(asked_ns) => {
            let ns = executor.monotonic_ns().saturating_sub(asked_ns);
            executor.record(operation, ns, 1);
        }
        None => tally.count(operation),
    }
    Ok(changes)
}

/// The steps behind a flash read, in order, and the reads of some.
struct Queue<'a, F: Future> {
    /// Each with whether it is the next of the reads; else it is looked up when its turn comes: nothing is kept for it that others may
    /// need.
    steps: VecDeque<(Ask<'a>, bool)>,
    reads: FuturesOrdered<F>,
}

impl<F: Future> Queue<'_, F> {
    /// Waits for something that may be up to a peer, or to memory. If it takes time at all, the reads are let go: they hold shares
    /// for which others wait, and this connection, too.
    async fn forget_unless_ready<T>(&mut self, what: impl Future<Output = T>) -> T {
        let mut what = pin!(what);
        if let Some(done) = what.as_mut().now_or_never() {
            return done;
        }
        self.reads = FuturesOrdered::new();
        for (_, is_read) in &mut self.steps {
            *is_read = false;
        }
        what.await
    }
}

/// Goes on with a run in which something waits for flash: starts reading what follows, up to a bound, and answers in order. Returns
/// when nothing waits any more, with the step that was not to be read ahead, if any.
async fn behind_flash<'a, D: Device + Clone>(
    executor: &'a Executor<D>,
    asks: &mut Asks<'a>,
    (ask, fetch, share, asked_ns): (Ask<'a>, Fetch, Share, u64),
    sender: &mut Sender<'_, D>,
    tally: &mut Tally,
) -> io::Result<Option<Ask<'a>>> {
    let lane = &executor.shared.budgets.output.small;
    let mut left_bytes = lane.total_bytes() / PART_AHEAD;
    let mut looks_ahead = !share.is_large();
    let mut changed = Vec::new();
    let mut next = None;
    let read = async |ask: Ask<'a>, fetch, share, asked_ns| {
        let mut scratch = [0; MAX_KEY_BYTES];
        let key = ask.key(&mut scratch);
        let read = executor.cache.fetch(&executor.cx, key, fetch, ask.access());
        Turn {
            ask,
            found: Some(read.await),
            share: Some(share),
            asked_ns: Some(asked_ns),
        }
    };
    let mut queue = Queue {
        steps: VecDeque::from([(ask, true)]),
        reads: FuturesOrdered::from_iter([read(ask, fetch, share, asked_ns)]),
    };
    // Once nothing waits for flash any more, the run goes on without a queue.
    while !queue.steps.is_empty() {
        while looks_ahead && !queue.reads.is_empty() && queue.steps.len() < MAX_WAITING {
            let Some(ask) = asks.next() else { break };
            // Looking ahead is no access.
            let mut scratch = [0; MAX_KEY_BYTES];
            let key = ask.key(&mut scratch);
            let Lookup::Read(fetch) = executor.cache.lookup(&executor.cx, key, Access::Peek) else {
                queue.steps.push_back((ask, false));
                continue;
            };
            // Whoever waits for the memory of more would keep what small reads need.
            let bytes = fetch.bytes();
            let is_small = bytes <= left_bytes.min(SMALL_BYTES);
            let Some(share) = is_small.then(|| lane.try_take_ahead(bytes)).flatten() else {
                // Later, when what waits now is sent.
                (next, looks_ahead) = (Some(ask), false);
                break;
            };
            left_bytes -= bytes;
            queue
                .reads
                .push_back(read(ask, fetch, share, executor.monotonic_ns()));
            queue.steps.push_back((ask, true));
        }
        let turn = match queue.steps.pop_front() {
            Some((ask, true)) => match queue.reads.next().now_or_never().flatten() {
                Some(turn) => turn,
                None => {
                    queue.steps.push_front((ask, true));
                    queue.forget_unless_ready(sender.flush_before_waiting()).await?;
                    let Some(turn) = queue.reads.next().await else {
                        // It was let go while the peer took its time.
                        continue;
                    };
                    queue.steps.pop_front();
                    turn
                }
            },
            Some((ask, false)) => Turn::new(ask),
            None => break,
        };
        let ask = turn.ask;
        let giving = give(executor, turn, &changed, sender, tally);
        if queue.forget_unless_ready(giving).await? {
            changed.push(ask);
        }
        queue.forget_unless_ready(sender.flush_if_large()).await?;
    }
    Ok(next)
}
