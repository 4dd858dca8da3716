//! The task that asks the origin, and stores its answer if it may be: it goes on where its client leaves and others wait.

use super::Proxy;
use super::collapse::{Coming, Pilot, Stage};
use super::find::Stored;
use super::pass::Checked;
use crate::conditional::ask_whole;
use crate::freshness::Times;
use crate::head::{Head, NewHead};
use crate::key::{EngineKey, Target};
use crate::origin::{OriginBody, OriginError, RequestBody};
use crate::server::body::{Chunk, Cut};
use crate::server::random;
use crate::store::{Exchange, may_store};
use crate::vary::{Variants, variant_key};
use bytes::Bytes;
use futures_util::{Stream, stream};
use http::{HeaderMap, HeaderName, Method, StatusCode};
use http_body_util::BodyExt;
use pumice::{Action, Meta, NewObject, ObjectWriter, Outcome};
use pumice_device::Device;
use pumice_net::Share;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The longest body, of those of known length, that has come as a whole before its head is sent on: where it does not, there is a 502.
const WHOLE_FIRST_BYTES_MAX: u64 = 64 << 10;

/// What a writer is thought to hold at first of a body whose length is not known.
const FIRST_BYTES: usize = 16 << 10;

/// How long a response waits for memory to be stored by; then it is passed on.
const MEMORY_PATIENCE: Duration = Duration::from_secs(3);

/// The longest response that is stored while the flash device is out: longer ones would fall out of DRAM before they have come.
const DRAM_ALONE_BYTES_MAX: u64 = 256 << 10;

/// What the one that asked hears of its flight.
pub(super) enum Led {
    /// The answer is stored while it comes.
    Coming(Arc<Coming>, Own),
    /// What is stored is good still.
    Freshened,
    /// The answer is not stored, and why.
    Alone(Box<Checked>, &'static str),
    /// There is none.
    Failed(OriginError),
}

/// What is for the one that asked alone: all fields that the origin sent, and what is behind the bytes that are stored.
pub(super) struct Own {
    pub(super) status: StatusCode,
    pub(super) fields: HeaderMap,
    pub(super) tail: oneshot::Receiver<Tail>,
}

/// The rest of a body that cannot be stored.
pub(super) struct Tail {
    next: Bytes,
    body: OriginBody,
}

/// A response on its way to those who wait for it.
struct Landing {
    coming: Arc<Coming>,
    /// Who asked, until he has heard.
    tell: Option<(oneshot::Sender<Led>, Own)>,
    pilot: Pilot,
}

impl Landing {
    /// Says that it comes, once.
    fn announce(&mut self, now_secs: i64) {
        if self.tell.is_some() {
            self.pilot.say(Stage::Coming(Arc::clone(&self.coming)), now_secs);
            self.tell();
        }
    }

