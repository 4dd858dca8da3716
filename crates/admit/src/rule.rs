//! The rules, and their names.

use std::fmt;
use std::str::FromStr;

/// Which new objects go to flash.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Rule {
    /// Every one.
    #[default]
    All,
    /// Each with this probability, above 0 and at most 1: the paper's *LRU_f*.
    Random(f64),
    /// What missed before within the last flash's worth of distinct misses. Where keys come just twice it falls back to
    /// [`Random`](Rule::Random) of as many writes.
    SecondHit,
}

/// A text that names no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected `all`, `second-hit` or `random:F`, where F is above 0 and at most 1")]
pub struct BadRule;

impl FromStr for Rule {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Self, BadRule> {
        match text {
            "all" => return Ok(Self::All),
            "second-hit" => return Ok(Self::SecondHit),
            _ => {}
        }
        let share = text.strip_prefix("random:").and_then(|share| share.parse().ok());
        let share = share.filter(|share| (f64::MIN_POSITIVE..=1.0).contains(share));
        share.map(Self::Random).ok_or(BadRule)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::SecondHit => f.write_str("second-hit"),
            Self::Random(share) => write!(f, "random:{share}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_as_they_are_printed() {
        for text in ["all", "random:0.25", "random:1", "second-hit"] {
            assert_eq!(text.parse::<Rule>().map(|rule| rule.to_string()), Ok(text.into()));
        }
        for text in [
            "",
            "random",
            "random:0",
            "random:1.5",
            "random:NaN",
            "random:-1",
            "none",
            "second-hit:2",
        ] {
            assert_eq!(text.parse::<Rule>(), Err(BadRule));
        }
    }
}
