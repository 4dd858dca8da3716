//! Sending replies.

use super::budget::{Pace, Share};
use super::connection::LOOK;
use super::stream::Stream;
use crate::execute::{Executor, Output};
use pumice_device::Device;
use std::io;
use std::pin::pin;

/// Replies are sent when this many bytes wait, or when no whole command is left.
const FLUSH_BYTES: usize = 64 << 10;

/// A connection that waits for flash or for a share keeps no more unsent text than this.
const KEEP_WAITING_BYTES: usize = 4 << 10;

/// Sends replies.
pub(super) struct Sender<'c, D: Device + Clone> {
    pub(super) executor: &'c Executor<D>,
    pub(super) stream: &'c mut Stream,
    pub(super) output: &'c mut Output<D::Buf>,
    /// Whether a reply that waits is about a change.
    pub(super) changed: &'c mut bool,
    /// Bytes sent since the socket was known to have room.
    pub(super) unproven: &'c mut usize,
    /// Memory of commands that wait to be executed and have no share of a budget.
    pub(super) input_bytes: usize,
}

impl<D: Device + Clone> Sender<'_, D> {
    /// Sends what waits if it is much.
    pub(super) async fn flush_if_large(&mut self) -> io::Result<()> {
        if self.output.pending() < FLUSH_BYTES {
            return Ok(());
        }
        self.flush().await?;
        self.wait_for_room().await
    }

    /// Before waiting for something else than the peer: sends what would hold memory meanwhile.
    pub(super) async fn flush_before_waiting(&mut self) -> io::Result<()> {
        if self.output.pending() <= KEEP_WAITING_BYTES && !self.output.holds_objects() {
            return Ok(());
        }
        self.flush().await?;
        self.wait_for_room().await
    }

    /// Waits for a peer that has not taken what it was sent lately, so that nothing is looked up for it meanwhile: what it asks
    /// for takes memory only when there is room for it in its socket. Nothing waits to be sent. Cost: a call of the system for
    /// each 64 KiB sent.
    pub(super) async fn wait_for_room(&mut self) -> io::Result<()> {
        let mut held = None;
        while !self.has_room()? {
            let held = match &held {
                Some(held) => held,
                None => match self.hold(0).await? {
                    Some(now) => held.insert(now),
                    None => continue,
                },
            };
            self.wait_for_peer(held).await?;
        }
        Ok(())
    }

    /// Whether the peer may be sent more: it was sent little since its socket had room, or there is room now.
    pub(super) fn has_room(&mut self) -> io::Result<bool> {
        let has_room = *self.unproven < FLUSH_BYTES || self.stream.has_room()?;
        if has_room && *self.unproven >= FLUSH_BYTES {
            *self.unproven = 0;
        }
        Ok(has_room)
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
        loop {
            let step = if sent < pending {
                let stream = &mut *self.stream;
                self.output.write_from(sent, |slices| stream.try_write(slices))
            } else {
                self.stream.flush().map(|()| pending)
            };
            match step {
                Ok(now) if now == sent && sent < pending => return Err(io::ErrorKind::WriteZero.into()),
                Ok(now) => {
                    if let Some(held) = &mut held {
                        held.pace.moved(now - sent);
                    }
                    sent = now;
                    if sent == pending && self.stream.unsent_bytes() == 0 {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let held = match &held {
                        Some(held) => held,
                        None => match self.hold(pending - sent).await? {
                            Some(now) => held.insert(now),
                            None => continue,
                        },
                    };
                    self.wait_for_peer(held).await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        *self.unproven = self.unproven.saturating_add(sent);
        self.executor.stats().counters.bytes_written.add(sent as u64);
        Ok(())
    }

    /// What waits from now on belongs to the connection alone: it pins no memory of the cache and takes no share of what is
    /// read. The commands behind it wait, too. `None` if the peer took something before there was memory for that: until then
    /// the connection keeps what others read with, so that it is cut off if it takes nothing while they wait.
    async fn hold(&mut self, unsent: usize) -> io::Result<Option<Held>> {
        let shared = &self.executor.shared;
        let bytes = unsent + self.stream.unsent_bytes() + self.input_bytes;
        let mut share = pin!(shared.budgets.unsent.take(bytes));
        let share = loop {
            tokio::select! {
                biased;
                share = &mut share => break share,
                ready = self.stream.writable() => return ready.map(|()| None),
                () = tokio::time::sleep(LOOK) => if shared.budgets.is_wanted_beside_unsent() {
                    return Err(self.cut_off());
                }
            }
        };
        self.output.detach();
        Ok(Some(Held {
            _share: share,
            pace: Pace::start(shared.config.peer_timeout),
        }))
    }

    fn cut_off(&self) -> io::Error {
        self.executor.stats().counters.slow_peers_closed.add(1);
        io::ErrorKind::TimedOut.into()
    }

    async fn wait_for_peer(&self, held: &Held) -> io::Result<()> {
        let shared = &self.executor.shared;
        loop {
            let ready = tokio::time::timeout(LOOK, self.stream.writable()).await;
            if held.pace.is_slow() && shared.budgets.is_any_wanted() {
                return Err(self.cut_off());
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
