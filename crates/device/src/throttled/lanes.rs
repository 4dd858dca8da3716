//! One direction of the model: when an operation that begins now is done.

use super::profile::Direction;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// See the model in the module's text.
#[derive(Debug)]
pub(super) struct Lanes {
    direction: Direction,
    /// When each lane is free.
    free: BinaryHeap<Reverse<u64>>,
    channel_free: u64,
    /// When the last operation is done.
    last_done: u64,
}

impl Lanes {
    pub(super) fn new(direction: Direction) -> Self {
        Self {
            direction,
            free: (0..direction.parallelism.max(1)).map(|_| Reverse(0)).collect(),
            channel_free: 0,
            last_done: 0,
        }
    }

    /// An operation of `bytes` begins; returns when it is done.
    pub(super) fn begin(&mut self, now: u64, bytes: u64) -> u64 {
        let Reverse(lane_free) = self.free.pop().expect("there is a lane");
        let ready = now.max(lane_free).saturating_add(self.direction.latency_ns);
        let passing = u128::from(bytes) * 1_000_000_000 / u128::from(self.direction.bytes_per_second.max(1));
        let passing = u64::try_from(passing).unwrap_or(u64::MAX);
        let done = ready.max(self.channel_free).saturating_add(passing);
        self.channel_free = done;
        self.free.push(Reverse(done));
        self.last_done = self.last_done.max(done);
        done
    }

    /// When all that has begun is done.
    pub(super) fn last_done(&self) -> u64 {
        self.last_done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn lanes(latency_ns: u64, bytes_per_second: u64, parallelism: u32) -> Lanes {
        Lanes::new(Direction {
            latency_ns,
            bytes_per_second,
            parallelism,
        })
    }

    #[test]
    fn one_at_a_time_takes_the_latency_and_its_bytes() {
        let mut lanes = lanes(1_000, SECOND, 4);
        let mut now = 0;
        for _ in 0..10 {
            let done = lanes.begin(now, 500);
            assert_eq!(done, now + 1_500);
            now = done + 7;
        }
    }

    #[test]
    fn many_small_ones_come_to_parallelism_by_latency() {
        let mut lanes = lanes(1_000, u64::MAX, 4);
        let done = (0..4_000).map(|_| lanes.begin(0, 1)).max();
        assert_eq!(done, Some(1_000 * 1_000));
        assert_eq!(lanes.last_done(), 1_000_000);
    }

    #[test]
    fn large_ones_come_to_the_bandwidth_whatever_the_lanes() {
        for parallelism in [2, 64] {
            let mut lanes = lanes(1_000, SECOND, parallelism);
            let done = (0..100).map(|_| lanes.begin(0, 1 << 20)).max().unwrap();
            assert_eq!(done, 1_000 + 100 * (1 << 20));
        }
    }

    #[test]
    fn a_long_pause_gives_no_credit() {
        let mut lanes = lanes(1_000, SECOND, 2);
        lanes.begin(0, 100);
        assert_eq!(lanes.begin(SECOND, 100), SECOND + 1_100);
    }
}
