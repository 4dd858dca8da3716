//! Heads as flash gives them: what was written comes back, and any other bytes are a sound head or none.

use crate::life::{at, store};
use crate::table::{THEN, fields};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use proptest::prelude::*;
use pumice_door_http::freshness::Freshness;
use pumice_door_http::head::{HEAD_KIND, Head, HeadTooLarge, NewHead};
use pumice_door_http::rules::Rule;
use pumice_door_http::store::Storing;

fn plain(freshness: Freshness) -> Storing {
    Storing {
        freshness,
        left_out: Vec::new(),
        vary: Vec::new(),
    }
}

fn encode(
    storing: &Storing,
    fields: &HeaderMap,
    key: &str,
    variant: Option<[u8; 32]>,
) -> Result<Vec<u8>, HeadTooLarge> {
    NewHead {
        status: StatusCode::OK,
        storing,
        key,
        variant,
        fields,
        received_secs: THEN,
    }
    .encode()
}

/// What may be said of any head that was decoded.
fn check_sound(head: &Head<'_>) {
    let mut lines = Vec::new();
    for (name, value) in head.fields() {
        let controls = |byte: &u8| *byte < b' ' && *byte != b'\t' || *byte == 0x7f;
        assert!(!name.is_empty() && !name.iter().chain(value).any(controls));
        lines.extend([name, b": ", value, b"\r\n"].concat());
    }
    assert_eq!(head.lines(), lines);
    assert!(head.to_map().len() <= head.fields().count());
    assert!(
        head.etag
            .is_none_or(|etag| head.fields().any(|field| field == (&b"etag"[..], etag)))
    );
    head.freshness.ttl_secs(i64::MAX);
}

#[test]
fn the_bytes_are_those_of_version_1() {
    let fields = fields("etag: \"a\" & date: date(0)");
    let storing = plain(Freshness {
        born_secs: 1,
        lifetime_secs: 2,
        while_revalidate_secs: 3,
        if_error_secs: Some(4),
        is_always_validated: true,
        is_never_stale: false,
        is_immutable: true,
    });
    let bytes = encode(&storing, &fields, "http://a/", Some([9; 32])).unwrap();
    let mut expected = vec![HEAD_KIND, 1 | 4 | 8, 200, 0, 2, 0, 0, 0];
    expected.extend([1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
    expected.extend(THEN.to_le_bytes());
    expected.extend(i64::MIN.to_le_bytes());
    expected.extend([0, 0, 9, 0, 2, 0, 48, 0]);
    expected.extend([9; 32]);
    expected
        .extend(b"http://a/\x04\0\x03\0\x04\0\x1d\0etag: \"a\"\r\ndate: Tue, 14 Nov 2023 22:13:20 GMT\r\n");
    assert_eq!(bytes, expected);
}

#[test]
fn what_is_too_long_is_not_stored() {
    let storing = plain(Freshness::default());
    let long = HeaderMap::from_iter([(
        HeaderName::from_static("x"),
        HeaderValue::from_str(&"y".repeat(33 << 10)).unwrap(),
    )]);
    assert_eq!(encode(&storing, &long, "k", None), Err(HeadTooLarge));
    let none = HeaderMap::new();
    assert_eq!(
        encode(&storing, &none, &"k".repeat(1 << 16), None),
        Err(HeadTooLarge)
    );
    assert!(encode(&storing, &none, &"k".repeat(17 << 10), None).is_ok());
}

proptest! {
    #[test]
    fn what_is_written_comes_back(
        lines in prop::collection::vec(("[a-z0-9_-]{1,20}", prop::collection::vec(any::<u8>(), 0..40)), 0..20),
        numbers in (any::<i64>(), any::<u32>(), any::<u32>(), prop::option::of(0..u32::MAX)),
        flags in any::<(bool, bool, bool)>(),
        key in "[ -~]{0,50}",
        variant in any::<Option<[u8; 32]>>(),
    ) {
        let mut fields = HeaderMap::new();
        for (name, value) in &lines {
            let name = HeaderName::from_bytes(format!("x-{name}").as_bytes()).unwrap();
            if let Ok(value) = HeaderValue::from_bytes(value) {
                fields.append(name, value);
            }
        }
        fields.insert("etag", HeaderValue::from_static("\"a\""));
        fields.insert("date", HeaderValue::from_static("Tue, 14 Nov 2023 22:13:20 GMT"));
        let storing = plain(Freshness {
            born_secs: numbers.0,
            lifetime_secs: numbers.1,
            while_revalidate_secs: numbers.2,
            if_error_secs: numbers.3,
            is_always_validated: flags.0,
            is_never_stale: flags.1,
            is_immutable: flags.2,
        });
        let bytes = encode(&storing, &fields, &key, variant).unwrap();
        let head = Head::decode(&bytes, 10).unwrap();
        check_sound(&head);
        prop_assert_eq!(head.to_map(), fields);
        prop_assert_eq!(head.freshness, storing.freshness);
        prop_assert_eq!((head.key, head.variant, head.dated_secs), (key.as_bytes(), variant, THEN));
        prop_assert_eq!(head.etag, Some(&b"\"a\""[..]));
        // Cut anywhere, or with more behind it, it is none.
        prop_assert!((0..bytes.len()).all(|end| Head::decode(&bytes[..end], 10).is_none()));
        prop_assert!(Head::decode(&[&bytes[..], b"x"].concat(), 10).is_none());
    }

    #[test]
    fn any_bytes_are_a_sound_head_or_none(
        noise in prop::collection::vec(any::<u8>(), 0..200),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        Head::decode(&noise, 10).iter().for_each(check_sound);
        let stored = store("", "etag: \"a\" & last-modified: date(-9) & x-a: b\tc", &Rule::default(), at(0));
        let mut bytes = stored.ok().unwrap().bytes;
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        Head::decode(&bytes, 10).iter().for_each(check_sound);
    }
}
