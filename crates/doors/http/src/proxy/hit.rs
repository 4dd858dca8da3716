//! Answers from what is stored.

use super::find::{Stored, head_of};
use super::{Asked, Proxy, Reply, Respond};
use crate::conditional::{is_in_304, is_not_modified};
use crate::decide::{Decision, Found, decide};
use crate::head::Head;
use crate::range::{Part, part};
use crate::server::body::{Chunk, Chunks, From, Holds, Pin};
use crate::status::CacheStatus;
use futures_util::{StreamExt, stream};
use http::header::{ACCEPT_RANGES, AGE, CONTENT_LENGTH, CONTENT_RANGE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use pumice::{Object, ObjectReader, Pieces, Tier};
use pumice_device::Device;
use pumice_net::{SMALL_BYTES, Share};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// How much of a stored response is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    NotModified,
    Part(Part),
}

impl Sending {
    pub(super) fn of(asked: &Asked, head: &Head<'_>) -> Self {
        match () {
            () if is_not_modified(&asked.fields, head) => Self::NotModified,
            () if asked.method == Method::GET => Self::Part(part(&asked.fields, head)),
            () => Self::Part(Part::Whole),
        }
    }

    /// The bytes of the body that are sent to a GET.
    fn range(self, head: &Head<'_>) -> Range<u64> {
        match self {
            Self::Part(Part::Whole) => 0..head.body_bytes,
            Self::Part(Part::Range { first, last }) => first..last + 1,
            Self::Part(Part::None) | Self::NotModified => 0..0,
        }
    }
}

/// Status and fields of an answer from a stored response; a body of unknown length has the largest.
pub(super) fn head_of_answer(head: &Head<'_>, sending: Sending, now_secs: i64) -> (StatusCode, HeaderMap) {
    let mut fields = HeaderMap::with_capacity(16);
    for (name, value) in head.fields() {
        if sending == Sending::NotModified && !is_in_304(name, head) {
            continue;
        }
        if let (Ok(name), Ok(value)) = (HeaderName::from_lowercase(name), HeaderValue::from_bytes(value)) {
            fields.append(name, value);
        }
    }
    fields.insert(AGE, HeaderValue::from(head.freshness.age_secs(now_secs)));
    let bytes = head.body_bytes;
    let mut range = |text: String| {
        let value = HeaderValue::from_str(&text).expect("numbers");
        fields.insert(CONTENT_RANGE, value);
    };
    let (status, length) = match sending {
        Sending::NotModified => (StatusCode::NOT_MODIFIED, None),
        Sending::Part(Part::Whole) => {
            let has_length = bytes != u64::MAX && head.status != StatusCode::NO_CONTENT;
            (head.status, has_length.then_some(bytes))
        }
        Sending::Part(Part::Range { first, last }) => {
            range(format!("bytes {first}-{last}/{bytes}"));
            (StatusCode::PARTIAL_CONTENT, Some(last + 1 - first))
        }
        Sending::Part(Part::None) => {
            range(format!("bytes */{bytes}"));
            (StatusCode::RANGE_NOT_SATISFIABLE, Some(0))
        }
    };
    if let Some(length) = length {
        fields.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    if head.status == StatusCode::OK && !fields.contains_key(ACCEPT_RANGES) {
        fields.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    }
    (status, fields)
}

fn tier_name(tier: Tier) -> &'static str {
    match tier {
        Tier::Dram => "dram",
        Tier::Flash => "flash",
    }
}

/// What came of trying to answer at once.
pub(super) enum Tried<D: Device + Clone> {
    Answer(Respond<D>),
    /// It takes longer.
    Later(Asked, Option<Object<D::Buf>>),
}

impl<D: Device + Clone> Proxy<D> {
    /// Answers from a response that is at hand as a whole and may be used as it is. The request's fields may be as they came: nothing that
    /// cleaning changes is looked at, as long as the response is no variant.
    pub(super) fn answer_now(self: &Rc<Self>, asked: Asked, mut object: Object<D::Buf>) -> Tried<D> {
        if object.is_large() || object.pins_block() {
            return Tried::Later(asked, Some(object));
        }
        let now = self.now();
        let answer = head_of(&object, &asked.target, None).and_then(|head| {
            let sending = Sending::of(&asked, &head);
            let decision = decide(&asked.method, &asked.fields, Found::Response(&head), now);
            match (decision, sending) {
                (_, Sending::Part(Part::Range { .. } | Part::None)) => None,
                (
                    Decision::Serve {
                        ttl_secs,
                        revalidates: false,
                    },
                    sending,
                ) => Some((sending, ttl_secs, head_of_answer(&head, sending, now))),
                _ => None,
            }
        });
        let (Some((sending, ttl_secs, (status, fields))), Some(pin)) = (answer, Pin::take(&self.pins)) else {
            return Tried::Later(asked, Some(object));
        };
        let tier = object.tier();
        let has_body = sending != Sending::NotModified && asked.method == Method::GET;
        let bytes = if has_body { object.value_len() as u64 } else { 0 };
        let from = match bytes {
            0 => From::Nothing,
            _ => From::Once(Chunk::pieces(
                object.take_value(),
                Holds {
                    _pin: Some(pin),
                    _share: None,
                },
            )),
        };
        self.count_hit(tier, ttl_secs <= 0);
        Tried::Answer(self.respond(
            asked,
            Reply {
                status,
                fields,
                from,
                left: Some(bytes),
                cache: Some(CacheStatus {
                    ttl_secs: Some(ttl_secs),
                    detail: Some(tier_name(tier)),
                    ..CacheStatus::default()
                }),
            },
        ))
    }

