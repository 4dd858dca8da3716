//! The load: connections, each with requests under way; phases one after the other; new connections after a stop of the server.

use super::NbdArgs;
use super::content::{Content, SECTOR_BYTES, Seen};
use super::model::Model;
use super::report::Report;
use super::requests::{FLUSH, KINDS, Mix, READ, Ranges, TRIM};
use pumice_loadgen::thread_time;
use pumice_remote::wire::{self, Command};
use pumice_remote::{Export, HandshakeError, Stream};
use pumice_world::Random;
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

/// Bytes of a read of the pass over the range.
const PASS_BYTES: u64 = 256 << 10;
/// Pause between attempts to connect.
const PAUSE: Duration = Duration::from_millis(50);
/// Of a server that breaks the protocol, which no new connection mends.
const BROKEN: io::ErrorKind = io::ErrorKind::InvalidData;

/// A part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// What was there is made durable, and what was changed.
    Flush { is_sent: bool },
    /// The mix.
    Load,
    /// Reads the range, from this sector on.
    Pass { next: u64 },
}

/// A request that was sent.
struct Request {
    kind: usize,
    /// Its number in the model.
    number: u64,
    sectors: Range<u64>,
    is_durable: bool,
    begun: Instant,
}

/// What all connections share.
pub struct Run {
    pub args: NbdArgs,
    /// Number of the run, which all contents have.
    pub id: u64,
    pub mix: Mix,
    pub export: Export,
    pub model: Model,
    pub report: Report,
    /// Signals that asked for an end.
    pub signals: u32,
    ranges: Ranges,
    random: Random,
    phase: Phase,
    load_ends: Option<Instant>,
    load_requests: u64,
    flushes_under_way: usize,
    /// A connection was lost: no more requests are sent.
    is_lost: bool,
}

impl Run {
    /// Nothing is sent yet.
    pub fn new(args: NbdArgs, id: u64, mix: Mix, export: Export, model: Model, report: Report) -> Self {
        Run {
            ranges: Ranges::new(args.size, super::step(&export), args.places, report.range),
            random: Random(report.seed),
            args,
            id,
            mix,
            export,
            model,
            report,
            signals: 0,
            phase: Phase::Load,
            load_ends: None,
            load_requests: 0,
            flushes_under_way: 0,
            is_lost: false,
        }
    }

    /// Writes the next request to `out`; `None` where the phase is over.
    fn next(&mut self, cookie: u64, out: &mut Vec<u8>) -> Option<Request> {
        if self.is_lost {
            return None;
        }
        let begun = Instant::now();
        let (kind, offset, len) = match &mut self.phase {
            Phase::Flush { is_sent: true } => return None,
            Phase::Flush { is_sent } => {
                *is_sent = true;
                (FLUSH, 0, 0)
            }
            Phase::Pass { next } => {
                let len = PASS_BYTES.min(u64::from(self.export.maximum)) / SECTOR_BYTES as u64;
                let len = len.min(self.model.sectors() - *next);
                if len == 0 || self.signals > 1 {
                    return None;
                }
                *next += len;
                (READ, *next - len, len)
            }
            Phase::Load => {
                let is_over = self.load_ends.is_some_and(|ends| begun >= ends)
                    || self.args.requests.is_some_and(|most| self.load_requests >= most);
                if is_over || self.signals > 0 {
                    return None;
                }
                self.load_requests += 1;
                match self.model.needs_flush() && self.flushes_under_way == 0 {
                    true => (FLUSH, 0, 0),
                    false => self.draw(),
                }
            }
        };
        let sectors = offset..offset + len;
        let is_change = kind != READ && kind != FLUSH;
        let is_durable = is_change && self.random.chance(self.args.fua);
        let flags = if is_durable { wire::FUA } else { 0 };
        let bytes = len * SECTOR_BYTES as u64;
        let (command, _) = KINDS[kind];
        let at = offset * SECTOR_BYTES as u64;
        out.extend(wire::request(flags, command, cookie, at, bytes as u32));
        let number = match command {
            Command::Read => self.model.send_read(),
            Command::Flush => {
                self.flushes_under_way += 1;
                self.model.send_flush()
            }
            Command::Write => {
                let pooled = self.random.chance(self.args.duplicates);
                let pooled = pooled.then(|| Content::pool(self.random.below(self.args.pool.into()) as u32));
                let make = |number| pooled.unwrap_or(Content::version(number));
                let number = self.model.send_change(sectors.clone(), make);
                let start = out.len();
                out.resize(start + bytes as usize, 0);
                for (sector, out) in sectors.clone().zip(out[start..].chunks_exact_mut(SECTOR_BYTES)) {
                    make(number).fill(sector, self.id, out);
                }
                number
            }
            _ => {
                let content = if kind == TRIM {
                    Content::TRIMMED
                } else {
                    Content::ZERO
                };
                self.model.send_change(sectors.clone(), |_| content)
            }
        };
        Some(Request {
            kind,
            number,
            sectors,
            is_durable,
            begun,
        })
    }

