//! Reads the requests of a running memcached from its command `watch`, which answers with a line for each request:
//!
//! ```text
//! ts=1795838081.749779 gid=2 type=item_get key=a status=not_found clsid=0 cfd=26 size=0
//! ts=1795838081.801516 gid=4 type=item_store key=a status=stored cmd=set ttl=100 clsid=1 cfd=26 size=5
//! skipped=12
//! ```
//! memcached looks a key up before it stores it, and tells that as a get: the last get of a connection is dropped if the connection stores the same key
//! next. A delete, touch or incr is told as a get. `gid` numbers what is told over all threads, which tell it out of order: it is put in order as
//! far as some thousands of lines allow, and numbers that are missing in the end are requests that were not told.

use super::{Book, Lines, RecordError, Teller, server};
use crate::{Op, Request, TraceError};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Requests that wait for a store which takes one of them back.
const WAITING: usize = 4096;

/// Asks a memcached to tell what it is asked for.
pub(super) fn watch(flag: &str, address: &str) -> Result<Lines, RecordError> {
    let example = "127.0.0.1:11211";
    let mut lines = Lines::ask(flag, example, address, "watch fetchers mutations\r\n")?;
    match lines.answer() {
        Err(error) => Err(server(format!(
            "{address}: no answer to `watch`: {error}: is it a memcached?"
        ))),
        Ok(None) => Err(server(format!(
            "{address}: it closed the connection at `watch`: is it a memcached?"
        ))),
        Ok(Some(answer)) if answer == "OK" => Ok(lines),
        Ok(Some(answer)) => Err(server(format!(
            "{address}: it answers `watch` with `{answer}`: a memcached of 1.6.10 or newer tells what it is asked for"
        ))),
    }
}

/// One thing that memcached tells.
#[derive(Debug, PartialEq, Eq)]
struct Told<'a> {
    secs: u64,
    gid: u64,
    is_store: bool,
    key: &'a str,
    /// `found` of a get, `stored` of a store.
    is_there: bool,
    connection: u64,
    size: u64,
    ttl: Option<u64>,
}

impl<'a> Told<'a> {
    /// Reads a line; `None` if it is of another kind.
    fn read(line: &'a str) -> Option<Self> {
        let mut told = Self {
            secs: 0,
            gid: 0,
            is_store: false,
            key: "",
            is_there: false,
            connection: 0,
            size: 0,
            ttl: None,
        };
        let mut kind = "";
        for (name, value) in line.split_whitespace().filter_map(|part| part.split_once('=')) {
            match name {
                "ts" => told.secs = value.split('.').next()?.parse().ok()?,
                "gid" => told.gid = value.parse().ok()?,
                "type" => kind = value,
                "key" => told.key = value,
                "status" => told.is_there = matches!(value, "found" | "stored"),
                "cfd" => told.connection = value.parse().ok()?,
                "size" => told.size = value.parse().ok()?,
                "ttl" => told.ttl = value.parse().ok(),
                _ => {}
            }
        }
        told.is_store = kind == "item_store";
        (matches!(kind, "item_get" | "item_store") && !told.key.is_empty()).then_some(told)
    }

    /// Bytes of the key: in the line some are escaped.
    fn key_bytes(&self) -> u64 {
        self.key.len().saturating_sub(2 * self.key.matches('%').count()) as u64
    }
}

struct Waiting {
    gid: u64,
    request: Request,
    ttl: Option<u64>,
    is_taken_back: bool,
}

/// Makes requests of what is told.
pub(super) struct Memcached {
    salt: RandomState,
    one_in: u64,
    /// Requests that are not written yet, in order of gid.
    waiting: VecDeque<Waiting>,
    /// By connection: gid of its last request, if that was a get.
    gets: HashMap<u64, u64>,
    /// Lowest and highest gid.
    gids: Option<(u64, u64)>,
    /// Lines that make sense.
    told: u64,
}

impl Memcached {
    pub(super) fn new(one_in: u64) -> Self {
        Self {
            salt: RandomState::new(),
            one_in,
            waiting: VecDeque::new(),
            gets: HashMap::new(),
            gids: None,
            told: 0,
        }
    }

    /// Writes the oldest requests, until so many wait.
    fn write(&mut self, most: usize, book: &mut Book) -> Result<(), TraceError> {
        while self.waiting.len() > most {
            let Some(Waiting {
                request,
                ttl,
                is_taken_back,
                ..
            }) = self.waiting.pop_front()
            else {
                break;
            };
            if is_taken_back {
                continue;
            }
            if !request.key.is_multiple_of(self.one_in) {
                book.heard.others += 1;
                continue;
            }
            book.write(&request, ttl)?;
        }
        Ok(())
    }
}

impl Teller for Memcached {
    const NAME: &str = "memcached";

    /// It says nothing while nobody asks it.
    const SILENCE: Option<Duration> = None;

