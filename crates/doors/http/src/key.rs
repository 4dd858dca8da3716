//! The cache key of a URL: scheme, host in lower case without a default port, path and query byte for byte.
//!
//! What a rule takes from the query is taken from the request to the origin, too: a query field that the key has not must not shape what
//! is stored under it.

use std::cmp::Ordering;
use thiserror::Error;

/// How a client reached this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    /// As in a URL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    pub(crate) fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// What becomes of a query: fields are what stands between `&`, named by what stands before `=`; names are compared byte for byte.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Only fields of these names are kept. Default: all.
    pub keep: Option<Vec<String>>,
    /// Fields of these names are dropped.
    pub drop: Vec<String>,
    /// Fields are sorted by name; those of one name keep their order.
    pub is_sorted: bool,
}

impl Query {
    /// The query that the key and the origin get; `None` for none.
    fn rewrite(&self, query: &str) -> Option<String> {
        fn name(field: &str) -> &str {
            field.split('=').next().unwrap_or(field)
        }
        let is_kept = |field: &&str| {
            let is_name = |other: &String| other == name(field);
            self.keep.as_ref().is_none_or(|keep| keep.iter().any(is_name)) && !self.drop.iter().any(is_name)
        };
        let mut fields: Vec<&str> = query.split('&').filter(is_kept).collect();
        if self.is_sorted {
            fields.sort_by(|one, other| -> Ordering { name(one).cmp(name(other)) });
        }
        (!fields.is_empty()).then(|| fields.join("&"))
    }

    fn is_default(&self) -> bool {
        self.keep.is_none() && self.drop.is_empty() && !self.is_sorted
    }
}

/// A host that is none: not a name, an address of four numbers or one in brackets, with a port below 65536 or without.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("the host is not valid")]
pub struct BadHost;

/// The key of the engine for a stored response or a URL's list of variants. A digest: what is found under it names its full key.
pub type EngineKey = [u8; 16];

/// The full cache key of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    key: String,
    path_at: usize,
}

impl Target {
    /// The target of a request: `host` as `Host` or `:authority` has it, path and query as the request line.
    ///
    /// # Errors
    ///
    /// Where the host is not valid.
    pub fn new(scheme: Scheme, host: &str, path_and_query: &str, query: &Query) -> Result<Self, BadHost> {
        let (name, port) = split_host(host)?;
        let mut key = String::with_capacity(host.len() + path_and_query.len() + 16);
        key.push_str(scheme.name());
        key.push_str("://");
        key.push_str(&name.to_ascii_lowercase());
        if let Some(port) = port.filter(|port| *port != scheme.port()) {
            key.push_str(&format!(":{port}"));
        }
        let path_at = key.len();
        // `*` is the server itself.
        if !path_and_query.starts_with('/') && path_and_query != "*" {
            key.push('/');
        }
        match path_and_query.split_once('?').filter(|_| !query.is_default()) {
            None => key.push_str(path_and_query),
            Some((path, fields)) => {
                key.push_str(path);
                if let Some(fields) = query.rewrite(fields) {
                    key.push('?');
                    key.push_str(&fields);
                }
            }
        }
        Ok(Self { key, path_at })
    }

    /// The full key, a URL.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Scheme, host and port: the same for all URLs of one origin.
    pub fn origin(&self) -> &str {
        &self.key[..self.path_at]
    }

    /// Path and query, as the origin gets them.
    pub fn path_and_query(&self) -> &str {
        &self.key[self.path_at..]
    }

    /// Where the engine has the response, or the list of variants.
    pub fn engine_key(&self) -> EngineKey {
        let digest = blake3::hash(self.key.as_bytes());
        first_half(digest.as_bytes())
    }
}

/// The part of a digest that the engine gets.
pub(crate) fn first_half(digest: &[u8; 32]) -> EngineKey {
    std::array::from_fn(|at| digest[at])
}

/// A host's name and port; the port is `None` where it is not told.
pub(crate) fn split_host(host: &str) -> Result<(&str, Option<u16>), BadHost> {
    let end = match host.strip_prefix('[') {
        Some(_) => host.find(']').map(|at| at + 1).ok_or(BadHost)?,
        None => host.find(':').unwrap_or(host.len()),
    };
    let (name, rest) = host.split_at(end);
    let is_valid = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)),
    };
    if name.is_empty() || !is_valid {
        return Err(BadHost);
    }
    let port = match rest.strip_prefix(':') {
        None if rest.is_empty() => None,
        Some("") => None,
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(port.parse().map_err(|_| BadHost)?)
        }
        _ => return Err(BadHost),
    };
    Ok((name, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(scheme: Scheme, host: &str, path: &str) -> String {
        Target::new(scheme, host, path, &Query::default()).unwrap().key
    }

    #[test]
    fn hosts_are_made_alike_and_paths_are_not() {
        use Scheme::{Http, Https};
        for (scheme, host, path, expected) in [
            (Http, "Example.ORG:80", "/", "http://example.org/"),
            (
                Http,
                "example.org:",
                "/a%2Fb/../c?",
                "http://example.org/a%2Fb/../c?",
            ),
            (Http, "example.org:443", "", "http://example.org:443/"),
            (Https, "example.org:0443", "/?b&a", "https://example.org/?b&a"),
            (Https, "[2001:DB8::1]:8443", "?a", "https://[2001:db8::1]:8443/?a"),
        ] {
            assert_eq!(key(scheme, host, path), expected);
        }
        let target = Target::new(Http, "a:81", "/x?y", &Query::default()).unwrap();
        assert_eq!(
            (target.origin(), target.path_and_query()),
            ("http://a:81", "/x?y")
        );
    }

    #[test]
    fn hosts_with_anything_else_are_refused() {
        for bad in [
            "", ":80", "a b", "a/b", "a@b", "a:b", "a:65536", "a:-1", "a:+1", "a:80:80", "[::1", "[::1]x",
            "[x]", "[]", "a#b", "a?b", "a\\b", "ä", "a,b",
        ] {
            assert_eq!(
                Target::new(Scheme::Http, bad, "/", &Query::default()),
                Err(BadHost),
                "{bad}"
            );
        }
    }

    #[test]
    fn queries_are_rewritten_by_rule() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let keep = Query {
            keep: Some(names(&["a", "b"])),
            drop: names(&["b"]),
            is_sorted: false,
        };
        let sorted = Query {
            is_sorted: true,
            ..Query::default()
        };
        let drop = Query {
            drop: names(&["utm"]),
            ..Query::default()
        };
        for (query, path, expected) in [
            (&keep, "/?c=1&a=2&b=3&a=1", "/?a=2&a=1"),
            (&keep, "/?c=1", "/"),
            (&sorted, "/?b=1&a=2&a=1&&b", "/?&a=2&a=1&b=1&b"),
            (&drop, "/?utm=1&UTM=2&%75tm=3&utm", "/?UTM=2&%75tm=3"),
            (&drop, "/utm", "/utm"),
        ] {
            let target = Target::new(Scheme::Http, "a", path, query).unwrap();
            assert_eq!(target.path_and_query(), expected);
        }
    }
}
