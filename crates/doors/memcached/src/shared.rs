//! What all workers of the door share.

use crate::config::DoorConfig;
use crate::counters::DoorStats;
use crate::recording::Recordings;
use pumice_net::{Budgets, Seldom};
use std::sync::Arc;
use std::time::Instant;

/// What all workers share.
pub(crate) struct Shared {
    pub(crate) config: DoorConfig,
    pub(crate) stats: Arc<DoorStats>,
    pub(crate) budgets: Budgets,
    pub(crate) started: Instant,
    /// Who is told of requests.
    pub(crate) recordings: Arc<Recordings>,
    /// For a line in the log about clients with another protocol.
    pub(crate) foreign_said: Seldom,
}
