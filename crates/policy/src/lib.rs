//! Eviction policies. Here: exact simulators of FIFO and LRU over objects that are mere numbers and sizes.
//!
//! Policies do no I/O, read no clock and know no keys: whoever drives them maps keys to dense [`ObjectNumber`]s.
#![forbid(unsafe_code)]

mod exact;
mod fifo;
mod lru;
mod queue;

pub use exact::{ExactPolicy, Insertion, MAX_OBJECTS, ObjectNumber};
pub use fifo::Fifo;
pub use lru::Lru;
