//! One pool of keys of a CacheBench workload.

use std::path::Path;

use super::density::Density;
use super::json::{Fields, JsonFile};
use super::popularity::{KeyGen, Popularity, Sample};
use crate::error::TraceError;
use crate::sizes::SizeDistribution;
use pumice_world::{Random, mix64};

/// Entries of a pool's tables of value sizes and key lengths.
pub(super) const ENTRIES: usize = 32_768;
/// Most entries of a list in a file: a thousand times what published ones have.
const MAX_LIST: usize = 1 << 20;
/// Longest key, in bytes.
const MAX_KEY_LEN: f64 = 65_535.0;
/// Shortest key: a key holds its number.
const MIN_KEY_LEN: u16 = 8;
/// Largest value, in bytes: larger numbers are not exact as floats.
const MAX_SIZE: f64 = 9_007_199_254_740_992.0;
/// Ratios of operations that no request stands for.
const OTHER_RATIOS: [&str; 3] = ["addChainedRatio", "updateRatio", "couldExistRatio"];

/// The entry in the tables for a key.
#[inline]
pub(super) fn entry(number: u64) -> usize {
    (number % ENTRIES as u64) as usize
}

/// What can be drawn as an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PoolOp {
    Get,
    Set,
    Delete,
    LoneGet,
    LoneSet,
}

/// The weights of operations.
#[derive(Debug, Clone)]
pub(super) struct OpWeights {
    /// Share of each operation and those before it.
    shares: [(f64, PoolOp); 5],
}

impl OpWeights {
    /// From weights, of which one is positive.
    pub(super) fn new(get: f64, set: f64, delete: f64, lone_get: f64, lone_set: f64) -> Self {
        let mut sum = 0.0;
        let sums = [
            (get, PoolOp::Get),
            (lone_get, PoolOp::LoneGet),
            (set, PoolOp::Set),
            (lone_set, PoolOp::LoneSet),
            (delete, PoolOp::Delete),
        ]
        .map(|(weight, op)| {
            sum += weight;
            (sum, op)
        });
        // The last share is 1 exactly, and so are those before it that have no weight after them.
        OpWeights {
            shares: sums.map(|(before, op)| (before / sum, op)),
        }
    }

    #[inline]
    pub(super) fn draw(&self, random: &mut Random) -> PoolOp {
        let point = random.next_f64();
        let drawn = self.shares.iter().find(|&&(share, _)| point < share);
        drawn.map_or(PoolOp::Get, |&(_, op)| op)
    }
}

/// How value sizes are drawn.
#[derive(Debug)]
pub(super) enum SizeLaw {
    Discrete(SizeDistribution),
    Piecewise(Density),
}

impl SizeLaw {
    fn at(&self, share: f64) -> u64 {
        match self {
            SizeLaw::Discrete(sizes) => sizes.size_at(share),
            SizeLaw::Piecewise(density) => density.at(share) as u64,
        }
    }
}

/// What a pool is like, whatever keys it has.
#[derive(Debug)]
pub(super) struct PoolSpec {
    pub(super) sample: Sample,
    pub(super) key_gen: KeyGen,
    pub(super) ops: OpWeights,
    pub(super) sizes: Option<SizeLaw>,
    pub(super) key_lens: Option<Density>,
}

impl PoolSpec {
    /// A pool with the popularity of a file, gets, and a share of lone gets.
    pub(super) fn from_popularity(path: &Path, lone_get: f64) -> Result<Self, TraceError> {
        Ok(PoolSpec {
            sample: sample(&JsonFile::open(path)?.fields())?,
            key_gen: KeyGen::Scaled,
            ops: OpWeights::new(1.0 - lone_get, 0.0, 0.0, lone_get, 0.0),
            sizes: None,
            key_lens: None,
        })
    }

    /// A pool as configured, with the weight `lone_get` in place of its own if given.
    pub(super) fn from_config(
        fields: &Fields<'_>,
        folder: &Path,
        lone_get: Option<f64>,
    ) -> Result<Self, TraceError> {
        let sample = match fields.text("popDistFile")? {
            Some(file) => sample(&JsonFile::open(&folder.join(file))?.fields())?,
            None if fields.counts("popularityBuckets")?.is_none() => {
                return fields.required("popDistFile", None);
            }
            None => sample(fields)?,
        };
        let sizes = match fields.text("valSizeDistFile")? {
            Some(file) => sizes(&JsonFile::open(&folder.join(file))?.fields())?,
            None => sizes(fields)?,
        };
        Ok(PoolSpec {
            sample,
            key_gen: match fields.flag("useLegacyKeyGen")? {
                Some(true) => KeyGen::Legacy,
                _ => KeyGen::Scaled,
            },
            ops: ops(fields, lone_get)?,
            sizes,
            key_lens: key_lens(fields)?,
        })
    }
}

