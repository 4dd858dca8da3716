//! A budget of bytes that may be sent to the device in any period.
//!
//! A bucket holds a part of what a period may take, and fills as time passes. Everything that is sent to the device is taken out of it, by
//! whoever sends it; what can wait asks how full it is first. In any period no more is sent than what flows in, what the bucket held, and
//! what could not wait.

use crate::Refusal;
use parking_lot::Mutex;
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
}

impl Bucket {
    /// It is empty at first: a start earns nothing.
    pub(crate) fn new(budget: WriteBudget) -> Self {
        let bytes = budget.bytes as f64;
        Self {
            capacity: bytes / PARTS,
            bytes_per_ns: bytes * INFLOW / (f64::from(budget.period_secs) * 1e9),
            state: Mutex::new(State::default()),
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
        state.level = (state.level + flowed).min(self.capacity) - taken;
        state.sent = sent;
        state.at = at.max(now);
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
}
