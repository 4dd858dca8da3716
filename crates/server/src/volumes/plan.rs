//! Divides the DRAM budget among volumes, and plans their caches.

use super::config::{VolumeConfig, VolumesConfig};
use crate::service::Share;
use crate::usage::usage;
use pumice_admit::Rule;
use pumice_backing::Source;
use pumice_blocks::Geometry;
use pumice_chunk::store::Shape;
use pumice_trace::Human;

/// The program, its runtime, and what the allocator keeps.
const BASE_BYTES: u64 = 16 << 20;
/// Stack, ring and buffers of a worker.
const THREAD_BYTES: u64 = 1 << 20;
/// Most memory of all connections; one connection's part, if `--max-connections` is not given.
const DOOR_BYTES_MAX: u64 = 64 << 20;
const CONNECTION_BYTES: u64 = 2 << 20;
/// Block buffers of a cache: for blocks that are filled, written, and filled by a reclaim.
const BUFFERS: u64 = 8;
/// Addresses in the index for each chunk that fits the cache uncompressed. More than one: contents are shared and compressed.
const MAPPINGS_PER_CHUNK: u64 = 4;
/// Bytes of a ghost for each of these addresses.
const GHOST_BYTES: u64 = 2;
/// Contents in the index for ten chunks that fit the cache uncompressed: contents compressed to half, and a tenth more.
const CONTENTS_PER_TEN_CHUNKS: u64 = 22;

/// Sizes of a cache and of its DRAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachePlan {
    /// Bytes of the cache device that are used.
    pub capacity: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Block buffers.
    pub buffers: usize,
    /// Slots of the LBA-index.
    pub mappings: u64,
    /// Slots of the FP-index.
    pub contents: u64,
    /// DRAM of the index, in bytes.
    pub index_bytes: u64,
    /// DRAM for what a rule of admission remembers, in bytes.
    pub ghost_bytes: u64,
    /// DRAM for chunks that were read lately, in bytes.
    pub dram_bytes: u64,
    /// DRAM for what is read ahead, in bytes.
    pub read_ahead_bytes: u64,
}

/// The division of the DRAM budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Memory of the program, its threads, and what remote volumes keep, in bytes.
    pub program_bytes: u64,
    /// Memory of all connections, in bytes.
    pub door_bytes: u64,
    /// The most connections.
    pub max_connections: usize,
    /// The caches, in the order of the volumes; none in pass-through.
    pub caches: Vec<Option<CachePlan>>,
}

impl Plan {
    /// What asks for DRAM, and for how much.
    pub fn shares(&self) -> Vec<Share> {
        let sum = |bytes: fn(&CachePlan) -> u64| self.caches.iter().flatten().map(bytes).sum();
        vec![
            Share::new("the program", self.program_bytes),
            Share::new("connections", self.door_bytes),
            Share::new("indexes and block buffers", sum(CachePlan::fixed_bytes)),
            Share::new("chunks", sum(|cache| cache.dram_bytes)),
            Share::new("read-ahead", sum(|cache| cache.read_ahead_bytes)),
        ]
    }
}

/// Input for the plan of a cache.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Bytes of the backing device.
    pub backing_bytes: u64,
    /// Bytes of the cache device.
    pub capacity: u64,
    /// The chunk size given, or that of the cache on the device.
    pub chunk_bytes: Option<u32>,
    /// The block size of the cache on the device.
    pub block_bytes: Option<u64>,
    /// Which chunks enter the cache.
    pub rule: Rule,
}

impl Wanted {
    /// Plans a cache with chunks of this size; all block buffers together have `buffer_bytes`.
    fn plan(&self, chunk_bytes: u32, buffer_bytes: u64) -> Result<CachePlan, String> {
        let chunk = u64::from(chunk_bytes);
        let block_bytes = self.block_bytes.unwrap_or_else(|| {
            Geometry::block_bytes_for(self.capacity, (64 << 10).max(4 * chunk), BUFFERS, buffer_bytes)
        });
        let geometry = Geometry::plan(self.capacity, block_bytes).map_err(|error| error.to_string())?;
        let chunks = self.backing_bytes.div_ceil(chunk);
        let held = (self.capacity / chunk).max(1);
        let mappings = (held * MAPPINGS_PER_CHUNK).min(chunks);
        let contents = held * CONTENTS_PER_TEN_CHUNKS / 10;
        let shape = Shape::new(&geometry, chunk_bytes, chunks, mappings, contents);
        let shape = shape.map_err(|error| error.to_string())?;
        let index = shape.index_bytes(&geometry).map_err(|error| error.to_string())?;
        Ok(CachePlan {
            capacity: geometry.capacity,
            chunk_bytes,
            block_bytes,
            buffers: BUFFERS as usize,
            mappings,
            contents,
            index_bytes: index.iter().sum(),
            ghost_bytes: match self.rule {
                Rule::SecondHit => mappings * GHOST_BYTES,
                Rule::All | Rule::Random(_) => 0,
            },
            dram_bytes: 0,
            read_ahead_bytes: 0,
        })
    }

