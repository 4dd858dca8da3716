//! The connection: requests of all handles go over it, and are sent again over the next one if it is lost.

use crate::open::Stream;
use crate::uri::Uri;
use crate::wire::{self, Command, Device, HandshakeError, NO_HOLE, REPLY_BYTES};
use bytes::Bytes;
use pumice_volume::{Backing, Extent};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, BufWriter};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Bytes of changes kept for the next connection, from which on the client flushes by itself. Changes that are kept or sent have at most
/// twice as many; further ones wait for the flush.
pub const KEPT_BYTES: usize = 4 << 20;

/// Pauses before an attempt to connect: the least after a failure, and the longest. There is none after a connection that answered.
const PAUSE: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// What a kept change takes beside its data.
const CHANGE_BYTES: usize = 4096;
/// Parts of a write end with a sector, which has old or new bytes as a whole.
const SECTOR_BYTES: u64 = 512;
/// Most bytes zeroed by one request.
const ZERO_BYTES: u64 = 1 << 30;
/// Zeros sent by one request, to a server without WRITE_ZEROES.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

pumice_world::figures! {
    /// Running totals of a remote device since it was opened.
    pub struct RemoteCounts;
    of
    /// The same, while they run.
    struct Counters: AtomicU64;
    /// Connections to the server that were lost.
    Counter lost_connections,
    /// Changes sent again over a new connection, since the server may have lost them.
    Counter resent_changes,
}

/// What others may know of the connection.
#[derive(Default)]
struct Seen {
    counters: Counters,
    is_away: AtomicBool,
    /// A change that was answered could not be made again.
    has_lost: AtomicBool,
}

/// A request.
#[derive(Clone)]
enum Work {
    Read {
        offset: u64,
        len: u32,
    },
    Write {
        offset: u64,
        data: Bytes,
    },
    Zero {
        offset: u64,
        len: u32,
        may_punch: bool,
    },
    /// Makes the changes with numbers below `covers` durable.
    Flush {
        covers: u64,
    },
}

impl Work {
    /// Bytes that it takes while it is kept.
    fn cost(&self) -> usize {
        match self {
            Work::Write { data, .. } => data.len() + CHANGE_BYTES,
            _ => CHANGE_BYTES,
        }
    }

    /// The header of its request, and the data behind it.
    fn bytes(&self, cookie: u64) -> ([u8; wire::REQUEST_BYTES], &[u8]) {
        match self {
            Work::Read { offset, len } => (wire::request(0, Command::Read, cookie, *offset, *len), &[]),
            Work::Write { offset, data } => {
                let head = wire::request(0, Command::Write, cookie, *offset, data.len() as u32);
                (head, data)
            }
            Work::Zero {
                offset,
                len,
                may_punch,
            } => {
                let flags = if *may_punch { 0 } else { NO_HOLE };
                (wire::request(flags, Command::Zero, cookie, *offset, *len), &[])
            }
            Work::Flush { .. } => (wire::request(0, Command::Flush, cookie, 0, 0), &[]),
        }
    }
}

struct Job {
    work: Work,
    /// Who waits for it; nobody for a flush of the client's own.
    told: Option<oneshot::Sender<io::Result<Vec<u8>>>>,
    /// Whether it was sent over a connection that was lost: the server may still perform it.
    was_sent: bool,
}

/// Requests and changes, of all connections.
#[derive(Default)]
struct State {
    /// Not sent yet, or to be sent again.
    waiting: VecDeque<Job>,
    /// Sent, by cookie, and not answered.
    sent: BTreeMap<u64, Job>,
    next_cookie: u64,
    /// Changes that were answered, with their numbers, since a flush that covered them.
    kept: VecDeque<(u64, Work)>,
    next_change: u64,
    /// Bytes of changes that are kept, and of those that are sent.
    kept_bytes: usize,
    sent_bytes: usize,
    /// Whether a flush is sent: one at a time, since a server may report a failure to one of two.
    is_flushing: bool,
    /// A flush failed, or a change that was answered could not be made again: no flush may succeed any more, and nothing is kept.
    has_lost: bool,
    /// Whether anything was answered over this connection.
    is_answered: bool,
}

