//! The memcached door, and who may use it.

use super::config::{DoorConfig, MemcachedConfig, budgets};
use super::{ObjectDoor, Served};
use crate::host::HostConfig;
use crate::host::figures::{connections_group, latency};
use crate::objects::access::Access;
use crate::objects::worker::{ServedCache, ServedDevice};
use crate::service::{Door, places};
use anyhow::Context;
use pumice::Cx;
use pumice_door_admin::{Group, Latency, NotRecorded, Requests};
use pumice_door_memcached::parse::Limits;
use pumice_door_memcached::{Door as Inner, DoorConfig as InnerConfig, Listen, Operation, Recording};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::watch;

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
    pub fn bind(
        config: &DoorConfig,
        own: &MemcachedConfig,
        host: &HostConfig,
        access: Access,
    ) -> anyhow::Result<Self> {
        let door = Inner::bind(InnerConfig {
            listen: config.listen.clone(),
            workers: host.threads,
            max_connections: config.connections_max,
            limits: Limits {
                max_value_bytes: own.max_item_size,
                ..Limits::default()
            },
            backlog: config.backlog,
            budgets: budgets(host.dram),
            idle_timeout: own.idle_timeout,
            auth: access.auth.clone(),
            tls: access.tls.clone(),
            limit_maxbytes: host.dram,
            ..InnerConfig::default()
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
        let inner = &self.inner;
        places("memcached", inner.local_addrs(), inner.tls_addrs(), &self.listen)
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
        connections_group("memcached", connections, stats.counts().figures())
    }

    fn latency(&self) -> Vec<Latency> {
        let stats = self.inner.stats();
        let measured = Operation::ALL.map(|which| latency("memcached", which.name(), &stats.latency(which)));
        measured.into()
    }
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
