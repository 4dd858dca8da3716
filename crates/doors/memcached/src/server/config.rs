//! What the door is told at start.

use crate::parse::Limits;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Where the door listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address; port 0 lets the system choose.
    Tcp(SocketAddr),
    /// A unix socket. A socket file that nobody answers on is replaced.
    Unix {
        /// Its path.
        path: PathBuf,
        /// Its permissions; `None` leaves them to the process's umask.
        mode: Option<u32>,
    },
}

/// The door's settings.
#[derive(Clone, Debug)]
pub struct DoorConfig {
    /// Where to listen. Default: 127.0.0.1:11211.
    pub listen: Vec<Listen>,
    /// Workers that will call [`Door::run_worker`](crate::Door::run_worker), at least 1. Default: 1.
    pub workers: usize,
    /// The most connections at once; more are turned away. Default: 1024, as memcached has it.
    pub max_connections: usize,
    /// Bounds on values and lines.
    pub limits: Limits,
    /// Connections that may wait to be accepted. Default: 1024.
    pub backlog: u32,
    /// Values above this many bytes are received apart and count against the budget. Default: 64 KiB.
    pub inline_value_bytes: u32,
    /// Bytes that all values under way above `inline_value_bytes` may take together; a connection whose value does not
    /// fit is not read until others are done. Default: 16 MiB; less than one largest value counts as that.
    pub receive_budget_bytes: usize,
    /// A value that takes part of the budget must arrive within this time plus one second per 64 KiB. Default: 30 s.
    pub receive_timeout: Duration,
    /// How long after shutdown replies may take to be sent. Default: 5 s.
    pub drain_timeout: Duration,
    /// What `stats` shows as `limit_maxbytes`. Default: 0.
    pub limit_maxbytes: u64,
}

impl Default for DoorConfig {
    fn default() -> Self {
        Self {
            listen: vec![Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 11211)))],
            workers: 1,
            max_connections: 1024,
            limits: Limits::default(),
            backlog: 1024,
            inline_value_bytes: 64 << 10,
            receive_budget_bytes: 16 << 20,
            receive_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(5),
            limit_maxbytes: 0,
        }
    }
}
