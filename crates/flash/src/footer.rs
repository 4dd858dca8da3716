//! What a block says of itself: a footer that lists its objects, and a trailer in its last bytes.

use pumice_record::codec::{Fields, checksum};

/// Length of a footer entry in bytes.
pub const ENTRY_BYTES: usize = 28;
/// Length of a trailer in bytes: the last ones of a block.
pub const TRAILER_BYTES: usize = 64;
const MAGIC: u32 = u32::from_le_bytes(*b"PMbk");
const FORMAT: u16 = 1;

/// One object of a block. 28 bytes, little-endian, in order of offset.
///
/// | offset | size | field     | meaning                             |
/// |-------:|-----:|-----------|-------------------------------------|
/// |      0 |    8 | `hash`    | of the key                          |
/// |      8 |    8 | `version` | orders copies                       |
/// |     16 |    4 | `offset`  | of the record, bytes into the block |
/// |     20 |    4 | `len`     | of the record with padding, bytes   |
/// |     24 |    4 | `expiry`  | Unix seconds, 0 = never             |
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

impl FooterEntry {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.hash.to_le_bytes());
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(&self.expiry.to_le_bytes());
    }

    pub(crate) fn decode(fields: &mut Fields<'_>, number: u32) -> Option<Self> {
        Some(Self {
            hash: fields.u64()?,
            version: fields.u64()?,
            offset: fields.u32()?,
            len: fields.u32()?,
            expiry: fields.u32()?,
            number,
        })
    }
}

/// The last 64 bytes of a sealed block, little-endian.
///
/// | offset | size | field         | meaning                                                    |
/// |-------:|-----:|---------------|------------------------------------------------------------|
/// |      0 |    4 | `crc32c`      | over the cache id and bytes 4..64                          |
/// |      4 |    4 | magic         | `PMbk`; anything else: never sealed                        |
/// |      8 |    2 | format        | 1; anything else: treat as never sealed                    |
/// |     10 |    2 | zero          |                                                            |
/// |     12 |    4 | `block`       | its number: catches misdirected reads and writes           |
/// |     16 |    8 | `sequence`    | of the block's life; strictly increasing over the device   |
/// |     24 |    8 | cache id      | random at format time: catches another cache's data        |
/// |     32 |    4 | `count`       | footer entries, which stand just before the trailer        |
/// |     36 |    4 | `entries_crc` | CRC-32C over the cache id and the entries                  |
/// |     40 |    4 | `time`        | Unix seconds at sealing: a restart never starts before it  |
/// |     44 |    4 | `expiry_max`  | latest expiry of its objects, 2^32 - 1 if one has none     |
/// |     48 |    2 | `position`    | in the queue at sealing, in 65,535ths                      |
/// |     50 |   14 | zero          | nonzero: treat as never sealed                             |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// Number of the block.
    pub block: u32,
    /// Sequence of the block's life.
    pub sequence: u64,
    /// Number of footer entries.
    pub count: u32,
    /// Checksum over the entries.
    pub entries_crc: u32,
    /// Unix seconds at sealing.
    pub time: u32,
    /// Latest expiry of the block's objects.
    pub expiry_max: u32,
    /// Where the block stood in the queue when it was sealed, in 65,535ths of its bytes from the tail.
    pub position: u16,
}

impl Trailer {
    /// Length of the footer and the trailer together.
    pub fn footer_len(&self) -> usize {
        footer_len(self.count as usize)
    }

    fn encode(&self, cache_id: u64, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.block.to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&cache_id.to_le_bytes());
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&self.entries_crc.to_le_bytes());
        out.extend_from_slice(&self.time.to_le_bytes());
        out.extend_from_slice(&self.expiry_max.to_le_bytes());
        out.extend_from_slice(&self.position.to_le_bytes());
        out.extend_from_slice(&[0; 14]);
        let crc = checksum(cache_id, &[&out[start + 4..]]);
        out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads and checks the trailer in the last 64 bytes of `bytes`.
    pub fn decode(cache_id: u64, bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.last_chunk::<TRAILER_BYTES>()?;
        let mut fields = Fields(bytes);
        let crc = fields.u32()?;
        if crc != checksum(cache_id, &[&bytes[4..]])
            || fields.u32()? != MAGIC
            || fields.u16()? != FORMAT
            || fields.u16()? != 0
        {
            return None;
        }
        let block = fields.u32()?;
        let sequence = fields.count()?;
        if fields.u64()? != cache_id {
            return None;
        }
        let trailer = Self {
            block,
            sequence,
            count: fields.u32()?,
            entries_crc: fields.u32()?,
            time: fields.u32()?,
            expiry_max: fields.u32()?,
            position: fields.u16()?,
        };
        (fields.array::<14>()? == [0; 14]).then_some(trailer)
    }
}

