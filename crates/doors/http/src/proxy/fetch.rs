//! Requests to the origin whose answer is stored if it may be, each on a task of its own: it goes on where its client leaves and others wait.

use super::collapse::{Coming, Pilot, Rider, Stage};
use super::find::{Finding, Stored};
use super::hit::{Sending, head_of_answer};
use super::pass::Checked;
use super::{Asked, Proxy, Reply, Respond};
use crate::conditional::{ask_validation, ask_whole, is_not_modified};
use crate::decide::{Decision, Failure, Found, decide, serves_after};
use crate::freshness::Times;
use crate::head::NewHead;
use crate::key::{EngineKey, Target};
use crate::origin::{OriginBody, OriginError, RequestBody};
use crate::range::Part;
use crate::server::body::{Chunk, Chunks, Cut, From, Holds};
use crate::server::random;
use crate::status::{CacheStatus, Forward};
use crate::store::{Exchange, may_store};
use crate::vary::{VariantId, Variants, variant_key};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use http::{HeaderMap, HeaderName, Method, StatusCode};
use http_body_util::BodyExt;
use pumice::{Action, Broken, Follower, Meta, NewObject, ObjectWriter, Outcome, RejectReason};
use pumice_device::Device;
use pumice_net::Share;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::oneshot;

/// How long the origin is left alone, for a key of which something stale may be used, after it failed.
const SPARED_SECS: i64 = 5;

/// The longest body, of those of known length, that has come as a whole before its head is sent on: where it does not, there is a 502.
const WHOLE_FIRST_BYTES_MAX: u64 = 64 << 10;

/// The longest response that is stored while the flash device is out: longer ones would fall out of DRAM before they have come.
const DRAM_ALONE_BYTES_MAX: u64 = 256 << 10;

/// What the one that asked hears of its flight.
pub(super) enum Led<D: Device + Clone> {
    /// The answer is stored while it comes.
    Coming(Arc<Coming>, Own<D>),
    /// What is stored is good still.
    Freshened,
    /// The answer is not stored, and why.
    Alone(Box<Checked>, &'static str),
    /// There is none.
    Failed(OriginError),
}

/// What is for the one that asked alone: all fields that the origin sent, and what is behind the bytes that are stored.
pub(super) struct Own<D: Device + Clone> {
    status: StatusCode,
    fields: HeaderMap,
    tail: oneshot::Receiver<Tail<D>>,
}

/// The rest of a body that turns out to be too long to be stored.
struct Tail<D: Device + Clone> {
    /// What came before is there as long as this is.
    _writer: ObjectWriter<D>,
    next: Bytes,
    body: OriginBody,
}

/// A response on its way to those who wait for it.
struct Landing<D: Device + Clone> {
    coming: Arc<Coming>,
    /// Who asked, until he has heard.
    tell: Option<(oneshot::Sender<Led<D>>, Own<D>)>,
    pilot: Pilot,
}

impl<D: Device + Clone> Landing<D> {
    /// Says that it comes, once.
    fn announce(&mut self, now_secs: i64) {
        if let Some((tell, own)) = self.tell.take() {
            let coming = Arc::clone(&self.coming);
            self.pilot.say(Stage::Coming(Arc::clone(&coming)), now_secs);
            let _ = tell.send(Led::Coming(coming, own));
        }
    }

