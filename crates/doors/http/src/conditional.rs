//! Conditional requests: those of clients, evaluated on a stored response, and those that validate it at the origin.

use crate::fields::remove_all;
use crate::head::Head;
use crate::syntax::{date, digits, format_date, is_same_strong_tag, is_same_tag, members, single};
use http::header::{
    AGE, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, DATE, ETAG, HeaderMap, HeaderName, HeaderValue,
    IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, LAST_MODIFIED, RANGE,
};

/// Whether a request has a condition that only the origin can refuse it by: `If-Match` or `If-Unmodified-Since` (RFC 9111, 4.3.2).
pub fn is_for_origin(request: &HeaderMap) -> bool {
    request.contains_key(IF_MATCH) || request.contains_key(IF_UNMODIFIED_SINCE)
}

/// Whether a stored response fulfils `If-Match` and `If-Unmodified-Since`. Where it does not the origin is asked: it may have a newer one.
pub fn fulfils(request: &HeaderMap, head: &Head<'_>) -> bool {
    if !head.status.is_success() {
        return true;
    }
    if request.contains_key(IF_MATCH) {
        let is_ours = |tag: &[u8]| head.etag.is_some_and(|ours| is_same_strong_tag(ours, tag));
        return members(request, IF_MATCH).any(|tag| tag == b"*" || is_ours(tag));
    }
    match single(request, IF_UNMODIFIED_SINCE).and_then(date) {
        None => true,
        Some(since) => head.modified_secs.is_some_and(|modified| modified <= since),
    }
}

/// Whether a stored response is answered to a GET or HEAD as a 304, since the client has it (RFC 9110, 13.2.2; 9111, 4.3.2).
pub fn is_not_modified(request: &HeaderMap, head: &Head<'_>) -> bool {
    if !head.status.is_success() {
        return false;
    }
    if request.contains_key(IF_NONE_MATCH) {
        let is_ours = |tag: &[u8]| head.etag.is_some_and(|ours| is_same_tag(ours, tag));
        return members(request, IF_NONE_MATCH).any(|tag| tag == b"*" || is_ours(tag));
    }
    let since = single(request, IF_MODIFIED_SINCE).and_then(date);
    since.is_some_and(|since| head.modified_secs.unwrap_or(head.dated_secs) <= since)
}

/// Whether a stored response's field is sent in a 304: all but those that describe a body (RFC 9110, 15.4.5).
pub fn is_in_304(name: &[u8], head: &Head<'_>) -> bool {
    match name {
        b"content-encoding" | b"content-language" | b"content-length" | b"content-range"
        | b"content-type" => false,
        b"last-modified" => head.etag.is_none(),
        _ => true,
    }
}

/// Makes of a client's GET one that fetches the whole response: without its conditions and ranges, which are evaluated here on what
/// comes, and without what describes a body, which is not forwarded.
pub fn ask_whole(request: &mut HeaderMap) {
    let conditions = [
        IF_MATCH,
        IF_UNMODIFIED_SINCE,
        IF_NONE_MATCH,
        IF_MODIFIED_SINCE,
        IF_RANGE,
        RANGE,
    ];
    remove_all(request, |name| {
        conditions.contains(name) || name.as_str().starts_with("content-")
    });
}

/// Whether a stored response can be validated.
pub fn has_validator(head: &Head<'_>) -> bool {
    head.etag.is_some() || head.modified_secs.is_some()
}

/// Makes of a client's request one that validates a stored response (RFC 9111, 4.3.1), by all validators that this has.
pub fn ask_validation(request: &mut HeaderMap, head: &Head<'_>) {
    ask_whole(request);
    if let Some(tag) = head.etag.and_then(|tag| HeaderValue::from_bytes(tag).ok()) {
        request.insert(IF_NONE_MATCH, tag);
    }
    if let Some(date) = head.modified_secs.map(format_date) {
        request.insert(
            IF_MODIFIED_SINCE,
            HeaderValue::from_str(&date).expect("a date is a field's value"),
        );
    }
}

/// The fields of a stored response after a 304 to its validation (RFC 9111, 3.2, 4.3.4): those of the 304 in place of the old ones, but
/// for length, coding, range and digest, which belong to the stored body. They are judged and stored as those of a new response.
///
/// `None` where the 304 is about another response: its validators are not the stored ones. Tags are compared weakly, as one was asked for
/// and some servers weaken the tag of a compressed body alone; the stored tag stays as it is.
pub fn freshen(head: &Head<'_>, answer: &HeaderMap) -> Option<HeaderMap> {
    let modified = answer.get(LAST_MODIFIED).map(|text| date(text.as_bytes()));
    let is_ours = match (answer.get(ETAG), head.etag) {
        (Some(tag), ours) => ours.is_some_and(|ours| is_same_tag(ours, tag.as_bytes())),
        (None, _) => modified.is_none_or(|modified| modified == head.modified_secs),
    };
    if !is_ours {
        return None;
    }
    let mut fields = head.to_map();
    // Without one the 304 is as old as it is here; the old date would make it older.
    fields.remove(DATE);
    fields.remove(AGE);
    let is_of_body = |name: &HeaderName| {
        [CONTENT_LENGTH, CONTENT_ENCODING, CONTENT_RANGE, ETAG].contains(name) || name == "content-md5"
    };
    for name in answer.keys().filter(|name| !is_of_body(name)) {
        fields.remove(name);
        for value in answer.get_all(name) {
            fields.append(name, value.clone());
        }
    }
    Some(fields)
}

/// Whether a successful answer to HEAD is about the stored response still (RFC 9111, 4.3.5); where not, this is stale.
pub fn is_still(head: &Head<'_>, answer: &HeaderMap) -> bool {
    let length = answer.get(CONTENT_LENGTH).map(|text| digits(text.as_bytes()));
    let modified = answer.get(LAST_MODIFIED).map(|text| date(text.as_bytes()));
    length.is_none_or(|length| length == Some(head.body_bytes))
        && answer
            .get(ETAG)
            .is_none_or(|tag| head.etag == Some(tag.as_bytes()))
        && modified.is_none_or(|modified| modified == head.modified_secs)
}
