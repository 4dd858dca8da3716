//! Locks of ranges, first come, first served. Ranges that do not overlap do not wait for each other.

use locks::Mutex;
use std::ops::{Deref, Range};
use std::task::{Poll, Waker};

struct Entry {
    id: u64,
    range: Range<u64>,
    /// Set while it waits for an overlapping entry before it.
    waker: Option<Waker>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// Held and waiting ranges, in order of arrival.
    entries: Vec<Entry>,
}

/// Locks of ranges of numbers. A lock takes time linear in the ranges that are held and waiting.
#[derive(Default)]
pub(crate) struct RangeLocks(Mutex<State>);

/// A range that is locked or waits, until dropped.
pub(crate) struct Held<L: Deref<Target = RangeLocks>> {
    locks: L,
    id: u64,
}

impl RangeLocks {
    /// Locks a range, unless an overlapping one is locked or waited for.
    pub(crate) fn try_lock(&self, range: Range<u64>) -> Option<Held<&Self>> {
        let mut state = self.0.lock();
        if state.entries.iter().any(|entry| overlap(&entry.range, &range)) {
            return None;
        }
        let (id, waker) = (state.next, None);
        state.next += 1;
        state.entries.push(Entry { id, range, waker });
        Some(Held { locks: self, id })
    }

    /// Locks a range: waits for all overlapping ranges that came before.
    pub(crate) async fn lock(&self, range: Range<u64>) -> Held<&Self> {
        let held = Held::queue(self, range);
        held.turn().await;
        held
    }

    /// Waits for all overlapping ranges that are locked or wait now.
    pub(crate) async fn passed(&self, range: Range<u64>) {
        let is_free = |entry: &Entry| !overlap(&entry.range, &range);
        let is_free = self.0.lock().entries.iter().all(is_free);
        if !is_free {
            self.lock(range).await;
        }
    }
}

impl<L: Deref<Target = RangeLocks>> Held<L> {
    /// Takes a place behind all ranges that came before: it is locked after its [`turn`](Self::turn).
    pub(crate) fn queue(locks: L, range: Range<u64>) -> Self {
        let id = {
            let mut state = locks.0.lock();
            let (id, waker) = (state.next, None);
            state.next += 1;
            state.entries.push(Entry { id, range, waker });
            id
        };
        Self { locks, id }
    }

    /// Waits until all overlapping ranges that came before are unlocked.
    pub(crate) async fn turn(&self) {
        std::future::poll_fn(|context| {
            let mut state = self.locks.0.lock();
            let at = self.position_in(&state.entries);
            let (before, others) = state.entries.split_at_mut(at);
            let this = &mut others[0];
            if before.iter().any(|entry| overlap(&entry.range, &this.range)) {
                this.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
    }

    fn position_in(&self, entries: &[Entry]) -> usize {
        let found = entries.binary_search_by_key(&self.id, |entry| entry.id);
        found.expect("an entry goes with what holds it")
    }
}

impl<L: Deref<Target = RangeLocks>> Drop for Held<L> {
    fn drop(&mut self) {
        let woken: Vec<Waker> = {
            let mut state = self.locks.0.lock();
            let at = self.position_in(&state.entries);
            let range = state.entries.remove(at).range;
            let mut woken = Vec::new();
            for at in at..state.entries.len() {
                let (before, others) = state.entries.split_at_mut(at);
                let entry = &mut others[0];
                // Wake only entries that wait for no other one.
                let is_next = overlap(&entry.range, &range)
                    && !before.iter().any(|before| overlap(&before.range, &entry.range));
                woken.extend(entry.waker.take_if(|_| is_next));
            }
            woken
        };
        woken.into_iter().for_each(Waker::wake);
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}
