//! One thread's part of a run: its phases, its connections, its share of the arrivals.

use super::client::{Client, Shared};
use super::connection::{Connection, UNSTAMPED};
use super::dial::Dialer;
use super::feed::Feed;
use super::phase::{Finished, Pace, Phase, Progress, WorkerOptions};
use super::sockets::Sockets;
use super::{TICK, Wait};
use crate::cpu;
use crate::error::LoadError;
use crate::stats::{Fault, Stats};
use crate::wire::{Parsed, parse};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Arrivals nearer than this are waited for without sleeping, since waking takes as long.
const SPIN: Duration = Duration::from_micros(60);

/// One thread.
pub struct Worker {
    options: WorkerOptions,
    client: Client,
    connections: Vec<Connection>,
    /// Connections that may take another request, and that no reply is going to remind of that.
    ready: VecDeque<u32>,
    /// Connections with requests that were not handed to the kernel.
    dirty: Vec<u32>,
    dialer: Dialer,
    phase: Phase,
    is_stopping: bool,
    /// The budget of requests is used up.
    is_spent: bool,
    failed: Option<LoadError>,
    next_tick: u64,
    second_ends: u64,
    /// When the last turn's requests were sent.
    sent_at: u64,
    /// Whether there was anything to send in this turn.
    has_sent: bool,
    /// How long the last turn took.
    turn_took: u64,
    down_since: Option<u64>,
    cpu_from: Option<(u64, Duration)>,
    cpu_to: Option<(u64, Duration)>,
    last_counted: u64,
    spun: u64,
    lost: u64,
    /// How long the oldest arrival that was not sent at the end had waited.
    behind: u64,
    progress: Arc<Progress>,
}

impl Worker {
    /// A worker whose connections are all made.
    pub fn new(options: WorkerOptions, shared: Arc<Shared>, progress: Arc<Progress>) -> Self {
        let connection = |_| Connection {
            is_up: true,
            ..Connection::default()
        };
        Worker {
            client: Client::new(shared),
            connections: (0..options.connections).map(connection).collect(),
            ready: VecDeque::new(),
            dirty: Vec::new(),
            dialer: Dialer::new(options.target.clone(), options.timeout),
            phase: Phase::nothing(),
            is_stopping: false,
            is_spent: false,
            failed: None,
            next_tick: 0,
            second_ends: 0,
            sent_at: 0,
            has_sent: false,
            turn_took: 0,
            down_since: None,
            cpu_from: None,
            cpu_to: None,
            last_counted: 0,
            spun: 0,
            lost: 0,
            behind: 0,
            progress,
            options,
        }
    }

    /// What the last phase was like.
    pub fn finish(self) -> Finished {
        let (from, cpu_from) = self.cpu_from.unwrap_or_default();
        let (to, cpu_to) = self.cpu_to.unwrap_or((from, cpu_from));
        Finished {
            stats: self.client.stats,
            last_counted: self.last_counted,
            watched: Duration::from_nanos(to.saturating_sub(from)),
            cpu: cpu_to.saturating_sub(cpu_from),
            spun: Duration::from_nanos(self.spun),
            behind: Duration::from_nanos(self.behind),
            lost: self.lost,
        }
    }

    pub(super) fn receive_bytes(&self) -> usize {
        self.options.receive_bytes
    }

    fn now(&self) -> u64 {
        nanoseconds(self.options.clock.elapsed())
    }

    /// Starts a phase when its time has come; its counts begin at nothing.
    pub(super) fn begin(&mut self, phase: Phase) {
        std::thread::sleep(Duration::from_nanos(phase.begin.saturating_sub(self.now())));
        let faults = std::mem::take(&mut self.client.stats.faults);
        self.client.stats = Stats::new();
        self.client.stats.faults = faults;
        self.client.window = phase.start..phase.stop;
        self.second_ends = phase.start;
        self.phase = phase;
        (self.is_stopping, self.is_spent, self.spun, self.last_counted) = (false, false, 0, 0);
        self.behind = 0;
        (self.cpu_from, self.cpu_to) = (None, None);
        for conn in 0..self.connections.len() {
            self.offer(conn);
        }
        self.woke();
    }

