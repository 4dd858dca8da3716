//! Non-hierarchical caching: a faster device above a capacity device, below any store.
//!
//! [`Tiered`] is a [`Device`](pumice_device::Device) of two: the lower one holds everything and is the truth, the upper one holds copies
//! of the blocks that are read most.

mod tier;

pub use tier::format::{self, Found, UpperSuperblock};
pub use tier::{Catalog, Division, Start, Tier, TierCounters, TierCounts, Tiered};
