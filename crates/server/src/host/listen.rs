//! Where `serve` listens.

use super::config::path;
use crate::settings::{Given, Layers};
use pumice_console::usage;
use pumice_net::Listen;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

/// Where a door listens, and the files with the certificate and the key of TLS.
pub type Places = (Vec<Listen>, Option<(PathBuf, PathBuf)>);

/// Where a door listens by its settings, without TLS and with, and the files with the certificate and the key of TLS. `usual` is where
/// nothing is said.
///
/// # Errors
/// Usage: addresses that are none, nowhere at all, or TLS without a certificate.
pub fn places(
    layers: &Layers,
    tls_name: &str,
    (given, tls): (&Given<'_>, &Given<'_>),
    usual: &[Listen],
) -> anyhow::Result<Places> {
    let unix_mode = unix_mode(&layers.unix_mode())?;
    let mut listen = match given.list() {
        Some(_) => plain(given, unix_mode)?,
        None => usual.to_vec(),
    };
    for text in tls.list().into_iter().flatten() {
        let address = address(text).map_err(|what| tls.wrong(what))?;
        listen.push(Listen::Tls(address));
    }
    if listen.is_empty() {
        return Err(given.wrong(format!("nothing is left to listen on; --{tls_name} is not given")));
    }
    let files = tls_files(layers, tls_name, &listen)?;
    Ok((listen, files))
}

/// Permissions of unix sockets, as memcached has them if nothing is said.
pub(crate) fn unix_mode(given: &Given<'_>) -> anyhow::Result<u32> {
    let mode = given.read(|text| {
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
        mode.ok_or("expected permissions in octal (0 to 777)")
    });
    Ok(mode?.unwrap_or(0o700))
}

/// What is said of places without TLS.
pub(crate) fn plain(given: &Given<'_>, unix_mode: u32) -> anyhow::Result<Vec<Listen>> {
    let texts = given.list().unwrap_or_default();
    if texts.is_empty() {
        return Err(given.wrong("expected at least one address"));
    }
    if texts == ["off"] {
        return Ok(Vec::new());
    }
    texts
        .into_iter()
        .map(|text| match text.strip_prefix("unix:") {
            Some("") => Err(given.wrong("expected a path after unix:")),
            Some(path) => Ok(Listen::Unix {
                path: path.into(),
                mode: Some(unix_mode),
            }),
            None => address(text).map(Listen::Tcp).map_err(|what| given.wrong(what)),
        })
        .collect()
}

/// The files with the certificate and the key, which are needed where something listens with TLS, and only there.
///
/// # Errors
/// Usage: one without the other.
fn tls_files(
    layers: &Layers,
    tls_name: &str,
    listen: &[Listen],
) -> anyhow::Result<Option<(PathBuf, PathBuf)>> {
    let (certificate_file, key_file) = (path(&layers.tls_certificate())?, path(&layers.tls_key())?);
    let is_served = listen.iter().any(|listen| matches!(listen, Listen::Tls(_)));
    match (is_served, certificate_file, key_file) {
        (true, Some(certificate), key) => {
            let key = key.unwrap_or_else(|| certificate.clone());
            Ok(Some((certificate, key)))
        }
        (true, None, _) => Err(usage(
            "TLS needs a certificate: give --tls-certificate FILE and --tls-key FILE",
        )),
        (false, None, None) => Ok(None),
        (false, ..) => Err(usage(format!(
            "a certificate or key is given, but nothing listens with TLS: give --{tls_name} ADDR too"
        ))),
    }
}

/// A socket address with a port, by number or name.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    let expected = "expected an address with a port, such as 127.0.0.1:11211 or [::1]:11211";
    let (host, port) = text.rsplit_once(':').ok_or(expected)?;
    let port = port.parse::<u16>().map_err(|_| expected)?;
    if host.is_empty() || host.contains(':') {
        return Err(expected.to_owned());
    }
    let mut found = (host, port)
        .to_socket_addrs()
        .map_err(|error| format!("cannot resolve {host}: {error}"))?;
    found.next().ok_or_else(|| format!("{host} has no address"))
}
