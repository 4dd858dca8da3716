//! One client: a connection, lost and made anew, and what is under way on it.

mod answers;
mod compose;

use super::population::Population;
use super::register::{Handle, Violation};
use super::request::Ask;
use super::state::{Effect, Guard, Outcome};
use super::{Counts, HistoryOptions, Shared};
use crate::wire::{Parsed, Reply, parse};
use pumice_world::Random;
use socket2::Socket;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

const RECEIVE_BYTES: usize = 64 << 10;
const RECONNECT_EVERY: Duration = Duration::from_millis(5);

/// A request that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    key: u32,
    handle: Handle,
    ask: Ask,
    /// What a get has found so far, before its end.
    found: Option<Outcome>,
}

/// Why a conversation ended.
enum Ended {
    /// The run is over.
    Over,
    /// The connection was lost.
    Lost,
}

/// One client.
pub struct Client<'a> {
    shared: &'a Shared,
    options: &'a HistoryOptions,
    random: Random,
    pub counts: Counts,
    /// Requests under way, in the order of their answers.
    batch: Vec<Sent>,
    /// Those whose answers cannot come any more, while their server may still be there.
    orphans: Vec<Sent>,
    /// The server's process as of the last connection.
    server: Option<u64>,
    uniques: Vec<(u32, u64, u64)>,
    /// Keys that are still to be looked at after a restart.
    sweep: Range<u32>,
    part: Range<u32>,
    out: Vec<u8>,
    /// What was received, and how much of it has been taken.
    input: Vec<u8>,
    read: usize,
}

impl<'a> Client<'a> {
    /// Client `number` of all.
    pub fn new(shared: &'a Shared, options: &'a HistoryOptions, number: u32) -> Self {
        let keys = u64::from(shared.all.count());
        let all = options.connections as u64;
        let bound = |at: u64| (keys * at / all) as u32;
        Client {
            shared,
            options,
            random: Random(shared.seed ^ (u64::from(number) << 32)),
            counts: Counts::default(),
            batch: Vec::new(),
            orphans: Vec::new(),
            server: None,
            uniques: Vec::new(),
            sweep: 0..0,
            part: bound(u64::from(number))..bound(u64::from(number) + 1),
            out: Vec::new(),
            input: Vec::new(),
            read: 0,
        }
    }

    /// Works until the run is over; connects again where the connection is lost.
    pub fn run(mut self) -> Counts {
        while !self.shared.is_over() {
            let Ok(mut socket) = self.connect() else {
                std::thread::sleep(RECONNECT_EVERY);
                continue;
            };
            match self.converse(&mut socket) {
                Ended::Over => break,
                Ended::Lost => {
                    self.counts.connections_lost += 1;
                    self.orphans.append(&mut self.batch);
                }
            }
        }
        self.settle_orphans();
        self.counts
    }

