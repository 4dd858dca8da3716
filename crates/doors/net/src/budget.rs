//! Memory that connections share: a budget for commands on their way in, and one for replies on their way out.
//!
//! Each budget has a lane for small requests and one for large requests, so that small ones never wait for large ones. A reply that its
//! peer does not receive moves to the large lane of the budget for replies. Lanes are acquired in the order in, out small, out large; a
//! connection that waits for a share holds none of that lane or a later one. That rules out deadlock. While connections wait, a peer that
//! holds a share and makes no progress is cut off: see [`Budgets::patience`]. That frees a lane that stalled peers fill, but no faster than
//! an honest peer may be slow; so where the first of a line has waited for long, every second turn is the last comer's.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Requests up to this many bytes are small.
pub const SMALL_BYTES: usize = 64 << 10;

/// Longer values are transferred in pieces, with two bytes that end them.
const WHOLE_BYTES_MAX: usize = (1 << 20) + 2;

/// The small lane has at least this many bytes.
const SMALL_LANE_MIN_BYTES: usize = 256 << 10;

/// While the first in line has waited for this long, every second turn is the last comer's.
const LONG_WAIT: Duration = Duration::from_secs(1);

/// Bounds of [`Budgets::patience`], and how many may wait before it shrinks. Below the least, a peer that is only far away, or waits for a
/// processor, would count as stalled.
const PATIENCE_MAX: Duration = Duration::from_secs(1);
const PATIENCE_MIN: Duration = Duration::from_millis(250);
const FEW_WAITING: u32 = 8;

/// Bytes that may be held at once, and the connections in line for them.
#[derive(Debug)]
pub struct Lane {
    line: Mutex<Line>,
    total: u32,
    is_large: bool,
    /// Connections in line, of all lanes.
    waiting: Arc<AtomicUsize>,
}

/// First come, first served, unless the first has waited for [`LONG_WAIT`].
#[derive(Debug)]
struct Line {
    free: u32,
    /// By numbers that count up.
    waiting: BTreeMap<u64, Waiter>,
    next_number: u64,
    is_last_comers_turn: bool,
}

/// A connection in line.
#[derive(Debug)]
struct Waiter {
    since: Instant,
    bytes: u32,
    /// It had a share since it was read from last, so it counts as no new comer.
    is_more: bool,
    turn: oneshot::Sender<Share>,
}

impl Line {
    /// Takes out the connection whose turn it is, with its bytes, if they are free.
    fn next(&mut self) -> Option<Waiter> {
        let (first, waiter) = self.waiting.first_key_value()?;
        let last_comer = (self.is_last_comers_turn && waiter.since.elapsed() >= LONG_WAIT)
            .then(|| self.waiting.iter().rev().find(|(_, waiter)| !waiter.is_more))
            .flatten();
        let (number, waiter) = last_comer.unwrap_or((first, waiter));
        let (number, free) = (*number, self.free.checked_sub(waiter.bytes)?);
        self.free = free;
        self.is_last_comers_turn = !self.is_last_comers_turn;
        self.waiting.remove(&number)
    }
}

/// The place of a connection in a line; it leaves the line when this is dropped.
struct Place<'l> {
    lane: &'l Arc<Lane>,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.lane.waiting.fetch_sub(1, Ordering::Relaxed);
        self.lane.change(|line| line.waiting.remove(&self.number));
    }
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
        self.lane.change(|line| line.free += self.bytes);
    }
}

impl Lane {
    fn new(bytes: usize, is_large: bool, waiting: &Arc<AtomicUsize>) -> Arc<Self> {
        let total = u32::try_from(bytes).unwrap_or(u32::MAX);
        Arc::new(Self {
            line: Mutex::new(Line {
                free: total,
                waiting: BTreeMap::new(),
                next_number: 0,
                is_last_comers_turn: false,
            }),
            total,
            is_large,
            waiting: Arc::clone(waiting),
        })
    }

