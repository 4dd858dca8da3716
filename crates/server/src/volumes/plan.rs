//! Divides the DRAM budget among volumes.

use super::config::VolumesConfig;
use crate::service::Share;
use pumice_backing::Source;
use pumice_console::usage;
use pumice_trace::Human;
use pumice_volume::{CachePlan, Wanted};

/// The program, its runtime, and what the allocator keeps.
const BASE_BYTES: u64 = 16 << 20;
/// Stack, ring and buffers of a worker.
const THREAD_BYTES: u64 = 1 << 20;
/// Most memory of all connections; one connection's part, if `--max-connections` is not given.
const DOOR_BYTES_MAX: u64 = 64 << 20;
const CONNECTION_BYTES: u64 = 2 << 20;
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
        plan.map(Some)
            .map_err(|error| usage(format!("the cache of {}: {error}", volume.backing)))
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
