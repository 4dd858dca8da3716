//! No bytes make a reader panic or hang, whatever the format.

use std::io::Cursor;

use proptest::prelude::*;
use pumice_trace::{BATCH_REQUESTS, Format, Trace, TraceKey, TraceOptions};

/// Batches after which a trace counts as read: some records rightly stand for very many requests.
const MAX_BATCHES: usize = 200;

/// Reads `bytes` as every format, and as whatever they seem to be.
fn read_as_everything(bytes: &[u8]) {
    let mut ways: Vec<TraceOptions> = Format::ALL
        .into_iter()
        .filter(|&format| format != Format::Csv)
        .map(|format| TraceOptions {
            format: Some(format),
            columns: None,
        })
        .collect();
    for columns in [
        "id=1",
        "time=1,id=2,size=3,op=4,delimiter=;,header=true",
        "id=key,size=size,delimiter=space,header=true",
    ] {
        ways.push(TraceOptions {
            format: Some(Format::Csv),
            columns: Some(columns.parse().unwrap()),
        });
    }
    ways.push(TraceOptions::default());
    let by_content = TraceOptions {
        format: Some(Format::Fiu),
        columns: None,
    };
    let ways = ways.into_iter().map(|options| (options, TraceKey::Object));
    for (options, key) in ways.chain([(by_content, TraceKey::Fingerprint)]) {
        let opened = Trace::read_keyed(
            "any",
            Cursor::new(bytes.to_vec()),
            bytes.len() as u64,
            &options,
            key,
        );
        let Ok(mut reader) = opened else { continue };
        let mut batch = Vec::new();
        let mut requests = 0;
        for _ in 0..MAX_BATCHES {
            match reader.next_batch(&mut batch) {
                Ok(true) => {
                    assert!(!batch.is_empty() && batch.len() <= BATCH_REQUESTS);
                    requests += batch.len();
                    assert!(
                        batch
                            .iter()
                            .all(|request| request.size.is_none() || reader.has_sizes())
                    );
                }
                Ok(false) => {
                    assert!(batch.is_empty());
                    break;
                }
                Err(error) => {
                    assert!(error.is_corruption(), "{error}");
                    assert!(!reader.next_batch(&mut batch).unwrap() && batch.is_empty());
                    break;
                }
            }
        }
        assert!(reader.progress().done <= bytes.len() as u64);
        let records = reader.records();
        assert!(requests == 0 || records.count > 0);
        if let Some(disk) = records.disk {
            assert!(disk.writes.max(disk.unaligned) <= records.count && disk.bytes_written <= disk.bytes);
        }
    }
}

/// Text that is nearly a trace.
fn nearly_a_trace() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![
        any::<u64>().prop_map(|n| n.to_string()),
        (0u64..100).prop_map(|n| n.to_string()),
        any::<i64>().prop_map(|n| n.to_string()),
        Just("18446744073709551616".to_owned()),
        Just(String::new()),
        "[ -~]{0,6}",
        prop::sample::select(vec![
            "R",
            "W",
            "get",
            "delete",
            "putChunk",
            "-",
            "88b93b628d84082186026d9da044f173",
        ])
        .prop_map(str::to_owned),
    ];
    let head = prop_oneof![
        Just(""),
        Just("relative_unix\thashed_host_path_query\tresponse_size\ttime_firstbyte\n"),
        Just("op_time,key,key_size,op,op_count,size\n"),
        Just("key;op;size\n"),
        Just("op_time,block_id,io_size,op_name\n"),
        Just("host\tlogname\ttime\tmethod\turl\tresponse\tbytes\n"),
        Just("start ; sector; length ; op ; replay_delay=0 ; replay_duration=0\n"),
        Just("{\"timestamp\": 1, \"hash_ids\": ["),
    ];
    let separator = prop_oneof![Just(" "), Just(","), Just("\t"), Just(";"), Just("\"")];
    let row = prop::collection::vec((number, separator), 0..10);
    (
        head,
        prop::collection::vec(row, 0..8),
        prop_oneof![Just("\n"), Just("\r\n"), Just("]}\n"), Just("\0")],
    )
        .prop_map(|(head, rows, end)| {
            let mut text = head.to_owned();
            for row in rows {
                for (field, separator) in row {
                    text.push_str(&field);
                    text.push_str(separator);
                }
                text.push_str(end);
            }
            text.into_bytes()
        })
}