    /// The server has stopped.
    fn stop(&mut self) {
        self.model.stop();
        self.report.stops += 1;
        self.flushes_under_way = 0;
        self.is_lost = false;
    }

    fn draw(&mut self) -> (usize, u64, u64) {
        let kind = self.mix.draw(&mut self.random);
        match kind {
            FLUSH => (kind, 0, 0),
            _ => {
                let (offset, len) = self.ranges.draw(&mut self.random);
                (kind, offset / SECTOR_BYTES as u64, len / SECTOR_BYTES as u64)
            }
        }
    }

    /// Takes an answer: its error, 0 for success, and what was read.
    fn answer(&mut self, request: Request, error: u32, data: &[u8]) {
        let (command, name) = KINDS[request.kind];
        let has_succeeded = error == 0;
        let (number, sectors) = (request.number, request.sectors);
        let bytes = (sectors.end - sectors.start) * SECTOR_BYTES as u64;
        if !has_succeeded {
            let what = format!("{name}: error {error}");
            *self.report.errors.entry(what).or_default() += 1;
        } else if self.phase == Phase::Load {
            self.report.note(request.kind, request.begun.elapsed(), bytes);
        }
        match command {
            Command::Read => {
                for (sector, bytes) in sectors.zip(data.chunks_exact(SECTOR_BYTES)) {
                    self.report.checked_sectors += 1;
                    let seen = Seen::new(bytes, sector, self.id);
                    if let Err(wrong) = self.model.check(number, sector, &seen) {
                        self.report.note_wrong(wrong);
                    }
                }
                self.model.end_read(number);
            }
            Command::Flush => {
                self.flushes_under_way -= 1;
                if has_succeeded {
                    self.model.end_flush(number);
                }
            }
            _ => self
                .model
                .end_change(number, sectors, has_succeeded, request.is_durable),
        }
    }
}

/// Sends requests and takes answers, until the phase is over and nothing is under way.
async fn serve(stream: &mut Box<dyn Stream>, run: &RefCell<Run>) -> io::Result<()> {
    let (depth, patience) = {
        let run = run.borrow();
        (usize::from(run.args.depth), run.args.timeout)
    };
    let (from, mut to) = tokio::io::split(stream);
    let mut from = BufReader::with_capacity(64 << 10, from);
    let sent = RefCell::new(HashMap::<u64, Request>::new());
    let answered = Notify::new();
    let sending = async {
        let (mut out, mut cookie) = (Vec::new(), 0);
        loop {
            let mut is_over = false;
            while !is_over && sent.borrow().len() < depth && out.len() < 1 << 20 {
                cookie += 1;
                match run.borrow_mut().next(cookie, &mut out) {
                    Some(request) => drop(sent.borrow_mut().insert(cookie, request)),
                    None => is_over = true,
                }
            }
            let had = !out.is_empty();
            to.write_all(&out).await?;
            to.flush().await?;
            out.clear();
            match is_over && sent.borrow().is_empty() {
                true => return Ok(()),
                false if had => {}
                false => answered.notified().await,
            }
        }
    };
    let receiving = async {
        let mut data = Vec::new();
        loop {
            let mut head = [0; wire::REPLY_BYTES];
            timeout(patience, from.read_exact(&mut head)).await??;
            let bad = || io::Error::new(BROKEN, "it answers what was not asked");
            let (cookie, error) = wire::reply(&head).ok_or_else(bad)?;
            if error == wire::SHUTDOWN {
                return Err(io::Error::other("the server shuts down"));
            }
            let len = match sent.borrow().get(&cookie).ok_or_else(bad)? {
                Request {
                    kind: READ, sectors, ..
                } if error == 0 => sectors.end - sectors.start,
                _ => 0,
            };
            data.resize(len as usize * SECTOR_BYTES, 0);
            timeout(patience, from.read_exact(&mut data)).await??;
            // Not before: the phase is over when it is empty.
            let request = sent.borrow_mut().remove(&cookie).ok_or_else(bad)?;
            run.borrow_mut().answer(request, error, &data);
            answered.notify_one();
        }
    };
    let ended = tokio::select! {
        ended = sending => ended,
        lost = receiving => lost,
    };
    if ended.is_err() {
        run.borrow_mut().is_lost = true;
    }
    ended
}

