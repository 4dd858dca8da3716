//! The header of a record, on flash and in DRAM. What most objects have none of takes no room.
//!
//! Before the fixed fields stands, on flash, the checksum of header and key (4 bytes); in the DRAM tier, where nothing rots, the location
//! of the copy on flash (8 bytes). The rest is the same:
//!
//! | offset | size | field       | meaning                                                              |
//! |-------:|-----:|-------------|----------------------------------------------------------------------|
//! |      0 |    1 | `has`       | which of the fields from offset 15 on there are                      |
//! |      1 |    1 | `key_len`   | bytes                                                                |
//! |      2 |    2 | `value_len` | bytes, the lower half                                                |
//! |      4 |    4 | `value_crc` | CRC-32C of the value                                                 |
//! |      8 |    6 | `version`   | orders copies: 40 bits of the counter, 8 of the epoch                |
//! |     14 |    1 | `marks`     | what else is said of the object; means nothing here                  |
//! |     15 |    4 | `expiry`    | bit 0 of `has`: Unix seconds                                         |
//! |        |    4 | `flags`     | bit 1: the client's; of a slice, KiB of the whole value, rounded up  |
//! |        |    2 | `value_len` | bit 2: the upper half                                                |
//! |        |    4 | `slice`     | bit 3: 2^32 - 1 head, else slice number + 1                          |
//! |        |    2 | `version`   | bit 4: 4 more bits of the counter, 12 of the epoch                   |
//! |        |    2 | `head_len`  | bit 5: bytes of the owner's between key and value                    |
//!
//! A field of these that is there is not 0. Marks are always there: the copies of an object on flash and in DRAM, which may differ in them, are
//! of one length. Bits 6 and 7 of `has` are 0.

use crate::codec::{Fields, checksum};
use crate::record::SliceId;
use std::ops::Deref;

const CRC_BYTES: usize = 4;
const BACKING_BYTES: usize = 8;
const FIXED_BYTES: usize = 15;
/// Length of the shortest header on flash, in bytes.
pub const HEADER_BYTES: usize = CRC_BYTES + FIXED_BYTES;
/// Length of the longest header, on flash or in DRAM, in bytes.
pub const HEADER_BYTES_MAX: usize = BACKING_BYTES + FIXED_BYTES + 18;

const HAS_EXPIRY: u8 = 1;
const HAS_FLAGS: u8 = 2;
const IS_LONG: u8 = 4;
const HAS_SLICE: u8 = 8;
const IS_WIDE: u8 = 16;
const HAS_HEAD: u8 = 32;
/// The fields that there may be, in their order, and their lengths.
const OPTIONAL: [(u8, usize); 6] = [
    (HAS_EXPIRY, 4),
    (HAS_FLAGS, 4),
    (IS_LONG, 2),
    (HAS_SLICE, 4),
    (IS_WIDE, 2),
    (HAS_HEAD, 2),
];

/// Bits of a version below the epoch of its start: a counter.
pub const EPOCH_SHIFT: u32 = 44;
/// Bits of the counter, and of the epoch, that every version has room for.
const COUNTER_BITS: u32 = 40;
const EPOCH_BITS: u32 = 8;

/// The lower 48 bits of a version as they are stored, and the upper 16.
fn split(version: u64) -> (u64, u16) {
    let (epoch, counter) = (version >> EPOCH_SHIFT, version & ((1 << EPOCH_SHIFT) - 1));
    let low = |number: u64, bits: u32| number & ((1 << bits) - 1);
    let lower = low(counter, COUNTER_BITS) | low(epoch, EPOCH_BITS) << COUNTER_BITS;
    let upper = counter >> COUNTER_BITS | epoch >> EPOCH_BITS << (EPOCH_SHIFT - COUNTER_BITS);
    (lower, upper as u16)
}