    /// It does not, if that is in time to be said.
    fn fail(self, error: OriginError, now_secs: i64) {
        if let Some((tell, _)) = self.tell {
            self.pilot.say(Stage::Failed(error), now_secs);
            let _ = tell.send(Led::Failed(error));
        }
    }
}

/// A request to the origin, and what is known of its URL.
pub(super) struct Job<D: Device + Clone> {
    pub(super) target: Target,
    pub(super) key: EngineKey,
    /// As the origin gets them.
    pub(super) fields: HeaderMap,
    pub(super) variants: Option<Variants>,
    /// What is validated.
    pub(super) stale: Option<Stored<D::Buf>>,
    /// How often the URL was made void before.
    voids: u64,
}

impl<D: Device + Clone> Job<D> {
    /// Asks for the whole response, whatever is stored.
    pub(super) fn forget_stale(&mut self) {
        self.stale = None;
        ask_whole(&mut self.fields);
    }
}

/// A response on its way into the engine.
struct Storage<D: Device + Clone> {
    writer: ObjectWriter<D>,
    key: EngineKey,
    /// Where it is a variant: the list of the URL that was made for it, and the fields that it varies on.
    list: Option<(Variants, Vec<HeaderName>)>,
    _share: Share,
}

/// What requests that may share a flight have in common.
fn flight_key<B>(asked: &Asked, finding: &Finding<B>) -> EngineKey {
    let variant = finding.stored.as_ref().and_then(|stored| stored.variant);
    let likely = || finding.variants.as_ref()?.likely(&asked.target, &asked.fields);
    variant
        .or_else(likely)
        .map_or(asked.key, |id: VariantId| variant_key(&id))
}

impl<D: Device + Clone> Proxy<D> {
    /// Answers by what the origin says, asked by this request or another.
    pub(super) async fn fetch(
        self: &Rc<Self>,
        asked: Asked,
        mut finding: Finding<D::Buf>,
        why: Forward,
    ) -> Respond<D> {
        if let Some(stored) = &mut finding.stored {
            // Whoever waits pins nothing.
            stored.object.detach();
        }
        let cache = CacheStatus {
            forward: Some(why),
            ..CacheStatus::default()
        };
        let key = flight_key(&asked, &finding);
        match self.shared.flights.board(key, self.now()) {
            (rider, Some(pilot)) => self.lead(asked, finding, cache, (rider, pilot)).await,
            (rider, None) => self.ride(asked, finding, cache, rider).await,
        }
    }

    /// Validates what is stored, or fetches it anew, while nobody waits; once at a time.
    pub(super) fn revalidate(self: &Rc<Self>, asked: &Asked, finding: &Finding<D::Buf>) {
        let now = self.now();
        let key = flight_key(asked, finding);
        if self.shared.spared.is_set(&asked.key, now) {
            return;
        }
        if let (rider, Some(pilot)) = self.shared.flights.board(key, now) {
            let job = self.job(asked, finding);
            let (tell, told) = oneshot::channel();
            let proxy = Rc::clone(self);
            tokio::task::spawn_local(async move {
                let key = job.key;
                Rc::clone(&proxy).fly(job, pilot, tell).await;
                drop(rider);
                let is_failure = match told.await {
                    Ok(Led::Failed(_)) => true,
                    Ok(Led::Alone(checked, _)) => checked.response.status().is_server_error(),
                    _ => false,
                };
                if is_failure {
                    proxy.shared.spared.set(&key, proxy.now() + SPARED_SECS);
                }
            });
        }
    }

    fn job(&self, asked: &Asked, finding: &Finding<D::Buf>) -> Job<D> {
        let mut fields = asked.fields.clone();
        let stale = finding.stored.as_ref().map(Stored::shared);
        match stale.as_ref().and_then(|stale| stale.head(&asked.target)) {
            Some(head) => ask_validation(&mut fields, &head),
            None => ask_whole(&mut fields),
        }
        Job {
            target: asked.target.clone(),
            key: asked.key,
            fields,
            variants: finding.variants.clone(),
            stale,
            voids: self.shared.voids.count(&asked.key),
        }
    }

