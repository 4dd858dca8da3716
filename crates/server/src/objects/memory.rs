//! How the budget of the process is divided.

use super::config::ServeConfig;
use super::flash::Target;
use pumice::{Budget, IndexChoice, IndexKind, MemoryPlan};
use pumice_blocks::Geometry;
use pumice_console::usage;
use pumice_trace::Human;

/// What a connection holds while it is idle, or waits with little in hand: its state in the door and the event loop (1 KiB, or 8
/// while a command of its is executed), the beginning of a command, the end of a reply.
const IDLE_BYTES: u64 = 6 << 10;

/// What TLS holds of a connection beside that: keys, the state of its session, and a buffer of 4 KiB to read into.
const TLS_BYTES: u64 = 8 << 10;

/// Input and output buffers of a connection that is being served; as many are counted as are served at once.
const BUSY_BYTES: u64 = 96 << 10;
const BUSY_CONNECTIONS: u64 = 32;

/// Spare buffers, stack, ring and the allocator's caches of a worker, where there are more than the program's part has room for.
const THREAD_BYTES: u64 = 512 << 10;
const FEW_THREADS: usize = 4;

/// Memory for connections in a budget of `dram` bytes: what all together may hold, and what each holds by itself.
fn connections(config: &ServeConfig, dram: u64) -> u64 {
    let connections = config.max_connections as u64;
    let idle = IDLE_BYTES + config.tls.as_ref().map_or(0, |_| TLS_BYTES);
    config.door.shared_bytes(dram)
        + connections * idle
        + connections.min(BUSY_CONNECTIONS) * BUSY_BYTES
        + config.host.threads.saturating_sub(FEW_THREADS) as u64 * THREAD_BYTES
}

/// How the budget is divided, and the index that goes with it.
pub struct Division {
    pub plan: MemoryPlan,
    pub index: IndexKind,
    /// Why that one, where nobody said which.
    pub choice: Option<IndexChoice>,
}

/// Divides the budget, and checks that the flash can be divided too.
///
/// # Errors
/// Usage, naming the smallest budget, of DRAM or of bytes to the flash, or the smallest flash that works.
pub fn divide(config: &ServeConfig, target: &Target) -> anyhow::Result<Division> {
    let division = try_divide(config, target, config.host.dram).ok_or_else(|| {
        usage(format!(
            "--dram {:#} is too little for {:#} of flash, values of {:#}, {} connections and {} threads; {}",
            Human(config.host.dram),
            Human(target.capacity),
            Human(u64::from(config.door.max_item_size)),
            config.max_connections,
            config.host.threads,
            smallest(config, target, config.host.dram).map_or_else(
                || "none works".to_owned(),
                |least| format!("the smallest that works is {} MiB", least >> 20),
            ),
        ))
    })?;
    let block_bytes = division.plan.block_bytes;
    if let Some(budget) = config.admission.budget {
        let checked = budget.check(block_bytes);
        checked.map_err(|error| usage(format!("--flash-write-budget: {error}")))?;
    }
    match Geometry::plan(target.capacity, block_bytes) {
        Ok(_) => Ok(division),
        Err(error) => Err(usage(format!(
            "--flash-size {:#}: {error}",
            Human(target.capacity)
        ))),
    }
}

/// The smallest budget from `from` bytes on that can be divided, in whole MiB; `None` where none below 1 TiB can.
pub fn smallest(config: &ServeConfig, target: &Target, from: u64) -> Option<u64> {
    let budgets = (from.div_ceil(1 << 20)..1 << 20).map(|mib| mib << 20);
    let mut works = budgets.filter(|dram| try_divide(config, target, *dram).is_some());
    works.next()
}

/// Divides a budget of `dram` bytes; `None` where it is too little.
fn try_divide(config: &ServeConfig, target: &Target, dram: u64) -> Option<Division> {
    let budget = |connections| Budget {
        total: dram,
        flash: target.capacity,
        block_bytes: target.block_bytes.or(config.block_size),
        connections,
        layout: target.layout,
        admission: config.admission.rule,
    };
    let connections = connections(config, dram);
    // Nobody is connected while a start reads the device, so that uses the memory of connections; it seldom needs more.
    let divided = |index| {
        let plan = budget(connections).divide(index)?;
        let recovery = Geometry::plan(target.capacity, plan.block_bytes)
            .map_or(0, |geometry| pumice_flash::recovery_bytes(&geometry));
        match recovery > connections {
            true => budget(recovery).divide(index),
            false => Some(plan),
        }
    };
    let mut choice = (target.index.is_none()).then(|| budget(connections).choose_index());
    if let Some(choice) = &mut choice
        && divided(choice.kind).is_none()
        && divided(IndexKind::Full).is_some()
    {
        choice.kind = IndexKind::Full;
    }
    let index = (target.index.or(choice.map(|choice| choice.kind))).unwrap_or_default();
    let plan = divided(index)?;
    Some(Division { plan, index, choice })
}