/// The version that [`split`] has split.
fn join(lower: u64, upper: u16) -> u64 {
    let upper = u64::from(upper);
    let counter_rest = EPOCH_SHIFT - COUNTER_BITS;
    let counter = lower & ((1 << COUNTER_BITS) - 1) | (upper & ((1 << counter_rest) - 1)) << COUNTER_BITS;
    let epoch = lower >> COUNTER_BITS | upper >> counter_rest << EPOCH_BITS;
    epoch << EPOCH_SHIFT | counter
}

/// What a record says of its object beside key and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// CRC-32C of the value.
    pub value_crc: u32,
    /// Orders copies; the memcached CAS unique.
    pub version: u64,
    /// Sequence of the block, which enters the checksum alone; 0 in the DRAM tier.
    pub sequence: u64,
    /// Unix seconds, 0 = never.
    pub expiry: u32,
    /// The client's flags.
    pub flags: u32,
    /// Bytes of the value.
    pub value_len: u32,
    /// Bytes of the key.
    pub key_len: u8,
    /// Bytes of the owner's between key and value.
    pub head_len: u16,
    /// What else is said of the object.
    pub marks: u8,
    /// Which part of the object.
    pub slice: SliceId,
}

/// The bytes of a header.
pub struct HeaderBytes {
    bytes: [u8; HEADER_BYTES_MAX],
    len: usize,
}

impl Deref for HeaderBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The length of the header on flash that begins with these bytes, at least five; `None` where there is no such header.
pub(crate) fn len_of(start: &[u8]) -> Option<usize> {
    body_len(*start.get(CRC_BYTES)?).map(|len| CRC_BYTES + len)
}

/// The same, of one in DRAM, from nine bytes.
pub(crate) fn dram_len_of(start: &[u8]) -> Option<usize> {
    body_len(*start.get(BACKING_BYTES)?).map(|len| BACKING_BYTES + len)
}

/// Bytes that tell how long a header is, on flash and in DRAM.
pub(crate) const START_BYTES: usize = CRC_BYTES + 1;
pub(crate) const DRAM_START_BYTES: usize = BACKING_BYTES + 1;
/// A header in DRAM is longer than on flash by so many bytes.
pub(crate) const DRAM_MORE_BYTES: usize = BACKING_BYTES - CRC_BYTES;

/// `None` where `has` has bits that mean nothing.
fn body_len(has: u8) -> Option<usize> {
    let there = OPTIONAL.iter().filter(|(bit, _)| has & bit != 0);
    (has < 1 << OPTIONAL.len()).then(|| FIXED_BYTES + there.map(|(_, len)| len).sum::<usize>())
}

impl RecordHeader {
    fn has(&self) -> u8 {
        let there = [
            (HAS_EXPIRY, self.expiry != 0),
            (HAS_FLAGS, self.flags != 0),
            (IS_LONG, self.value_len > u32::from(u16::MAX)),
            (HAS_SLICE, self.slice != SliceId::Whole),
            (IS_WIDE, split(self.version).1 != 0),
            (HAS_HEAD, self.head_len != 0),
        ];
        there
            .iter()
            .map(|(bit, is_there)| bit * u8::from(*is_there))
            .sum()
    }

    /// Length of the header on flash, in bytes.
    pub fn header_len(&self) -> usize {
        CRC_BYTES + body_len(self.has()).expect("no other bits are set")
    }

    /// Length of the whole record on flash without padding.
    pub fn encoded_len(&self) -> usize {
        self.header_len() + self.named_len() + self.value_len as usize
    }

    /// Length of what stands between header and value: the key, and the owner's bytes.
    pub fn named_len(&self) -> usize {
        usize::from(self.key_len) + usize::from(self.head_len)
    }

