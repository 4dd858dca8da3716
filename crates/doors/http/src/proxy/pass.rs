//! Requests that go to the origin as they are, and their answers back: bodies stream both ways, and nothing is stored.

use super::{Asked, Proxy, Reply, Respond};
use crate::conditional::is_still;
use crate::fields::{clean_response, remove_all};
use crate::framing::check_response;
use crate::invalidate::targets;
use crate::key::Target;
use crate::origin::{OriginBody, OriginError, RequestBody};
use crate::server::body::From;
use crate::status::{CacheStatus, Forward};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use pumice_device::Device;
use std::error::Error;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use thiserror::Error;
use tokio::task::spawn_local;
use tokio::time::{Instant, Sleep, sleep};

/// An answer of the origin that was checked, its fields cleaned.
pub(super) struct Checked {
    pub(super) response: Response<OriginBody>,
    /// Length of the body, where it is known.
    pub(super) body_bytes: Option<u64>,
}

impl Checked {
    /// What a client gets of it.
    pub(super) fn reply<B>(self, cache: CacheStatus) -> Reply<B> {
        let (parts, body) = self.response.into_parts();
        let (from, left) = match body.is_end_stream() {
            true => (From::Nothing, None),
            false => (From::Origin(Box::new(body)), self.body_bytes),
        };
        Reply {
            status: parts.status,
            fields: parts.headers,
            from,
            left,
            cache: Some(cache),
        }
    }
}

/// The body of a request, which ends in an error where the client sends none of it for too long.
struct Upload {
    body: Incoming,
    timeout: Duration,
    timer: Pin<Box<Sleep>>,
}

/// A client stopped in the middle of its request.
#[derive(Debug, Error)]
#[error("the request's body does not come")]
struct Stalled;

impl Upload {
    fn new(body: Incoming, timeout: Duration) -> Self {
        Self {
            body,
            timeout,
            timer: Box::pin(sleep(timeout)),
        }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let upload = self.get_mut();
        let polled = Pin::new(&mut upload.body).poll_frame(cx);
        if polled.is_ready() {
            upload.timer.as_mut().reset(Instant::now() + upload.timeout);
            return polled.map_err(Into::into);
        }
        upload.timer.as_mut().poll(cx).map(|()| Some(Err(Stalled.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<D: Device + Clone> Proxy<D> {
    /// Sends a request to the origin, and checks the head of the answer.
    pub(super) async fn ask_origin(
        &self,
        method: &Method,
        target: &Target,
        fields: HeaderMap,
        body: RequestBody,
    ) -> Result<Checked, OriginError> {
        let counters = &self.stats().counters;
        counters.origin_requests.add(1);
        let asked = self.ask(method, target, fields, body).await;
        match &asked {
            Ok(_) => counters.origin_answers.add(1),
            Err(error) => counters.origin_error(*error),
        }
        asked
    }

    async fn ask(
        &self,
        method: &Method,
        target: &Target,
        fields: HeaderMap,
        body: RequestBody,
    ) -> Result<Checked, OriginError> {
        let mut request = Request::new(body);
        *request.method_mut() = method.clone();
        *request.uri_mut() = target
            .path_and_query()
            .parse()
            .map_err(|_| OriginError::Bad("the target"))?;
        *request.headers_mut() = fields;
        let mut response = self.origin.send(request).await?;
        let version = response.version();
        let told =
            check_response(response.status(), version, response.headers()).map_err(OriginError::Bad)?;
        let body_bytes = match response.body().is_end_stream() {
            true => Some(0),
            false => told,
        };
        clean_response(response.headers_mut(), self.hop(version));
        Ok(Checked { response, body_bytes })
    }

    /// Passes a request on.
    pub(super) async fn pass(self: &Rc<Self>, mut asked: Asked, why: Forward) -> Respond<D> {
        self.stats().counters.passed.add(1);
        let cache = CacheStatus {
            forward: Some(why),
            ..CacheStatus::default()
        };
        let mut fields = asked.fields.clone();
        let mut body = asked.body.take().filter(|body| !body.is_end_stream());
        if asked.method == Method::GET || asked.method == Method::HEAD {
            // A body of theirs means nothing.
            remove_all(&mut fields, |name| name.as_str().starts_with("content-"));
            body = None;
        }
        let body = body.map_or(RequestBody::Empty, |body| {
            RequestBody::Other(Box::pin(Upload::new(body, self.shared.config.stall_timeout)))
        });
        let proxy = Rc::clone(self);
        let is_safe = asked.method.is_safe();
        let asking = async move {
            let answer = proxy.ask_origin(&asked.method, &asked.target, fields, body).await;
            if let Ok(checked) = &answer {
                proxy.take_note(&asked, checked).await;
            }
            (asked, answer)
        };
        let (asked, answer) = match is_safe {
            true => asking.await,
            // What it makes void is void, though the client leave.
            false => spawn_local(asking).await.expect("it does not panic"),
        };
        match answer {
            Err(error) => self.respond(asked, Self::failure(error, cache)),
            Ok(checked) => self.respond(asked, checked.reply(cache)),
        }
    }

    /// Makes void what an answer that is passed on says is stale.
    async fn take_note(&self, asked: &Asked, checked: &Checked) {
        let (status, fields) = (checked.response.status(), checked.response.headers());
        if asked.method == Method::HEAD && status.is_success() {
            let finding = self.find(asked, None).await;
            let head = finding
                .stored
                .as_ref()
                .and_then(|stored| stored.head(&asked.target));
            if head.is_some_and(|head| !is_still(&head, fields)) {
                self.invalidate(&asked.target).await;
            }
            return;
        }
        let origin = asked.target.origin();
        let host = origin.split_once("://").map_or(origin, |(_, host)| host);
        let mut is_void = false;
        for path in targets(&asked.method, status, &asked.target, fields) {
            let rule = self
                .shared
                .config
                .rules
                .find(path.split('?').next().unwrap_or(&path));
            if let Ok(target) = Target::new(asked.scheme, host, &path, &rule.query) {
                self.invalidate(&target).await;
                is_void = true;
            }
        }
        if is_void && let Err(error) = self.cache.commit(&self.cx).await {
            tracing::warn!("an invalidation may be forgotten by a crash: {error}");
        }
    }

    /// Makes void what is stored for a URL, its variants included, and what is being stored.
    async fn invalidate(&self, target: &Target) {
        let key = target.engine_key();
        self.shared.voids.add(&key);
        self.shared.flights.part_with(&key);
        self.cache.delete(&self.cx, &key).await;
        self.stats().counters.invalidated.add(1);
    }
}
