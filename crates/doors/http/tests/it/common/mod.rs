//! A real door in this process, an origin that does what a test says, and a client that reads bytes.
#![allow(dead_code, reason = "each test file uses its part")]

use pumice::{CacheOptions, Cx, ObjectCache};
use pumice_device::{MemDevice, MemMedium};
use pumice_door_http::origin::OriginConfig;
use pumice_door_http::{Counts, Door, DoorConfig, Listen};
use pumice_world::{Clock, Executor, ManualClock, Spawner, Task};
use std::convert::Infallible;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The time at which every server starts: Tue, 14 Nov 2023 22:13:20 GMT.
pub const START_SECS: u32 = 1_700_000_000;

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(20);

/// The flash behind a server: memory.
const FLASH_BYTES: u64 = 256 << 20;

struct TokioSpawner;
impl Spawner for TokioSpawner {
    fn spawn(&self, task: Task) {
        tokio::task::spawn_local(task);
    }
}

/// A request as the origin got it.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// As `GET /x HTTP/1.1`.
    pub line: String,
    /// Names in lower case.
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Seen {
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        fields.find(|(found, _)| found == name).map(|(_, value)| &**value)
    }

    pub fn path(&self) -> &str {
        self.line.split(' ').nth(1).unwrap()
    }
}

/// An origin that answers as a test says; a connection that the test leaves open is used again.
pub struct Origin {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

/// Reads a head, and a body that has a length or is chunked.
fn read_message(from: &mut impl BufRead) -> Option<Seen> {
    let mut line = || -> Option<String> {
        let mut line = String::new();
        (from.read_line(&mut line).ok()? > 0).then(|| line.trim_end().to_owned())
    };
    let mut seen = Seen {
        line: line()?,
        ..Seen::default()
    };
    loop {
        let next = line()?;
        if next.is_empty() {
            break;
        }
        let (name, value) = next.split_once(':').expect("a field");
        seen.fields
            .push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    Some(seen)
}

fn read_chunks(from: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        from.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let length = usize::from_str_radix(line.trim(), 16).ok()?;
        let mut chunk = vec![0; length + 2];
        from.read_exact(&mut chunk).ok()?;
        if length == 0 {
            return Some(body);
        }
        body.extend(&chunk[..length]);
    }
}

impl Origin {
    pub fn start(answer: impl Fn(&Seen, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let answer = Arc::new(answer);
        let all = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (answer, all) = (Arc::clone(&answer), Arc::clone(&all));
                let mut stream = stream.unwrap();
                std::thread::spawn(move || {
                    let mut reader = BufReader::new(stream.try_clone().unwrap());
                    while let Some(mut seen) = read_message(&mut reader) {
                        if let Some(length) = seen.field("content-length") {
                            seen.body = vec![0; length.parse().unwrap()];
                            if reader.read_exact(&mut seen.body).is_err() {
                                return;
                            }
                        } else if seen.field("transfer-encoding").is_some() {
                            let Some(body) = read_chunks(&mut reader) else {
                                return;
                            };
                            seen.body = body;
                        }
                        all.lock().unwrap().push(seen.clone());
                        answer(&seen, &mut stream);
                    }
                });
            }
        });
        Self { address, seen }
    }

    /// One that gives the same answer to every request: a head with a length is made of the fields, after `200 OK`.
    pub fn always(fields: &'static str, body: &'static [u8]) -> Self {
        Self::start(move |_, to| say(to, fields, body))
    }

    /// Requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

/// Sends a whole answer: fields between `&`, a status of its own before them if that begins with digits, as `404 & etag: "a"`.
pub fn say(to: &mut impl Write, fields: &str, body: &[u8]) {
    let mut bytes = head(fields, Some(body.len()));
    bytes.extend(body);
    // The door may have gone.
    let _ = to.write_all(&bytes);
}

/// The head of an answer.
pub fn head(fields: &str, length: Option<usize>) -> Vec<u8> {
    let mut status = "200";
    let mut lines = String::new();
    for field in fields.split('&').map(str::trim).filter(|field| !field.is_empty()) {
        match field.bytes().all(|byte| byte.is_ascii_digit()) {
            true => status = field,
            false => lines += &format!("{field}\r\n"),
        }
    }
    if let Some(length) = length {
        lines += &format!("content-length: {length}\r\n");
    }
    format!("HTTP/1.1 {status} X\r\n{lines}\r\n").into_bytes()
}

pub struct Server {
    pub door: Arc<Door>,
    pub clock: Arc<ManualClock>,
    pub cache: Arc<ObjectCache<MemDevice>>,
    shutdown: watch::Sender<bool>,
    workers: Vec<JoinHandle<()>>,
}

pub fn config(origin: SocketAddr) -> DoorConfig {
    let url = format!("http://{origin}").parse().unwrap();
    DoorConfig {
        listen: vec![Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)))],
        workers: 2,
        ..DoorConfig::new(OriginConfig::new(url))
    }
}

impl Server {
    pub fn of(origin: &Origin) -> Self {
        Self::start(config(origin.address))
    }

    pub fn start(config: DoorConfig) -> Self {
        Self::start_with(config, CacheOptions::default())
    }

