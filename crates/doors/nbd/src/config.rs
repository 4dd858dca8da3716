//! The door's settings, and their checks.

use crate::protocol::MAX_NAME_BYTES;
use crate::server::LEAST_CONNECTION_BYTES;
use pumice_net::Listen;
use std::net::SocketAddr;
use std::time::Duration;

/// Name and description of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportName {
    /// The name that clients ask for. The first export is also found under the empty name.
    pub name: String,
    /// A description for people.
    pub description: String,
}

/// The door's settings.
#[derive(Clone, Debug)]
pub struct DoorConfig {
    /// Where to listen: TCP and unix sockets. Default: 127.0.0.1:10809.
    pub listen: Vec<Listen>,
    /// Workers that will call [`Door::run_worker`](crate::Door::run_worker), at least 1. Default: 1.
    pub workers: usize,
    /// The exports, in the order of the handles given to [`Door::run_worker`](crate::Door::run_worker). Default: one with an empty name.
    pub exports: Vec<ExportName>,
    /// The most connections at once; more are turned away. Default: 32.
    pub max_connections: usize,
    /// Memory of all connections, in bytes. Each of `max_connections` has an equal part, so no client waits for the memory of another.
    /// Default: 64 MiB.
    pub memory_bytes: usize,
    /// Connections that may wait to be accepted. Default: 128.
    pub backlog: u32,
    /// Deadline for each message of a client in the handshake. Default: 10 s.
    pub handshake_timeout: Duration,
    /// Time that requests under way have to be answered at a shutdown. Default: 5 s.
    pub drain_timeout: Duration,
}

impl Default for DoorConfig {
    fn default() -> Self {
        Self {
            listen: vec![Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 10809)))],
            workers: 1,
            exports: vec![ExportName::default()],
            max_connections: 32,
            memory_bytes: 64 << 20,
            backlog: 128,
            handshake_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(5),
        }
    }
}

/// Why a door cannot be opened with these settings.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No export.
    #[error("no export: name at least one")]
    NoExport,
    /// A name that the protocol cannot carry; the export's number.
    #[error("the name of export {0} is longer than {MAX_NAME_BYTES} bytes, or has a zero byte")]
    Name(usize),
    /// A description that the protocol cannot carry; the export's name.
    #[error("the description of export `{0}` is longer than {MAX_NAME_BYTES} bytes")]
    Description(String),
    /// Two exports with the same name.
    #[error("two exports have the name `{0}`")]
    Twice(String),
    /// An address with TLS from the first byte; NBD starts TLS within its handshake, which this door does not serve.
    #[error("no TLS on {0}: use a unix socket, or a tunnel")]
    Tls(SocketAddr),
    /// A connection's part of the memory is below the least it needs.
    #[error(
        "{max_connections} connections share {memory_bytes} bytes, and each needs {LEAST_CONNECTION_BYTES}: allow fewer connections, or more memory"
    )]
    Memory {
        /// Connections allowed.
        max_connections: usize,
        /// Bytes that they share.
        memory_bytes: usize,
    },
}

impl DoorConfig {
    /// Checks all settings that need no socket.
    ///
    /// # Errors
    /// [`ConfigError`], for the first setting that cannot work.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.exports.is_empty() {
            return Err(ConfigError::NoExport);
        }
        for (number, export) in self.exports.iter().enumerate() {
            if export.name.len() > MAX_NAME_BYTES || export.name.contains('\0') {
                return Err(ConfigError::Name(number));
            }
            if export.description.len() > MAX_NAME_BYTES {
                return Err(ConfigError::Description(export.name.clone()));
            }
            if self.exports[..number]
                .iter()
                .any(|other| other.name == export.name)
            {
                return Err(ConfigError::Twice(export.name.clone()));
            }
        }
        if let Some(address) = self.listen.iter().find_map(|listen| match listen {
            Listen::Tls(address) => Some(*address),
            Listen::Tcp(_) | Listen::Unix { .. } => None,
        }) {
            return Err(ConfigError::Tls(address));
        }
        if self.connection_bytes() < LEAST_CONNECTION_BYTES {
            return Err(ConfigError::Memory {
                max_connections: self.max_connections,
                memory_bytes: self.memory_bytes,
            });
        }
        Ok(())
    }

    /// One connection's part of the memory, in bytes.
    pub(crate) fn connection_bytes(&self) -> usize {
        self.memory_bytes / self.max_connections.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        let refused = |change: &dyn Fn(&mut DoorConfig)| {
            let mut config = DoorConfig::default();
            change(&mut config);
            config.check().expect_err("it cannot work").to_string()
        };
        let named = |name: &str| ExportName {
            name: name.to_owned(),
            description: String::new(),
        };
        DoorConfig::default().check().expect("the default works");
        assert!(refused(&|config| config.exports.clear()).contains("no export"));
        assert!(refused(&|config| config.exports = vec![named(&"x".repeat(4097))]).contains("export 0"));
        assert!(refused(&|config| config.exports = vec![named("a"), named("b"), named("a")]).contains("`a`"));
        let tls = Listen::Tls(SocketAddr::from(([127, 0, 0, 1], 5)));
        assert!(refused(&|config| config.listen = vec![tls.clone()]).contains("127.0.0.1:5"));
        assert!(refused(&|config| config.max_connections = 1024).contains("fewer connections"));
    }
}
