//! The connection: requests of all handles go over it, and are sent again over the next one if it is lost.

use crate::uri::{Place, Uri};
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
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Bytes of changes kept for the next connection, from which on the client flushes by itself. It keeps at most twice as many; further
/// changes wait for the flush.
pub const KEPT_BYTES: usize = 4 << 20;

/// Longest time of a connection attempt, with its handshake.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Pauses between two attempts: the first, and the longest.
const PAUSE: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// What a kept change takes beside its data.
const CHANGE_BYTES: usize = 64;
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
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

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
    fn is_change(&self) -> bool {
        matches!(self, Work::Write { .. } | Work::Zero { .. })
    }

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
}

/// Requests and changes, of all connections.
struct State {
    /// Not sent yet, or to be sent again.
    waiting: VecDeque<Job>,
    /// Sent, by cookie, and not answered.
    sent: BTreeMap<u64, Job>,
    next_cookie: u64,
    /// Changes that were answered, with their numbers, since a flush that covered them.
    kept: VecDeque<(u64, Work)>,
    kept_bytes: usize,
    next_change: u64,
    /// Whether a flush of the client's own is in `waiting` or `sent`.
    is_flushing: bool,
    /// A change is lost that was answered: no later flush may succeed.
    has_lost: bool,
    /// Time of the last answer, or of the first request after all were answered.
    heard: Instant,
}

impl State {
    /// The next request to be sent. Changes wait while too many bytes are kept.
    fn take(&mut self) -> Option<(u64, Work)> {
        let is_full = self.kept_bytes >= 2 * KEPT_BYTES;
        if is_full && self.waiting.front().is_some_and(|job| job.work.is_change()) {
            return None;
        }
        let mut job = self.waiting.pop_front()?;
        if let Work::Flush { covers } = &mut job.work {
            *covers = self.next_change;
        }
        if self.sent.is_empty() {
            self.heard = Instant::now();
        }
        let (cookie, work) = (self.next_cookie, job.work.clone());
        self.next_cookie += 1;
        self.sent.insert(cookie, job);
        Some((cookie, work))
    }

    /// Ends a request with its answer.
    fn end(&mut self, cookie: u64, answer: io::Result<Vec<u8>>) {
        self.heard = Instant::now();
        let Some(Job { work, told }) = self.sent.remove(&cookie) else {
            return;
        };
        let mut answer = answer;
        match (&work, answer.is_ok()) {
            (Work::Flush { covers }, true) => {
                while let Some((_, change)) = self.kept.pop_front_if(|(number, _)| *number < *covers) {
                    self.kept_bytes -= change.cost();
                }
                if self.has_lost {
                    answer = Err(io::Error::other(
                        "the NBD server has lost a change that it had answered",
                    ));
                }
            }
            (Work::Flush { .. }, false) => self.has_lost |= told.is_none(),
            (_, true) if work.is_change() => {
                self.kept_bytes += work.cost();
                self.kept.push_back((self.next_change, work));
                self.next_change += 1;
            }
            (_, _) => {}
        }
        match told {
            // Fails if nobody waits any more.
            Some(told) => drop(told.send(answer)),
            None => self.is_flushing = false,
        }
        if self.kept_bytes >= KEPT_BYTES && !self.is_flushing {
            self.is_flushing = true;
            let work = Work::Flush { covers: 0 };
            self.waiting.push_front(Job { work, told: None });
        }
    }

    /// What was not answered is sent again over the next connection, in the same order.
    fn lose_connection(&mut self) {
        for (_, job) in std::mem::take(&mut self.sent).into_iter().rev() {
            self.waiting.push_front(job);
        }
    }