/// A disk request near every limit, as a record of vscsi and as lines of text.
fn nearly_a_disk_record() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let sector = prop_oneof![
        any::<u64>(),
        0u64..1000,
        (0u32..64, 0u64..4).prop_map(|(bit, less)| (1u64 << bit).wrapping_sub(less)),
    ];
    let length = prop_oneof![any::<u32>(), 0u32..100_000];
    let command = prop_oneof![Just(0x28u16), Just(0x2a), any::<u16>()];
    let device = prop_oneof![0u64..4, Just((1 << 20) - 1), any::<u64>()];
    (sector, length, command, device, 0usize..4).prop_map(|(sector, length, command, device, form)| {
        let mut record = [7, length, 1].map(u32::to_le_bytes).concat();
        record.extend(command.to_le_bytes());
        record.extend([0, 1]);
        record.extend(sector.to_le_bytes());
        record.extend(9u64.to_le_bytes());
        let op = if command == 0x2a { 'W' } else { 'R' };
        let text = match form {
            0 => format!("9 {device} {sector} {length} {}\n", command % 2),
            1 => format!("9.5 ; {sector} ; {length} ; {op} ; 0.0 ; 0.0\n"),
            2 => {
                let (major, minor) = (device >> 8, device & 255);
                let md5 = "88b93b628d84082186026d9da044f173";
                format!("9 1 p {sector} {length} {op} {major} {minor} {md5}\n")
            }
            _ => format!("9,k{sector},2,{length},{device},get,{sector}\n"),
        };
        (record, text.into_bytes())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_end_in_requests_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        read_as_everything(&bytes);
    }

    #[test]
    fn nearly_right_disk_records_end_in_requests_or_an_error(
        records in prop::collection::vec(nearly_a_disk_record(), 0..6),
        cut in 0..32usize,
    ) {
        let (binary, text): (Vec<_>, Vec<_>) = records.into_iter().unzip();
        let binary = binary.concat();
        read_as_everything(&binary[..binary.len().saturating_sub(cut)]);
        let text = text.concat();
        read_as_everything(&text[..text.len().saturating_sub(cut)]);
    }

    #[test]
    fn nearly_right_text_ends_in_requests_or_an_error(bytes in nearly_a_trace()) {
        read_as_everything(&bytes);
    }

    #[test]
    fn damaged_compression_ends_in_requests_or_an_error(
        kind in 0..3usize,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let text = b"1 2 3\n4 5 6\n7 8 9\n10 11 12\n".repeat(20);
        let mut bytes = match kind {
            0 => zstd::encode_all(&text[..], 1).unwrap(),
            1 => {
                let mut encoder = flate2::read::GzEncoder::new(&text[..], flate2::Compression::fast());
                let mut out = Vec::new();
                std::io::Read::read_to_end(&mut encoder, &mut out).unwrap();
                out
            }
            _ => {
                let mut out = Vec::new();
                std::io::Read::read_to_end(&mut liblzma::read::XzEncoder::new(&text[..], 1), &mut out).unwrap();
                out
            }
        };
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if cut.index(3) == 0 {
            bytes.truncate(cut.index(bytes.len()));
        }
        read_as_everything(&bytes);
    }

    #[test]
    fn any_text_as_columns_or_generator_is_parsed_or_refused(text in "[a-z0-9=,;.:-]{0,40}") {
        let _ = text.parse::<pumice_trace::Columns>();
        for kind in ["zipf", "uniform", "hotspot", "normal", "latest", "block"] {
            let _ = format!("{kind}:{text}").parse::<pumice_trace::Generator>();
        }
    }
}
