//! What becomes of a request: answered from what is stored, or by the origin, whose answer is stored if it may be.

mod collapse;
mod fetch;
mod find;
mod fly;
mod hit;
mod marks;
mod pass;
mod validate;

pub(crate) use collapse::Flights;
pub(crate) use marks::{Spared, Voids};

use crate::counters::{Operation, WorkerStats};
use crate::decide::{Decision, Found, decide, serves_after};
use crate::fields::{Arrival, Hop, clean_request};
use crate::framing::{Refused, check_request};
use crate::key::{EngineKey, Scheme, Target};
use crate::origin::{Origin, OriginError};
use crate::rules::Rule;
use crate::server::body::{AnswerBody, Chunk, End, From};
use crate::server::{Client, Noted, Shared, UnderWay};
use crate::status::{CacheStatus, Forward};
use bytes::Bytes;
use hit::Tried;
use http::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
    MAX_FORWARDS,
};
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use pumice::{Access, Cx, Lookup, ObjectCache};
use pumice_device::Device;
use std::cell::Cell;
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The field that says what the cache did.
const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// How often what is stored is looked at for one request, when it changes meanwhile.
const LOOKS_MAX: usize = 3;

/// One worker's part of the proxy.
pub(crate) struct Proxy<D: Device + Clone> {
    pub(crate) cx: Rc<Cx<D>>,
    pub(crate) cache: Arc<ObjectCache<D>>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) origin: Origin,
    pub(crate) index: usize,
    /// Pieces under way that pin memory of the DRAM tier.
    pub(crate) pins: Rc<Cell<usize>>,
}

/// A request that is well-formed.
pub(crate) struct Asked {
    method: Method,
    version: Version,
    /// As they came, until they are cleaned.
    fields: HeaderMap,
    scheme: Scheme,
    target: Target,
    key: EngineKey,
    body: Option<Incoming>,
    started_ns: u64,
    under_way: UnderWay,
}

/// An answer to be sent.
struct Reply<B> {
    status: StatusCode,
    fields: HeaderMap,
    from: From<B>,
    /// Length of the body, where it is known.
    left: Option<u64>,
    /// `None` where the cache had no part in it.
    cache: Option<CacheStatus>,
}

/// The answer to a request, as hyper takes it.
pub(crate) type Respond<D> = Response<AnswerBody<<D as Device>::Buf, Ended<D>>>;

/// An answer, now or later.
#[expect(
    clippy::large_enum_variant,
    reason = "one that is there at once is not to be allocated for"
)]
pub(crate) enum Answering<D: Device + Clone> {
    Now(Option<Respond<D>>),
    Later(Pin<Box<dyn Future<Output = Respond<D>>>>),
}

impl<D: Device + Clone> Future for Answering<D> {
    type Output = Result<Respond<D>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Now(answer) => Poll::Ready(Ok(answer.take().expect("polled once"))),
            Self::Later(later) => later.as_mut().poll(cx).map(Ok),
        }
    }
}

/// Notes the end of an answer.
pub(crate) struct Ended<D: Device + Clone> {
    proxy: Rc<Proxy<D>>,
    under_way: UnderWay,
}

impl<D: Device + Clone> End for Ended<D> {
    fn ended(&mut self, sent: u64) {
        self.proxy.stats().counters.sent_bytes.add(sent);
        self.under_way.ended(self.proxy.shared.log.as_ref(), sent);
    }
}

impl<D: Device + Clone> Proxy<D> {
    pub(crate) fn stats(&self) -> &WorkerStats {
        self.shared.stats.worker(self.index)
    }

    fn now(&self) -> i64 {
        self.cx.clock.now_secs().into()
    }

    fn rule(&self, target: &Target) -> &Rule {
        let path = target.path_and_query();
        self.shared
            .config
            .rules
            .find(path.split('?').next().unwrap_or(path))
    }

