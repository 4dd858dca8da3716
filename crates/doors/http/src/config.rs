//! What the door is told at start.

use crate::access_log::AccessLogConfig;
use crate::framing::Limits;
use crate::origin::OriginConfig;
use crate::rules::Rules;
use pumice_net::{Listen, TlsIdentity};
use std::time::Duration;

/// Memory of a connection beside the budget, in bytes: what hyper reads into, and the head of an answer.
pub const CONNECTION_BYTES: usize = 16 << 10;

/// What TLS, and HTTP/2 above it, add to that.
pub const TLS_BYTES: usize = 16 << 10;

/// Memory of a worker beside that: connections to the origin that are kept.
pub const WORKER_BYTES: usize = 2 << 20;

/// The door's settings.
#[derive(Clone, Debug)]
pub struct DoorConfig {
    /// Where to listen.
    pub listen: Vec<Listen>,
    /// Workers that will call [`Door::run_worker`](crate::Door::run_worker), at least 1.
    pub workers: usize,
    /// The most connections at once; more are turned away.
    pub max_connections: usize,
    /// Connections that may wait to be accepted.
    pub backlog: u32,
    /// What [`Listen::Tls`] shows to clients.
    pub tls: Option<TlsIdentity>,
    /// How long a TLS handshake may take.
    pub handshake_timeout: Duration,
    /// How long after shutdown answers may take to be sent.
    pub drain_timeout: Duration,
    /// A connection is closed when no whole request head came for this long, and no answer was under way; up to twice this long.
    pub idle_timeout: Duration,
    /// A connection is closed when its client took no byte of an answer for this long (for 5 s while others wait for memory), and an upload is
    /// ended of which none came.
    pub stall_timeout: Duration,
    /// Bounds of a request's head.
    pub limits: Limits,
    /// Where answers come from that are not stored.
    pub origin: OriginConfig,
    /// Rules by path.
    pub rules: Rules,
    /// The longest body that is stored, in bytes.
    pub object_bytes_max: u64,
    /// What all transfers together may hold, in bytes.
    pub memory_bytes: usize,
    /// Where requests are noted. Default: nowhere.
    pub access_log: Option<AccessLogConfig>,
}

impl DoorConfig {
    /// The defaults for an origin: no place to listen, one worker, 1024 connections, no rule.
    pub fn new(origin: OriginConfig) -> Self {
        Self {
            listen: Vec::new(),
            workers: 1,
            max_connections: 1024,
            backlog: 1024,
            tls: None,
            handshake_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(60),
            limits: Limits::default(),
            origin,
            rules: Rules::default(),
            object_bytes_max: 1 << 30,
            memory_bytes: 32 << 20,
            access_log: None,
        }
    }
}