    /// Asks the origin for itself, and for others that ride along.
    async fn lead(
        self: &Rc<Self>,
        mut asked: Asked,
        finding: Finding<D::Buf>,
        mut cache: CacheStatus,
        (rider, pilot): (Rider, Pilot),
    ) -> Respond<D> {
        let counters = &self.stats().counters;
        let job = self.job(&asked, &finding);
        let (tell, told) = oneshot::channel();
        tokio::task::spawn_local(Rc::clone(self).fly(job, pilot, tell));
        let failure = match told.await {
            Ok(Led::Coming(coming, own)) => {
                counters.misses.add(1);
                cache.is_stored = true;
                let reply = self.reply_coming(&asked, coming, Some(own), rider, cache);
                return self.respond(asked, reply);
            }
            Ok(Led::Freshened) => {
                counters.validated.add(1);
                cache.forward_status = Some(StatusCode::NOT_MODIFIED.as_u16());
                // It is good for this request, whatever the next one has to do.
                if let Some(stored) = self.find(&asked, None).await.stored {
                    match self.answer_from(asked, stored, cache).await {
                        Ok(answer) => return answer,
                        Err(again) => asked = again,
                    }
                }
                return self.pass(asked, Forward::Stale).await;
            }
            Ok(Led::Alone(checked, detail)) => {
                let status = checked.response.status();
                if let Some(stale) = finding.stored
                    && self.may_serve_stale(Failure::Answered(status), &asked, &stale)
                {
                    cache.forward_status = Some(status.as_u16());
                    match self.answer_from(asked, stale, cache).await {
                        Ok(answer) => return answer,
                        Err(again) => asked = again,
                    }
                }
                counters.misses.add(1);
                cache.detail = Some(detail);
                return self.respond(asked, checked.reply(cache));
            }
            Ok(Led::Failed(error)) => error,
            Err(_) => OriginError::Broken,
        };
        self.fail(asked, finding, cache, failure).await
    }

    /// The origin could not be asked: what is stale may do.
    async fn fail(
        self: &Rc<Self>,
        mut asked: Asked,
        finding: Finding<D::Buf>,
        cache: CacheStatus,
        error: OriginError,
    ) -> Respond<D> {
        if let Some(stale) = finding.stored
            && self.may_serve_stale(Failure::Unreachable, &asked, &stale)
        {
            match self.answer_from(asked, stale, cache).await {
                Ok(answer) => return answer,
                Err(again) => asked = again,
            }
        }
        self.respond(asked, Self::failure(error, cache))
    }

    /// Whether what is stored is the answer after a failure; the origin is then left alone for a while.
    fn may_serve_stale(&self, failure: Failure, asked: &Asked, stale: &Stored<D::Buf>) -> bool {
        let now = self.now();
        let head = stale.head(&asked.target);
        let may = head.is_some_and(|head| serves_after(failure, &asked.fields, &head, now));
        if may {
            self.shared.spared.set(&asked.key, now + SPARED_SECS);
            self.stats().counters.hits_stale.add(1);
        }
        may
    }

    /// Waits for what another request brings.
    async fn ride(
        self: &Rc<Self>,
        mut asked: Asked,
        finding: Finding<D::Buf>,
        mut cache: CacheStatus,
        rider: Rider,
    ) -> Respond<D> {
        let stage = rider.stage().await;
        let now = self.now();
        cache.collapsed = Some(true);
        match stage {
            Stage::Coming(coming) if coming.fits(&asked.target, &asked.method, &asked.fields, now) => {
                self.stats().counters.collapsed.add(1);
                let reply = self.reply_coming(&asked, coming, None, rider, cache);
                return self.respond(asked, reply);
            }
            Stage::Freshened => {
                let finding = self.find(&asked, None).await;
                if let Some(stored) = finding.stored
                    && let Some(head) = stored.head(&asked.target)
                    && let found = Found::Response(&head)
                    && let Decision::Serve { .. } = decide(&asked.method, &asked.fields, found, now)
                {
                    self.stats().counters.collapsed.add(1);
                    match self.answer_from(asked, stored, cache).await {
                        Ok(answer) => return answer,
                        Err(again) => asked = again,
                    }
                }
            }
            Stage::Failed(error) => {
                self.stats().counters.collapsed.add(1);
                return self.fail(asked, finding, cache, error).await;
            }
            Stage::Answered(status) => {
                if let Some(stale) = finding.stored
                    && self.may_serve_stale(Failure::Answered(status), &asked, &stale)
                {
                    self.stats().counters.collapsed.add(1);
                    cache.forward_status = Some(status.as_u16());
                    match self.answer_from(asked, stale, cache).await {
                        Ok(answer) => return answer,
                        Err(again) => asked = again,
                    }
                }
            }
            Stage::Asking | Stage::Coming(_) | Stage::Alone | Stage::Gone => {}
        }
        drop(rider);
        cache.collapsed = Some(false);
        let finding = self.find(&asked, None).await;
        let own = self.shared.flights.begin(flight_key(&asked, &finding));
        self.lead(asked, finding, cache, own).await
    }

