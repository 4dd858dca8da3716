//! `--throttle`, which is there with the feature `throttle` alone: without it no type of a served device knows of it.

#[cfg(not(feature = "throttle"))]
mod off;
#[cfg(feature = "throttle")]
mod on;

#[cfg(not(feature = "throttle"))]
pub use off::{Kinds, Paced, PacedBacking, Throttling, test_all};
#[cfg(feature = "throttle")]
pub use on::{Kinds, Paced, PacedBacking, Throttling, test_all};
