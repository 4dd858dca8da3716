//! Non-hierarchical caching: a faster device above a capacity device, below any store.
//!
//! [`Tiered`] is a [`Device`](pumice_device::Device) of two: the lower one holds everything and is the truth, the upper one holds copies
//! of the blocks that are read most. The [`Scheduler`] says how much of what the upper device could serve is sent there, and whether data is
//! copied to it at all. It is arithmetic: it knows no device, no clock, no lock and no random number of its own. [`Split`] gives it times and
//! threads, for [`Tiered`] and for a store that has both devices itself.

mod scheduler;
mod split;
mod tier;

pub use scheduler::{
    Balance, Counts, Governor, Histogram, Literal, Meter, Objective, ObjectiveError, Reason, Scheduler, Side,
    State, Status, Switch, fixed_split, paper,
};
pub use split::{Part, Request, Split};
pub use tier::format::{self, Found, UpperSuperblock};
pub use tier::{Catalog, Division, Start, Tier, TierCounters, TierCounts, Tiered};
