//! The formats of a block and of the log, one by one: what is accepted is what would be written.

use crate::bytes::{Bytes, put_u32};
use pumice_blocks::footer::{Entry, TRAILER_BYTES, Trailer, decode_entries, encode_footer};
use pumice_blocks::geometry::LOG_RECORD_BYTES;
use pumice_blocks::superblock::{SlotContent, Superblock};
use pumice_device::{AlignedBuf, Payload, SECTOR_BYTES};
use pumice_flash::LogRecord;
use pumice_flash::Settings;
use pumice_flash::footer::{Ending, FooterEntry};
use pumice_record::SliceId;
use pumice_record::codec::{Fields, checksum, value_checksum};
use pumice_record::{Record, RecordHeader, RecordParts};
use std::sync::Arc;

const CACHE_ID: u64 = 0x0123_4567_89ab_cdef;
const BLOCK_BYTES: usize = 64 << 10;

/// The first byte chooses the format, and whether the checksums are made to fit.
pub(crate) fn run(data: &[u8]) {
    let mut from = Bytes(data);
    let what = from.u8();
    let is_signed = what & 0x80 != 0;
    match what % 5 {
        0 => footer(from.0.to_vec(), is_signed),
        1 => record(from, is_signed),
        2 => log(from.0.to_vec(), is_signed),
        3 => superblock(from.0, is_signed),
        _ => written(from),
    }
}

/// A footer with its trailer.
fn footer(mut bytes: Vec<u8>, is_signed: bool) {
    if is_signed && let Some(len) = bytes.len().checked_sub(TRAILER_BYTES) {
        // As many entries as there are, unless the bytes insist on their own length.
        let (mut at, mut fields, mut entries) = (0, Fields(&bytes[..len]), Vec::new());
        while let Some(entry) = FooterEntry::decode(&mut fields, entries.last(), 0) {
            entries.push(entry);
            at = len - fields.0.len();
        }
        bytes.drain(at..len);
        if bytes[at + 32] != 0xff {
            put_u32(&mut bytes, at + 32, at as u32);
        }
        bytes[at + 4..at + 8].copy_from_slice(b"PMbk");
        bytes[at + 8..at + 12].copy_from_slice(&[2, 0, FooterEntry::BYTES as u8, 0]);
        bytes[at + 24..at + 32].copy_from_slice(&CACHE_ID.to_le_bytes());
        let crc = checksum(CACHE_ID, &[&bytes[..at]]);
        put_u32(&mut bytes, at + 36, crc);
        let crc = checksum(CACHE_ID, &[&bytes[at + 4..]]);
        put_u32(&mut bytes, at, crc);
    }
    let Some(trailer) = Trailer::decode(CACHE_ID, &bytes) else {
        return;
    };
    assert!(Trailer::decode(CACHE_ID + 1, &bytes).is_none(), "another cache's");
    let Some(entries) = decode_entries::<FooterEntry>(CACHE_ID, &trailer, &bytes, BLOCK_BYTES) else {
        return;
    };
    let room = BLOCK_BYTES - trailer.footer_len();
    for (number, entry) in (0..).zip(&entries) {
        assert_eq!(entry.number, number);
        assert!(entry.len > 0 && (entry.offset as usize) + (entry.len as usize) <= room);
    }
    let Trailer {
        block,
        sequence,
        time,
        own,
        ..
    } = trailer;
    let (again, encoded) = encode_footer(CACHE_ID, block, sequence, time, own, &entries);
    let entries_len = again.len() - TRAILER_BYTES;
    let start = bytes.len() - again.len();
    assert!(again[..entries_len] == bytes[start..start + entries_len]);
    assert_eq!(encoded, trailer);
    assert!(again == bytes[start..], "{trailer:?}");
    let ending = Ending::of(&trailer);
    assert_eq!(ending.encode()[..6], trailer.own[..6]);
    assert!(
        decode_entries::<FooterEntry>(CACHE_ID, &trailer, &bytes[1..], BLOCK_BYTES).is_none() || start > 0
    );
}

