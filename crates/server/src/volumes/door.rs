//! The NBD door, with an export for each volume.

use super::config::VolumesConfig;
use super::plan::Plan;
use crate::service::{Door, places};
use anyhow::Context;
use pumice_door_nbd::{Door as Inner, DoorConfig, ExportName};
use pumice_net::Listen;

/// The NBD door of a server.
pub struct Nbd {
    /// What runs on workers and counts.
    pub inner: Inner,
    listen: Vec<Listen>,
}

impl Nbd {
    /// Binds it where the settings say.
    ///
    /// # Errors
    /// It cannot listen there, or the plan has too little memory for its connections.
    pub fn bind(config: &VolumesConfig, plan: &Plan) -> anyhow::Result<Self> {
        let exports = config.volumes.iter().map(|volume| ExportName {
            name: volume.name.clone(),
            description: format!("{}, {}", volume.backing, volume.mode.name()),
        });
        let door = Inner::bind(DoorConfig {
            listen: config.nbd.clone(),
            workers: config.host.threads,
            exports: exports.collect(),
            max_connections: plan.max_connections,
            memory_bytes: usize::try_from(plan.door_bytes).unwrap_or(usize::MAX),
            ..DoorConfig::default()
        });
        let refused = "NBD door (--nbd chooses another address, --max-connections how many share its memory)";
        Ok(Self {
            inner: door.context(refused)?,
            listen: config.nbd.clone(),
        })
    }
}

impl Door for Nbd {
    fn listen(&self) -> anyhow::Result<()> {
        self.inner.listen().context("NBD door")
    }

    fn places(&self) -> Vec<String> {
        places("NBD", self.inner.local_addrs(), &[], &self.listen)
    }
}
