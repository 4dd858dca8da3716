//! The lanes and the channel of a device: when an operation that begins now is done.

use super::profile::{Profile, Stalls};
use pumice_world::{Random, mix64};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Whether an operation reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It reads.
    Read,
    /// It writes.
    Write,
}

/// The pool of lanes of one device, by the model in the module's text. It knows no clock: the caller says what time it is, and never
/// an earlier one than before.
#[derive(Clone, Debug)]
pub struct Lanes {
    profile: Profile,
    /// When each lane is free.
    free: BinaryHeap<Reverse<u64>>,
    channel_free: u64,
    last_write_done: u64,
    /// Where the last operation ended, on the device; none before the first.
    head: Option<u64>,
    random: Random,
}

impl Lanes {
    /// An idle device of this kind.
    pub fn new(profile: &Profile) -> Self {
        let lanes = profile.read.parallelism.max(profile.write.parallelism).max(1);
        Self {
            profile: *profile,
            free: (0..lanes).map(|_| Reverse(0)).collect(),
            channel_free: 0,
            last_write_done: 0,
            head: None,
            random: Random(mix64(profile.seed)),
        }
    }

    /// An operation of `bytes` at `offset` begins; returns when it is done.
    pub fn begin(&mut self, now: u64, kind: Kind, offset: u64, bytes: u64) -> u64 {
        let direction = match kind {
            Kind::Read => self.profile.read,
            Kind::Write => self.profile.write,
        };
        let follows = self.head == Some(offset);
        self.head = Some(offset.saturating_add(bytes));
        let latency = if self.profile.seeks && follows {
            0
        } else {
            direction.latency_ns
        };
        let passing = u128::from(bytes) * 1_000_000_000 / u128::from(direction.bytes_per_second.max(1));
        let passing = u64::try_from(passing).unwrap_or(u64::MAX);
        let (latency, passing) = self.varied(latency, passing);

        let lanes = self.free.len() as u64;
        let Reverse(lane_free) = self.free.pop().expect("there is a lane");
        let begin = now.max(lane_free);
        let stalls = self.profile.stalls;
        let passed = after(stalls, self.profile.seed, begin.max(self.channel_free), passing);
        let done = after(stalls, self.profile.seed, passed, latency);
        // Fewer operations at a time than there are lanes: each keeps its lane for longer than until it is answered.
        let parallelism = u64::from(direction.parallelism.max(1));
        let held = u128::from(latency.saturating_add(passing)) * u128::from(lanes) / u128::from(parallelism);
        let held = begin.saturating_add(u64::try_from(held).unwrap_or(u64::MAX));
        self.channel_free = passed;
        self.free.push(Reverse(done.max(held)));
        if kind == Kind::Write {
            self.last_write_done = self.last_write_done.max(done);
        }
        done
    }

    /// When all writes that have begun are done.
    pub fn writes_done(&self) -> u64 {
        self.last_write_done
    }

    /// Service times of this operation.
    fn varied(&mut self, latency: u64, passing: u64) -> (u64, u64) {
        if self.profile.vary_percent == 0 {
            return (latency, passing);
        }
        let vary = f64::from(self.profile.vary_percent) / 100.0;
        let factor = 1.0 + vary * (2.0 * self.random.next_f64() - 1.0);
        ((latency as f64 * factor) as u64, (passing as f64 * factor) as u64)
    }
}

