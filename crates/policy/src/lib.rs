//! Eviction policies: what priority an object gets, and exact caches that follow it to the byte.
//!
//! A [`Policy`] gives priorities; whoever keeps the objects follows them as well as it can. [`policy_named`] has them all.
//! [`ExactQueue`] follows them exactly; [`Twin`] is a policy on such a queue, the yardstick for any layout that
//! approximates it. [`QuantileHistogram`] translates absolute priorities for those that do. [`Lists`] and
//! [`GreedyDual`] are the textbook's forms, as baselines beside the twins.
//!
//! Policies do no I/O, read no clock and know no keys: whoever drives them maps keys to dense [`ObjectNumber`]s.
#![forbid(unsafe_code)]

mod exact;
mod exact_queue;
mod greedy_dual;
mod histogram;
mod lists;
mod policies;
mod priority;
mod twin;

pub use exact::{ExactPolicy, Insertion, MAX_OBJECTS, ObjectNumber};
pub use exact_queue::{ExactQueue, MAX_QUEUE_BYTES};
pub use greedy_dual::GreedyDual;
pub use histogram::{Bin, QuantileHistogram};
pub use lists::Lists;
pub use policies::{POLICY_NAMES, policy_named};
pub use priority::{Hit, Policy, Priority};
pub use twin::Twin;
