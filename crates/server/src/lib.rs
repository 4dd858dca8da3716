//! `pumice serve`: the server, of objects or of volumes.
//!
//! [`host`] is what all services share, [`service`] the seam between both. Each service is a folder of its own: [`objects`], [`volumes`].

pub mod host;
pub mod lifetime;
pub mod objects;
pub mod service;
pub mod settings;
pub mod volumes;

#[cfg(test)]
mod documents;
#[cfg(not(feature = "throttle"))]
mod throttle;

pub use host::start_log;
use objects::ServeConfig;
use pumice_blocks::OpenError;
use pumice_console::{Usage, usage};
pub use pumice_door_memcached::RECORDING_HEAD;
#[cfg(feature = "throttle")]
use pumice_throttle as throttle;
use settings::Layers;
use std::path::PathBuf;
pub use throttle::Kinds;
use volumes::VolumesConfig;

/// What flags alone say of a server, beside its settings.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// Make an empty cache, whatever there is.
    pub reformat: bool,
    /// Believe a clock that is more than a day ahead of the last time that the flash device saw.
    pub accept_clock: bool,
    /// How slow devices are to be.
    pub throttle: Kinds,
    /// The budget of DRAM in bytes.
    pub memory: Option<u64>,
    /// The user to become when started as root.
    pub user: Option<String>,
    /// Where to write the process id.
    pub pid_file: Option<PathBuf>,
    /// Connections that may wait to be accepted.
    pub backlog: Option<u32>,
}

/// Whether trying again cannot help: settings that cannot be obeyed, or a start that would lose the only copy of something. Who supervises the
/// program does not start it again then.
pub fn needs_a_person(error: &anyhow::Error) -> bool {
    let is_only_copy = |error: &OpenError| matches!(error, OpenError::OnlyCopy(_));
    error.is::<Usage>() || error.downcast_ref().is_some_and(is_only_copy)
}

/// Runs a server to its end.
///
/// # Errors
/// Usage, or what failed.
pub fn run(layers: &Layers, flags: &Flags) -> anyhow::Result<()> {
    match VolumesConfig::resolve(layers, flags)? {
        Some(_) if flags.accept_clock => Err(usage(
            "--accept-clock says nothing of volumes; leave it out with --nbd",
        )),
        Some(config) => volumes::run(&config, flags.throttle),
        None => objects::run(
            &ServeConfig::resolve(layers, flags)?,
            flags.accept_clock,
            flags.throttle,
        ),
    }
}
