//! Runs of reads: DRAM hits at once, flash reads together, replies in order.

use super::sender::Sender;
use crate::counters::Operation;
use crate::execute::{Ask, Executor, MetaChange};
use crate::parse::{Command, Get, GetOne, Limits, MAX_KEY_BYTES, Parsed, Protocol};
use futures_util::future::FutureExt;
use futures_util::stream::{FuturesOrdered, StreamExt};
use pumice::{FlashLookup, Found, LargeLookup, Lookup};
use pumice_device::{Device, SECTOR_BYTES};
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

/// Answers a whole run.
pub(super) async fn run<'a, D: Device + Clone>(
    executor: &'a Executor<D>,
    asks: &mut Asks<'a>,
    sender: &mut Sender<'_, D>,
    tally: &mut Tally,
) -> io::Result<()> {
    let mut next = None;
    while let Some(ask) = next.take().or_else(|| asks.next()) {
        match look_up(executor, &ask) {
            Step::Known(object) => match executor.change_of(&ask, object.as_ref()) {
                None => tally.count(executor.answer(&ask, object, None, sender.output)),
                Some(change) => {
                    drop(object);
                    tally.count(answer_changing(executor, change, sender).await?);
                }
            },
            Step::Flash(flash) => {
                let asked_ns = tally.settle(executor);
                let share = take(executor, flash_bytes(&flash), sender).await?;
                next = behind_flash(executor, asks, (ask, flash, share, asked_ns), sender, tally).await?;
            }
            Step::Large(large) => {
                let asked_ns = tally.settle(executor);
                let answer = Answer {
                    ask,
                    found: Some(Found::Large(large)),
                    share: None,
                    asked_ns: Some(asked_ns),
                };
                give(executor, answer, &[], sender, tally).await?;
            }
        }
        sender.flush_if_large().await?;
    }
    Ok(())
}

/// What a step of the run comes to without I/O.
enum Step<B> {
    /// Its answer is known: a DRAM hit, a miss, or text.
    Known(Option<pumice::Object<B>>),
    /// A record has to be read.
    Flash(FlashLookup),
    /// Slices have to be read.
    Large(LargeLookup<B>),
}

fn look_up<D: Device + Clone>(executor: &Executor<D>, ask: &Ask<'_>) -> Step<D::Buf> {
    let mut scratch = [0; MAX_KEY_BYTES];
    let Some(key) = ask.key(&mut scratch) else {
        return Step::Known(None);
    };
    let looked_up = match ask.is_aside() {
        true => executor.cache.peek(&executor.cx, key),
        false => executor.cache.lookup(&executor.cx, key),
    };
    match looked_up {
        Lookup::Hit(object) => Step::Known(Some(object)),
        Lookup::Miss => Step::Known(None),
        Lookup::Flash(flash) => Step::Flash(flash),
        Lookup::Large(large) => Step::Large(large),
    }
}

/// What a read takes of the budget: the sectors of one record.
fn flash_bytes(flash: &FlashLookup) -> usize {
    flash.len() as usize + 2 * SECTOR_BYTES
}

/// Waits for a share, when everything is sent that stands under another.
async fn take<D: Device + Clone>(
    executor: &Executor<D>,
    bytes: usize,
    sender: &mut Sender<'_, D>,
) -> io::Result<Share> {
    sender.flush_before_waiting().await?;
    let output = &executor.shared.budgets.output;
    Ok(match std::mem::replace(&mut sender.had_share, true) {
        true => output.take_more(bytes).await,
        false => output.take(bytes).await,
    })
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

/// A step whose turn it is.
struct Answer<'a, B> {
    ask: Ask<'a>,
    /// What was read for it ahead of its turn.
    found: Option<Found<B>>,
    share: Option<Share>,
    /// When it was asked for, if it waited for flash.
    asked_ns: Option<u64>,
}

async fn read<'a, D: Device + Clone>(
    executor: &'a Executor<D>,
    ask: Ask<'a>,
    flash: FlashLookup,
    share: Share,
    asked_ns: u64,
) -> Answer<'a, D::Buf> {
    let mut scratch = [0; MAX_KEY_BYTES];
    let key = ask.key(&mut scratch).unwrap_or_default();
    Answer {
        ask,
        found: Some(executor.cache.finish(&executor.cx, key, flash).await),
        share: Some(share),
        asked_ns: Some(asked_ns),
    }
}

