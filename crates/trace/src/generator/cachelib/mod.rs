//! Workloads of CacheLib's CacheBench: requests by pools of keys with popularity, sizes and operations of their own.

mod density;
mod json;
mod pool;
mod popularity;

use std::path::Path;
use std::sync::Arc;

use self::json::{Fields, JsonFile};
use self::pool::{Pool, PoolOp, PoolSpec};
use super::draw::Draw;
use super::parts::Parts;
use crate::error::TraceError;
use crate::request::Op;
use crate::zipf::Zipf;
use pumice_world::Random;

/// Most pools, as in CacheLib.
const MAX_POOLS: usize = 64;

/// A workload: what is drawn, and the sizes and lengths of its keys.
///
/// Keys are numbers: those below `keys` are shared out to the pools, one after the other. Keys that occur only once are
/// numbered from there on such that pool and table entry can be told from the number.
#[derive(Debug)]
pub(in crate::generator) struct CacheLib {
    pools: Vec<Pool>,
    /// Share of the requests that goes to each pool and those before it.
    shares: Vec<f64>,
    keys: u64,
    lookaside: Option<bool>,
}

impl CacheLib {
    pub(super) const PARTS: [&str; 4] = ["config", "pop", "keys", "loneget"];

    /// The workload of the part `config`, or of `pop` alone; `wrong` makes an error of what is wrong with the parts.
    pub(super) fn from_parts(
        parts: &Parts<'_>,
        seed: u64,
        wrong: impl Fn(String) -> TraceError,
    ) -> Result<Self, TraceError> {
        let keys = parts.keys().map_err(&wrong)?;
        let lone_get = parts.decimal("loneget", 0.0, 1.0).map_err(&wrong)?;
        match (parts.text("config"), parts.text("pop")) {
            (Some(config), None) => Self::from_config(Path::new(config), keys, lone_get, seed),
            (None, Some(pop)) => {
                let spec = PoolSpec::from_popularity(Path::new(pop), lone_get.unwrap_or(0.0))?;
                let keys = keys.unwrap_or(spec.sample.keys());
                Ok(CacheLib {
                    pools: vec![Pool::new(&spec, 0, keys, seed)],
                    shares: vec![1.0],
                    keys,
                    lookaside: None,
                })
            }
            (Some(_), Some(_)) => Err(wrong("give `config` or `pop`, not both".into())),
            (None, None) => Err(wrong("`config` or `pop` is missing".into())),
        }
    }

    fn from_config(
        path: &Path,
        keys: Option<u64>,
        lone_get: Option<f64>,
        seed: u64,
    ) -> Result<Self, TraceError> {
        let file = JsonFile::open(path)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let config = file.fields();
        let test = config.required("test_config", config.object("test_config")?)?;
        let keys = match keys {
            Some(keys) => keys,
            None => test.required("numKeys", test.count("numKeys")?)?,
        };
        if !(1..=Zipf::MAX_RANKS).contains(&keys) {
            return Err(test.wrong(
                "numKeys",
                format!("is {keys}, and not from 1 to {}", Zipf::MAX_RANKS),
            ));
        }
        let key_shares = test.weights("keyPoolDistribution")?.unwrap_or(vec![1.0]);
        let op_shares = pool_shares(&test, key_shares.len())?;
        let specs = pool_specs(&test, key_shares.len(), folder, lone_get)?;

        let total: f64 = key_shares.iter().sum();
        let (mut pools, mut first, mut share) = (Vec::new(), 0, 0.0);
        for (index, key_share) in key_shares.iter().enumerate() {
            share += key_share;
            let end = match index + 1 == key_shares.len() {
                true => keys,
                false => ((keys as f64 * (share / total)) as u64).min(keys),
            };
            if end <= first {
                let what = format!("leaves no key of {keys} for pool {index}");
                return Err(test.wrong("keyPoolDistribution", what));
            }
            let spec = specs.get(index).unwrap_or(&specs[0]);
            pools.push(Pool::new(spec, first, end - first, seed ^ index as u64));
            first = end;
        }
        Ok(CacheLib {
            pools,
            shares: op_shares,
            keys,
            lookaside: Some(test.flag("enableLookaside")?.unwrap_or(false)),
        })
    }

    pub(super) fn lookaside(&self) -> Option<bool> {
        self.lookaside
    }

    pub(super) fn has_sizes(&self) -> bool {
        self.pools.iter().all(|pool| pool.sizes.is_some())
    }

    /// How many different keys occur, those that occur only once left out.
    pub(super) fn ranks(&self) -> u64 {
        self.pools.iter().map(|pool| pool.popularity.ranks()).sum()
    }

    /// The number of the key with a rank, from 1, pool by pool.
    pub(super) fn number_of_rank(&self, rank: u64) -> u64 {
        let mut rank = rank.wrapping_sub(1);
        for pool in &self.pools {
            if rank < pool.popularity.ranks() {
                return pool.first + pool.popularity.number_of_rank(rank);
            }
            rank -= pool.popularity.ranks();
        }
        u64::MAX
    }