    fn hop(&self, version: Version) -> Hop<'_> {
        Hop {
            pseudonym: &self.shared.pseudonym,
            version,
        }
    }

    /// Answers a request of a client.
    pub(crate) fn answer(self: &Rc<Self>, request: Request<Incoming>, client: &Rc<Client>) -> Answering<D> {
        let started_ns = self.cx.clock.monotonic_ns();
        let (parts, body) = request.into_parts();
        let noted = self.shared.log.is_some().then(|| Noted::new(&parts, client));
        let under_way = UnderWay::begin(client, noted);
        let limits = &self.shared.config.limits;
        let host = check_request(&parts.method, &parts.uri, parts.version, &parts.headers, limits);
        let host = match host {
            Ok(host) => host,
            Err(refused) => return Answering::Now(Some(self.refuse(refused, parts.version, under_way))),
        };
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let rule = self.shared.config.rules.find(parts.uri.path());
        let Ok(target) = Target::new(client.scheme, host, path, &rule.query) else {
            let refused = Refused::Bad("Host");
            return Answering::Now(Some(self.refuse(refused, parts.version, under_way)));
        };
        let asked = Asked {
            key: target.engine_key(),
            method: parts.method,
            version: parts.version,
            fields: parts.headers,
            scheme: client.scheme,
            target,
            body: Some(body),
            started_ns,
            under_way,
        };
        let is_read = asked.method == Method::GET || asked.method == Method::HEAD;
        let mut looked_up = None;
        let mut asked = asked;
        if is_read {
            let found = self.cache.lookup(&self.cx, &asked.key, Access::Count);
            looked_up = Some(match found {
                Lookup::Known(Some(object)) if is_plain(&asked.fields) && !object.head().is_empty() => {
                    match self.answer_now(asked, object) {
                        Tried::Answer(answer) => return Answering::Now(Some(answer)),
                        Tried::Later(again, object) => {
                            asked = again;
                            Lookup::Known(object)
                        }
                    }
                }
                found => found,
            });
        }
        Answering::Later(Box::pin(Rc::clone(self).answer_later(asked, looked_up)))
    }

    async fn answer_later(
        self: Rc<Self>,
        mut asked: Asked,
        mut looked_up: Option<Lookup<D::Buf>>,
    ) -> Respond<D> {
        if let Some(answer) = self.answer_here(&mut asked) {
            return self.respond(asked, answer);
        }
        if asked.method != Method::GET && asked.method != Method::HEAD {
            return self.pass(asked, Forward::Method).await;
        }
        for _ in 0..LOOKS_MAX {
            let finding = self.find(&asked, looked_up.take()).await;
            let head = finding
                .stored
                .as_ref()
                .and_then(|stored| stored.head(&asked.target));
            let found = match (&head, &finding.variants) {
                (Some(head), _) => Found::Response(head),
                (None, Some(_)) => Found::Variants,
                (None, None) => Found::Nothing,
            };
            let now = self.now();
            let decision = decide(&asked.method, &asked.fields, found, now);
            // After a failure the origin is left alone for a while.
            let failure = self.shared.spared.failure(&asked.key, now);
            let is_spared =
                |head| failure.is_some_and(|failure| serves_after(failure, &asked.fields, head, now));
            let (why, revalidates) = match decision {
                Decision::Serve { revalidates, .. } => (None, revalidates),
                Decision::GatewayTimeout => {
                    let answer = page(StatusCode::GATEWAY_TIMEOUT, None);
                    return self.respond(asked, answer);
                }
                Decision::Pass(why) => return self.pass(asked, why).await,
                Decision::Fetch(_) | Decision::Validate(_) if head.as_ref().is_some_and(is_spared) => {
                    (None, false)
                }
                Decision::Fetch(why) | Decision::Validate(why) => (Some(why), false),
            };
            if let Some(why) = why {
                return self.fetch(asked, finding, why).await;
            }
            if revalidates {
                self.revalidate(&asked, &finding);
            }
            let Some(stored) = finding.stored else { continue };
            match self.answer_from(asked, stored, CacheStatus::default()).await {
                Ok(answer) => return answer,
                Err(again) => asked = again,
            }
        }
        self.pass(asked, Forward::UriMiss).await
    }

    /// Cleans the request's fields; the answer comes back where it is this server's.
    fn answer_here(&self, asked: &mut Asked) -> Option<Reply<D::Buf>> {
        let origin = asked.target.origin();
        let arrival = Arrival {
            scheme: asked.scheme,
            host: origin.split_once("://").map_or(origin, |(_, host)| host),
            client: asked.under_way.client().address,
        };
        if clean_request(&mut asked.fields, self.hop(asked.version), arrival).is_err() {
            return Some(page(StatusCode::LOOP_DETECTED, None));
        }
        if asked.method != Method::OPTIONS {
            return None;
        }
        // RFC 9110, 7.6.2 and 9.3.7.
        let hops = asked
            .fields
            .get(MAX_FORWARDS)
            .and_then(|hops| hops.to_str().ok()?.parse::<u32>().ok());
        if asked.target.path_and_query() != "*" && hops != Some(0) {
            if let Some(hops) = hops {
                asked.fields.insert(MAX_FORWARDS, HeaderValue::from(hops - 1));
            }
            return None;
        }
        let mut reply = page(StatusCode::OK, None);
        let methods = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
        reply.fields.insert(ALLOW, HeaderValue::from_static(methods));
        Some(reply)
    }

    /// Refuses a request; nobody knows where the next one would begin.
    fn refuse(self: &Rc<Self>, refused: Refused, version: Version, under_way: UnderWay) -> Respond<D> {
        self.stats().counters.refused.add(1);
        let mut reply = page(refused.status(), None);
        if version != Version::HTTP_2 {
            reply.fields.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        self.stats().counters.status(reply.status);
        self.send(reply, under_way)
    }

    /// Ends a request with an answer.
    fn respond(self: &Rc<Self>, asked: Asked, mut reply: Reply<D::Buf>) -> Respond<D> {
        let stats = self.stats();
        if let Some(cache) = &reply.cache {
            let text = Bytes::from(cache.to_string());
            let value = HeaderValue::from_maybe_shared(text).expect("a structured field");
            reply.fields.append(CACHE_STATUS, value);
        }
        if asked.method == Method::HEAD {
            (reply.from, reply.left) = (From::Nothing, None);
        }
        stats.counters.status(reply.status);
        let is_read = asked.method == Method::GET || asked.method == Method::HEAD;
        let operation = match reply.cache.filter(|_| is_read) {
            None => Operation::Other,
            Some(CacheStatus { forward: Some(_), .. }) => Operation::GetMiss,
            Some(cache) if cache.detail == Some("flash") => Operation::GetFlash,
            Some(_) => Operation::GetDram,
        };
        let took = self.cx.clock.monotonic_ns().saturating_sub(asked.started_ns);
        stats.latency[operation as usize].record(took, 1);
        self.send(reply, asked.under_way)
    }

    fn send(self: &Rc<Self>, reply: Reply<D::Buf>, mut under_way: UnderWay) -> Respond<D> {
        let mut lines = reply.fields.get_all(CACHE_STATUS).iter();
        under_way.answered(reply.status, lines.next_back().filter(|_| reply.cache.is_some()));
        let progress = under_way.client().progress();
        let end = Ended {
            proxy: Rc::clone(self),
            under_way,
        };
        let mut response = Response::new(AnswerBody::new(reply.from, reply.left, progress, end));
        *response.status_mut() = reply.status;
        *response.headers_mut() = reply.fields;
        response
    }

    /// The answer where the origin gives none.
    fn failure(error: OriginError, cache: CacheStatus) -> Reply<D::Buf> {
        let status = match error {
            OriginError::Timeout => StatusCode::GATEWAY_TIMEOUT,
            OriginError::Busy => StatusCode::SERVICE_UNAVAILABLE,
            OriginError::Connect | OriginError::Broken | OriginError::Bad(_) => StatusCode::BAD_GATEWAY,
        };
        page(status, Some(cache))
    }
}

/// Whether cleaning takes none of a request's fields that a hit looks at: those that `Connection` names.
fn is_plain(fields: &HeaderMap) -> bool {
    let mut lines = fields.get_all(CONNECTION).iter();
    lines.all(|line| line.as_bytes().eq_ignore_ascii_case(b"keep-alive") || line.as_bytes() == b"close")
}

/// A page of this server's own.
fn page<B>(status: StatusCode, cache: Option<CacheStatus>) -> Reply<B> {
    let text = Bytes::from(format!("{status}\n"));
    let mut fields = HeaderMap::new();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    fields.insert(CONTENT_LENGTH, HeaderValue::from(text.len()));
    Reply {
        status,
        fields,
        left: Some(text.len() as u64),
        from: From::Once(Chunk::Bytes(text)),
        cache,
    }
}
