//! Runs of reads: DRAM hits at once, flash reads together, replies in order.

use super::progress::LOOK;
use super::sender::Sender;
use crate::budget::{SMALL_BYTES, Share};
use crate::counters::Operation;
use crate::execute::{Ask, Asks, Executor, Lane, MetaChange};
use crate::parse::MAX_KEY_BYTES;
use futures_util::future::FutureExt;
use futures_util::stream::{FuturesOrdered, StreamExt};
use pumice::{FlashLookup, Found, LargeLookup, Lookup};
use pumice_device::{Buffer, Device, SECTOR_BYTES};
use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::Arc;

/// Steps of a run that may wait at once: flash reads, and the hits behind them, which pin their memory.
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

/// Answers a whole run.
pub(super) async fn run<'a, D: Device + Clone>(
    executor: &'a Executor<D>,
    asks: &mut Asks<'a>,
    sender: &mut Sender<'_, D>,
    tally: &mut Tally,
) -> io::Result<()> {
    let mut ahead = None;
    while let Some(Next { ask, was_unused }) = ahead.take().or_else(|| asks.next().map(Next::new)) {
        match look_up(executor, &ask, was_unused) {
            Step::Known(object) => match executor.change_of(&ask, object.as_ref()) {
                None => tally.count(executor.answer(&ask, object, None, sender.output)),
                Some(change) => {
                    drop(object);
                    let operation = answer_changing(executor, change, Lane::Small, sender).await?;
                    tally.count(operation);
                }
            },
            Step::Read(read) => {
                let asked_ns = tally.settle(executor);
                // Whoever waits for a share holds none.
                sender.flush_before_waiting().await?;
                let share = match &read {
                    Read::Flash(_) => Some(executor.shared.budgets.output.take(read.bytes()).await),
                    Read::Large(_) => None,
                };
                let first = Waiting {
                    ask,
                    read,
                    share,
                    asked_ns,
                };
                ahead = behind_flash(executor, asks, first, sender, tally).await?;
            }
        }
        sender.flush_if_large().await?;
    }
    Ok(())
}

/// A step that is to be looked up.
struct Next<'a> {
    ask: Ask<'a>,
    /// It was looked up before, and nobody had asked for the object until then.
    was_unused: bool,
}

impl<'a> Next<'a> {
    fn new(ask: Ask<'a>) -> Self {
        Self {
            ask,
            was_unused: false,
        }
    }
}

/// What a step of the run comes to without I/O.
enum Step<B> {
    /// Its answer is known: a DRAM hit, a miss, or text.
    Known(Option<pumice::Object<B>>),
    /// Something has to be read.
    Read(Read<B>),
}

/// A read that is to be made.
enum Read<B> {
    Flash(FlashLookup),
    Large(LargeLookup<B>),
}

impl<B> Read<B> {
    /// What it takes of the budget: the sectors of one record. An object in slices takes its share when its turn comes.
    fn bytes(&self) -> usize {
        match self {
            Read::Flash(flash) => flash.len() as usize + 2 * SECTOR_BYTES,
            Read::Large(_) => 0,
        }
    }

    /// Whether it may be made ahead of its turn.
    fn is_small(&self) -> bool {
        matches!(self, Read::Flash(_)) && self.bytes() <= SMALL_BYTES
    }
}

fn look_up<D: Device + Clone>(executor: &Executor<D>, ask: &Ask<'_>, was_unused: bool) -> Step<D::Buf> {
    let mut scratch = [0; MAX_KEY_BYTES];
    let Some(key) = ask.key(&mut scratch) else {
        return Step::Known(None);
    };
    let looked_up = match ask.is_aside() {
        true => executor.cache.peek(&executor.cx, key),
        false => executor.cache.lookup(&executor.cx, key),
    };
    match looked_up {
        Lookup::Hit(object) if was_unused => Step::Known(Some(object.seen_unused())),
        Lookup::Hit(object) => Step::Known(Some(object)),
        Lookup::Miss => Step::Known(None),
        Lookup::Flash(flash) => Step::Read(Read::Flash(flash)),
        Lookup::Large(large) => Step::Read(Read::Large(large)),
    }
}

/// Answers an mg that changes the cache.
async fn answer_changing<D: Device + Clone>(
    executor: &Executor<D>,
    change: MetaChange<'_>,
    lane: Lane,
    sender: &mut Sender<'_, D>,
) -> io::Result<Operation> {
    sender.flush_before_waiting().await?;
    *sender.changed = true;
    Ok(executor.meta_get_changing(change, lane, sender.output).await)
}

/// A step that waits for flash.
struct Waiting<'a, B> {
    ask: Ask<'a>,
    read: Read<B>,
    share: Option<Share>,
    /// When it was asked for.
    asked_ns: u64,
}

/// A step with its answer.
struct Answer<'a, B> {
    ask: Ask<'a>,
    known: Known<B>,
    share: Option<Share>,
    /// When it was asked for, if it waited for flash.
    asked_ns: Option<u64>,
}

