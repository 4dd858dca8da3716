//! Addresses of exports: `nbd://HOST[:PORT]/[EXPORT]` and `nbd+unix:///[EXPORT]?socket=PATH`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The port of NBD.
const PORT: u16 = 10809;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Host and port.
    Tcp(String, u16),
    /// A unix socket.
    Unix(PathBuf),
}

/// The address of an export.
///
/// Source: the NBD URI specification, `doc/uri.md` of <https://github.com/NetworkBlockDevice/nbd>, without TLS, users and vsock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// Where its server listens.
    pub place: Place,
    /// Its name; the empty one is the server's default.
    pub export: String,
}

/// Why a text is no address of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UriError {
    /// A scheme with TLS or vsock.
    #[error(
        "expected nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH; there is no TLS and no vsock"
    )]
    Scheme,
    /// No host, or one with a user or a port that is no number.
    #[error("expected a host, and a port from 1 to 65535, between nbd:// and the next slash")]
    Host,
    /// Not just `?socket=PATH` behind `nbd+unix:///EXPORT`.
    #[error("expected ?socket=PATH behind nbd+unix:///EXPORT, and nothing else")]
    Socket,
    /// A parameter, which `nbd://` has none of.
    #[error("expected no `?` behind nbd://HOST/EXPORT")]
    Parameter,
    /// A `%` without two hexadecimal digits, or bytes that are no UTF-8.
    #[error("a % is followed by two hexadecimal digits, and names are UTF-8 without zero bytes")]
    Escape,
}

impl Uri {
    /// Whether a text is meant as an address, not as a path.
    pub fn is_meant(text: &str) -> bool {
        text.split_once("://")
            .is_some_and(|(scheme, _)| scheme.starts_with("nbd"))
    }
}

impl FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        let (scheme, rest) = text.split_once("://").ok_or(UriError::Scheme)?;
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, Some(query)),
            None => (rest, None),
        };
        let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = unescape(export)?;
        let place = match scheme {
            "nbd" if query.is_some() => return Err(UriError::Parameter),
            "nbd" => tcp(host)?,
            "nbd+unix" => {
                let path = query.and_then(|query| query.strip_prefix("socket="));
                let path = path.filter(|path| host.is_empty() && !path.is_empty() && !path.contains('&'));
                Place::Unix(unescape(path.ok_or(UriError::Socket)?)?.into())
            }
            _ => return Err(UriError::Scheme),
        };
        Ok(Self { place, export })
    }
}

fn tcp(authority: &str) -> Result<Place, UriError> {
    // An IPv6 address is in brackets.
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or(UriError::Host)?;
            (host, port.strip_prefix(':').or((port.is_empty()).then_some("")))
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, Some("")),
        },
    };
    let port = match port.ok_or(UriError::Host)? {
        "" => PORT,
        port => port.parse().ok().filter(|port| *port > 0).ok_or(UriError::Host)?,
    };
    match host.is_empty() || host.contains(['@', '%']) {
        true => Err(UriError::Host),
        false => Ok(Place::Tcp(host.to_owned(), port)),
    }
}

/// Replaces `%` and two hexadecimal digits by the byte that they name.
fn unescape(text: &str) -> Result<String, UriError> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2).ok_or(UriError::Escape)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(UriError::Escape);
        }
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| UriError::Escape)?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    let text = String::from_utf8(bytes).map_err(|_| UriError::Escape)?;
    match text.contains('\0') {
        true => Err(UriError::Escape),
        false => Ok(text),
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Tcp(host, port) if host.contains(':') => {
                write!(out, "nbd://[{host}]:{port}/{}", self.export)
            }
            Place::Tcp(host, port) => write!(out, "nbd://{host}:{port}/{}", self.export),
            Place::Unix(path) => write!(out, "nbd+unix:///{}?socket={}", self.export, path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        let tcp = |host: &str, port| Place::Tcp(host.to_owned(), port);
        let unix = |path: &str| Place::Unix(path.into());
        for (text, place, export) in [
            ("nbd://host", tcp("host", 10809), ""),
            ("nbd://host/", tcp("host", 10809), ""),
            ("nbd://10.0.0.1:5/a/b", tcp("10.0.0.1", 5), "a/b"),
            ("nbd://[::1]:7/x%20y", tcp("::1", 7), "x y"),
            ("nbd://[::1]", tcp("::1", 10809), ""),
            ("nbd+unix:///?socket=/run/s", unix("/run/s"), ""),
            ("nbd+unix:///disk?socket=a%25b", unix("a%b"), "disk"),
        ] {
            let export = export.to_owned();
            assert!(Uri::is_meant(text));
            assert_eq!(text.parse(), Ok(Uri { place, export }), "{text}");
        }
    }

    #[test]
    fn other_addresses_are_refused() {
        for (text, error) in [
            ("nbds://host/", UriError::Scheme),
            ("nbd+vsock://1/", UriError::Scheme),
            ("nbd://", UriError::Host),
            ("nbd://a:0/", UriError::Host),
            ("nbd://a:70000/", UriError::Host),
            ("nbd://me@host/", UriError::Host),
            ("nbd://[::1/", UriError::Host),
            ("nbd://[::1]x/", UriError::Host),
            ("nbd://host/?socket=/s", UriError::Parameter),
            ("nbd+unix:///", UriError::Socket),
            ("nbd+unix:///?socket=", UriError::Socket),
            ("nbd+unix://host/?socket=/s", UriError::Socket),
            ("nbd+unix:///?socket=/s&tls=on", UriError::Socket),
            ("nbd://host/%2", UriError::Escape),
            ("nbd://host/%+1", UriError::Escape),
            ("nbd://host/%ff", UriError::Escape),
            ("nbd://host/%00", UriError::Escape),
        ] {
            assert_eq!(text.parse::<Uri>(), Err(error), "{text}");
        }
        assert!(!Uri::is_meant("/disk"));
        assert!(!Uri::is_meant("disk://x"));
    }
}
