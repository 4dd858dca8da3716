//! Heads of stored responses, and lists of variants, as a flash device gives them.

use crate::bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use pumice_door_http::conditional::{ask_validation, freshen, fulfils, is_not_modified, is_still};
use pumice_door_http::decide::{Decision, Failure, Found, decide, serves_after};
use pumice_door_http::head::{Head, NewHead};
use pumice_door_http::key::{Query, Scheme, Target};
use pumice_door_http::range::{Part, part};
use pumice_door_http::store::Storing;
use pumice_door_http::vary::Variants;

const FIELDS: [&str; 12] = [
    "accept-encoding",
    "cache-control",
    "content-length",
    "etag",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "range",
    "vary",
];

/// A byte that says how many bytes of fields follow, the time, the body's length, fields of a request or a 304, a head or a list.
pub(crate) fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let taken = usize::from(bytes.u8());
    let now = bytes.u64().cast_signed();
    let body_bytes = match bytes.u8() % 3 {
        0 => u64::from(bytes.u16()),
        1 => 0,
        _ => bytes.u64(),
    };
    let fields = fields(Bytes(bytes.take(taken)));
    if let Some(list) = Variants::decode(bytes.0) {
        variants(list, &fields);
    }
    if let Some(head) = Head::decode(bytes.0, body_bytes) {
        let again = encode(&head, &fields, now);
        check(&head, &fields, now);
        if let Some(again) = again {
            let back = Head::decode(&again, body_bytes).expect("what was encoded");
            assert_eq!(
                (back.status, back.freshness, back.key),
                (head.status, head.freshness, head.key)
            );
            check(&back, &fields, now);
        }
    }
}

fn fields(mut bytes: Bytes<'_>) -> HeaderMap {
    let mut fields = HeaderMap::new();
    while !bytes.is_empty() {
        let name = HeaderName::from_static(FIELDS[usize::from(bytes.u8()) % FIELDS.len()]);
        let length = usize::from(bytes.u8() % 64);
        if let Ok(value) = HeaderValue::from_bytes(bytes.take(length)) {
            fields.append(name, value);
        }
    }
    fields
}

/// What is made of a head that was taken, with any request.
fn check(head: &Head<'_>, request: &HeaderMap, now: i64) {
    // In lines that each are one field, and no more.
    let mut lines = Vec::new();
    for (name, value) in head.fields() {
        for (part, what) in [(name, "name"), (value, "value")] {
            let is_plain = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
            assert!(part.iter().all(is_plain), "{what}");
        }
        lines.extend([name, b": ", value, b"\r\n"].concat());
    }
    assert_eq!(lines, head.lines());
    assert!(head.status.as_u16() >= 200);
    if let Some(etag) = head.etag {
        assert!(
            head.fields()
                .any(|(name, value)| name == b"etag" && value == etag)
        );
    }
    assert!(head.to_map().len() <= head.fields().count());
    for method in [Method::GET, Method::HEAD, Method::POST] {
        let decision = decide(&method, request, Found::Response(head), now);
        assert!(method != Method::POST || matches!(decision, Decision::Pass(_)));
    }
    if head.freshness.is_always_validated {
        assert!(!serves_after(Failure::Unreachable, request, head, now));
    }
    if let Part::Range { first, last } = part(request, head) {
        assert!(first <= last && last < head.body_bytes);
    }
    let _ = (
        is_not_modified(request, head),
        fulfils(request, head),
        is_still(head, request),
    );
    if let Some(fresh) = freshen(head, request) {
        // RFC 9111, 3.2: a 304 changes no length.
        assert_eq!(fresh.get("content-length"), head.to_map().get("content-length"));
    }
    ask_validation(&mut request.clone(), head);
}

/// The head made anew from what was read.
fn encode(head: &Head<'_>, request: &HeaderMap, now: i64) -> Option<Vec<u8>> {
    let storing = Storing {
        freshness: head.freshness,
        left_out: request.keys().cloned().collect(),
        vary: Vec::new(),
    };
    let new = NewHead {
        status: head.status,
        storing: &storing,
        key: std::str::from_utf8(head.key).ok()?,
        variant: head.variant,
        fields: &head.to_map(),
        received_secs: now,
    };
    new.encode().ok()
}

/// A list is what it says, and takes another variant, which is chosen then.
fn variants(mut list: Variants, request: &HeaderMap) {
    assert_eq!(Variants::decode(&list.encode()).as_ref(), Some(&list));
    let target = Target::new(Scheme::Http, "a", "/", &Query::default()).expect("a host");
    list.choose(&target, request);
    let mut names: Vec<_> = request.keys().cloned().collect();
    names.sort_by(|one, other| one.as_str().cmp(other.as_str()));
    let (id, _) = list.insert(&target, &names, request);
    assert_eq!(list.choose(&target, request), Some(id));
    assert_eq!(Variants::decode(&list.encode()), Some(list));
}
