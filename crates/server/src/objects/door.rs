//! The memcached door, and who may use it.

use super::access::Access;
use super::config::ServeConfig;
use super::memory::Connections;
use crate::service::{Door, places};
use anyhow::Context;
use pumice_door_admin::{NotRecorded, Requests};
use pumice_door_memcached::parse::Limits;
use pumice_door_memcached::{Door as Inner, DoorConfig, Listen, Recording};

/// The memcached door of a server.
pub struct Memcached {
    /// What runs on workers and counts.
    pub inner: Inner,
    listen: Vec<Listen>,
    access: Access,
}

impl Memcached {
    /// Binds it where the settings say.
    ///
    /// # Errors
    /// It cannot listen there.
    pub fn bind(config: &ServeConfig, connections: &Connections, access: Access) -> anyhow::Result<Self> {
        let door = Inner::bind(DoorConfig {
            listen: config.memcached.clone(),
            workers: config.host.threads,
            max_connections: config.max_connections,
            limits: Limits {
                max_value_bytes: config.max_item_size,
                ..Limits::default()
            },
            backlog: config.backlog,
            budgets: connections.budgets,
            idle_timeout: config.idle_timeout,
            auth: access.auth.clone(),
            tls: access.tls.clone(),
            limit_maxbytes: config.host.dram,
            ..DoorConfig::default()
        });
        Ok(Self {
            inner: door.context("memcached door (--memcached chooses another address)")?,
            listen: config.memcached.clone(),
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
