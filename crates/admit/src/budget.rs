//! A budget of bytes that may be sent to the device in any period.
//!
//! A bucket holds a part of what a period may take, and fills as time passes. Everything that is sent to the device is taken out of it, by
//! whoever sends it; what can wait asks how full it is first. In any period no more is sent than what flows in, what the bucket held, and
//! what could not wait.

use crate::Refusal;
use locks::Mutex;
use std::fmt;
use std::str::FromStr;

/// The bucket holds what flows in during one part of so many of a period.
const PARTS: f64 = 24.0;
/// Of the budget so much flows in: a full bucket, 4.2 % of it, and blocks that were in buffers when a period began come on top.
const INFLOW: f64 = 0.99;
/// How full the bucket must be, for an object to go in.
/// These shares are low: a bucket that is nearly full earns nothing, and demand that pauses fills it.
const FOR_KNOWN: f64 = 0.125;
const FOR_ALL: f64 = 0.1875;
const FOR_REFUSED: f64 = 0.25;
/// The least size of the bucket, in blocks. A seal, a reclaim or a checkpoint may write a block before the bucket has paid for it, so each
/// of them would overdraw a smaller bucket.
const BLOCKS_MIN: u64 = 2;
/// Seconds of the shortest period, and of the longest.
const PERIOD_SECS: std::ops::RangeInclusive<u32> = 10..=31 * 86_400;

/// So many bytes in any period of so many seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WriteBudget {
    /// Bytes of a period.
    pub bytes: u64,
    /// Its length in seconds.
    pub period_secs: u32,
}

impl WriteBudget {
    /// Whether it is enough for a cache with blocks of so many bytes.
    ///
    /// # Errors
    /// It is not.
    pub fn check(self, block_bytes: u64) -> Result<(), SmallBudget> {
        let least = Self {
            bytes: block_bytes * BLOCKS_MIN * PARTS as u64,
            ..self
        };
        if self.bytes >= least.bytes {
            return Ok(());
        }
        Err(SmallBudget {
            given: self,
            least,
            block_bytes,
        })
    }
}

/// A budget that is too small for the blocks of a cache.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "a 24th of {given}, which is what can be saved, is less than {BLOCKS_MIN} blocks of {block_bytes} bytes; the smallest that works is {least}"
)]
pub struct SmallBudget {
    /// What was given.
    pub given: WriteBudget,
    /// The smallest that is enough, of the same period.
    pub least: WriteBudget,
    /// Bytes of a block.
    pub block_bytes: u64,
}

/// A text that is no budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected bytes in a time, such as 2TB/day, 100GB/hour or 20GB/600s (kB, MB, GB, TB are decimal; 10 to 2678400 seconds)"
)]
pub struct BadBudget;

impl FromStr for WriteBudget {
    type Err = BadBudget;

    fn from_str(text: &str) -> Result<Self, BadBudget> {
        let (bytes, period) = text.split_once('/').ok_or(BadBudget)?;
        let unit_at = bytes.find(|c: char| c != '.' && !c.is_ascii_digit());
        let (number, unit) = bytes.split_at(unit_at.unwrap_or(bytes.len()));
        let unit = match unit.trim_start().to_ascii_uppercase().as_str() {
            "B" => 1.0,
            "KB" => 1e3,
            "MB" => 1e6,
            "GB" => 1e9,
            "TB" => 1e12,
            _ => return Err(BadBudget),
        };
        let bytes = number.trim_end().parse::<f64>().map_err(|_| BadBudget)? * unit;
        let period_secs = match period {
            "day" => 86_400,
            "hour" => 3_600,
            secs => secs
                .strip_suffix('s')
                .and_then(|secs| secs.parse().ok())
                .ok_or(BadBudget)?,
        };
        if !(1.0..1e18).contains(&bytes) || !PERIOD_SECS.contains(&period_secs) {
            return Err(BadBudget);
        }
        Ok(Self {
            bytes: bytes as u64,
            period_secs,
        })
    }
}

impl fmt::Display for WriteBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, period_secs } = self;
        match period_secs {
            86_400 => write!(f, "{bytes}B/day"),
            3_600 => write!(f, "{bytes}B/hour"),
            secs => write!(f, "{bytes}B/{secs}s"),
        }
    }
}

