//! A flash translation layer: what a flash drive writes when a cache writes to it.
//!
//! [`Ftl`] is the model alone: a page-mapped log-structured translation with greedy garbage collection, after
//! Agrawal, Prabhakaran, Wobber, Davis, Manasse, Panigrahy, "Design Tradeoffs for SSD Performance" (USENIX ATC 2008).
//! [`FtlDevice`] puts it under any layout: it passes everything on to another device and shows the model what was
//! written. [`closed_form`] has the published formulas that the model is checked against, and [`measure_write_size`] the
//! experiment of RIPQ's figure 2.
//!
//! A drive fills superblocks in the order of writes and knows nothing of where the host's blocks begin. So aligned
//! writes of a superblock's size cost nothing only while nothing else is written between them: a single page shifts all
//! that follows, and every block then lies in two superblocks.
//!
//! What the model leaves out: time, reads, wear levelling beyond taking free superblocks in turn, bad blocks, the
//! drive's own metadata, and cells that hold several pages.

pub mod closed_form;
mod counts;
mod device;
mod model;
#[cfg(test)]
mod naive;
mod options;
mod page_map;
mod partial;
mod victims;
mod write_sizes;

pub use counts::{EraseSpread, FtlCounts};
pub use device::FtlDevice;
pub use model::Ftl;
pub use options::{FtlError, FtlOptions};
pub use write_sizes::{WriteSizeOptions, WriteSizeRow, measure_write_size, measure_write_sizes};