    fn encode_after(&self, before: &[u8]) -> HeaderBytes {
        let mut out = HeaderBytes {
            bytes: [0; HEADER_BYTES_MAX],
            len: 0,
        };
        let mut put = |bytes: &[u8]| {
            out.bytes[out.len..out.len + bytes.len()].copy_from_slice(bytes);
            out.len += bytes.len();
        };
        let has = self.has();
        let (lower, upper) = split(self.version);
        put(before);
        put(&[has, self.key_len]);
        put(&(self.value_len as u16).to_le_bytes());
        put(&self.value_crc.to_le_bytes());
        put(&lower.to_le_bytes()[..6]);
        put(&[self.marks]);
        let mut put_if = |bit: u8, bytes: &[u8]| {
            if has & bit != 0 {
                put(bytes);
            }
        };
        put_if(HAS_EXPIRY, &self.expiry.to_le_bytes());
        put_if(HAS_FLAGS, &self.flags.to_le_bytes());
        put_if(IS_LONG, &((self.value_len >> 16) as u16).to_le_bytes());
        put_if(HAS_SLICE, &self.slice.encode().to_le_bytes());
        put_if(IS_WIDE, &upper.to_le_bytes());
        put_if(HAS_HEAD, &self.head_len.to_le_bytes());
        out
    }

