//! A flash translation layer: what a flash drive writes when a cache writes to it.
//!
//! [`Ftl`] is the model alone: a page-mapped log-structured translation with greedy garbage collection, after
//! Agrawal, Prabhakaran, Wobber, Davis, Manasse, Panigrahy, "Design Tradeoffs for SSD Performance" (USENIX ATC 2008).
//! [`FtlDevice`] puts it under any layout: it passes everything on to another device and shows the model what was
//! written. Its tests check it against published formulas and against figure 2 of the RIPQ paper.
//!
//! A drive fills superblocks in the order of writes and knows nothing of where the host's blocks begin. So aligned
//! writes of a superblock's size cost nothing only while nothing else is written between them: a single page shifts all
//! that follows, and every block then lies in two superblocks.
//!
//! What the model leaves out: time, reads, wear levelling beyond taking free superblocks in turn, bad blocks, the
//! drive's own metadata, and cells that hold several pages.

mod counts;
mod device;
mod model;
mod options;
mod page_map;
mod partial;
mod victims;

pub use counts::{EraseSpread, FtlCounts};
pub use device::FtlDevice;
pub use model::Ftl;
pub use options::{FtlError, FtlOptions};
