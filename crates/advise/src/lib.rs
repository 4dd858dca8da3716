//! What to buy for a workload: how much DRAM, how much flash, and how long the flash lasts.
//!
//! A [`Curve`] has the hit ratio of a cache of any size, from one pass over a trace. [`Latencies`] turn two sizes into a mean response time, and
//! find the DRAM that equals some flash ([`Equivalents`]). [`choose`] picks a few sizes to buy from a grid. This room runs no cache: the
//! command `advise` replays its choices through the engine, and reports the engine's figures.
//!
//! Source: Zhang, Kim, Ma, Shipman and Zhou, *Multi-level Hybrid Cache: Impact and Feasibility*, section 2.
#![forbid(unsafe_code)]

mod choose;
mod curve;
mod histogram;
mod knees;
mod latency;
mod lifetime;
mod sums;

pub use choose::{Choice, Limit, Offer, Prices, choose, pairs, sizes};
pub use curve::{Curve, CurveBuilder, CurveOptions};
pub use knees::knees;
pub use latency::{Equivalents, Latencies};
pub use lifetime::{Endurance, Rating, positive};
