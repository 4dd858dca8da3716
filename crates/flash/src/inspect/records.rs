//! One record against the footer entry that names it.

use super::bit::{flipped_bit, say};
use crate::codec::{checksum, value_checksum};
use crate::footer::FooterEntry;
use crate::record::{HEADER_BYTES, MANIFEST_BYTES, RecordHeader, SliceId};
use pumice_device::SECTOR_BYTES;
use pumice_index::padded_len;

const KEY_BYTES_MAX: u8 = 250;
/// Where a header says how long the key is.
const KEY_LEN_AT: usize = 32;

/// What is wrong with a record.
pub(super) struct Fault {
    /// From the block's start.
    pub(super) at: u64,
    pub(super) what: String,
    /// Sectors that were not written may look like this.
    pub(super) may_be_torn: bool,
}

/// What a record is compared with.
pub(super) struct Expected {
    pub(super) cache_id: u64,
    pub(super) sequence: u64,
    pub(super) unit_bytes: u64,
    /// Where the block starts on the device.
    pub(super) block_offset: u64,
}

/// Checks the record that `entry` names in `block`; its range was checked before.
pub(super) fn check(block: &[u8], entry: &FooterEntry, expected: &Expected) -> Result<(), Fault> {
    let at = entry.offset as usize;
    let record = &block[at..at + entry.len as usize];
    let fault = |at: usize, what: String, may_be_torn: bool| {
        let at = u64::from(entry.offset) + at as u64;
        Err(Fault {
            at,
            what,
            may_be_torn,
        })
    };
    let Some(header) = RecordHeader::decode_unchecked(record) else {
        return fault(0, format!("{} bytes are too few for a record", entry.len), false);
    };
    let on_device = |byte: usize| expected.block_offset + (at + byte) as u64;
    let key_end = HEADER_BYTES + usize::from(header.key_len);
    let stored = u32::from_le_bytes([record[0], record[1], record[2], record[3]]);
    let computed = record
        .get(4..key_end)
        .map(|covered| checksum(expected.cache_id, &[covered]));
    let is_padded = padded_len(header.encoded_len() as u64, expected.unit_bytes) == u64::from(entry.len);
    if computed != Some(stored) {
        let flip = computed.and_then(|computed| flipped_bit(key_end - 4, stored, computed));
        let flip = match flip {
            Some(flip) => Some(say(flip, on_device(0), |byte| on_device(4 + byte))),
            None => key_len_flip(record, stored, expected.cache_id)
                .map(|(byte, bit)| format!("bit {bit} of byte {} is wrong", on_device(byte))),
        };
        if let Some(flip) = flip {
            return fault(
                0,
                format!("the checksum of its header and key is wrong: {flip}"),
                false,
            );
        }
        // Where most of the header is this record's, its sector was written, and a key that ends there with it.
        let signs = [
            header.sequence == expected.sequence as u32,
            header.version == entry.version,
            header.expiry == entry.expiry,
            is_padded,
        ];
        let is_header = signs.into_iter().filter(|sign| *sign).count() >= 3;
        let is_in_sector = at % SECTOR_BYTES + key_end <= SECTOR_BYTES;
        let what = "the checksum of its header and key is wrong".to_owned();
        return fault(0, what, !(is_header && is_in_sector));
    }
    if header.sequence != expected.sequence as u32 {
        let what = format!(
            "it has sequence {}, and its block {}: a former life's",
            header.sequence, expected.sequence as u32
        );
        return fault(16, what, true);
    }
    if header.version != entry.version {
        let what = format!(
            "it has version {:#x}, and the footer says {:#x}",
            header.version, entry.version
        );
        return fault(8, what, false);
    }
    if header.expiry != entry.expiry {
        let what = format!(
            "it has expiry {}, and the footer says {}",
            header.expiry, entry.expiry
        );
        return fault(20, what, false);
    }
    if !(1..=KEY_BYTES_MAX).contains(&header.key_len) {
        return fault(KEY_LEN_AT, format!("its key has {} bytes", header.key_len), false);
    }
    if !is_padded || header.encoded_len() > record.len() {
        let what = format!(
            "it takes {} bytes without padding, and the footer says {} with it",
            header.encoded_len(),
            entry.len
        );
        return fault(28, what, false);
    }
    if header.slice == SliceId::Head && header.value_len as usize != MANIFEST_BYTES {
        return fault(
            28,
            format!(
                "the manifest of a large object cannot have {} bytes",
                header.value_len
            ),
            false,
        );
    }
    let value = &record[key_end..header.encoded_len()];
    let computed = value_checksum(value);
    if computed == header.value_crc {
        return Ok(());
    }
    let what = "the checksum of its value is wrong".to_owned();
    match flipped_bit(value.len(), header.value_crc, computed) {
        Some(flip) => {
            let flip = say(flip, on_device(4), |byte| on_device(key_end + byte));
            fault(key_end, format!("{what}: {flip}"), false)
        }
        None => {
            let is_in_sector = at % SECTOR_BYTES + header.encoded_len() <= SECTOR_BYTES;
            fault(key_end, what, !is_in_sector)
        }
    }
}

/// A flipped bit in the length of the key changes what the checksum covers: it is looked for by trying.
fn key_len_flip(record: &[u8], stored: u32, cache_id: u64) -> Option<(usize, usize)> {
    (0..8).find_map(|bit| {
        let mut mended = record[..HEADER_BYTES].to_vec();
        mended[KEY_LEN_AT] ^= 1 << bit;
        let key = record.get(HEADER_BYTES..HEADER_BYTES + usize::from(mended[KEY_LEN_AT]))?;
        (checksum(cache_id, &[&mended[4..], key]) == stored).then_some((KEY_LEN_AT, bit))
    })
}