    /// Tells the one that asked, once.
    fn tell(&mut self) {
        if let Some((tell, own)) = self.tell.take() {
            let _ = tell.send(Led::Coming(Arc::clone(&self.coming), own));
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
    pub(super) voids: u64,
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
    /// Of what the writer holds.
    share: Option<Share>,
}

impl<D: Device + Clone> Proxy<D> {
    /// Asks the origin, and stores its answer if it may be.
    pub(super) async fn fly(self: Rc<Self>, mut job: Job<D>, pilot: Pilot, tell: oneshot::Sender<Led>) {
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
        // Most bodies whose length is not known are short.
        let bytes = match checked.body_bytes {
            Some(_) => self.cache.writer_bytes(&key, checked.body_bytes),
            None => FIRST_BYTES,
        };
        let share = timeout(MEMORY_PATIENCE, self.shared.budgets.input.take(bytes));
        let share = share.await.map_err(|_| "memory")?;
        let new = NewObject {
            len: checked.body_bytes,
            head: &head,
            ..NewObject::default()
        };
        let writer = self.cache.begin(&self.cx, &key, new).map_err(|_| "too-large")?;
        let follow = writer.follow();
        let whole = (head, checked.body_bytes);
        let coming = Coming::new(&job.target, &job.fields, storing.vary, whole, follow);
        let storage = Storage {
            writer,
            key,
            list,
            share: Some(share),
        };
        Ok((storage, coming))
    }

    /// Stores a body as it comes, and makes the response visible when it is whole.
    async fn store(
        &self,
        job: &Job<D>,
        mut storage: Storage<D>,
        (mut body, body_bytes, to_tail): (OriginBody, Option<u64>, oneshot::Sender<Tail>),
        mut landing: Landing,
    ) {
        let counters = &self.stats().counters;
        if body_bytes.is_none_or(|bytes| bytes > WHOLE_FIRST_BYTES_MAX) {
            landing.announce(self.now());
        }
        let come = {
            let mut abandoned = pin!(landing.pilot.abandoned());
            loop {
                let is_half = body_bytes.is_some_and(|bytes| storage.writer.appended() >= bytes / 2);
                let frame = tokio::select! {
                    biased;
                    frame = body.frame() => frame,
                    () = &mut abandoned, if !is_half => return,
                };
                match frame {
                    None => break Ok(None),
                    Some(Err(error)) => break Err(error),
                    Some(Ok(frame)) => {
                        let Ok(bytes) = frame.into_data() else { continue };
                        if let Some(rest) = self.keep(&mut storage, bytes, body_bytes).await {
                            break Ok(Some(rest));
                        }
                    }
                }
            }
        };
        match come {
            Ok(None) => {}
            Ok(Some(next)) => {
                // Who asked for it gets the rest; the others ask for themselves.
                landing.coming.cut();
                storage.writer.end_following();
                landing.tell();
                landing.pilot.say(Stage::Alone, self.now());
                drop(to_tail.send(Tail { next, body }));
                // What came before is there as long as the writer is.
                return landing.pilot.landed().await;
            }
            Err(error) => {
                counters.origin_error(error);
                return landing.fail(error, self.now());
            }
        }
        landing.announce(self.now());
        drop(to_tail);
        let is_void = || self.shared.voids.count(&job.key) != job.voids;
        if is_void() {
            storage.writer.end_following();
            return landing.pilot.landed().await;
        }
        let bytes = storage.writer.appended();
        // Of two flights of one key the older may end last.
        let (dated_secs, now) = (landing.coming.head().dated_secs, self.now());
        let mut is_outdated = false;
        let stored = storage.writer.finish_if(|seen| {
            let seen = seen.and_then(|seen| Head::decode(seen.head(), seen.value_len() as u64));
            is_outdated = seen.is_some_and(|seen| (dated_secs + 1..=now).contains(&seen.dated_secs));
            (!is_outdated && !is_void()).then(Meta::default)
        });
        let mut is_stored = matches!(stored.await, Outcome::Stored { .. });
        if is_stored && let Some((list, names)) = &storage.list {
            is_stored = self.list(job, list, names).await;
        }
        if is_stored && !is_void() {
            counters.stored.add(1);
            counters.stored_bytes.add(bytes);
            return;
        }
        if !is_outdated {
            // Nothing that is not named, or not good any more, stays.
            self.cache.delete(&self.cx, &storage.key).await;
        }
        landing.pilot.landed().await;
    }

    /// Appends a part of a body; comes back with what is left of it if no more can be stored.
    async fn keep(&self, storage: &mut Storage<D>, bytes: Bytes, body_bytes: Option<u64>) -> Option<Bytes> {
        let before = storage.writer.appended();
        let come = before + bytes.len() as u64;
        let fits = come <= self.shared.config.object_bytes_max
            && (body_bytes.is_some() || self.hold(storage, come).await);
        if fits && storage.writer.append(&bytes).await.is_ok() {
            return None;
        }
        let kept = storage.writer.appended() - before;
        Some(bytes.slice(kept as usize..))
    }

    /// Takes a larger share for a writer whose value has grown to so many bytes, as it doubles its buffer; whether there is one.
    async fn hold(&self, storage: &mut Storage<D>, come: u64) -> bool {
        let most = self.cache.writer_bytes(&storage.key, None);
        let held = storage.share.as_ref().map_or(0, Share::bytes);
        if held < most && come > held as u64 {
            // Whoever waits for a share holds none.
            storage.share = None;
            let more = (2 * held).max(usize::try_from(come).unwrap_or(most)).min(most);
            let share = timeout(MEMORY_PATIENCE, self.shared.budgets.input.take_more(more));
            storage.share = share.await.ok();
        }
        storage.share.is_some()
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
pub(super) fn rest_of<B>(tail: Option<Tail>) -> impl Stream<Item = Result<Chunk<B>, Cut>> {
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
