//! Traces written in other formats come back as they were.

use std::io::Cursor;
use std::path::Path;

use pumice_trace::{
    ConvertOptions, Converted, Format, Op, Request, RequestReader, Trace, TraceError, TraceOptions, convert,
};

const CSV: &str = "time=1,id=2,size=3,op=4";
const ALL: &str =
    "1,5,100,get\n2,18446744073709551615,0,set\n2,text,7,get\n3,5,90,delete\n4,5,4294967295,get\n";

fn options(format: Option<Format>, columns: Option<&str>) -> TraceOptions {
    TraceOptions {
        format,
        columns: columns.map(|columns| columns.parse().unwrap()),
    }
}

fn drain(reader: &mut dyn RequestReader) -> Vec<Request> {
    let (mut all, mut batch) = (Vec::new(), Vec::new());
    while reader.next_batch(&mut batch).unwrap() {
        all.extend_from_slice(&batch);
    }
    all
}

fn read(path: &Path, options: TraceOptions) -> Vec<Request> {
    drain(&mut *Trace::new(path, options).unwrap().open().unwrap())
}

/// Converts a trace that is written to `folder`, and returns what was said with the path of the result.
fn converted(
    folder: &Path,
    text: &[u8],
    from: TraceOptions,
    to: Format,
    name: &str,
) -> Result<Converted, TraceError> {
    let source = folder.join("source");
    std::fs::write(&source, text).unwrap();
    let options = ConvertOptions { to, object_size: 1 };
    convert(
        &Trace::new(&source, from)?,
        &folder.join(name),
        options,
        &mut |_| {},
    )
}

/// The files in a folder.
fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn csv_keeps_everything() {
    let folder = tempfile::tempdir().unwrap();
    let original = read_text(ALL, CSV);
    for name in ["out.csv", "out.csv.zst"] {
        let said = converted(
            folder.path(),
            ALL.as_bytes(),
            options(None, Some(CSV)),
            Format::Csv,
            name,
        )
        .unwrap();
        assert_eq!(
            (said.requests, said.deletes_left_out, said.sets_without_op),
            (5, 0, 0)
        );
        let back = read(&folder.path().join(name), options(None, None));
        assert_eq!(back, original, "{name}");
    }
    assert_eq!(files(folder.path()), ["out.csv", "out.csv.zst", "source"]);
    let zstd = std::fs::read(folder.path().join("out.csv.zst")).unwrap();
    assert!(zstd.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]));
    // Without sizes there is no column for them, and without times they are 0.
    converted(
        folder.path(),
        b"7 2 0 3\n",
        options(None, None),
        Format::Csv,
        "arc.csv",
    )
    .unwrap();
    let back = read(&folder.path().join("arc.csv"), options(None, None));
    assert_eq!(
        back.iter().map(|r| (r.time, r.key, r.size)).collect::<Vec<_>>(),
        [(0, 7, None), (0, 8, None)]
    );
}

/// A size that is not known stays empty, what found nothing keeps that, and a trace without operations gets none.
#[test]
fn csv_keeps_what_is_not_known() {
    let folder = tempfile::tempdir().unwrap();
    let missed = "time,id,size,op\n1,7,,get\n2,7,50,set\n3,8,,get\n4,9,,set\n";
    let nasa = "h\t-\t7\tGET\t/x\t304\t0\nh\t-\t8\tGET\t/x\t200\t5\nh\t-\t9\tGET\t/x\t304\t0\n";
    for (text, from, head) in [
        (missed, options(None, None), "time,id,size,op\n1,7,,get\n"),
        (nasa, options(Some(Format::NasaTsv), None), "time,id,size\n7,"),
    ] {
        let name = format!("{}.csv", head.len());
        converted(folder.path(), text.as_bytes(), from.clone(), Format::Csv, &name).unwrap();
        let written = std::fs::read_to_string(folder.path().join(&name)).unwrap();
        assert!(written.starts_with(head), "{written}");
        let back = read(&folder.path().join(name), options(None, None));
        assert_eq!(back, read(&folder.path().join("source"), from));
    }
    let said = converted(
        folder.path(),
        missed.as_bytes(),
        options(None, None),
        Format::TimeIdSize,
        "text",
    );
    assert_eq!(said.unwrap().without_size, 2);
    let text = std::fs::read_to_string(folder.path().join("text")).unwrap();
    assert_eq!(text, "1 7 50\n2 7 50\n3 8 1\n4 9 1\n");
}

fn read_text(text: &str, columns: &str) -> Vec<Request> {
    let options = options(None, Some(columns));
    let bytes = Cursor::new(text.as_bytes().to_vec());
    drain(&mut *Trace::read_from("text", bytes, 0, &options).unwrap())
}

