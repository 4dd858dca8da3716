//! A real server in this process, and a client that checks every byte.
#![allow(dead_code, reason = "each test file uses its part")]

mod late;

use late::{LateDevice, ReadsUnderWay};
use pumice::{CacheOptions, Cx, ObjectCache};
use pumice_device::{MemDevice, MemMedium};
use pumice_door_memcached::{BudgetSizes, Door, DoorConfig, DoorStats, Listen};
use pumice_world::{Clock, Executor, ManualClock, Spawner, Task};
use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;

/// The time at which every server starts.
pub const START_SECS: u32 = 1_800_000_000;

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(20);

/// Two largest values fit into each all the same, and 256 KiB of small ones.
pub const SMALLEST: BudgetSizes = BudgetSizes { input: 1, output: 1 };

/// The flash behind a server: memory.
const FLASH_BYTES: u64 = 256 << 20;

struct TokioSpawner;
impl Spawner for TokioSpawner {
    fn spawn(&self, task: Task) {
        tokio::task::spawn_local(task);
    }
}

pub struct Server {
    pub door: Arc<Door>,
    pub clock: Arc<ManualClock>,
    pub reads: Arc<ReadsUnderWay>,
    cache: Arc<ObjectCache<LateDevice>>,
    shutdown: watch::Sender<bool>,
    workers: Vec<JoinHandle<()>>,
}

/// The settings of a server on any free port.
pub fn config() -> DoorConfig {
    DoorConfig {
        listen: vec![Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)))],
        workers: 2,
        ..DoorConfig::default()
    }
}

/// Formats the device and opens a cache on it.
fn open(device: LateDevice, clock: &Arc<ManualClock>, options: CacheOptions) -> Arc<ObjectCache<LateDevice>> {
    let executor = Executor::new();
    let clock: Arc<dyn Clock> = Arc::clone(clock) as _;
    let cx = Cx::new(device, clock, Rc::new(executor.spawner()));
    let opened: Result<_, Infallible> = executor.block_on(ObjectCache::open(&cx, options), || Ok(()));
    let Ok(opened) = opened;
    let (cache, _) = opened.expect("an empty device opens");
    Arc::new(cache)
}

impl Server {
    pub fn start(config: DoorConfig) -> Self {
        Self::start_with(config, CacheOptions::default())
    }

    pub fn start_with(config: DoorConfig, options: CacheOptions) -> Self {
        Self::start_prepared(config, options, |_| false)
    }

    /// A server that is told to stop before its workers run; `prepare` may connect before that.
    pub fn start_stopped(config: DoorConfig, prepare: impl FnOnce(&Door)) -> Self {
        Self::start_prepared(config, CacheOptions::default(), |door| {
            prepare(door);
            true
        })
    }

