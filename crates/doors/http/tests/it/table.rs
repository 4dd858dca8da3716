//! Tables of requests and responses.

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use std::time::{Duration, UNIX_EPOCH};

/// When the response of each test came, in seconds since 1970: Tue, 14 Nov 2023 22:13:20 GMT.
pub const THEN: i64 = 1_700_000_000;

/// The rows of a table, a line each, cells between `|`.
pub fn rows<const N: usize>(table: &str) -> impl Iterator<Item = [&str; N]> {
    let lines = table.lines().filter(|line| !line.trim().is_empty());
    lines.map(|line| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        cells.try_into().unwrap_or_else(|_| panic!("{line}"))
    })
}

/// The fields of a cell, `name: value` with `&` between; `date(n)` in a value is the date n seconds after [`THEN`].
pub fn fields(cell: &str) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for line in cell.split('&').map(str::trim).filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("{line}"));
        let value = match value
            .split_once("date(")
            .and_then(|(_, rest)| rest.strip_suffix(')'))
        {
            None => value.trim().to_owned(),
            Some(secs) => date(secs.parse().unwrap()),
        };
        fields.append(
            name.parse::<HeaderName>().unwrap(),
            HeaderValue::from_str(&value).unwrap(),
        );
    }
    fields
}

/// The date some seconds after [`THEN`].
pub fn date(secs: i64) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs((THEN + secs).unsigned_abs()))
}

/// A cell with a first word, or without one, which is `usual` then.
fn with_word<'a>(cell: &'a str, usual: &'a str) -> (&'a str, HeaderMap) {
    let (word, rest) = cell.split_once(' ').unwrap_or((cell, ""));
    match word.contains(':') || word.is_empty() {
        true => (usual, fields(cell)),
        false => (word, fields(rest)),
    }
}

/// A request: its method, GET unless there is another, and its fields.
pub fn request(cell: &str) -> (Method, HeaderMap) {
    let (method, fields) = with_word(cell, "GET");
    (method.parse().unwrap(), fields)
}

/// A response: its status, 200 unless there is another, and its fields.
pub fn response(cell: &str) -> (StatusCode, HeaderMap) {
    let (status, fields) = with_word(cell, "200");
    (status.parse().unwrap(), fields)
}
