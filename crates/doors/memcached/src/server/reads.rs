//! Runs of reads: DRAM hits at once, flash reads together, replies in order.

use super::connection::Sender;
use crate::counters::Operation;
use crate::execute::{Ask, Asks, Executor};
use crate::parse::MAX_KEY_BYTES;
use futures_util::stream::{FuturesOrdered, StreamExt};
use pumice::Lookup;
use pumice_device::Device;
use std::io;

/// Steps of a run that may wait at once: flash reads, and the hits behind them, which pin their memory.
const MAX_WAITING: usize = 64;

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
    while let Some(ask) = asks.next() {
        let mut scratch = [0; MAX_KEY_BYTES];
        let object = match ask.key(&mut scratch) {
            None => None,
            Some(key) => match executor.cache.lookup(&executor.cx, key) {
                Lookup::Hit(object) => Some(object),
                Lookup::Miss => None,
                Lookup::Flash(flash) => {
                    let asked_ns = tally.settle(executor);
                    let first = (ask, Start::Flash(flash, asked_ns));
                    behind_flash(executor, asks, first, sender, tally).await?;
                    continue;
                }
            },
        };
        tally.count(executor.answer(&ask, object, sender.output));
        sender.flush_if_large().await?;
    }
    Ok(())
}

/// How a step of the run begins.
enum Start<O, F> {
    /// Its answer is known: a DRAM hit, a miss, or text.
    Ready(Option<O>),
    /// Flash has to be read; with the time at which it was asked for.
    Flash(F, u64),
}

type ObjectOf<D> = pumice::Object<<D as Device>::Buf>;

/// The future of one step.
async fn step<'a, D: Device + Clone>(
    executor: &'a Executor<D>,
    ask: Ask<'a>,
    start: Start<ObjectOf<D>, pumice::FlashLookup>,
) -> (Ask<'a>, Option<ObjectOf<D>>, Option<u64>) {
    match start {
        Start::Ready(object) => (ask, object, None),
        Start::Flash(flash, asked_ns) => {
            let mut scratch = [0; MAX_KEY_BYTES];
            let object = match ask.key(&mut scratch) {
                Some(key) => executor.cache.finish(&executor.cx, key, flash).await,
                None => None,
            };
            (ask, object, Some(asked_ns))
        }
    }
}

/// Goes on with a run in which something waits for flash: looks up and starts reading what follows, up to a bound, and
/// answers in order. Returns when nothing waits any more.
async fn behind_flash<'a, D: Device + Clone>(
    executor: &'a Executor<D>,
    asks: &mut Asks<'a>,
    first: (Ask<'a>, Start<ObjectOf<D>, pumice::FlashLookup>),
    sender: &mut Sender<'_, D>,
    tally: &mut Tally,
) -> io::Result<()> {
    let mut waiting = FuturesOrdered::new();
    waiting.push_back(step(executor, first.0, first.1));
    // Steps that wait for flash. Once none does, the run goes on without a queue.
    let mut flash_steps = 1;
    loop {
        while flash_steps > 0 && waiting.len() < MAX_WAITING {
            let Some(ask) = asks.next() else { break };
            let mut scratch = [0; MAX_KEY_BYTES];
            let lookup = ask
                .key(&mut scratch)
                .map(|key| executor.cache.lookup(&executor.cx, key));
            let start = match lookup {
                None | Some(Lookup::Miss) => Start::Ready(None),
                Some(Lookup::Hit(object)) => Start::Ready(Some(object)),
                Some(Lookup::Flash(flash)) => {
                    flash_steps += 1;
                    Start::Flash(flash, executor.monotonic_ns())
                }
            };
            waiting.push_back(step(executor, ask, start));
        }
        let Some((ask, object, asked_ns)) = waiting.next().await else {
            return Ok(());
        };
        let operation = executor.answer(&ask, object, sender.output);
        match asked_ns {
            Some(asked_ns) => {
                flash_steps -= 1;
                let ns = executor.monotonic_ns().saturating_sub(asked_ns);
                executor.record(operation, ns, 1);
            }
            None => tally.count(operation),
        }
        sender.flush_if_large().await?;
    }
}
