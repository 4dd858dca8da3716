//! A history check: many clients change and read the same keys of one server, also while it is stopped, killed and started again;
//! everything that it answers is explained by some order, or the check fails.
//!
//! # The rules
//!
//! Each key is a register that may forget. An operation takes effect at one moment between being sent and being
//! answered. In the order of these moments:
//!
//! - A value that is returned is the one that the last change left: not an older one, not one that was deleted or replaced, not
//!   another key's, not damaged, with the flags that it was set with. Reads of a key never go back.
//! - A miss is legal at any time, also of what is found again later. So `NOT_FOUND` and `NOT_STORED` for want of an object say
//!   nothing, and `STORED` of `add` is a set.
//! - `STORED` of `replace`, `append`, `prepend`, `TOUCHED`, `DELETED`, `EXISTS`, and `NOT_STORED` of `add` say that there was an object.
//! - `DELETED` and `NOT_FOUND` of `delete`, `OK` of `flush_all`, `TOUCHED` with a time that has passed, and a set that the server could
//!   not store leave nothing. Nothing older is seen again.
//! - `STORED` of `cas` says that the value that its unique came with was there. A number that `incr` returns is the one that was there
//!   and what was added. A piece is appended once.
//! - What expires is not returned to a request that was sent more than a second after; `touch` and `gat` move that.
//! - `mg` shows a stale object to be stale, and lets one client win.
//! - A request without an answer took effect before its server's process ended, or never.
//!
//! A restart changes none of that: what was answered before a `kill -9` holds after it.
//!
//! Whether an order exists is decided for each key by a search that leaves none out (`register.rs`). It follows the operations while the
//! run goes on, and its memory does not grow with them. For that the operations under way on a key at once are bounded: a client that
//! draws a busy key draws another. What ends between two moments of the client's clock is taken to overlap: no false alarm, but orders
//! within a batch, or between answers that wait to be read, are not held against the server.
//!
//! # The load
//!
//! Keys have classes: values of any length, large ones that are stored in slices, values with pieces appended or prepended, and
//! counters. Four in ten requests go to any key, four to a few neighbours that all clients turn to for some milliseconds, mostly
//! cold ones, and two to 64 keys that are always hot. When a client finds another process behind its address, it looks at its
//! share of all keys, between other requests, before it goes on as before.
//!
//! # Cost
//!
//! About 300 bytes for each key, up to 1 KiB for those in use, and some microseconds for each operation.

mod client;
mod population;
mod register;
mod request;
mod state;

use crate::error::LoadError;
use crate::keytext::KeyText;
use crate::options::seconds;
use crate::run::stamp;
use crate::target::Target;
use clap::{Args, Parser};
use client::Client;
use locks::Mutex;
use population::Population;
use pumice_trace::bytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Wrong answers that are told in words.
const EXAMPLES_MAX: usize = 10;
const KEYS_MAX: u64 = 1 << 24;
const CONNECTIONS_MAX: u64 = 256;

/// How to make a history check: each setting is the flag of its name.
#[derive(Args, Clone, Debug)]
pub struct HistoryOptions {
    /// The server: HOST:PORT, or the path of a unix socket. It may be stopped, killed and started again at this address
    #[arg(long, value_name = "ADDR")]
    pub target: Target,

    /// Clients, each with a connection and a thread
    #[arg(long, value_name = "N", default_value_t = 12)]
    pub connections: usize,

    /// How long it takes
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub seconds: Duration,

    /// Different keys. Each run has keys of its own
    #[arg(long, value_name = "N", default_value_t = 50_000)]
    pub keys: u32,

    /// Bytes of values at most; of one key in 512 they are 100,000 to 700,000
    #[arg(long, value_name = "SIZE", default_value_t = 4096, value_parser = bytes::<u32>)]
    pub value_size_max: u32,

    /// How often flush_all comes, on average; 0: never
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub flush_every: Duration,

    /// How long a server that is there may take to answer
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub timeout: Duration,

    /// Fixes what each client draws [default: by the time]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    options: HistoryOptions,
}

impl HistoryOptions {
    /// A check of 10 seconds.
    pub fn new(target: Target) -> Self {
        let mut options = Flags::parse_from(["", "--target=/"]).options;
        options.target = target;
        options
    }

    fn check(&self) -> Result<(), LoadError> {
        let check = |flag: &str, value: u64, range: RangeInclusive<u64>| match range.contains(&value) {
            true => Ok(()),
            false => Err(LoadError::Settings(format!(
                "{flag} {value}: expected {} to {}",
                range.start(),
                range.end()
            ))),
        };
        check("--connections", self.connections as u64, 1..=CONNECTIONS_MAX)?;
        check("--keys", self.keys.into(), 1..=KEYS_MAX)?;
        check("--value-size-max", self.value_size_max.into(), 24..=1 << 20)
    }
}

