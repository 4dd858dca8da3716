//! Progress check of peers: between commands, and while others wait for memory that a peer holds.

use crate::budget::Budgets;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::time::Sleep;

/// Longest interval of checks of a peer that holds a share.
const LOOK: Duration = Duration::from_millis(250);

/// Bytes that count as progress.
const STEP_BYTES: usize = 16 << 10;

/// The deadline that has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// The limit given.
    Limit,
    /// The deadline of a peer that holds memory others wait for.
    Stalled,
}

/// A timer that progress of its peer restarts.
#[derive(Default)]
pub struct Progress {
    since: Option<Instant>,
    /// Bytes moved since, fewer than [`STEP_BYTES`].
    moved: usize,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Progress {
    /// Restarts the timer.
    pub fn restart(&mut self) {
        (self.since, self.moved) = (Some(Instant::now()), 0);
    }

    /// Notes that the peer sent or received `bytes`.
    pub fn moved(&mut self, bytes: usize) {
        self.moved += bytes;
        if self.moved >= STEP_BYTES {
            self.restart();
        }
    }

    /// Ready after `limit` without progress, or after [`Budgets::patience`] if the peer holds a share. Poll it only when no byte can be
    /// moved. A check that runs late shows that the server stalled, not the peer, and restarts the timer.
    pub fn poll_late(
        &mut self,
        cx: &mut Context<'_>,
        limit: Option<Duration>,
        holding: Option<&Budgets>,
    ) -> Poll<Late> {
        if limit.is_none() && holding.is_none() {
            self.timer = None;
            return Poll::Pending;
        }
        let mut now = Instant::now();
        loop {
            let since = *self.since.get_or_insert(now);
            let end = limit.map(|limit| since + limit);
            let patience = holding.and_then(Budgets::patience);
            let look = holding.map(|_| match patience {
                Some(patience) => (since + patience).clamp(now, now + LOOK),
                None => now + LOOK,
            });
            let Some(due) = end.into_iter().chain(look).min() else {
                return Poll::Pending;
            };
            let timer = self
                .timer
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due.into())));
            if timer.deadline() > due.into() {
                timer.as_mut().reset(due.into());
            }
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let looked_for = timer.deadline().into_std();
            now = Instant::now();
            if end.is_some_and(|end| now >= end) {
                return Poll::Ready(Late::Limit);
            }
            if let Some(patience) = holding.and_then(Budgets::patience)
                && now >= since + patience
            {
                if now < looked_for + LOOK {
                    return Poll::Ready(Late::Stalled);
                }
                self.restart();
            }
            // The loop sets a new one.
            self.timer = None;
        }
    }
}
