//! What a client says and how it judges the replies, without sockets and without time.

use super::connection::{Command, Connection, Pending, UNSTAMPED};
use super::feed::Feed;
use crate::error::LoadError;
use crate::keytext::KeyText;
use crate::mix::Action;
use crate::stats::{Fault, Kind, Stats};
use crate::value::{BadValue, Values};
use crate::versions::{Ticket, VersionTable, is_delete};
use crate::wire::{Reply, append_number};
use crate::workload::{Operation, Workload};
use std::sync::Arc;

/// What all threads share.
pub struct Shared {
    /// Keys, mix and sizes.
    pub workload: Arc<Workload>,
    /// How keys are written.
    pub keys: KeyText,
    /// How values are made and checked.
    pub values: Values,
    /// What is known of each key's versions.
    pub versions: VersionTable,
    /// Seconds until an object expires; 0: never.
    pub ttl: u32,
}

/// One thread's counts, and what counts at this moment.
pub(super) struct Client {
    pub shared: Arc<Shared>,
    pub stats: Stats,
    /// The time that this turn's replies came, in nanoseconds.
    pub now: u64,
    /// From when to when requests must have begun to be counted.
    pub window: std::ops::Range<u64>,
    /// Whether `now` is within.
    pub is_counted: bool,
    /// Requests answered since the thread started, of all phases.
    pub answered: u64,
    scan: Vec<u64>,
}

const NO_TICKET: Ticket = Ticket { version: 0, base: 0 };

impl Client {
    pub fn new(shared: Arc<Shared>) -> Self {
        Client {
            shared,
            stats: Stats::new(),
            now: 0,
            window: 0..0,
            is_counted: false,
            answered: 0,
            scan: Vec::new(),
        }
    }

    /// Puts the first request of an operation into `out`.
    #[inline]
    pub fn start(
        &mut self,
        conn: &mut Connection,
        operation: Operation,
        began: u64,
        feed: &mut Feed,
        out: &mut Vec<u8>,
    ) -> Result<(), LoadError> {
        let Operation { action, key, size } = operation;
        let command = match action {
            Action::Get => Command::Get,
            Action::LookAside => Command::GetOrFill,
            Action::ReadModifyWrite => Command::Gets,
            Action::Set => Command::Set,
            Action::Insert => Command::Insert,
            Action::Delete => Command::Delete,
            Action::Scan => {
                feed.scan(key, &mut self.scan)?;
                out.extend_from_slice(b"get");
                for key in &self.scan {
                    out.push(b' ');
                    self.shared.keys.append(out, *key);
                    conn.scans.push_back((*key, self.shared.versions.floor(*key)));
                }
                out.extend_from_slice(b"\r\n");
                self.wait_for(conn, Command::Scan, key, began, NO_TICKET, self.scan.len() as u32);
                return Ok(());
            }
        };
        let ticket = match command {
            Command::Set | Command::Insert => self.put_set(out, key, size),
            Command::Delete => {
                let ticket = self.shared.versions.begin(key, true);
                out.extend_from_slice(b"delete ");
                self.shared.keys.append(out, key);
                out.extend_from_slice(b"\r\n");
                ticket
            }
            command => {
                let verb: &[u8] = if command == Command::Gets {
                    b"gets "
                } else {
                    b"get "
                };
                out.extend_from_slice(verb);
                self.shared.keys.append(out, key);
                out.extend_from_slice(b"\r\n");
                let base = self.shared.versions.floor(key);
                Ticket { version: 0, base }
            }
        };
        self.wait_for(conn, command, key, began, ticket, size);
        Ok(())
    }

    fn wait_for(
        &self,
        conn: &mut Connection,
        command: Command,
        key: u64,
        began: u64,
        ticket: Ticket,
        size: u32,
    ) {
        conn.unstamped += 1;
        conn.pending.push_back(Pending {
            key,
            began,
            ticket,
            size,
            command,
            is_hit: false,
        });
    }

    fn put_set(&self, out: &mut Vec<u8>, key: u64, size: u32) -> Ticket {
        let ticket = self.shared.versions.begin(key, false);
        out.extend_from_slice(b"set ");
        self.put_value(out, key, size, ticket, None);
        ticket
    }

    /// All of a `set` or `cas` after its name.
    fn put_value(&self, out: &mut Vec<u8>, key: u64, size: u32, ticket: Ticket, cas: Option<u64>) {
        let shared = &self.shared;
        shared.keys.append(out, key);
        out.extend_from_slice(b" 0 ");
        append_number(out, u64::from(shared.ttl));
        out.push(b' ');
        append_number(out, u64::from(size));
        if let Some(cas) = cas {
            out.push(b' ');
            append_number(out, cas);
        }
        out.extend_from_slice(b"\r\n");
        shared.values.append(out, key, ticket.version, size as usize);
        out.extend_from_slice(b"\r\n");
    }