/// Copies bytes to the start of a buffer of whole sectors.
fn buffer(bytes: &[u8]) -> Arc<AlignedBuf> {
    use pumice_device::Buffer;
    let mut buffer = AlignedBuf::with_len(bytes.len().next_multiple_of(SECTOR_BYTES).max(SECTOR_BYTES));
    buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
    Arc::new(buffer)
}

/// An object as it would be read from a block.
fn record(mut from: Bytes<'_>, is_signed: bool) {
    let sequence = u64::from(from.u32());
    let at = usize::from(from.u8());
    let len = usize::from(from.u16());
    let mut bytes = vec![0; at];
    bytes.extend_from_slice(from.0);
    if is_signed && let Some(mut header) = RecordHeader::decode_unchecked(&bytes[at..], sequence) {
        let head_end = at + header.header_len();
        let key_end = head_end + header.named_len();
        let value_end = key_end.saturating_add(header.value_len as usize);
        bytes.resize(bytes.len().max(key_end), 0);
        if value_end <= bytes.len() {
            header.value_crc = value_checksum(&bytes[key_end..value_end]);
        }
        let signed = header.encode(CACHE_ID, &bytes[head_end..key_end], b"");
        bytes[at..head_end].copy_from_slice(&signed);
    }
    if let Some(header) = RecordHeader::decode_unchecked(bytes.get(at..).unwrap_or_default(), sequence) {
        let head_end = at + header.header_len();
        if let Some(named) = bytes.get(head_end..head_end + header.named_len()) {
            let again = header.encode(CACHE_ID, named, b"");
            assert!(again[4..] == bytes[at + 4..head_end], "{header:?}");
        }
    }
    let buffer = buffer(&bytes);
    let decode = |verify| Record::decode(Arc::clone(&buffer), at, len, CACHE_ID, sequence, verify);
    let Some(record) = decode(true) else { return };
    let (header, key, head) = (*record.header(), record.key(), record.head());
    assert!(header.encoded_len() <= len);
    assert_eq!(header.sequence, sequence);
    let Payload::Bytes(value) = record.value() else {
        panic!("real bytes")
    };
    assert_eq!(header.value_crc, value_checksum(value));
    let again = [&header.encode(CACHE_ID, key, head)[..], key, head, value].concat();
    assert!(
        again == buffer.as_slice()[at..at + header.encoded_len()],
        "{header:?}"
    );
    let parts = record.parts();
    assert_eq!(parts.header(sequence), header);
    assert_eq!(parts.encoded_len(), header.encoded_len());
    let apart = record.detached();
    assert_eq!(
        (apart.key(), apart.head(), apart.value()),
        (key, head, record.value())
    );
    assert!(decode(false).is_some() && record.header().is_expired(u32::MAX) == (header.expiry != 0));
}

fn log(mut bytes: Vec<u8>, is_signed: bool) {
    let len = LOG_RECORD_BYTES as usize;
    if is_signed && bytes.len() >= len {
        let crc = checksum(CACHE_ID, &[&bytes[4..len]]);
        put_u32(&mut bytes, 0, crc);
    }
    if let Some(record) = LogRecord::decode(CACHE_ID, &bytes) {
        assert!(record.encode(CACHE_ID) == bytes[..len], "{record:?}");
        assert!(
            LogRecord::decode(CACHE_ID + 1, &bytes).is_none(),
            "another cache's"
        );
    }
}