fn sample(fields: &Fields<'_>) -> Result<Sample, TraceError> {
    let (buckets, weights) = ("popularityBuckets", "popularityWeights");
    let bucket_keys = fields.required(buckets, fields.counts(buckets)?)?;
    let bucket_weights = fields.required(weights, fields.weights(weights)?)?;
    bounded(fields, buckets, bucket_keys.len())?;
    Sample::new(&bucket_keys, &bucket_weights).map_err(|what| fields.wrong(buckets, what))
}

fn sizes(fields: &Fields<'_>) -> Result<Option<SizeLaw>, TraceError> {
    let (range, weights) = ("valSizeRange", "valSizeRangeProbability");
    let Some(sizes) = fields.numbers(range)? else {
        return Ok(None);
    };
    bounded(fields, range, sizes.len())?;
    let size_weights = fields.required(weights, fields.weights(weights)?)?;
    let law = if sizes.len() == size_weights.len() + 1 {
        Density::new(sizes, &size_weights, MAX_SIZE).map(SizeLaw::Piecewise)
    } else {
        SizeDistribution::from_weights(sizes, size_weights).map(SizeLaw::Discrete)
    };
    law.map(Some).map_err(|what| fields.wrong(range, what))
}

fn key_lens(fields: &Fields<'_>) -> Result<Option<Density>, TraceError> {
    let (range, weights) = ("keySizeRange", "keySizeRangeProbability");
    let Some(edges) = fields.numbers(range)? else {
        return Ok(None);
    };
    bounded(fields, range, edges.len())?;
    let edge_weights = fields.required(weights, fields.weights(weights)?)?;
    let density = Density::new(edges, &edge_weights, MAX_KEY_LEN);
    density.map(Some).map_err(|what| fields.wrong(range, what))
}

fn ops(fields: &Fields<'_>, lone_get: Option<f64>) -> Result<OpWeights, TraceError> {
    for field in OTHER_RATIOS {
        if fields.weight(field)? > 0.0 {
            return Err(fields.wrong(field, "requests of this kind are not supported; it must be 0"));
        }
    }
    let (get, set, delete) = (
        fields.weight("getRatio")?,
        fields.weight("setRatio")?,
        fields.weight("delRatio")?,
    );
    let lone_get = match lone_get {
        Some(lone_get) => lone_get,
        None => fields.weight("loneGetRatio")?,
    };
    let lone_set = fields.weight("loneSetRatio")?;
    let total = get + set + delete + lone_get + lone_set;
    if total <= 0.0 || !total.is_finite() {
        return Err(fields.wrong("getRatio", format!("the ratios of operations sum to {total}")));
    }
    Ok(OpWeights::new(get, set, delete, lone_get, lone_set))
}

fn bounded(fields: &Fields<'_>, field: &str, entries: usize) -> Result<(), TraceError> {
    if entries > MAX_LIST {
        return Err(fields.wrong(field, format!("has {entries} entries, more than {MAX_LIST}")));
    }
    Ok(())
}

/// A pool: the keys from `first` on, and what is drawn for them.
///
/// Memory: 32 KiB of groups, 256 KiB of sizes, 64 KiB of key lengths.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) first: u64,
    pub(super) popularity: Popularity,
    pub(super) ops: OpWeights,
    /// The size of a key's object, by the key's entry.
    pub(super) sizes: Option<Vec<u64>>,
    /// The length of a key, by its entry.
    pub(super) key_lens: Option<Vec<u16>>,
}

impl Pool {
    /// A pool of `keys` keys; the tables are drawn by `seed`.
    pub(super) fn new(spec: &PoolSpec, first: u64, keys: u64, seed: u64) -> Self {
        let mut random = Random(mix64(!seed));
        let sizes = spec
            .sizes
            .as_ref()
            .map(|law| (0..ENTRIES).map(|_| law.at(random.next_f64())).collect());
        let key_lens = spec.key_lens.as_ref().map(|density| {
            let lens = (0..ENTRIES).map(|_| (density.at(random.next_f64()) as u16).max(MIN_KEY_LEN));
            lens.collect()
        });
        Pool {
            first,
            popularity: Popularity::new(&spec.sample, keys, spec.key_gen),
            ops: spec.ops.clone(),
            sizes,
            key_lens,
        }
    }
}
