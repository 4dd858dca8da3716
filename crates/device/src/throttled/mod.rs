//! A device that is as slow as another kind of device.
//!
//! # The model
//!
//! A device has some lanes that work at the same time, and one channel through which the bytes of all lanes pass. Reads and writes share
//! both; each has a latency and a bandwidth of its own:
//!
//! ```text
//! begin  = max(now, when a lane is free)                the lane that is free first
//! passed = max(begin, when the channel is free) + bytes / bandwidth
//! done   = passed + latency
//! ```
//!
//! The channel is free again at `passed`, the lane at `done`. So one small operation at a time takes the latency, many at once come to
//! parallelism / latency operations a second, and large ones to the bandwidth. There are as many lanes as the direction with more
//! parallelism has. An operation of the other one is answered at `done` too, and holds its lane for longer, by lanes / parallelism: so
//! writes alone, reads alone, and what is between come to what each could do of the whole device. A drive that has taken a write into
//! its memory is as busy for a while after it has answered.
//!
//! A kind of device may have service times that vary around these, evenly, and pauses in which nothing is done, one in each period; both
//! follow from a seed. A disk has a latency only where an operation does not begin where the last one ended. Otherwise order and place
//! cost nothing, and nothing is cleaned up in the background: that is what [`Profile`]s cannot say. A sync waits for all writes under
//! way. Log appends go to memory, as they do on a file, and cost nothing.
//!
//! An operation is really carried out by the device beneath, and is done when both are: on a slower device than the model the model
//! changes nothing.
//!
//! # Time
//!
//! The model asks a [`Timeline`] what time it is, and waits by it: [`RealTime`] sleeps, [`VirtualTime`] jumps, so that a simulation tells how
//! long a device would have taken.

mod delays;
mod device;
mod lanes;
mod profile;
mod time;

pub use delays::{Delay, Delays, Throttle};
pub use device::ThrottledDevice;
pub use lanes::{Kind, Lanes};
pub use profile::{Direction, Profile, ProfileError, Stalls, duration};
pub use time::{RealTime, Timeline, VirtualTime};
