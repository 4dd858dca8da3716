//! What is read from `Cache-Control`, `CDN-Cache-Control` and `Pragma`.

use crate::table::{fields, rows};
use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;
use pumice_door_http::directives::{Directives, Scope};

#[test]
fn faults_are_read_in_the_narrowest_way() {
    let table = r#"
        cache-control: max-age=60                                  | Some(60)
        cache-control: MAX-AGE="60"                                | Some(60)
        cache-control: max-age="6\0"                               | Some(60)
        cache-control: max-age=060                                 | Some(60)
        cache-control: max-age=99999999999999999999                | Some(2147483648)
        cache-control: max-age=60 & cache-control: public, max-age=30 | Some(30)
        cache-control: max-age=0, max-age=60                       | Some(0)
        cache-control: max-age                                     | Some(0)
        cache-control: max-age=                                    | Some(0)
        cache-control: max-age=-1                                  | Some(0)
        cache-control: max-age=1.5                                 | Some(0)
        cache-control: max-age=60s                                 | Some(0)
        cache-control: max-age =60                                 | Some(0)
        cache-control: max-age= 60                                 | Some(0)
        cache-control: extension="max-age=60"                      | None
        cache-control: extension=", max-age=60                     | Some(60)
        cache-control: x-max-age=60                                | None
        cache-control:                                             | None
        cdn-cache-control: max-age=60                              | Some(60)
        cdn-cache-control: max-age=60;x=1 & cdn-cache-control: max-age=30 | Some(30)
        cdn-cache-control: max-age="60"                            | Some(0)
        cdn-cache-control: max-age=60.5                            | Some(0)
        cdn-cache-control: max-age=-60                             | Some(0)
        cdn-cache-control: max-age                                 | Some(0)
        cdn-cache-control: none & cache-control: max-age=9         | None
        cdn-cache-control: no-store=?0 & cache-control: max-age=9  | None
        cdn-cache-control: max-age=60, "x & cache-control: max-age=9 | Some(9)
        cdn-cache-control: Max-Age=60 & cache-control: max-age=9   | Some(9)
        cdn-cache-control: & cache-control: max-age=9              | Some(9)
    "#;
    for [lines, max_age] in rows(table) {
        let seen = Directives::of_response(&fields(lines)).max_age;
        assert_eq!(format!("{seen:?}"), max_age, "{lines}");
    }
}

#[test]
fn scopes_name_fields_or_the_whole() {
    let table = r#"
        cache-control: private="Set-Cookie, X-A"       | set-cookie x-a
        cache-control: private=set-cookie, private=x-a | set-cookie x-a
        cdn-cache-control: private="x-a"               | x-a
        cache-control: private="x-a", private          | whole
        cache-control: private                         | whole
        cache-control: private=""                      | whole
        cache-control: private="a b"                   | whole
        cache-control: private="content-encoding"      | whole
        cdn-cache-control: private=x-a                 | whole
        cache-control: public                          |
    "#;
    for [lines, expected] in rows(table) {
        let seen = match Directives::of_response(&fields(lines)).private {
            Scope::Nothing => String::new(),
            Scope::Whole => "whole".to_owned(),
            Scope::Fields(names) => names
                .iter()
                .map(|name| name.as_str())
                .collect::<Vec<_>>()
                .join(" "),
        };
        assert_eq!(seen, expected, "{lines}");
    }
}

#[test]
fn pragma_counts_alone() {
    assert!(
        Directives::of_request(&fields("pragma: x, No-Cache"))
            .no_cache
            .is_whole()
    );
    let both = Directives::of_request(&fields("pragma: no-cache & cache-control: max-stale"));
    assert_eq!((both.no_cache, both.max_stale), (Scope::Nothing, Some(u32::MAX)));
}

proptest! {
    #[test]
    fn more_directives_never_allow_more(
        more in "[a-z0-9=\", -]{0,40}",
        list in prop::sample::subsequence(vec!["max-age=9", "no-store", "no-cache", "private", "s-maxage=x"], 0..5),
        any in any::<Vec<u8>>(),
    ) {
        let of = |lines: &[&str]| {
            let line = |line: &&str| HeaderValue::from_str(line).unwrap();
            let all: HeaderMap = lines.iter().map(|text| (http::header::CACHE_CONTROL, line(text))).collect();
            Directives::of_response(&all)
        };
        let list = list.join(",");
        let (alone, both) = (of(&[&list]), of(&[&list, &more]));
        let narrower = |one: Option<u32>, both: Option<u32>| one.is_none_or(|one| both.is_some_and(|both| both <= one));
        prop_assert!(both.no_store || !alone.no_store);
        prop_assert!(both.private.is_whole() || !alone.private.is_whole());
        prop_assert!(both.no_cache.is_whole() || !alone.no_cache.is_whole());
        prop_assert!(narrower(alone.max_age, both.max_age) && narrower(alone.s_maxage, both.s_maxage));
        // Any bytes that can be in a field.
        if let Ok(value) = HeaderValue::from_bytes(&any) {
            for name in ["cache-control", "cdn-cache-control", "pragma"] {
                let fields = HeaderMap::from_iter([(name.parse().unwrap(), value.clone())]);
                Directives::of_request(&fields);
                Directives::of_response(&fields);
            }
        }
    }
}