/// Entries of a footer of this length, trailer included.
pub(crate) fn entries_of(footer_len: u32) -> u64 {
    u64::from(footer_len).saturating_sub(TRAILER_BYTES as u64) / ENTRY_BYTES as u64
}

/// Length of a footer with `count` entries and its trailer.
pub fn footer_len(count: usize) -> usize {
    count * ENTRY_BYTES + TRAILER_BYTES
}

/// Footer and trailer of a block, ready to stand at its end.
pub fn encode_footer(
    cache_id: u64,
    block: u32,
    sequence: u64,
    time: u32,
    position: u16,
    entries: &[FooterEntry],
) -> (Vec<u8>, Trailer) {
    let mut out = Vec::with_capacity(footer_len(entries.len()));
    for entry in entries {
        entry.encode(&mut out);
    }
    let expiry_max = entries
        .iter()
        .map(|e| if e.expiry == 0 { u32::MAX } else { e.expiry })
        .max()
        .unwrap_or(0);
    let trailer = Trailer {
        block,
        sequence,
        count: u32::try_from(entries.len()).expect("a block has fewer than 2^32 bytes"),
        entries_crc: checksum(cache_id, &[&out]),
        time,
        expiry_max,
        position,
    };
    trailer.encode(cache_id, &mut out);
    (out, trailer)
}

/// Reads the entries of a footer from `bytes`, which end with the trailer; `None` where they are not what the trailer
/// says or reach outside the block's data.
pub fn decode_entries(
    cache_id: u64,
    trailer: &Trailer,
    bytes: &[u8],
    block_bytes: usize,
) -> Option<Vec<FooterEntry>> {
    let footer_len = (trailer.count as usize)
        .checked_mul(ENTRY_BYTES)?
        .checked_add(TRAILER_BYTES)?;
    let data_max = block_bytes.checked_sub(footer_len)?;
    let start = bytes.len().checked_sub(footer_len)?;
    let entries = &bytes[start..bytes.len() - TRAILER_BYTES];
    if checksum(cache_id, &[entries]) != trailer.entries_crc {
        return None;
    }
    let mut fields = Fields(entries);
    let mut out = Vec::with_capacity(trailer.count as usize);
    while let Some(entry) = FooterEntry::decode(&mut fields, out.len() as u32) {
        let end = u64::from(entry.offset) + u64::from(entry.len);
        if entry.len == 0 || end > data_max as u64 {
            return None;
        }
        out.push(entry);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<FooterEntry> {
        (0..5)
            .map(|n| FooterEntry {
                hash: n * 7,
                version: n + 100,
                offset: n as u32 * 160,
                len: 160,
                expiry: n as u32 * 10,
                number: n as u32,
            })
            .collect()
    }

    #[test]
    fn footer_reads_back_and_any_flipped_bit_is_found() {
        let (bytes, trailer) = encode_footer(42, 3, 9, 1_000, 7, &entries());
        assert_eq!(Trailer::decode(42, &bytes), Some(trailer));
        assert_eq!(decode_entries(42, &trailer, &bytes, 65536), Some(entries()));
        assert_eq!(trailer.expiry_max, u32::MAX);
        assert_eq!(Trailer::decode(43, &bytes), None, "another cache's");
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let read = Trailer::decode(42, &bad).and_then(|t| decode_entries(42, &t, &bad, 65536));
            assert_eq!(read, None, "bit {bit}");
        }
    }

    #[test]
    fn entries_that_reach_into_the_footer_are_refused() {
        let (bytes, trailer) = encode_footer(1, 0, 1, 0, 7, &entries());
        assert_eq!(decode_entries(1, &trailer, &bytes, 4 * 160 + 100), None);
    }
}