impl State {
    /// The next request to be sent. Changes wait while too much is kept, flushes for the one before; others overtake them.
    fn take(&mut self) -> Option<(u64, Work)> {
        let held = self.kept_bytes + self.sent_bytes;
        let fits = |work: &Work| held == 0 || held + work.cost() <= 2 * KEPT_BYTES;
        let may_go = |job: &Job| match &job.work {
            Work::Read { .. } => true,
            Work::Flush { .. } => !self.is_flushing,
            change => fits(change),
        };
        let first = self.waiting.iter().position(may_go);
        let is_full = self.kept_bytes >= KEPT_BYTES || first.is_none() && !self.waiting.is_empty();
        let mut job = match first {
            _ if is_full && !self.is_flushing && !self.kept.is_empty() => Job {
                work: Work::Flush { covers: 0 },
                told: None,
                was_sent: false,
            },
            first => self.waiting.remove(first?)?,
        };
        match &mut job.work {
            Work::Read { .. } => {}
            Work::Flush { covers } => {
                *covers = self.next_change;
                self.is_flushing = true;
            }
            change => self.sent_bytes += change.cost(),
        }
        let (cookie, work) = (self.next_cookie, job.work.clone());
        self.next_cookie += 1;
        self.sent.insert(cookie, job);
        Some((cookie, work))
    }

    /// Ends a request with its answer.
    fn end(&mut self, cookie: u64, answer: io::Result<Vec<u8>>) {
        self.is_answered = true;
        let Some(Job { work, told, .. }) = self.sent.remove(&cookie) else {
            return;
        };
        let mut answer = answer;
        match work {
            Work::Read { .. } => {}
            Work::Flush { covers } => {
                self.is_flushing = false;
                match answer {
                    Ok(_) => self.forget(covers),
                    Err(_) => self.lose(),
                }
                if self.has_lost && answer.is_ok() {
                    answer = Err(io::Error::other(
                        "the NBD server has lost a change that it had answered",
                    ));
                }
            }
            change => {
                self.sent_bytes -= change.cost();
                if answer.is_ok() && !self.has_lost {
                    self.kept_bytes += change.cost();
                    self.kept.push_back((self.next_change, change));
                    self.next_change += 1;
                }
            }
        }
        // Fails if nobody waits any more.
        told.map(|told| told.send(answer));
    }

    /// Drops the kept changes with numbers below `covers`: a flush has made them durable.
    fn forget(&mut self, covers: u64) {
        while let Some((_, change)) = self.kept.pop_front_if(|(number, _)| *number < covers) {
            self.kept_bytes -= change.cost();
        }
    }

    fn lose(&mut self) {
        self.has_lost = true;
        self.forget(u64::MAX);
    }

    /// Requests that were not answered are sent again over the next connection.
    fn lose_connection(&mut self) {
        for (_, mut job) in std::mem::take(&mut self.sent).into_iter().rev() {
            job.was_sent = true;
            if job.told.is_some() {
                self.waiting.push_front(job);
            }
        }
        self.sent_bytes = 0;
        self.is_flushing = false;
    }

    /// Fails all requests. Changes that were answered stay.
    fn fail_all(&mut self, uri: &Uri) {
        for job in self.waiting.drain(..) {
            let kind = match job.work {
                Work::Read { .. } | Work::Flush { .. } => io::ErrorKind::NotConnected,
                _ if job.was_sent => io::ErrorKind::TimedOut,
                _ => io::ErrorKind::NotConnected,
            };
            let error = io::Error::new(kind, format!("there is no connection to {uri}"));
            job.told.map(|told| told.send(Err(error)));
        }
    }
}

