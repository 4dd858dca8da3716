//! Bytes in DRAM: aligned buffers for I/O, buffers whose payload may be a mere length, and one mapping that the
//! DRAM tier and the index share by segments and pages.
//!
//! All `unsafe` code about memory is in the modules of this crate, behind safe types where the borrow checker can
//! see the whole story and behind a written contract where it cannot ([`Buffer::put`]).

mod aligned;
mod buffer;
mod pool;
mod prefetch;
mod sparse;

pub use aligned::AlignedBuf;
pub use buffer::{Buffer, Payload};
pub use pool::{PAGE_BYTES, Page, PagePool, SegmentId, SegmentPool};
pub use prefetch::prefetch;
pub use sparse::SparseBuf;

/// The alignment of I/O buffers, and the unit in which devices are read and written, in bytes.
pub const SECTOR_BYTES: usize = 4096;
