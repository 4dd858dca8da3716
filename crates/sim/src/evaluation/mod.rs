//! The evaluation of the RIPQ paper, made again on given traces.
//!
//! Source: section 6 of Tang, Huang, Lloyd, Kumar, Li: "RIPQ: Advanced Photo Caching on Flash for Facebook", FAST 2015,
//! and its figure 2. A [`Plan`] says what to run on every trace, [`evaluate`] runs it, and [`summary`] holds the outcome
//! against what is asked of it.
//!
//! Fidelity is measured at equal object bytes: the layout runs first, and the exact queue then gets the mean of the
//! object bytes that were resident in it, so that log, footers, padding and half-filled blocks are nobody's loss.

mod bounds;
mod execute;
mod plan;
mod results;
mod summary;

pub use bounds::{SATURATED, saturated_requests_per_second};
pub use execute::{Step, evaluate};
pub use plan::{Plan, RIPQ_POLICIES, Setup};
pub use results::{BlockPlan, Evaluation, Qualification, Run, Workload};
pub use summary::{SummaryRow, Verdict, summary};
