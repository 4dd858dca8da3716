//! What requests mean in a replay.

use std::str::FromStr;
use std::sync::Arc;

use pumice_trace::SizeDistribution;

use crate::error::SimError;

/// How the operations of a trace are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OpsMode {
    /// `lookup`: every get and set is a lookup, and a miss inserts the object. Deletes are left out altogether. An object
    /// has the size of its first request for good.
    #[default]
    Lookup,
    /// `as-recorded`: a get looks up and a miss inserts nothing (the trace has the set that follows); a set replaces the
    /// object by a new one of the size it records; a delete removes it. Only gets count in hit ratios; all three are
    /// requests. The size of a get is that of the resident object on a hit, and what it records on a miss.
    AsRecorded,
    /// `look-aside`: as the clients of a cache would do with another one. A get looks up, and a miss inserts the object, but for a get that missed when
    /// it was recorded, too: of that the trace has the set that followed, and where it hits, the next set of its
    /// key is left out, as the client had not made it. Other sets, deletes and sizes are as under `as-recorded`.
    LookAside,
}

impl OpsMode {
    /// The word that [`FromStr`] takes.
    pub fn name(self) -> &'static str {
        match self {
            OpsMode::Lookup => "lookup",
            OpsMode::AsRecorded => "as-recorded",
            OpsMode::LookAside => "look-aside",
        }
    }
}

impl FromStr for OpsMode {
    type Err = SimError;

    /// # Errors
    /// [`SimError::Ops`].
    fn from_str(text: &str) -> Result<Self, SimError> {
        match text {
            "lookup" => Ok(OpsMode::Lookup),
            "as-recorded" => Ok(OpsMode::AsRecorded),
            "look-aside" => Ok(OpsMode::LookAside),
            _ => Err(SimError::Ops(text.to_owned())),
        }
    }
}

/// What objects of a trace without sizes weigh, and those whose size a trace with sizes does not tell (under `Unit` [`OBJECT_BYTES`](pumice_trace::OBJECT_BYTES)).
#[derive(Debug, Clone, Default)]
pub enum MissingSizes {
    /// 1 each: the cache is measured in objects.
    #[default]
    Unit,
    /// So many bytes each (`--object-size`, for flash layouts).
    Fixed(u64),
    /// Drawn for each key (`--sizes`).
    Drawn(Arc<SizeDistribution>),
}

/// What sizes are counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Objects, each of size 1.
    Objects,
}

impl Unit {
    /// The word for messages.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Bytes => "bytes",
            Unit::Objects => "objects",
        }
    }
}

/// The part of a replay that fills the cache before figures are counted: a fraction in [0, 1).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Warmup(f64);

impl Warmup {
    /// A warm-up of this fraction of the requests; `None` outside [0, 1).
    pub fn new(fraction: f64) -> Option<Self> {
        (0.0..1.0).contains(&fraction).then_some(Warmup(fraction))
    }

    /// Whether there is none.
    pub fn is_none(self) -> bool {
        self.0 == 0.0
    }

    /// The fraction.
    pub fn fraction(self) -> f64 {
        self.0
    }

    /// How many of `requests` are warm-up, rounded down.
    pub fn of(self, requests: u64) -> u64 {
        (self.0 * requests as f64) as u64
    }
}

impl FromStr for Warmup {
    type Err = SimError;

    /// # Errors
    /// [`SimError::Warmup`].
    fn from_str(text: &str) -> Result<Self, SimError> {
        let warmup = text.parse().ok().and_then(Warmup::new);
        warmup.ok_or_else(|| SimError::Warmup(text.to_owned()))
    }
}

/// The semantics of a replay, whatever the layout. In all of them a size of 0 counts as 1.
#[derive(Debug, Clone, Default)]
pub struct ReplayRules {
    /// How operations are taken.
    pub ops: OpsMode,
    /// What objects weigh that have no size in the trace.
    pub missing_sizes: MissingSizes,
    /// Whether sizes that the trace has count as missing (`--ignore-sizes`).
    pub ignores_sizes: bool,
    /// What comes before figures are counted.
    pub warmup: Warmup,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warmup_is_a_fraction_below_one() {
        assert_eq!("0.6".parse::<Warmup>().unwrap().of(10), 6);
        assert_eq!("0".parse::<Warmup>().unwrap().of(10), 0);
        for bad in ["1", "-0.1", "60%", "nan", ""] {
            let message = bad.parse::<Warmup>().unwrap_err().to_string();
            assert!(message.contains(&format!("`{bad}`")), "{message}");
        }
    }
}
