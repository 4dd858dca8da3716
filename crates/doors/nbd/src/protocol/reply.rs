//! Replies of the transmission phase.
//!
//! A simple reply is 16 bytes (magic 0x67446698, error of 32 bits, cookie), and the data of a READ that succeeded. A chunk of a structured
//! reply:
//!
//! | offset | size | field    | meaning                                                                      |
//! |-------:|-----:|----------|------------------------------------------------------------------------------|
//! |      0 |    4 | magic    | 0x668e33ef                                                                   |
//! |      4 |    2 | flags    | 1 in the last chunk of a reply                                               |
//! |      6 |    2 | type     | 1 data (offset of 64 bits, bytes), 5 block status, 0x8001 error (32 bits, text with a length of 16 bits) |
//! |      8 |    8 | cookie   | of the request                                                               |
//! |     16 |    4 | length   | of all that follows                                                          |

use super::Errno;
use crate::export::Extent;
use bytes::Bytes;

const SIMPLE_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_MAGIC: u32 = 0x668e_33ef;

const DONE: u16 = 1;

const OFFSET_DATA: u16 = 1;
const BLOCK_STATUS: u16 = 5;
const ERROR: u16 = 0x8001;

/// The id of the metadata context `base:allocation`.
pub(super) const ALLOCATION: u32 = 1;

/// Most extents in a reply; they take 32 KiB.
pub const MAX_EXTENTS: usize = 4096;

/// The header of a reply, or of a chunk of one.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    bytes: [u8; 28],
    length: u8,
}

impl Head {
    /// A simple reply: `None` for success.
    pub fn simple(cookie: u64, error: Option<Errno>) -> Self {
        let mut head = Self::new();
        head.put(&SIMPLE_MAGIC.to_be_bytes());
        head.put(&error.map_or(0, |error| error as u32).to_be_bytes());
        head.put(&cookie.to_be_bytes());
        head
    }

    /// A chunk with `length` bytes of data from `offset` on, to be sent behind it.
    pub fn data(cookie: u64, offset: u64, length: u32, is_last: bool) -> Self {
        let mut head = Self::chunk(OFFSET_DATA, cookie, length + 8, is_last);
        head.put(&offset.to_be_bytes());
        head
    }

    /// The last chunk of a reply that failed, with `why` to be sent behind it.
    ///
    /// # Panics
    /// If `why` has more than 65,535 bytes.
    pub fn error(cookie: u64, error: Errno, why: &str) -> Self {
        let length = u16::try_from(why.len()).expect("a line of text");
        let mut head = Self::chunk(ERROR, cookie, 6 + u32::from(length), true);
        head.put(&(error as u32).to_be_bytes());
        head.put(&length.to_be_bytes());
        head
    }

    /// The only chunk of a status, with a [`status_payload`] of `length` bytes to be sent behind it.
    pub fn status(cookie: u64, length: u32) -> Self {
        Self::chunk(BLOCK_STATUS, cookie, length, true)
    }

    fn chunk(kind: u16, cookie: u64, length: u32, is_last: bool) -> Self {
        let mut head = Self::new();
        head.put(&STRUCTURED_MAGIC.to_be_bytes());
        head.put(&if is_last { DONE } else { 0 }.to_be_bytes());
        head.put(&kind.to_be_bytes());
        head.put(&cookie.to_be_bytes());
        head.put(&length.to_be_bytes());
        head
    }

    fn new() -> Self {
        Self {
            bytes: [0; 28],
            length: 0,
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        let from = usize::from(self.length);
        self.bytes[from..from + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len() as u8;
    }

    /// The encoded header, at most 28 bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// Flags of a descriptor of `base:allocation`.
const HOLE: u32 = 1;
const ZERO: u32 = 2;

/// Encodes the extents of a range of `length` bytes for a BLOCK_STATUS reply, in at most `most` descriptors. Bytes beyond the range are cut
/// off, neighbours of one kind are merged. Without extents the range is described as data.
pub fn status_payload(extents: &[Extent], length: u32, most: usize) -> Bytes {
    let mut described: Vec<(u32, u32)> = Vec::new();
    let mut left = length;
    for extent in extents {
        let part = u32::try_from(extent.length).unwrap_or(u32::MAX).min(left);
        if part == 0 {
            continue;
        }
        let state = if extent.is_hole { HOLE | ZERO } else { 0 };
        let count = described.len();
        match described.last_mut() {
            Some((length, last)) if *last == state => *length += part,
            _ if count == most.max(1) => break,
            _ => described.push((part, state)),
        }
        left -= part;
    }
    if described.is_empty() {
        described.push((length, 0));
    }
    let mut payload = Vec::with_capacity(4 + 8 * described.len());
    payload.extend_from_slice(&ALLOCATION.to_be_bytes());
    for (length, state) in described {
        payload.extend_from_slice(&length.to_be_bytes());
        payload.extend_from_slice(&state.to_be_bytes());
    }
    payload.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_as_the_specification_has_them() {
        let simple = Head::simple(0x0102, Some(Errno::Invalid));
        assert_eq!(
            simple.as_bytes(),
            [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 22, 0, 0, 0, 0, 0, 0, 1, 2]
        );
        let data = Head::data(3, 4, 512, false);
        assert_eq!(
            data.as_bytes(),
            [
                0x66, 0x8e, 0x33, 0xef, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 2, 8, 0, 0, 0, 0, 0, 0, 0,
                4
            ]
        );
        let error = Head::error(3, Errno::Io, "abc");
        assert_eq!(
            error.as_bytes(),
            [
                0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 9, 0, 0, 0, 5, 0, 3
            ]
        );
    }

    #[test]
    fn a_status_covers_its_range_and_no_more() {
        let data = |length| Extent {
            length,
            is_hole: false,
        };
        let hole = |length| Extent {
            length,
            is_hole: true,
        };
        let of = |extents: &[Extent], length, most| {
            let payload = status_payload(extents, length, most);
            assert_eq!(payload[..4], [0, 0, 0, 1]);
            let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes"));
            let described: Vec<_> = payload[4..]
                .chunks(8)
                .map(|one| (word(&one[..4]), word(&one[4..])))
                .collect();
            described
        };
        let extents = [data(100), data(20), hole(1 << 40), data(1)];
        assert_eq!(of(&extents, 1000, 9), [(120, 0), (880, 3)]);
        assert_eq!(of(&extents, 110, 9), [(110, 0)]);
        assert_eq!(of(&extents, 1000, 1), [(120, 0)]);
        assert_eq!(of(&[], 1000, 9), [(1000, 0)]);
        assert_eq!(of(&[data(0), hole(1 << 33)], u32::MAX, 9), [(u32::MAX, 3)]);
    }
}