/// Runs on its own thread, until all handles are gone.
struct Client {
    uri: Uri,
    patience: Duration,
    device: Device,
    jobs: UnboundedReceiver<Job>,
    seen: Arc<Seen>,
    state: RefCell<State>,
    pause: Duration,
    /// While nothing is answered: when requests begin to fail.
    deadline: Option<Instant>,
}

impl Client {
    async fn run(mut self, mut stream: Box<dyn Stream>) {
        loop {
            let lost = match self.serve(&mut stream).await {
                Ok(()) => return,
                Err(lost) => lost,
            };
            let state = self.state.get_mut();
            state.lose_connection();
            if std::mem::take(&mut state.is_answered) {
                (self.pause, self.deadline) = (Duration::ZERO, None);
            } else {
                self.pause = longer(self.pause);
            }
            self.seen
                .counters
                .lost_connections
                .fetch_add(1, Ordering::Relaxed);
            self.seen.is_away.store(true, Ordering::Relaxed);
            tracing::warn!("the connection to {} is lost, and is made anew: {lost}", self.uri);
            stream = match self.reconnect().await {
                Some(stream) => stream,
                None => return,
            };
            self.seen.is_away.store(false, Ordering::Relaxed);
            tracing::info!("connected to {} again", self.uri);
        }
    }

    /// Connects again, and fails requests that wait too long. `None` if all handles are gone.
    async fn reconnect(&mut self) -> Option<Box<dyn Stream>> {
        let (uri, device, pause, patience) = (&self.uri, &self.device, &mut self.pause, self.patience);
        let error = RefCell::new(String::new());
        let mut attempt = std::pin::pin!(async {
            loop {
                sleep(*pause).await;
                let failed = match connect(uri, patience).await {
                    Ok((stream, found)) if found == *device => return stream,
                    Ok(_) => "the export is not the same: its size or its flags differ".to_owned(),
                    Err(error) => error.to_string(),
                };
                *error.borrow_mut() = failed;
                *pause = longer(*pause);
            }
        });
        let deadline = *self.deadline.get_or_insert(Instant::now() + patience);
        let mut is_late = false;
        loop {
            tokio::select! {
                stream = &mut attempt => return Some(stream),
                job = self.jobs.recv() => self.state.get_mut().waiting.push_back(job?),
                () = sleep_until(deadline), if !is_late => {
                    is_late = true;
                    tracing::error!("no answer of {uri} for {patience:?}, and requests fail: {}", error.borrow());
                }
            }
            if is_late {
                self.state.get_mut().fail_all(uri);
            }
        }
    }

    /// Sends requests and receives answers. Returns when all handles are gone.
    async fn serve(&mut self, stream: &mut Box<dyn Stream>) -> io::Result<()> {
        let (from, to) = tokio::io::split(stream);
        let (mut from, mut to) = (BufReader::new(from), BufWriter::new(to));
        timeout(self.patience, self.send_kept(&mut from, &mut to)).await??;
        let (state, jobs) = (&self.state, &mut self.jobs);
        let answered = Notify::new();
        let sending = async {
            let mut is_closed = false;
            loop {
                let next = state.borrow_mut().take();
                if let Some((cookie, work)) = next {
                    let (head, data) = work.bytes(cookie);
                    to.write_all(&head).await?;
                    to.write_all(data).await?;
                    continue;
                }
                to.flush().await?;
                if is_closed && state.borrow().sent.is_empty() {
                    to.write_all(&wire::request(0, Command::Disconnect, 0, 0, 0))
                        .await?;
                    return to.shutdown().await;
                }
                tokio::select! {
                    job = jobs.recv(), if !is_closed => match job {
                        Some(job) => state.borrow_mut().waiting.push_back(job),
                        None => is_closed = true,
                    },
                    () = answered.notified() => {}
                }
            }
        };
        let receiving = async {
            loop {
                let (cookie, error) = receive(&mut from).await?;
                let len = match state.borrow().sent.get(&cookie).map(|job| &job.work) {
                    None => return Err(no_protocol()),
                    Some(Work::Read { len, .. }) => *len as usize,
                    Some(_) => 0,
                };
                let answer = match error {
                    Some(error) => Err(error),
                    None => {
                        let mut data = vec![0; len];
                        from.read_exact(&mut data).await?;
                        Ok(data)
                    }
                };
                state.borrow_mut().end(cookie, answer);
                answered.notify_one();
            }
        };
        tokio::select! {
            ended = sending => ended,
            lost = receiving => lost,
        }
    }