    /// The answer from a response that comes: to the one that asked for it with all its fields, to others with those that are stored.
    fn reply_coming(
        self: &Rc<Self>,
        asked: &Asked,
        coming: Arc<Coming>,
        own: Option<Own<D>>,
        rider: Rider,
        cache: CacheStatus,
    ) -> Reply<D::Buf> {
        let head = coming.head();
        let now = self.now();
        let ttl_secs = head.freshness.ttl_secs(now);
        let is_modified = !is_not_modified(&asked.fields, &head);
        let (own, tail) = match own {
            Some(Own { status, fields, tail }) => (Some((status, fields)), Some(tail)),
            None => (None, None),
        };
        let (status, fields) = match own {
            Some(own) if is_modified => own,
            _ if is_modified => head_of_answer(&head, Sending::Part(Part::Whole), now),
            _ => head_of_answer(&head, Sending::NotModified, now),
        };
        let left = coming.body_bytes.filter(|_| is_modified);
        let has_body = is_modified && asked.method == Method::GET && left != Some(0);
        let from = match has_body {
            true => From::Parts(self.follow(coming, rider, tail)),
            false => From::Nothing,
        };
        let cache = CacheStatus {
            ttl_secs: Some(ttl_secs),
            ..cache
        };
        Reply {
            status,
            fields,
            from,
            left,
            cache: Some(cache),
        }
    }

    /// A body that comes, at the reader's own speed.
    fn follow(
        self: &Rc<Self>,
        coming: Arc<Coming>,
        rider: Rider,
        tail: Option<oneshot::Receiver<Tail<D>>>,
    ) -> Chunks<D::Buf> {
        let follower = coming.follow.reader(&self.cache, &self.cx, 0);
        let left = coming.body_bytes;
        let state = (Rc::clone(self), follower, rider);
        let stored = stream::try_unfold(
            state,
            move |(proxy, mut follower, rider): (Rc<Self>, Follower<D>, Rider)| async move {
                let share = proxy.share(left.unwrap_or(u64::MAX), follower.next_bytes()).await;
                let Some(pieces) = follower.read().await? else {
                    return Ok(None);
                };
                let holds = Holds {
                    _pin: None,
                    _share: Some(share),
                };
                Ok(Some((Chunk::pieces(pieces, holds), (proxy, follower, rider))))
            },
        );
        let rest = async move {
            let tail = match tail {
                Some(tail) => tail.await.ok(),
                None => None,
            };
            match tail {
                None if coming.is_cut() => Err(Cut::Broken(Broken)),
                tail => Ok(rest_of(tail)),
            }
        };
        Box::pin(stored.chain(stream::once(rest).try_flatten()))
    }

