//! Answers by what the origin says, to a request that has a task for it or waits for that of another.

use super::collapse::{Coming, Pilot, Rider, Stage};
use super::find::{Finding, Stored};
use super::fly::{Job, Led, Own, Tail, rest_of};
use super::hit::{Sending, head_of_answer};
use super::{Asked, Proxy, Reply, Respond};
use crate::conditional::{ask_validation, ask_whole, is_not_modified};
use crate::decide::{Decision, Failure, Found, decide, serves_after};
use crate::head::Head;
use crate::key::EngineKey;
use crate::origin::OriginError;
use crate::range::Part;
use crate::server::body::{Chunk, Chunks, Cut, From, Holds};
use crate::status::{CacheStatus, Forward};
use crate::vary::{VariantId, variant_key};
use futures_util::{StreamExt, TryStreamExt, stream};
use http::{HeaderMap, Method, StatusCode};
use pumice::{Broken, Follower};
use pumice_device::Device;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::oneshot;

/// How long the origin is left alone, for a key of which something stale may be used, after it failed.
const SPARED_SECS: i64 = 5;

/// What requests that may share a flight have in common.
fn flight_key<B>(asked: &Asked, finding: &Finding<B>) -> EngineKey {
    let variant = finding.stored.as_ref().and_then(|stored| stored.variant);
    let likely = || finding.variants.as_ref()?.likely(&asked.target, &asked.fields);
    variant
        .or_else(likely)
        .map_or(asked.key, |id: VariantId| variant_key(&id))
}

/// Whether a response is the answer to a request that asks for nothing special.
fn serves_plainly(head: &Head<'_>, now_secs: i64) -> bool {
    let decision = decide(&Method::GET, &HeaderMap::new(), Found::Response(head), now_secs);
    matches!(decision, Decision::Serve { .. })
}

impl<D: Device + Clone> Proxy<D> {
    /// Answers by what the origin says, asked by this request or another.
    pub(super) async fn fetch(
        self: &Rc<Self>,
        asked: Asked,
        mut finding: Finding<D::Buf>,
        why: Forward,
    ) -> Respond<D> {
        let cache = CacheStatus {
            forward: Some(why),
            ..CacheStatus::default()
        };
        let key = flight_key(&asked, &finding);
        match self.shared.flights.board(key, self.now()) {
            (rider, Some(pilot)) => {
                if finding.stored.is_none() {
                    // Another flight may have ended since this request looked.
                    finding = self.find(&asked, None).await;
                    let serves = self.serves(&asked, &finding);
                    if let Some(stored) = finding.stored.take_if(|_| serves) {
                        pilot.say(Stage::Freshened, self.now());
                        drop(pilot);
                        return match self.answer_from(asked, stored, CacheStatus::default()).await {
                            Ok(answer) => answer,
                            Err(again) => self.pass(again, why).await,
                        };
                    }
                }
                self.lead(asked, finding, cache, (rider, pilot)).await
            }
            (rider, None) => {
                drop(finding);
                self.ride(asked, cache, rider).await
            }
        }
    }

    /// Whether what is stored is the answer as it is.
    fn serves(&self, asked: &Asked, finding: &Finding<D::Buf>) -> bool {
        let head = finding
            .stored
            .as_ref()
            .and_then(|stored| stored.head(&asked.target));
        let decide = |head| decide(&asked.method, &asked.fields, Found::Response(&head), self.now());
        matches!(head.map(decide), Some(Decision::Serve { .. }))
    }

    /// Validates what is stored, or fetches it anew, while nobody waits; once at a time.
    pub(super) fn revalidate(self: &Rc<Self>, asked: &Asked, finding: &Finding<D::Buf>) {
        let now = self.now();
        let key = flight_key(asked, finding);
        if self.shared.spared.failure(&asked.key, now).is_some() {
            return;
        }
        if let (rider, Some(pilot)) = self.shared.flights.board(key, now) {
            rider.leave();
            let job = self.job(asked, finding);
            let (tell, told) = oneshot::channel();
            let proxy = Rc::clone(self);
            tokio::task::spawn_local(async move {
                let key = job.key;
                Rc::clone(&proxy).fly(job, pilot, tell).await;
                let failure = match told.await {
                    Ok(Led::Failed(_)) => Failure::Unreachable,
                    Ok(Led::Alone(checked, _)) if checked.response.status().is_server_error() => {
                        Failure::Answered(checked.response.status())
                    }
                    _ => return,
                };
                proxy.shared.spared.set(&key, failure, proxy.now() + SPARED_SECS);
            });
        }
    }

