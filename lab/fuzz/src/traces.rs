//! Readers of traces: memory and requests are bounded, how the bytes trickle in changes nothing, and what was read can be written
//! in another format and read again.

use crate::bytes::Bytes;
use pumice_trace::{
    BATCH_REQUESTS, Columns, ConvertOptions, Format, Op, Progress, Records, Request, RequestReader, Trace,
    TraceError, TraceKey, TraceOptions, convert,
};
use std::io::{self, Cursor, Read};
use std::path::Path;

/// Requests after which a trace counts as read: some records rightly stand for very many.
const REQUESTS_MAX: usize = 50_000;
/// Traces up to so many requests are written in other formats.
const CONVERTED_MAX: usize = 2_000;

const COLUMNS: [&str; 3] = [
    "id=1",
    "time=1,id=2,size=3,op=4,delimiter=;,header=true",
    "id=key,size=size,delimiter=space,header=true",
];

/// The first byte chooses the format, the second how the bytes trickle in; with the last choice the columns stand before a newline.
pub(crate) fn run(data: &[u8]) {
    let mut from = Bytes(data);
    let (what, step) = (usize::from(from.u8()), usize::from(from.u8()));
    let mut key = TraceKey::Object;
    let plain: Vec<Format> = Format::ALL
        .into_iter()
        .filter(|format| *format != Format::Csv)
        .collect();
    let mut options = TraceOptions::default();
    let what = what % (plain.len() + COLUMNS.len() + 4);
    match what.checked_sub(plain.len()) {
        None => options.format = Some(plain[what]),
        Some(0) => {}
        Some(1) => (options.format, key) = (Some(Format::Fiu), TraceKey::Fingerprint),
        Some(2) => {
            let len = from
                .0
                .iter()
                .position(|byte| *byte == b'\n')
                .unwrap_or(from.0.len());
            let Some(columns) = columns(from.take(len)) else {
                return;
            };
            from.u8();
            options.columns = Some(columns);
        }
        Some(3) => (options.format, key) = (Some(Format::Msr), TraceKey::Pages(512)),
        Some(csv) => options.columns = Some(COLUMNS[csv - 4].parse().expect("columns")),
    }
    let bytes = from.0;
    let whole = read(Trickle::new(bytes, usize::MAX), bytes.len(), &options, key);
    let trickled = read(Trickle::new(bytes, step + 1), bytes.len(), &options, key);
    check_same(whole.as_ref(), trickled.as_ref(), bytes);
    if let Some(read) = whole {
        check(&read, bytes);
        if read.end == End::Whole && read.requests.len() <= CONVERTED_MAX {
            check_converted(bytes, &options, key, &read);
        }
    }
}

/// Columns from any text; what was understood is said again and understood the same.
fn columns(text: &[u8]) -> Option<Columns> {
    let text = std::str::from_utf8(text).ok()?;
    let columns: Columns = text.parse().ok()?;
    let delimiter = match columns.delimiter {
        b',' => "comma".to_owned(),
        b'\t' => "tab".to_owned(),
        b' ' => "space".to_owned(),
        other => char::from(other).to_string(),
    };
    let mut said = format!("delimiter={delimiter},header={}", columns.header);
    let all = [
        ("id", Some(&columns.id)),
        ("time", columns.time.as_ref()),
        ("size", columns.size.as_ref()),
        ("op", columns.op.as_ref()),
    ];
    for (name, column) in all {
        match column {
            Some(pumice_trace::Column::Number(number)) => said += &format!(",{name}={number}"),
            Some(pumice_trace::Column::Name(column)) => said += &format!(",{name}={column}"),
            None => {}
        }
    }
    let again: Columns = said.parse().unwrap_or_else(|error| panic!("{said}: {error}"));
    assert_eq!(again, columns, "{said}");
    Some(columns)
}

/// How reading ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Whole,
    Damaged(String),
    /// There were more requests than are looked at.
    Cut,
}

