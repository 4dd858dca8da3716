//! The header of an item in the DRAM tier: that of a record on flash, shorter.
//!
//! What most items have none of takes no room, and what only a device needs is left out: the checksum of the header, and the
//! sequence of its block. Lengths and versions are what they are on flash. Never written to a device.
//!
//! | offset | size | field       | meaning                                            |
//! |-------:|-----:|-------------|----------------------------------------------------|
//! |      0 |    1 | `has`       | which of the fields from offset 24 on there are    |
//! |      1 |    1 | `key_len`   | bytes                                              |
//! |      2 |    2 | `value_len` | bytes, the lower half                              |
//! |      4 |    4 | `value_crc` | CRC-32C of the value                               |
//! |      8 |    8 | `version`   | orders copies                                      |
//! |     16 |    8 | `backing`   | where the copy on flash is                         |
//! |     24 |    4 | `expiry`    | Unix seconds                                       |
//! |        |    4 | `flags`     | the client's                                       |
//! |        |    2 | `value_len` | the upper half                                     |
//! |        |    2 | `slice`     | which part of the object                           |
//! |        |    1 | `marks`     | what else is said of the object                    |

use crate::codec::Fields;
use crate::record::{RecordHeader, RecordParts, SliceId};

/// What every item has.
const FIXED_BYTES: usize = 24;
/// The longest header.
pub(crate) const DRAM_HEADER_BYTES_MAX: usize = FIXED_BYTES + 13;

const HAS_EXPIRY: u8 = 1;
const HAS_FLAGS: u8 = 2;
const IS_LONG: u8 = 4;
const HAS_SLICE: u8 = 8;
const HAS_MARKS: u8 = 16;

/// Header bytes, and how many of them there are.
pub(crate) fn encode(header: &RecordHeader, backing: u64) -> ([u8; DRAM_HEADER_BYTES_MAX], usize) {
    let mut out = [0; DRAM_HEADER_BYTES_MAX];
    out[1] = header.key_len;
    out[2..4].copy_from_slice(&(header.value_len as u16).to_le_bytes());
    out[4..8].copy_from_slice(&header.value_crc.to_le_bytes());
    out[8..16].copy_from_slice(&header.version.to_le_bytes());
    out[16..24].copy_from_slice(&backing.to_le_bytes());
    let mut len = FIXED_BYTES;
    let mut put = |has: u8, bytes: &[u8]| {
        if bytes.iter().any(|byte| *byte != 0) {
            out[0] |= has;
            out[len..len + bytes.len()].copy_from_slice(bytes);
            len += bytes.len();
        }
    };
    put(HAS_EXPIRY, &header.expiry.to_le_bytes());
    put(HAS_FLAGS, &header.flags.to_le_bytes());
    put(IS_LONG, &((header.value_len >> 16) as u16).to_le_bytes());
    put(HAS_SLICE, &header.slice.encode().to_le_bytes());
    put(HAS_MARKS, &[header.marks]);
    (out, len)
}

/// Length in bytes of the header that these parts have.
pub(crate) fn len(parts: &RecordParts<'_>) -> usize {
    let there = [
        (parts.expiry != 0, HAS_EXPIRY),
        (parts.flags != 0, HAS_FLAGS),
        (parts.value.len() > usize::from(u16::MAX), IS_LONG),
        (parts.slice != SliceId::Whole, HAS_SLICE),
        (parts.marks != 0, HAS_MARKS),
    ];
    let has = there.iter().filter(|(is_there, _)| *is_there);
    len_of(has.map(|(_, has)| has).sum())
}

/// Length in bytes of a header, of which `has` is the first byte.
pub(crate) fn len_of(has: u8) -> usize {
    let optional = [
        (HAS_EXPIRY, 4),
        (HAS_FLAGS, 4),
        (IS_LONG, 2),
        (HAS_SLICE, 2),
        (HAS_MARKS, 1),
    ];
    let there = optional.iter().filter(|(bit, _)| has & bit != 0);
    FIXED_BYTES + there.map(|(_, len)| len).sum::<usize>()
}

/// The header that `bytes` are, and its backing location.
pub(crate) fn decode(bytes: &[u8]) -> Option<(RecordHeader, u64)> {
    let mut fields = Fields(bytes);
    let has = fields.u8()?;
    let mut header = RecordHeader {
        key_len: fields.u8()?,
        value_len: u32::from(fields.u16()?),
        value_crc: fields.u32()?,
        version: fields.u64()?,
        sequence: 0,
        expiry: 0,
        flags: 0,
        marks: 0,
        slice: SliceId::Whole,
    };
    let backing = fields.u64()?;
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
            header.slice = SliceId::decode(fields.u16()?);
        }
        if has & HAS_MARKS != 0 {
            header.marks = fields.u8()?;
        }
    }
    fields.0.is_empty().then_some((header, backing))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pumice_memory::Payload;

    #[test]
    fn what_is_encoded_is_decoded_and_as_long_as_was_said() {
        let value = vec![7; 70_000];
        for has in 0..32u8 {
            let set = |bit: u8, to: u32| if has & bit == 0 { 0 } else { to };
            let parts = RecordParts {
                version: 0x0123_4567_89AB_CDEF,
                expiry: set(HAS_EXPIRY, 9),
                flags: set(HAS_FLAGS, 0xFFFF_0000),
                marks: set(HAS_MARKS, 3) as u8,
                slice: SliceId::decode(set(HAS_SLICE, 5) as u16),
                key: b"key",
                value: Payload::Bytes(&value[..300 + set(IS_LONG, 66_000) as usize]),
                value_crc: 0xDEAD_BEEF,
            };
            let header = parts.header(0);
            let (bytes, encoded) = encode(&header, u64::MAX - 1);
            assert_eq!(encoded, len(&parts));
            assert_eq!(bytes[0], has);
            assert_eq!(len_of(bytes[0]), encoded);
            assert_eq!(decode(&bytes[..encoded]), Some((header, u64::MAX - 1)));
            assert_eq!(decode(&bytes[..encoded - 1]), None);
        }
        // 65,536 has nothing in its lower half.
        let parts = RecordParts {
            version: 1,
            expiry: 0,
            flags: 0,
            marks: 0,
            slice: SliceId::Whole,
            key: b"",
            value: Payload::Bytes(&value[..65_536]),
            value_crc: 0,
        };
        let (bytes, encoded) = encode(&parts.header(0), 0);
        assert_eq!((encoded, len(&parts)), (26, 26));
        assert_eq!(
            decode(&bytes[..26]).map(|(header, _)| header.value_len),
            Some(65_536)
        );
    }
}
