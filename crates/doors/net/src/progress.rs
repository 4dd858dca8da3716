//! How long a peer may do nothing: between commands, and while others wait for memory that it holds.

use crate::budget::Budgets;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::time::Sleep;

/// How often a peer that holds a share is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// Bytes that are progress.
const STEP_BYTES: usize = 16 << 10;

/// Which time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// The limit that was given.
    Limit,
    /// That of a peer which holds memory that others wait for.
    Stalled,
}

/// A timer that starts anew whenever its peer makes progress.
#[derive(Default)]
pub struct Progress {
    since: Option<Instant>,
    /// Bytes moved since, fewer than [`STEP_BYTES`].
    moved: usize,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Progress {
    /// Starts anew.
    pub fn restart(&mut self) {
        (self.since, self.moved) = (Some(Instant::now()), 0);
    }

    /// The peer sent or took as many bytes.
    pub fn moved(&mut self, bytes: usize) {
        self.moved += bytes;
        if self.moved >= STEP_BYTES {
            self.restart();
        }
    }

    /// Ready when there was no progress for `limit`, or for [`Budgets::patience`] where the peer holds a share. To be asked only when
    /// nothing more can be moved. A look that comes late says that the server stood still, not the peer, and starts anew.
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
            let look = holding.map(|_| now + LOOK);
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
            // Set anew above.
            self.timer = None;
        }
    }
}
