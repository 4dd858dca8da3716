//! Sending replies.

use super::budget::{Pace, Share};
use super::stream::Stream;
use crate::execute::{Executor, Output};
use pumice_device::Device;
use std::io;
use std::time::Duration;

/// Replies are sent when this many bytes wait, or when no whole command is left.
const FLUSH_BYTES: usize = 64 << 10;

/// A connection that waits for flash or for a share keeps no more unsent text than this.
const KEEP_WAITING_BYTES: usize = 4 << 10;

/// How often a peer that takes its time is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Sends replies.
pub(super) struct Sender<'c, D: Device + Clone> {
    pub(super) executor: &'c Executor<D>,
    pub(super) stream: &'c Stream,
    pub(super) output: &'c mut Output<D::Buf>,
    /// Whether a reply that waits is about a change.
    pub(super) changed: &'c mut bool,
}

impl<D: Device + Clone> Sender<'_, D> {
    /// Sends what waits if it is much.
    pub(super) async fn flush_if_large(&mut self) -> io::Result<()> {
        if self.output.pending() < FLUSH_BYTES {
            return Ok(());
        }
        self.flush().await
    }

    /// Before waiting for something else than the peer: sends what would hold memory meanwhile.
    pub(super) async fn flush_before_waiting(&mut self) -> io::Result<()> {
        if self.output.pending() <= KEEP_WAITING_BYTES && !self.output.holds_objects() {
            return Ok(());
        }
        self.flush().await
    }

    /// Sends all that waits. A peer that does not read is waited for, and is not read from meanwhile.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        let pending = self.output.pending();
        if std::mem::take(self.changed) {
            // A change is not reported before it is as durable as was promised; if it cannot be, not at all.
            let committed = self.executor.cache.commit(&self.executor.cx).await;
            committed.inspect_err(|error| tracing::warn!(%error, "cannot make changes durable"))?;
        }
        let mut sent = 0;
        let mut held: Option<Held> = None;
        while sent < pending {
            match self
                .output
                .write_from(sent, |slices| self.stream.try_write(slices))
            {
                Ok(now) if now == sent => return Err(io::ErrorKind::WriteZero.into()),
                Ok(now) => {
                    if let Some(held) = &mut held {
                        held.pace.moved(now - sent);
                    }
                    sent = now;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let held = match &held {
                        Some(held) => held,
                        None => held.insert(self.hold(sent).await),
                    };
                    self.wait_for_peer(held).await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.executor.stats().counters.bytes_written.add(sent as u64);
        Ok(())
    }

    /// What waits from now on belongs to the connection alone: it pins no memory of the cache and takes no share of what is
    /// read.
    async fn hold(&mut self, sent: usize) -> Held {
        let shared = &self.executor.shared;
        let share = shared.budgets.unsent.take(self.output.pending() - sent).await;
        self.output.detach();
        Held {
            _share: share,
            pace: Pace::start(shared.config.peer_timeout),
        }
    }

    async fn wait_for_peer(&self, held: &Held) -> io::Result<()> {
        let shared = &self.executor.shared;
        loop {
            let ready = tokio::time::timeout(LOOK, self.stream.writable()).await;
            if held.pace.is_slow() && shared.budgets.is_any_wanted() {
                self.executor.stats().counters.slow_peers_closed.add(1);
                return Err(io::ErrorKind::TimedOut.into());
            }
            if let Ok(ready) = ready {
                return ready;
            }
        }
    }
}

struct Held {
    _share: Share,
    pace: Pace,
}
