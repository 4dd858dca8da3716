//! The bytes of the formats of every store, as docs/formats.md has them: where this fails, `FORMAT` must change.

use pumice_blocks::chain::{BlockRole, BlockRow, Head, NO_BLOCK, PartHeader, mix};
use pumice_blocks::log::{Kind, LogRecord, OwnKind, PrefixMark};
use pumice_record::codec::checksum;

const CACHE_ID: u64 = 0x0123_4567_89AB_CDEF;

/// An owner with one kind of record, the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct First;

impl OwnKind for First {
    fn number(self) -> u16 {
        0
    }

    fn from_number(number: u16) -> Option<Self> {
        (number == 0).then_some(First)
    }
}

/// The bytes of each dump of the page's section.
fn shown() -> Vec<Vec<u8>> {
    let page = include_str!("../../../../docs/formats.md");
    let section = page
        .split("\n## Example of any store\n")
        .nth(1)
        .expect("it is there");
    let section = section.split("\n## ").next().expect("it ends");
    let dumps = section.split("```").skip(1).step_by(2);
    let row = |row: &str| -> Vec<u8> {
        let bytes = row
            .get(10..57.min(row.len()))
            .unwrap_or_default()
            .split_whitespace();
        bytes
            .map(|byte| u8::from_str_radix(byte, 16).expect("two hexadecimal digits"))
            .collect()
    };
    dumps.map(|dump| dump.lines().flat_map(row).collect()).collect()
}

/// As the page shows it.
fn dump(bytes: &[u8]) -> String {
    let row = |(at, row): (usize, &[u8])| {
        let bytes: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{:08x}  {}\n", at * 16, bytes.join(" "))
    };
    bytes.chunks(16).enumerate().map(row).collect()
}

#[test]
fn the_example_of_the_page_is_what_is_written() {
    let record = |kind, position, a, b| LogRecord { kind, position, a, b };
    let mark = PrefixMark {
        block: 7,
        end_sectors: 9,
        own: 65_535,
    };
    let records = [
        record(Kind::Reclaim, 1_000, 6, 41),
        record(Kind::Prefix, 1_001, mark.encode(), 42),
        record(Kind::Own(First), 1_002, 5, 43),
    ];
    let log: Vec<u8> = records
        .iter()
        .flat_map(|record| record.encode(CACHE_ID))
        .collect();

    let row = |sequence, role, footer_len, own| BlockRow {
        sequence,
        role,
        footer_len,
        own,
    };
    let head = Head {
        next_sequence: 43,
        log_start: 900,
        rows: vec![
            row(41, BlockRole::Sealed, 512, 1_800_000_000),
            row(42, BlockRole::Open, 0, 0),
            row(0, BlockRole::Other, 0, 0),
        ],
    };
    let mut stream = Vec::new();
    head.encode(&mut stream);

    // The stream has one chunk, in the first block of the chain; another block follows, as if it were longer.
    let part = |next| PartHeader {
        id: 12,
        part: 0,
        next,
        len: stream.len() as u64,
        chunk_crcs: mix(0, 0, checksum(CACHE_ID, &[&stream])),
    };
    let part_bytes = part(3).encode(CACHE_ID).to_vec();

    let written = [log, part_bytes, stream.clone()];
    let all: String = written.iter().map(|bytes| dump(bytes) + "\n").collect();
    assert_eq!(shown(), written, "the page is to show:\n{all}");
    for (bytes, record) in written[0].as_chunks::<32>().0.iter().zip(&records) {
        assert_eq!(LogRecord::decode(CACHE_ID, bytes).as_ref(), Some(record));
    }
    assert_eq!(PrefixMark::decode(records[1].a), mark);
    assert_eq!(PartHeader::decode(CACHE_ID, &written[1]), Some(part(3)));
    assert_eq!(part(NO_BLOCK).encode(CACHE_ID)[20..24], [0xFF; 4]);
    // Crcs of chunks are rotated before they are added: two that change places are found.
    assert_eq!(mix(mix(0, 0, 1), 1, 1), 0b11);
    assert_eq!(mix(0, 65, 1), 2);
}

/// Any flipped bit makes a record, or a part header, one that is not there.
#[test]
fn a_flipped_bit_is_found() {
    let record = LogRecord {
        kind: Kind::Own(First),
        position: 1,
        a: 2,
        b: 3,
    }
    .encode(CACHE_ID);
    let part = PartHeader {
        id: 1,
        part: 2,
        next: 3,
        len: 4,
        chunk_crcs: 5,
    }
    .encode(CACHE_ID);
    assert!(LogRecord::<First>::decode(CACHE_ID, &record).is_some());
    assert!(LogRecord::<First>::decode(CACHE_ID + 1, &record).is_none());
    assert!(PartHeader::decode(CACHE_ID, &part).is_some());
    assert!(PartHeader::decode(CACHE_ID + 1, &part).is_none());
    for bit in 0..record.len() * 8 {
        let mut bad = record;
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(
            LogRecord::<First>::decode(CACHE_ID, &bad).is_none(),
            "record, bit {bit}"
        );
    }
    for bit in 0..part.len() * 8 {
        let mut bad = part;
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(
            PartHeader::decode(CACHE_ID, &bad).is_none(),
            "part header, bit {bit}"
        );
    }
}
