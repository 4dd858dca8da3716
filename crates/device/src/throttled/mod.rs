//! A device that is as slow as another kind of device.
//!
//! # The model
//!
//! Each direction, reads and writes, has some lanes that work at the same time, a latency that an operation spends in its lane, and one
//! channel through which the bytes of all lanes pass:
//!
//! ```text
//! begin = max(now, when a lane is free)        the lane that is free first
//! ready = begin + latency
//! done  = max(ready, when the channel is free) + bytes / bandwidth
//! ```
//!
//! The lane and the channel are free again at `done`. So one small operation at a time takes the latency, many at once come to
//! parallelism / latency operations a second, and large ones to the bandwidth. Reads and writes do not slow each other down, order and
//! place cost nothing, and nothing is cleaned up in the background: that is what [`Profile`]s cannot say. A sync waits for all writes
//! under way. Log appends go to memory, as they do on a file, and cost nothing.
//!
//! An operation is really carried out by the device beneath, and is done when both are: on a slower device than the model the model
//! changes nothing.
//!
//! # Time
//!
//! The model asks a [`Timeline`] what time it is, and waits by it: [`RealTime`] sleeps, [`VirtualTime`] jumps, so that a simulation tells how
//! long a device would have taken.

mod device;
mod lanes;
mod profile;
mod time;

pub use device::{Throttle, ThrottledDevice};
pub use profile::{Direction, Profile, ProfileError};
pub use time::{RealTime, Timeline, VirtualTime};