/// Answers the step whose turn it is; returns whether that changed the cache. A large object is read only now. `changed` are the steps
/// that changed their objects since this one was read: only a step of the same key is looked up again, because a second look finds the
/// mark of the first, and would tell of a hit that no client made.
async fn give<D: Device + Clone>(
    executor: &Executor<D>,
    answer: Answer<'_, D::Buf>,
    changed: &[Ask<'_>],
    sender: &mut Sender<'_, D>,
    tally: &mut Tally,
) -> io::Result<bool> {
    let Answer {
        ask,
        found,
        mut share,
        asked_ns,
    } = answer;
    let mut scratch = [0; MAX_KEY_BYTES];
    let key = ask.key(&mut scratch).unwrap_or_default();
    let mut other = [0; MAX_KEY_BYTES];
    let is_stale = changed.iter().any(|ask| ask.key(&mut other) == Some(key));
    let found = match found.filter(|_| !is_stale) {
        Some(found) => found,
        None => {
            drop(share.take());
            match look_up(executor, &ask) {
                Step::Known(object) => object.map_or(Found::Miss, Found::Hit),
                Step::Large(large) => Found::Large(large),
                Step::Flash(flash) => {
                    share = Some(take(executor, flash_bytes(&flash), sender).await?);
                    executor.cache.finish(&executor.cx, key, flash).await
                }
            }
        }
    };
    let object = match found {
        Found::Hit(object) => Some(object),
        Found::Miss => None,
        Found::Large(large) => {
            drop(share.take());
            let bytes = usize::try_from(large.value_len()).unwrap_or(usize::MAX);
            share = Some(take(executor, bytes, sender).await?);
            executor.cache.read_large(&executor.cx, key, large).await
        }
    };
    let change = executor.change_of(&ask, object.as_ref());
    let changes = change.is_some();
    let operation = match change {
        None => executor.answer(&ask, object, share, sender.output),
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

/// A step behind a flash read.
enum Queued<'a> {
    /// It is the next of the reads.
    Read(Ask<'a>),
    /// It is looked up when its turn comes: nothing is kept for it that others may need.
    Later(Ask<'a>),
}

/// The steps behind a flash read, in order, and their reads.
struct Queue<'a, F: Future> {
    steps: VecDeque<Queued<'a>>,
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
        for step in &mut self.steps {
            if let Queued::Read(ask) = step {
                *step = Queued::Later(*ask);
            }
        }
        what.await
    }
}

/// Goes on with a run in which something waits for flash: starts reading what follows, up to a bound, and answers in order. Returns
/// when nothing waits any more, with the step that was not to be read ahead, if any.
async fn behind_flash<'a, D: Device + Clone>(
    executor: &'a Executor<D>,
    asks: &mut Asks<'a>,
    (ask, flash, share, asked_ns): (Ask<'a>, FlashLookup, Share, u64),
    sender: &mut Sender<'_, D>,
    tally: &mut Tally,
) -> io::Result<Option<Ask<'a>>> {
    let lane = &executor.shared.budgets.output.small;
    let mut left_bytes = lane.total_bytes() / PART_AHEAD;
    let mut looks_ahead = !share.is_large();
    let mut changed = Vec::new();
    let mut next = None;
    let mut queue = Queue {
        steps: VecDeque::from([Queued::Read(ask)]),
        reads: FuturesOrdered::from_iter([read(executor, ask, flash, share, asked_ns)]),
    };
    // Once nothing waits for flash any more, the run goes on without a queue.
    while !queue.steps.is_empty() {
        while looks_ahead && !queue.reads.is_empty() && queue.steps.len() < MAX_WAITING {
            let Some(ask) = asks.next() else { break };
            let share = match ahead(executor, &ask) {
                Ahead::Nothing => {
                    queue.steps.push_back(Queued::Later(ask));
                    continue;
                }
                Ahead::Large => None,
                Ahead::Small(bytes) if bytes > left_bytes => None,
                Ahead::Small(bytes) => {
                    left_bytes -= bytes;
                    lane.try_take_ahead(bytes)
                }
            };
            let Some(share) = share else {
                // Later, when what waits now is sent.
                (next, looks_ahead) = (Some(ask), false);
                break;
            };
            // Another may have read it meanwhile.
            queue.steps.push_back(match look_up(executor, &ask) {
                Step::Flash(flash) => {
                    let asked_ns = executor.monotonic_ns();
                    queue.reads.push_back(read(executor, ask, flash, share, asked_ns));
                    Queued::Read(ask)
                }
                _ => Queued::Later(ask),
            });
        }
        let answer = match queue.steps.pop_front() {
            Some(Queued::Read(ask)) => match queue.reads.next().now_or_never().flatten() {
                Some(answer) => answer,
                None => {
                    queue.steps.push_front(Queued::Read(ask));
                    queue.forget_unless_ready(sender.flush_before_waiting()).await?;
                    let Some(answer) = queue.reads.next().await else {
                        // It was let go while the peer took its time.
                        continue;
                    };
                    queue.steps.pop_front();
                    answer
                }
            },
            Some(Queued::Later(ask)) => Answer {
                ask,
                found: None,
                share: None,
                asked_ns: None,
            },
            None => break,
        };
        let ask = answer.ask;
        let giving = give(executor, answer, &changed, sender, tally);
        if queue.forget_unless_ready(giving).await? {
            changed.push(ask);
        }
        queue.forget_unless_ready(sender.flush_if_large()).await?;
    }
    Ok(next)
}

/// What looking ahead finds.
enum Ahead {
    /// Nothing that has to be read.
    Nothing,
    /// A record of so many bytes.
    Small(usize),
    /// More than is read ahead of its turn: whoever waits for its memory would keep what small reads need.
    Large,
}

/// Looks ahead at a step; that is no access.
fn ahead<D: Device + Clone>(executor: &Executor<D>, ask: &Ask<'_>) -> Ahead {
    let mut scratch = [0; MAX_KEY_BYTES];
    let peeked = ask
        .key(&mut scratch)
        .map(|key| executor.cache.peek(&executor.cx, key));
    match peeked {
        Some(Lookup::Flash(flash)) if flash_bytes(&flash) <= SMALL_BYTES => Ahead::Small(flash_bytes(&flash)),
        Some(Lookup::Flash(_) | Lookup::Large(_)) => Ahead::Large,
        _ => Ahead::Nothing,
    }
}
