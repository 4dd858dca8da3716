//! How old a response is, how long it is fresh, and what may be done with it afterwards (RFC 9111, 4.2; 5861; 8246).

use crate::directives::Directives;
use crate::rules::{Override, Rule};
use crate::syntax::{SECS_MAX, date, secs, single};
use http::StatusCode;
use http::header::{AGE, DATE, EXPIRES, HeaderMap, LAST_MODIFIED};

/// The longest lifetime that is guessed from `Last-Modified`: a day.
pub const HEURISTIC_SECS_MAX: u32 = 24 * 3600;

/// When a request left for the origin, and when the head of its answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Seconds since 1970.
    pub requested_secs: i64,
    /// Seconds since 1970.
    pub received_secs: i64,
}

/// What says how long a response may be used. A stored head carries these, so that a hit computes with numbers alone.
///
/// As all times are cut off to seconds, an age below a bound is one in truth, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freshness {
    /// When the response's age was 0, in seconds since 1970.
    pub born_secs: i64,
    /// It is fresh while its age is less.
    pub lifetime_secs: u32,
    /// How long after that it may be used while it is validated.
    pub while_revalidate_secs: u32,
    /// How long after that it may be used where the origin fails; `None` where nobody says.
    pub if_error_secs: Option<u32>,
    /// No use without validation, fresh or not: `no-cache`.
    pub is_always_validated: bool,
    /// No use once it is stale, whatever else allows it: `must-revalidate`, `proxy-revalidate`, `s-maxage`.
    pub is_never_stale: bool,
    /// Its body does not change while it is fresh: `immutable`.
    pub is_immutable: bool,
}

impl Freshness {
    /// The age at a time, for the field `Age`.
    pub fn age_secs(&self, now_secs: i64) -> u32 {
        let age = now_secs.saturating_sub(self.born_secs);
        u32::try_from(age.max(0)).map_or(SECS_MAX, |age| age.min(SECS_MAX))
    }

    /// For how much longer it is fresh; 0 or less where it is stale.
    pub fn ttl_secs(&self, now_secs: i64) -> i64 {
        i64::from(self.lifetime_secs) - i64::from(self.age_secs(now_secs))
    }
}

/// Where a lifetime comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The origin says it.
    Explicit,
    /// A rule for the path.
    Rule,
    /// A tenth of the time since it was modified.
    Heuristic,
    /// Nobody knows one: it is 0.
    Nothing,
}

/// The freshness of a response whose directives are those without what the rule passes over.
pub fn freshness(
    status: StatusCode,
    fields: &HeaderMap,
    directives: &Directives,
    rule: &Rule,
    times: Times,
) -> (Freshness, Basis) {
    let received = times.received_secs;
    let dated = fields
        .get(DATE)
        .and_then(|text| date(text.as_bytes()))
        .unwrap_or(received);
    let (lifetime, basis) = lifetime(status, fields, directives, rule, dated);
    let is_never_stale = directives.must_revalidate
        || directives.proxy_revalidate
        || directives.s_maxage.is_some() && !rule.overrides(Override::ProxyRevalidate);
    let fresh = Freshness {
        born_secs: received.saturating_sub(initial_age(fields, dated, times)),
        lifetime_secs: lifetime,
        while_revalidate_secs: directives
            .stale_while_revalidate
            .or(rule.stale_while_revalidate_secs)
            .unwrap_or(0),
        if_error_secs: directives.stale_if_error.or(rule.stale_if_error_secs),
        is_always_validated: directives.no_cache.is_whole(),
        is_never_stale,
        is_immutable: directives.immutable,
    };
    (fresh, basis)
}

/// The age when the response came (RFC 9111, 4.2.3). Several ages, and one that cannot be read, are the largest: 5.1 would have them passed
/// over, or the first taken, and what is stale could be taken for fresh.
fn initial_age(fields: &HeaderMap, dated: i64, times: Times) -> i64 {
    let apparent = times.received_secs.saturating_sub(dated).max(0);
    let told = match fields.contains_key(AGE) {
        true => single(fields, AGE).and_then(secs).unwrap_or(SECS_MAX),
        false => 0,
    };
    let delay = times.received_secs.saturating_sub(times.requested_secs).max(0);
    apparent.max(delay.saturating_add(i64::from(told)))
}

fn lifetime(
    status: StatusCode,
    fields: &HeaderMap,
    directives: &Directives,
    rule: &Rule,
    dated: i64,
) -> (u32, Basis) {
    let at_most = |secs: i64| u32::try_from(secs.max(0)).map_or(SECS_MAX, |secs| secs.min(SECS_MAX));
    if let Some(secs) = directives.s_maxage.or(directives.max_age) {
        return (secs, Basis::Explicit);
    }
    if fields.contains_key(EXPIRES) && !directives.is_targeted && !rule.overrides(Override::Expires) {
        // A date that cannot be read is one in the past (RFC 9111, 5.3); of several the first to come counts.
        let expires = |text: &http::HeaderValue| date(text.as_bytes()).unwrap_or(0);
        let first = fields.get_all(EXPIRES).iter().map(expires).min().unwrap_or(0);
        return (at_most(first.saturating_sub(dated)), Basis::Explicit);
    }
    if !may_be_guessed(status) && !directives.public {
        return (0, Basis::Nothing);
    }
    if let Some(secs) = rule.fresh_secs.filter(|_| may_be_guessed(status)) {
        return (secs.min(SECS_MAX), Basis::Rule);
    }
    match fields.get(LAST_MODIFIED).and_then(|text| date(text.as_bytes())) {
        None => (0, Basis::Nothing),
        Some(modified) => {
            let tenth = at_most(dated.saturating_sub(modified) / 10);
            (tenth.min(HEURISTIC_SECS_MAX), Basis::Heuristic)
        }
    }
}

/// Statuses that a cache may give a lifetime by itself (RFC 9110, 15.1), without those that an odd request may have provoked
/// ([`is_odd_request`](crate::store::is_odd_request)) and without 206, which is not stored.
pub(crate) fn may_be_guessed(status: StatusCode) -> bool {
    matches!(status.as_u16(), 200 | 203 | 204 | 300 | 301 | 308 | 404 | 410)
}
