//! Memory that connections share: a budget for commands on their way in, and one for replies on their way out.
//!
//! Each budget has a lane for small requests and one for large requests, so that small ones never wait for large ones. A reply that its
//! peer does not receive moves to the large lane of the budget for replies. Lanes are acquired in the order in, out small, out large; a
//! connection that waits for a share holds none of that lane or a later one. That rules out deadlock. While connections wait, a peer that
//! holds a share and makes no progress is cut off: see [`Budgets::patience`].

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Requests up to this many bytes are small.
pub const SMALL_BYTES: usize = 64 << 10;

/// The small lane has at least this many bytes.
const SMALL_LANE_MIN_BYTES: usize = 256 << 10;

/// A connection that waits gets its share after about this long, however many peers before it are stalled.
const QUEUE_MAX: Duration = Duration::from_secs(3);

/// Bounds of [`Budgets::patience`]. Below the least, a peer that is only far away, or waits for a processor, would count as stalled.
const PATIENCE_MAX: Duration = Duration::from_secs(1);
const PATIENCE_MIN: Duration = Duration::from_millis(10);

/// Bytes that may be held at once. First come, first served; but who had a share already, and asks for more, stands in a queue of its own,
/// and only its first is among the others.
#[derive(Debug)]
pub struct Lane {
    semaphore: Semaphore,
    more: Semaphore,
    total: u32,
    is_large: bool,
    /// Connections that wait for a share of any lane.
    queue: Arc<Queue>,
}

/// A share of a lane, given back when dropped.
#[derive(Debug)]
pub struct Share {
    lane: Arc<Lane>,
    bytes: u32,
}

impl Share {
    /// Bytes of the share; less than requested if the request was above the lane.
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Whether it is a share of a large lane, which may be held while waiting for a peer.
    pub fn is_large(&self) -> bool {
        self.lane.is_large
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.lane.semaphore.add_permits(self.bytes as usize);
    }
}

/// Connections that wait, each by the time since when it does and a number of its own.
#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<BTreeSet<(Instant, u64)>>,
    next: AtomicU64,
}

impl Queue {
    fn change<T>(&self, change: impl FnOnce(&mut BTreeSet<(Instant, u64)>) -> T) -> T {
        change(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts a connection that waits from `since` on.
    fn wait(&self, since: Instant) -> Waiting<'_> {
        let place = (since, self.next.fetch_add(1, Ordering::Relaxed));
        self.change(|waiting| waiting.insert(place));
        Waiting { queue: self, place }
    }
}

/// A connection that waits.
struct Waiting<'q> {
    queue: &'q Queue,
    place: (Instant, u64),
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.queue.change(|waiting| waiting.remove(&self.place));
    }
}

impl Lane {
    fn new(bytes: usize, is_large: bool, queue: &Arc<Queue>) -> Arc<Self> {
        let most = u32::try_from(Semaphore::MAX_PERMITS).unwrap_or(u32::MAX);
        let total = u32::try_from(bytes).unwrap_or(u32::MAX).min(most);
        Arc::new(Self {
            semaphore: Semaphore::new(total as usize),
            more: Semaphore::new(1),
            total,
            is_large,
            queue: Arc::clone(queue),
        })
    }

    /// Takes `bytes` if they are free and no connection waits. A request above the lane takes all of it.
    fn try_take(self: &Arc<Self>, bytes: usize) -> Option<Share> {
        let bytes = self.at_most(bytes);
        self.semaphore.try_acquire_many(bytes).ok()?.forget();
        let lane = Arc::clone(self);
        Some(Share { lane, bytes })
    }

    /// Takes `bytes` for reading ahead, if half of the lane stays free.
    pub fn try_take_ahead(self: &Arc<Self>, bytes: usize) -> Option<Share> {
        let spare = self
            .semaphore
            .available_permits()
            .saturating_sub(self.total_bytes() / 2);
        (bytes <= spare).then(|| self.try_take(bytes)).flatten()
    }