/// What a history check has seen.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HistoryReport {
    /// How long it took.
    pub seconds: f64,
    /// The seed.
    pub seed: u64,
    /// Different keys.
    pub keys: u32,
    /// Operations that ended, one for each key of a `get`.
    pub operations: u64,
    /// The same by command.
    pub commands: BTreeMap<&'static str, u64>,
    /// Values that were returned and fit.
    pub hits: u64,
    /// Keys of `get` that were not found.
    pub misses: u64,
    /// Operations whose answer never came.
    pub unanswered: u64,
    /// Errors that the server admitted to, with the line that the first of them was.
    pub server_errors: BTreeMap<String, u64>,
    /// Connections that ended before the check did.
    pub connections_lost: u64,
    /// Server processes that were seen behind the address.
    pub servers: usize,
    /// The most explanations that were followed at once, of any key.
    pub explanations_max: u32,
    /// Answers that cannot be explained. The check ends soon after the first.
    pub wrong_answers: u64,
    /// Some of them in words.
    pub examples: Vec<String>,
}

impl HistoryReport {
    /// Whether something was answered, and nothing was wrong.
    pub fn is_good(&self) -> bool {
        self.wrong_answers == 0 && self.operations > self.unanswered
    }
}

/// What clients share.
struct Shared {
    seed: u64,
    all: Population,
    clock: Instant,
    /// Milliseconds of the clock when the run ends, and when the next `flush_all` comes; never at the largest number.
    end: u32,
    next_flush: AtomicU32,
    is_failed: AtomicBool,
    servers: Mutex<Vec<u64>>,
    wrong: Mutex<(u64, Vec<String>)>,
}

impl Shared {
    fn now(&self) -> u32 {
        self.clock.elapsed().as_millis() as u32
    }

    fn is_over(&self) -> bool {
        self.is_failed.load(Relaxed) || self.now() >= self.end
    }

    /// An answer was wrong: the run ends.
    fn wrong(&self, what: String) {
        let mut wrong = self.wrong.lock();
        wrong.0 += 1;
        if wrong.1.len() < EXAMPLES_MAX {
            wrong.1.push(what);
        }
        self.is_failed.store(true, Relaxed);
    }
}

/// What one client counts.
#[derive(Debug, Default)]
struct Counts {
    commands: BTreeMap<&'static str, u64>,
    hits: u64,
    misses: u64,
    unanswered: u64,
    connections_lost: u64,
    server_errors: BTreeMap<String, u64>,
}

impl Counts {
    fn count(&mut self, command: &'static str) {
        *self.commands.entry(command).or_default() += 1;
    }

    fn server_error(&mut self, line: &[u8]) {
        // Lines are a few fixed ones.
        if self.server_errors.len() < EXAMPLES_MAX {
            *self
                .server_errors
                .entry(line.escape_ascii().to_string())
                .or_default() += 1;
        }
    }

    fn add_to(self, report: &mut HistoryReport) {
        for (name, count) in self.commands {
            *report.commands.entry(name).or_default() += count;
            report.operations += count;
        }
        for (line, count) in self.server_errors {
            *report.server_errors.entry(line).or_default() += count;
        }
        report.hits += self.hits;
        report.misses += self.misses;
        report.unanswered += self.unanswered;
        report.connections_lost += self.connections_lost;
    }
}

/// Makes a history check. A server that is not there is waited for, to the end of the run.
///
/// # Errors
/// Settings that make no sense. Wrong answers are in the report.
pub fn history(options: &HistoryOptions) -> Result<HistoryReport, LoadError> {
    options.check()?;
    let stamp = stamp();
    let seed = options.seed.unwrap_or(stamp % 1_000_000_000);
    let text = KeyText::new(&format!("h{stamp:x}-"), None).map_err(LoadError::Settings)?;
    let ms = |duration: Duration| u32::try_from(duration.as_millis()).unwrap_or(u32::MAX / 2);
    let shared = Shared {
        seed,
        all: Population::new(options.keys, text, stamp, options.value_size_max, seed),
        clock: Instant::now(),
        end: ms(options.seconds),
        next_flush: AtomicU32::new(if options.flush_every.is_zero() {
            u32::MAX
        } else {
            ms(options.flush_every)
        }),
        is_failed: AtomicBool::new(false),
        servers: Mutex::default(),
        wrong: Mutex::default(),
    };
    let mut report = HistoryReport {
        seed,
        keys: options.keys,
        ..HistoryReport::default()
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..options.connections as u32)
            .map(|number| {
                let client = Client::new(&shared, options, number);
                scope.spawn(move || client.run())
            })
            .collect();
        for client in clients {
            match client.join() {
                Ok(counts) => counts.add_to(&mut report),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    report.seconds = shared.clock.elapsed().as_secs_f64();
    report.servers = shared.servers.lock().len();
    let widest = shared
        .all
        .registers
        .iter()
        .map(|register| register.lock().widest());
    report.explanations_max = widest.max().unwrap_or(0);
    (report.wrong_answers, report.examples) = shared.wrong.into_inner();
    Ok(report)
}