    /// Takes one reply; what follows from it is put into `out`.
    ///
    /// # Errors
    /// The reply does not fit what was asked: the connection is of no more use.
    #[inline]
    pub fn reply(&mut self, conn: &mut Connection, reply: Reply<'_>, out: &mut Vec<u8>) -> Result<(), ()> {
        let Some(request) = conn.pending.front_mut() else {
            return self.misfit(None, reply);
        };
        match (request.command, reply) {
            (Command::Get | Command::GetOrFill | Command::Gets, Reply::Value { key, data, cas, .. }) => {
                let first = !std::mem::replace(&mut request.is_hit, true);
                let (asked, floor) = (request.key, request.ticket.base);
                conn.cas = cas.unwrap_or(0);
                if !first || (cas.is_some() != (request.command == Command::Gets)) {
                    let request = *request;
                    return self.misfit(Some(request), reply);
                }
                self.check(asked, floor, key, data);
                Ok(())
            }
            (Command::Scan, Reply::Value { key, data, .. }) => {
                let is_counted = self.window.contains(&request.began);
                while request.size > 0 {
                    request.size -= 1;
                    let Some((asked, floor)) = conn.scans.pop_front() else {
                        break;
                    };
                    self.stats.lookups += u64::from(is_counted);
                    if self.shared.keys.is(key, asked) {
                        self.stats.hits += u64::from(is_counted);
                        self.check(asked, floor, key, data);
                        return Ok(());
                    }
                }
                let request = *request;
                self.misfit(Some(request), reply)
            }
            (Command::Get | Command::GetOrFill | Command::Gets | Command::Scan, Reply::End) => {
                let request = *request;
                conn.pending.pop_front();
                self.read_ended(conn, request, out);
                Ok(())
            }
            (_, Reply::Error | Reply::ClientError(_) | Reply::ServerError(_)) => {
                let request = *request;
                conn.pending.pop_front();
                conn.scans.drain(..scan_keys(&request).min(conn.scans.len()));
                self.refused(request, reply);
                Ok(())
            }
            (
                Command::Set | Command::Insert | Command::Delete | Command::Cas,
                Reply::Stored | Reply::NotStored | Reply::Exists | Reply::NotFound | Reply::Deleted,
            ) => {
                let request = *request;
                conn.pending.pop_front();
                self.write_ended(request, reply)
            }
            _ => {
                let request = *request;
                self.misfit(Some(request), reply)
            }
        }
    }

    fn read_ended(&mut self, conn: &mut Connection, request: Pending, out: &mut Vec<u8>) {
        let is_scan = request.command == Command::Scan;
        if is_scan {
            conn.scans.drain(..scan_keys(&request).min(conn.scans.len()));
        }
        if self.window.contains(&request.began) {
            self.stats.lookups += if is_scan { u64::from(request.size) } else { 1 };
            self.stats.hits += u64::from(request.is_hit);
        }
        let is_over = request.command != Command::Gets || !request.is_hit;
        self.answered(request, is_over);
        match request.command {
            Command::Gets if request.is_hit => {
                let ticket = self.shared.versions.begin(request.key, false);
                out.extend_from_slice(b"cas ");
                self.put_value(out, request.key, request.size, ticket, Some(conn.cas));
                self.wait_for(
                    conn,
                    Command::Cas,
                    request.key,
                    request.began,
                    ticket,
                    request.size,
                );
            }
            Command::GetOrFill if !request.is_hit => {
                let ticket = self.put_set(out, request.key, request.size);
                self.wait_for(conn, Command::Set, request.key, UNSTAMPED, ticket, request.size);
            }
            _ => {}
        }
    }

    fn write_ended(&mut self, request: Pending, reply: Reply<'_>) -> Result<(), ()> {
        let (key, ticket) = (request.key, request.ticket);
        match (request.command, reply) {
            (Command::Set | Command::Cas, Reply::Stored)
            | (Command::Delete, Reply::Deleted | Reply::NotFound) => {
                self.shared.versions.acknowledged(key, ticket);
            }
            (Command::Insert, Reply::Stored) => {
                self.shared.versions.acknowledged(key, ticket);
                self.shared.workload.settle_insert();
            }
            (Command::Cas, Reply::Exists | Reply::NotFound) => {
                self.shared.versions.ended(key, ticket);
                let is_late = reply == Reply::Exists && self.window.contains(&request.began);
                self.stats.cas_conflicts += u64::from(is_late);
            }
            (Command::Set | Command::Insert | Command::Cas, Reply::NotStored) => {
                self.shared.versions.ended(key, ticket);
                let key = self.shared.keys.show(key);
                self.stats
                    .faults
                    .count(Fault::NotStored, 1, || format!("{key}: NOT_STORED"));
            }
            _ => return self.misfit(Some(request), reply),
        }
        self.answered(request, true);
        Ok(())
    }