    /// Waits until `bytes` are free, and takes them. A request above the lane waits for all of it. With `is_more` the connection had a share
    /// since it was read from last.
    pub async fn take(self: Arc<Self>, bytes: usize, is_more: bool) -> Share {
        if let Some(share) = self.try_take(bytes) {
            return share;
        }
        let bytes = self.at_most(bytes);
        let waiting = self.queue.wait(Instant::now());
        let turn = match is_more {
            true => Some(self.more.acquire().await),
            false => None,
        };
        match self.semaphore.acquire_many(bytes).await {
            Ok(permit) => permit.forget(),
            Err(_) => unreachable!("the semaphore is never closed"),
        }
        drop((turn, waiting));
        Share { lane: self, bytes }
    }

    fn at_most(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.total)
    }

    /// Size of the lane, in bytes.
    pub fn total_bytes(&self) -> usize {
        self.total as usize
    }
}

/// A budget with its two lanes.
#[derive(Debug)]
pub struct Budget {
    /// The lane for small requests.
    pub small: Arc<Lane>,
    /// The lane for large ones.
    pub large: Arc<Lane>,
}

impl Budget {
    fn new(bytes: usize, largest_value: usize, queue: &Arc<Queue>) -> Self {
        let [small, large] = lanes(bytes, largest_value);
        Self {
            small: Lane::new(small, false, queue),
            large: Lane::new(large, true, queue),
        }
    }

    /// Waits until `bytes` are free in the lane for requests of this size, and takes them.
    pub async fn take(&self, bytes: usize) -> Share {
        Arc::clone(self.lane(bytes)).take(bytes, false).await
    }

    /// As [`Budget::take`], for a connection that had a share since it was read from last: others come first.
    pub async fn take_more(&self, bytes: usize) -> Share {
        Arc::clone(self.lane(bytes)).take(bytes, true).await
    }

    fn lane(&self, bytes: usize) -> &Arc<Lane> {
        match bytes <= SMALL_BYTES {
            true => &self.small,
            false => &self.large,
        }
    }
}

/// Bytes of the small and the large lane of a budget of `bytes`: a quarter and the rest. The large lane always has room for two largest
/// values, the old and the new one of a change.
fn lanes(bytes: usize, largest_value: usize) -> [usize; 2] {
    let large = (bytes / 4 * 3).max(largest_value.saturating_mul(2));
    [bytes.saturating_sub(large).max(SMALL_LANE_MIN_BYTES), large]
}

/// Sizes of the budgets, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetSizes {
    /// For commands on their way in, beyond the first KiB of each connection.
    pub input: usize,
    /// For objects that are read or changed, and replies that the peer does not receive.
    pub output: usize,
}

impl BudgetSizes {
    /// Bytes of both budgets, if values have up to `largest_value` bytes. Exceeds the sum of the sizes where two such values need more.
    pub fn total(&self, largest_value: usize) -> usize {
        let sum = |bytes| lanes(bytes, largest_value).iter().sum::<usize>();
        sum(self.input) + sum(self.output)
    }
}

impl Default for BudgetSizes {
    /// 16 MiB in, 32 MiB out.
    fn default() -> Self {
        Self {
            input: 16 << 20,
            output: 32 << 20,
        }
    }
}

/// The budgets of all connections.
#[derive(Debug)]
pub struct Budgets {
    /// For requests on their way in.
    pub input: Budget,
    /// For replies on their way out.
    pub output: Budget,
    queue: Arc<Queue>,
}

impl Budgets {
    /// Budgets of these sizes, for values of up to `largest_value` bytes.
    pub fn new(sizes: BudgetSizes, largest_value: usize) -> Self {
        let queue = Arc::default();
        Self {
            input: Budget::new(sizes.input, largest_value, &queue),
            output: Budget::new(sizes.output, largest_value, &queue),
            queue,
        }
    }

