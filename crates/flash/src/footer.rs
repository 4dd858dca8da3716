//! The entries of a block of objects, and what its trailer says of them.

use pumice_blocks::footer::{Entry, OWN_BYTES, Trailer};
use pumice_record::codec::Fields;
use std::ops::Range;

/// Records start and end at multiples of this many bytes in their block.
pub(crate) const RECORD_UNIT: u32 = 8;

/// One object of a block, in order of offset. 10 to 29 bytes:
///
/// | bytes | field     | meaning                                                                                             |
/// |------:|-----------|-----------------------------------------------------------------------------------------------------|
/// |    1+ | `len`     | number: length of the record with padding in units of 8 bytes, times 4; 1 more with `expiry`, 2 with `gap` |
/// |    1+ | `gap`     | number: units between the end of the record before, or the block's start, and this one               |
/// |    1+ | `version` | number: difference to the version before, or to 0, times 2; if negative, twice its amount less 1     |
/// |     8 | `hash`    | of the key                                                                                          |
/// |     4 | `expiry`  | Unix seconds                                                                                        |
///
/// Numbers have 7 bits in a byte, the lowest first; the upper bit says that another byte follows. Gaps and expiries of 0 are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FooterEntry {
    /// Hash of the key.
    pub hash: u64,
    /// Version of the copy.
    pub version: u64,
    /// Bytes into the block.
    pub offset: u32,
    /// Bytes with padding.
    pub len: u32,
    /// Unix seconds, 0 = never.
    pub expiry: u32,
    /// Which of the entries it is, from 0; not written.
    pub number: u32,
}

/// Bits of `len`.
const HAS_EXPIRY: u64 = 1;
const HAS_GAP: u64 = 2;
const LEN_SHIFT: u32 = 2;
/// Bytes of the longest number.
const NUMBER_BYTES_MAX: usize = 10;

impl FooterEntry {
    /// Its numbers behind another entry: `len`, `gap` and `version`. The upper bits of a gap tell where records overlap, which never is so.
    fn numbers(&self, before: Option<&Self>) -> [u64; 3] {
        let (end, version) = before.map_or((0, 0), |before| (before.offset + before.len, before.version));
        let gap = u64::from(self.offset.wrapping_sub(end) / RECORD_UNIT);
        let difference = self.version.wrapping_sub(version) as i64;
        let has = HAS_EXPIRY * u64::from(self.expiry != 0) + HAS_GAP * u64::from(gap != 0);
        let len = u64::from(self.len / RECORD_UNIT) << LEN_SHIFT | has;
        [len, gap, (difference << 1 ^ difference >> 63) as u64]
    }
}

impl Entry for FooterEntry {
    const BYTES: usize = 1;
    const BYTES_MAX: usize = 3 + 4 + NUMBER_BYTES_MAX + 8 + 4;

    fn encoded_len(&self, before: Option<&Self>) -> usize {
        let [len, gap, version] = self.numbers(before);
        let gap_len = if gap == 0 { 0 } else { number_len(gap) };
        let expiry_len = if self.expiry == 0 { 0 } else { 4 };
        number_len(len) + gap_len + number_len(version) + 8 + expiry_len
    }

    fn encode(&self, before: Option<&Self>, out: &mut Vec<u8>) {
        let [len, gap, version] = self.numbers(before);
        put_number(len, out);
        if gap != 0 {
            put_number(gap, out);
        }
        put_number(version, out);
        out.extend_from_slice(&self.hash.to_le_bytes());
        if self.expiry != 0 {
            out.extend_from_slice(&self.expiry.to_le_bytes());
        }
    }

    fn decode(fields: &mut Fields<'_>, before: Option<&Self>, number: u32) -> Option<Self> {
        let (end, version_before) =
            before.map_or((0, 0), |before| (before.offset + before.len, before.version));
        let len = take_number(fields)?;
        let mut gap = 0;
        if len & HAS_GAP != 0 {
            gap = take_number(fields).filter(|gap| *gap != 0)?;
        }
        let version = take_number(fields)?;
        let difference = (version >> 1) ^ (version & 1).wrapping_neg();
        let hash = fields.u64()?;
        let mut expiry = 0;
        if len & HAS_EXPIRY != 0 {
            expiry = fields.u32().filter(|expiry| *expiry != 0)?;
        }
        let bytes = |units: u64| u32::try_from(units).ok()?.checked_mul(RECORD_UNIT);
        let offset = end.checked_add(bytes(gap)?)?;
        let len = bytes(len >> LEN_SHIFT)?;
        offset.checked_add(len)?;
        Some(Self {
            hash,
            version: version_before.wrapping_add(difference),
            offset,
            len,
            expiry,
            number,
        })
    }

    fn range(&self) -> Range<u64> {
        u64::from(self.offset)..u64::from(self.offset) + u64::from(self.len)
    }
}

fn number_len(number: u64) -> usize {
    (u64::BITS - (number | 1).leading_zeros()).div_ceil(7) as usize
}

