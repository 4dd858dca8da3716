//! Seeded synthetic workloads under the interface of a trace.

mod block;
mod draw;
mod hotspot;
mod latest;
mod normal;
mod parts;
mod stream;
mod value_sizes;

use std::str::FromStr;

pub use stream::GeneratedRequests;

use crate::error::TraceError;
use crate::request::RequestReader;
use crate::zipf::Zipf;
use block::Block;
use hotspot::Hotspot;
use latest::Latest;
use normal::Normal;
use parts::{Parts, required};
use pumice_world::mix64;
use value_sizes::ValueSizes;

/// A workload of independent draws, named by text such as `zipf:keys=1000000,theta=0.9,requests=10000000,seed=42`: a
/// kind, a colon, and parts in any order.
///
/// | kind | requests | parts of its own |
/// |------|----------|------------------|
/// | `zipf` | gets of rank k with a probability proportional to k^-theta ([`Zipf`]); `sets` of the requests are sets | `keys`, `theta`, `sets` |
/// | `uniform` | the same, of all keys alike | `keys`, `sets` |
/// | `hotspot` | gets; `share` of them go to the first `hot` of the ranks, all alike there and among the others (YCSB's hotspot) | `keys`, `hot` (0.2), `share` (0.8) |
/// | `normal` | gets of ranks that are normally distributed over the key range; what falls outside is drawn again (memtier_benchmark's pattern G) | `keys`, `mean` (0.5), `sd` (1/6) |
/// | `latest` | `insert` of them are sets of new keys, the others gets of the k-th newest of the `keys` newest keys with a probability proportional to k^-theta (YCSB's workload D) | `keys`, `theta` (0.99), `insert` (0.05) |
/// | `block` | reads and writes of a volume's chunks, with the content of each: with `sequential` the next address and the same operation, else any chunk of a group of 8 drawn as `zipf`. A written content is a duplicate with `duplicates`: of what is there (0.1 of them), of one of the last 1,024 writes (0.4), else one of chunks/16 by Zipf 0.9; what is there at first half as often. With `drift` so many groups a request become the most popular | `chunks`, `writes`, `duplicates`, `theta`, `sequential` (0.5), `drift` (0) |
///
/// | part | value | default |
/// |------|-------|---------|
/// | `keys` | number of keys, 1 to 2^40 | required |
/// | `requests` | number of requests | required, but see [`Generator::endless`] |
/// | `seed` | any 64-bit number; fixes the sequence | 42 |
/// | `size` | bytes of every object, or a range such as `600-4096`, all sizes in it alike | no sizes |
/// | `sizes` | a CacheLib size distribution file ([`SizeDistribution`](crate::SizeDistribution)), whose path has no comma | as `size` |
/// | `theta` | Zipf exponent, 0 to 20 | required for `zipf` and `block` |
/// | `sets` | share of the requests that are sets, of keys drawn as those of gets, 0 to 1 | 0 |
/// | `hot` | share of the keys that is the hot set, 0 to 1 | 0.2 |
/// | `share` | share of the requests that goes there, 0 to 1 | 0.8 |
/// | `mean` | the middle of the bell, as a share of the key range, 0 to 1 | 0.5 |
/// | `sd` | its standard deviation, as a share of the key range, 1e-9 to 10 | 1/6 |
/// | `insert` | share of the requests that are sets of new keys, 0 to 1 | 0.05 |
/// | `chunks` | chunks of the volume, 16 to 2^26 | required |
/// | `writes` | share of the requests that write, 0 to 1 | required |
/// | `duplicates` | share of the written contents that are duplicates, 0 to 1 | required |
/// | `sequential`, `drift` | see above, 0 to 1 | 0.5, 0 |
///
/// Ranks are 1 to `keys`. Rank k becomes the key `mix64(k - 1 + mix64(seed))`, a bijection, so keys are spread over 64
/// bits. For `normal` the ranks are positions in the key range, for `latest` the ages at the start; other ranks run from the
/// most to the least popular. New keys are made likewise from numbers beyond the ranks. For `block` the key is the address,
/// rank - 1. A size depends on the key alone. Requests are gets but for `latest`, `block` and `sets`; the time of a request
/// is its number, from 0.
#[derive(Debug, Clone)]
pub struct Generator {
    kind: &'static str,
    workload: Workload,
    requests: u64,
    /// Share of the requests that are sets, where the workload draws keys alone.
    sets: f64,
    seed: u64,
    sizes: ValueSizes,
}

#[derive(Debug, Clone)]
enum Workload {
    Zipf(Zipf),
    Hotspot(Hotspot),
    Normal(Normal),
    Latest(Latest),
    Block(Box<Block>),
}

/// Kinds of generators, each with the parts of its own.
const KINDS: [(&str, &[&str]); 6] = [
    ("zipf", &["keys", "theta", "sets"]),
    ("uniform", &["keys", "sets"]),
    ("hotspot", &Hotspot::PARTS),
    ("normal", &Normal::PARTS),
    ("latest", &Latest::PARTS),
    ("block", &Block::PARTS),
];

impl Generator {
    /// Whether `name` is meant as a generator and not as a path.
    pub fn is_generator_name(name: &str) -> bool {
        name.split_once(':')
            .is_some_and(|(kind, _)| KINDS.iter().any(|&(known, _)| known == kind))
    }

