//! Budgets of bytes that connections share, so that what they hold together is bounded.
//!
//! Four kinds of memory are under way at a time, each with a budget of its own ([`Budgets`]). They are taken in the order
//! `receive`, `reads`, `large`, `unsent`: whoever waits for one holds none that comes after it, nor of its own kind, so
//! nobody waits in a circle. Of `receive` alone, which has three parts ([`ReceiveBudgets`]), more is taken as more arrives: whoever
//! waits for that holds some, but waits for room for the whole as well, whose holders wait for nobody but their peers. Whoever waits for its peer is cut off if that is slow while others wait for any of them: what
//! stands behind a reply that is not taken may hold shares of every kind. Whoever waits for `unsent` has a peer that takes
//! nothing, and is cut off after a second of that if others wait for what it keeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// A peer that takes part of a budget gets one more second per this many bytes.
const SLOWEST_BYTES_PER_SEC: u64 = 64 << 10;

/// Bytes that may be under way at once. First come, first served, so a large request is not starved by small ones.
#[derive(Debug)]
pub struct ByteBudget {
    semaphore: Semaphore,
    total: u32,
    waiting: AtomicUsize,
}

/// A share of a budget, given back when dropped.
#[derive(Debug)]
pub struct Share {
    budget: Arc<ByteBudget>,
    bytes: u32,
}

impl Share {
    /// Bytes that it stands for; less than was asked for where that was more than the whole budget.
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Whether somebody waits for a share of the same budget.
    pub(super) fn is_wanted(&self) -> bool {
        self.budget.is_wanted()
    }

    /// Takes another share of the same budget into this one.
    pub(super) fn add(&mut self, mut other: Share) {
        debug_assert!(Arc::ptr_eq(&self.budget, &other.budget), "shares of two budgets");
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.semaphore.add_permits(self.bytes as usize);
    }
}

/// Counts one that waits, for as long as it does.
struct Waiting<'b>(&'b AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ByteBudget {
    /// A budget of `bytes`, at most 4 GiB.
    pub fn new(bytes: usize) -> Arc<Self> {
        let total = u32::try_from(bytes)
            .unwrap_or(u32::MAX)
            .min(u32::try_from(Semaphore::MAX_PERMITS).unwrap_or(u32::MAX));
        Arc::new(Self {
            semaphore: Semaphore::new(total as usize),
            total,
            waiting: AtomicUsize::new(0),
        })
    }

    fn capped(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.total)
    }

    /// A share of nothing.
    pub(super) fn none(this: &Arc<Self>) -> Share {
        Share {
            budget: Arc::clone(this),
            bytes: 0,
        }
    }

    /// Takes `bytes` if they are free and nobody waits. A request above the whole budget takes all of it.
    pub fn try_take(self: &Arc<Self>, bytes: usize) -> Option<Share> {
        let bytes = self.capped(bytes);
        self.semaphore.try_acquire_many(bytes).ok()?.forget();
        Some(Share {
            budget: Arc::clone(self),
            bytes,
        })
    }

    /// Waits until `bytes` are free, and takes them. A request above the whole budget waits until nothing else is under
    /// way, and takes all of it.
    pub async fn take(self: &Arc<Self>, bytes: usize) -> Share {
        if let Some(share) = self.try_take(bytes) {
            return share;
        }
        let bytes = self.capped(bytes);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        match self.semaphore.acquire_many(bytes).await {
            Ok(permit) => permit.forget(),
            Err(_) => unreachable!("the semaphore is never closed"),
        }
        Share {
            budget: Arc::clone(self),
            bytes,
        }
    }

    /// Whether somebody waits for a share.
    pub fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Bytes in all.
    pub fn total_bytes(&self) -> usize {
        self.total as usize
    }

    /// Bytes that are free.
    pub fn free_bytes(&self) -> usize {
        self.semaphore.available_permits()
    }
}

/// Sizes of the budgets, in bytes. One largest value fits into each whatever is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetSizes {
    /// Commands on their way in that are not small; beside one largest value [`BudgetSizes::BESIDE_LARGEST`] fit whatever is
    /// given.
    pub receive: usize,
    /// Objects being read, until their replies are handed to the socket.
    pub reads: usize,
    /// Large objects being read or changed; two largest values fit whatever is given.
    pub large: usize,
    /// Replies that the socket does not take at once.
    pub unsent: usize,
}

impl BudgetSizes {
    /// Bytes that the budget of what is received has at least beside one largest value.
    pub const BESIDE_LARGEST: usize = 256 << 10;
}

impl Default for BudgetSizes {
    /// 16 MiB each.
    fn default() -> Self {
        Self {
            receive: 16 << 20,
            reads: 16 << 20,
            large: 16 << 20,
            unsent: 16 << 20,
        }
    }
}

/// Values up to this length are received beside the larger ones, so that they need not wait for them.
const SMALL_VALUE_BYTES: usize = 64 << 10;

/// The parts of the budget of what is received.
#[derive(Debug)]
pub(crate) struct ReceiveBudgets {
    /// For commands in the connections' buffers, and values of at most [`SMALL_VALUE_BYTES`].
    pub(super) small: Arc<ByteBudget>,
    /// For larger values, as they arrive.
    pub(super) values: Arc<ByteBudget>,
    /// For whole values: one largest at least, and two thirds of what there is for values. Whoever waits for more of the others
    /// waits for this, too, and then needs no more: as many as it holds go on at once, however many wait with pieces.
    pub(super) whole: Arc<ByteBudget>,
}