    fn hear(&mut self, line: &str, book: &mut Book) -> Result<bool, TraceError> {
        let Some(told) = Told::read(line) else {
            return Ok(false);
        };
        self.told += 1;
        let (least, most) = self.gids.unwrap_or((told.gid, told.gid));
        self.gids = Some((least.min(told.gid), most.max(told.gid)));
        let key = self.salt.hash_one(told.key);
        let before = self.gets.remove(&told.connection);
        if let Some(gid) = before.filter(|_| told.is_store) {
            // What was written stays.
            let at = self
                .waiting
                .binary_search_by_key(&gid, |waiting| waiting.gid)
                .ok();
            if let Some(lookup) = at.and_then(|at| self.waiting.get_mut(at))
                && lookup.request.key == key
            {
                lookup.is_taken_back = true;
            }
        }
        if told.is_store && !told.is_there {
            return Ok(true);
        }
        if !told.is_store {
            self.gets.insert(told.connection, told.gid);
        }
        let at = self.waiting.partition_point(|waiting| waiting.gid < told.gid);
        self.waiting.insert(
            at,
            Waiting {
                gid: told.gid,
                request: Request {
                    key,
                    size: (told.is_there).then(|| told.size.saturating_add(told.key_bytes())),
                    time: told.secs,
                    op: if told.is_store { Op::Set } else { Op::Get },
                    is_miss: !told.is_there,
                    content: None,
                },
                ttl: told.ttl.filter(|_| told.is_store),
                is_taken_back: false,
            },
        );
        self.write(WAITING, book)?;
        Ok(true)
    }

    fn end(&mut self, book: &mut Book) -> Result<u64, TraceError> {
        self.write(0, book)?;
        let numbers = self
            .gids
            .map_or(0, |(least, most)| (most - least).saturating_add(1));
        Ok(numbers.saturating_sub(self.told))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Heard, testing::heard};
    use super::*;

    #[test]
    fn a_lookup_that_belongs_to_a_store_is_no_get() {
        let (counts, gaps, lines) = heard(
            &[
                "ts=10.5 gid=1 type=item_get key=a status=not_found clsid=0 cfd=26 size=0",
                "ts=10.6 gid=2 type=item_get key=a status=not_found clsid=0 cfd=26 size=0",
                // Another connection between the two.
                "ts=10.6 gid=3 type=item_get key=a status=not_found clsid=0 cfd=27 size=0",
                "ts=11.6 gid=4 type=item_store key=a status=stored cmd=set ttl=100 clsid=1 cfd=26 size=5",
                "ts=12.0 gid=5 type=item_get key=a status=found clsid=1 cfd=26 size=5",
                "ts=12.1 gid=6 type=item_get key=b%20 status=found clsid=1 cfd=26 size=7",
                "ts=12.1 gid=7 type=item_store key=a status=not_stored cmd=add ttl=0 clsid=1 cfd=26 size=1",
                "skipped=3",
                "ts=12.1 gid=12 type=item_get key=a status=found clsid=1 cfd=28 size=5",
                "hello",
            ],
            Memcached::new(1),
        );
        assert_eq!(
            counts,
            Heard {
                gets: 5,
                sets: 1,
                skipped: 3,
                unknown: 1,
                ..Heard::default()
            }
        );
        assert_eq!(gaps, 4);
        let rows: Vec<Vec<&str>> = lines.iter().map(|line| line.split(',').collect()).collect();
        let (a, b) = (rows[0][1], rows[4][1]);
        assert_ne!(a, b);
        assert_eq!(
            rows,
            [
                ["10", a, "", "get", ""],
                ["10", a, "", "get", ""],
                ["11", a, "6", "set", "100"],
                ["12", a, "6", "get", ""],
                ["12", b, "9", "get", ""],
                ["12", a, "6", "get", ""],
            ]
        );
    }

    #[test]
    fn what_threads_tell_out_of_order_is_put_in_order() {
        let get = |gid: u64, cfd: u64| {
            format!("ts={gid}.0 gid={gid} type=item_get key=k{cfd} status=found clsid=1 cfd={cfd} size=5")
        };
        let lines: Vec<String> = [3, 1, 2, 6, 5, 4].map(|gid| get(gid, gid % 2)).to_vec();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let (counts, gaps, rows) = heard(&lines, Memcached::new(1));
        assert_eq!((gaps, counts.gets), (0, 6));
        let times: Vec<&str> = rows.iter().filter_map(|row| row.split(',').next()).collect();
        assert_eq!(times, ["1", "2", "3", "4", "5", "6"]);
        let (_, _, rows) = heard(
            &["ts=1.0 gid=18446744073709551615 type=item_get key=%%% status=found clsid=1 cfd=1 size=5"],
            Memcached::new(1),
        );
        assert!(rows[0].contains(",5,get"), "{rows:?}");
    }

    #[test]
    fn a_sample_has_all_requests_of_some_keys() {
        let lines: Vec<String> = (0..20_000)
            .map(|number| {
                format!(
                    "ts=1.0 gid={number} type=item_get key=k{} status=found clsid=1 cfd={number} size=5",
                    number % 1000
                )
            })
            .collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let (counts, _, rows) = heard(&lines, Memcached::new(10));
        assert_eq!(counts.gets as usize, rows.len());
        assert!(
            counts.gets.is_multiple_of(20) && (1000..3000).contains(&counts.gets),
            "{counts:?}"
        );
    }
}
