//! What makes a message that two servers could read differently: refused, whole, before anything is made of it. hyper has parsed the
//! head; this is about what it lets pass.

use crate::key::split_host;
use crate::syntax::{digits, members, trim};
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, TE, TRANSFER_ENCODING, UPGRADE};
use http::{Method, StatusCode, Uri, Version};
use thiserror::Error;

/// The most that a request's head may have.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of the request line's target. Default: 16 KiB.
    pub target_bytes: usize,
    /// Bytes of all fields, with four for each as HTTP/1 sends them. Default: 32 KiB.
    pub fields_bytes: usize,
    /// Lines of fields. Default: 128.
    pub fields: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            target_bytes: 16 << 10,
            fields_bytes: 32 << 10,
            fields: 128,
        }
    }
}

/// Why a request is refused. The connection is closed, as nobody knows where the next request would begin.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Refused {
    /// It has faults.
    #[error("bad request: {0}")]
    Bad(&'static str),
    /// It wants what this server does not do.
    #[error("not implemented: {0}")]
    NotImplemented(&'static str),
    /// Its target is too long.
    #[error("the request's target is too long")]
    TargetTooLong,
    /// Its fields are too many or too long.
    #[error("the request's fields are too long")]
    FieldsTooLong,
}

impl Refused {
    /// What it is answered.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Bad(_) => StatusCode::BAD_REQUEST,
            Self::NotImplemented(_) => StatusCode::NOT_IMPLEMENTED,
            Self::TargetTooLong => StatusCode::URI_TOO_LONG,
            Self::FieldsTooLong => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        }
    }
}

/// Checks a request's head; the host that it is for comes back.
///
/// # Errors
///
/// Why it is refused.
pub fn check_request<'a>(
    method: &Method,
    uri: &'a Uri,
    version: Version,
    fields: &'a HeaderMap,
    limits: &Limits,
) -> Result<&'a str, Refused> {
    let path = uri.path_and_query().map_or("", |path| path.as_str());
    if path.len() > limits.target_bytes {
        return Err(Refused::TargetTooLong);
    }
    let bytes: usize = fields
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum();
    if fields.len() > limits.fields || bytes > limits.fields_bytes {
        return Err(Refused::FieldsTooLong);
    }
    if *method == Method::CONNECT || *method == Method::TRACE {
        return Err(Refused::NotImplemented("the method"));
    }
    // A host alone is for CONNECT.
    let is_star = path == "*" && *method == Method::OPTIONS;
    if !path.starts_with('/') && !is_star {
        return Err(Refused::Bad("the target"));
    }
    if fields
        .values()
        .any(|value| value.as_bytes() != trim(value.as_bytes()))
    {
        return Err(Refused::Bad("blanks around a field"));
    }
    let host = host(uri, version, fields)?;
    let is_chunked = fields.contains_key(TRANSFER_ENCODING);
    if version == Version::HTTP_2 {
        // RFC 9113, 8.2.2.
        let has_options = [CONNECTION, TRANSFER_ENCODING, UPGRADE]
            .iter()
            .any(|name| fields.contains_key(name))
            || ["keep-alive", "proxy-connection"]
                .iter()
                .any(|name| fields.contains_key(*name));
        if has_options || members(fields, TE).any(|option| !option.eq_ignore_ascii_case(b"trailers")) {
            return Err(Refused::Bad("a field about the connection in HTTP/2"));
        }
    } else if is_chunked {
        if version != Version::HTTP_11 {
            return Err(Refused::Bad("Transfer-Encoding in HTTP/1.0"));
        }
        check_codings(fields)?;
    }
    match length(fields) {
        Err(LengthNotRead) => Err(Refused::Bad("Content-Length")),
        Ok(Some(_)) if is_chunked => Err(Refused::Bad("Content-Length beside Transfer-Encoding")),
        Ok(_) => Ok(host),
    }
}

/// Checks the head of an origin's response; the length that it tells comes back. A fault makes it a 502.
///
/// # Errors
///
/// What is wrong with it.
pub fn check_response(
    status: StatusCode,
    version: Version,
    fields: &HeaderMap,
) -> Result<Option<u64>, &'static str> {
    let is_chunked = fields.contains_key(TRANSFER_ENCODING);
    let length = length(fields).map_err(|LengthNotRead| "Content-Length")?;
    let is_bodiless = status.is_informational() || status == StatusCode::NO_CONTENT;
    match () {
        () if is_chunked && length.is_some() => Err("Content-Length beside Transfer-Encoding"),
        () if is_chunked && (is_bodiless || version != Version::HTTP_11) => {
            Err("Transfer-Encoding where none can be")
        }
        () if is_chunked && check_codings(fields).is_err() => Err("Transfer-Encoding"),
        () if is_bodiless && length.is_some_and(|bytes| bytes > 0) => Err("Content-Length of no content"),
        () => Ok(length),
    }
}

/// The host: of the target where it names one, else of `Host`. Both must agree; in HTTP/1 there is exactly one `Host`, and never more.
fn host<'a>(uri: &'a Uri, version: Version, fields: &'a HeaderMap) -> Result<&'a str, Refused> {
    let mut lines = fields.get_all(HOST).iter();
    let told = match (lines.next(), lines.next()) {
        (_, Some(_)) => return Err(Refused::Bad("more than one Host")),
        (None, None) if version != Version::HTTP_2 => return Err(Refused::Bad("no Host")),
        (line, None) => line
            .map(|line| line.to_str().map_err(|_| Refused::Bad("Host")))
            .transpose()?,
    };
    let host = match (uri.authority().map(|authority| authority.as_str()), told) {
        (Some(target), Some(told)) if !target.eq_ignore_ascii_case(told) => {
            return Err(Refused::Bad("Host is not that of the target"));
        }
        (Some(host), _) | (None, Some(host)) => host,
        (None, None) => return Err(Refused::Bad("no Host")),
    };
    split_host(host).map_err(|_| Refused::Bad("Host"))?;
    Ok(host)
}

/// `chunked`, once and last, is all that is understood.
fn check_codings(fields: &HeaderMap) -> Result<(), Refused> {
    let is_chunked = |coding: &&[u8]| coding.eq_ignore_ascii_case(b"chunked");
    let codings: Vec<_> = members(fields, TRANSFER_ENCODING).collect();
    match codings.split_last() {
        Some((last, before)) if is_chunked(last) && !before.iter().any(is_chunked) => {
            match before.is_empty() {
                true => Ok(()),
                false => Err(Refused::NotImplemented("Transfer-Encoding")),
            }
        }
        _ => Err(Refused::Bad("Transfer-Encoding")),
    }
}

/// A length that is a list, has a sign, or is no number of 63 bits.
struct LengthNotRead;

fn length(fields: &HeaderMap) -> Result<Option<u64>, LengthNotRead> {
    let mut lines = fields.get_all(CONTENT_LENGTH).iter();
    match (lines.next(), lines.next()) {
        (None, _) => Ok(None),
        (Some(line), None) => {
            let bytes = digits(line.as_bytes()).filter(|bytes| *bytes < 1 << 63);
            bytes.map(Some).ok_or(LengthNotRead)
        }
        _ => Err(LengthNotRead),
    }
}
