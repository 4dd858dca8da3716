//! Looking after peers that keep memory of what is received until they have sent the rest.

use super::budget::Pace;
use super::connection::LOOK;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::time::Sleep;

/// Whoever sends fewer bytes than this from one look to the next sends next to nothing.
const STALLED_BYTES: u64 = 16 << 10;

/// A peer that is looked at now and then.
///
/// It is the server that may have stood still, not the peer: a peer is judged only at a look, all that has arrived is counted before
/// that, and a look that comes late says nothing.
pub(super) struct Watch {
    pace: Pace,
    look: Pin<Box<Sleep>>,
    /// When it was looked at last, and what it had sent by then, if others waited for what it keeps.
    wanted: Option<(Instant, u64)>,
}

impl Watch {
    pub(super) fn start(allowance: Duration) -> Self {
        Self {
            pace: Pace::start(allowance),
            look: Box::pin(tokio::time::sleep(LOOK)),
            wanted: None,
        }
    }

    /// The peer sent as many bytes.
    pub(super) fn moved(&mut self, bytes: usize) {
        self.pace.moved(bytes);
    }

    /// The peer was kept waiting for as long.
    pub(super) fn kept_waiting(&mut self, time: Duration) {
        self.pace.kept_waiting(time);
        self.wanted = None;
    }

    /// Ready when the peer is to be cut off. To be asked only when nothing more of it is there to be read. `is_wanted`: whether
    /// others wait for what it keeps; `must_hurry`: whether it must keep up with [`Pace::is_slow`].
    pub(super) fn poll_too_slow(
        &mut self,
        cx: &mut Context<'_>,
        is_wanted: bool,
        must_hurry: bool,
    ) -> Poll<()> {
        loop {
            ready!(self.look.as_mut().poll(cx));
            let now = Instant::now();
            self.look.as_mut().reset((now + LOOK).into());
            if self.is_stalled(now, is_wanted) || (must_hurry && self.pace.is_slow()) {
                return Poll::Ready(());
            }
        }
    }

    /// Whether the peer has sent next to nothing since the last look, and others wait for what it keeps.
    fn is_stalled(&mut self, now: Instant, is_wanted: bool) -> bool {
        let moved = self.pace.moved_bytes();
        let before = match is_wanted {
            true => self.wanted.replace((now, moved)),
            false => self.wanted.take(),
        };
        is_wanted
            && before.is_some_and(|(then, before)| {
                now.duration_since(then) < 2 * LOOK && moved - before < STALLED_BYTES
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENT: Duration = Duration::from_secs(3600);

    fn on_a_runtime(test: impl FnOnce()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        runtime.block_on(async { test() });
    }

    #[test]
    fn who_sends_next_to_nothing_between_two_looks_is_stalled_while_others_wait() {
        on_a_runtime(|| {
            let mut watch = Watch::start(PATIENT);
            let start = Instant::now();
            assert!(!watch.is_stalled(start, true), "the first look");
            watch.moved(16 << 10);
            assert!(!watch.is_stalled(start + LOOK, true));
            watch.moved((16 << 10) - 1);
            assert!(!watch.is_stalled(start + 2 * LOOK, false), "nobody waits");
            assert!(!watch.is_stalled(start + 3 * LOOK, true), "nobody waited");
            watch.moved((16 << 10) - 1);
            assert!(watch.is_stalled(start + 4 * LOOK, true));
        });
    }

    #[test]
    fn nobody_is_stalled_when_the_server_was_late_or_kept_it_waiting() {
        on_a_runtime(|| {
            let mut watch = Watch::start(PATIENT);
            let start = Instant::now();
            assert!(!watch.is_stalled(start, true));
            assert!(!watch.is_stalled(start + 2 * LOOK, true), "a look too late");
            watch.kept_waiting(LOOK);
            assert!(!watch.is_stalled(start + 3 * LOOK, true), "kept waiting");
            assert!(watch.is_stalled(start + 4 * LOOK, true));
        });
    }
}