    /// Changes the line, and gives their shares to all whose turn it is then.
    fn change<T>(self: &Arc<Self>, change: impl FnOnce(&mut Line) -> T) -> T {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut line);
        let served: Vec<_> = std::iter::from_fn(|| line.next()).collect();
        drop(line);
        for Waiter { bytes, turn, .. } in served {
            let lane = Arc::clone(self);
            // If the connection ended meanwhile, the share is dropped here, and so given back.
            let _ = turn.send(Share { lane, bytes });
        }
        result
    }

    /// Takes `bytes` if no connection waits and they are free, and `spare` more. A request above the lane takes all of it.
    fn try_take(self: &Arc<Self>, bytes: usize, spare: u32) -> Option<Share> {
        let bytes = self.at_most(bytes);
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = line.waiting.is_empty() && line.free.saturating_sub(spare) >= bytes;
        is_free.then(|| {
            line.free -= bytes;
            let lane = Arc::clone(self);
            Share { lane, bytes }
        })
    }

    /// Takes `bytes` for reading ahead, if half of the lane stays free.
    pub fn try_take_ahead(self: &Arc<Self>, bytes: usize) -> Option<Share> {
        self.try_take(bytes, self.total / 2)
    }

    /// Waits until `bytes` are free, and takes them. A request above the lane waits for all of it. With `is_more` the connection had a share
    /// since it was read from last.
    pub async fn take(self: Arc<Self>, bytes: usize, is_more: bool) -> Share {
        if let Some(share) = self.try_take(bytes, 0) {
            return share;
        }
        let (turn, share) = oneshot::channel();
        let waiter = Waiter {
            since: Instant::now(),
            bytes: self.at_most(bytes),
            is_more,
            turn,
        };
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let number = self.change(|line| {
            line.next_number += 1;
            line.waiting.insert(line.next_number, waiter);
            line.next_number
        });
        let lane = &self;
        let _place = Place { lane, number };
        match share.await {
            Ok(share) => share,
            Err(_) => unreachable!("only its place is dropped with the turn"),
        }
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
    fn new(bytes: usize, largest_value: usize, waiting: &Arc<AtomicUsize>) -> Self {
        let [small, large] = lanes(bytes, largest_value);
        Self {
            small: Lane::new(small, false, waiting),
            large: Lane::new(large, true, waiting),
        }
    }

    /// Waits until `bytes` are free in the lane for requests of this size, and takes them.
    pub async fn take(&self, bytes: usize) -> Share {
        Arc::clone(self.lane(bytes)).take(bytes, false).await
    }

    /// As [`Budget::take`], for a connection that had a share since it was read from last: it never counts as the last comer.
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
/// values that are not transferred in pieces, the old and the new one of a change.
fn lanes(bytes: usize, largest_value: usize) -> [usize; 2] {
    let large = (bytes / 4 * 3).max(largest_value.min(WHOLE_BYTES_MAX) * 2);
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
    waiting: Arc<AtomicUsize>,
}

impl Budgets {
    /// Budgets of these sizes, for values of up to `largest_value` bytes.
    pub fn new(sizes: BudgetSizes, largest_value: usize) -> Self {
        let waiting = Arc::default();
        Self {
            input: Budget::new(sizes.input, largest_value, &waiting),
            output: Budget::new(sizes.output, largest_value, &waiting),
            waiting,
        }
    }

    /// Longest time without progress of a peer that holds a share; `None` while no connection waits. It shrinks from 1 s to 250 ms the more
    /// connections wait.
    pub fn patience(&self) -> Option<Duration> {
        match u32::try_from(self.waiting.load(Ordering::Relaxed)).unwrap_or(u32::MAX) {
            0 => None,
            waiting => Some((PATIENCE_MAX * FEW_WAITING / waiting).clamp(PATIENCE_MIN, PATIENCE_MAX)),
        }
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
        assert_eq!(large.line.lock().unwrap().free, 2 << 20);
    }

    #[test]
    fn the_last_comer_has_every_second_turn_once_the_first_has_waited_for_long() {
        // Returns who is served one after the other, of 0 to 4 in their order of coming. 4 had a share before; 1 goes away.
        let order = |waited: Duration| {
            let budgets = budgets();
            let large = &budgets.input.large;
            let mut held = large.try_take(2 << 20, 0);
            let mut waits: Vec<_> = (0..5)
                .map(|number| Some(Box::pin(Arc::clone(large).take(2 << 20, number == 4))))
                .collect();
            for wait in waits.iter_mut().flatten() {
                assert!(wait.now_or_never().is_none());
            }
            assert_eq!(budgets.waiting.load(Ordering::Relaxed), 5);
            for waiter in large.line.lock().unwrap().waiting.values_mut() {
                waiter.since -= waited;
            }
            waits[1] = None;
            let mut order = Vec::new();
            while held.take().is_some() {
                for (number, slot) in waits.iter_mut().enumerate() {
                    if let Some(wait) = slot
                        && let Some(share) = wait.now_or_never()
                    {
                        (held, *slot) = (Some(share), None);
                        order.push(number);
                    }
                }
            }
            assert_eq!(budgets.patience(), None);
            assert_eq!(large.line.lock().unwrap().free, 2 << 20);
            order
        };
        assert_eq!(order(Duration::ZERO), [0, 2, 3, 4]);
        assert_eq!(order(LONG_WAIT), [0, 3, 2, 4]);
    }

    #[test]
    fn a_share_that_came_for_a_connection_that_ended_is_free_again() {
        let budgets = budgets();
        let large = &budgets.input.large;
        let held = large.try_take(2 << 20, 0);
        let mut waits = Box::pin(Arc::clone(large).take(1, false));
        assert!((&mut waits).now_or_never().is_none());
        drop(held);
        assert!(large.try_take(2 << 20, 0).is_none(), "it has its share");
        drop(waits);
        assert!(large.try_take(2 << 20, 0).is_some());
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
    fn patience_ends_sooner_the_more_wait() {
        let budgets = budgets();
        let patience = |waiting| {
            budgets.waiting.store(waiting, Ordering::Relaxed);
            budgets.patience().map(|patience| patience.as_millis())
        };
        let all = [0, 1, 8, 16, 32, 1000].map(patience);
        assert_eq!(
            all,
            [None, Some(1000), Some(1000), Some(500), Some(250), Some(250)]
        );
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
