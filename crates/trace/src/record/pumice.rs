//! A Pumice that tells requests at its admin door, as `recording.rs` of the memcached door says.
//!
//! A touch becomes a get in the trace, if its key was there; what the server counts as stored is a set.

use super::{Book, Lines, RecordError, Teller, server};
use crate::{Op, Request, TraceError};
use std::time::Duration;

/// Most lines of the head of an answer.
const HEAD_LINES_MAX: usize = 100;

/// Asks the admin door of a Pumice for its requests.
pub(super) fn ask(flag: &str, address: &str, one_in: u64, head: &str) -> Result<Lines, RecordError> {
    // Of version 1.0, so that the answer comes as it is, until the connection ends.
    let question = format!("GET /requests?sample={one_in} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    let mut lines = Lines::ask(flag, "127.0.0.1:11250", address, &question)?;
    let mut next = || {
        let line = lines.answer();
        line.map_err(|error| {
            server(format!(
                "{address}: no answer: {error}: is it the admin door of a Pumice?"
            ))
        })
    };
    let status = next()?.unwrap_or_default();
    let code = status
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1))
        .ok_or_else(|| match status.as_str() {
            "" => server(format!(
                "{address}: it closed the connection: is it the admin door of a Pumice?"
            )),
            _ => server(format!(
                "{address}: it answers with `{status}`: that is no admin door of a Pumice"
            )),
        })?
        .to_owned();
    for _ in 0..HEAD_LINES_MAX {
        if next()?.is_none_or(|line| line.is_empty()) {
            break;
        }
    }
    let first = next()?.unwrap_or_default();
    match code.as_str() {
        "200" if first == head => Ok(lines),
        "200" => Err(server(format!(
            "{address}: it begins with `{first}` where `{head}` was expected: that is no Pumice, or one of another version"
        ))),
        "404" if first.is_empty() => Err(server(format!(
            "{address}: it has no /requests (404): it is no Pumice, or an older one that cannot tell them"
        ))),
        _ => Err(server(format!(
            "{address}: it tells no requests ({code}): {first}"
        ))),
    }
}

/// What the lines of a Pumice say.
pub(super) struct Pumice;

impl Teller for Pumice {
    const NAME: &str = "Pumice";

    /// It says each second that it is there.
    const SILENCE: Option<Duration> = Some(Duration::from_secs(10));

    fn hear(&mut self, line: &str, book: &mut Book) -> Result<bool, TraceError> {
        // It says that it is there.
        if line.is_empty() {
            return Ok(true);
        }
        if let Some(others) = line.strip_prefix("others=") {
            let others = others.parse().unwrap_or(1);
            book.heard.others = book.heard.others.saturating_add(others);
            return Ok(true);
        }
        let Some(Line {
            request,
            name,
            ttl,
            is_miss,
        }) = Line::read(line)
        else {
            return Ok(false);
        };
        if name == "touch" {
            book.heard.touches += 1;
            return match is_miss {
                true => Ok(true),
                false => book.recorder.write(&request, ttl).map(|()| true),
            };
        }
        book.write(&request, ttl)?;
        Ok(true)
    }

    fn end(&mut self, _: &mut Book) -> Result<u64, TraceError> {
        Ok(0)
    }
}

/// A request as it is told.
struct Line<'a> {
    request: Request,
    name: &'a str,
    ttl: Option<u64>,
    is_miss: bool,
}

impl<'a> Line<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let mut words = line.split(' ');
        let time = words.next()?.parse().ok()?;
        let name = words.next()?;
        let op = match name {
            "get" | "touch" => Op::Get,
            "set" => Op::Set,
            "delete" => Op::Delete,
            _ => return None,
        };
        let (key, size) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let (mut ttl, mut is_miss) = (None, false);
        for word in words {
            match word.split_once('=') {
                Some(("ttl", secs)) => ttl = Some(secs.parse().ok()?),
                None if word == "miss" => is_miss = true,
                // What a later version may say as well.
                _ => {}
            }
        }
        let request = Request {
            key,
            // What found nothing, and what a delete has removed, has no size that could be told.
            size: (!is_miss && op != Op::Delete).then_some(size),
            time,
            op,
            is_miss: is_miss && op == Op::Get,
            content: None,
        };
        Some(Self {
            request,
            name,
            ttl,
            is_miss,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Heard, testing::heard};
    use super::*;

    #[test]
    fn each_line_becomes_what_the_trace_has_of_it() {
        let (counts, gaps, rows) = heard(
            &[
                "10 get 18446744073709551615 0 miss",
                "10 set 18446744073709551615 106 ttl=100",
                "11 get 18446744073709551615 106",
                "",
                "skipped=3",
                "skipped=18446744073709551615",
                "others=7",
                "others=18446744073709551615",
                "12 touch 18446744073709551615 106 ttl=5",
                "12 touch 2 0 ttl=5 miss",
                "13 delete 18446744073709551615 0",
                "13 delete 2 0 miss later=1",
                "13 incr 2 0",
                "x get 2 0",
                "13 get key 0",
                "13 get 1",
            ],
            Pumice,
        );
        assert_eq!(
            counts,
            Heard {
                gets: 2,
                sets: 1,
                touches: 2,
                deletes: 2,
                others: u64::MAX,
                skipped: u64::MAX,
                unknown: 4
            }
        );
        assert_eq!(gaps, 0);
        assert_eq!(
            rows,
            [
                "10,18446744073709551615,,get,",
                "10,18446744073709551615,106,set,100",
                "11,18446744073709551615,106,get,",
                "12,18446744073709551615,106,get,5",
                "13,18446744073709551615,,delete,",
                "13,2,,delete,",
            ]
        );
    }
}