    pub fn start_with(config: DoorConfig, options: CacheOptions) -> Self {
        let workers = config.workers;
        let options = CacheOptions {
            item_bytes_max: 1 << 30,
            ..options
        };
        let door = Arc::new(Door::bind(config).expect("binds"));
        door.listen().expect("listens");
        let clock = Arc::new(ManualClock::new(START_SECS));
        let device = MemDevice::new(Arc::new(MemMedium::new(FLASH_BYTES)));
        let executor = Executor::new();
        let shown: Arc<dyn Clock> = Arc::clone(&clock) as _;
        let cx = Cx::new(device.clone(), shown, Rc::new(executor.spawner()));
        let opened: Result<_, Infallible> = executor.block_on(ObjectCache::open(&cx, options), || Ok(()));
        let Ok(opened) = opened;
        let cache = Arc::new(opened.expect("an empty device opens").0);
        let (shutdown, stop) = watch::channel(false);
        let workers = (0..workers)
            .map(|index| {
                let (door, clock, cache) = (Arc::clone(&door), Arc::clone(&clock), Arc::clone(&cache));
                let (device, stop) = (device.clone(), stop.clone());
                std::thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .enable_all()
                        .build()
                        .expect("a runtime");
                    let cx = Rc::new(Cx::new(device, clock, Rc::new(TokioSpawner)));
                    let local = tokio::task::LocalSet::new();
                    local
                        .block_on(&runtime, door.run_worker(index, cx, cache, stop))
                        .expect("the worker ends well");
                })
            })
            .collect();
        Self {
            door,
            clock,
            cache,
            shutdown,
            workers,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.door.local_addrs()[0]
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address())
    }

    /// Asks on a connection of its own: `GET` unless the path says another method, fields between `&`.
    pub fn ask(&self, path: &str, fields: &str) -> Answer {
        self.client().ask(path, fields)
    }

    pub fn counts(&self) -> Counts {
        self.door.stats().counts()
    }

    /// Waits until `holds` does.
    pub fn wait_until(&self, what: &str, holds: impl Fn(&Counts) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(&self.counts()) {
            assert!(Instant::now() < deadline, "{what} does not come to pass");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn begin_stop(&self) {
        self.shutdown.send_replace(true);
    }

    /// Stops the server; fails if a worker panicked or the books do not balance.
    pub fn stop(mut self) {
        self.begin_stop();
        for worker in self.workers.drain(..) {
            worker.join().expect("no worker panics");
        }
        self.cache.check_books().expect("the books balance");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.begin_stop();
        for worker in self.workers.drain(..) {
            // A failed test is reported by itself.
            let _ = worker.join();
        }
    }
}

/// An answer as a client got it.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub status: u16,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Whether all of the body came that the head tells of.
    pub is_whole: bool,
}

impl Answer {
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        fields.find(|(found, _)| found == name).map(|(_, value)| &**value)
    }

    /// The last line of `Cache-Status`, without the name of the cache.
    pub fn cache(&self) -> &str {
        let lines = self.fields.iter().rev();
        let line = lines.clone().find(|(name, _)| name == "cache-status");
        let (_, value) = line.unwrap_or_else(|| panic!("no Cache-Status in {self:?}"));
        value.strip_prefix("Pumice; ").unwrap()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

pub struct Client {
    pub stream: BufReader<TcpStream>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        Self {
            stream: BufReader::new(stream),
        }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream
            .get_mut()
            .write_all(bytes.as_ref())
            .expect("the server reads");
    }

    pub fn ask(&mut self, path: &str, fields: &str) -> Answer {
        let is_head = self.send_request(path, fields);
        self.answer(is_head)
    }

    /// Sends a request without a body; whether it is a HEAD.
    pub fn send_request(&mut self, path: &str, fields: &str) -> bool {
        let line = match path.contains(' ') {
            true => path.to_owned(),
            false => format!("GET {path}"),
        };
        let fields = fields.split('&').map(str::trim).filter(|field| !field.is_empty());
        let fields: String = fields.map(|field| format!("{field}\r\n")).collect();
        self.send(format!("{line} HTTP/1.1\r\nhost: example.org\r\n{fields}\r\n"));
        line.starts_with("HEAD ")
    }

    /// The head of an answer; `None` where the connection ends before.
    pub fn head(&mut self) -> Option<Answer> {
        let seen = read_message(&mut self.stream)?;
        let status = seen.line.split(' ').nth(1).expect("a status line");
        Some(Answer {
            status: status.parse().unwrap(),
            fields: seen.fields,
            ..Answer::default()
        })
    }

    /// An answer; one whose connection ends before its body does is not whole.
    pub fn answer(&mut self, is_head: bool) -> Answer {
        let mut answer = self.head().expect("an answer");
        answer.is_whole = true;
        if is_head || matches!(answer.status, 204 | 304) {
            return answer;
        }
        if let Some(length) = answer.field("content-length") {
            let length: u64 = length.parse().unwrap();
            let mut body = Vec::new();
            let read = (&mut self.stream).take(length).read_to_end(&mut body);
            answer.is_whole = read.is_ok() && body.len() as u64 == length;
            answer.body = body;
        } else if answer.field("transfer-encoding") == Some("chunked") {
            match read_chunks(&mut self.stream) {
                Some(body) => answer.body = body,
                None => answer.is_whole = false,
            }
        } else {
            self.stream.read_to_end(&mut answer.body).expect("a body");
        }
        answer
    }

    /// Expects that nothing more comes but the end.
    pub fn expect_end(&mut self) {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("{error}"),
        }
        assert!(rest.is_empty(), "{:?}", String::from_utf8_lossy(&rest));
    }
}

/// Bytes that differ everywhere.
pub fn value(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|at| u8::try_from((at * 31 + at / 251 + seed) % 251).unwrap())
        .collect()
}

/// Counts what happens on other threads.
#[derive(Clone, Default)]
pub struct Times(Arc<AtomicUsize>);

impl Times {
    /// Counts one more, and says how many came before.
    pub fn next(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}