fn put_number(mut number: u64, out: &mut Vec<u8>) {
    while number > 0x7F {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// `None` where a number goes on beyond 64 bits, or has more bytes than it needs.
fn take_number(fields: &mut Fields<'_>) -> Option<u64> {
    let mut number = 0;
    for at in 0..NUMBER_BYTES_MAX {
        let byte = fields.u8()?;
        let bits = u64::from(byte & 0x7F);
        number |= bits << (7 * at);
        if byte & 0x80 == 0 {
            let is_shortest = byte != 0 || at == 0;
            return (is_shortest && number >> (7 * at) == bits).then_some(number);
        }
    }
    None
}

/// The owner's bytes of a trailer.
///
/// | offset | size | field        | meaning                                                |
/// |-------:|-----:|--------------|--------------------------------------------------------|
/// |      0 |    4 | `expiry_max` | latest expiry of its objects, 2^32 - 1 if one has none |
/// |      4 |    2 | `position`   | in the queue at sealing, in 65,535ths                  |
/// |      6 |    2 | zero         |                                                        |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Latest expiry of the block's objects.
    pub expiry_max: u32,
    /// Where the block stood in the queue when it was sealed, in 65,535ths of its bytes from the tail.
    pub position: u16,
}

impl Ending {
    /// Of a block with these objects.
    pub fn new(entries: &[FooterEntry], position: u16) -> Self {
        let expiries = entries
            .iter()
            .map(|e| if e.expiry == 0 { u32::MAX } else { e.expiry });
        Self {
            expiry_max: expiries.max().unwrap_or(0),
            position,
        }
    }

    /// As a trailer has it.
    pub fn encode(self) -> [u8; OWN_BYTES] {
        let mut out = [0; OWN_BYTES];
        out[..4].copy_from_slice(&self.expiry_max.to_le_bytes());
        out[4..6].copy_from_slice(&self.position.to_le_bytes());
        out
    }

    /// Of a block with this trailer.
    pub fn of(trailer: &Trailer) -> Self {
        let [a, b, c, d, e, f, _, _] = trailer.own;
        Self {
            expiry_max: u32::from_le_bytes([a, b, c, d]),
            position: u16::from_le_bytes([e, f]),
        }
    }
}

/// Entries of a footer that are looked at before other tasks get their turn.
pub(crate) const ENTRIES_PER_TURN: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use pumice_blocks::footer::{TRAILER_BYTES, decode_entries, encode_footer};

    const CACHE_ID: u64 = 7;

    fn entries() -> Vec<FooterEntry> {
        let lens = [24, 320, 8, 4_104, 1 << 20, 320, 8, 64];
        let gaps = [0, 0, 8, 0, 4_088, 0, 1 << 27, 0];
        let versions = [
            1 << 44 | 5,
            1 << 44 | 6,
            3,
            u64::MAX,
            0,
            u64::MAX / 2,
            1 << 63,
            1 << 63,
        ];
        let mut offset = 0;
        let entry = |(number, ((len, gap), version))| {
            offset += gap;
            let entry = FooterEntry {
                hash: 0x9E37_79B9_7F4A_7C15u64 << number,
                version,
                offset,
                len,
                expiry: if number % 3 == 1 { u32::MAX - number } else { 0 },
                number,
            };
            offset += len;
            entry
        };
        (0..)
            .zip(lens.into_iter().zip(gaps).zip(versions))
            .map(entry)
            .collect()
    }

    /// The bytes of entries without the trailer.
    fn encoded(entries: &[FooterEntry]) -> Vec<u8> {
        let (mut bytes, _) = encode_footer(CACHE_ID, 0, 1, 0, [0; OWN_BYTES], entries);
        bytes.truncate(bytes.len() - TRAILER_BYTES);
        bytes
    }

    #[test]
    fn entries_read_back_and_are_as_long_as_was_said() {
        let entries = entries();
        let (bytes, trailer) = encode_footer(CACHE_ID, 0, 1, 0, [0; OWN_BYTES], &entries);
        let block_bytes = 256 << 20;
        assert_eq!(
            decode_entries(CACHE_ID, &trailer, &bytes, block_bytes).as_ref(),
            Some(&entries)
        );
        let mut before = None;
        for entry in &entries {
            let mut bytes = Vec::new();
            entry.encode(before, &mut bytes);
            assert_eq!(bytes.len(), entry.encoded_len(before));
            assert!(bytes.len() <= FooterEntry::BYTES_MAX);
            before = Some(entry);
        }
        let next = FooterEntry {
            version: entries[0].version + 1,
            offset: 24,
            len: 328,
            ..entries[0]
        };
        assert_eq!(next.encoded_len(Some(&entries[0])), 11, "that of most objects");
    }

    #[test]
    fn a_list_without_some_entries_is_not_longer() {
        let entries = entries();
        let whole = encoded(&entries).len();
        for left_out in 1..1u32 << entries.len() {
            let some = (0..).zip(&entries).filter(|(at, _)| left_out >> at & 1 == 0);
            let some: Vec<FooterEntry> = some.map(|(_, entry)| *entry).collect();
            assert!(encoded(&some).len() < whole, "{left_out:b}");
        }
    }

    #[test]
    fn no_two_lists_of_bytes_say_the_same() {
        let decode = |bytes: &[u8]| {
            let mut fields = Fields(bytes);
            let entry = FooterEntry::decode(&mut fields, None, 0)?;
            fields.0.is_empty().then_some(entry)
        };
        let hash = [9; 8];
        let of = |numbers: &[u8], expiry: &[u8]| decode(&[numbers, &hash[..], expiry].concat());
        assert!(of(&[4, 2], &[]).is_some());
        assert_eq!(of(&[4, 0x82, 0], &[]), None, "a number with a byte too many");
        assert_eq!(of(&[6, 0, 2], &[]), None, "a gap of 0");
        assert_eq!(of(&[5, 2], &[0; 4]), None, "an expiry of 0");
        assert!(of(&[7, 1, 2], &[1, 0, 0, 0]).is_some());
        let most = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1];
        assert!(of(&[&[4][..], &most].concat(), &[]).is_some());
        assert_eq!(
            of(&[&[4][..], &most[..9], &[2]].concat(), &[]),
            None,
            "beyond 64 bits"
        );
    }
}
