//! A model of two devices under non-hierarchical caching: one cell of the table of figures.
//!
//! Requests of one size come to the lanes of two devices ([`pumice_device::Lanes`]) in virtual time. A read of what the upper device has
//! is sent where the switch says; any other goes below and, where data is admitted, is copied up in the background. A write
//! goes to the lower device, and at the same time to the upper one where that has the block. Beside the
//! scheduler there run classic caching, every fixed setting of which the best is the *best split*, and the baselines.

mod cache;
mod cell;
mod model;
mod options;

pub use cell::{CellReport, Changed, Figures, Formulas, run_cell};
pub use options::{CacheModel, CellOptions, Change, Load};