/// Connections to the export.
pub type Streams = Vec<Box<dyn Stream>>;

/// Opens all connections.
pub async fn connect(args: &NbdArgs) -> Result<(Streams, Export), HandshakeError> {
    let (first, export) = args.uri.open(args.timeout).await?;
    let mut streams = vec![first];
    // A server without it may let nobody else in.
    let is_shared = export.flags & wire::FLAG_MULTI_CONN != 0;
    while is_shared && streams.len() < args.connections.into() {
        streams.push(args.uri.open(args.timeout).await?.0);
    }
    Ok((streams, export))
}

/// Opens them again.
async fn reconnect(run: &RefCell<Run>) -> io::Result<Streams> {
    let args = run.borrow().args.clone();
    let deadline = Instant::now() + args.timeout;
    loop {
        let error = match connect(&args).await {
            Ok((streams, export)) if export == run.borrow().export => return Ok(streams),
            Ok(_) => io::Error::other("the export has another size or other flags than before"),
            Err(error) => io::Error::other(error),
        };
        if Instant::now() > deadline || run.borrow().signals > 1 {
            return Err(error);
        }
        sleep(PAUSE).await;
    }
}

/// Makes all phases.
///
/// # Errors
/// Why they ended early.
pub async fn drive(run: &Rc<RefCell<Run>>, mut streams: Streams) -> io::Result<()> {
    let flush = Phase::Flush { is_sent: false };
    let pass = Phase::Pass { next: 0 };
    let can_flush = run.borrow().export.flags & wire::FLAG_FLUSH != 0;
    let resume = run.borrow().args.resume;
    for phase in [flush, Phase::Load, flush, pass, flush] {
        if phase == flush && !can_flush || phase == pass && !resume {
            continue;
        }
        let (begun, cpu) = (Instant::now(), thread_time());
        if phase == Phase::Load {
            let ends = run.borrow().args.duration().map(|duration| begun + duration);
            run.borrow_mut().load_ends = ends;
        }
        let ended = make(phase, run, &mut streams).await;
        let mut run = run.borrow_mut();
        if phase == Phase::Load {
            run.report.end_load(begun.elapsed(), thread_time() - cpu);
        }
        ended?;
        run.report.is_passed |= phase == pass && run.signals < 2;
    }
    for stream in &mut streams {
        // Its answer is the end of the connection.
        let _ = stream
            .write_all(&wire::request(0, Command::Disconnect, 0, 0, 0))
            .await;
    }
    Ok(())
}

/// Makes a phase, from its beginning again after each stop of the server.
async fn make(phase: Phase, run: &Rc<RefCell<Run>>, streams: &mut Streams) -> io::Result<()> {
    loop {
        run.borrow_mut().phase = phase;
        let serving = streams.drain(..).map(|mut stream| {
            let run = Rc::clone(run);
            spawn_local(async move { (serve(&mut stream, &run).await, stream) })
        });
        let mut lost = None;
        for serving in serving.collect::<Vec<_>>() {
            let (ended, stream) = serving.await?;
            streams.push(stream);
            lost = lost.or(ended.err());
        }
        let Some(error) = lost else { return Ok(()) };
        if !run.borrow().args.resume || error.kind() == BROKEN {
            return Err(error);
        }
        streams.clear();
        run.borrow_mut().stop();
        *streams = reconnect(run).await?;
    }
}
