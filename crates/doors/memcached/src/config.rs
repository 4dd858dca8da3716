//! What the door is told at start.

use crate::auth::AuthFile;
use crate::parse::Limits;
use pumice_net::{BudgetSizes, Listen, TlsIdentity};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

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
    /// Values above this many bytes, or 12 KiB, are received apart. Default: 12 KiB.
    pub inline_value_bytes: u32,
    /// What all connections together may hold.
    pub budgets: BudgetSizes,
    /// A connection from which no command came for this long, and no part of a value, is closed, unless replies to it are under
    /// way. Default: `None`, never.
    pub idle_timeout: Option<Duration>,
    /// How long a TLS handshake may take. Default: 10 s.
    pub handshake_timeout: Duration,
    /// Who may use the server; every connection, on a unix socket too, has to authenticate itself first. Default: everybody.
    pub auth: Option<Arc<AuthFile>>,
    /// What [`Listen::Tls`] shows to clients. Default: none.
    pub tls: Option<TlsIdentity>,
    /// How long after shutdown replies may take to be sent. Default: 5 s.
    pub drain_timeout: Duration,
    /// What `stats settings` shows as `maxbytes`. Default: 0.
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
            inline_value_bytes: 12 << 10,
            budgets: BudgetSizes::default(),
            idle_timeout: None,
            handshake_timeout: Duration::from_secs(10),
            auth: None,
            tls: None,
            drain_timeout: Duration::from_secs(5),
            limit_maxbytes: 0,
        }
    }
}
