//! Models in virtual time, and of two exact tiers, over the code that serves: what a mechanism gains before any device is bought.
//!
//! [`run_cell`] is non-hierarchical caching of two devices, [`run_volume`] a cached volume on such devices, [`replay_tiers`] an admission rule
//! between DRAM and flash.
#![forbid(unsafe_code)]

mod nhc;
mod tiers;
mod volume;

pub use nhc::{CacheModel, CellOptions, CellReport, Change, Changed, Figures, Formulas, Load, run_cell};
pub use tiers::{TierCounts, TiersOptions, TiersReport, replay_tiers};
pub use volume::{VolumeOptions, VolumeReport, VolumeRun, run_volume};
