//! The end of a block: a footer that lists its entries, and a trailer in its last bytes.

use pumice_record::codec::{Fields, checksum};
use std::ops::Range;

/// Length of a trailer in bytes: the last ones of a block.
pub const TRAILER_BYTES: usize = 64;
/// Bytes of a trailer that are the owner's.
pub const OWN_BYTES: usize = 8;
const MAGIC: u32 = u32::from_le_bytes(*b"PMbk");
const FORMAT: u16 = 2;

/// An entry of a footer: what an owner says of one of the pieces that it put into a block.
pub trait Entry: Sized {
    /// Length of every entry in bytes; 1 where they differ.
    const BYTES: usize;
    /// Length of the longest entry in bytes.
    const BYTES_MAX: usize = Self::BYTES;

    /// Length in bytes behind the entry `before`. Where entries are left out of a list, the others take no more than all of them do.
    fn encoded_len(&self, _before: Option<&Self>) -> usize {
        Self::BYTES
    }

    /// Appends the entry's bytes, [`Entry::encoded_len`] of them. It may tell how it differs from the entry `before`.
    fn encode(&self, before: Option<&Self>, out: &mut Vec<u8>);

    /// Reads entry `number` of a footer, behind the entry `before`; `None` where it cannot be one.
    fn decode(fields: &mut Fields<'_>, before: Option<&Self>, number: u32) -> Option<Self>;

    /// The bytes of the block that the entry speaks of. An empty range, or one that reaches into the footer, makes a footer damaged.
    fn range(&self) -> Range<u64>;
}

/// The last 64 bytes of a sealed block, little-endian.
///
/// | offset | size | field         | meaning                                                    |
/// |-------:|-----:|---------------|------------------------------------------------------------|
/// |      0 |    4 | `crc32c`      | over the cache id and bytes 4..64                          |
/// |      4 |    4 | magic         | `PMbk`; anything else: never sealed                        |
/// |      8 |    2 | format        | 2; anything else: treat as never sealed                    |
/// |     10 |    2 | `entry_bytes` | length of a footer entry; 1 where they differ              |
/// |     12 |    4 | `block`       | its number: catches misdirected reads and writes           |
/// |     16 |    8 | `sequence`    | of this generation of the block; strictly increasing over the device |
/// |     24 |    8 | cache id      | random at format time: catches another cache's data        |
/// |     32 |    4 | `count`       | length of all entries, which stand just before the trailer, in `entry_bytes` |
/// |     36 |    4 | `entries_crc` | CRC-32C over the cache id and the entries                  |
/// |     40 |    4 | `time`        | Unix seconds at sealing: a restart never starts before it  |
/// |     44 |    8 | `own`         | the owner's                                                |
/// |     52 |   12 | zero          | nonzero: treat as never sealed                             |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// Number of the block.
    pub block: u32,
    /// Sequence of this generation of the block.
    pub sequence: u64,
    /// Number of footer entries; their bytes where `entry_bytes` is 1.
    pub count: u32,
    /// Length of an entry; 1 where they differ.
    pub entry_bytes: u16,
    /// Checksum over the entries.
    pub entries_crc: u32,
    /// Unix seconds at sealing.
    pub time: u32,
    /// The owner's.
    pub own: [u8; OWN_BYTES],
}

impl Trailer {
    /// Length of the footer and the trailer together.
    pub fn footer_len(&self) -> usize {
        self.count as usize * usize::from(self.entry_bytes) + TRAILER_BYTES
    }

    fn encode(&self, cache_id: u64, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&self.entry_bytes.to_le_bytes());
        out.extend_from_slice(&self.block.to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&cache_id.to_le_bytes());
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&self.entries_crc.to_le_bytes());
        out.extend_from_slice(&self.time.to_le_bytes());
        out.extend_from_slice(&self.own);
        out.extend_from_slice(&[0; 12]);
        let crc = checksum(cache_id, &[&out[start + 4..]]);
        out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads and checks the trailer in the last 64 bytes of `bytes`.
    pub fn decode(cache_id: u64, bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.last_chunk::<TRAILER_BYTES>()?;
        let mut fields = Fields(bytes);
        let crc = fields.u32()?;
        if crc != checksum(cache_id, &[&bytes[4..]]) || fields.u32()? != MAGIC || fields.u16()? != FORMAT {
            return None;
        }
        let entry_bytes = fields.u16()?;
        let block = fields.u32()?;
        let sequence = fields.count()?;
        if fields.u64()? != cache_id {
            return None;
        }
        let trailer = Self {
            block,
            sequence,
            count: fields.u32()?,
            entry_bytes,
            entries_crc: fields.u32()?,
            time: fields.u32()?,
            own: fields.array()?,
        };
        (fields.array::<12>()? == [0; 12]).then_some(trailer)
    }
}

