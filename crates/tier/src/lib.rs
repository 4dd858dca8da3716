//! The DRAM tier in front of flash: items in fixed segments, evicted by S3-FIFO.
//!
//! The tier knows segments and its own table of items; what happens to an item that leaves, and whether flash holds a
//! copy, is the engine's business.

mod ghost;
mod segments;
mod shard;

pub use segments::{DramTier, Queue, Reserved, SealedSegment};
pub use shard::{DramShape, DramShard, FREQUENCY_MAX, Found};