    /// Sends the kept changes again, each after the answer to the one before.
    async fn send_kept(
        &mut self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let state = self.state.get_mut();
        for (cookie, change) in &state.kept {
            let (head, data) = change.bytes(*cookie);
            to.write_all(&head).await?;
            to.write_all(data).await?;
            to.flush().await?;
            let (answered, error) = receive(from).await?;
            if answered != *cookie {
                return Err(no_protocol());
            }
            self.seen.counters.resent_changes.fetch_add(1, Ordering::Relaxed);
            if let Some(error) = error {
                let uri = &self.uri;
                tracing::error!("{uri}: a change that was answered cannot be made again: {error}");
                // Before the next read is answered.
                self.seen.has_lost.store(true, Ordering::Release);
                state.lose();
                break;
            }
        }
        Ok(())
    }
}

fn longer(pause: Duration) -> Duration {
    (2 * pause).clamp(PAUSE[0], PAUSE[1])
}

/// The next reply: its cookie, and its error. A server that shuts down ends the connection.
async fn receive(from: &mut (impl AsyncRead + Unpin)) -> io::Result<(u64, Option<io::Error>)> {
    let mut head = [0; REPLY_BYTES];
    from.read_exact(&mut head).await?;
    match wire::reply(&head).ok_or_else(no_protocol)? {
        (_, wire::SHUTDOWN) => Err(io::Error::new(
            io::ErrorKind::ConnectionAborted,
            "the server shuts down",
        )),
        (cookie, error) => Ok((cookie, wire::error(error))),
    }
}

fn no_protocol() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it sends no NBD reply")
}

async fn connect(uri: &Uri, patience: Duration) -> Result<(Box<dyn Stream>, Device), HandshakeError> {
    let (stream, export) = uri.open(patience).await?;
    Ok((stream, export.device()?))
}

/// A handle on a remote device. Clones share the connection.
#[derive(Clone)]
pub struct Remote(Arc<Shared>);

struct Shared {
    uri: Uri,
    device: Device,
    jobs: UnboundedSender<Job>,
    seen: Arc<Seen>,
}