    /// Asks the origin, and stores its answer if it may be.
    async fn fly(self: Rc<Self>, mut job: Job<D>, pilot: Pilot, tell: oneshot::Sender<Led<D>>) {
        loop {
            let requested_secs = self.now();
            let asking = self.ask_origin(&Method::GET, &job.target, job.fields.clone(), RequestBody::Empty);
            let asked = tokio::select! {
                asked = asking => asked,
                () = pilot.abandoned() => return,
            };
            let now = self.now();
            let checked = match asked {
                Ok(checked) => checked,
                Err(error) => {
                    pilot.say(Stage::Failed(error), now);
                    let _ = tell.send(Led::Failed(error));
                    return;
                }
            };
            let times = Times {
                requested_secs,
                received_secs: now,
            };
            let status = checked.response.status();
            if job.stale.is_some() && status == StatusCode::NOT_MODIFIED {
                if self.freshen(&mut job, checked.response.headers(), times).await {
                    pilot.say(Stage::Freshened, now);
                    let _ = tell.send(Led::Freshened);
                    return;
                }
                job.forget_stale();
                continue;
            }
            if job.stale.is_some() && matches!(status.as_u16(), 500 | 502 | 503 | 504) {
                pilot.say(Stage::Answered(status), now);
                let _ = tell.send(Led::Alone(Box::new(checked), "status"));
                return;
            }
            match self.begin(&job, &checked, times).await {
                Err(why) => {
                    pilot.say(Stage::Alone, now);
                    let _ = tell.send(Led::Alone(Box::new(checked), why));
                }
                Ok((storage, coming)) => {
                    let (parts, body) = checked.response.into_parts();
                    let (to_tail, tail) = oneshot::channel();
                    let own = Own {
                        status: parts.status,
                        fields: parts.headers,
                        tail,
                    };
                    let landing = Landing {
                        coming: Arc::new(coming),
                        tell: Some((tell, own)),
                        pilot,
                    };
                    let body = (body, checked.body_bytes, to_tail);
                    self.store(&job, storage, body, landing).await;
                }
            }
            return;
        }
    }

    /// Begins to store an answer; why it is not stored.
    async fn begin(
        &self,
        job: &Job<D>,
        checked: &Checked,
        times: Times,
    ) -> Result<(Storage<D>, Coming), &'static str> {
        let exchange = Exchange {
            method: &Method::GET,
            request: &job.fields,
            status: checked.response.status(),
            response: checked.response.headers(),
            times,
            body_bytes: checked.body_bytes,
        };
        if self.cache.flash_failure().is_some()
            && checked
                .body_bytes
                .is_none_or(|bytes| bytes > DRAM_ALONE_BYTES_MAX)
        {
            return Err("flash");
        }
        let rule = self.rule(&job.target);
        let storing = may_store(&exchange, rule, self.shared.config.object_bytes_max);
        let storing = storing.map_err(|why| why.name())?;
        let (mut key, mut variant, mut list) = (job.key, None, None);
        if !storing.vary.is_empty() {
            let mut variants = job.variants.clone().unwrap_or_else(|| Variants::new(random()));
            let (id, _) = variants.insert(&job.target, &storing.vary, &job.fields);
            (key, variant) = (variant_key(&id), Some(id));
            list = Some((variants, storing.vary.clone()));
        }
        let head = NewHead {
            status: exchange.status,
            storing: &storing,
            key: job.target.key(),
            variant,
            fields: exchange.response,
            received_secs: times.received_secs,
        };
        let head = head.encode().map_err(|_| "too-large")?;
        let bytes = self.cache.writer_bytes(&key, checked.body_bytes) + head.len();
        let share = self.shared.budgets.input.take(bytes).await;
        let new = NewObject {
            len: checked.body_bytes,
            head: &head,
            ..NewObject::default()
        };
        let writer = self
            .cache
            .begin(&self.cx, &key, new)
            .map_err(|reason| match reason {
                RejectReason::TooLarge | RejectReason::Length => "too-large",
                _ => "admission",
            })?;
        let follow = writer.follow();
        let whole = (head, checked.body_bytes);
        let coming = Coming::new(&job.target, &job.fields, storing.vary, whole, follow);
        let storage = Storage {
            writer,
            key,
            list,
            _share: share,
        };
        Ok((storage, coming))
    }

