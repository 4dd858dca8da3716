//! Lists keys to one client, with other connections' turns between the pieces.

use super::progress::LOOK;
use super::sender::Sender;
use crate::execute::{Executor, KeyDump};
use pumice_device::Device;
use std::io;
use std::pin::pin;
use std::time::{Duration, Instant};

/// What a step holds: some 400 objects, and their lines.
const STEP_BYTES: usize = 256 << 10;

/// How long a client that takes nothing is waited for where another has asked for a list.
const PATIENCE: Duration = Duration::from_secs(1);

/// Answers `lru_crawler metadump`. A client that does not take the lines is waited for, and nothing is read ahead of it, until
/// another client asks for a list.
pub(super) async fn run<D: Device + Clone>(
    executor: &Executor<D>,
    class_1: bool,
    sender: &mut Sender<'_, D>,
) -> io::Result<()> {
    if !class_1 {
        crate::execute::end_key_dump(sender.output);
        return Ok(());
    }
    let Some(mut dump) = KeyDump::begin(executor, sender.output) else {
        return Ok(());
    };
    loop {
        // Whoever waits for a share holds none.
        send(executor, &dump, sender).await?;
        let share = executor.shared.budgets.output.take(STEP_BYTES).await;
        let goes_on = dump.step(sender.output);
        drop(share);
        if !goes_on {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
}

/// Sends what a step has found: less than a peer takes in that time that is not too slow.
async fn send<D: Device + Clone>(
    executor: &Executor<D>,
    dump: &KeyDump<'_, D>,
    sender: &mut Sender<'_, D>,
) -> io::Result<()> {
    let started = Instant::now();
    let mut flush = pin!(sender.flush_before_waiting());
    loop {
        if let Ok(sent) = tokio::time::timeout(LOOK, flush.as_mut()).await {
            return sent;
        }
        if started.elapsed() >= PATIENCE && dump.is_wanted() {
            executor.stats().counters.slow_peers_closed.add(1);
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}