    /// A generator by a name in which `requests` may be left out: it then goes on without end.
    ///
    /// # Errors
    /// [`TraceError::Generator`], naming the part that is wrong; [`TraceError::Open`] and
    /// [`TraceError::Sizes`] for a file that is named.
    pub fn endless(spec: &str) -> Result<Self, TraceError> {
        Self::parse(spec, Some(u64::MAX))
    }

    /// `requests` is the default of the part of that name.
    fn parse(spec: &str, requests: Option<u64>) -> Result<Self, TraceError> {
        let wrong = |what: String| TraceError::Generator {
            spec: spec.to_owned(),
            what,
        };
        let (kind, text) = spec.split_once(':').unwrap_or((spec, ""));
        let Some(&(kind, own)) = KINDS.iter().find(|&&(known, _)| known == kind) else {
            let kinds = KINDS.map(|(kind, _)| format!("`{kind}:`")).join(", ");
            return Err(wrong(format!("expected one of {kinds}")));
        };
        let parts = Parts::parse(text, own).map_err(wrong)?;
        let requests = parts.whole("requests").map_err(wrong)?.or(requests);
        let seed = parts.whole("seed").map_err(wrong)?.unwrap_or(42);
        let workload = match kind {
            "hotspot" => Workload::Hotspot(Hotspot::from_parts(&parts).map_err(wrong)?),
            "normal" => Workload::Normal(Normal::from_parts(&parts).map_err(wrong)?),
            "latest" => Workload::Latest(Latest::from_parts(&parts).map_err(wrong)?),
            "block" => Workload::Block(Box::new(Block::from_parts(&parts).map_err(wrong)?)),
            _ => Workload::Zipf(zipf_from_parts(kind, &parts).map_err(wrong)?),
        };
        let sets = parts.decimal("sets", 0.0, 1.0).map_err(wrong)?.unwrap_or(0.0);
        let requests = required("requests", requests).map_err(wrong)?;
        let sizes = ValueSizes::from_parts(&parts, wrong)?;
        Ok(Generator {
            kind,
            workload,
            requests,
            sets,
            seed,
            sizes,
        })
    }

    /// The number of requests it yields; [`u64::MAX`] if it goes on without end.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// What fixes its sequence.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Starts the sequence.
    pub fn open(&self) -> Box<dyn RequestReader> {
        Box::new(self.stream())
    }

    /// Starts the sequence, for a caller that knows it is generated.
    pub fn stream(&self) -> GeneratedRequests {
        GeneratedRequests::new(self, 0, 1, self.requests)
    }

    /// Starts sequence `part` of `parts` that together make the workload: each draws on its own from the same keys, new
    /// keys of one never come in another, and each yields its part of the requests. Part 0 of 1 is
    /// [`stream`](Generator::stream). `parts` of 0 are taken as 1, and `part` modulo `parts`.
    pub fn stream_part(&self, part: u64, parts: u64) -> GeneratedRequests {
        let parts = parts.max(1);
        let part = part % parts;
        let requests = match self.requests {
            u64::MAX => u64::MAX,
            requests => requests / parts + u64::from(part < requests % parts),
        };
        GeneratedRequests::new(self, part, parts, requests)
    }

    /// How many keys have a rank: those that are there before the first request.
    pub fn ranks(&self) -> u64 {
        match &self.workload {
            Workload::Zipf(zipf) => zipf.ranks(),
            Workload::Hotspot(hotspot) => hotspot.keys,
            Workload::Normal(normal) => normal.keys,
            Workload::Latest(latest) => latest.keys(),
            Workload::Block(block) => block.chunks,
        }
    }

    /// The key with a rank, from 1 to [`ranks`](Generator::ranks); other ranks give keys of no meaning. All keys in
    /// the order of their ranks are `(1..=generator.ranks()).map(|rank| generator.key_of_rank(rank))`. Cost: some
    /// nanoseconds.
    pub fn key_of_rank(&self, rank: u64) -> u64 {
        let number = rank.wrapping_sub(1);
        match self.workload {
            Workload::Block(_) => number,
            _ => mix64(number.wrapping_add(self.key_base())),
        }
    }

    /// Whether requests carry sizes.
    pub fn has_sizes(&self) -> bool {
        !self.sizes.is_none()
    }

    /// The size in bytes of the object under one of the workload's keys, the same that its requests carry; `None` if
    /// they carry none.
    pub fn size_of(&self, key: u64) -> Option<u64> {
        self.sizes.of(key)
    }

    /// What keys are counted from.
    fn key_base(&self) -> u64 {
        mix64(self.seed)
    }
}

fn zipf_from_parts(kind: &str, parts: &Parts<'_>) -> Result<Zipf, String> {
    let keys = required("keys", parts.keys()?)?;
    let theta = match kind {
        "uniform" => 0.0,
        _ => required("theta", parts.theta()?)?,
    };
    Zipf::new(keys, theta).ok_or_else(|| "keys or theta are out of range".into())
}

impl FromStr for Generator {
    type Err = TraceError;

    /// # Errors
    /// Those of [`Generator::endless`], and [`TraceError::Generator`] if `requests` is missing.
    fn from_str(spec: &str) -> Result<Self, TraceError> {
        Self::parse(spec, None)
    }
}

#[cfg(test)]
mod tests;
