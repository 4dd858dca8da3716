//! The way to the origin: requests over a bounded pool of HTTP/1.1 connections, and the bodies that come back.
//!
//! hyper speaks the protocol; the pool is our own, as hyper-util's has no bound, keeps connections to addresses that the name has no more,
//! and sends nothing again that a dying connection has taken. It runs on one thread, in a `LocalSet` of a runtime with I/O and time enabled.
//!
//! What an origin cannot do: answer without end before the answer (1xx are counted), send a body that is shorter or longer than it said
//! without an error at its end, or make this server wait for ever.

mod body;
mod connect;
mod pool;

pub use body::{OriginBody, RequestBody};
pub use connect::OriginSetupError;

use crate::framing::check_response;
use crate::key::{Scheme, split_host};
use body::Sending;
use http::header::{HOST, HeaderValue};
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode, Uri, Version};
use pool::{Lease, Pool};
use std::fmt;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::Notify;
use tokio::time::timeout_at;

/// Answers of status 1xx before the one that counts.
const INFORMATIONAL_MAX: u32 = 16;

/// Where the origin is: scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginUrl {
    scheme: Scheme,
    /// In lower case; an IPv6 address without its brackets.
    host: String,
    port: u16,
    authority: String,
}

/// A URL that names no origin.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{url}: {what}; an origin is http://HOST[:PORT] or https://HOST[:PORT]")]
pub struct BadOriginUrl {
    url: String,
    what: &'static str,
}

impl OriginUrl {
    /// How it is spoken to.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Host, and port where it is not that of the scheme: the `Host` of requests.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    fn parse(url: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = url.split_once("://").ok_or("it has no scheme")?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err("its scheme is neither http nor https"),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest).to_ascii_lowercase();
        for (sign, what) in [
            ('@', "it names a user"),
            ('?', "it has a query"),
            ('#', "it has a fragment"),
            ('/', "it has a path"),
        ] {
            if authority.contains(sign) {
                return Err(what);
            }
        }
        let (host, port) = split_host(&authority).map_err(|_| "its host or port is not valid")?;
        let port = match port {
            Some(0) => return Err("its host or port is not valid"),
            port => port.unwrap_or(scheme.port()),
        };
        let authority = match port == scheme.port() {
            true => host.to_owned(),
            false => format!("{host}:{port}"),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self {
            scheme,
            host,
            port,
            authority,
        })
    }
}

impl FromStr for OriginUrl {
    type Err = BadOriginUrl;

    fn from_str(url: &str) -> Result<Self, BadOriginUrl> {
        Self::parse(url).map_err(|what| BadOriginUrl {
            url: url.to_owned(),
            what,
        })
    }
}

impl fmt::Display for OriginUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.name(), self.authority)
    }
}

/// How to reach the origin.
#[derive(Clone, Debug)]
pub struct OriginConfig {
    /// Where it is.
    pub url: OriginUrl,
    /// PEM file of the certificates that an https origin's is checked by. Default: those that the system trusts.
    pub ca: Option<PathBuf>,
    /// For a connection: first until one may be made, then for name, TCP and TLS. Default: 5 s.
    pub connect_timeout: Duration,
    /// From the request's last byte, or the last that came from the client, to the answer's head. Default: 60 s.
    pub first_byte_timeout: Duration,
    /// Between two pieces of a body, while somebody waits for the next one. Default: 30 s.
    pub idle_timeout: Duration,
    /// The most connections at once, of this worker; requests above wait. Default: 256.
    pub connections_max: usize,
}

impl OriginConfig {
    /// With the defaults.
    pub fn new(url: OriginUrl) -> Self {
        Self {
            url,
            ca: None,
            connect_timeout: Duration::from_secs(5),
            first_byte_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(30),
            connections_max: 256,
        }
    }
}

/// Why there is no answer, or not all of it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum OriginError {
    /// No connection could be made.
    #[error("the origin cannot be reached")]
    Connect,
    /// It took too long.
    #[error("the origin takes too long")]
    Timeout,
    /// The connection ended within request or answer.
    #[error("the origin broke off")]
    Broken,
    /// The answer cannot be trusted.
    #[error("the origin answers badly: {0}")]
    Bad(&'static str),
    /// Too many requests wait for a connection.
    #[error("too many requests wait for the origin")]
    Busy,
}

/// The origin, as one worker sees it.
pub struct Origin {
    pool: Rc<Pool>,
    host: HeaderValue,
}