    /// The size of the object under a key.
    #[inline]
    pub(super) fn size_of(&self, number: u64) -> Option<u64> {
        let (pool, entry) = self.entry_of(number);
        Some(pool.sizes.as_ref()?[entry])
    }

    /// The length of a key.
    pub(super) fn key_len(&self, number: u64) -> Option<usize> {
        let (pool, entry) = self.entry_of(number);
        Some(pool.key_lens.as_ref()?[entry] as usize)
    }

    /// The pool of a key, and its entry in the pool's tables.
    #[inline]
    fn entry_of(&self, number: u64) -> (&Pool, usize) {
        let pools = self.pools.len() as u64;
        if number < self.keys {
            let after = self.pools.partition_point(|pool| pool.first <= number);
            return (&self.pools[after - 1], pool::entry(number));
        }
        let lone = number - self.keys;
        (&self.pools[(lone % pools) as usize], pool::entry(lone / pools))
    }

    /// The number of the `count`-th key that occurs only once, in a request that drew the regular key `number` of a pool:
    /// it shares that key's entry in the tables. Different counts give different numbers up to 2^43 of them.
    #[inline]
    fn lone_number(&self, count: u64, pool: usize, number: u64) -> u64 {
        let entry = count
            .wrapping_mul(pool::ENTRIES as u64)
            .wrapping_add(pool::entry(number) as u64);
        let lone = entry
            .wrapping_mul(self.pools.len() as u64)
            .wrapping_add(pool as u64);
        self.keys.wrapping_add(lone)
    }

    #[inline]
    fn draw_pool(&self, random: &mut Random) -> usize {
        if self.pools.len() == 1 {
            return 0;
        }
        let point = random.next_f64();
        let pool = self.shares.partition_point(|&share| share <= point);
        pool.min(self.pools.len() - 1)
    }
}

/// The cumulative shares of the requests that go to the pools.
fn pool_shares(test: &Fields<'_>, pools: usize) -> Result<Vec<f64>, TraceError> {
    if pools > MAX_POOLS {
        let what = format!("has {pools} pools, more than {MAX_POOLS}");
        return Err(test.wrong("keyPoolDistribution", what));
    }
    let weights = match test.weights("opPoolDistribution")? {
        None if pools == 1 => vec![1.0],
        weights => test.required("opPoolDistribution", weights)?,
    };
    if weights.len() != pools {
        let what = format!("has {} entries for {pools} pools", weights.len());
        return Err(test.wrong("opPoolDistribution", what));
    }
    let total: f64 = weights.iter().sum();
    let mut sum = 0.0;
    let shares = weights.iter().map(|weight| {
        sum += weight;
        sum / total
    });
    Ok(shares.collect())
}

/// What the pools are like: one entry for all of them, or one for each.
fn pool_specs(
    test: &Fields<'_>,
    pools: usize,
    folder: &Path,
    lone_get: Option<f64>,
) -> Result<Vec<PoolSpec>, TraceError> {
    let field = "poolDistributions";
    let entries = test.objects(field)?.unwrap_or_else(|| vec![test.clone()]);
    if entries.len() != 1 && entries.len() != pools {
        let what = format!("has {} entries for {pools} pools", entries.len());
        return Err(test.wrong(field, what));
    }
    let specs = entries
        .iter()
        .map(|entry| PoolSpec::from_config(entry, folder, lone_get));
    let specs = specs.collect::<Result<Vec<_>, _>>()?;
    let with_sizes = specs.iter().filter(|spec| spec.sizes.is_some()).count();
    if with_sizes != 0 && with_sizes != specs.len() {
        return Err(test.wrong(field, "some have value sizes and some have none"));
    }
    Ok(specs)
}

/// The draws of a workload.
#[derive(Debug, Clone)]
pub(super) struct CacheLibStream {
    workload: Arc<CacheLib>,
    /// The next key that occurs only once.
    lone: u64,
    parts: u64,
}

impl CacheLibStream {
    /// Stream `part` of `parts`, from 0.
    pub(super) fn new(workload: Arc<CacheLib>, part: u64, parts: u64) -> Self {
        CacheLibStream {
            workload,
            lone: part,
            parts,
        }
    }

    #[inline]
    pub(super) fn draw(&mut self, random: &mut Random) -> Draw {
        let workload = &*self.workload;
        let pool_index = workload.draw_pool(random);
        let pool = &workload.pools[pool_index];
        let number = pool.first + pool.popularity.draw(random);
        let (op, lone) = match pool.ops.draw(random) {
            PoolOp::Get => (Op::Get, false),
            PoolOp::Set => (Op::Set, false),
            PoolOp::Delete => (Op::Delete, false),
            PoolOp::LoneGet => (Op::Get, true),
            PoolOp::LoneSet => (Op::Set, true),
        };
        if !lone {
            return Draw {
                number,
                op,
                content: None,
            };
        }
        let number = workload.lone_number(self.lone, pool_index, number);
        self.lone = self.lone.wrapping_add(self.parts);
        Draw {
            number,
            op,
            content: None,
        }
    }
}

#[cfg(test)]
mod tests;
