//! The memcached door, and who may use it.

use super::{ObjectDoor, Served, connections_group, latency};
use crate::host::config::{bytes, path, secs};
use crate::objects::access::Access;
use crate::objects::config::ServeConfig;
use crate::objects::worker::{ServedCache, ServedDevice};
use crate::service::{Door, places};
use crate::settings::{Given, Layers};
use anyhow::Context;
use pumice::Cx;
use pumice_door_admin::{Group, Latency, NotRecorded, Requests};
use pumice_door_memcached::parse::Limits;
use pumice_door_memcached::{BudgetSizes, Counts, Door as Inner, DoorConfig, Listen, Operation, Recording};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The largest value that can be asked for: what a frame of the binary protocol has room for, with key and flags.
const MAX_ITEM_BYTES: u64 = 4095 << 20;

/// The longest idle timeout in seconds: a year.
const IDLE_TIMEOUT_SECS_MAX: u32 = 365 * 24 * 3600;

/// Its settings.
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
    /// Checks them.
    ///
    /// # Errors
    /// Usage, for the first that makes no sense.
    pub fn resolve(layers: &Layers) -> anyhow::Result<Self> {
        Ok(Self {
            max_item_size: max_item_size(&layers.max_item_size())?,
            auth_file: path(&layers.auth_file())?,
            idle_timeout: secs(&layers.idle_timeout(), IDLE_TIMEOUT_SECS_MAX)?
                .filter(|secs| *secs > 0)
                .map(|secs| Duration::from_secs(u64::from(secs))),
        })
    }

    /// What all connections together may hold in a budget of `dram` bytes.
    pub fn shared_bytes(&self, dram: u64) -> u64 {
        budgets(dram).total(self.max_item_size as usize + 2) as u64
    }
}

fn max_item_size(given: &Given<'_>) -> anyhow::Result<u32> {
    let bytes = bytes(given)?.unwrap_or(1 << 20);
    u32::try_from(bytes)
        .ok()
        .filter(|_| (1024..=MAX_ITEM_BYTES).contains(&bytes))
        .ok_or_else(|| given.wrong("expected 1KiB to 4095MiB"))
}

fn budgets(dram: u64) -> BudgetSizes {
    let share = |parts: u64, max: u64| usize::try_from((dram / 128 * parts).min(max)).unwrap_or(usize::MAX);
    BudgetSizes {
        input: share(4, 64 << 20),
        output: share(5, 96 << 20),
    }
}

/// The memcached door of a server.
pub struct Memcached {
    inner: Inner,
    listen: Vec<Listen>,
    access: Access,
}

impl Memcached {
    /// Binds it where the settings say.
    ///
    /// # Errors
    /// It cannot listen there.
    pub fn bind(config: &ServeConfig, access: Access) -> anyhow::Result<Self> {
        let door = Inner::bind(DoorConfig {
            listen: config.listen.clone(),
            workers: config.host.threads,
            max_connections: config.max_connections,
            limits: Limits {
                max_value_bytes: config.door.max_item_size,
                ..Limits::default()
            },
            backlog: config.backlog,
            budgets: budgets(config.host.dram),
            idle_timeout: config.door.idle_timeout,
            auth: access.auth.clone(),
            tls: access.tls.clone(),
            limit_maxbytes: config.host.dram,
            ..DoorConfig::default()
        });
        Ok(Self {
            inner: door.context("memcached door (--memcached chooses another address)")?,
            listen: config.listen.clone(),
            access,
        })
    }
}

impl Door for Memcached {
    fn listen(&self) -> anyhow::Result<()> {
        self.inner.listen().context("memcached door")
    }

    fn places(&self) -> Vec<String> {
        let mut places = places("memcached", self.inner.local_addrs(), &self.listen);
        let tls = self.inner.tls_addrs().iter();
        places.extend(tls.map(|address| format!("memcached with TLS on {address}")));
        places
    }

    fn reload(&self) {
        self.access.reload();
    }

    fn record(&self, one_in: u64) -> Result<Box<dyn Requests>, NotRecorded> {
        let recording = self.inner.record(one_in).ok_or(NotRecorded::Busy)?;
        tracing::info!("a recording of requests begins, of one key in {one_in}");
        Ok(Box::new(Recorded(recording)))
    }
}

impl ObjectDoor for Memcached {
    fn run(
        &self,
        index: usize,
        cx: Rc<Cx<ServedDevice>>,
        cache: Arc<ServedCache>,
        stop: watch::Receiver<bool>,
    ) -> Served<'_> {
        let served = self.inner.run_worker(index, cx, cache, stop);
        Box::pin(async { served.await.context("memcached door") })
    }

    fn counts(&self) -> Group {
        let stats = self.inner.stats();
        let connections = [
            stats.curr_connections(),
            stats.total_connections(),
            stats.rejected_connections(),
        ];
        group(connections, &stats.counts())
    }

    fn latency(&self) -> Vec<Latency> {
        let stats = self.inner.stats();
        let measured = Operation::ALL.into_iter().map(|which| {
            let (operation, tier) = which.name();
            Latency {
                tier,
                ..latency("memcached", operation, &stats.latency(which))
            }
        });
        measured.collect()
    }
}

/// What the door counts, and connections open, accepted and turned away.
pub fn group(connections: [u64; 3], counts: &Counts) -> Group {
    connections_group("memcached", connections, counts.figures())
}

/// A recording, for the admin door.
struct Recorded(Recording);

impl Requests for Recorded {
    fn take(&mut self, lines: &mut Vec<u8>) {
        self.0.take(lines);
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        tracing::info!("the recording of requests ends");
    }
}
