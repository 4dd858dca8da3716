//! `Cache-Control`, `Pragma` and `CDN-Cache-Control`: what stands there is seen, whatever stands beside it.

use crate::bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use pumice_door_http::directives::{Directives, Scope};
use std::collections::BTreeMap;

/// Lines of fields: a byte that says which field, its value until a line feed.
pub(crate) fn run(data: &[u8]) {
    let names =
        ["cache-control", "cache-control", "cdn-cache-control", "pragma"].map(HeaderName::from_static);
    let mut fields = HeaderMap::new();
    for line in data.split(|byte| *byte == b'\n') {
        let mut bytes = Bytes(line);
        let name = &names[usize::from(bytes.u8() % 4)];
        if let Ok(value) = HeaderValue::from_bytes(bytes.0) {
            fields.append(name, value);
        }
    }
    let (request, response) = (Directives::of_request(&fields), Directives::of_response(&fields));
    assert!(!request.is_targeted);
    for all in [&request, &response] {
        for scope in [&all.no_cache, &all.private] {
            assert!(!matches!(scope, Scope::Fields(names) if names.is_empty()));
        }
    }
    // What CDN-Cache-Control says stands alone.
    if response.is_targeted {
        let mut alone = fields.clone();
        alone.remove("cache-control");
        alone.remove("pragma");
        assert_eq!(Directives::of_response(&alone), response);
    }
    fields.remove("cdn-cache-control");
    plain(&fields);
    restrictions_are_seen(&fields);
}

/// Without quotes it is a list, read in the plainest way.
fn plain(fields: &HeaderMap) {
    let lines: Vec<_> = fields
        .get_all("cache-control")
        .iter()
        .map(|line| line.as_bytes())
        .collect();
    let text = lines.join(&b","[..]);
    let Ok(text) = std::str::from_utf8(&text) else {
        return;
    };
    if text.contains(['"', '\\']) {
        return;
    }
    // The least of several; 0 of what is no number.
    let mut numbers = BTreeMap::new();
    let mut names = Vec::new();
    for member in text.split(',').map(|member| member.trim_matches([' ', '\t'])) {
        let (name, value) = member.split_once('=').unwrap_or((member, ""));
        let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        let number = value.parse().unwrap_or(u64::MAX).min(1 << 31) as u32;
        let number = if is_number && !name.ends_with([' ', '\t']) {
            number
        } else {
            0
        };
        let name = name.trim_ascii_end().to_ascii_lowercase();
        let least: &mut u32 = numbers.entry(name.clone()).or_insert(number);
        *least = number.min(*least);
        names.push(name);
    }
    let all = Directives::of_response(fields);
    for (name, read) in [
        ("max-age", all.max_age),
        ("s-maxage", all.s_maxage),
        ("stale-while-revalidate", all.stale_while_revalidate),
        ("stale-if-error", all.stale_if_error),
    ] {
        assert_eq!(numbers.get(name).copied(), read, "{name} in {text:?}");
    }
    for (name, read) in [
        ("no-store", all.no_store),
        ("no-cache", all.no_cache != Scope::Nothing),
        ("private", all.private != Scope::Nothing),
        ("public", all.public),
        ("must-revalidate", all.must_revalidate),
        ("proxy-revalidate", all.proxy_revalidate),
        ("must-understand", all.must_understand),
        ("immutable", all.immutable),
        ("only-if-cached", all.only_if_cached),
    ] {
        assert_eq!(
            names.iter().any(|other| other == name),
            read,
            "{name} in {text:?}"
        );
    }
}

/// A restriction is seen before and behind everything else, and nothing else makes it less.
fn restrictions_are_seen(fields: &HeaderMap) {
    let one = "no-store, private, no-cache, must-revalidate, max-age=7";
    let with = |line: Vec<u8>| {
        let mut all = HeaderMap::new();
        if let Ok(line) = HeaderValue::from_bytes(&line) {
            all.append("cache-control", line);
        }
        Directives::of_response(&all)
    };
    let mut beside = fields.clone();
    beside.append("cache-control", HeaderValue::from_static(one));
    let mut seen = vec![Directives::of_response(&beside)];
    for line in fields.get_all("cache-control") {
        seen.push(with([one.as_bytes(), b", ", line.as_bytes()].concat()));
        seen.push(with([line.as_bytes(), b", ", one.as_bytes()].concat()));
    }
    for all in seen {
        assert!(
            all.no_store && all.must_revalidate && all.private.is_whole() && all.no_cache.is_whole(),
            "{fields:?}"
        );
        assert!(all.max_age.is_some_and(|secs| secs <= 7), "{fields:?}");
    }
}
