//! `pumice trace record`: the requests of a running memcached, as its `watch` tells them.
//!
//! ```text
//! ts=1795838081.749779 gid=2 type=item_get key=a status=not_found clsid=0 cfd=26 size=0
//! ts=1795838081.801516 gid=4 type=item_store key=a status=stored cmd=set ttl=100 clsid=1 cfd=26 size=5
//! skipped=12
//! ```
//! memcached looks a key up before it stores it, and tells that as a get: the last get of a connection is dropped if the connection stores the same key
//! next. A delete, touch or incr is told as a get. `gid` numbers what is told over all threads, which tell it out of order: it is put in order as
//! far as some thousands of lines allow, and numbers that are missing in the end are requests that were not told.

use crate::replay::trace_error;
use crate::usage::usage;
use anyhow::{Context, anyhow};
use clap::Args;
use pumice_trace::{Op, Recorder, Request};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long an address may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How often the time is looked at while nothing comes.
const LOOK: Duration = Duration::from_millis(100);
/// Longest line.
const LINE_BYTES_MAX: usize = 16 * 1024;
/// Requests that wait for a store which takes one of them back.
const WAITING: usize = 4096;

/// Flags of `trace record`.
#[derive(Args, Debug)]
pub struct RecordArgs {
    /// The file to write, which must not be there; compressed with zstd if its name ends in .zst
    #[arg(value_name = "OUT")]
    out: PathBuf,

    /// The memcached to listen to, such as 127.0.0.1:11211 (1.6.10 or newer)
    #[arg(long, value_name = "ADDR")]
    memcached: String,

    /// Seconds to listen for
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=2_678_400))]
    seconds: u64,

    /// Record one key in R, as 1/R
    #[arg(long, value_name = "1/R", default_value = "1/1", value_parser = share)]
    sample: u64,
}

/// R of `1/R`.
fn share(text: &str) -> Result<u64, String> {
    let one_in = text.strip_prefix("1/").and_then(|rest| rest.parse().ok());
    let one_in = one_in.filter(|one_in| (1..=1_000_000).contains(one_in));
    one_in.ok_or_else(|| "expected 1/R, where R is from 1 to 1000000".to_owned())
}

/// Listens, and writes what it hears. Returns a line for people.
///
/// # Errors
/// Usage, or why nothing can be heard.
pub fn run(args: &RecordArgs) -> anyhow::Result<String> {
    let mut lines = watch(&args.memcached)?;
    let recorder = Recorder::create(&args.out).map_err(trace_error)?;
    let mut listener = Listener::new(recorder, args.sample);
    let deadline = Instant::now() + Duration::from_secs(args.seconds);
    let mut line = Vec::new();
    let mut ended = String::new();
    while Instant::now() < deadline {
        let read = match lines.fill_buf() {
            Ok([]) => {
                ended = ": memcached closed the connection".to_owned();
                break;
            }
            Ok(read) => read,
            Err(error) if is_silence(&error) => continue,
            Err(error) => {
                ended = format!(": the connection ended: {error}");
                break;
            }
        };
        let end = read.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(read.len(), |end| end + 1);
        line.extend_from_slice(&read[..taken]);
        lines.consume(taken);
        if line.len() > LINE_BYTES_MAX {
            return Err(anyhow!(
                "{}: a line of more than {LINE_BYTES_MAX} bytes: that is no memcached",
                args.memcached
            ));
        }
        if end.is_some() {
            listener.hear(&String::from_utf8_lossy(&line))?;
            line.clear();
        }
    }
    listener.finish(&args.memcached, &ended)
}

