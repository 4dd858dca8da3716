//! The letters of field values: lists, quoted strings, seconds, dates, entity tags.

use http::HeaderMap;
use http::header::AsHeaderName;
use std::borrow::Cow;
use std::time::{Duration, UNIX_EPOCH};

/// What a number of seconds is that is too large (RFC 9111, 1.2.2).
pub(crate) const SECS_MAX: u32 = 1 << 31;

/// The last second that a date can be written for: the end of the year 9999.
const DATE_MAX: i64 = 253_402_300_799;

/// The bytes without the blanks around them.
pub(crate) fn trim(bytes: &[u8]) -> &[u8] {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = bytes
        .iter()
        .position(|byte| !is_blank(byte))
        .unwrap_or(bytes.len());
    let end = bytes
        .iter()
        .rposition(|byte| !is_blank(byte))
        .map_or(start, |last| last + 1);
    &bytes[start..end]
}

/// The members of a list: between commas that are outside quoted strings, without blanks around them; empty ones are left out. A quote
/// that is never closed is a letter as any other, so that it hides nothing of what follows.
pub(crate) struct Members<'a> {
    rest: &'a [u8],
    has_quotes: bool,
}

impl<'a> Members<'a> {
    pub(crate) fn of(list: &'a [u8]) -> Self {
        Self {
            rest: list,
            has_quotes: true,
        }
    }

    /// Where the first member ends.
    fn end(&mut self) -> usize {
        let (mut is_quoted, mut is_escaped) = (false, false);
        let end = self.rest.iter().position(|byte| {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' if is_quoted => is_escaped = true,
                b'"' if self.has_quotes => is_quoted = !is_quoted,
                b',' => return !is_quoted,
                _ => {}
            }
            false
        });
        if end.is_none() && is_quoted {
            self.has_quotes = false;
            return self.end();
        }
        end.unwrap_or(self.rest.len())
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        while !self.rest.is_empty() {
            let end = self.end();
            let member = trim(&self.rest[..end]);
            self.rest = self.rest.get(end + 1..).unwrap_or_default();
            if !member.is_empty() {
                return Some(member);
            }
        }
        None
    }
}

/// The members of a field over all its lines.
pub(crate) fn members(fields: &HeaderMap, name: impl AsHeaderName) -> impl Iterator<Item = &[u8]> {
    fields
        .get_all(name)
        .iter()
        .flat_map(|line| Members::of(line.as_bytes()))
}

/// A field that may stand there once: `None` where it is absent or stands there more than once.
pub(crate) fn single(fields: &HeaderMap, name: impl AsHeaderName) -> Option<&[u8]> {
    let mut lines = fields.get_all(name).iter();
    let first = lines.next()?;
    lines.next().is_none().then(|| first.as_bytes())
}

/// A token or quoted string without its quotes.
pub(crate) fn unquote(text: &[u8]) -> Cow<'_, [u8]> {
    let inner = text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\""));
    match inner {
        None => Cow::Borrowed(text),
        Some(inner) if !inner.contains(&b'\\') => Cow::Borrowed(inner),
        Some(inner) => {
            let mut is_escaped = false;
            let is_letter = |byte: &&u8| {
                is_escaped = **byte == b'\\' && !is_escaped;
                !is_escaped
            };
            Cow::Owned(inner.iter().filter(is_letter).copied().collect())
        }
    }
}

/// Digits alone, as a number; one that is too large is the largest. `None` for anything else.
pub(crate) fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let append = |sum: u64, byte: &u8| sum.saturating_mul(10).saturating_add(u64::from(byte - b'0'));
    Some(text.iter().fold(0, append))
}

/// A number of seconds, at most [`SECS_MAX`].
pub(crate) fn secs(text: &[u8]) -> Option<u32> {
    let number = digits(text)?;
    Some(u32::try_from(number).map_or(SECS_MAX, |number| number.min(SECS_MAX)))
}

/// A date in one of the three forms of RFC 9110, 5.6.7, as seconds since 1970.
pub(crate) fn date(text: &[u8]) -> Option<i64> {
    let time = httpdate::parse_http_date(std::str::from_utf8(text).ok()?).ok()?;
    i64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_secs()).ok()
}

/// Seconds since 1970 as a date.
pub(crate) fn format_date(secs: i64) -> String {
    let secs = secs.clamp(0, DATE_MAX).unsigned_abs();
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(secs))
}

/// Whether two entity tags are equal but for their weakness.
pub(crate) fn is_same_tag(one: &[u8], other: &[u8]) -> bool {
    let opaque = |tag| <[u8]>::strip_prefix(tag, b"W/").unwrap_or(tag);
    opaque(one) == opaque(other)
}

/// Whether two entity tags are equal and both strong.
pub(crate) fn is_same_strong_tag(one: &[u8], other: &[u8]) -> bool {
    one == other && !one.starts_with(b"W/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_split_outside_quotes() {
        for (list, expected) in [
            (
                &b" a ,, b=\"c, \\\"d\" ,"[..],
                &[&b"a"[..], b"b=\"c, \\\"d\""][..],
            ),
            (b"", &[]),
            (b" ,\t,", &[]),
            // Not closed: what follows is seen.
            (b"a=\"b, no-store", &[b"a=\"b", b"no-store"]),
            (b"a\\,b", &[b"a\\", b"b"]),
        ] {
            assert_eq!(Members::of(list).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn many_open_quotes_take_no_longer() {
        let list = b"\"\\,\"\\\",".repeat(1 << 14);
        assert!(Members::of(&list).count() > 1);
    }

    #[test]
    fn numbers_and_strings() {
        assert_eq!(secs(b"007"), Some(7));
        assert_eq!(secs(b"99999999999999999999999"), Some(SECS_MAX));
        for bad in [&b""[..], b"-1", b"+1", b"1.5", b" 1", b"1a"] {
            assert_eq!(secs(bad), None);
        }
        assert_eq!(&*unquote(b"\"a\\\"b\\\\\""), b"a\"b\\");
        assert_eq!(&*unquote(b"\"a"), b"\"a");
    }

    #[test]
    fn dates_have_three_forms() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(date(text.as_bytes()), Some(784_111_777));
        }
        for bad in [
            "0",
            "",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 31 Feb 1994 08:49:37 GMT",
        ] {
            assert_eq!(date(bad.as_bytes()), None);
        }
        assert_eq!(format_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(format_date(i64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
        assert_eq!(format_date(-1), "Thu, 01 Jan 1970 00:00:00 GMT");
    }
}