/// What a budget had left when a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Bytes; below 0 where it was overdrawn.
    pub bytes: i64,
    /// A moment from which on more has flowed in, in Unix seconds; 0: there was no budget.
    pub at_secs: u32,
}

/// A moment, on two clocks of which neither goes back in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Nanoseconds since some moment.
    pub ns: u64,
    /// Unix seconds, rounded down.
    pub unix_secs: u32,
}

/// What may still be sent.
#[derive(Debug)]
pub(crate) struct Bucket {
    capacity: f64,
    bytes_per_ns: f64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes that it holds; below 0 where more was sent than could wait.
    level: f64,
    /// Bytes sent so far, at the last look.
    sent: u64,
    /// When the last look was, in nanoseconds; `None` before the first.
    at: Option<u64>,
    /// When the run began.
    begun: Moment,
}

impl Bucket {
    /// It is empty at first.
    pub(crate) fn new(budget: WriteBudget) -> Self {
        let bytes = budget.bytes as f64;
        Self {
            capacity: bytes / PARTS,
            bytes_per_ns: bytes * INFLOW / (f64::from(budget.period_secs) * 1e9),
            state: Mutex::new(State::default()),
        }
    }

    /// Goes on at `now`, when a run begins, where another has left it, with what has flowed in since. If that run did not end with saying what was left,
    /// nobody knows what it spent: then none is left, and what it overdrew is still owed, with the `unpaid` bytes that it may
    /// have sent since whatever the budget said.
    pub(crate) fn resume(&self, left: Left, unpaid: Option<u64>, now: Moment) {
        let secs = match left.at_secs {
            0 => 0,
            at => now.unix_secs.saturating_sub(at),
        };
        let level = left.bytes as f64 + f64::from(secs) * 1e9 * self.bytes_per_ns;
        let level = match unpaid {
            None => level.min(self.capacity),
            Some(unpaid) => level.min(0.0) - unpaid as f64,
        };
        *self.state.lock() = State {
            level: self.owed_at_most(level),
            sent: 0,
            at: Some(now.ns),
            begun: now,
        };
    }

    /// What it holds, for the next run. The time is rounded up: a start does not earn a second twice.
    pub(crate) fn save(&self) -> Left {
        let state = self.state.lock();
        let since = state.at.map_or(0, |at| at.saturating_sub(state.begun.ns));
        let since_secs = u32::try_from(since.div_ceil(1_000_000_000)).unwrap_or(u32::MAX);
        Left {
            bytes: state.level.floor() as i64,
            at_secs: (state.begun.unix_secs.saturating_add(1)).saturating_add(since_secs),
        }
    }

    /// So many bytes have been sent since the start, and it is `now`, in nanoseconds since some moment, or not known how much later than at
    /// the last look.
    pub(crate) fn look(&self, now: Option<u64>, sent: u64) {
        let mut state = self.state.lock();
        let (at, now) = (state.at.or(now), now.or(state.at));
        let since = now.unwrap_or(0).saturating_sub(at.unwrap_or(0));
        let flowed = since as f64 * self.bytes_per_ns;
        // Threads look one after the other, and one may bring what it read before the other.
        let taken = sent as f64 - state.sent as f64;
        state.level = self.owed_at_most((state.level + flowed).min(self.capacity) - taken);
        state.sent = sent;
        state.at = at.max(now);
    }

    /// Limits the debt to the budget of one period, and forgives the rest. A larger debt may come from damaged bytes on flash, or from writes that
    /// the budget never refuses. The limit bounds the time until new objects enter again. Once the debt is paid, a period sends no more than the
    /// budget, since less than the budget flows in.
    fn owed_at_most(&self, level: f64) -> f64 {
        level.max(-self.capacity * PARTS)
    }

    /// Whether an object of so many bytes may be sent, where the rule has said this of it: what is known to be asked for again may longest,
    /// and what the rule refuses only where the budget would be left over.
    pub(crate) fn judge(
        &self,
        by_rule: Result<(), Refusal>,
        is_known: bool,
        bytes: u64,
    ) -> Result<(), Refusal> {
        let least = match by_rule {
            Ok(()) if is_known => FOR_KNOWN,
            Ok(()) => FOR_ALL,
            Err(Refusal::Rule) => FOR_REFUSED,
            Err(_) => return by_rule,
        };
        let level = self.state.lock().level;
        if level >= (least * self.capacity).max(bytes as f64) {
            Ok(())
        } else {
            by_rule.and(Err(Refusal::Budget))
        }
    }

