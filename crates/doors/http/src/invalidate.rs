//! What an unsafe request makes void (RFC 9111, 4.4).

use crate::key::{Query, Scheme, Target};
use http::header::{CONTENT_LOCATION, HeaderMap, LOCATION};
use http::{Method, StatusCode};

/// Paths with queries, of the target's origin, whose stored responses are void after an answer: none unless the method is unsafe, or
/// unknown, and the answer is no error.
pub fn targets(method: &Method, status: StatusCode, target: &Target, response: &HeaderMap) -> Vec<String> {
    let is_safe = [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE].contains(method);
    if is_safe || !(status.is_success() || status.is_redirection()) {
        return Vec::new();
    }
    let mut paths = vec![target.path_and_query().to_owned()];
    for name in [LOCATION, CONTENT_LOCATION] {
        let reference = response.get(name).and_then(|value| value.to_str().ok());
        paths.extend(reference.and_then(|reference| resolve(target, reference)));
    }
    paths.dedup();
    paths
}

/// The path and query that a reference means from a URL (RFC 3986, 5.2), if it is of the same origin.
fn resolve(base: &Target, reference: &str) -> Option<String> {
    let reference = reference.split('#').next()?;
    let (scheme, base_host) = base.origin().split_once("://")?;
    let is_in_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let (scheme, rest) = match reference.split_once(':') {
        Some((scheme, rest)) if scheme.bytes().all(is_in_scheme) => (scheme, rest),
        _ => (scheme, reference),
    };
    let scheme = match scheme.to_ascii_lowercase().as_str() {
        "http" => Scheme::Http,
        "https" => Scheme::Https,
        _ => return None,
    };
    let base_path = base.path_and_query().split('?').next()?;
    let (host, path) = match rest.strip_prefix("//") {
        Some(rest) => rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len())),
        // Relative to the base, so not after a scheme.
        None if rest.len() != reference.len() => return None,
        None => (base_host, rest),
    };
    let (path, query) = match path.find('?') {
        Some(at) => path.split_at(at),
        None => (path, ""),
    };
    let path = match path {
        "" if rest.starts_with("//") => "/".to_owned(),
        "" => base_path.to_owned(),
        path if path.starts_with('/') => without_dots(path),
        path => without_dots(&format!("{}/{path}", base_path.rsplit_once('/')?.0)),
    };
    let found = Target::new(scheme, host, &format!("{path}{query}"), &Query::default()).ok()?;
    (found.origin() == base.origin()).then(|| found.path_and_query().to_owned())
}

/// An absolute path without dot segments.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut ends_in_slash = false;
    for segment in path.split('/').skip(1) {
        ends_in_slash = matches!(segment, "." | "..");
        match segment {
            "." => {}
            ".." => {
                kept.pop();
            }
            segment => kept.push(segment),
        }
    }
    if ends_in_slash {
        kept.push("");
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn references_are_resolved_within_the_origin() {
        let base = Target::new(Scheme::Http, "a", "/b/c/d;p?q", &Query::default()).unwrap();
        for (reference, expected) in [
            // From RFC 3986, 5.4.
            ("g", Some("/b/c/g")),
            ("./g", Some("/b/c/g")),
            ("g/", Some("/b/c/g/")),
            ("/g", Some("/g")),
            ("?y", Some("/b/c/d;p?y")),
            ("g?y#s", Some("/b/c/g?y")),
            (";x", Some("/b/c/;x")),
            ("", Some("/b/c/d;p")),
            (".", Some("/b/c/")),
            ("..", Some("/b/")),
            ("../../g", Some("/g")),
            ("../../../../g", Some("/g")),
            ("/./g/../h", Some("/h")),
            ("g;x=1/../y", Some("/b/c/y")),
            ("g?y/../x", Some("/b/c/g?y/../x")),
            // Origins.
            ("http://A:80/x?y", Some("/x?y")),
            ("HTTP://a", Some("/")),
            ("//a?x", Some("/?x")),
            ("//b/x", None),
            ("https://a/x", None),
            ("http://a:81/x", None),
            ("http://u@a/x", None),
            ("http:g", None),
            ("mailto:x", None),
            ("//", None),
        ] {
            assert_eq!(resolve(&base, reference).as_deref(), expected, "{reference}");
        }
    }

    #[test]
    fn only_unsafe_methods_that_succeed_make_void() {
        let target = Target::new(Scheme::Http, "a", "/x?y", &Query::default()).unwrap();
        let mut fields = HeaderMap::new();
        fields.insert(LOCATION, HeaderValue::from_static("/z"));
        fields.insert(CONTENT_LOCATION, HeaderValue::from_static("//b/z"));
        for (method, status, expected) in [
            ("POST", 201, &["/x?y", "/z"][..]),
            ("PUT", 302, &["/x?y", "/z"]),
            ("BREW", 200, &["/x?y", "/z"]),
            ("DELETE", 404, &[]),
            ("POST", 500, &[]),
            ("GET", 200, &[]),
            ("OPTIONS", 200, &[]),
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(
                targets(&method, status, &target, &fields),
                expected,
                "{method} {status}"
            );
        }
    }
}
