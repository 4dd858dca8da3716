//! The head of a stored response, as bytes beside its body, which may still be on its way when they are written.
//!
//! What a hit decides by stands in numbers, so that nothing is parsed: freshness, dates, where the entity tag is. Fields stand there as
//! HTTP/1 sends them, with a table of their lengths for those who want them one by one. All numbers are little-endian, times are seconds
//! since 1970.
//!
//! | offset | size | field           | meaning                                                                              |
//! |-------:|-----:|-----------------|--------------------------------------------------------------------------------------|
//! |      0 |    1 | `kind`          | [`HEAD_KIND`]: kind and version                                                      |
//! |      1 |    1 | `flags`         | always validated 1, never used stale 2, immutable 4, has a variant 8; others are 0   |
//! |      2 |    2 | `status`        | 200 to 999                                                                           |
//! |      4 |    4 | `lifetime`      | seconds                                                                              |
//! |      8 |    8 | `born`          | when its age was 0; may be negative                                                  |
//! |     16 |    4 | `while_revalidate` | seconds                                                                           |
//! |     20 |    4 | `if_error`      | seconds, 2^32 - 1 for none                                                           |
//! |     24 |    8 | `dated`         | `Date`                                                                               |
//! |     32 |    8 | `modified`      | `Last-Modified`, -2^63 for none                                                      |
//! |     40 |    2 | `etag`          | number of the field `ETag`, 0xffff for none                                          |
//! |     42 |    2 | `key_bytes`     |                                                                                      |
//! |     44 |    2 | `fields`        | how many                                                                             |
//! |     46 |    2 | `lines_bytes`   |                                                                                      |
//! |     48 |   32 | `variant`       | only with its flag                                                                   |
//! |        |      | key             | the URL                                                                              |
//! |        |    4 | each field      | bytes of its name, 2; of its value, 2                                                |
//! |        |      | lines           | `name: value\r\n`, each; names in lower case                                         |

use crate::fields::{remove_all, remove_hop_by_hop};
use crate::freshness::Freshness;
use crate::key::Target;
use crate::store::Storing;
use crate::syntax::{date, format_date};
use crate::vary::VariantId;
use http::StatusCode;
use http::header::{AGE, CONTENT_LENGTH, DATE, ETAG, HeaderMap, HeaderName, HeaderValue, LAST_MODIFIED};
use pumice_record::codec::Fields;
use thiserror::Error;

/// The first byte of a head; another version would have another one.
pub const HEAD_KIND: u8 = 1;

/// The most bytes of the lines of a response's fields.
pub const LINES_BYTES_MAX: usize = 32 << 10;

const FIXED_BYTES: usize = 48;

const NO_ETAG: u16 = u16::MAX;
const NO_SECS: u32 = u32::MAX;
const NO_DATE: i64 = i64::MIN;

const ALWAYS_VALIDATED: u8 = 1 << 0;
const NEVER_STALE: u8 = 1 << 1;
const IMMUTABLE: u8 = 1 << 2;
const VARIANT: u8 = 1 << 3;

/// A head as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head<'a> {
    /// The response's status.
    pub status: StatusCode,
    /// How long it may be used.
    pub freshness: Freshness,
    /// Length of the body, which is not told by the bytes.
    pub body_bytes: u64,
    /// Its `Date`, in seconds since 1970; if the origin told none, when it came.
    pub dated_secs: i64,
    /// Its `Last-Modified`.
    pub modified_secs: Option<i64>,
    /// Its `ETag`.
    pub etag: Option<&'a [u8]>,
    /// The full key of its URL.
    pub key: &'a [u8],
    /// Which variant of its URL it is.
    pub variant: Option<VariantId>,
    lengths: &'a [u8],
    lines: &'a [u8],
}

/// A response has more fields than a head may have, or a longer key.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("the response's fields, or its key, are too long to be stored")]
pub struct HeadTooLarge;

/// What a head is made of.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "as in `Head`")]
pub struct NewHead<'a> {
    pub status: StatusCode,
    pub storing: &'a Storing,
    pub key: &'a str,
    pub variant: Option<VariantId>,
    /// All fields that the origin sent, or that a 304 left.
    pub fields: &'a HeaderMap,
    /// When they came.
    pub received_secs: i64,
}

