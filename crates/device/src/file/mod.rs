//! A file or raw block device.
//!
//! [`FileShared`] is what all threads share: the open, locked and preallocated file. Each thread makes its own
//! [`FileDevice`] of it, with its own io_uring; where the kernel refuses io_uring, the handles share a few threads
//! that do positioned reads and writes. An operation lives in a table of the handle ([`table`]) until the medium is
//! done with it, whatever becomes of its future; the two engines ([`ring`], [`pool`]) only start pieces of it and
//! report their results.

mod device;
mod fault;
mod gate;
mod holder;
mod options;
mod pool;
mod ring;
mod shared;
mod table;
mod window;

pub use device::FileDevice;
pub use holder::{holder, mounted_at};
pub use options::{Engine, FileError, FileOptions};
pub use shared::{FileShared, file_behind};