    /// Stores a body as it comes, and makes the response visible when it is whole.
    async fn store(
        &self,
        job: &Job<D>,
        mut storage: Storage<D>,
        (mut body, body_bytes, to_tail): (OriginBody, Option<u64>, oneshot::Sender<Tail<D>>),
        mut landing: Landing<D>,
    ) {
        let counters = &self.stats().counters;
        if body_bytes.is_none_or(|bytes| bytes > WHOLE_FIRST_BYTES_MAX) {
            landing.announce(self.now());
        }
        let failure = {
            let mut abandoned = pin!(landing.pilot.abandoned());
            let mut come = 0;
            loop {
                let is_half = body_bytes.is_some_and(|bytes| come >= bytes / 2);
                let frame = tokio::select! {
                    biased;
                    frame = body.frame() => frame,
                    () = &mut abandoned, if !is_half => return,
                };
                match frame {
                    None => break None,
                    Some(Err(error)) => break Some(error),
                    Some(Ok(frame)) => {
                        let Ok(bytes) = frame.into_data() else { continue };
                        come += bytes.len() as u64;
                        if come > self.shared.config.object_bytes_max {
                            // Who asked for it gets the rest; the others ask for themselves.
                            landing.coming.cut();
                            landing.pilot.say(Stage::Alone, self.now());
                            storage.writer.end_following();
                            let tail = Tail {
                                _writer: storage.writer,
                                next: bytes,
                                body,
                            };
                            return drop(to_tail.send(tail));
                        }
                        if storage.writer.append(&bytes).await.is_err() {
                            return;
                        }
                    }
                }
            }
        };
        if let Some(error) = failure {
            counters.origin_error(error);
            return landing.fail(error, self.now());
        }
        landing.announce(self.now());
        drop(to_tail);
        let is_void = || self.shared.voids.count(&job.key) != job.voids;
        if is_void() {
            storage.writer.end_following();
            return landing.pilot.landed().await;
        }
        let bytes = storage.writer.appended();
        let stored = storage
            .writer
            .finish_if(|_| (!is_void()).then(Meta::default))
            .await;
        let mut is_stored = matches!(stored, Outcome::Stored { .. });
        if is_stored && let Some((list, names)) = &storage.list {
            is_stored = self.list(job, list, names).await;
        }
        if !is_stored || is_void() {
            // Nothing that is not named, or not good any more, stays.
            self.cache.delete(&self.cx, &storage.key).await;
            return;
        }
        counters.stored.add(1);
        counters.stored_bytes.add(bytes);
    }

    /// Names a variant in the list of its URL; whether it is.
    async fn list(&self, job: &Job<D>, list: &Variants, names: &[HeaderName]) -> bool {
        let mut gone = None;
        let outcome = self.cache.update(&self.cx, &job.key, |object| {
            if self.shared.voids.count(&job.key) != job.voids {
                return Action::Keep;
            }
            let listed = object.filter(|object| object.head().is_empty());
            let listed = listed.and_then(|object| Variants::decode(&object.to_vec()));
            let list = match (listed, &job.variants) {
                (Some(mut listed), _) if listed.generation() == list.generation() => {
                    gone = listed.insert(&job.target, names, &job.fields).1;
                    listed
                }
                (None, None) => list.clone(),
                // Made anew meanwhile, or gone: what was asked for under the old one is not to come back.
                _ => return Action::Keep,
            };
            Action::Store {
                value: list.encode(),
                meta: Meta::default(),
            }
        });
        let is_listed = matches!(outcome.await, Outcome::Stored { .. });
        if let Some(gone) = gone {
            self.cache.delete(&self.cx, &gone).await;
        }
        is_listed
    }
}

/// What is behind the bytes that are stored, if anything.
fn rest_of<D: Device + Clone>(tail: Option<Tail<D>>) -> impl Stream<Item = Result<Chunk<D::Buf>, Cut>> {
    stream::try_unfold(tail, async |tail| {
        let Some(mut tail) = tail else { return Ok(None) };
        let mut next = std::mem::take(&mut tail.next);
        while next.is_empty() {
            match tail.body.frame().await {
                None => return Ok(None),
                Some(frame) => next = frame?.into_data().unwrap_or_default(),
            }
        }
        Ok(Some((Chunk::Bytes(next), Some(tail))))
    })
}
