//! Who may use the server, and how it shows who it is: files that are read at the start and on SIGHUP.

use super::door::config::DoorConfig;
use crate::host::line;
use pumice_console::usage;
use pumice_door_memcached::AuthFile;
use pumice_net::TlsIdentity;
use std::sync::Arc;

/// What the files say.
pub struct Access {
    /// The users of the memcached door.
    pub auth: Option<Arc<AuthFile>>,
    /// The certificate and key of TLS.
    pub tls: Option<TlsIdentity>,
}

impl Access {
    /// Reads the files that the settings name.
    ///
    /// # Errors
    /// Usage, naming the file and what is wrong with it.
    pub fn load(config: &DoorConfig) -> anyhow::Result<Self> {
        let auth_file = config.memcached().and_then(|door| door.auth_file.as_deref());
        let auth = auth_file.map(AuthFile::load).transpose();
        let tls = config
            .tls
            .as_ref()
            .map(|(certificate, key)| TlsIdentity::load(certificate, key));
        Ok(Self {
            auth: auth.map_err(|error| usage(error.to_string()))?.map(Arc::new),
            tls: tls.transpose().map_err(|error| usage(error.to_string()))?,
        })
    }

    /// Reads them again. What cannot be read stays as it was.
    pub fn reload(&self) {
        if let Some(auth) = &self.auth {
            match auth.reload() {
                Ok(()) => line(format_args!(
                    "read again: {}, {} users",
                    auth.path().display(),
                    auth.users()
                )),
                Err(error) => tracing::error!("{error}; the users stay as they were"),
            }
        }
        if let Some(tls) = &self.tls {
            match tls.reload() {
                Ok(()) => line(format_args!("read again: {}", tls.paths().0.display())),
                Err(error) => tracing::error!("{error}; the certificate stays as it was"),
            }
        }
    }
}