    /// Header bytes as flash has them, for this key and these bytes of the owner's. The sequence of the block enters the checksum:
    /// leftovers of a former generation stay dead.
    pub fn encode(&self, cache_id: u64, key: &[u8], head: &[u8]) -> HeaderBytes {
        let mut out = self.encode_after(&[0; CRC_BYTES]);
        let crc = head_checksum(cache_id, self.sequence, &out, &[key, head]);
        out.bytes[..CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Header bytes as the DRAM tier has them.
    pub(crate) fn encode_dram(&self, backing: u64) -> HeaderBytes {
        self.encode_after(&backing.to_le_bytes())
    }

    /// Reads the header that `bytes` begin with, of a record in a block with `sequence`, without checking its checksum.
    pub fn decode_unchecked(bytes: &[u8], sequence: u64) -> Option<Self> {
        Self::decode_body(bytes.get(CRC_BYTES..len_of(bytes)?)?, sequence)
    }

    /// Reads a header in DRAM, of which `bytes` are all, and its backing location.
    pub(crate) fn decode_dram(bytes: &[u8]) -> Option<(Self, u64)> {
        let (backing, body) = bytes.split_first_chunk()?;
        Some((Self::decode_body(body, 0)?, u64::from_le_bytes(*backing)))
    }

    fn decode_body(body: &[u8], sequence: u64) -> Option<Self> {
        let mut fields = Fields(body);
        let has = fields.u8()?;
        let mut header = Self {
            key_len: fields.u8()?,
            head_len: 0,
            value_len: u32::from(fields.u16()?),
            value_crc: fields.u32()?,
            version: 0,
            sequence,
            expiry: 0,
            flags: 0,
            marks: 0,
            slice: SliceId::Whole,
        };
        let (low, high) = (fields.u32()?, fields.u16()?);
        let lower = u64::from(high) << 32 | u64::from(low);
        header.marks = fields.u8()?;
        let mut upper = 0;
        if has != 0 {
            if has & HAS_EXPIRY != 0 {
                header.expiry = fields.u32()?;
            }
            if has & HAS_FLAGS != 0 {
                header.flags = fields.u32()?;
            }
            if has & IS_LONG != 0 {
                header.value_len |= u32::from(fields.u16()?) << 16;
            }
            if has & HAS_SLICE != 0 {
                header.slice = SliceId::decode(fields.u32()?);
            }
            if has & IS_WIDE != 0 {
                upper = fields.u16()?;
            }
            if has & HAS_HEAD != 0 {
                header.head_len = fields.u16()?;
            }
        }
        header.version = join(lower, upper);
        // What is there is not 0: each record has one header alone.
        (fields.0.is_empty() && header.has() == has).then_some(header)
    }

    /// Whether the object's time is over at `now`.
    pub fn is_expired(&self, now: u32) -> bool {
        crate::is_expired(self.expiry, now)
    }
}

/// The checksum of a header on flash, whose first bytes are left out, and of what stands between it and the value, in two pieces.
pub(crate) fn head_checksum(cache_id: u64, sequence: u64, header: &[u8], [key, head]: &[&[u8]; 2]) -> u32 {
    checksum(
        cache_id,
        &[&sequence.to_le_bytes(), &header[CRC_BYTES..], key, head],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> RecordHeader {
        RecordHeader {
            value_crc: 0xDEAD_BEEF,
            version: 1 << EPOCH_SHIFT | 5,
            sequence: 0,
            expiry: 0,
            flags: 0,
            value_len: 300,
            key_len: 3,
            head_len: 0,
            marks: 0,
            slice: SliceId::Whole,
        }
    }

    #[test]
    fn what_is_encoded_is_decoded_and_as_long_as_was_said() {
        for has in 0..64u8 {
            let set = |bit: u8, to: u64| if has & bit == 0 { 0 } else { to };
            let header = RecordHeader {
                version: 0x000F_F012_3456_789A | set(IS_WIDE, 0x0123 << 48),
                expiry: set(HAS_EXPIRY, 9) as u32,
                flags: set(HAS_FLAGS, 0xFFFF_0000) as u32,
                // Of 65,536 nothing is in the lower half.
                value_len: if has & IS_LONG == 0 { 300 } else { 65_536 },
                marks: has % 3,
                slice: SliceId::decode(set(HAS_SLICE, 70_000) as u32),
                head_len: set(HAS_HEAD, 300) as u16,
                ..header()
            };
            let bytes = header.encode(7, b"key", b"");
            assert_eq!(bytes[CRC_BYTES], has);
            assert_eq!(
                (bytes.len(), Some(bytes.len())),
                (header.header_len(), len_of(&bytes))
            );
            assert_eq!(RecordHeader::decode_unchecked(&bytes, 0), Some(header));
            let mut longer = bytes.to_vec();
            longer.push(1);
            assert_eq!(RecordHeader::decode_unchecked(&longer, 0), Some(header));
            assert_eq!(RecordHeader::decode_unchecked(&bytes[..bytes.len() - 1], 0), None);

            let dram = header.encode_dram(u64::MAX - 1);
            assert_eq!(dram.len(), bytes.len() + DRAM_MORE_BYTES);
            assert_eq!(dram_len_of(&dram), Some(dram.len()));
            assert_eq!(RecordHeader::decode_dram(&dram), Some((header, u64::MAX - 1)));
            assert_eq!(RecordHeader::decode_dram(&dram[..dram.len() - 1]), None);
        }
    }

    #[test]
    fn every_version_is_stored_and_those_of_few_starts_are_short() {
        let most = (1 << EPOCH_SHIFT) - 1;
        for counter in [0, 1, (1 << COUNTER_BITS) - 1, 1 << COUNTER_BITS, most] {
            for epoch in [0, 1, 255, 256, (1 << 20) - 1] {
                let header = RecordHeader {
                    version: epoch << EPOCH_SHIFT | counter,
                    ..header()
                };
                let bytes = header.encode(7, b"key", b"");
                let is_short = epoch < 256 && counter < 1 << COUNTER_BITS;
                assert_eq!(bytes.len(), if is_short { 19 } else { 21 });
                assert_eq!(RecordHeader::decode_unchecked(&bytes, 0), Some(header));
            }
        }
    }

    #[test]
    fn a_header_with_a_field_of_zero_or_an_unknown_one_is_none() {
        let mut bytes = header().encode(7, b"key", b"").to_vec();
        bytes.extend([0; 16]);
        for has in 1..=u8::MAX {
            bytes[CRC_BYTES] = has;
            assert_eq!(RecordHeader::decode_unchecked(&bytes, 0), None, "{has}");
        }
    }
}