impl NewHead<'_> {
    /// The bytes of the head. Fields that are not stored (RFC 9111, 3.1) are left out, `Age` and `Content-Length`, which a hit computes,
    /// and those that the response itself names. A response without `Date` gets the time it came (RFC 9110, 6.6.1).
    ///
    /// # Errors
    ///
    /// Where fields or key are too long.
    pub fn encode(&self) -> Result<Vec<u8>, HeadTooLarge> {
        let freshness = &self.storing.freshness;
        let mut fields = self.fields.clone();
        remove_hop_by_hop(&mut fields);
        let is_computed = |name: &HeaderName| *name == AGE || *name == CONTENT_LENGTH;
        remove_all(&mut fields, |name| {
            is_computed(name) || self.storing.left_out.contains(name)
        });
        let parsed = |name: &HeaderName| fields.get(name).and_then(|text| date(text.as_bytes()));
        let modified = parsed(&LAST_MODIFIED);
        let dated = parsed(&DATE).unwrap_or(self.received_secs);
        if !fields.contains_key(DATE) {
            let text = format_date(self.received_secs);
            fields.insert(
                DATE,
                HeaderValue::from_str(&text).expect("a date is a field's value"),
            );
        }
        let (mut lengths, mut lines, mut etag) = (Vec::new(), Vec::<u8>::new(), NO_ETAG);
        for (number, (name, value)) in fields.iter().enumerate() {
            let (name_bytes, value_bytes) = (narrow(name.as_str().len())?, narrow(value.len())?);
            lengths.extend(name_bytes.to_le_bytes());
            lengths.extend(value_bytes.to_le_bytes());
            lines.extend(name.as_str().as_bytes());
            lines.extend(b": ");
            lines.extend(value.as_bytes());
            lines.extend(b"\r\n");
            if name == ETAG && etag == NO_ETAG {
                etag = narrow(number)?;
            }
        }
        if lines.len() > LINES_BYTES_MAX {
            return Err(HeadTooLarge);
        }
        let flag = |flag: u8, is_set: bool| if is_set { flag } else { 0 };
        let flags = flag(ALWAYS_VALIDATED, freshness.is_always_validated)
            | flag(NEVER_STALE, freshness.is_never_stale)
            | flag(IMMUTABLE, freshness.is_immutable)
            | flag(VARIANT, self.variant.is_some());
        let [key_bytes, count, lines_bytes] = [self.key.len(), lengths.len() / 4, lines.len()].map(narrow);
        let mut bytes = Vec::with_capacity(FIXED_BYTES + 32 + self.key.len() + lengths.len() + lines.len());
        bytes.extend([HEAD_KIND, flags]);
        bytes.extend(self.status.as_u16().to_le_bytes());
        bytes.extend(freshness.lifetime_secs.to_le_bytes());
        bytes.extend(freshness.born_secs.to_le_bytes());
        bytes.extend(freshness.while_revalidate_secs.to_le_bytes());
        bytes.extend(freshness.if_error_secs.unwrap_or(NO_SECS).to_le_bytes());
        bytes.extend(dated.to_le_bytes());
        bytes.extend(modified.unwrap_or(NO_DATE).to_le_bytes());
        for number in [etag, key_bytes?, count?, lines_bytes?] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.variant.iter().flatten());
        bytes.extend(self.key.as_bytes());
        bytes.extend(lengths);
        bytes.extend(lines);
        Ok(bytes)
    }
}

fn narrow(length: usize) -> Result<u16, HeadTooLarge> {
    u16::try_from(length).map_err(|_| HeadTooLarge)
}