    fn job(&self, asked: &Asked, finding: &Finding<D::Buf>) -> Job<D> {
        let mut fields = asked.fields.clone();
        let stale = finding.stored.as_ref().map(Stored::detached);
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
        // Whoever waits holds no memory.
        drop(finding);
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
                let failure = Failure::Answered(checked.response.status());
                match self.answer_stale(asked, failure, cache).await {
                    Ok(answer) => return answer,
                    Err(again) => asked = again,
                }
                counters.misses.add(1);
                cache.detail = Some(detail);
                return self.respond(asked, checked.reply(cache));
            }
            Ok(Led::Failed(error)) => error,
            Err(_) => OriginError::Broken,
        };
        self.fail(asked, cache, failure).await
    }

    /// The origin could not be asked: what is stale may do.
    async fn fail(self: &Rc<Self>, asked: Asked, cache: CacheStatus, error: OriginError) -> Respond<D> {
        match self.answer_stale(asked, Failure::Unreachable, cache).await {
            Ok(answer) => answer,
            Err(asked) => self.respond(asked, Self::failure(error, cache)),
        }
    }

    /// Answers after a failure from what is stored, if that may be; else the request comes back.
    async fn answer_stale(
        self: &Rc<Self>,
        asked: Asked,
        failure: Failure,
        mut cache: CacheStatus,
    ) -> Result<Respond<D>, Asked> {
        if let Failure::Answered(status) = failure {
            if !status.is_server_error() {
                return Err(asked);
            }
            cache.forward_status = Some(status.as_u16());
        }
        match self.find(&asked, None).await.stored {
            Some(stale) if self.may_serve_stale(failure, &asked, &stale) => {
                self.answer_from(asked, stale, cache).await
            }
            _ => Err(asked),
        }
    }

    /// Whether what is stored is the answer after a failure; the origin is then left alone for a while.
    fn may_serve_stale(&self, failure: Failure, asked: &Asked, stale: &Stored<D::Buf>) -> bool {
        let now = self.now();
        let head = stale.head(&asked.target);
        let may = head.is_some_and(|head| serves_after(failure, &asked.fields, &head, now));
        if may {
            self.shared.spared.set(&asked.key, failure, now + SPARED_SECS);
            self.stats().counters.hits_stale.add(1);
        }
        may
    }

    /// Waits for what another request brings.
    async fn ride(self: &Rc<Self>, mut asked: Asked, mut cache: CacheStatus, rider: Rider) -> Respond<D> {
        let stage = rider.stage().await;
        let now = self.now();
        cache.collapsed = Some(true);
        match stage {
            Stage::Coming(coming) if coming.fits(&asked.target, &asked.method, &asked.fields, now) => {
                self.stats().counters.collapsed.add(1);
                let reply = self.reply_coming(&asked, coming, None, rider, cache);
                return self.respond(asked, reply);
            }
            Stage::Coming(coming)
                if !coming.is_variant_of(&asked.target, &asked.fields)
                    || !serves_plainly(&coming.head(), now) =>
            {
                self.shared.flights.part_ways(&rider, now);
            }
            Stage::Freshened => {
                let finding = self.find(&asked, None).await;
                let serves = self.serves(&asked, &finding);
                let head = finding
                    .stored
                    .as_ref()
                    .and_then(|stored| stored.head(&asked.target));
                if head.is_some_and(|head| !serves_plainly(&head, now)) {
                    self.shared.flights.part_ways(&rider, now);
                }
                if let Some(stored) = finding.stored.filter(|_| serves) {
                    self.stats().counters.collapsed.add(1);
                    match self.answer_from(asked, stored, cache).await {
                        Ok(answer) => return answer,
                        Err(again) => asked = again,
                    }
                }
            }
            Stage::Failed(error) => {
                self.stats().counters.collapsed.add(1);
                return self.fail(asked, cache, error).await;
            }
            Stage::Answered(status) => {
                match self.answer_stale(asked, Failure::Answered(status), cache).await {
                    Ok(answer) => {
                        self.stats().counters.collapsed.add(1);
                        return answer;
                    }
                    Err(again) => asked = again,
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
        own: Option<Own>,
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
            false => {
                // The next client may want the body.
                rider.leave();
                From::Nothing
            }
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
        tail: Option<oneshot::Receiver<Tail>>,
    ) -> Chunks<D::Buf> {
        let follower = coming.follow.reader(&self.cache, &self.cx, 0);
        let left = coming.body_bytes;
        let state = (Rc::clone(self), follower, rider);
        let stored = stream::try_unfold(
            state,
            move |(proxy, mut follower, rider): (Rc<Self>, Follower<D>, Rider)| async move {
                // Whoever waits for the origin holds no share.
                follower.ready().await;
                let left = left.or_else(|| follower.left()).unwrap_or(u64::MAX);
                let share = proxy.share(left, follower.next_bytes()).await;
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
}