    /// Longest time without progress of a peer that holds a share; `None` while no connection waits. It shrinks from 1 s to 10 ms the more
    /// connections wait, and the longer the first of them does: so that all of them have their turn within [`QUEUE_MAX`], even if every peer
    /// before them is stalled, and one alone has all of a lane.
    pub fn patience(&self) -> Option<Duration> {
        let (first, waiting) = self
            .queue
            .change(|waiting| Some((waiting.first()?.0, waiting.len())))?;
        let left = QUEUE_MAX.saturating_sub(first.elapsed());
        let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
        Some((left / waiting).clamp(PATIENCE_MIN, PATIENCE_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn budgets() -> Budgets {
        let sizes = BudgetSizes {
            input: 0,
            output: 4 << 20,
        };
        Budgets::new(sizes, 1 << 20)
    }

    #[test]
    fn a_small_request_does_not_wait_for_large_ones() {
        let budgets = budgets();
        let output = &budgets.output;
        let large: Vec<_> = (0..3)
            .map(|_| output.take(1 << 20).now_or_never().expect("fits"))
            .collect();
        let mut waits = Box::pin(output.take(1 << 20));
        assert!((&mut waits).now_or_never().is_none());
        let small = output
            .take(SMALL_BYTES)
            .now_or_never()
            .expect("has a lane of its own");
        assert_eq!((small.is_large(), large[0].is_large()), (false, true));
        drop(large);
        assert!(waits.now_or_never().is_some());
    }

    #[test]
    fn a_request_above_the_lane_takes_all_of_it() {
        let budgets = budgets();
        let large = &budgets.input.large;
        let all = budgets
            .input
            .take(100 << 20)
            .now_or_never()
            .expect("nothing else is taken");
        assert_eq!(all.bytes(), 2 << 20);
        assert!(Arc::clone(large).take(1, false).now_or_never().is_none());
        drop(all);
        assert_eq!(large.semaphore.available_permits(), 2 << 20);
    }

    #[test]
    fn who_had_a_share_waits_behind_those_who_had_none() {
        let budgets = budgets();
        let large = &budgets.input.large;
        let all = budgets
            .input
            .take(2 << 20)
            .now_or_never()
            .expect("nothing else is taken");
        let polled = |future: &mut std::pin::Pin<Box<dyn Future<Output = Share>>>| future.now_or_never();
        let wait = |is_more| -> std::pin::Pin<Box<dyn Future<Output = Share>>> {
            Box::pin(Arc::clone(large).take(2 << 20, is_more))
        };
        let [mut first, mut second, mut other] = [wait(true), wait(true), wait(false)];
        for waits in [&mut first, &mut second, &mut other] {
            assert!(polled(waits).is_none());
        }
        // The first of those who had one came before the other.
        drop(all);
        let share = polled(&mut first).expect("it is its turn");
        assert!(polled(&mut second).is_none() && polled(&mut other).is_none());
        drop(share);
        let share = polled(&mut other).expect("it has had none");
        assert!(polled(&mut second).is_none());
        drop(share);
        assert!(polled(&mut second).is_some());
    }

    #[test]
    fn half_of_a_lane_is_not_for_reading_ahead() {
        let small = &budgets().output.small;
        let half = small.total_bytes() / 2;
        assert!(small.try_take_ahead(half + 1).is_none());
        let ahead = small.try_take_ahead(half);
        assert!(ahead.is_some() && small.try_take_ahead(1).is_none());
    }

    #[test]
    fn patience_ends_sooner_the_more_wait_and_the_longer() {
        let budgets = budgets();
        let patience = |waiting: u64, secs: u64| {
            let since = Instant::now() - Duration::from_secs(secs);
            let waiting: Vec<_> = (0..waiting).map(|_| budgets.queue.wait(since)).collect();
            let patience = budgets.patience();
            drop(waiting);
            // A moment has passed since.
            patience.map(|patience| patience.as_millis().next_multiple_of(10))
        };
        let all = [0, 1, 6, 10, 30, 1000].map(|waiting| patience(waiting, 0));
        assert_eq!(all, [None, Some(1000), Some(500), Some(300), Some(100), Some(10)]);
        let all = [1, 2, 3, 9].map(|secs| patience(5, secs));
        assert_eq!(all, [Some(400), Some(200), Some(10), Some(10)]);
        assert_eq!(budgets.patience(), None);
    }

    #[test]
    fn two_largest_values_fit_whatever_is_given() {
        for (bytes, largest, small, large) in [
            (0, 1 << 20, 256 << 10, 2 << 20),
            (4 << 20, 1 << 20, 1 << 20, 3 << 20),
            (8 << 20, 100, 2 << 20, 6 << 20),
        ] {
            assert_eq!(lanes(bytes, largest), [small, large]);
        }
    }
}
