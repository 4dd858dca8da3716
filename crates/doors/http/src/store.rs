//! Whether a response may be stored (RFC 9111, 3).

use crate::directives::Directives;
use crate::freshness::{Basis, Freshness, Times, freshness, may_be_guessed};
use crate::rules::{Override, Rule};
use crate::vary::{NAMES_MAX, selecting_names};
use http::header::{AUTHORIZATION, ETAG, HeaderMap, HeaderName, LAST_MODIFIED, SET_COOKIE};
use http::{Method, StatusCode};

/// A request as the origin got it, and the head of the answer.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "each is what its type says")]
pub struct Exchange<'a> {
    pub method: &'a Method,
    pub request: &'a HeaderMap,
    pub status: StatusCode,
    pub response: &'a HeaderMap,
    pub times: Times,
    /// Length of the body, where the head tells it.
    pub body_bytes: Option<u64>,
}

/// How a response is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storing {
    /// How long it may be used.
    pub freshness: Freshness,
    /// Fields that are not stored, as `private` or `no-cache` names them or a rule passes over them.
    pub left_out: Vec<HeaderName>,
    /// Fields of the request that the response varies on, in order, none twice.
    pub vary: Vec<HeaderName>,
}

/// Why a response is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStored {
    /// Only answers to GET are.
    Method,
    /// The status: partial, not final, or an error that an odd request may have provoked without freshness of its own.
    Status,
    /// The origin, or the client, says `no-store`.
    NoStore,
    /// `private`.
    Private,
    /// The request had `Authorization`, and the origin does not allow it.
    Authorization,
    /// `Set-Cookie`, and the origin does not allow it.
    SetCookie,
    /// `Vary: *`, more than [`NAMES_MAX`] names, or names that are none.
    Vary,
    /// `must-understand` with a status that is not understood.
    MustUnderstand,
    /// It has more bytes than an object may have.
    TooLarge,
    /// It may be used at no time, and cannot be validated.
    NoFreshness,
}

impl NotStored {
    /// For `detail` of `Cache-Status`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Method => "method",
            Self::Status => "status",
            Self::NoStore => "no-store",
            Self::Private => "private",
            Self::Authorization => "authorization",
            Self::SetCookie => "set-cookie",
            Self::Vary => "vary",
            Self::MustUnderstand => "must-understand",
            Self::TooLarge => "too-large",
            Self::NoFreshness => "no-freshness",
        }
    }
}

/// Whether the answer to a request may be stored, and how.
///
/// # Errors
///
/// Why not, the first reason that holds.
pub fn may_store(exchange: &Exchange<'_>, rule: &Rule, object_bytes_max: u64) -> Result<Storing, NotStored> {
    let Exchange {
        request,
        response,
        status,
        ..
    } = *exchange;
    if *exchange.method != Method::GET {
        return Err(NotStored::Method);
    }
    // A partial response and a 304 are parts of others.
    if status.as_u16() < 200 || matches!(status.as_u16(), 206 | 304) {
        return Err(NotStored::Status);
    }
    if Directives::of_request(request).no_store {
        return Err(NotStored::NoStore);
    }
    let mut directives = Directives::of_response(response);
    rule.apply(&mut directives);
    if directives.must_understand && !is_understood(status) {
        return Err(NotStored::MustUnderstand);
    }
    if directives.no_store && !directives.must_understand {
        return Err(NotStored::NoStore);
    }
    if directives.private.is_whole() {
        return Err(NotStored::Private);
    }
    let is_for_all = directives.public || directives.s_maxage.is_some();
    if request.contains_key(AUTHORIZATION) && !is_for_all && !directives.must_revalidate {
        return Err(NotStored::Authorization);
    }
    let mut left_out = [directives.private.fields(), directives.no_cache.fields()].concat();
    if rule.overrides(Override::SetCookie) {
        left_out.push(SET_COOKIE);
    }
    if response.contains_key(SET_COOKIE)
        && !is_for_all
        && !directives.is_targeted
        && !left_out.contains(&SET_COOKIE)
    {
        return Err(NotStored::SetCookie);
    }
    let vary = selecting_names(response, &rule.key_fields).ok_or(NotStored::Vary)?;
    debug_assert!(vary.len() <= NAMES_MAX);
    if exchange.body_bytes.is_some_and(|bytes| bytes > object_bytes_max) {
        return Err(NotStored::TooLarge);
    }
    let (freshness, basis) = freshness(status, response, &directives, rule, exchange.times);
    let is_explicit = basis == Basis::Explicit;
    if !is_explicit && (is_odd_request(status) || !may_be_guessed(status) && !directives.public) {
        return Err(NotStored::Status);
    }
    let has_validator = [ETAG, LAST_MODIFIED]
        .iter()
        .any(|name| response.contains_key(name) && !left_out.contains(name));
    if !is_useful(&freshness) && !has_validator {
        return Err(NotStored::NoFreshness);
    }
    Ok(Storing {
        freshness,
        left_out,
        vary,
    })
}

/// Whether a response may be used at some time without being validated.
fn is_useful(freshness: &Freshness) -> bool {
    let is_useful_stale =
        freshness.while_revalidate_secs > 0 || freshness.if_error_secs.is_some_and(|secs| secs > 0);
    !freshness.is_always_validated
        && (freshness.lifetime_secs > 0 || is_useful_stale && !freshness.is_never_stale)
}

/// Errors that a request which is odd in some field may provoke for a URL that is well: one client could take a page from all.
pub fn is_odd_request(status: StatusCode) -> bool {
    matches!(status.as_u16(), 400 | 405 | 413 | 414 | 431 | 501)
}

/// Statuses whose meaning for a cache is known, for `must-understand`.
fn is_understood(status: StatusCode) -> bool {
    matches!(status.as_u16(), 200..=205 | 300..=303 | 307 | 308 | 400..=417 | 421 | 422 | 426 | 431 | 451 | 500..=505)
}