    /// Plans with the chunk size given, else with the smallest whose index fits `index_bytes`, else with the largest.
    fn choose(&self, index_bytes: u64, buffer_bytes: u64) -> Result<CachePlan, String> {
        if let Some(chunk_bytes) = self.chunk_bytes {
            return self.plan(chunk_bytes, buffer_bytes);
        }
        let mut last = Err(String::new());
        for bits in 12..=17 {
            last = self.plan(1 << bits, buffer_bytes);
            if last.as_ref().is_ok_and(|plan| plan.index_bytes <= index_bytes) {
                break;
            }
        }
        last
    }
}

impl CachePlan {
    /// DRAM that the cache takes whatever is in it, in bytes.
    pub fn fixed_bytes(&self) -> u64 {
        self.index_bytes + self.ghost_bytes + self.buffers as u64 * self.block_bytes
    }
}

/// Bytes needed, where they exceed the budget.
struct TooMuch {
    others: u64,
    door: u64,
    caches: u64,
}

/// Divides the budget: at most a quarter for indexes, an eighth for block buffers and a quarter for connections, a sixteenth of the
/// rest for what is read ahead, then seven eighths for chunks in DRAM. The index of a chunk size that was given may take more than a quarter.
///
/// # Errors
/// A usage error that names the needs, and a budget that suffices.
pub fn divide(config: &VolumesConfig, wanted: &[Option<Wanted>]) -> anyhow::Result<Plan> {
    let too_much = match divide_into(config.host.dram, config, wanted)? {
        Ok(plan) => {
            check_budgets(config, &plan)?;
            return Ok(plan);
        }
        Err(too_much) => too_much,
    };
    // More DRAM may mean smaller chunks and a larger index, so a sufficient budget is found by trial.
    let mut least = config.host.dram.max(BASE_BYTES).next_multiple_of(1 << 20);
    while divide_into(least, config, wanted)?.is_err() {
        least = (least + least / 16).next_multiple_of(1 << 20);
    }
    Err(usage(format!(
        "--dram {:#} is too little: the program needs {}, connections {}, indexes and block buffers {}; give it {}MiB, larger chunks \
         (--chunk-size), or smaller caches",
        Human(config.host.dram),
        Human(too_much.others),
        Human(too_much.door),
        Human(too_much.caches),
        least >> 20,
    )))
}

fn divide_into(
    dram: u64,
    config: &VolumesConfig,
    wanted: &[Option<Wanted>],
) -> anyhow::Result<Result<Plan, TooMuch>> {
    let count = wanted.iter().flatten().count().max(1) as u64;
    let planned = wanted.iter().zip(&config.volumes).map(|(wanted, volume)| {
        let Some(wanted) = wanted else { return Ok(None) };
        let plan = wanted.choose(dram / 4 / count, dram / 8 / count);
        plan.map(Some).map_err(|error| unfit(volume, &error))
    });
    let mut caches = planned.collect::<anyhow::Result<Vec<_>>>()?;
    let door = (dram / 4).min(DOOR_BYTES_MAX);
    let remotes = config
        .volumes
        .iter()
        .filter(|volume| matches!(volume.backing, Source::Uri(_)));
    let kept = remotes.count() as u64 * 2 * pumice_remote::KEPT_BYTES as u64;
    let others = BASE_BYTES + config.host.threads as u64 * THREAD_BYTES + kept;
    let indexes: u64 = caches.iter().flatten().map(CachePlan::fixed_bytes).sum();
    let Some(left) = dram.checked_sub(others + door + indexes) else {
        return Ok(Err(TooMuch {
            others,
            door,
            caches: indexes,
        }));
    };
    for (cache, volume) in caches.iter_mut().zip(&config.volumes) {
        let Some(cache) = cache else { continue };
        cache.read_ahead_bytes = volume.read_ahead_bytes.min(left / 16 / count);
        cache.dram_bytes = (left / count - cache.read_ahead_bytes) / 8 * 7;
    }
    let connections = usize::try_from(door / CONNECTION_BYTES).unwrap_or(usize::MAX);
    Ok(Ok(Plan {
        program_bytes: others,
        door_bytes: door,
        max_connections: config.host.max_connections.unwrap_or(connections.max(1)),
        caches,
    }))
}

/// Refuses write budgets that are too small for the blocks.
fn check_budgets(config: &VolumesConfig, plan: &Plan) -> anyhow::Result<()> {
    for (volume, cache) in config.volumes.iter().zip(&plan.caches) {
        if let (Some(budget), Some(cache)) = (volume.write_budget, cache) {
            let checked = budget.check(cache.block_bytes);
            checked.map_err(|error| {
                usage(format!(
                    "--flash-write-budget of the volume {}: {error}",
                    volume.name
                ))
            })?;
        }
    }
    Ok(())
}

fn unfit(volume: &VolumeConfig, error: &str) -> anyhow::Error {
    usage(format!("the cache of {}: {error}", volume.backing))
}
