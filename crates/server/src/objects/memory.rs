//! How the budget of the process is divided.

use super::config::ServeConfig;
use super::flash::Target;
use pumice::{Budget, IndexChoice, IndexKind, MemoryPlan};
use pumice_blocks::Geometry;
use pumice_console::usage;
use pumice_trace::Human;

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
        let values = config.door.memcached().map(|door| u64::from(door.max_item_size));
        let values = values.map_or_else(String::new, |bytes| format!(" values of {:#},", Human(bytes)));
        usage(format!(
            "--dram {:#} is too little for {:#} of flash,{values} {} connections and {} threads; {}",
            Human(config.host.dram),
            Human(target.capacity),
            config.door.connections_max,
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
    let connections = config.door.bytes(dram, config.host.threads);
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