/// Footer and trailer of a block, ready to stand at its end.
pub fn encode_footer<E: Entry>(
    cache_id: u64,
    block: u32,
    sequence: u64,
    time: u32,
    own: [u8; OWN_BYTES],
    entries: &[E],
) -> (Vec<u8>, Trailer) {
    let mut out = Vec::new();
    let mut before = None;
    for entry in entries {
        entry.encode(before, &mut out);
        before = Some(entry);
    }
    let trailer = Trailer {
        block,
        sequence,
        count: u32::try_from(out.len() / E::BYTES).expect("a block has fewer than 2^32 bytes"),
        entry_bytes: u16::try_from(E::BYTES).expect("entries are short"),
        entries_crc: checksum(cache_id, &[&out]),
        time,
        own,
    };
    trailer.encode(cache_id, &mut out);
    (out, trailer)
}

/// Reads the entries of a footer from `bytes`, which end with the trailer; `None` where they are not what the trailer
/// says or reach outside the block's data.
pub fn decode_entries<E: Entry>(
    cache_id: u64,
    trailer: &Trailer,
    bytes: &[u8],
    block_bytes: usize,
) -> Option<Vec<E>> {
    if usize::from(trailer.entry_bytes) != E::BYTES {
        return None;
    }
    let footer_len = trailer.footer_len();
    let data_max = block_bytes.checked_sub(footer_len)? as u64;
    let start = bytes.len().checked_sub(footer_len)?;
    let entries = &bytes[start..bytes.len() - TRAILER_BYTES];
    if checksum(cache_id, &[entries]) != trailer.entries_crc {
        return None;
    }
    let mut fields = Fields(entries);
    let mut out: Vec<E> = Vec::with_capacity(entries.len() / E::BYTES_MAX);
    while !fields.0.is_empty() {
        let entry = E::decode(&mut fields, out.last(), out.len() as u32)?;
        let range = entry.range();
        if range.is_empty() || range.end > data_max {
            return None;
        }
        out.push(entry);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A piece of a block.
    #[derive(Clone, Debug, PartialEq)]
    struct Piece {
        at: u32,
        len: u32,
    }

    impl Entry for Piece {
        const BYTES: usize = 8;

        fn encode(&self, _: Option<&Self>, out: &mut Vec<u8>) {
            out.extend_from_slice(&self.at.to_le_bytes());
            out.extend_from_slice(&self.len.to_le_bytes());
        }

        fn decode(fields: &mut Fields<'_>, _: Option<&Self>, _: u32) -> Option<Self> {
            let (at, len) = (fields.u32()?, fields.u32()?);
            Some(Self { at, len })
        }

        fn range(&self) -> Range<u64> {
            u64::from(self.at)..u64::from(self.at) + u64::from(self.len)
        }
    }

    fn entries() -> Vec<Piece> {
        (0..5)
            .map(|n| Piece {
                at: n * 160,
                len: 160,
            })
            .collect()
    }

    #[test]
    fn footer_reads_back_and_any_flipped_bit_is_found() {
        let (bytes, trailer) = encode_footer(42, 3, 9, 1_000, [7; 8], &entries());
        assert_eq!(Trailer::decode(42, &bytes), Some(trailer));
        assert_eq!(decode_entries(42, &trailer, &bytes, 65536), Some(entries()));
        assert_eq!(Trailer::decode(43, &bytes), None, "another cache's");
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let read = Trailer::decode(42, &bad).and_then(|t| decode_entries::<Piece>(42, &t, &bad, 65536));
            assert_eq!(read, None, "bit {bit}");
        }
    }

    #[test]
    fn entries_that_reach_into_the_footer_are_refused() {
        let (bytes, trailer) = encode_footer(1, 0, 1, 0, [0; 8], &entries());
        let room = 5 * 160 + trailer.footer_len();
        assert_eq!(decode_entries(1, &trailer, &bytes, room), Some(entries()));
        assert_eq!(decode_entries::<Piece>(1, &trailer, &bytes, room - 1), None);
    }
}