/// What is known of a step whose turn it is.
enum Known<B> {
    Found(Found<B>),
    /// It was known, and is to be looked up once more.
    Forgotten {
        was_unused: bool,
    },
}

impl<B: Buffer> Known<B> {
    /// Whether nobody had asked for the object before.
    fn was_unused(&self) -> bool {
        match self {
            Known::Found(Found::Hit(object)) => !object.is_used(),
            Known::Found(_) => false,
            Known::Forgotten { was_unused } => *was_unused,
        }
    }
}

async fn read<'a, D: Device + Clone>(
    executor: &'a Executor<D>,
    waiting: Waiting<'a, D::Buf>,
) -> Answer<'a, D::Buf> {
    let Waiting {
        ask,
        read,
        share,
        asked_ns,
    } = waiting;
    let mut scratch = [0; MAX_KEY_BYTES];
    let key = ask.key(&mut scratch).unwrap_or_default();
    let (cache, cx) = (&executor.cache, &executor.cx);
    let found = match read {
        Read::Flash(flash) => cache.finish(cx, key, flash).await,
        Read::Large(large) => Found::Large(large),
    };
    Answer {
        ask,
        known: Known::Found(found),
        share,
        asked_ns: Some(asked_ns),
    }
}

/// A step of the queue behind a flash read.
enum Queued<'a, B> {
    /// It is the next of the reads.
    Reads(Ask<'a>),
    /// Its answer waits for those before it.
    Known {
        ask: Ask<'a>,
        object: Option<pumice::Object<B>>,
        /// Of a copy, where it had to be copied to wait.
        share: Option<Share>,
    },
    /// Likewise, and what it found was let go.
    Forgotten(Next<'a>),
}

/// The steps behind a flash read, in order, and their reads.
struct Queue<'a, B, F: Future> {
    steps: VecDeque<Queued<'a, B>>,
    reads: FuturesOrdered<F>,
}

impl<B: Buffer, F: Future> Queue<'_, B, F> {
    fn holds_objects(&self) -> bool {
        let holds = |step: &Queued<'_, B>| matches!(step, Queued::Known { object: Some(_), .. });
        self.steps.iter().any(holds)
    }

    /// Lets go of hits; they are looked up again when their turn comes.
    fn forget_hits(&mut self) {
        for step in &mut self.steps {
            if let Queued::Known {
                ask,
                object: Some(object),
                ..
            } = step
            {
                *step = Queued::Forgotten(Next {
                    ask: *ask,
                    was_unused: !object.is_used(),
                });
            }
        }
    }

    /// Waits for something that may be up to a peer, or to memory. Hits pin the segments that they stand in, and reads hold shares of
    /// the small lane, for which others wait: if it takes time at all, both are let go.
    async fn forget_unless_ready<T>(&mut self, what: impl Future<Output = T>) -> T {
        let mut what = pin!(what);
        if let Some(done) = what.as_mut().now_or_never() {
            return done;
        }
        self.forget_hits();
        self.reads = FuturesOrdered::new();
        for step in &mut self.steps {
            if let Queued::Reads(ask) = step {
                *step = Queued::Forgotten(Next::new(*ask));
            }
        }
        what.await
    }

    /// Waits for the next read, and keeps hits only as long as that takes no longer than flash does.
    async fn next_read(&mut self) -> Option<F::Output> {
        if self.holds_objects() {
            match tokio::time::timeout(LOOK, self.reads.next()).await {
                Ok(done) => return done,
                Err(_) => self.forget_hits(),
            }
        }
        self.reads.next().await
    }
}

/// A share of the large lane, which may be waited for while steps further on hold shares of the small one.
async fn large_share<D: Device + Clone>(executor: &Executor<D>, bytes: usize) -> Share {
    Arc::clone(&executor.shared.budgets.output.large)
        .take(bytes)
        .await
}

/// Answers the step whose turn it is. A large object is read only now: if steps further on could take the memory first, this
/// one would wait for them, and they for their turn. `changed` says whether a step before it changed the cache after this
/// one was looked up.
async fn give<D: Device + Clone>(
    executor: &Executor<D>,
    answer: Answer<'_, D::Buf>,
    changed: &mut bool,
    sender: &mut Sender<'_, D>,
    tally: &mut Tally,
) -> io::Result<()> {
    let mut scratch = [0; MAX_KEY_BYTES];
    let key = answer.ask.key(&mut scratch).unwrap_or_default();
    let mut share = answer.share;
    let found = match answer.known {
        Known::Found(found) if !*changed => found,
        // What was found, or was missing, was so before.
        known => match look_up(executor, &answer.ask, known.was_unused()) {
            Step::Known(object) => object.map_or(Found::Miss, Found::Hit),
            Step::Read(Read::Large(large)) => Found::Large(large),
            Step::Read(Read::Flash(flash)) => {
                drop(known);
                sender.flush_before_waiting().await?;
                drop(share.take());
                share = Some(large_share(executor, flash.len() as usize).await);
                executor.cache.finish(&executor.cx, key, flash).await
            }
        },
    };
    let object = match found {
        Found::Hit(object) => Some(object),
        Found::Miss => None,
        Found::Large(large) => {
            sender.flush_before_waiting().await?;
            let bytes = usize::try_from(large.value_len()).unwrap_or(usize::MAX);
            drop(share.take());
            share = Some(large_share(executor, bytes).await);
            executor.cache.read_large(&executor.cx, key, large).await
        }
    };
    let operation = match executor.change_of(&answer.ask, object.as_ref()) {
        None => executor.answer(&answer.ask, object, share, sender.output),
        Some(change) => {
            *changed = true;
            drop((object, share));
            answer_changing(executor, change, Lane::Large, sender).await?
        }
    };
    match answer.asked_ns {
        Some(asked_ns) => {
            let ns = executor.monotonic_ns().saturating_sub(asked_ns);
            executor.record(operation, ns, 1);
        }
        None => tally.count(operation),
    }
    Ok(())
}

