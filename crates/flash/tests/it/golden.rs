//! The bytes of the format, as docs/formats.md has them: where this fails, a number of a format must change.

use pumice_blocks::footer::encode_footer;
use pumice_blocks::log::Kind;
use pumice_blocks::{BudgetLevel, Geometry, Maker, Superblock};
use pumice_flash::footer::{Ending, FooterEntry};
use pumice_flash::{LayoutName, LogKind, LogRecord, STORE, Settings};
use pumice_index::IndexKind;
use pumice_memory::Payload;
use pumice_record::codec::value_checksum;
use pumice_record::{RecordParts, SliceId};

const CACHE_ID: u64 = 0x0123_4567_89AB_CDEF;
const HASH: u64 = 0x9E02_92F5_8CF1_6BE3;
const VERSION: u64 = 1 << 44 | 1;
const TIME: u32 = 1_800_000_000;

/// The bytes that the example of the page shows, dump by dump.
fn shown() -> Vec<Vec<u8>> {
    let page = include_str!("../../../../docs/formats.md");
    let example = page.split("\n## Example\n").nth(1).expect("there is an example");
    let example = example.split("\n## ").next().expect("it ends");
    let dumps = example.split("```").skip(1).step_by(2);
    let is_offset = |text: &str| text.len() == 8 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let rows = |dump: &str| {
        let rows = dump.lines().filter(|row| row.get(..8).is_some_and(is_offset));
        let bytes = rows.flat_map(|row| row[10..row.len().min(57)].split_whitespace());
        bytes
            .map(|byte| u8::from_str_radix(byte, 16).expect("two hexadecimal digits"))
            .collect::<Vec<u8>>()
    };
    dumps.map(rows).filter(|bytes| !bytes.is_empty()).collect()
}

#[test]
fn the_example_of_the_page_is_what_is_written() {
    let [record, footer, log, superblock] = &shown()[..] else {
        panic!("the page shows a record, a footer, a log record and a superblock")
    };

    let parts = RecordParts {
        version: VERSION,
        expiry: 0,
        flags: 7,
        marks: 0,
        slice: SliceId::Whole,
        key: b"greeting",
        head: b"",
        value: Payload::Bytes(b"hello"),
        value_crc: value_checksum(b"hello"),
    };
    let mut bytes = parts.header(3).encode(CACHE_ID, parts.key, b"").to_vec();
    bytes.extend_from_slice(b"greetinghello");
    bytes.resize(40, 0);
    assert_eq!(*record, bytes, "the record");

    let entry = FooterEntry {
        hash: HASH,
        version: VERSION,
        offset: 0,
        len: 40,
        expiry: 0,
        number: 0,
    };
    let own = Ending::new(&[entry], 32_767).encode();
    let (bytes, _) = encode_footer(CACHE_ID, 0, 3, TIME, own, &[entry]);
    assert_eq!(*footer, bytes, "the footer");

    let invalidate = LogRecord {
        kind: Kind::Own(LogKind::Invalidate),
        position: 5,
        a: HASH,
        b: VERSION + 1,
    };
    assert_eq!(*log, invalidate.encode(CACHE_ID), "the log record");

    let settings = Settings {
        hash_seed: 42,
        layout: LayoutName::Ripq,
        index: IndexKind::Full,
        budget: BudgetLevel::default(),
    };
    let written = Superblock {
        cache_id: CACHE_ID,
        store: STORE,
        geometry: Geometry::plan(64 << 20, 64 << 10).unwrap(),
        maker: Maker::Serve,
        generation: 1,
        epoch: 1,
        time: TIME,
        own: settings.encode(),
        ..Superblock::default()
    };
    let bytes = written.encode();
    assert_eq!(*superblock, bytes[..superblock.len()], "the superblock");
    assert!(bytes[superblock.len()..].iter().all(|byte| *byte == 0));
}