impl<'a> Head<'a> {
    /// What [`NewHead::encode`] wrote, beside a body of that length; `None` for other bytes, which may be any. What comes back is sound: each field stands in a line of
    /// its own, and no value has a control character that could end one.
    pub fn decode(bytes: &'a [u8], body_bytes: u64) -> Option<Self> {
        let mut reader = Fields(bytes);
        let [HEAD_KIND, flags] = reader.array()? else {
            return None;
        };
        let has = |flag: u8| flags & flag != 0;
        let status = StatusCode::from_u16(reader.u16()?)
            .ok()
            .filter(|status| status.as_u16() >= 200)?;
        let lifetime_secs = reader.u32()?;
        let born_secs = reader.u64()?.cast_signed();
        let while_revalidate_secs = reader.u32()?;
        let if_error = reader.u32()?;
        let dated_secs = reader.u64()?.cast_signed();
        let modified = reader.u64()?.cast_signed();
        let [etag, key_bytes, fields, lines_bytes] =
            [reader.u16()?, reader.u16()?, reader.u16()?, reader.u16()?];
        if flags >= VARIANT << 1 {
            return None;
        }
        let variant = match has(VARIANT) {
            true => Some(reader.array()?),
            false => None,
        };
        let key = reader.bytes(key_bytes.into())?;
        let lengths = reader.bytes(usize::from(fields) * 4)?;
        let lines = reader.bytes(lines_bytes.into())?;
        let mut head = Self {
            status,
            freshness: Freshness {
                born_secs,
                lifetime_secs,
                while_revalidate_secs,
                if_error_secs: Some(if_error).filter(|secs| *secs != NO_SECS),
                is_always_validated: has(ALWAYS_VALIDATED),
                is_never_stale: has(NEVER_STALE),
                is_immutable: has(IMMUTABLE),
            },
            body_bytes,
            dated_secs,
            modified_secs: Some(modified).filter(|secs| *secs != NO_DATE),
            etag: None,
            key,
            variant,
            lengths,
            lines,
        };
        let is_whole = reader.0.is_empty() && lines.len() <= LINES_BYTES_MAX && head.is_sound();
        if !is_whole {
            return None;
        }
        if etag != NO_ETAG {
            let (name, value) = head.fields().nth(etag.into())?;
            head.etag = (name == ETAG.as_str().as_bytes()).then_some(Some(value))?;
        }
        Some(head)
    }

    /// Whether it is what was looked up: the engine's key is a digest, of which two URLs may have the same.
    pub fn is_for(&self, target: &Target, variant: Option<VariantId>) -> bool {
        self.key == target.key().as_bytes() && self.variant == variant
    }

    /// Whether the lines are as long as the table says, end as lines do, and have no other controls than tabs.
    fn is_sound(&self) -> bool {
        let mut rest = self.lines;
        for (name_bytes, value_bytes) in lengths(self.lengths) {
            let Some((line, behind)) = rest.split_at_checked(name_bytes + value_bytes + 4) else {
                return false;
            };
            if name_bytes == 0 || !line[name_bytes..].starts_with(b": ") || !line.ends_with(b"\r\n") {
                return false;
            }
            rest = behind;
        }
        let is_control = |byte: u8| u16::from(byte < b' ' && byte != b'\t' || byte == 0x7f);
        // A sum, not a search: the compiler makes few instructions of it. There are fewer than 2^16 bytes.
        let controls: u16 = self.lines.iter().map(|&byte| is_control(byte)).sum();
        rest.is_empty() && usize::from(controls) == self.lengths.len() / 4 * 2
    }

    /// The fields, as HTTP/1 sends them.
    pub fn lines(&self) -> &'a [u8] {
        self.lines
    }

    /// Names and values of the fields, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let mut rest = self.lines;
        lengths(self.lengths).map(move |(name_bytes, value_bytes)| {
            let (line, behind) = rest.split_at(name_bytes + value_bytes + 4);
            rest = behind;
            (
                &line[..name_bytes],
                &line[name_bytes + 2..name_bytes + 2 + value_bytes],
            )
        })
    }

    /// The fields as a map, to be changed by a 304.
    pub fn to_map(&self) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in self.fields() {
            if let (Ok(name), Ok(value)) = (HeaderName::from_lowercase(name), HeaderValue::from_bytes(value))
            {
                map.append(name, value);
            }
        }
        map
    }
}

fn lengths(table: &[u8]) -> impl Iterator<Item = (usize, usize)> {
    let number = |low: u8, high: u8| usize::from(u16::from_le_bytes([low, high]));
    table
        .as_chunks::<4>()
        .0
        .iter()
        .map(move |&[a, b, c, d]| (number(a, b), number(c, d)))
}
