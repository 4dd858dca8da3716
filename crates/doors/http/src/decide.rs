//! What is done with a request, by what is stored for it (RFC 9111, 4).

use crate::conditional::{fulfils, has_validator, is_for_origin};
use crate::directives::Directives;
use crate::freshness::Freshness;
use crate::head::Head;
use crate::status::Forward;
use http::header::{CACHE_CONTROL, HeaderMap, PRAGMA, RANGE};
use http::{Method, StatusCode};

/// How long after it became stale a response is used where the origin cannot be reached and nobody says how long: a day.
pub const UNREACHABLE_SECS: i64 = 24 * 3600;

/// What is stored for a request.
#[derive(Clone, Copy, Debug)]
pub enum Found<'a> {
    /// This response: the keys are those of the request.
    Response(&'a Head<'a>),
    /// Variants of the URL, none for this request.
    Variants,
    /// Nothing.
    Nothing,
}

/// What is done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The stored response is the answer.
    Serve {
        /// For how much longer it is fresh; 0 or less where it is stale.
        ttl_secs: i64,
        /// Whether it is validated meanwhile, by one request for all clients.
        revalidates: bool,
    },
    /// The stored response is validated at the origin first.
    Validate(Forward),
    /// The whole response is fetched, to be stored if it may.
    Fetch(Forward),
    /// The request goes to the origin as it is; the answer is not stored.
    Pass(Forward),
    /// 504: the client wants nothing from the origin, and nothing is stored that it takes.
    GatewayTimeout,
}

/// What to do with a request whose fields are cleaned.
pub fn decide(method: &Method, request: &HeaderMap, found: Found<'_>, now_secs: i64) -> Decision {
    if *method != Method::GET && *method != Method::HEAD {
        return Decision::Pass(Forward::Method);
    }
    let wishes = wishes(request);
    let pass = |reason| match wishes.only_if_cached {
        true => Decision::GatewayTimeout,
        false => Decision::Pass(reason),
    };
    // The request may become one that fetches or validates what is stored.
    let may_change = !wishes.only_if_cached && !is_for_origin(request);
    let reason = match found {
        Found::Response(head) => match judge(&head.freshness, &wishes, now_secs) {
            _ if !fulfils(request, head) => return pass(Forward::Request),
            Ok(decision) => return decision,
            Err(reason) if may_change && has_validator(head) => return Decision::Validate(reason),
            Err(reason) => reason,
        },
        Found::Variants => Forward::VaryMiss,
        Found::Nothing => Forward::UriMiss,
    };
    match may_change && *method == Method::GET && !request.contains_key(RANGE) {
        true => Decision::Fetch(reason),
        false => pass(reason),
    }
}

/// How the origin failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection, or none that lasted until a whole head had come.
    Unreachable,
    /// It answered with this status.
    Answered(StatusCode),
}

/// Whether a stored response is the answer where the origin failed (RFC 9111, 4.2.4; 5861, 4). Where not, an error is.
pub fn serves_after(failure: Failure, request: &HeaderMap, head: &Head<'_>, now_secs: i64) -> bool {
    let fresh = &head.freshness;
    let wishes = wishes(request);
    if let Failure::Answered(status) = failure
        && !matches!(status.as_u16(), 500 | 502 | 503 | 504)
    {
        return false;
    }
    if fresh.is_always_validated || wishes.no_cache.is_whole() || !fulfils(request, head) {
        return false;
    }
    let stale_secs = -fresh.ttl_secs(now_secs);
    if stale_secs < 0 {
        return true;
    }
    let told = fresh.if_error_secs.max(wishes.stale_if_error).map(i64::from);
    let unsaid = (failure == Failure::Unreachable).then_some(UNREACHABLE_SECS);
    !fresh.is_never_stale && told.or(unsaid).is_some_and(|most| stale_secs < most)
}

/// The directives of a request; most have none.
fn wishes(request: &HeaderMap) -> Directives {
    match request.contains_key(CACHE_CONTROL) || request.contains_key(PRAGMA) {
        true => Directives::of_request(request),
        false => Directives::default(),
    }
}

/// Whether a stored response may be used without validation, or why not.
fn judge(fresh: &Freshness, wishes: &Directives, now_secs: i64) -> Result<Decision, Forward> {
    let ttl_secs = fresh.ttl_secs(now_secs);
    if fresh.is_always_validated {
        return Err(Forward::Stale);
    }
    if wishes.no_cache.is_whole() {
        return Err(Forward::Request);
    }
    // A fresh response that is immutable is not made anew by reloading (RFC 8246).
    if !(fresh.is_immutable && ttl_secs > 0) {
        let is_too_old = wishes
            .max_age
            .is_some_and(|most| fresh.age_secs(now_secs) >= most);
        let is_too_stale = wishes.min_fresh.is_some_and(|least| ttl_secs < i64::from(least));
        if is_too_old || is_too_stale {
            return Err(Forward::Request);
        }
    }
    let serve = |revalidates| {
        Ok(Decision::Serve {
            ttl_secs,
            revalidates,
        })
    };
    let is_within = |most: u32| most == u32::MAX || -ttl_secs < i64::from(most);
    match () {
        () if ttl_secs > 0 => serve(false),
        () if fresh.is_never_stale => Err(Forward::Stale),
        () if is_within(fresh.while_revalidate_secs) => serve(true),
        () if wishes.max_stale.is_some_and(is_within) => serve(false),
        () => Err(Forward::Stale),
    }
}
