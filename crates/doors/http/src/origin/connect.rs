//! From the origin's name to a connection that speaks HTTP.

use super::body::Sending;
use super::pool::Connection;
use super::{OriginConfig, OriginError};
use crate::key::Scheme;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use pumice_net::{Seldom, read_bounded};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::spawn_local;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

/// How long the addresses of a name are used.
const NAME_FOR: Duration = Duration::from_secs(30);

/// How long a name is left alone that was not found.
const NO_NAME_FOR: Duration = Duration::from_secs(1);

/// How long TLS's last words may take.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The largest file of certificates, in bytes.
const CA_BYTES_MAX: usize = 4 << 20;

/// The most fields of an answer.
const FIELDS_MAX: usize = 128;

/// The most bytes of an answer's head, and of what hyper reads ahead.
const HEAD_BYTES_MAX: usize = 32 << 10;

/// Why an origin cannot be set up.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OriginSetupError {
    /// A file of certificates.
    #[error("certificates of the origin's authority, {}: {what}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The system has none.
    #[error(
        "the system has no certificates of authorities to check the origin's by (package ca-certificates?): name a file of them{0}"
    )]
    NoRoots(String),
    /// TLS, for that host.
    #[error("no TLS connection to the origin is possible: {0}")]
    Tls(String),
}

pub(super) struct Connector {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    addresses: RefCell<Vec<SocketAddr>>,
    /// When the name is to be looked up again.
    due: Cell<Instant>,
    looking_up: Mutex<()>,
    said: Seldom,
}

impl Connector {
    pub(super) fn new(config: &OriginConfig) -> Result<Self, OriginSetupError> {
        let url = &config.url;
        let tls = match url.scheme {
            Scheme::Http => None,
            Scheme::Https => Some(tls(&url.host, config.ca.as_deref())?),
        };
        Ok(Self {
            host: url.host.clone(),
            port: url.port,
            tls,
            addresses: RefCell::default(),
            due: Cell::new(Instant::now()),
            looking_up: Mutex::default(),
            said: Seldom::default(),
        })
    }

    /// Whether the name has that address, as far as is known.
    pub(super) fn knows(&self, peer: SocketAddr) -> bool {
        self.addresses.borrow().contains(&peer)
    }

    #[cfg(test)]
    pub(super) fn forget(&self) {
        self.addresses.borrow_mut().clear();
        self.due.set(Instant::now());
    }

    /// Looks the name up if that is due. Where it cannot be found, the addresses that it had are used on.
    pub(super) async fn refresh(&self) {
        let _one_at_a_time = self.looking_up.lock().await;
        if Instant::now() < self.due.get() {
            return;
        }
        let found = match tokio::net::lookup_host((self.host.as_str(), self.port)).await {
            Ok(found) => found.collect::<Vec<_>>(),
            Err(error) => {
                self.say(&error);
                Vec::new()
            }
        };
        let again = match found.is_empty() {
            true => NO_NAME_FOR,
            false => {
                self.addresses.replace(found);
                NAME_FOR
            }
        };
        self.due.set(Instant::now() + again);
    }

    /// Connects to the first address that answers. One that does not is the last to be tried next time.
    pub(super) async fn connect(&self, within: Duration) -> Result<Connection, OriginError> {
        let deadline = Instant::now() + within;
        if timeout_at(deadline, self.refresh()).await.is_err() {
            return Err(OriginError::Timeout);
        }
        let addresses = self.addresses.borrow().clone();
        let mut error = OriginError::Connect;
        for (left, address) in (1..=addresses.len()).rev().zip(addresses) {
            let share =
                deadline.saturating_duration_since(Instant::now()) / u32::try_from(left).unwrap_or(u32::MAX);
            match timeout(share, self.connect_to(address)).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(cause)) => {
                    self.say(&cause);
                    error = OriginError::Connect;
                }
                Err(_) => error = OriginError::Timeout,
            }
            let mut addresses = self.addresses.borrow_mut();
            if let Some(at) = addresses.iter().position(|other| *other == address) {
                addresses[at..].rotate_left(1);
            }
        }
        Err(error)
    }

    async fn connect_to(&self, peer: SocketAddr) -> io::Result<Connection> {
        let socket = TcpStream::connect(peer).await?;
        socket.set_nodelay(true)?;
        match &self.tls {
            None => handshake(socket, peer).await,
            Some((connector, name)) => handshake(connector.connect(name.clone(), socket).await?, peer).await,
        }
    }

    fn say(&self, error: &io::Error) {
        if self.said.is_due() {
            tracing::warn!(host = self.host, port = self.port, %error, "cannot connect to the origin; said once a minute");
        }
    }
}

/// Starts HTTP on a connection, and a task that drives it.
async fn handshake<S>(socket: S, peer: SocketAddr) -> io::Result<Connection>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let (sender, mut connection) = http1::Builder::new()
        .max_headers(FIELDS_MAX)
        .max_header_size(HEAD_BYTES_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .handshake::<_, Sending>(TokioIo::new(socket))
        .await
        .map_err(io::Error::other)?;
    let has_leftover = Rc::new(Cell::new(false));
    let leftover = Rc::clone(&has_leftover);
    spawn_local(async move {
        // Who waits for an answer or a body is told what happened.
        let _ = poll_fn(|cx| connection.poll_without_shutdown(cx)).await;
        let parts = connection.into_parts();
        leftover.set(!parts.read_buf.is_empty());
        let mut socket = parts.io.into_inner();
        let _ = timeout(LAST_WORDS, socket.shutdown()).await;
    });
    Ok(Connection {
        sender,
        peer,
        has_leftover,
    })
}

/// What TLS needs: whom to trust, and the name that the origin must prove.
fn tls(host: &str, ca: Option<&Path>) -> Result<(TlsConnector, ServerName<'static>), OriginSetupError> {
    let name =
        ServerName::try_from(host.to_owned()).map_err(|error| OriginSetupError::Tls(error.to_string()))?;
    let roots = match ca {
        Some(path) => roots_of_file(path).map_err(|what| OriginSetupError::File {
            path: path.to_owned(),
            what,
        })?,
        None => roots_of_system()?,
    };
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| OriginSetupError::Tls(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((TlsConnector::from(Arc::new(config)), name))
}

fn roots_of_file(path: &Path) -> Result<RootCertStore, String> {
    let text = read_bounded(path, CA_BYTES_MAX)?;
    let mut roots = RootCertStore::empty();
    for (number, certificate) in CertificateDer::pem_slice_iter(&text).enumerate() {
        let at = |error: &dyn std::fmt::Display| format!("certificate {}: {error}", number + 1);
        roots
            .add(certificate.map_err(|error| at(&error))?)
            .map_err(|error| at(&error))?;
    }
    match roots.is_empty() {
        true => Err("there is no certificate in it (expected PEM)".to_owned()),
        false => Ok(roots),
    }
}

/// The certificates that the system trusts. Single ones that cannot be used are left out, as elsewhere.
fn roots_of_system() -> Result<RootCertStore, OriginSetupError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    match roots.is_empty() {
        true => Err(OriginSetupError::NoRoots(
            found.errors.iter().map(|error| format!("; {error}")).collect(),
        )),
        false => Ok(roots),
    }
}