impl ReceiveBudgets {
    fn new(bytes: usize, largest_value: usize) -> Self {
        let beside = bytes
            .saturating_sub(largest_value)
            .max(BudgetSizes::BESIDE_LARGEST);
        let small = beside / 3;
        let values = largest_value.saturating_add(beside - small);
        let whole = (values / 3 * 2).max(largest_value);
        Self {
            small: ByteBudget::new(small),
            values: ByteBudget::new(values - whole),
            whole: ByteBudget::new(whole),
        }
    }

    /// The part for a value of this length as it arrives.
    pub(super) fn of_value(&self, len: usize) -> &Arc<ByteBudget> {
        match len <= SMALL_VALUE_BYTES {
            true => &self.small,
            false => &self.values,
        }
    }

    fn is_wanted(&self) -> bool {
        [&self.small, &self.values, &self.whole]
            .into_iter()
            .any(|budget| budget.is_wanted())
    }
}

/// The budgets of all connections.
#[derive(Debug)]
pub(crate) struct Budgets {
    pub(crate) receive: ReceiveBudgets,
    pub(crate) reads: Arc<ByteBudget>,
    /// The part of the budget of reads for looking ahead. Nobody waits for it, so that what stands behind slow peers leaves
    /// the rest to others.
    pub(crate) ahead: Arc<ByteBudget>,
    pub(crate) large: Arc<ByteBudget>,
    pub(crate) unsent: Arc<ByteBudget>,
}

impl Budgets {
    /// Whether somebody waits for a share of any of them.
    pub(super) fn is_any_wanted(&self) -> bool {
        self.unsent.is_wanted() || self.is_wanted_beside_unsent()
    }

    /// Whether somebody waits for a share of any that is taken before `unsent`.
    pub(super) fn is_wanted_beside_unsent(&self) -> bool {
        self.receive.is_wanted() || self.reads.is_wanted() || self.large.is_wanted()
    }

    pub(crate) fn new(sizes: BudgetSizes, largest_value: usize) -> Self {
        let budget = |bytes: usize, least: usize| ByteBudget::new(bytes.max(least));
        let reads = (sizes.reads / 2).max(largest_value.min(2 << 20));
        Self {
            receive: ReceiveBudgets::new(sizes.receive, largest_value),
            reads: ByteBudget::new(reads),
            ahead: ByteBudget::new(sizes.reads.saturating_sub(reads)),
            large: budget(sizes.large, largest_value.saturating_mul(2)),
            unsent: budget(sizes.unsent, largest_value),
        }
    }
}

/// How long a peer has kept memory, and how many bytes it moved in that time.
pub(super) struct Pace {
    since: Instant,
    allowance: Duration,
    moved: u64,
}

impl Pace {
    pub(super) fn start(allowance: Duration) -> Self {
        Self {
            since: Instant::now(),
            allowance,
            moved: 0,
        }
    }

    /// The peer took or sent as many bytes.
    pub(super) fn moved(&mut self, bytes: usize) {
        self.moved += bytes as u64;
    }

    /// The peer was kept waiting for as long.
    pub(super) fn kept_waiting(&mut self, time: Duration) {
        self.since += time;
    }

    /// Bytes that it moved so far.
    pub(super) fn moved_bytes(&self) -> u64 {
        self.moved
    }

    /// Whether the peer is slower than one that others may be kept waiting for.
    pub(super) fn is_slow(&self) -> bool {
        self.since.elapsed() > self.allowance + Duration::from_secs(self.moved / SLOWEST_BYTES_PER_SEC)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn what_does_not_fit_waits_until_a_share_is_given_back() {
        let budget = ByteBudget::new(100);
        let first = budget.take(60).now_or_never().expect("fits");
        assert!(budget.take(50).now_or_never().is_none());
        assert!(budget.try_take(50).is_none());
        assert_eq!((budget.free_bytes(), budget.is_wanted()), (40, false));
        let mut waits = Box::pin(budget.take(50));
        assert!((&mut waits).now_or_never().is_none());
        assert!(budget.is_wanted());
        drop(first);
        let second = waits.now_or_never().expect("was given back");
        assert_eq!((budget.free_bytes(), budget.is_wanted()), (50, false));
        drop(second);
        assert_eq!(budget.free_bytes(), 100);
    }

    #[test]
    fn a_request_above_the_budget_takes_all_of_it() {
        let budget = ByteBudget::new(100);
        let all = budget
            .take(1000)
            .now_or_never()
            .expect("nothing else is under way");
        assert_eq!(budget.free_bytes(), 0);
        assert!(budget.take(1).now_or_never().is_none());
        drop(all);
        assert_eq!(budget.free_bytes(), 100);
    }
    #[test]
    fn what_is_received_has_room_for_several_whole_values_and_stays_within_its_budget() {
        const LARGEST: usize = 1 << 20;
        for (bytes, whole_values) in [(0, 1), (2 << 20, 1), (4 << 20, 2), (32 << 20, 15), (64 << 20, 30)] {
            let budgets = ReceiveBudgets::new(bytes, LARGEST);
            let parts = [&budgets.small, &budgets.values, &budgets.whole].map(|part| part.total_bytes());
            let sum: usize = parts.iter().sum();
            assert_eq!(sum, bytes.max(LARGEST + BudgetSizes::BESIDE_LARGEST));
            assert!(
                parts[0] >= BudgetSizes::BESIDE_LARGEST / 3 && parts[1] >= BudgetSizes::BESIDE_LARGEST / 2
            );
            // However many wait with pieces.
            let _pieces = budgets.values.try_take(parts[1]).expect("nobody has any");
            let shares: Vec<_> = std::iter::from_fn(|| budgets.whole.try_take(1_000_000)).collect();
            assert_eq!(shares.len(), whole_values, "{bytes}");
        }
    }
}
