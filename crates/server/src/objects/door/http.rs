//! The HTTP door: the cache stands before an origin.

use super::config::{DoorConfig, HttpConfig, transfer_bytes};
use super::{ObjectDoor, Served};
use crate::host::HostConfig;
use crate::host::figures::{connections_group, latency};
use crate::objects::access::Access;
use crate::objects::worker::{ServedCache, ServedDevice};
use crate::service::{Door, places};
use anyhow::Context;
use pumice::Cx;
use pumice_door_admin::{Group, Latency};
use pumice_door_http::{Door as Inner, DoorConfig as InnerConfig, Listen, Operation};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::watch;

/// The HTTP door of a server.
pub struct Http {
    inner: Inner,
    listen: Vec<Listen>,
    access: Access,
}

impl Http {
    /// Binds it where the settings say.
    ///
    /// # Errors
    /// It cannot listen there, or the access log cannot be opened.
    pub fn bind(
        config: &DoorConfig,
        own: &HttpConfig,
        host: &HostConfig,
        object_bytes_max: u64,
        access: Access,
    ) -> anyhow::Result<Self> {
        let door = Inner::bind(InnerConfig {
            listen: config.listen.clone(),
            workers: host.threads,
            max_connections: config.connections_max,
            backlog: config.backlog,
            tls: access.tls.clone(),
            rules: own.rules.clone(),
            object_bytes_max,
            memory_bytes: usize::try_from(transfer_bytes(host.dram)).unwrap_or(usize::MAX),
            access_log: own.access_log.clone(),
            ..InnerConfig::new(own.origin.clone())
        });
        Ok(Self {
            inner: door.context("HTTP door (--http chooses another address)")?,
            listen: config.listen.clone(),
            access,
        })
    }
}

impl Door for Http {
    fn listen(&self) -> anyhow::Result<()> {
        self.inner.listen().context("HTTP door")
    }

    fn places(&self) -> Vec<String> {
        places(
            "HTTP",
            self.inner.local_addrs(),
            self.inner.tls_addrs(),
            &self.listen,
        )
    }

    fn reload(&self) {
        self.access.reload();
    }
}

impl ObjectDoor for Http {
    fn run(
        &self,
        index: usize,
        cx: Rc<Cx<ServedDevice>>,
        cache: Arc<ServedCache>,
        stop: watch::Receiver<bool>,
    ) -> Served<'_> {
        let served = self.inner.run_worker(index, cx, cache, stop);
        Box::pin(async { served.await.context("HTTP door") })
    }

    fn counts(&self) -> Group {
        let stats = self.inner.stats();
        let connections = [
            stats.curr_connections(),
            stats.total_connections(),
            stats.rejected_connections(),
        ];
        connections_group("http", connections, stats.counts().figures())
    }

    fn latency(&self) -> Vec<Latency> {
        let stats = self.inner.stats();
        let measured = Operation::ALL.map(|which| latency("http", which.name(), &stats.latency(which)));
        measured.into()
    }
}