/// The end of `work` that begins at `from`, where no work is done during stalls.
fn after(stalls: Option<Stalls>, seed: u64, from: u64, work: u64) -> u64 {
    let Some(Stalls { every_ns, for_ns }) = stalls else {
        return from.saturating_add(work);
    };
    // So many stalls that only their share counts.
    if work / 64 > every_ns {
        let long = u128::from(work) * u128::from(every_ns) / u128::from(every_ns - for_ns);
        return from.saturating_add(u64::try_from(long).unwrap_or(u64::MAX));
    }
    let (mut at, mut left) = (from, work);
    let mut period = at / every_ns;
    loop {
        // Each period has one stall, somewhere in it.
        let place = mix64(seed ^ mix64(period)) % (every_ns - for_ns);
        let start = period.saturating_mul(every_ns).saturating_add(place);
        let end = start.saturating_add(for_ns);
        if at < end {
            let before = start.saturating_sub(at);
            if left < before || end == u64::MAX {
                return at.saturating_add(left);
            }
            left -= before;
            at = end;
        }
        period += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Direction;

    const SECOND: u64 = 1_000_000_000;

    fn profile(latency_ns: u64, bytes_per_second: u64, parallelism: u32) -> Profile {
        let direction = Direction {
            latency_ns,
            bytes_per_second,
            parallelism,
        };
        Profile {
            read: direction,
            write: direction,
            ..Profile::DRAM
        }
    }

    fn lanes(latency_ns: u64, bytes_per_second: u64, parallelism: u32) -> Lanes {
        Lanes::new(&profile(latency_ns, bytes_per_second, parallelism))
    }

    fn read(lanes: &mut Lanes, now: u64, bytes: u64) -> u64 {
        lanes.begin(now, Kind::Read, 0, bytes)
    }

    #[test]
    fn one_at_a_time_takes_the_latency_and_its_bytes() {
        let mut lanes = lanes(1_000, SECOND, 4);
        let mut now = 0;
        for _ in 0..10 {
            let done = read(&mut lanes, now, 500);
            assert_eq!(done, now + 1_500);
            now = done + 7;
        }
    }

    #[test]
    fn many_small_ones_come_to_parallelism_by_latency() {
        let mut lanes = lanes(1_000, u64::MAX, 4);
        let done = (0..4_000).map(|_| read(&mut lanes, 0, 1)).max();
        assert_eq!(done, Some(1_000 * 1_000));
        assert_eq!(lanes.writes_done(), 0);
    }

    #[test]
    fn large_ones_come_to_the_bandwidth_whatever_the_lanes() {
        for parallelism in [2, 64] {
            let mut lanes = lanes(1_000, SECOND, parallelism);
            let done = (0..100).map(|_| read(&mut lanes, 0, 1 << 20)).max().unwrap();
            assert_eq!(done, 1_000 + 100 * (1 << 20));
        }
    }

    #[test]
    fn a_long_pause_gives_no_credit() {
        let mut lanes = lanes(1_000, SECOND, 2);
        read(&mut lanes, 0, 100);
        assert_eq!(read(&mut lanes, SECOND, 100), SECOND + 1_100);
    }

    #[test]
    fn writes_take_lanes_and_bytes_from_reads() {
        // Of 8 lanes, four for each write: writes alone come to 2 at a time, and each one costs as much as 4 reads.
        let mut kind = profile(1_000, u64::MAX, 8);
        kind.write.parallelism = 2;
        let last = |reads: usize, writes: usize| {
            let mut lanes = Lanes::new(&kind);
            let reads = (0..reads).map(|_| (Kind::Read, 1));
            let all = reads.chain((0..writes).map(|_| (Kind::Write, 1)));
            all.map(|(kind, bytes)| lanes.begin(0, kind, 0, bytes)).max()
        };
        assert_eq!(last(800, 0), Some(100_000));
        // A write is answered after 1,000; its lane is free after 4,000.
        assert_eq!(last(0, 800), Some(800 * 500 - 3_000));
        assert_eq!(last(800, 200), Some(200_000 - 3_000));
        let mut channel = lanes(0, SECOND, 8);
        channel.begin(0, Kind::Write, 0, 1_000);
        assert_eq!(channel.begin(0, Kind::Read, 0, 1_000), 2_000);
        assert_eq!(channel.writes_done(), 1_000);
    }

    #[test]
    fn a_write_does_not_wait_for_a_slower_read_that_began_before() {
        let mut kind = profile(1_000, SECOND, 8);
        kind.read.latency_ns = 50_000;
        let mut lanes = Lanes::new(&kind);
        assert_eq!(lanes.begin(0, Kind::Read, 0, 10), 50_010);
        assert_eq!(lanes.begin(0, Kind::Write, 0, 10), 1_020);
    }

    #[test]
    fn a_disk_seeks_where_an_operation_does_not_follow_on_the_last() {
        let mut kind = profile(1_000, SECOND, 1);
        kind.seeks = true;
        let mut lanes = Lanes::new(&kind);
        assert_eq!(
            lanes.begin(0, Kind::Read, 700, 100),
            1_100,
            "nobody knows where the arm was"
        );
        assert_eq!(lanes.begin(0, Kind::Read, 800, 100), 1_200);
        assert_eq!(lanes.begin(0, Kind::Write, 900, 100), 1_300);
        assert_eq!(lanes.begin(0, Kind::Read, 900, 100), 2_400);
    }

    #[test]
    fn service_times_vary_around_their_mean_and_by_the_seed() {
        let total = |seed: u64| {
            let mut kind = profile(1_000, SECOND, 1);
            (kind.vary_percent, kind.seed) = (30, seed);
            let mut lanes = Lanes::new(&kind);
            let mut now = 0;
            for _ in 0..10_000 {
                let done = read(&mut lanes, now, 500);
                assert!((1_049..=1_950).contains(&(done - now)), "{}", done - now);
                now = done;
            }
            now
        };
        assert!((14_850_000..15_150_000).contains(&total(1)), "{}", total(1));
        assert_eq!(total(1), total(1));
        assert_ne!(total(1), total(2));
    }

    #[test]
    fn nothing_is_done_during_a_stall() {
        let mut kind = profile(1_000, u64::MAX, 1);
        kind.stalls = Some(Stalls {
            every_ns: 200_000,
            for_ns: 5_000,
        });
        let mut lanes = Lanes::new(&kind);
        let mut now = 0;
        let mut longer = 0;
        for _ in 0..19_500 {
            let done = read(&mut lanes, now, 1);
            longer += u32::from(done - now > 1_000);
            now = done;
        }
        assert_eq!(longer, 100);
        assert_eq!(now, 19_500 * 1_000 + 100 * 5_000);
        // One that is longer than many stalls.
        kind.read.latency_ns = 195_000 * 1_000;
        let done = Lanes::new(&kind).begin(0, Kind::Read, 0, 1);
        assert_eq!(done, 200_000 * 1_000);
    }
}