/// Goes on with a run in which something waits for flash: looks up and starts reading what follows, up to a bound, and
/// answers in order. Returns when nothing waits any more, with the step for which there was no memory, if any.
async fn behind_flash<'a, D: Device + Clone>(
    executor: &'a Executor<D>,
    asks: &mut Asks<'a>,
    first: Waiting<'a, D::Buf>,
    sender: &mut Sender<'_, D>,
    tally: &mut Tally,
) -> io::Result<Option<Next<'a>>> {
    let Some(second) = asks.next() else {
        let answer = read(executor, first).await;
        give(executor, answer, &mut false, sender, tally).await?;
        return Ok(None);
    };
    let lane = &executor.shared.budgets.output.small;
    let ahead_max = lane.total_bytes() / PART_AHEAD;
    let mut ahead_bytes = 0;
    let mut changed = false;
    let mut ahead = Some(Next::new(second));
    // Behind a large object nothing is read: whoever waits for its memory would keep what small ones need.
    let mut looks_ahead = first.read.is_small();
    let mut queue = Queue {
        steps: VecDeque::from([Queued::Reads(first.ask)]),
        reads: FuturesOrdered::from_iter([read(executor, first)]),
    };
    // Once nothing waits for flash any more, the run goes on without a queue.
    loop {
        while looks_ahead && !queue.reads.is_empty() && queue.steps.len() < MAX_WAITING {
            let Some(Next { ask, was_unused }) = ahead.take().or_else(|| asks.next().map(Next::new)) else {
                break;
            };
            let step = look_up(executor, &ask, was_unused);
            // What waits holds no block buffer, of which there are few.
            let bytes = match &step {
                Step::Known(Some(object)) if object.pins_block() => Some(object.value_len()),
                Step::Known(_) => None,
                Step::Read(read) if read.is_small() => Some(read.bytes()),
                Step::Read(_) => Some(usize::MAX),
            };
            let share = bytes
                .filter(|bytes| *bytes <= ahead_max - ahead_bytes)
                .and_then(|bytes| lane.try_take_ahead(bytes));
            if bytes.is_some() && share.is_none() {
                // No memory to look further ahead: later, when what waits now is sent.
                let was_unused = matches!(&step, Step::Known(Some(object)) if !object.is_used());
                ahead = Some(Next { ask, was_unused });
                looks_ahead = false;
                break;
            }
            ahead_bytes += bytes.unwrap_or(0);
            queue.steps.push_back(match step {
                Step::Known(mut object) => {
                    if let (Some(object), Some(_)) = (&mut object, &share) {
                        object.detach();
                    }
                    Queued::Known { ask, object, share }
                }
                Step::Read(step) => {
                    queue.reads.push_back(read(
                        executor,
                        Waiting {
                            ask,
                            read: step,
                            share,
                            asked_ns: executor.monotonic_ns(),
                        },
                    ));
                    Queued::Reads(ask)
                }
            });
        }
        let answer = match queue.steps.pop_front() {
            None => break,
            Some(Queued::Known { ask, object, share }) => Answer {
                ask,
                known: Known::Found(object.map_or(Found::Miss, Found::Hit)),
                share,
                asked_ns: None,
            },
            Some(Queued::Forgotten(Next { ask, was_unused })) => Answer {
                ask,
                known: Known::Forgotten { was_unused },
                share: None,
                asked_ns: None,
            },
            Some(Queued::Reads(ask)) => match queue.reads.next().now_or_never().flatten() {
                Some(answer) => answer,
                None => {
                    queue.steps.push_front(Queued::Reads(ask));
                    queue.forget_unless_ready(sender.flush_before_waiting()).await?;
                    let Some(answer) = queue.next_read().await else {
                        // It was let go while the peer took its time.
                        continue;
                    };
                    queue.steps.pop_front();
                    answer
                }
            },
        };
        let giving = give(executor, answer, &mut changed, sender, tally);
        queue.forget_unless_ready(giving).await?;
        queue.forget_unless_ready(sender.flush_if_large()).await?;
    }
    Ok(ahead)
}