    /// Counts a request that was answered, and its latency if its operation is over.
    #[inline]
    fn answered(&mut self, request: Pending, is_over: bool) {
        self.answered += 1;
        if self.window.contains(&request.began) {
            let kind = kind(request.command);
            self.stats.requests[kind as usize] += 1;
            if let Some(second) = self.stats.seconds.last_mut() {
                *second += 1;
            }
            if is_over {
                self.stats.latency(kind, self.now.saturating_sub(request.began));
            }
        }
    }

    /// The server says that it did not do it.
    #[cold]
    fn refused(&mut self, request: Pending, reply: Reply<'_>) {
        let (fault, said) = match reply {
            Reply::ServerError(line) => (Fault::ServerError, line),
            Reply::ClientError(line) => (Fault::ClientError, line),
            _ => (Fault::UnknownCommand, &b"ERROR"[..]),
        };
        if request.ticket.version != 0 {
            self.shared.versions.ended(request.key, request.ticket);
        }
        let key = self.shared.keys.show(request.key);
        let what = || format!("{:?} {key}: {}", request.command, said.escape_ascii());
        self.stats.faults.count(fault, 1, what);
        self.answered(request, false);
    }

    #[cold]
    fn misfit(&mut self, request: Option<Pending>, reply: Reply<'_>) -> Result<(), ()> {
        let shown = match reply {
            Reply::Value { key, data, .. } => format!("VALUE {} of {} bytes", key.escape_ascii(), data.len()),
            reply => format!("{reply:?}"),
        };
        let asked = request.map_or("nothing".to_owned(), |request| {
            format!("{:?} {}", request.command, self.shared.keys.show(request.key))
        });
        self.stats
            .faults
            .count(Fault::Protocol, 1, || format!("{shown} in reply to {asked}"));
        Err(())
    }

    /// Checks a value that came for a key that was asked for.
    #[inline]
    fn check(&mut self, asked: u64, floor: u32, key: &[u8], data: &[u8]) {
        let shared = &*self.shared;
        if !shared.keys.is(key, asked) {
            let asked = shared.keys.show(asked);
            let what = || format!("{asked}: the reply names key {}", key.escape_ascii());
            return self.stats.faults.count(Fault::Foreign, 1, what);
        }
        match shared.values.verify(asked, data) {
            // An earlier run's value is good while this run has not replaced it; of a later run, beside this one,
            // nothing is known.
            Ok(origin) if floor == 0 || origin.stamp > shared.values.stamp() => {}
            Ok(origin) if origin.stamp == shared.values.stamp() && origin.version >= floor => {}
            Ok(origin) => {
                let run = if origin.stamp == shared.values.stamp() {
                    ""
                } else {
                    " of an earlier run"
                };
                let asked = shared.keys.show(asked);
                let (fault, floor_is) = if is_delete(floor) {
                    (Fault::Deleted, "a delete")
                } else {
                    (Fault::Stale, "a set")
                };
                self.stats.faults.count(fault, 1, || {
                    format!(
                        "{asked}: version {}{run}, although {floor_is} of version {floor} was acknowledged before",
                        origin.version
                    )
                });
            }
            Err(bad) => self.bad_value(asked, bad, data.len()),
        }
    }

    #[cold]
    fn bad_value(&mut self, asked: u64, bad: BadValue, len: usize) {
        let keys = &self.shared.keys;
        let asked = keys.show(asked);
        let (fault, what) = match bad {
            BadValue::Foreign(owner) => (
                Fault::Foreign,
                format!("{asked}: the value of key {}", keys.show(owner)),
            ),
            BadValue::Header => (
                Fault::Corrupt,
                format!(
                    "{asked}: {len} bytes whose header does not fit (damaged, cut, or not written by this program)"
                ),
            ),
            BadValue::Filler(at) => (
                Fault::Corrupt,
                format!("{asked}: byte {at} of {len} is not what was written"),
            ),
        };
        self.stats.faults.count(fault, 1, || what);
    }
}

fn scan_keys(request: &Pending) -> usize {
    if request.command == Command::Scan {
        request.size as usize
    } else {
        0
    }
}

fn kind(command: Command) -> Kind {
    match command {
        Command::Get | Command::GetOrFill => Kind::Get,
        Command::Set | Command::Insert => Kind::Set,
        Command::Delete => Kind::Delete,
        Command::Gets | Command::Cas => Kind::ReadModifyWrite,
        Command::Scan => Kind::Scan,
    }
}