/// What a reader said.
#[derive(Debug, PartialEq, Eq)]
struct ReadBack {
    requests: Vec<Request>,
    end: End,
    records: Records,
    has_sizes: bool,
    format: &'static str,
}

/// Reads all of it; nothing where it is refused at once.
fn read(
    bytes: impl Read + Send + 'static,
    len: usize,
    options: &TraceOptions,
    key: TraceKey,
) -> Option<ReadBack> {
    let mut reader = match Trace::read_keyed("any", bytes, len as u64, options, key) {
        Ok(reader) => reader,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return None;
        }
    };
    let (mut requests, end) = drain(&mut *reader);
    let is_cut = end == End::Cut;
    requests.truncate(REQUESTS_MAX);
    let Progress { done, total } = reader.progress();
    assert!(done <= len as u64 && total == len as u64);
    Some(ReadBack {
        requests,
        end,
        // How far it has come where it was left depends on its batches.
        records: if is_cut {
            Records::default()
        } else {
            reader.records()
        },
        has_sizes: reader.has_sizes(),
        format: reader.format_name(),
    })
}

fn drain(reader: &mut dyn RequestReader) -> (Vec<Request>, End) {
    let (mut requests, mut batch) = (Vec::new(), Vec::new());
    loop {
        let more = reader.next_batch(&mut batch);
        assert!(batch.len() <= BATCH_REQUESTS);
        requests.extend_from_slice(&batch);
        let end = match more {
            Ok(true) if requests.len() >= REQUESTS_MAX => return (requests, End::Cut),
            Ok(true) => {
                assert!(!batch.is_empty());
                continue;
            }
            Ok(false) => {
                assert!(batch.is_empty());
                End::Whole
            }
            Err(error) => {
                assert!(error.is_corruption(), "{error}");
                End::Damaged(error.to_string())
            }
        };
        // The end is for good.
        assert!(matches!(reader.next_batch(&mut batch), Ok(false)) && batch.is_empty());
        return (requests, end);
    }
}

/// However the bytes trickle in, what is read is the same. Of compressed data that are damaged more or less may come out before
/// the damage shows.
fn check_same(whole: Option<&ReadBack>, trickled: Option<&ReadBack>, bytes: &[u8]) {
    if let (Some(whole), Some(trickled)) = (whole, trickled)
        && is_compressed(bytes)
        && let (End::Damaged(_), End::Damaged(_)) = (&whole.end, &trickled.end)
    {
        let common = whole.requests.len().min(trickled.requests.len());
        assert!(
            whole.requests[..common] == trickled.requests[..common],
            "{whole:?}, {trickled:?}"
        );
        return;
    }
    assert!(whole == trickled, "{whole:?}, and trickling in {trickled:?}");
}

fn check(read: &ReadBack, bytes: &[u8]) {
    let ReadBack {
        requests, records, ..
    } = read;
    let sized = requests
        .iter()
        .all(|request| request.size.is_none() || read.has_sizes);
    assert!(sized, "sizes of a trace that has none");
    if read.end == End::Cut {
        return;
    }
    assert!(requests.is_empty() || records.count > 0);
    let has_changes = requests.iter().any(|request| request.op != Op::Get);
    assert!(records.have_ops || !has_changes);
    let format: Format = read.format.parse().expect("a name");
    if let Some(disk) = records.disk {
        assert!(disk.writes.max(disk.unaligned) <= records.count && disk.bytes_written <= disk.bytes);
        // Every record takes the pages that it touches.
        assert!(requests.len() as u64 <= disk.bytes / disk.page_bytes + 2 * records.count);
    } else if !is_compressed(bytes) && format != Format::Arc {
        // Every record, and every request, takes a byte at least.
        let len = bytes.len();
        assert!(
            records.count <= len as u64 && requests.len() <= len,
            "{} requests",
            requests.len()
        );
    }
}