    /// Fails all requests. Changes that were answered stay.
    fn fail_all(&mut self, uri: &Uri) {
        for job in self.waiting.drain(..) {
            let error = io::Error::new(
                io::ErrorKind::NotConnected,
                format!("there is no connection to {uri}"),
            );
            match job.told {
                Some(told) => drop(told.send(Err(error))),
                None => self.is_flushing = false,
            }
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
}

impl Client {
    async fn run(mut self, mut stream: Box<dyn Stream>) {
        loop {
            let lost = match self.serve(&mut stream).await {
                Ok(()) => return,
                Err(lost) => lost,
            };
            self.seen
                .counters
                .lost_connections
                .fetch_add(1, Ordering::Relaxed);
            self.seen.is_away.store(true, Ordering::Relaxed);
            tracing::warn!("the connection to {} is lost, and is made anew: {lost}", self.uri);
            self.state.get_mut().lose_connection();
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
        let (uri, device) = (&self.uri, &self.device);
        let mut attempt = std::pin::pin!(async {
            let mut pause = PAUSE[0];
            loop {
                let error = match connect(uri).await {
                    Ok((stream, found)) if found == *device => return stream,
                    Ok(_) => "the export is not the same: its size or its flags differ".to_owned(),
                    Err(error) => error.to_string(),
                };
                tracing::debug!("{uri}: {error}");
                sleep(pause).await;
                pause = (2 * pause).min(PAUSE[1]);
            }
        });
        let deadline = Instant::now() + self.patience;
        let mut is_late = false;
        loop {
            tokio::select! {
                stream = &mut attempt => return Some(stream),
                job = self.jobs.recv() => self.state.get_mut().waiting.push_back(job?),
                () = sleep_until(deadline), if !is_late => {
                    is_late = true;
                    tracing::error!("{uri} cannot be reached for {:?}: requests fail", self.patience);
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
        self.send_kept(&mut from, &mut to).await?;
        let (state, jobs, patience) = (&self.state, &mut self.jobs, self.patience);
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
        let silent = async {
            loop {
                sleep(Duration::from_secs(1)).await;
                let state = state.borrow();
                if !state.sent.is_empty() && state.heard.elapsed() > patience {
                    return io::Error::new(io::ErrorKind::TimedOut, "the server answers nothing");
                }
            }
        };
        tokio::select! {
            ended = sending => ended,
            lost = receiving => lost,
            lost = silent => Err(lost),
        }
    }

    /// Sends the kept changes again, each after the answer to the one before.
    async fn send_kept(
        &mut self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let state = self.state.get_mut();
        for (_, change) in &state.kept {
            let cookie = state.next_cookie;
            state.next_cookie += 1;
            let (head, data) = change.bytes(cookie);
            let again = async {
                to.write_all(&head).await?;
                to.write_all(data).await?;
                to.flush().await?;
                receive(from).await
            };
            let (answered, error) = timeout(self.patience, again).await??;
            self.seen.counters.resent_changes.fetch_add(1, Ordering::Relaxed);
            if answered != cookie {
                return Err(no_protocol());
            }
            if let Some(error) = error {
                tracing::error!(
                    "{}: a change that was answered cannot be made again: {error}",
                    self.uri
                );
                state.has_lost = true;
            }
        }
        Ok(())
    }
}

/// The next reply: its cookie, and its error.
async fn receive(from: &mut (impl AsyncRead + Unpin)) -> io::Result<(u64, Option<io::Error>)> {
    let mut head = [0; REPLY_BYTES];
    from.read_exact(&mut head).await?;
    let (cookie, error) = wire::reply(&head).ok_or_else(no_protocol)?;
    Ok((cookie, wire::error(error)))
}

fn no_protocol() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it sends no NBD reply")
}

async fn connect(uri: &Uri) -> Result<(Box<dyn Stream>, Device), HandshakeError> {
    let connecting = async {
        let mut stream: Box<dyn Stream> = match &uri.place {
            Place::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Place::Unix(path) => Box::new(UnixStream::connect(path).await?),
        };
        let device = wire::shake_hands(&mut stream, &uri.export).await?;
        Ok((stream, device))
    };
    let connected = timeout(CONNECT_WITHIN, connecting).await;
    connected.unwrap_or_else(|late| Err(io::Error::from(late).into()))
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
                    let (stream, device) = match connect(&of_thread).await {
                        Ok(connected) => connected,
                        Err(error) => return drop(told.send(Err(error))),
                    };
                    let client = Client {
                        uri: of_thread,
                        patience,
                        device,
                        jobs: received,
                        seen: seen_by_thread,
                        state: RefCell::new(State {
                            waiting: VecDeque::new(),
                            sent: BTreeMap::new(),
                            next_cookie: 0,
                            kept: VecDeque::new(),
                            kept_bytes: 0,
                            next_change: 0,
                            is_flushing: false,
                            has_lost: false,
                            heard: Instant::now(),
                        }),
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
        self.0.jobs.send(Job { work, told }).map_err(|_| ended())?;
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

    async fn write_at(&self, mut offset: u64, mut data: Bytes) -> io::Result<()> {
        let most = self.0.device.payload_max as usize;
        while !data.is_empty() {
            let data = data.split_to(most.min(data.len()));
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
