//! The locks of all rooms: those of parking_lot, and nothing else.
//!
//! With feature `timed`, which only `bench/inprocess` asks for, threads note how long they wait for a mutex or a lock of readers and
//! writers. A lock is known by the type that it guards. A free one is taken by one exchange, as ever; only a thread that finds it taken
//! reads the clock, before it waits and when it has the lock.

#[cfg(any(feature = "timed", test))]
// Without the feature its tests alone call it.
#[cfg_attr(not(feature = "timed"), allow(dead_code))]
mod timed;

pub use parking_lot::*;
#[cfg(feature = "timed")]
pub use timed::{Mutex, RwLock, SHORT, Waits, take_waits};
