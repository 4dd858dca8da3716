//! Sending replies.

use crate::execute::{Executor, Large, Output};
use pumice::Permits;
use pumice_device::Device;
use pumice_net::Progress;
use pumice_net::Share;
use pumice_net::Stream;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;

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
    /// Memory of commands that wait to be executed, and whether it stands under a share.
    pub(super) input_bytes: usize,
    pub(super) holds_share: bool,
    /// Whether what was read last has had a share of the budget for replies.
    pub(super) had_share: bool,
    /// Of that budget, for the large value that is being sent.
    pub(super) value_share: Option<Share>,
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
        let mut stall = Stall::default();
        while !self.has_room()? {
            self.wait_for_peer(&mut stall, 0).await?;
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
        if std::mem::take(self.changed) {
            // A change is not reported before it is as durable as was promised; if it cannot be, not at all.
            let committed = self.executor.cache.commit(&self.executor.cx).await;
            committed.inspect_err(|error| tracing::warn!(%error, "cannot make changes durable"))?;
        }
        while let Some((mut large, rest)) = self.output.cut_at_large() {
            self.value_share = large.share.take();
            self.send().await?;
            Box::pin(self.send_large(large)).await?;
            self.value_share = None;
            *self.output = rest;
        }
        self.send().await
    }

    /// Reads and sends a large value, a few slices at a time, all under one share: the first byte goes out before the last is read. Nothing
    /// else waits to be sent. Fails where it was evicted meanwhile: the peer has to see that it is not whole.
    async fn send_large(&mut self, Large { object, from, .. }: Large<D::Buf>) -> io::Result<()> {
        let executor = self.executor;
        let mut reader = executor.cache.reader(&executor.cx, object.key(), &object);
        reader.range(from..u64::MAX);
        while reader.left() > 0 {
            // Nothing is read for a peer that takes nothing more.
            self.wait_for_room().await?;
            if self.value_share.is_none() {
                let bytes = reader.next_bytes();
                self.value_share = Some(executor.shared.budgets.output.take(bytes).await);
            }
            let read = reader.read().await.map_err(io::Error::other)?;
            self.output
                .pieces(read.ok_or(io::ErrorKind::UnexpectedEof)?, None);
            self.send().await?;
        }
        self.had_share = true;
        Ok(())
    }

    async fn send(&mut self) -> io::Result<()> {
        let pending = self.output.pending();
        let mut sent = 0;
        let mut stall = Stall::default();
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
                    stall.progress.moved(now - sent);
                    sent = now;
                    if sent == pending && self.stream.unsent_bytes() == 0 {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait_for_peer(&mut stall, pending - sent).await?;
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

    /// Waits until the peer may be sent more. What waits takes a share of the large lane, unless it holds one; then it pins no memory
    /// of the cache and holds no share of the small lane. Fails where the peer makes no progress while anybody waits for memory.
    async fn wait_for_peer(&mut self, stall: &mut Stall, unsent: usize) -> io::Result<()> {
        let shared = &self.executor.shared;
        let input_bytes = if self.holds_share { 0 } else { self.input_bytes };
        let bytes = unsent + self.stream.unsent_bytes() + input_bytes;
        let holds_objects = self.output.holds_objects() || self.value_share.is_some();
        if bytes <= KEEP_WAITING_BYTES && !self.holds_share && !holds_objects {
            // As much as each connection may keep.
            return self.stream.writable().await;
        }
        let holds_large_share =
            self.output.holds_large_share() || self.value_share.as_ref().is_some_and(Share::is_large);
        if stall.share.is_none() && holds_large_share {
            self.output.detach();
        } else if stall.share.is_none() && stall.taking.is_none() {
            stall.taking = Some(Box::pin(
                Arc::clone(&shared.budgets.output.large).take(bytes, false),
            ));
            stall.progress.restart();
        }
        loop {
            let Stall {
                taking,
                share,
                progress,
            } = &mut *stall;
            tokio::select! {
                biased;
                taken = async { taking.as_mut().expect("is some").await }, if taking.is_some() => {
                    (*taking, *share) = (None, Some(taken));
                    self.output.detach();
                    // It was one of the small lane.
                    self.value_share = None;
                }
                ready = self.stream.writable() => return ready,
                _ = poll_fn(|cx| progress.poll_late(cx, None, Some(&shared.budgets))) => {
                    self.executor.stats().counters.slow_peers_closed.add(1);
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
        }
    }
}

impl<D: Device + Clone> Permits for Sender<'_, D> {
    type Permit = Share;
    type Refusal = io::Error;

    /// Waits for a share of the budget for replies, when everything is sent that stands under another.
    async fn take(&mut self, bytes: usize) -> io::Result<Share> {
        self.flush_before_waiting().await?;
        let output = &self.executor.shared.budgets.output;
        Ok(match std::mem::replace(&mut self.had_share, true) {
            true => output.take_more(bytes).await,
            false => output.take(bytes).await,
        })
    }
}

/// A peer that has to be waited for.
#[derive(Default)]
struct Stall {
    /// The share for what waits, while that has to be waited for.
    taking: Option<Pin<Box<dyn Future<Output = Share>>>>,
    share: Option<Share>,
    progress: Progress,
}