    fn connect(&mut self) -> io::Result<Socket> {
        let socket = Socket::from(self.options.target.connect(self.options.timeout)?);
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(self.options.timeout))?;
        socket.set_write_timeout(Some(self.options.timeout))?;
        Ok(socket)
    }

    fn converse(&mut self, socket: &mut Socket) -> Ended {
        self.input.clear();
        self.read = 0;
        self.uniques.clear();
        if self.meet(socket).is_err() {
            return Ended::Lost;
        }
        while !self.shared.is_over() {
            if self.is_flush_due() {
                if self.flush_all(socket).is_err() {
                    return Ended::Lost;
                }
                continue;
            }
            self.compose();
            let out = std::mem::take(&mut self.out);
            let sent = socket.write_all(&out);
            self.out = out;
            let done = match sent {
                Ok(()) => self.receive(socket),
                // What it had answered before it went is still to be read.
                Err(_) => self.receive(socket).and(Err(io::ErrorKind::BrokenPipe.into())),
            };
            if let Err(error) = done {
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
                    let names: Vec<_> = self.batch.iter().map(|sent| sent.ask.name()).collect();
                    self.shared.wrong(format!(
                        "no answer within {:?} to {}",
                        self.options.timeout,
                        names.join(", ")
                    ));
                }
                return Ended::Lost;
            }
        }
        Ended::Over
    }

    /// Asks the server who it is. Where it is another process than before, the one before is gone.
    fn meet(&mut self, socket: &mut Socket) -> io::Result<()> {
        socket.write_all(b"stats\r\n")?;
        let mut server = None;
        let mut is_over = false;
        while !is_over {
            self.next_reply(socket, |_, reply| match reply {
                Reply::Stat(b"pid", value) => {
                    server = std::str::from_utf8(value)
                        .ok()
                        .and_then(|value| value.parse().ok());
                }
                Reply::End => is_over = true,
                _ => {}
            })?;
        }
        if server.is_none() || server != self.server {
            self.server = server;
            self.settle_orphans();
            self.sweep = self.part.clone();
            if let Some(server) = server {
                let mut servers = self.shared.servers.lock();
                if !servers.contains(&server) {
                    servers.push(server);
                }
            }
        }
        Ok(())
    }

    /// Requests without an answer will not be carried out any more.
    fn settle_orphans(&mut self) {
        let orphans = std::mem::take(&mut self.orphans).into_iter();
        for sent in orphans.chain(std::mem::take(&mut self.batch)) {
            self.counts.unanswered += 1;
            let outcome = sent.found.unwrap_or_else(|| sent.ask.unanswered(sent.key));
            self.end(sent, outcome);
        }
    }

    fn is_flush_due(&mut self) -> bool {
        let every = self.options.flush_every;
        let now = self.shared.now();
        let next = &self.shared.next_flush;
        let due = next.load(Relaxed);
        if now < due {
            return false;
        }
        let after = now + self.random.below(2 * every.as_millis() as u64 + 1) as u32;
        next.compare_exchange(due, after, Relaxed, Relaxed).is_ok()
    }

    /// Removes every key at once.
    fn flush_all(&mut self, socket: &mut Socket) -> io::Result<()> {
        let mut handles = Vec::new();
        for (key, register) in self.shared.all.registers.iter().enumerate() {
            // Where too much is under way the removal is not recorded, which explains more than if it were.
            let handle = register.lock().begin(self.shared.now(), true);
            handles.extend(handle.map(|handle| (key as u32, handle)));
        }
        let mut is_done = false;
        let result = socket
            .write_all(b"flush_all\r\n")
            .and_then(|()| self.next_reply(socket, |_, reply| is_done = reply == Reply::Ok));
        let outcome = if is_done {
            Outcome::certain("flush_all", Guard::None, Effect::Clear)
        } else {
            Outcome::nothing("flush_all")
        };
        for (key, handle) in handles {
            self.end_at(key, handle, outcome);
        }
        self.counts.count("flush_all");
        result
    }

    fn end(&mut self, sent: Sent, outcome: Outcome) {
        self.counts.count(sent.ask.name());
        self.end_at(sent.key, sent.handle, outcome);
    }

    fn end_at(&mut self, key: u32, handle: Handle, outcome: Outcome) {
        let mut register = self.shared.all.registers[key as usize].lock();
        let ended = register.end(handle, self.shared.now(), outcome);
        drop(register);
        if let Err(Violation(what)) = ended {
            let shown = self.shared.all.text.show(key.into());
            let class = Population::class(key);
            self.shared
                .wrong(format!("{shown} (key {key}, {class:?}): {what}"));
        }
    }

    /// Reads the answers to the batch.
    fn receive(&mut self, socket: &mut Socket) -> io::Result<()> {
        let mut at = 0;
        let mut result = Ok(());
        while at < self.batch.len() && result.is_ok() {
            let mut fits = Ok(());
            result = self.next_reply(socket, |client, reply| fits = client.answer(&mut at, reply));
            if result.is_ok()
                && let Err(what) = fits
            {
                self.shared.wrong(what);
                result = Err(io::ErrorKind::InvalidData.into());
            }
        }
        self.batch.drain(..at.min(self.batch.len()));
        result
    }

    /// Reads one reply, and shows it to `take`.
    fn next_reply(
        &mut self,
        socket: &mut Socket,
        mut take: impl FnMut(&mut Self, Reply<'_>),
    ) -> io::Result<()> {
        loop {
            let mut input = std::mem::take(&mut self.input);
            let used = match parse(&input[self.read..]) {
                Parsed::Whole(reply, used) => {
                    take(self, reply);
                    Some(used)
                }
                Parsed::Partial(_) => None,
                Parsed::Broken => {
                    let said = input[self.read..].iter().take(80).copied().collect::<Vec<_>>();
                    self.shared.wrong(format!(
                        "a reply that nobody understands: {}",
                        said.escape_ascii()
                    ));
                    return Err(io::ErrorKind::InvalidData.into());
                }
            };
            if let Some(used) = used {
                self.read += used;
                self.input = input;
                return Ok(());
            }
            input.drain(..self.read);
            self.read = 0;
            let before = input.len();
            input.resize(before + RECEIVE_BYTES, 0);
            let received = socket.read(&mut input[before..]);
            input.truncate(before + received.as_ref().map_or(0, |received| *received));
            self.input = input;
            if received? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}
