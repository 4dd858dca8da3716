//! The settings of doors, and what those hold of the DRAM.

use crate::host::config::{bytes, path, secs};
use crate::host::listen;
use crate::settings::{Given, Layers, has};
use pumice_door_http as http;
use pumice_door_http::access_log::{AccessLogConfig, AccessLogFormat};
use pumice_door_http::origin::OriginConfig;
use pumice_door_http::rules::Rules;
use pumice_net::{BudgetSizes, Listen};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Settings that say something of one door alone.
const OF_MEMCACHED: &str = "memcached memcached-tls max-item-size auth-file idle-timeout";
const OF_HTTP: &str = "http http-tls origin origin-ca http-object-max access-log access-log-format http-rule";

/// The settings of a door.
#[derive(Debug)]
pub struct DoorConfig {
    /// Where it listens, with TLS and without.
    pub listen: Vec<Listen>,
    /// The files with the certificate and the key of TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The most connections of clients.
    pub connections_max: usize,
    /// Connections that may wait to be accepted.
    pub backlog: u32,
    /// Which door it is, and what is its own.
    pub own: Own,
}

/// The settings of one door alone.
#[derive(Debug)]
pub enum Own {
    /// Of memcached's.
    Memcached(MemcachedConfig),
    /// Of HTTP's.
    Http(Box<HttpConfig>),
}

impl DoorConfig {
    /// Which door there is to be, and where.
    ///
    /// # Errors
    /// Usage: settings of both, or that make no sense.
    pub fn resolve(
        layers: &Layers,
        connections_max: Option<usize>,
        backlog: Option<u32>,
    ) -> anyhow::Result<Self> {
        let (http, http_tls) = (layers.http(), layers.http_tls());
        let is_http = http.list().is_some() || http_tls.list().is_some();
        let (others, why) = match is_http {
            true => (
                OF_MEMCACHED,
                "it is of memcached, and with --http HTTP alone is served: leave it out, or run a second server",
            ),
            false => (
                OF_HTTP,
                "nothing is served over HTTP: give --http ADDR, or leave it out",
            ),
        };
        if let Some((_, given)) = layers.given().iter().find(|(name, _)| has(others, name)) {
            return Err(given.wrong(why));
        }
        let (own, (listen, tls)) = match is_http {
            true => (
                Own::Http(Box::new(HttpConfig::resolve(layers)?)),
                listen::places(layers, "http-tls", (&http, &http_tls), &[])?,
            ),
            false => (
                Own::Memcached(MemcachedConfig::resolve(layers)?),
                listen::places(
                    layers,
                    "memcached-tls",
                    (&layers.memcached(), &layers.memcached_tls()),
                    &[Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 11211)))],
                )?,
            ),
        };
        Ok(Self {
            listen,
            tls,
            connections_max: connections_max.unwrap_or(1024),
            backlog: backlog.unwrap_or(1024),
            own,
        })
    }

    /// Those of memcached's, if it is that.
    pub fn memcached(&self) -> Option<&MemcachedConfig> {
        match &self.own {
            Own::Memcached(door) => Some(door),
            Own::Http(_) => None,
        }
    }

    /// The policy of layout `ripq` where none was asked for, if it is not that of the layout. What HTTP serves differs more in size.
    pub fn policy(&self) -> Option<&'static str> {
        self.memcached().is_none().then_some("gdsf-3")
    }

    /// The longest value in bytes, with so many bytes of flash.
    pub fn object_bytes_max(&self, flash: u64) -> u64 {
        match &self.own {
            Own::Memcached(door) => door.max_item_size.into(),
            Own::Http(door) => door.object_bytes_max.unwrap_or(flash / 4),
        }
    }

    /// What its connections hold in a budget of `dram` bytes, on so many threads.
    pub fn bytes(&self, dram: u64, threads: usize) -> u64 {
        let connections = self.connections_max as u64;
        let with_tls = |plain: u64, tls: u64| plain + self.tls.as_ref().map_or(0, |_| tls);
        let own = match &self.own {
            Own::Memcached(door) => {
                budgets(dram).total(door.max_item_size as usize + 2) as u64
                    + connections * with_tls(IDLE_BYTES, TLS_BYTES)
                    + connections.min(BUSY_CONNECTIONS) * BUSY_BYTES
            }
            Own::Http(_) => {
                let connection = with_tls(http::CONNECTION_BYTES as u64, http::TLS_BYTES as u64);
                transfer_bytes(dram) + connections * connection + (threads * http::WORKER_BYTES) as u64
            }
        };
        own + threads.saturating_sub(FEW_THREADS) as u64 * THREAD_BYTES
    }

    /// Connections that it may have open, those to the origin among them.
    pub fn all_connections(&self, threads: usize) -> usize {
        let own = match &self.own {
            Own::Memcached(_) => 0,
            Own::Http(door) => door.origin.connections_max * threads,
        };
        self.connections_max + own
    }
}

