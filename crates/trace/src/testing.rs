//! Short forms for the tests of formats.

use std::io::Cursor;

use crate::{Format, Op, Request, RequestReader, Trace, TraceError, TraceOptions};

/// All requests up to the end or the first error.
pub(crate) fn drain(reader: &mut dyn RequestReader) -> Result<Vec<Request>, TraceError> {
    let (mut all, mut batch) = (Vec::new(), Vec::new());
    while reader.next_batch(&mut batch)? {
        all.extend_from_slice(&batch);
    }
    Ok(all)
}

pub(crate) fn request(key: u64, size: Option<u64>, time: u64, op: Op) -> Request {
    Request {
        key,
        size,
        time,
        op,
        ..Request::BLANK
    }
}

pub(crate) fn read(bytes: &[u8], options: &TraceOptions) -> Result<Vec<Request>, TraceError> {
    let mut reader = Trace::read_from("sample", Cursor::new(bytes.to_vec()), bytes.len() as u64, options)?;
    let all = drain(&mut *reader)?;
    assert_eq!(
        reader.progress().done,
        bytes.len() as u64,
        "progress ends at the length"
    );
    assert!(
        all.iter()
            .all(|request| request.size.is_none() || reader.has_sizes())
    );
    Ok(all)
}

/// Reads a sound trace.
pub(crate) fn requests_with(bytes: &[u8], options: &TraceOptions) -> Vec<Request> {
    read(bytes, options).unwrap()
}

pub(crate) fn requests(format: Format, bytes: &[u8]) -> Vec<Request> {
    requests_with(
        bytes,
        &TraceOptions {
            format: Some(format),
            columns: None,
        },
    )
}

/// Reads a damaged trace: record, offset and description of the damage.
pub(crate) fn damage_with(bytes: &[u8], options: &TraceOptions) -> (u64, u64, String) {
    let mut reader =
        Trace::read_from("sample", Cursor::new(bytes.to_vec()), bytes.len() as u64, options).unwrap();
    match drain(&mut *reader) {
        Err(TraceError::Damaged {
            name,
            record,
            offset,
            what,
        }) => {
            assert_eq!(name, "sample");
            assert!(
                !reader.next_batch(&mut Vec::new()).unwrap(),
                "a failed reader goes on"
            );
            (record, offset, what)
        }
        other => panic!("expected damage, found {other:?}"),
    }
}

pub(crate) fn damage(format: Format, bytes: &[u8]) -> (u64, u64, String) {
    damage_with(
        bytes,
        &TraceOptions {
            format: Some(format),
            columns: None,
        },
    )
}

/// Pearson's statistic of `counts` against a distribution by `weights`: over classes that are expected at least 5 times,
/// the rest taken together.
pub(crate) fn pearson(weights: &[f64], counts: &[u32]) -> f64 {
    assert_eq!(weights.len(), counts.len());
    let total: f64 = weights.iter().sum();
    let draws: f64 = counts.iter().map(|&count| f64::from(count)).sum();
    let (mut statistic, mut rest) = (0.0, (0.0, 0.0));
    for (weight, &count) in weights.iter().zip(counts) {
        let expected = weight / total * draws;
        if expected < 5.0 {
            rest = (rest.0 + expected, rest.1 + f64::from(count));
        } else {
            statistic += (f64::from(count) - expected).powi(2) / expected;
        }
    }
    if rest.0 > 0.0 {
        statistic += (rest.1 - rest.0).powi(2) / rest.0;
    }
    statistic
}