impl Origin {
    /// Reads the certificates. It connects when it is asked for something.
    ///
    /// # Errors
    ///
    /// Where certificates cannot be read.
    pub fn new(config: &OriginConfig) -> Result<Self, OriginSetupError> {
        Ok(Self {
            pool: Rc::new(Pool::new(config)?),
            host: HeaderValue::from_str(config.url.authority()).expect("a host is a field's value"),
        })
    }

    /// Sends it to the origin. Version, target's form and `Host` are set here; all other fields are as the caller made them. The body
    /// that comes back ends with an error where it was not whole.
    ///
    /// What a kept connection has not begun to send when it ends is sent on a new one. So is, once, what has no body and is idempotent, if
    /// not a byte of an answer came.
    ///
    /// # Errors
    ///
    /// Why there is no answer.
    pub async fn send(&self, request: Request<RequestBody>) -> Result<Response<OriginBody>, OriginError> {
        let (mut parts, body) = request.into_parts();
        let target = parts.uri.path_and_query().cloned();
        parts.uri = Uri::from(target.unwrap_or(PathAndQuery::from_static("/")));
        parts.version = Version::HTTP_11;
        parts.headers.insert(HOST, self.host.clone());
        let has_second_try = parts.method.is_idempotent() && matches!(body, RequestBody::Empty);
        let lease = self.pool.lease().await?;
        let again = (lease.is_kept() && has_second_try).then(|| parts.clone());
        let request = Request::from_parts(parts, Sending::new(body));
        let (dead, request) = match self.exchange(lease, request).await {
            Ok(response) => return Ok(response),
            Err(Failed::For(error)) => return Err(error),
            Err(Failed::Unsent(dead, request)) if dead.is_kept() => (dead, *request),
            Err(Failed::Unsent(..)) => return Err(OriginError::Broken),
            Err(Failed::Unheard(dead)) => match again {
                Some(parts) => (dead, Request::from_parts(parts, Sending::new(RequestBody::Empty))),
                None => return Err(OriginError::Broken),
            },
        };
        let lease = self.pool.renew(dead).await?;
        self.exchange(lease, request)
            .await
            .map_err(|failed| match failed {
                Failed::Unsent(..) | Failed::Unheard(_) => OriginError::Broken,
                Failed::For(error) => error,
            })
    }

    /// Sends it on one connection.
    async fn exchange(
        &self,
        mut lease: Lease,
        mut request: Request<Sending>,
    ) -> Result<Response<OriginBody>, Failed> {
        let config = &self.pool.config;
        let upload = request.body().begin();
        // hyper wants what can be sent to other threads.
        let informational = Arc::new((AtomicU32::new(0), Notify::new()));
        let counted = Arc::clone(&informational);
        hyper::ext::on_informational(&mut request, move |_| {
            if counted.0.fetch_add(1, Ordering::Relaxed) >= INFORMATIONAL_MAX {
                counted.1.notify_one();
            }
        });
        let mut sent = pin!(lease.try_send(request));
        let answered = loop {
            let deadline = upload.moved() + config.first_byte_timeout;
            let waited = tokio::select! {
                biased;
                () = informational.1.notified() => return Err(bad("too many answers of status 1xx")),
                waited = timeout_at(deadline, &mut sent) => waited,
            };
            match waited {
                Ok(answered) => break answered,
                Err(_) if upload.moved() + config.first_byte_timeout > deadline => {}
                Err(_) => return Err(Failed::For(OriginError::Timeout)),
            }
        };
        let response = match answered {
            Ok(response) => response,
            Err(mut failed) => {
                let unsent = failed.take_message();
                let error = failed.into_error();
                return Err(match unsent {
                    Some(request) => Failed::Unsent(lease, Box::new(request)),
                    None if error.is_parse_too_large() => bad("its fields are too long"),
                    None if error.is_parse() => bad("its head cannot be read"),
                    None if lease.has_leftover() || informational.0.load(Ordering::Relaxed) > 0 => {
                        Failed::For(OriginError::Broken)
                    }
                    None => Failed::Unheard(lease),
                });
            }
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(bad("it switches protocols"));
        }
        check_response(response.status(), response.version(), response.headers()).map_err(bad)?;
        Ok(response.map(|incoming| OriginBody::new(incoming, lease, upload, config.idle_timeout)))
    }
}

fn bad(what: &'static str) -> Failed {
    Failed::For(OriginError::Bad(what))
}

/// Why a request was not answered.
enum Failed {
    /// The connection ended before the request was begun.
    Unsent(Lease, Box<Request<Sending>>),
    /// It ended before an answer was begun.
    Unheard(Lease),
    For(OriginError),
}
