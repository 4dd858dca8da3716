//! Files as they come: compressed or not, whole or broken, of a known format or not.

use std::io::{self, Read, Write};
use std::path::Path;

use pumice_trace::{Compression, Format, Request, RequestReader, Trace, TraceError, TraceOptions};

fn text(records: u64) -> Vec<u8> {
    let mut random = pumice_world::Random(1);
    (0..records)
        .flat_map(|time| {
            // Ids that compress badly, so that a cut through the file is a cut through records.
            let state = random.next_u64();
            format!("{time} {} {}\n", state >> 30, state % 9000).into_bytes()
        })
        .collect()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn drain(reader: &mut dyn RequestReader) -> Result<Vec<Request>, TraceError> {
    let (mut all, mut batch) = (Vec::new(), Vec::new());
    while reader.next_batch(&mut batch)? {
        all.extend_from_slice(&batch);
    }
    Ok(all)
}

fn read_file(path: &Path) -> Result<Vec<Request>, TraceError> {
    drain(&mut *Trace::new(path, TraceOptions::default())?.open()?)
}

#[test]
fn compression_is_found_by_content_whatever_the_name() {
    let plain = text(30_000);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.txt");
    let mut read = Vec::new();
    for bytes in [plain.clone(), zstd(&plain), gzip(&plain), xz(&plain)] {
        std::fs::write(&path, &bytes).unwrap();
        let trace = Trace::new(&path, TraceOptions::default()).unwrap();
        assert!(trace.is_rereadable());
        let mut reader = trace.open().unwrap();
        assert_eq!(reader.format_name(), "time-id-size");
        let requests = drain(&mut *reader).unwrap();
        let progress = reader.progress();
        assert_eq!(
            (progress.done, progress.total),
            (bytes.len() as u64, bytes.len() as u64)
        );
        assert_eq!(requests.len(), 30_000);
        assert_eq!(requests[29_999].time, 29_999);
        read.push(requests);
    }
    assert!(read.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn files_of_several_compressed_parts_are_read_to_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("parts");
    for compress in [zstd, gzip, xz] {
        let mut bytes = compress(b"1 1 1\n2 2 2\n");
        bytes.extend(compress(b"3 3 3\n"));
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(read_file(&path).unwrap().len(), 3);
    }
}

#[test]
fn broken_compression_is_an_error_with_file_record_and_offset() {
    let plain = text(30_000);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken");
    let all = [
        (Compression::Zstd, zstd(&plain)),
        (Compression::Gzip, gzip(&plain)),
        (Compression::Xz, xz(&plain)),
    ];
    for (expected, bytes) in all {
        let mut flipped = bytes.clone();
        let middle = flipped.len() / 2;
        for byte in &mut flipped[middle..middle + 64] {
            *byte ^= 0x55;
        }
        for (kind, broken) in [
            ("cut", bytes[..bytes.len() - bytes.len() / 4].to_vec()),
            ("flipped", flipped),
        ] {
            std::fs::write(&path, &broken).unwrap();
            match read_file(&path) {
                Err(
                    error @ TraceError::Compressed {
                        compression,
                        record,
                        offset,
                        ..
                    },
                ) => {
                    assert_eq!(compression, expected);
                    assert!(
                        record > 1 && record <= 30_000,
                        "{expected} {kind}: record {record}"
                    );
                    assert!(
                        offset > 0 && offset < plain.len() as u64,
                        "{expected} {kind}: offset {offset}"
                    );
                    assert!(
                        error.is_corruption() && error.to_string().starts_with(&path.display().to_string())
                    );
                }
                // A decompressor without a checksum per block may hand out damaged text first.
                Err(TraceError::Damaged { record, .. }) if kind == "flipped" => assert!(record > 1),
                other => panic!("{expected} {kind}: {:?}", other.map(|requests| requests.len())),
            }
        }
    }
}

#[test]
fn errors_of_the_system_are_not_taken_for_corruption() {
    struct Failing(usize);
    impl Read for Failing {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            if self.0 == 0 {
                return Err(io::Error::from_raw_os_error(5));
            }
            let bytes = &b"1 2 3\n4 5 6\n"[12 - self.0..];
            let count = bytes.len().min(out.len());
            out[..count].copy_from_slice(&bytes[..count]);
            self.0 -= count;
            Ok(count)
        }
    }
    let options = TraceOptions {
        format: Some(Format::TimeIdSize),
        columns: None,
    };
    let mut reader = Trace::read_from("disk", Failing(12), 0, &options).unwrap();
    let mut batch = Vec::new();
    let error = reader.next_batch(&mut batch).unwrap_err();
    assert_eq!(batch.len(), 2, "good requests before the error are kept");
    assert!(!error.is_corruption());
    assert!(
        error
            .to_string()
            .starts_with("disk: record 3 at byte 12: cannot read: "),
        "{error}"
    );
}

#[test]
fn what_cannot_be_opened_or_recognised_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    let missing = read_file(&path).unwrap_err();
    assert!(matches!(missing, TraceError::Open { .. }) && missing.to_string().contains("keys"));
    std::fs::write(&path, [0, 0, 0, 1, 0, 0, 0, 2]).unwrap();
    let message = read_file(&path).unwrap_err().to_string();
    for name in Format::ALL.map(Format::name) {
        assert!(message.contains(name), "{name} is not in: {message}");
    }
    let csv = TraceOptions {
        format: Some(Format::Csv),
        columns: None,
    };
    assert!(matches!(
        Trace::new(&path, csv),
        Err(TraceError::NoColumns { .. })
    ));
    let columns = Some("id=1".parse().unwrap());
    let arc = TraceOptions {
        format: Some(Format::Arc),
        columns,
    };
    assert!(matches!(
        Trace::new(&path, arc),
        Err(TraceError::ColumnsWithout { .. })
    ));
}

#[test]
fn columns_alone_mean_csv() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table");
    std::fs::write(&path, "id,bytes\nx,5\n").unwrap();
    let columns = Some("id=id,size=bytes,header=true".parse().unwrap());
    let mut reader = Trace::new(
        &path,
        TraceOptions {
            format: None,
            columns,
        },
    )
    .unwrap()
    .open()
    .unwrap();
    assert_eq!(drain(&mut *reader).unwrap()[0].size, Some(5));
}

#[test]
fn a_generator_is_a_trace() {
    let trace = Trace::new("zipf:keys=10,theta=0.5,requests=1000", TraceOptions::default()).unwrap();
    assert!(trace.is_rereadable());
    let requests = drain(&mut *trace.open().unwrap()).unwrap();
    assert_eq!(requests.len(), 1000);
    assert_eq!(drain(&mut *trace.open().unwrap()).unwrap(), requests);
}
