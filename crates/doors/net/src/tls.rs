//! Certificate and key of the TLS listener, from PEM files.

use crate::files::{FileError, read_bounded};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{Error, InconsistentKeys, ServerConfig};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

/// The largest file of certificates or of a key, in bytes.
const MAX_FILE_BYTES: usize = 1 << 20;

/// The most certificates of a chain, which every handshake sends.
const MAX_CERTIFICATES: usize = 16;

/// The keys that can be used.
const KEYS: &str =
    "RSA of 2048 to 4096 bits, ECDSA with the curve P-256 or P-384, or Ed25519, in PKCS #8, PKCS #1 or SEC1";

/// The server's identity on its TLS listeners: a certificate with its chain, and the private key. TLS 1.2 and 1.3, without client
/// certificates. Shared by all workers.
#[derive(Clone)]
pub struct TlsIdentity {
    certificate: PathBuf,
    key: PathBuf,
    current: Arc<Current>,
    config: Arc<ServerConfig>,
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsIdentity")
            .field("certificate", &self.certificate)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// Certificate and key for new handshakes.
struct Current(RwLock<Arc<CertifiedKey>>);

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Current")
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl TlsIdentity {
    /// Reads the certificate, its chain after it, and the private key (PKCS #8, PKCS #1 or SEC1, not encrypted), all PEM.
    /// Both may be in one file.
    ///
    /// # Errors
    /// [`FileError`], which names the file.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, FileError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let current = Arc::new(Current(RwLock::new(read(certificate, key, &provider)?)));
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| pair(certificate, key, &error))?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&current) as _);
        Ok(Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            current,
            config: Arc::new(config),
        })
    }

    /// Reads the files again, for new handshakes. After an error the old identity stays.
    ///
    /// # Errors
    /// As [`TlsIdentity::load`].
    pub fn reload(&self) -> Result<(), FileError> {
        let read = read(&self.certificate, &self.key, self.config.crypto_provider())?;
        *self.current.0.write().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }

    /// The files: certificate and key.
    pub fn paths(&self) -> (&Path, &Path) {
        (&self.certificate, &self.key)
    }

    /// The same identity, which is reloaded with this one, for a door that speaks these protocols: the first that a client offers, too, is
    /// taken. A handshake fails where the client offers others alone. Without protocols, what a client offers is not looked at.
    pub(crate) fn with_alpn(&self, protocols: &[&[u8]]) -> Self {
        let mut config = ServerConfig::clone(&self.config);
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Self {
            config: Arc::new(config),
            ..self.clone()
        }
    }

    pub(crate) fn config(&self) -> &Arc<ServerConfig> {
        &self.config
    }
}

fn pair(certificate: &Path, key: &Path, error: &rustls::Error) -> FileError {
    let (certificate, key) = (certificate.display(), key.display());
    FileError(format!("TLS certificate {certificate} and key {key}: {error}"))
}

fn read(certificate: &Path, key: &Path, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, FileError> {
    let in_file = |path: &Path, what: String| FileError(format!("TLS file {}: {what}", path.display()));
    let text = |path: &Path| read_bounded(path, MAX_FILE_BYTES).map_err(|what| in_file(path, what));
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&text(certificate)?)
        .collect::<Result<_, _>>()
        .map_err(|error| in_file(certificate, what(&error, "certificate")))?;
    match chain.len() {
        1..=MAX_CERTIFICATES => {}
        0 => {
            return Err(in_file(
                certificate,
                what(&pem::Error::NoItemsFound, "certificate"),
            ));
        }
        count => {
            let what = format!("{count} certificates; at most {MAX_CERTIFICATES}");
            return Err(in_file(certificate, what));
        }
    }
    let key_text = text(key)?;
    let private = PrivateKeyDer::from_pem_slice(&key_text).map_err(|error| {
        let what = match memchr::memmem::find(&key_text, b"ENCRYPTED") {
            Some(_) => "the private key is encrypted; it must be stored without a passphrase".to_owned(),
            None => what(&error, "private key"),
        };
        in_file(key, what)
    })?;
    let Some(private) = load(&private, provider) else {
        return Err(in_file(
            key,
            format!("the private key is none that is taken: {KEYS}"),
        ));
    };
    let certified = CertifiedKey::new(chain, private);
    match certified.keys_match() {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(Arc::new(certified)),
        Err(error) => Err(pair(certificate, key, &error)),
    }
}

/// The key, which may be of another kind than the line above it says: OpenSSL reads such files, too.
fn load(private: &PrivateKeyDer<'_>, provider: &CryptoProvider) -> Option<Arc<dyn SigningKey>> {
    let der = || private.secret_der().to_vec();
    let kinds = [
        PrivateKeyDer::Pkcs8(der().into()),
        PrivateKeyDer::Pkcs1(der().into()),
        PrivateKeyDer::Sec1(der().into()),
    ];
    let loads = |kind| provider.key_provider.load_private_key(kind).ok();
    kinds.into_iter().find_map(loads)
}

/// Describes an error in PEM without quoting the file, which has a secret.
fn what(error: &pem::Error, wanted: &str) -> String {
    match error {
        pem::Error::NoItemsFound => format!("there is no {wanted} in it (expected PEM)"),
        pem::Error::MissingSectionEnd { .. } => "a PEM section has no end".to_owned(),
        pem::Error::Base64Decode(_) => "a PEM section is not base64".to_owned(),
        _ => "it is not PEM".to_owned(),
    }
}
