//! Fields on their way through this server: hop-by-hop ones end here, `Via` grows, and what a client says about itself is replaced.

use crate::key::Scheme;
use crate::syntax::members;
use http::Version;
use http::header::{CONNECTION, COOKIE, EXPECT, FORWARDED, HeaderMap, HeaderName, HeaderValue, VIA};
use std::net::IpAddr;
use thiserror::Error;

/// Fields that are about one connection (RFC 9110, 7.6.1; 9111, 3.1).
const HOP_BY_HOP: &str = "connection http2-settings keep-alive proxy proxy-authenticate proxy-authentication-info proxy-authorization \
                          proxy-connection te trailer transfer-encoding upgrade";

/// Fields that are for all on the way: `Connection` has no business to name them (RFC 9110, 7.6.1), and does so in vain. Without them a
/// message would mean something else, or be stored where it must not. So are all `Content-` fields.
const END_TO_END: &str =
    "age authorization cache-control cdn-cache-control cookie expires host pragma set-cookie vary";

/// Fields by which some origins choose URL, host, method or client. They are not in the key, so a client must not set them. So are all
/// `X-Forwarded` and `X-Original-` fields.
const CLIENT_CLAIMS: &str = "cf-connecting-ip client-ip forwarded front-end-https true-client-ip x-client-ip x-cluster-client-ip x-host \
                             x-http-host-override x-http-method x-http-method-override x-method-override x-real-ip x-rewrite-url \
                             x-url-scheme";

fn is_in(list: &str, name: &str) -> bool {
    list.split(' ').any(|other| other == name)
}

/// One more passage of a message through this server.
#[derive(Clone, Copy, Debug)]
pub struct Hop<'a> {
    /// What this server calls itself in `Via`: a token that no other server on the way has.
    pub pseudonym: &'a str,
    /// The version of the message.
    pub version: Version,
}

/// How a request came.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "each is what its type says")]
pub struct Arrival<'a> {
    pub scheme: Scheme,
    /// What the client asked for, checked.
    pub host: &'a str,
    /// `None` over a unix socket.
    pub client: Option<IpAddr>,
}

/// A request has been here before: 508.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("the request went in a circle")]
pub struct Loop;

/// Makes of a request's fields those that the origin gets.
///
/// # Errors
///
/// Where `Via` names this server.
pub fn clean_request(fields: &mut HeaderMap, hop: Hop<'_>, arrival: Arrival<'_>) -> Result<(), Loop> {
    let has_been_here = members(fields, VIA).any(|member| {
        let mut words = member
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty());
        words
            .nth(1)
            .is_some_and(|name| name.eq_ignore_ascii_case(hop.pseudonym.as_bytes()))
    });
    if has_been_here {
        return Err(Loop);
    }
    remove_hop_by_hop(fields);
    // 1xx end here.
    fields.remove(EXPECT);
    remove_all(fields, is_claim);
    join_crumbs(fields);
    let Arrival { scheme, host, client } = arrival;
    let client_name = match client {
        None => "unknown".to_owned(),
        Some(IpAddr::V4(address)) => address.to_string(),
        Some(IpAddr::V6(address)) => format!("\"[{address}]\""),
    };
    let forwarded = format!("for={client_name};host=\"{host}\";proto={}", scheme.name());
    let mut set = |name, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            fields.insert(name, value);
        }
    };
    set(FORWARDED, &forwarded);
    set(HeaderName::from_static("x-forwarded-host"), host);
    set(HeaderName::from_static("x-forwarded-proto"), scheme.name());
    if let Some(client) = client {
        set(HeaderName::from_static("x-forwarded-for"), &client.to_string());
    }
    add_via(fields, hop);
    Ok(())
}

/// Makes one line of the cookies, which HTTP/2 sends in parts (RFC 9113, 8.2.3).
fn join_crumbs(fields: &mut HeaderMap) {
    let crumbs: Vec<_> = fields.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if crumbs.len() > 1
        && let Ok(cookie) = HeaderValue::from_bytes(&crumbs.join(b"; ".as_slice()))
    {
        fields.insert(COOKIE, cookie);
    }
}

/// Makes of the fields of an origin's response those that are stored and sent on.
pub fn clean_response(fields: &mut HeaderMap, hop: Hop<'_>) {
    remove_hop_by_hop(fields);
    add_via(fields, hop);
}

/// Removes the fields that are about one connection, and those that `Connection` names.
pub fn remove_hop_by_hop(fields: &mut HeaderMap) {
    let named: Vec<_> = members(fields, CONNECTION)
        .filter_map(|name| HeaderName::from_bytes(name).ok())
        .collect();
    let is_for_all = |name: &str| is_in(END_TO_END, name) || name.starts_with("content-");
    remove_all(fields, |name| {
        is_in(HOP_BY_HOP, name.as_str()) || named.contains(name) && !is_for_all(name.as_str())
    });
}

/// Whether a client says by this field what this server says. Some origins take `_` for `-`.
fn is_claim(name: &HeaderName) -> bool {
    let name = name.as_str().replace('_', "-");
    name.starts_with("x-forwarded") || name.starts_with("x-original-") || is_in(CLIENT_CLAIMS, &name)
}

/// Removes all fields of some names.
pub(crate) fn remove_all(fields: &mut HeaderMap, is_gone: impl Fn(&HeaderName) -> bool) {
    let names: Vec<_> = fields.keys().filter(|name| is_gone(name)).cloned().collect();
    for name in names {
        fields.remove(name);
    }
}

fn add_via(fields: &mut HeaderMap, hop: Hop<'_>) {
    let version = match hop.version {
        Version::HTTP_09 | Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    };
    if let Ok(value) = HeaderValue::from_str(&format!("{version} {}", hop.pseudonym)) {
        fields.append(VIA, value);
    }
}
