//! What the access log says of a request.

use super::Client;
use crate::access_log::{AccessLog, Entry};
use http::header::{HOST, HeaderValue, REFERER, USER_AGENT};
use http::request::Parts;
use http::{Method, StatusCode, Uri, Version};
use std::net::IpAddr;
use std::time::{Instant, SystemTime};

/// A request, and its answer when there is one.
pub(crate) struct Noted {
    client: Option<IpAddr>,
    time: SystemTime,
    began: Instant,
    method: Method,
    uri: Uri,
    version: Version,
    host: Option<HeaderValue>,
    referer: Option<HeaderValue>,
    user_agent: Option<HeaderValue>,
    status: u16,
    cache: Option<HeaderValue>,
}

impl Noted {
    pub(crate) fn new(parts: &Parts, client: &Client) -> Box<Self> {
        let field = |name| parts.headers.get(name).cloned();
        Box::new(Self {
            client: client.address,
            time: SystemTime::now(),
            began: Instant::now(),
            method: parts.method.clone(),
            uri: parts.uri.clone(),
            version: parts.version,
            host: field(HOST),
            referer: field(REFERER),
            user_agent: field(USER_AGENT),
            status: 0,
            cache: None,
        })
    }

    pub(crate) fn answered(&mut self, status: StatusCode, cache: Option<&HeaderValue>) {
        (self.status, self.cache) = (status.as_u16(), cache.cloned());
    }

    pub(crate) fn write(&self, log: &AccessLog, sent: u64) {
        let told = |value: &Option<HeaderValue>| {
            value
                .as_ref()
                .and_then(|value| value.to_str().ok())
                .map(str::to_owned)
        };
        let authority = self.uri.authority().map(|authority| authority.as_str());
        log.write(&Entry {
            client: self.client,
            time: self.time,
            duration: self.began.elapsed(),
            method: self.method.as_str(),
            host: authority.unwrap_or(&told(&self.host).unwrap_or_default()),
            target: self.uri.path_and_query().map_or("", |path| path.as_str()),
            version: self.version,
            status: self.status,
            bytes: sent,
            referer: self.referer.as_ref().map(HeaderValue::as_bytes),
            user_agent: self.user_agent.as_ref().map(HeaderValue::as_bytes),
            cache: &told(&self.cache).unwrap_or_default(),
        });
    }
}
