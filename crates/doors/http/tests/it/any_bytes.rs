//! Fields of any bytes, on every way through the door: nothing panics, and what comes out is in bounds.

use crate::life::{OBJECT_BYTES_MAX, at};
use crate::table::THEN;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use proptest::prelude::*;
use pumice_door_http::conditional::{ask_validation, freshen, is_not_modified, is_still};
use pumice_door_http::decide::{Failure, Found, decide, serves_after};
use pumice_door_http::fields::{Arrival, Hop, clean_request, clean_response};
use pumice_door_http::framing::{Limits, check_request, check_response};
use pumice_door_http::freshness::Freshness;
use pumice_door_http::head::{Head, NewHead};
use pumice_door_http::invalidate::targets;
use pumice_door_http::key::{Query, Scheme, Target};
use pumice_door_http::range::{Part, part};
use pumice_door_http::rules::Rule;
use pumice_door_http::store::{Exchange, Storing, may_store};
use pumice_door_http::vary::Variants;

const NAMES: &str = "accept accept-encoding age authorization cache-control cdn-cache-control connection content-length \
                     content-location date etag expires host if-match if-modified-since if-none-match if-range if-unmodified-since \
                     last-modified location pragma range set-cookie transfer-encoding vary via x-a";

/// Pieces of which values are made, beside bytes.
const PIECES: &str = "max-age= s-maxage public private no-cache no-store must-revalidate max-stale stale-if-error= stale-while-revalidate= \
                      , , \" \" ; = - / .. ? # : * 0 1 9 99999999999999999999 bytes= gzip q=0 chunked W/ \"a\" x-a vary accept http://a/ \
                      Sun,\u{20}06\u{20}Nov\u{20}1994\u{20}08:49:37\u{20}GMT Thu,\u{20}01\u{20}Jan\u{20}1970\u{20}00:00:00\u{20}GMT";

fn any_fields() -> impl Strategy<Value = HeaderMap> {
    let names: Vec<_> = NAMES.split_ascii_whitespace().collect();
    let pieces: Vec<_> = PIECES.split(' ').map(|piece| piece.as_bytes().to_vec()).collect();
    let piece = prop_oneof![4 => prop::sample::select(pieces), 1 => prop::collection::vec(any::<u8>(), 0..4)];
    let value = prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat());
    prop::collection::vec((prop::sample::select(names), value), 0..12).prop_map(|lines| {
        let parsed = lines.iter().filter_map(|(name, value)| {
            Some((
                HeaderName::from_static(name),
                HeaderValue::from_bytes(value).ok()?,
            ))
        });
        parsed.fold(HeaderMap::new(), |mut all, (name, value)| {
            all.append(name, value);
            all
        })
    })
}

proptest! {
    #[test]
    fn nothing_panics(
        mut request in any_fields(),
        mut response in any_fields(),
        again in any_fields(),
        status in 200u16..600,
        (method, again_method) in (0usize..3, 0usize..3),
        times in (any::<i64>(), any::<i64>()),
    ) {
        let methods = [Method::GET, Method::HEAD, Method::POST];
        let (method, again_method) = (&methods[method], &methods[again_method]);
        let status = StatusCode::from_u16(status).unwrap();
        let hop = Hop { pseudonym: "pumice-1", version: Version::HTTP_11 };
        let host = check_request(method, &"/x?y".parse().unwrap(), Version::HTTP_11, &request, &Limits::default())
            .unwrap_or("a").to_owned();
        let arrival = Arrival { scheme: Scheme::Http, host: &host, client: None };
        let _ = clean_request(&mut request, hop, arrival);
        let length = check_response(status, Version::HTTP_11, &response).ok().flatten();
        clean_response(&mut response, hop);
        let target = Target::new(Scheme::Http, &host, "/x?y", &Query::default()).unwrap();
        prop_assert!(targets(method, status, &target, &response).iter().all(|path| path.starts_with('/')));
        let exchange = Exchange { method, request: &request, status, response: &response, times: at(0), body_bytes: length };
        // One that may not be stored goes the same way.
        let kept = Storing { freshness: Freshness { born_secs: THEN, lifetime_secs: 9, ..Freshness::default() }, left_out: vec![], vary: vec![] };
        let storing = may_store(&exchange, &Rule::default(), OBJECT_BYTES_MAX).unwrap_or(kept);
        let mut variants = Variants::new(7);
        let variant = variants.insert(&target, &storing.vary, &request).0;
        prop_assert_eq!(variants.choose(&target, &request), Some(variant));
        prop_assert_eq!(Variants::decode(&variants.encode()), Some(variants));
        let new = NewHead {
            status,
            storing: &storing,
            key: target.key(),
            variant: Some(variant),
            fields: &response,
            received_secs: THEN,
        };
        let bytes = new.encode().unwrap();
        let head = Head::decode(&bytes, length.unwrap_or(9)).unwrap();
        for now in [times.0, times.1, THEN] {
            decide(again_method, &again, Found::Response(&head), now);
            serves_after(Failure::Unreachable, &again, &head, now);
        }
        if let Part::Range { first, last } = part(&again, &head) {
            prop_assert!(first <= last && last < head.body_bytes);
        }
        is_not_modified(&again, &head);
        is_still(&head, &again);
        freshen(&head, &again);
        ask_validation(&mut request, &head);
    }
}