fn superblock(bytes: &[u8], is_signed: bool) {
    let mut sector = bytes[..bytes.len().min(SECTOR_BYTES)].to_vec();
    if is_signed {
        // What a real one has, with these bytes over it.
        let geometry = pumice_blocks::Geometry::plan(1 << 20, 64 << 10).expect("it is large enough");
        let real = Superblock {
            cache_id: CACHE_ID,
            geometry,
            generation: 2,
            epoch: 3,
            clean: true,
            time: 4,
            ..Superblock::default()
        };
        let mut edits = Bytes(bytes);
        sector = real.encode();
        while !edits.is_empty() {
            let at = usize::from(edits.u8());
            sector[at] = edits.u8();
        }
        let crc = checksum(0, &[&sector[..12], &sector[16..]]);
        put_u32(&mut sector, 12, crc);
    }
    match Superblock::decode(&sector) {
        SlotContent::Valid(superblock) => {
            if let Some(settings) = Settings::decode(&superblock.own) {
                assert_eq!(settings.encode(), superblock.own);
            }
            let again = superblock.encode();
            assert_eq!(again.len(), SECTOR_BYTES);
            assert_eq!(Superblock::decode(&again), SlotContent::Valid(superblock));
            let geometry = superblock.geometry;
            let end = geometry.block_offset(geometry.blocks - 1) + geometry.block_bytes;
            assert!(end <= geometry.capacity && geometry.reserved < geometry.blocks);
            assert!(superblock.slot_offset() <= SECTOR_BYTES as u64);
        }
        SlotContent::Empty => assert!(sector.iter().all(|byte| *byte == 0)),
        SlotContent::OtherFormat(_) | SlotContent::Damaged | SlotContent::Foreign => {}
    }
}

/// Anything that can be written is read back, and nothing else after a change of one bit.
fn written(mut from: Bytes<'_>) {
    // Sequences are counted, and below 2^62.
    let (sequence, flip) = (from.u64() >> 2, from.u16());
    let (version, expiry, flags, marks) = (from.u64(), from.u32(), from.u32(), from.u8());
    let slice = match from.u16() {
        0 => SliceId::Whole,
        u16::MAX => SliceId::Head,
        number => SliceId::Part(u32::from(number) * 40_000),
    };
    let key_len = usize::from(from.u8());
    let key = from.take(key_len);
    let head_len = usize::from(from.u8());
    let head = from.take(head_len);
    let value = from.0;
    let parts = RecordParts {
        version,
        expiry,
        flags,
        marks,
        slice,
        key,
        head,
        value: Payload::Bytes(value),
        value_crc: value_checksum(value),
    };
    let mut bytes = [
        &parts.header(sequence).encode(CACHE_ID, key, head)[..],
        key,
        head,
        value,
    ]
    .concat();
    let len = bytes.len();
    assert_eq!(len, parts.encoded_len());
    let record = Record::decode(buffer(&bytes), 0, len, CACHE_ID, sequence, true).expect("just written");
    assert_eq!(record.parts().header(sequence), parts.header(sequence));
    assert_eq!(
        (record.key(), record.head(), record.value()),
        (key, head, parts.value)
    );
    let bit = usize::from(flip) % (8 * len);
    bytes[bit / 8] ^= 1 << (bit % 8);
    assert!(
        Record::decode(buffer(&bytes), 0, len, CACHE_ID, sequence, true).is_none(),
        "bit {bit}"
    );
    bytes[bit / 8] ^= 1 << (bit % 8);
    let other_life = sequence.wrapping_add(1);
    assert!(Record::decode(buffer(&bytes), 0, len, CACHE_ID, other_life, true).is_none());
    let entry = FooterEntry {
        hash: version.rotate_left(7),
        version,
        offset: u32::from(flip) * 8,
        len: 160,
        expiry,
        number: 0,
    };
    let (mut footer, trailer) = encode_footer(
        CACHE_ID,
        3,
        sequence,
        flags,
        Ending::new(&[entry], flip).encode(),
        &[entry],
    );
    assert_eq!(Trailer::decode(CACHE_ID, &footer), Some(trailer));
    let is_inside = usize::from(flip) * 8 + 160 <= BLOCK_BYTES - footer.len();
    let entries = decode_entries(CACHE_ID, &trailer, &footer, BLOCK_BYTES);
    assert_eq!(entries, is_inside.then(|| vec![entry]));
    let bit = usize::from(flip) % (8 * footer.len());
    footer[bit / 8] ^= 1 << (bit % 8);
    let trailer = Trailer::decode(CACHE_ID, &footer);
    assert!(trailer.is_none_or(|trailer| {
        decode_entries::<FooterEntry>(CACHE_ID, &trailer, &footer, BLOCK_BYTES).is_none()
    }));
}