impl Remote {
    /// Connects, and starts the thread of the connection. Blocks for up to ten seconds. `patience` is the time that requests wait for a new
    /// connection, and the longest silence of a server that has requests to answer.
    ///
    /// # Errors
    /// The server cannot be reached, or its export is of no use: see [`HandshakeError`].
    pub fn connect(uri: Uri, patience: Duration) -> Result<Self, HandshakeError> {
        let (jobs, received) = unbounded_channel();
        let (told, found) = mpsc::channel();
        let seen = Arc::<Seen>::default();
        let (of_thread, seen_by_thread) = (uri.clone(), Arc::clone(&seen));
        std::thread::Builder::new()
            .name("remote".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = match runtime {
                    Ok(runtime) => runtime,
                    Err(error) => return drop(told.send(Err(error.into()))),
                };
                runtime.block_on(async {
                    let (stream, device) = match connect(&of_thread, patience).await {
                        Ok(connected) => connected,
                        Err(error) => return drop(told.send(Err(error))),
                    };
                    let client = Client {
                        uri: of_thread,
                        patience,
                        device,
                        jobs: received,
                        seen: seen_by_thread,
                        state: RefCell::default(),
                        pause: Duration::ZERO,
                        deadline: None,
                    };
                    // Fails if the opener is gone.
                    let _ = told.send(Ok(device));
                    client.run(stream).await;
                });
            })?;
        let device = found
            .recv()
            .map_err(|_| io::Error::other("the thread of the connection has ended"))??;
        Ok(Self(Arc::new(Shared {
            uri,
            device,
            jobs,
            seen,
        })))
    }

    /// Its address.
    pub fn uri(&self) -> &Uri {
        &self.0.uri
    }

    /// The device behind it.
    pub fn device(&self) -> Device {
        self.0.device
    }

    /// Whether there is no connection to the server, and a new one is tried.
    pub fn is_away(&self) -> bool {
        self.0.seen.is_away.load(Ordering::Relaxed)
    }

    /// Running totals.
    pub fn counts(&self) -> RemoteCounts {
        self.0.seen.counters.snapshot()
    }

    async fn ask(&self, work: Work) -> io::Result<Vec<u8>> {
        let ended = || {
            io::Error::new(
                io::ErrorKind::BrokenPipe,
                "the thread of the connection has ended",
            )
        };
        let (told, hears) = oneshot::channel();
        let told = Some(told);
        let was_sent = false;
        let job = Job { work, told, was_sent };
        self.0.jobs.send(job).map_err(|_| ended())?;
        hears.await.map_err(|_| ended())?
    }
}

impl Backing for Remote {
    fn size(&self) -> u64 {
        self.0.device.size
    }

    fn modified(&self) -> io::Result<u64> {
        Ok(0)
    }

    async fn read_at(&self, mut offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let most = self.0.device.payload_max as usize;
        if len <= most {
            let len = len as u32;
            return self.ask(Work::Read { offset, len }).await;
        }
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let part = most.min(len - bytes.len()) as u32;
            bytes.extend(self.ask(Work::Read { offset, len: part }).await?);
            offset += u64::from(part);
        }
        Ok(bytes)
    }

    fn can_stand_in(&self) -> bool {
        !self.is_away() && !self.0.seen.has_lost.load(Ordering::Acquire)
    }

    fn may_change_later(&self, error: &io::Error) -> bool {
        // Other errors are answers of the server, or the change was never sent.
        matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::BrokenPipe)
    }

    async fn write_at(&self, mut offset: u64, mut data: Bytes) -> io::Result<()> {
        let most = u64::from(self.0.device.payload_max);
        while !data.is_empty() {
            let end = (offset + most) / SECTOR_BYTES * SECTOR_BYTES;
            let data = data.split_to(((end - offset) as usize).min(data.len()));
            let len = data.len() as u64;
            self.ask(Work::Write { offset, data }).await?;
            offset += len;
        }
        Ok(())
    }

    async fn zero(&self, mut offset: u64, len: u64, may_punch: bool) -> io::Result<()> {
        let end = offset + len;
        while offset < end {
            let len = match self.0.device.can_zero {
                true => (end - offset).min(ZERO_BYTES),
                false => (end - offset).min((ZEROS.len() as u64).min(self.0.device.payload_max.into())),
            };
            let work = match self.0.device.can_zero {
                true => Work::Zero {
                    offset,
                    len: len as u32,
                    may_punch,
                },
                false => Work::Write {
                    offset,
                    data: Bytes::from_static(&ZEROS[..len as usize]),
                },
            };
            self.ask(work).await?;
            offset += len;
        }
        Ok(())
    }

    async fn flush(&self) -> io::Result<()> {
        match self.0.device.is_read_only {
            true => Ok(()),
            false => self.ask(Work::Flush { covers: 0 }).await.map(drop),
        }
    }

    async fn extents(&self, _: u64, len: u64, _: usize) -> io::Result<Vec<Extent>> {
        Ok(vec![Extent {
            length: len,
            is_hole: false,
        }])
    }
}
