//! What a server of objects asks of its door.

pub mod config;
pub(super) mod http;
pub(super) mod memcached;

use super::worker::{ServedCache, ServedDevice};
use crate::service::Door;
use pumice::Cx;
use pumice_door_admin::{Group, Latency};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::watch;

/// Ends when a door has drained on a worker.
pub type Served<'a> = Pin<Box<dyn Future<Output = anyhow::Result<()>> + 'a>>;

/// What a door to a cache of objects does beside what any door does.
pub trait ObjectDoor: Door {
    /// Serves connections on one worker until `stop` turns true, and then answers what has arrived.
    fn run(
        &self,
        index: usize,
        cx: Rc<Cx<ServedDevice>>,
        cache: Arc<ServedCache>,
        stop: watch::Receiver<bool>,
    ) -> Served<'_>;

    /// What it counts, under its name.
    fn counts(&self) -> Group;

    /// How long each of its operations took, by the tier that answered.
    fn latency(&self) -> Vec<Latency>;
}