#[test]
fn formats_without_operations_keep_the_rest_and_say_what_was_lost() {
    let folder = tempfile::tempdir().unwrap();
    let mut kept = read_text(ALL, CSV);
    kept.retain(|request| request.op != Op::Delete);
    for request in &mut kept {
        request.op = Op::Get;
    }
    for (to, name) in [
        (Format::OracleGeneral, "oracle"),
        (Format::OracleGeneral, "oracle.zst"),
        (Format::TimeIdSize, "time-id-size"),
        (Format::TimeIdSize, "time-id-size.zst"),
        (Format::KeysBeI64, "keys"),
    ] {
        let from = options(None, Some(CSV));
        let said = converted(folder.path(), ALL.as_bytes(), from, to, name).unwrap();
        assert_eq!(
            (said.requests, said.deletes_left_out, said.sets_without_op),
            (4, 1, 1),
            "{name}"
        );
        let back = read(&folder.path().join(name), options(Some(to), None));
        if to != Format::KeysBeI64 {
            let found = read(&folder.path().join(name), options(None, None));
            assert_eq!(found, back, "{name}, found by content");
        }
        if to == Format::KeysBeI64 {
            let keys = |requests: &[Request]| requests.iter().map(|r| r.key).collect::<Vec<_>>();
            assert_eq!(keys(&back), keys(&kept));
        } else {
            assert_eq!(back, kept, "{name}");
        }
    }
    assert_eq!(files(folder.path()).len(), 6, "no part is left");
}

#[test]
fn oracle_general_knows_the_next_access_of_every_record() {
    // More records than are mended at a time.
    let keys: Vec<u64> = (0..40_000u64).map(|n| n * n % 997 + n % 3 * n).collect();
    let text: String = keys.iter().map(|key| format!("{key} 1 0 0\n")).collect();
    let folder = tempfile::tempdir().unwrap();
    for name in ["plain", "packed.zst"] {
        converted(
            folder.path(),
            text.as_bytes(),
            options(None, None),
            Format::OracleGeneral,
            name,
        )
        .unwrap();
        let mut bytes = std::fs::read(folder.path().join(name)).unwrap();
        if name.ends_with("zst") {
            bytes = zstd::decode_all(&bytes[..]).unwrap();
        }
        assert_eq!(bytes.len(), keys.len() * 24);
        let mut next_of = std::collections::HashMap::new();
        for (at, record) in bytes.chunks_exact(24).enumerate().rev() {
            let key = u64::from_le_bytes(record[4..12].try_into().unwrap());
            assert_eq!(key, keys[at]);
            assert_eq!(record[12..16], [1, 0, 0, 0]);
            let next = i64::from_le_bytes(record[16..].try_into().unwrap());
            assert_eq!(
                next,
                next_of.insert(key, at as i64 + 1).unwrap_or(-1),
                "record {at}"
            );
        }
    }
}

#[test]
fn times_of_oracle_general_are_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let text = b"2500000000 0 8 8 1\n9000000000000 0 8 8 0\n";
    converted(
        folder.path(),
        text,
        options(Some(Format::Mqsim), None),
        Format::OracleGeneral,
        "out",
    )
    .unwrap();
    let back = read(
        &folder.path().join("out"),
        options(Some(Format::OracleGeneral), None),
    );
    assert_eq!(back.iter().map(|r| r.time).collect::<Vec<_>>(), [2, 9000]);
}

#[test]
fn what_cannot_be_written_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let run = |text: &str, to, name| {
        let error = converted(folder.path(), text.as_bytes(), options(None, None), to, name).unwrap_err();
        assert_eq!(files(folder.path()), ["source"], "{error}");
        error.to_string()
    };
    let large = run("1 1 1\n1 2 4294967296\n", Format::OracleGeneral, "out");
    assert!(large.contains("request 2: size 4294967296"), "{large}");
    let late = run("4294967296 1 1\n", Format::OracleGeneral, "out.zst");
    assert!(late.contains("request 1: time 4294967296"), "{late}");
    let damaged = run("1 1 1\n1 1\n", Format::Csv, "out");
    assert!(damaged.contains("record 2"), "{damaged}");
    let format = run("1 1 1\n", Format::Fiu, "out");
    assert!(
        format.contains("`fiu`") && format.contains("time-id-size"),
        "{format}"
    );
    let nowhere = run("1 1 1\n", Format::Csv, "no/out");
    assert!(nowhere.contains("cannot write"), "{nowhere}");
}

#[test]
fn a_file_that_is_there_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    std::fs::write(&path, "mine").unwrap();
    let error = converted(folder.path(), b"1 1 1\n", options(None, None), Format::Csv, "out").unwrap_err();
    assert!(matches!(error, TraceError::Exists { .. }), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    std::fs::write(folder.path().join("new.part"), "mine").unwrap();
    let error = converted(folder.path(), b"1 1 1\n", options(None, None), Format::Csv, "new").unwrap_err();
    assert!(error.to_string().contains("new.part is there already"), "{error}");
    assert_eq!(std::fs::read(folder.path().join("new.part")).unwrap(), b"mine");
}
