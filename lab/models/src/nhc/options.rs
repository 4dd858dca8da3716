//! What a cell of the model is made of.

use pumice_device::Profile;
use pumice_nhc::Objective;
use std::fmt;
use std::str::FromStr;

/// How much is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// So many times N1 clients that wait for each answer and ask again at once. N1 are the fewest with which classic caching
    /// comes to 95 % of its most.
    Closed(f64),
    /// Poisson arrivals, so many times the most that classic caching does; at most 8 N1 under way, the others are refused.
    Open(f64),
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(times) => write!(f, "closed:{times}"),
            Self::Open(times) => write!(f, "open:{times}"),
        }
    }
}

impl FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("`{text}`: a load is closed:TIMES or open:TIMES, for example closed:2, from 0.01 to 100")
        };
        let (kind, times) = text.split_once(':').ok_or_else(wrong)?;
        let times: f64 = times.parse().map_err(|_| wrong())?;
        if !(0.01..=100.0).contains(&times) {
            return Err(wrong());
        }
        match kind {
            "closed" => Ok(Self::Closed(times)),
            "open" => Ok(Self::Open(times)),
            _ => Err(wrong()),
        }
    }
}

/// A cache of blocks above, in place of a share of hits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheModel {
    /// Blocks that the upper device holds.
    pub blocks: usize,
    /// Blocks that are asked for.
    pub keys: u64,
    /// The exponent of Zipf's law by which they are.
    pub theta: f64,
}

impl FromStr for CacheModel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}`: a cache is BLOCKS/KEYS/THETA, for example 15000/20000/0.99; at most 10 million keys, no more blocks than keys"
            )
        };
        let mut parts = text.split('/');
        let mut next = || parts.next().ok_or_else(wrong);
        let cache = Self {
            blocks: next()?.parse().map_err(|_| wrong())?,
            keys: next()?.parse().map_err(|_| wrong())?,
            theta: next()?.parse().map_err(|_| wrong())?,
        };
        let is_good = (1..=10_000_000).contains(&cache.keys)
            && (1..=cache.keys as usize).contains(&cache.blocks)
            && (0.0..=20.0).contains(&cache.theta);
        if is_good && parts.next().is_none() {
            Ok(cache)
        } else {
            Err(wrong())
        }
    }
}

/// What changes in the middle of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Change {
    /// Another load, of the same kind.
    pub load: Option<Load>,
    /// Another share of reads.
    pub reads: Option<f64>,
    /// Another share of hits, where there is no cache.
    pub hits: Option<f64>,
    /// This share of the keys is replaced by new ones, where there is a cache.
    pub replaced: f64,
}

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut change = Self::default();
        for part in text.split(',') {
            let wrong = || {
                format!(
                    "`{part}`: a change is load=LOAD, reads=SHARE, hits=SHARE or set=SHARE, more of them by commas"
                )
            };
            let share = |value: &str| {
                let share = value.parse().map_err(|_| wrong())?;
                if (0.0..=1.0).contains(&share) {
                    Ok(share)
                } else {
                    Err(wrong())
                }
            };
            match part.split_once('=') {
                Some(("load", value)) => change.load = Some(value.parse()?),
                Some(("reads", value)) => change.reads = Some(share(value)?),
                Some(("hits", value)) => change.hits = Some(share(value)?),
                Some(("set", value)) => change.replaced = share(value)?,
                _ => return Err(wrong()),
            }
        }
        Ok(change)
    }
}

/// One cell of the table of figures.
#[derive(Clone, Debug)]
pub struct CellOptions {
    /// The performance device.
    pub upper: Profile,
    /// The capacity device.
    pub lower: Profile,
    /// How much is asked for.
    pub load: Load,
    /// The share of reads that the upper device has, where there is no `cache`.
    pub hits: f64,
    /// A cache of blocks in place of that.
    pub cache: Option<CacheModel>,
    /// The share of reads; the rest are writes, to both devices where the upper one has the block.
    pub reads: f64,
    /// Bytes of a request.
    pub bytes: u64,
    /// What is to be best.
    pub objective: Objective,
    /// Of all that is drawn.
    pub seed: u64,
    /// Requests of the run of NHC, of which the last two thirds count; at least 690 for each that may be under way, and where misses are few as many
    /// as it takes until they wait for each other as they will.
    pub requests: u64,
    /// What changes after the first third.
    pub then: Option<Change>,
    /// Seconds after the change, in virtual time.
    pub then_seconds: f64,
    /// Run the baselines, too.
    pub baselines: bool,
}