fn is_compressed(bytes: &[u8]) -> bool {
    matches!(
        bytes,
        [0x28, 0xb5, 0x2f, 0xfd, ..]
            | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]
            | [0x1f, 0x8b, 0x08, ..]
            | [0xfd, b'7', b'z', b'X', b'Z', 0, ..]
    )
}

/// What was read, written in the formats that can be and read again.
fn check_converted(bytes: &[u8], options: &TraceOptions, key: TraceKey, read_back: &ReadBack) {
    let directory = tempfile::tempdir().expect("a directory");
    let from = directory.path().join("from");
    std::fs::write(&from, bytes).expect("it can be written");
    let trace = Trace::new(&from, options.clone())
        .expect("opened before")
        .with_key(key);
    for to in [
        Format::Csv,
        Format::OracleGeneral,
        Format::TimeIdSize,
        Format::KeysBeI64,
    ] {
        let out = directory.path().join(to.name());
        let options = ConvertOptions { to, object_size: 77 };
        let converted = match convert(&trace, &out, options, &mut |_| {}) {
            Ok(converted) => converted,
            Err(TraceError::DoesNotFit { .. }) => {
                assert!(to == Format::OracleGeneral, "{to} holds everything");
                assert!(!out.exists());
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let again = read_file(&out, to);
        assert_eq!(again.end, End::Whole);
        let expected: Vec<Request> = read_back
            .requests
            .iter()
            .filter_map(|request| as_kept(*request, to, read_back.format))
            .collect();
        assert_eq!(converted.requests, expected.len() as u64);
        assert!(
            again.requests == expected,
            "{to}: {:?} and not {expected:?}",
            again.requests
        );
        if to == Format::OracleGeneral {
            check_next_accesses(&std::fs::read(&out).expect("it is there"));
        }
    }
}

fn read_file(path: &Path, format: Format) -> ReadBack {
    let bytes = std::fs::read(path).expect("it is there");
    let len = bytes.len();
    let options = TraceOptions {
        // Its header has the columns of csv.
        format: (format != Format::Csv).then_some(format),
        columns: None,
    };
    read(Cursor::new(bytes), len, &options, TraceKey::Object).expect("it was just written")
}

/// What a format keeps of a request.
fn as_kept(request: Request, to: Format, from: &str) -> Option<Request> {
    if to == Format::Csv {
        return Some(Request {
            content: None,
            ..request
        });
    }
    let ticks = from.parse::<Format>().expect("a name").ticks_per_second();
    let (time, size) = match to {
        Format::OracleGeneral => (request.time / ticks, Some(request.size.unwrap_or(77))),
        Format::KeysBeI64 => (0, None),
        _ => (request.time, Some(request.size.unwrap_or(77))),
    };
    let kept = Request {
        key: request.key,
        size,
        time,
        ..Request::BLANK
    };
    (request.op != Op::Delete).then_some(kept)
}

/// Each record of oracle-general says which record is the next with its key, counted from 1.
fn check_next_accesses(bytes: &[u8]) {
    let records: Vec<(u64, i64)> = bytes
        .chunks_exact(24)
        .map(|record| {
            let mut fields = Bytes(&record[4..]);
            let key = fields.u64();
            fields.u32();
            (key, fields.u64() as i64)
        })
        .collect();
    for (at, (key, next)) in records.iter().enumerate() {
        let later = records[at + 1..].iter().position(|(other, _)| other == key);
        assert_eq!(*next, later.map_or(-1, |later| (at + later + 2) as i64));
    }
}

/// Yields its bytes a few at a time.
struct Trickle {
    bytes: Cursor<Vec<u8>>,
    step: usize,
}

impl Trickle {
    fn new(bytes: &[u8], step: usize) -> Self {
        Self {
            bytes: Cursor::new(bytes.to_vec()),
            step,
        }
    }
}

impl Read for Trickle {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = self.step.min(out.len());
        self.bytes.read(&mut out[..len])
    }
}