    /// Ends the phase.
    pub(super) fn end(&mut self) -> Result<(), LoadError> {
        self.client.now = self.now();
        self.watch_cpu(true);
        self.count_late();
        self.phase.feed = Feed::Empty;
        self.show_progress();
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Arrivals of an open loop that were due and never started: they waited at least until the end.
    fn count_late(&mut self) {
        let stop = self.phase.stop;
        let window = self.client.window.clone();
        if let Pace::Open(schedule) = &mut self.phase.pace
            && stop != u64::MAX
            && self.failed.is_none()
            && !self.is_spent
        {
            loop {
                let arrival = self.phase.begin + schedule.next();
                if arrival >= stop {
                    break;
                }
                schedule.advance();
                self.behind = self.behind.max(stop - arrival);
                if window.contains(&arrival) {
                    self.client.stats.late.saturating_record(stop - arrival);
                }
            }
        }
    }

    /// Whether everything that was started has ended and no more is to be started.
    pub(super) fn is_done(&self) -> bool {
        let is_time_over = self.client.now >= self.phase.stop || self.phase.stop == u64::MAX;
        self.is_stopping
            && (is_time_over || self.is_spent || self.failed.is_some())
            && self
                .connections
                .iter()
                .all(|connection| connection.pending.is_empty())
    }

    /// Puts a connection among those that may take requests.
    fn offer(&mut self, conn: usize) {
        let connection = &mut self.connections[conn];
        if connection.is_up && !connection.is_ready {
            connection.is_ready = true;
            self.ready.push_back(conn as u32);
        }
    }

    /// Starts what is due on connections that are not busy.
    pub(super) fn start_due(&mut self, transport: &mut Sockets) {
        while let Some(&first) = self.ready.front() {
            let conn = first as usize;
            let depth = self.phase.depth;
            let is_usable = self.connections[conn].is_up && self.connections[conn].pending.len() < depth;
            let began = if is_usable { self.next_arrival() } else { None };
            let is_waiting = is_usable && began.is_none() && !self.is_stopping;
            if is_waiting {
                // Nothing is due yet.
                return;
            }
            self.ready.pop_front();
            self.connections[conn].is_ready = false;
            let Some(began) = began else { continue };
            let out = transport.out(conn);
            let before = out.len();
            self.start(conn, began, out);
            let more = out.len() - before;
            self.sent(conn, more);
            if self.connections[conn].pending.len() < depth {
                self.offer(conn);
            }
        }
    }

    /// When the operation began that may be started now, if one may.
    fn next_arrival(&mut self) -> Option<u64> {
        if self.is_stopping {
            return None;
        }
        match &mut self.phase.pace {
            Pace::Closed => Some(UNSTAMPED),
            Pace::Open(schedule) => {
                // What the warm-up left behind is no part of the window, and would keep the window's own arrivals out.
                if self.client.now >= self.phase.start {
                    while self.phase.begin + schedule.next() < self.phase.start {
                        schedule.advance();
                    }
                }
                let arrival = self.phase.begin + schedule.next();
                if arrival >= self.phase.stop {
                    self.is_stopping = true;
                    return None;
                }
                (arrival <= self.client.now).then(|| {
                    schedule.advance();
                    arrival
                })
            }
        }
    }

    /// Starts an operation.
    #[inline]
    fn start(&mut self, conn: usize, began: u64, out: &mut Vec<u8>) {
        if let Some(budget) = &self.phase.budget
            && self.client.now >= self.phase.start
            && budget.fetch_sub(1, Relaxed) <= 0
        {
            (self.is_stopping, self.is_spent) = (true, true);
            // UNSTAMPED, of a closed loop, lies ahead.
            self.behind = self.client.now.saturating_sub(began);
            return;
        }
        let connection = &mut self.connections[conn];
        let started = match self.phase.feed.next() {
            Ok(Some(operation)) => {
                self.client.stats.arrivals += u64::from(self.client.window.contains(&began));
                self.client
                    .start(connection, operation, began, &mut self.phase.feed, out)
            }
            Ok(None) => {
                self.is_stopping = true;
                Ok(())
            }
            Err(error) => Err(error),
        };
        if let Err(error) = started {
            (self.is_stopping, self.failed) = (true, Some(error));
        }
    }

    /// Remembers that a connection has something to send.
    #[inline]
    fn sent(&mut self, conn: usize, bytes: usize) {
        if bytes > 0 {
            if self.client.is_counted {
                self.client.stats.bytes_out += bytes as u64;
            }
            let connection = &mut self.connections[conn];
            if !std::mem::replace(&mut connection.is_dirty, true) {
                self.dirty.push(conn as u32);
            }
        }
    }

    /// Hands the turn's requests to the kernel.
    pub(super) fn flush(&mut self, transport: &mut Sockets) {
        self.sent_at = self.now();
        self.has_sent = !self.dirty.is_empty();
        for conn in self.dirty.drain(..) {
            let connection = &mut self.connections[conn as usize];
            connection.is_dirty = false;
            if connection.is_up {
                connection.stamp(self.sent_at);
                transport.flush(conn as usize);
            }
        }
    }

    /// How long the next turn waits.
    pub(super) fn wait(&self) -> Wait {
        match &self.phase.pace {
            Pace::Open(schedule) if !self.is_stopping && !self.ready.is_empty() => {
                let arrival = self.phase.begin + schedule.next();
                let left = Duration::from_nanos(arrival.saturating_sub(self.sent_at));
                if left <= SPIN {
                    Wait::Poll
                } else {
                    Wait::For((left - SPIN).min(TICK))
                }
            }
            _ => Wait::Tick,
        }
    }

    pub(super) fn after_turn(&mut self, came: bool, wait: Wait) {
        let is_idle = !came && !self.has_sent && matches!(wait, Wait::Poll);
        if is_idle && self.client.is_counted {
            self.spun += self.turn_took;
        }
    }

    /// Every now and then: time-outs, connections that were made again, progress.
    pub(super) fn tick(&mut self, transport: &mut Sockets) -> io::Result<()> {
        let now = self.client.now;
        if now < self.next_tick {
            return Ok(());
        }
        self.next_tick = now + nanoseconds(TICK);
        self.show_progress();
        let timeout = nanoseconds(self.options.timeout);
        let mut up = 0;
        for (conn, connection) in self.connections.iter_mut().enumerate() {
            up += usize::from(connection.is_up);
            let is_late =
                !connection.pending.is_empty() && now.saturating_sub(connection.waiting_since) > timeout;
            if is_late && !std::mem::replace(&mut connection.is_blamed, true) {
                let what = || format!("{} requests without a reply", connection.pending.len());
                self.client.stats.faults.count(Fault::TimedOut, 1, what);
                connection.is_up = false;
                transport.close(conn);
            }
        }
        if up > 0 {
            self.down_since = None;
        } else if now - *self.down_since.get_or_insert(now) > timeout && self.phase.needs_server {
            self.is_stopping = true;
            self.failed = Some(LoadError::Connect {
                target: self.options.target.to_string(),
                source: io::Error::other("all connections were lost and none could be made again"),
            });
        }
        while let Some((conn, made)) = self.dialer.poll() {
            match made {
                Ok(socket) => {
                    transport.open(conn, socket)?;
                    self.connections[conn].is_up = true;
                    self.offer(conn);
                }
                Err(error) => self
                    .client
                    .stats
                    .faults
                    .count(Fault::Refused, 1, || error.to_string()),
            }
        }
        Ok(())
    }

    fn show_progress(&self) {
        self.progress.answered.store(self.client.answered, Relaxed);
        self.progress
            .wrong
            .store(self.client.stats.faults.wrong(), Relaxed);
    }

    /// Notes the thread's CPU time where the counted stretch begins and ends.
    fn watch_cpu(&mut self, is_end: bool) {
        let now = self.client.now;
        if self.cpu_from.is_none() && now >= self.phase.start {
            self.cpu_from = Some((now, cpu::thread_time()));
        }
        if self.cpu_from.is_some() && self.cpu_to.is_none() && (is_end || now >= self.phase.stop) {
            self.cpu_to = Some((now, cpu::thread_time()));
        }
    }

    /// Works off whole replies at the start of `bytes`; returns how many bytes they took and how many are needed
    /// before it is worth trying again.
    #[inline]
    fn replies(&mut self, conn: usize, bytes: &[u8], out: &mut Vec<u8>) -> Result<(usize, usize), ()> {
        let connection = &mut self.connections[conn];
        let mut at = 0;
        while at < bytes.len() {
            match parse(&bytes[at..]) {
                Parsed::Whole(reply, len) => {
                    self.client.reply(connection, reply, out)?;
                    at += len;
                }
                Parsed::Partial(need) => return Ok((at, need)),
                Parsed::Broken => {
                    let shown = &bytes[at..bytes.len().min(at + 60)];
                    let what = || format!("no reply: `{}`", shown.escape_ascii());
                    self.client.stats.faults.count(Fault::Protocol, 1, what);
                    return Err(());
                }
            }
        }
        Ok((at, 0))
    }

    /// The wait is over.
    pub(super) fn woke(&mut self) {
        let now = self.now();
        let client = &mut self.client;
        self.turn_took = now.saturating_sub(self.sent_at);
        client.now = now;
        client.is_counted = client.window.contains(&now);
        if client.is_counted {
            self.last_counted = now;
        }
        // What the window's requests still get after it counts in its last second.
        while now.min(client.window.end.saturating_sub(1)) >= self.second_ends {
            client.stats.seconds.push(0);
            self.second_ends += 1_000_000_000;
        }
        if now >= self.phase.stop {
            self.is_stopping = true;
        }
        if self.cpu_to.is_none() {
            self.watch_cpu(false);
        }
    }

    /// Bytes have come; requests that follow are put into `out`. Whether the connection is to be kept.
    pub(super) fn data(&mut self, conn: usize, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        let before = out.len();
        if self.client.is_counted {
            self.client.stats.bytes_in += bytes.len() as u64;
        }
        let mut carry = std::mem::take(&mut self.connections[conn].carry);
        let result = if carry.is_empty() {
            self.replies(conn, bytes, out).map(|(done, need)| {
                carry.extend_from_slice(&bytes[done..]);
                need
            })
        } else {
            carry.extend_from_slice(bytes);
            if carry.len() < self.connections[conn].carry_need {
                Ok(self.connections[conn].carry_need)
            } else {
                self.replies(conn, &carry, out).map(|(done, need)| {
                    carry.drain(..done);
                    need
                })
            }
        };
        let connection = &mut self.connections[conn];
        connection.carry = carry;
        let Ok(need) = result else {
            (connection.is_blamed, connection.is_up) = (true, false);
            return false;
        };
        connection.carry_need = need;
        connection.waiting_since = self.client.now;
        while self.connections[conn].pending.len() < self.phase.depth {
            let Some(began) = self.next_arrival() else {
                self.offer(conn);
                break;
            };
            self.start(conn, began, out);
        }
        self.sent(conn, out.len() - before);
        true
    }

    /// The connection is gone, and was if not closed by us ended for this reason (none: by the other side).
    pub(super) fn closed(&mut self, conn: usize, error: Option<io::Error>) {
        let connection = &mut self.connections[conn];
        if !connection.is_blamed {
            let why = error.map_or("by the server".to_owned(), |error| error.to_string());
            let what = || {
                format!(
                    "{} requests without a reply: closed {why}",
                    connection.pending.len()
                )
            };
            self.client.stats.faults.count(Fault::Closed, 1, what);
        }
        self.lost += connection.reset() as u64;
        self.dialer.want(conn);
    }
}

pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
