//! Ranges of a stored response (RFC 9110, 14).

use crate::head::Head;
use crate::syntax::{date, digits, is_same_strong_tag, single, trim};
use http::StatusCode;
use http::header::{HeaderMap, IF_RANGE, RANGE};

/// What a GET gets of a stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// 206 with these bytes, both ends included.
    Range {
        /// Offset of the first byte.
        first: u64,
        /// Offset of the last one.
        last: u64,
    },
    /// 416: it has none of those bytes.
    None,
}

/// The part that a GET asks for. Several ranges, other units and what cannot be read give the whole.
pub fn part(request: &HeaderMap, head: &Head<'_>) -> Part {
    let Some(range) = single(request, RANGE).filter(|_| head.status == StatusCode::OK) else {
        return Part::Whole;
    };
    if request.contains_key(IF_RANGE) && !single(request, IF_RANGE).is_some_and(|text| is_same(text, head)) {
        return Part::Whole;
    }
    parse(range, head.body_bytes).unwrap_or(Part::Whole)
}

/// Whether `If-Range` names the stored response by a strong validator (RFC 9110, 13.1.5). A date is one if the response is from a later
/// second: then it was not changed after it was sent and before that second ended.
fn is_same(text: &[u8], head: &Head<'_>) -> bool {
    match date(text) {
        None => head.etag.is_some_and(|ours| is_same_strong_tag(ours, text)),
        Some(date) => head.modified_secs == Some(date) && head.dated_secs > date,
    }
}

/// `None` for what is no single range of bytes.
fn parse(text: &[u8], length: u64) -> Option<Part> {
    let (unit, set) = text.split_at_checked(6)?;
    if !unit.eq_ignore_ascii_case(b"bytes=") {
        return None;
    }
    let set = trim(set);
    let (first, last) = set.split_at(set.iter().position(|&byte| byte == b'-')?);
    let last = &last[1..];
    if first.is_empty() {
        let suffix = digits(last)?;
        return match (suffix, length) {
            (0, _) => Some(Part::None),
            // No range says "nothing".
            (_, 0) => None,
            _ => Some(Part::Range {
                first: length.saturating_sub(suffix),
                last: length - 1,
            }),
        };
    }
    let first = digits(first)?;
    let last = match last {
        b"" => u64::MAX,
        last => digits(last)?,
    };
    match () {
        () if last < first => None,
        () if first >= length => Some(Part::None),
        () => Some(Part::Range {
            first,
            last: last.min(length - 1),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_have_their_forms() {
        let range = |first, last| Some(Part::Range { first, last });
        for (text, length, expected) in [
            ("bytes=0-0", 10, range(0, 0)),
            ("Bytes= 2-5 ", 10, range(2, 5)),
            ("bytes=9-", 10, range(9, 9)),
            ("bytes=0-99999999999999999999999", 10, range(0, 9)),
            ("bytes=-3", 10, range(7, 9)),
            ("bytes=-30", 10, range(0, 9)),
            ("bytes=10-", 10, Some(Part::None)),
            ("bytes=99999999999999999999999-", 10, Some(Part::None)),
            ("bytes=-0", 10, Some(Part::None)),
            ("bytes=0-", 0, Some(Part::None)),
            ("bytes=-1", 0, None),
            ("bytes=5-2", 10, None),
            ("bytes=0-1,3-4", 10, None),
            ("bytes=0-1, ", 10, None),
            ("bytes=-", 10, None),
            ("bytes=+1-2", 10, None),
            ("bytes=1 -2", 10, None),
            ("bytes=--1", 10, None),
            ("lines=0-1", 10, None),
            ("bytes", 10, None),
        ] {
            assert_eq!(parse(text.as_bytes(), length), expected, "{text} of {length}");
        }
    }

    proptest! {
        #[test]
        fn a_range_is_inside(text in "bytes=[0-9,-]{0,12}", length in 0u64..200) {
            if let Some(Part::Range { first, last }) = parse(text.as_bytes(), length) {
                prop_assert!(first <= last && last < length);
            }
        }
    }
}
