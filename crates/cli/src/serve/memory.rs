//! How the budget of the process is divided.

use super::config::ServeConfig;
use super::flash::Target;
use crate::size::Human;
use crate::usage::usage;
use pumice::{MemoryPlan, PlanError};
use pumice_flash::Geometry;

/// Memory for connections, in bytes.
pub struct Connections {
    /// For values on their way in.
    pub receive_budget: u64,
    /// All together: the above, lines and small values being read, replies being sent.
    pub total: u64,
    /// Values up to this length are received in the connection's own buffer.
    pub inline_value: u32,
}

impl Connections {
    /// What the settings make of it.
    pub fn plan(config: &ServeConfig) -> Self {
        let largest = u64::from(config.max_item_size) + 2;
        let receive_budget = (config.dram / 16).clamp(2 << 20, 64 << 20).max(largest);
        Self {
            receive_budget,
            // Idle connections hold no buffer; 64 KiB is what a busy one holds, and 64 are busy at a time.
            total: receive_budget + (64.min(config.max_connections as u64) << 16),
            inline_value: 32 << 10,
        }
    }
}

/// Divides the budget, and checks that the flash can be divided too.
///
/// # Errors
/// Usage, naming the smallest budget or the smallest flash that works.
pub fn divide(
    config: &ServeConfig,
    target: &Target,
    connections: &Connections,
) -> anyhow::Result<MemoryPlan> {
    let block_bytes = target.block_bytes.or(config.block_size);
    let plan = MemoryPlan::divide(
        config.dram,
        target.capacity,
        block_bytes,
        connections.total,
        config.alpha,
    );
    let plan = plan.map_err(|error| {
        let PlanError::TooSmall { given, min } = error;
        usage(format!(
            "--dram {} is too little for {} of flash, values of {} and {} connections; the smallest that works is {}",
            Human(given),
            Human(target.capacity),
            Human(u64::from(config.max_item_size)),
            config.max_connections,
            Human(min),
        ))
    })?;
    match Geometry::plan(target.capacity, plan.block_bytes) {
        Ok(_) => Ok(plan),
        Err(error) => Err(usage(format!("--flash-size {}: {error}", Human(target.capacity)))),
    }
}