    /// Answers from a stored response. Where its body is not there any more the request comes back.
    pub(super) async fn answer_from(
        self: &Rc<Self>,
        asked: Asked,
        mut stored: Stored<D::Buf>,
        cache: CacheStatus,
    ) -> Result<Respond<D>, Asked> {
        let now = self.now();
        let Some(head) = stored.head(&asked.target) else {
            return Err(asked);
        };
        let sending = Sending::of(&asked, &head);
        let (status, fields) = head_of_answer(&head, sending, now);
        let ttl_secs = head.freshness.ttl_secs(now);
        let range = match asked.method == Method::GET {
            true => sending.range(&head),
            false => 0..0,
        };
        if stored.object.pins_block() {
            stored.object.detach();
        }
        let mut reader = self.cache.reader(&self.cx, stored.object.key(), &stored.object);
        if !reader.is_whole() {
            return Err(asked);
        }
        reader.range(range);
        let left = reader.left();
        let mut share = stored.share.take();
        if stored.object.is_large() {
            // Whoever waits for a share holds none.
            share = None;
        }
        drop(stored);
        let (mut from, mut tier) = (From::Nothing, reader.tier());
        if left > 0 {
            if share.is_none() {
                share = Some(self.share(left, reader.next_bytes()).await);
            }
            let Ok(Some(first)) = reader.read().await else {
                return Err(asked);
            };
            tier = reader.tier();
            let first = self.chunk(first, tier, share);
            from = match reader.left() {
                0 => From::Once(first),
                _ => From::Parts(self.parts(first, reader)),
            };
        }
        let mut cache = CacheStatus {
            ttl_secs: Some(ttl_secs),
            ..cache
        };
        if cache.forward.is_none() {
            cache.detail = Some(tier_name(tier));
            self.count_hit(tier, ttl_secs <= 0);
        }
        Ok(self.respond(
            asked,
            Reply {
                status,
                fields,
                from,
                left: Some(left),
                cache: Some(cache),
            },
        ))
    }

    fn count_hit(&self, tier: Tier, is_stale: bool) {
        let counters = &self.stats().counters;
        match tier {
            Tier::Dram => counters.hits_dram.add(1),
            Tier::Flash => counters.hits_flash.add(1),
        }
        if is_stale {
            counters.hits_stale.add(1);
        }
    }

    /// A piece to send. Of those from DRAM few are sent from where they are; the others are copied.
    fn chunk(&self, mut pieces: Pieces<D::Buf>, tier: Tier, share: Option<Share>) -> Chunk<D::Buf> {
        let mut pin = None;
        if tier == Tier::Dram {
            pin = Pin::take(&self.pins);
            if pin.is_none() {
                pieces.detach();
            }
        }
        Chunk::pieces(
            pieces,
            Holds {
                _pin: pin,
                _share: share,
            },
        )
    }

    /// A share of the budget for a piece of a body of which so much is to be sent. Pieces of long ones, of which there may be many at once,
    /// have the large lane, whatever they have themselves: a short body waits for none of them.
    pub(super) async fn share(&self, left: u64, bytes: usize) -> Share {
        let output = &self.shared.budgets.output;
        match left <= SMALL_BYTES as u64 {
            true => output.take(bytes).await,
            false => Arc::clone(&output.large).take(bytes, true).await,
        }
    }

    /// The rest of a body, piece by piece, each read when the one before is on its way.
    fn parts(self: &Rc<Self>, first: Chunk<D::Buf>, reader: ObjectReader<D>) -> Chunks<D::Buf> {
        let state = (Rc::clone(self), reader);
        let rest = stream::try_unfold(state, async |(proxy, mut reader)| {
            if reader.left() == 0 {
                return Ok(None);
            }
            let share = proxy.share(u64::MAX, reader.next_bytes()).await;
            let Some(pieces) = reader.read().await? else {
                return Ok(None);
            };
            let chunk = proxy.chunk(pieces, reader.tier(), Some(share));
            Ok(Some((chunk, (proxy, reader))))
        });
        Box::pin(stream::iter([Ok(first)]).chain(rest))
    }
}