fn is_silence(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// Asks a memcached to tell what it is asked for.
fn watch(address: &str) -> anyhow::Result<BufReader<TcpStream>> {
    let resolved = address.to_socket_addrs().map_err(|error| {
        usage(format!(
            "--memcached `{address}`: {error}; expected an address such as 127.0.0.1:11211"
        ))
    })?;
    let mut last = None;
    let connected = resolved.into_iter().find_map(|address| {
        TcpStream::connect_timeout(&address, ANSWER)
            .map_err(|error| last = Some(error))
            .ok()
    });
    let mut stream = connected.ok_or_else(|| match last {
        Some(error) => anyhow!("{address}: cannot connect: {error}"),
        None => anyhow!("{address}: the name has no address"),
    })?;
    let asked = || format!("{address}: asking for `watch fetchers mutations`");
    stream.set_read_timeout(Some(ANSWER)).with_context(asked)?;
    stream.set_write_timeout(Some(ANSWER)).with_context(asked)?;
    stream
        .write_all(b"watch fetchers mutations\r\n")
        .with_context(asked)?;
    let mut lines = BufReader::with_capacity(1 << 20, stream);
    let mut answer = Vec::new();
    let read = std::io::Read::take(&mut lines, 64).read_until(b'\n', &mut answer);
    let answer = String::from_utf8_lossy(&answer).trim_end().to_owned();
    match read {
        Err(error) => Err(anyhow!(
            "{address}: no answer to `watch`: {error}: is it a memcached?"
        )),
        Ok(_) if answer == "OK" => {
            lines.get_ref().set_read_timeout(Some(LOOK)).with_context(asked)?;
            Ok(lines)
        }
        Ok(0) => Err(anyhow!(
            "{address}: it closed the connection at `watch`: is it a memcached?"
        )),
        Ok(_) => Err(anyhow!(
            "{address}: it answers `watch` with `{answer}`: a memcached of 1.6.10 or newer tells what it is asked for"
        )),
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
struct Listener {
    recorder: Recorder,
    salt: RandomState,
    one_in: u64,
    /// Requests that are not written yet, in order of gid.
    waiting: VecDeque<Waiting>,
    /// By connection: gid of its last request, if that was a get.
    gets: HashMap<u64, u64>,
    /// Lowest and highest gid.
    gids: Option<(u64, u64)>,
    counts: Heard,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Heard {
    gets: u64,
    sets: u64,
    /// Lines that make sense.
    told: u64,
    /// Requests of keys that are not in the sample.
    others: u64,
    /// What memcached says that it has left out.
    skipped: u64,
    /// Lines that make no sense.
    unknown: u64,
}

impl Listener {
    fn new(recorder: Recorder, one_in: u64) -> Self {
        Self {
            recorder,
            salt: RandomState::new(),
            one_in,
            waiting: VecDeque::new(),
            gets: HashMap::new(),
            gids: None,
            counts: Heard::default(),
        }
    }

    fn hear(&mut self, line: &str) -> anyhow::Result<()> {
        let line = line.trim_end();
        if let Some(skipped) = line.strip_prefix("skipped=") {
            self.counts.skipped += skipped.parse::<u64>().unwrap_or(1);
            return Ok(());
        }
        let Some(told) = Told::read(line) else {
            self.counts.unknown += 1;
            return Ok(());
        };
        self.counts.told += 1;
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
            return Ok(());
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
                    size: Some(if told.is_there {
                        told.size + told.key_bytes()
                    } else {
                        0
                    }),
                    time: told.secs,
                    op: if told.is_store { Op::Set } else { Op::Get },
                    content: None,
                },
                ttl: told.ttl.filter(|_| told.is_store),
                is_taken_back: false,
            },
        );
        self.write(WAITING)
    }

    /// Writes the oldest requests, until so many wait.
    fn write(&mut self, most: usize) -> anyhow::Result<()> {
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
            if request.key % self.one_in != 0 {
                self.counts.others += 1;
                continue;
            }
            match request.op {
                Op::Get => self.counts.gets += 1,
                _ => self.counts.sets += 1,
            }
            self.recorder.write(&request, ttl).map_err(trace_error)?;
        }
        Ok(())
    }

    fn finish(mut self, address: &str, ended: &str) -> anyhow::Result<String> {
        self.write(0)?;
        let Heard {
            gets,
            sets,
            told,
            others,
            skipped,
            unknown,
        } = self.counts;
        if gets + sets == 0 {
            return Err(anyhow!(match others {
                0 => format!("{address}: it was asked for nothing{ended}"),
                _ => format!("{address}: none of {others} requests were of keys in the sample{ended}"),
            }));
        }
        let numbers = self
            .gids
            .map_or(0, |(least, most)| (most - least).saturating_add(1));
        let sample = if self.one_in > 1 { others } else { 0 };
        self.recorder.finish().map_err(trace_error)?;
        let mut text = format!("{gets} gets and {sets} sets{ended}");
        for (count, what) in [
            (
                numbers.saturating_sub(told),
                "requests were not told (gaps of gid)",
            ),
            (
                skipped,
                "were left out by memcached, which cannot keep up (skipped)",
            ),
            (
                sample,
                "requests were of keys that are not in the sample: sizes and money that `advise` finds are of that part of the keys",
            ),
            (unknown, "lines made no sense"),
        ] {
            if count > 0 {
                text = format!("{text}\nnote: {count} {what}");
            }
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(lines: &[&str], one_in: u64) -> (Heard, Vec<String>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.csv");
        let mut listener = Listener::new(Recorder::create(&path).unwrap(), one_in);
        lines.iter().for_each(|line| listener.hear(line).unwrap());
        listener.write(0).unwrap();
        let counts = std::mem::take(&mut listener.counts);
        listener.recorder.finish().unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let mut lines = text.lines().map(str::to_owned);
        assert_eq!(lines.next().unwrap(), "time,id,size,op,ttl");
        (counts, lines.collect())
    }

    #[test]
    fn a_lookup_that_belongs_to_a_store_is_no_get() {
        let (counts, lines) = heard(
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
            1,
        );
        assert_eq!(
            counts,
            Heard {
                gets: 5,
                sets: 1,
                told: 8,
                others: 0,
                skipped: 3,
                unknown: 1
            }
        );
        let rows: Vec<Vec<&str>> = lines.iter().map(|line| line.split(',').collect()).collect();
        let (a, b) = (rows[0][1], rows[4][1]);
        assert_ne!(a, b);
        assert_eq!(
            rows,
            [
                ["10", a, "0", "get", ""],
                ["10", a, "0", "get", ""],
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
        let (counts, rows) = heard(&lines, 1);
        assert_eq!((counts.told, counts.gets), (6, 6));
        let times: Vec<&str> = rows.iter().filter_map(|row| row.split(',').next()).collect();
        assert_eq!(times, ["1", "2", "3", "4", "5", "6"]);
        let (_, rows) = heard(
            &["ts=1.0 gid=18446744073709551615 type=item_get key=%%% status=found clsid=1 cfd=1 size=5"],
            1,
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
        let (counts, rows) = heard(&lines, 10);
        assert_eq!(counts.gets as usize, rows.len());
        assert!(
            counts.gets.is_multiple_of(20) && (1000..3000).contains(&counts.gets),
            "{counts:?}"
        );
    }
}