    fn start_prepared(
        config: DoorConfig,
        options: CacheOptions,
        prepare: impl FnOnce(&Door) -> bool,
    ) -> Self {
        let workers = config.workers;
        let door = Arc::new(Door::bind(config).expect("binds"));
        door.listen().expect("listens");
        let clock = Arc::new(ManualClock::new(START_SECS));
        let reads = Arc::new(ReadsUnderWay::default());
        let device = LateDevice {
            inner: MemDevice::new(Arc::new(MemMedium::new(FLASH_BYTES))),
            reads: Arc::clone(&reads),
        };
        let cache = open(device.clone(), &clock, options);
        let (shutdown, stop) = watch::channel(prepare(&door));
        let workers = (0..workers)
            .map(|index| {
                let (door, clock, cache, stop) = (
                    Arc::clone(&door),
                    Arc::clone(&clock),
                    Arc::clone(&cache),
                    stop.clone(),
                );
                let device = device.clone();
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
            reads,
            cache,
            shutdown,
            workers,
        }
    }

    pub fn client(&self) -> Client<TcpStream> {
        connect(self.door.local_addrs()[0])
    }

    pub fn stats(&self) -> Arc<DoorStats> {
        self.door.stats()
    }

    /// Waits until `holds` does.
    pub fn wait_until(&self, what: &str, holds: impl Fn(&DoorStats) -> bool) {
        let stats = self.stats();
        let deadline = std::time::Instant::now() + PATIENCE;
        while !holds(&stats) {
            assert!(
                std::time::Instant::now() < deadline,
                "{what} does not come to pass"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Objects and slices that the cache was given so far.
    pub fn offered(&self) -> u64 {
        self.cache.stats().books.offered.0
    }

    /// Waits until every full block is written. For a layout with one open block.
    pub fn wait_written(&self) {
        let deadline = std::time::Instant::now() + PATIENCE;
        while self.cache.stats().blocks_open > 1 {
            assert!(std::time::Instant::now() < deadline, "blocks are not written");
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

pub fn connect(address: SocketAddr) -> Client<TcpStream> {
    let stream = TcpStream::connect(address).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_nodelay(true).expect("no delay");
    Client { stream }
}

pub struct Client<S> {
    pub stream: S,
}

impl<S: Read + Write> Client<S> {
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the server reads");
    }

    pub fn receive(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut filled = 0;
        while filled < len {
            let count = self.stream.read(&mut bytes[filled..]).unwrap_or_else(|error| {
                panic!("{error} after {:?}", String::from_utf8_lossy(&bytes[..filled]))
            });
            assert!(
                count > 0,
                "closed after {:?}",
                String::from_utf8_lossy(&bytes[..filled])
            );
            filled += count;
        }
        bytes
    }

    /// The next line, without its end.
    pub fn line(&mut self) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.extend(self.receive(1));
        }
        String::from_utf8_lossy(&line).trim_end().to_owned()
    }

    /// Expects exactly these bytes. `#` stands for a decimal number.
    pub fn expect(&mut self, expected: impl AsRef<[u8]>) -> Vec<u64> {
        let mut numbers = Vec::new();
        let mut pieces = expected.as_ref().split(|byte| *byte == b'#').peekable();
        let mut ahead: Option<u8> = None;
        while let Some(piece) = pieces.next() {
            let mut got: Vec<u8> = ahead.take().into_iter().collect();
            got.extend(self.receive(piece.len() - got.len()));
            assert!(
                got == piece,
                "got {:?}, expected {:?}",
                String::from_utf8_lossy(&got[..got.len().min(300)]),
                String::from_utf8_lossy(&piece[..piece.len().min(300)])
            );
            if pieces.peek().is_some() {
                let mut digits = String::new();
                loop {
                    let byte = self.receive(1)[0];
                    if !byte.is_ascii_digit() {
                        ahead = Some(byte);
                        break;
                    }
                    digits.push(char::from(byte));
                }
                numbers.push(digits.parse().expect("a number"));
            }
        }
        numbers
    }

    /// Like `expect`, without a meaning for `#`.
    pub fn expect_bytes(&mut self, expected: &[u8]) {
        let got = self.receive(expected.len());
        let differs = got
            .iter()
            .zip(expected)
            .position(|(got, expected)| got != expected);
        assert_eq!(differs, None, "first difference");
    }

    pub fn ask(&mut self, send: impl AsRef<[u8]>, expected: impl AsRef<[u8]>) -> Vec<u64> {
        self.send(send);
        self.expect(expected)
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

pub fn value(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|at| u8::try_from((at * 31 + seed) % 251).unwrap())
        .collect()
}

pub fn set(key: &str, value: &[u8]) -> Vec<u8> {
    let mut command = format!("set {key} 0 0 {}\r\n", value.len()).into_bytes();
    command.extend_from_slice(value);
    command.extend_from_slice(b"\r\n");
    command
}

pub fn hit(key: &str, value: &[u8]) -> Vec<u8> {
    let mut reply = format!("VALUE {key} 0 {}\r\n", value.len()).into_bytes();
    reply.extend_from_slice(value);
    reply.extend_from_slice(b"\r\nEND\r\n");
    reply
}

/// Runs a table of (send, expect) on one connection, with a `mn` after each to prove that nothing else was answered.
pub fn script(server: &Server, steps: &[(&str, &str)]) {
    let mut client = server.client();
    for (send, expected) in steps {
        client.send(send);
        client.send("mn\r\n");
        client.expect(format!("{expected}MN\r\n"));
    }
}