    /// Bytes that it holds; 0 where it is overdrawn.
    pub(crate) fn left(&self) -> u64 {
        self.state.lock().level.max(0.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u32 = 86_400;
    const SEC: u64 = 1_000_000_000;

    fn bucket(bytes: u64) -> Bucket {
        Bucket::new(WriteBudget {
            bytes,
            period_secs: DAY,
        })
    }

    #[test]
    fn budgets_are_read_as_vendors_write_them() {
        let read = |text: &str| {
            text.parse::<WriteBudget>()
                .map(|budget| (budget.bytes, budget.period_secs))
        };
        assert_eq!(read("2TB/day"), Ok((2_000_000_000_000, DAY)));
        assert_eq!(read("1.5 gb/hour"), Ok((1_500_000_000, 3_600)));
        assert_eq!(read("500MB/600s"), Ok((500_000_000, 600)));
        for text in [
            "",
            "2TB",
            "2TB/week",
            "2/day",
            "TB/day",
            "-1TB/day",
            "0TB/day",
            "2TiB/day",
            "1GB/9s",
            "1GB/0s",
            "1GB/9999999s",
            "1e3GB/day",
            "NaNGB/day",
            "1..5GB/day",
        ] {
            assert_eq!(read(text), Err(BadBudget), "{text}");
        }
        for text in ["2000000B/day", "5B/hour", "7B/600s"] {
            assert_eq!(
                text.parse::<WriteBudget>().map(|budget| budget.to_string()),
                Ok(text.to_owned())
            );
        }
    }

    #[test]
    fn a_bucket_holds_two_blocks_at_least() {
        let budget = |text: &str| text.parse::<WriteBudget>().unwrap();
        let mib = 1 << 20;
        assert_eq!(budget("50331648B/day").check(mib), Ok(()));
        let error = budget("50331647B/day").check(mib).unwrap_err();
        assert_eq!(error.least, budget("50331648B/day"));
        let said = budget("1B/hour").check(mib).unwrap_err().to_string();
        assert!(
            said.contains("1B/hour") && said.ends_with(" 50331648B/hour"),
            "{said}"
        );
    }

    #[test]
    fn no_day_takes_more_than_its_budget_and_one_with_demand_takes_it() {
        let budget = 24_000_000u64;
        let bucket = bucket(budget);
        // A quiet night, then bursts without end, in minutes.
        let mut sent = vec![0u64; 5 * 1440];
        let mut all = 0;
        for (minute, sent) in (0u64..).zip(&mut sent) {
            let now = Some(minute * 60 * SEC);
            bucket.look(now, all);
            let wants = if minute < 1440 { 0 } else { 1 << 20 };
            while *sent < wants && bucket.judge(Ok(()), minute % 2 == 0, 1000).is_ok() {
                *sent += 1000;
                all += 1000;
                bucket.look(now, all);
            }
        }
        let days = sent.windows(1440).map(|day| day.iter().sum::<u64>());
        let most = days.clone().max().unwrap();
        assert!(most <= budget + budget / 20, "{most}");
        assert!(most > budget, "the bucket was full");
        let last: u64 = sent[4 * 1440..].iter().sum();
        assert!(last >= budget * 95 / 100, "{last}");
    }

    #[test]
    fn what_is_known_goes_longest_and_what_the_rule_refuses_last() {
        let bucket = bucket(2_400);
        let judged = |level: u64| {
            *bucket.state.lock() = State {
                level: level as f64,
                ..State::default()
            };
            let judge = |by_rule, is_known| bucket.judge(by_rule, is_known, 10);
            [
                judge(Ok(()), true),
                judge(Ok(()), false),
                judge(Err(Refusal::Rule), true),
            ]
        };
        let (budget, rule) = (Err(Refusal::Budget), Err(Refusal::Rule));
        assert_eq!(judged(12), [budget, budget, rule]);
        assert_eq!(judged(13), [Ok(()), budget, rule]);
        assert_eq!(judged(19), [Ok(()), Ok(()), rule]);
        assert_eq!(judged(25), [Ok(()); 3]);
        // Never more than there is.
        assert_eq!(bucket.judge(Ok(()), true, 25), Ok(()));
        assert_eq!(bucket.judge(Ok(()), true, 26), budget);
    }

    #[test]
    fn a_start_earns_nothing_and_pays_for_what_it_writes() {
        let bucket = bucket(86_400 * 24);
        bucket.look(None, 20);
        bucket.look(Some(1_000_000 * SEC), 50);
        assert_eq!(bucket.left(), 0);
        bucket.look(Some(1_000_100 * SEC), 50);
        assert_eq!(bucket.left(), 2326, "24 bytes a second, less those of the start");
        bucket.look(None, 1050);
        assert_eq!(bucket.left(), 1326);
    }

    #[test]
    fn a_debt_is_a_periods_budget_at_most() {
        let bucket = bucket(86_400 * 24);
        bucket.look(Some(0), 0);
        bucket.look(Some(0), 1 << 40);
        assert_eq!(bucket.save().bytes, -86_400 * 24);
        let day = u64::from(DAY) * SEC;
        bucket.look(Some(day), 1 << 40);
        assert_eq!(bucket.left(), 0, "for a whole period nothing goes in");
        bucket.look(Some(day + day / 12), 1 << 40);
        assert!(bucket.left() > 0);
    }

    const RUN: Moment = Moment {
        ns: 5 * SEC,
        unix_secs: 1_000,
    };

    fn resumed(bytes: u64, left: Left, unpaid: Option<u64>, unix_secs: u32) -> Bucket {
        let bucket = bucket(bytes);
        bucket.resume(left, unpaid, Moment { ns: 7, unix_secs });
        bucket
    }

    #[test]
    fn a_run_goes_on_where_the_last_has_stopped() {
        let budget = 86_400 * 24;
        let last = bucket(budget);
        last.resume(Left::default(), None, RUN);
        last.look(Some(RUN.ns + 100 * SEC), 76);
        let left = last.save();
        assert_eq!(
            left,
            Left {
                bytes: 2_300,
                at_secs: 1_101
            }
        );
        let resumed_at = |now| resumed(budget, left, None, now).left();
        assert_eq!(resumed_at(1_000), 2_300, "a clock that went back");
        assert_eq!(resumed_at(1_101), 2_300);
        assert_eq!(resumed_at(1_111), 2_537);
        assert_eq!(resumed_at(u32::MAX), 86_400, "no more than it holds");
        assert_eq!(resumed(2_400, left, None, 1_101).left(), 100, "a smaller budget");
        // Another process counts from nothing.
        let next = resumed(budget, left, None, 1_101);
        next.look(Some(7), 300);
        assert_eq!(next.left(), 2_000);
    }

    #[test]
    fn a_run_that_was_cut_short_leaves_debts_alone() {
        let level = |bytes, unpaid, now| {
            let left = Left {
                bytes,
                at_secs: 1_000,
            };
            resumed(86_400 * 24, left, Some(unpaid), now).save().bytes
        };
        assert_eq!(level(5_000, 0, 2_000), 0);
        assert_eq!(level(5_000, 100, 2_000), -100);
        assert_eq!(level(-5_000, 100, 1_000), -5_100);
        assert_eq!(level(-5_000, 100, 1_100), -2_724, "it paid meanwhile");
        assert_eq!(level(-5_000, 100, 2_000), -100);
    }

    #[test]
    fn no_level_is_credit_above_the_bucket_or_a_debt_above_a_period() {
        for bytes in [i64::MIN, -1, 0, i64::MAX] {
            for at_secs in [0, 1, 1_000, u32::MAX] {
                for unpaid in [None, Some(0), Some(u64::MAX)] {
                    let bucket = resumed(2_400, Left { bytes, at_secs }, unpaid, 1_000);
                    assert!((-2_400..=100).contains(&bucket.save().bytes));
                    bucket.look(Some(7 + u64::from(DAY) * SEC / 10 * 11), 0);
                    assert_eq!(bucket.left(), 100);
                }
            }
        }
    }
}