/// The largest value that can be asked for: what a frame of the binary protocol has room for, with key and flags.
const MAX_ITEM_BYTES: u64 = 4095 << 20;

/// The longest idle timeout in seconds: a year.
const IDLE_TIMEOUT_SECS_MAX: u32 = 365 * 24 * 3600;

/// Spare buffers, stack, ring and the allocator's caches of a worker, where there are more than the program's part has room for.
const THREAD_BYTES: u64 = 512 << 10;
const FEW_THREADS: usize = 4;

/// What a connection holds while it is idle, or waits with little in hand: its state in the door and the event loop (1 KiB, or 8
/// while a command of its is executed), the beginning of a command, the end of a reply.
const IDLE_BYTES: u64 = 6 << 10;

/// What TLS holds of a connection beside that: keys, the state of its session, and a buffer of 4 KiB to read into.
const TLS_BYTES: u64 = 8 << 10;

/// Input and output buffers of a connection that is being served; as many are counted as are served at once.
const BUSY_BYTES: u64 = 96 << 10;
const BUSY_CONNECTIONS: u64 = 32;

/// The settings of memcached's door alone.
#[derive(Debug)]
pub struct MemcachedConfig {
    /// The largest value in bytes.
    pub max_item_size: u32,
    /// The file that says who may use the memcached protocol.
    pub auth_file: Option<PathBuf>,
    /// How long a connection may be idle.
    pub idle_timeout: Option<Duration>,
}

impl MemcachedConfig {
    fn resolve(layers: &Layers) -> anyhow::Result<Self> {
        Ok(Self {
            max_item_size: max_item_size(&layers.max_item_size())?,
            auth_file: path(&layers.auth_file())?,
            idle_timeout: secs(&layers.idle_timeout(), IDLE_TIMEOUT_SECS_MAX)?
                .filter(|secs| *secs > 0)
                .map(|secs| Duration::from_secs(u64::from(secs))),
        })
    }
}

fn max_item_size(given: &Given<'_>) -> anyhow::Result<u32> {
    let bytes = bytes(given)?.unwrap_or(1 << 20);
    u32::try_from(bytes)
        .ok()
        .filter(|_| (1024..=MAX_ITEM_BYTES).contains(&bytes))
        .ok_or_else(|| given.wrong("expected 1KiB to 4095MiB"))
}

/// What all connections of memcached's door together may hold in a budget of `dram` bytes.
pub fn budgets(dram: u64) -> BudgetSizes {
    let share = |parts: u64, max: u64| usize::try_from((dram / 128 * parts).min(max)).unwrap_or(usize::MAX);
    BudgetSizes {
        input: share(4, 64 << 20),
        output: share(5, 96 << 20),
    }
}

/// What all transfers together may hold is an eighth of the DRAM, between these bounds in bytes.
const TRANSFERS_MIN: u64 = 8 << 20;
const TRANSFERS_MAX: u64 = 256 << 20;

/// The settings of HTTP's door alone.
#[derive(Debug)]
pub struct HttpConfig {
    /// Where responses come from.
    pub origin: OriginConfig,
    /// Rules by path.
    pub rules: Rules,
    /// The longest body that is stored, in bytes, if that was said.
    pub object_bytes_max: Option<u64>,
    /// Where a line is written for each request.
    pub access_log: Option<AccessLogConfig>,
}

impl HttpConfig {
    fn resolve(layers: &Layers) -> anyhow::Result<Self> {
        let Some(url) = layers.origin().parse()? else {
            return Err(layers.http().wrong("a cache of what? Give --origin URL"));
        };
        let mut origin = OriginConfig::new(url);
        origin.ca = path(&layers.origin_ca())?;
        let (tables, place) = layers.http_rules();
        let rules = Rules::of_tables(tables);
        Ok(Self {
            origin,
            rules: rules.map_err(|error| place.wrong(error))?,
            object_bytes_max: bytes(&layers.http_object_max())?,
            access_log: access_log(layers)?,
        })
    }
}

fn access_log(layers: &Layers) -> anyhow::Result<Option<AccessLogConfig>> {
    let (log, given) = (path(&layers.access_log())?, layers.access_log_format());
    let format = given.parse()?;
    if log.is_none() && format.is_some() {
        return Err(given.wrong("of which log? --access-log is not given"));
    }
    let format = format.unwrap_or(AccessLogFormat::Combined);
    Ok(log.map(|path| AccessLogConfig { path, format }))
}

/// What all transfers of HTTP's door together may hold in a budget of `dram` bytes.
pub fn transfer_bytes(dram: u64) -> u64 {
    (dram / 8).clamp(TRANSFERS_MIN, TRANSFERS_MAX)
}
