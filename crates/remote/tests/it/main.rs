//! A remote device against a server that loses what was not flushed.

use bytes::Bytes;
use pumice_door_nbd::{Door, DoorConfig, Export, ExportError, Extent, Listen, Shape};
use pumice_remote::{HandshakeError, KEPT_BYTES, Place, Remote, Uri};
use pumice_volume::Backing;
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::watch;

const SIZE: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(20);
const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// A disk whose volatile part a crash undoes.
struct Disk {
    now: Vec<u8>,
    flushed: Vec<u8>,
    flushes: usize,
    flushing: usize,
    most_flushing: usize,
    written_bytes: usize,
    /// Time that a flush takes, after the snapshot.
    flush_time: Duration,
    fails_flush: bool,
}

#[derive(Clone)]
struct Shared(Arc<Mutex<Disk>>);

impl Shared {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap()
    }
}

impl Export for Shared {
    fn shape(&self) -> Shape {
        Shape {
            size_bytes: SIZE as u64,
            is_read_only: false,
            preferred_bytes: 4096,
        }
    }

    async fn read(&self, offset: u64, length: usize) -> Result<Bytes, ExportError> {
        Ok(Bytes::copy_from_slice(
            &self.disk().now[offset as usize..][..length],
        ))
    }

    async fn write(&self, offset: u64, data: Bytes, _: bool) -> Result<(), ExportError> {
        let mut disk = self.disk();
        disk.written_bytes += data.len();
        disk.now[offset as usize..][..data.len()].copy_from_slice(&data);
        Ok(())
    }

    async fn zero(&self, offset: u64, length: u64, _: bool) -> Result<(), ExportError> {
        self.disk().now[offset as usize..][..length as usize].fill(0);
        Ok(())
    }

    async fn flush(&self) -> Result<(), ExportError> {
        let time = {
            let mut disk = self.disk();
            disk.flushed = disk.now.clone();
            disk.flushes += 1;
            disk.flushing += 1;
            disk.most_flushing = disk.most_flushing.max(disk.flushing);
            disk.flush_time
        };
        // Changes that come meanwhile are answered before it, and not flushed.
        tokio::time::sleep(time).await;
        let mut disk = self.disk();
        disk.flushing -= 1;
        match disk.fails_flush {
            true => Err(ExportError::Io),
            false => Ok(()),
        }
    }

    async fn status(&self, _: u64, length: u64, _: usize) -> Result<Vec<Extent>, ExportError> {
        Ok(vec![Extent {
            length,
            is_hole: false,
        }])
    }

    async fn cache(&self, _: u64, _: u64) -> Result<(), ExportError> {
        Ok(())
    }
}

/// A server behind a proxy, which can be cut.
struct Server {
    disk: Shared,
    door: Arc<Door>,
    address: SocketAddr,
    is_open: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    stop: watch::Sender<bool>,
    worker: Option<JoinHandle<()>>,
}

impl Server {
    fn start() -> Self {
        let disk = Shared(Arc::new(Mutex::new(Disk {
            now: vec![0; SIZE],
            flushed: vec![0; SIZE],
            flushes: 0,
            flushing: 0,
            most_flushing: 0,
            written_bytes: 0,
            flush_time: Duration::from_millis(5),
            fails_flush: false,
        })));
        let door = Arc::new(
            Door::bind(DoorConfig {
                listen: vec![Listen::Tcp(ANY_PORT)],
                ..DoorConfig::default()
            })
            .unwrap(),
        );
        door.listen().unwrap();
        let (stop, stopped) = watch::channel(false);
        let worker = {
            let (door, disk) = (Arc::clone(&door), disk.clone());
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                let serve = door.run_worker(0, vec![Rc::new(disk)], stopped);
                tokio::task::LocalSet::new().block_on(&runtime, serve).unwrap();
            })
        };
        let listener = TcpListener::bind(ANY_PORT).unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            disk,
            door,
            is_open: Arc::new(AtomicBool::new(true)),
            streams: Arc::default(),
            stop,
            worker: Some(worker),
        };
        let (to, is_open) = (server.door.local_addrs()[0], Arc::clone(&server.is_open));
        let streams = Arc::clone(&server.streams);
        // Ends with the process.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let mut held = streams.lock().unwrap();
                if !is_open.load(Ordering::SeqCst) {
                    continue;
                }
                let server = TcpStream::connect(to).unwrap();
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                held.extend([client, server]);
            }
        });
        server
    }

    fn uri(&self) -> Uri {
        Uri {
            place: Place::Tcp(self.address.ip().to_string(), self.address.port()),
            export: String::new(),
        }
    }

    fn connect(&self) -> Remote {
        Remote::connect(self.uri(), PATIENCE).unwrap()
    }

    fn cut(&self) {
        self.is_open.store(false, Ordering::SeqCst);
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Cuts all connections, and undoes what was not flushed.
    fn crash(&self) {
        self.cut();
        let begun = Instant::now();
        while self.door.stats().connections().current() > 0 {
            assert!(begun.elapsed() < PATIENCE, "connections stay");
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut disk = self.disk.disk();
        disk.now = disk.flushed.clone();
        self.is_open.store(true, Ordering::SeqCst);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.cut();
        self.stop.send_replace(true);
        let ended = self.worker.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap();
            assert!(self.disk.disk().most_flushing <= 1, "one flush at a time");
        }
    }
}

fn random(state: &mut u64, below: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    (*state >> 33) as usize % below
}

/// Reads have the newest bytes, and a flush has made all of them durable, whatever the server loses between.
#[tokio::test]
async fn a_server_that_dies_loses_nothing() {
    let server = Server::start();
    let remote = server.connect();
    assert_eq!(remote.size(), SIZE as u64);
    let (mut model, mut seed) = (vec![0; SIZE], 7);
    for step in 0..600 {
        let offset = random(&mut seed, SIZE - 9_000);
        let len = 1 + random(&mut seed, 9_000);
        match random(&mut seed, 10) {
            0..4 => {
                let data = Bytes::from(vec![step as u8; len]);
                remote.write_at(offset as u64, data).await.unwrap();
                model[offset..][..len].fill(step as u8);
            }
            4 => {
                remote.zero(offset as u64, len as u64, true).await.unwrap();
                model[offset..][..len].fill(0);
            }
            5..8 => {
                let read = remote.read_at(offset as u64, len).await.unwrap();
                assert!(read == model[offset..][..len], "step {step}");
            }
            8 if step % 3 == 0 => {
                remote.flush().await.unwrap();
                assert!(server.disk.disk().flushed == model, "step {step}");
            }
            8 if step % 3 == 1 => {
                let data = Bytes::from(vec![step as u8; len]);
                let write = remote.write_at(offset as u64, data);
                let (flushed, written) = futures_util::future::join(remote.flush(), write).await;
                flushed.unwrap();
                written.unwrap();
                model[offset..][..len].fill(step as u8);
                server.crash();
            }
            _ if step % 10 == 0 => {
                // Some requests are under way.
                let parts = (0..4usize).map(|part| {
                    model[part * 5_000..][..5_000].fill(!step as u8);
                    remote.write_at(part as u64 * 5_000, Bytes::from(vec![!step as u8; 5_000]))
                });
                let parts: Vec<_> = parts.collect();
                let crash = async {
                    tokio::task::yield_now().await;
                    server.crash();
                };
                let written = futures_util::future::join(futures_util::future::join_all(parts), crash).await;
                written.0.into_iter().for_each(|written| written.unwrap());
            }
            _ => {}
        }
    }
    remote.flush().await.unwrap();
    assert!(server.disk.disk().flushed == model);
    let counts = remote.counts();
    assert!(
        counts.lost_connections > 10 && counts.resent_changes > 10,
        "{counts:?}"
    );
}

/// The client flushes by itself before it keeps too much, and sends no more than it may keep, also if the connection is lost meanwhile.
#[tokio::test]
async fn what_is_kept_is_bounded() {
    let server = Server::start();
    let remote = server.connect();
    server.disk.disk().flush_time = Duration::from_millis(300);
    let part = SIZE / 8;
    let count = 5 * KEPT_BYTES / part;
    let writes = (0..count).map(|turn| {
        let (remote, data) = (remote.clone(), Bytes::from(vec![turn as u8; part]));
        tokio::spawn(async move { remote.write_at((turn % 8 * part) as u64, data).await })
    });
    let writes: Vec<_> = writes.collect();
    let begun = Instant::now();
    while server.disk.disk().flushing == 0 {
        assert!(begun.elapsed() < PATIENCE, "no flush");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let flush = tokio::spawn({
        let remote = remote.clone();
        async move { remote.flush().await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let written = server.disk.disk().written_bytes;
    assert!(
        (KEPT_BYTES..=2 * KEPT_BYTES).contains(&written),
        "{written} bytes before a flush"
    );
    server.crash();
    server.disk.disk().flush_time = Duration::ZERO;
    for write in writes {
        write.await.unwrap().unwrap();
    }
    flush.await.unwrap().unwrap();
    let flushes = server.disk.disk().flushes;
    assert!((3..=20).contains(&flushes), "{flushes} flushes");
}

/// Once a flush has failed none succeeds, and changes wait for none.
#[tokio::test]
async fn after_a_failed_flush_none_succeeds() {
    let server = Server::start();
    let remote = server.connect();
    server.disk.disk().fails_flush = true;
    let write = async |turn: usize| {
        let data = Bytes::from(vec![turn as u8; SIZE]);
        remote.write_at(0, data).await.unwrap();
    };
    for turn in 0..2 * KEPT_BYTES / SIZE {
        write(turn).await;
    }
    server.disk.disk().fails_flush = false;
    for turn in 0..5 * KEPT_BYTES / SIZE {
        write(turn).await;
        let error = remote.flush().await.unwrap_err();
        assert_ne!(error.kind(), io::ErrorKind::NotConnected);
    }
}

/// Without a connection requests fail after a while, and a flush that failed so has lost nothing.
#[tokio::test]
async fn without_a_connection_requests_fail_in_time() {
    let server = Server::start();
    let patience = Duration::from_millis(300);
    let remote = Remote::connect(server.uri(), patience).unwrap();
    remote.write_at(5, Bytes::from_static(b"kept")).await.unwrap();
    server.cut();
    let begun = Instant::now();
    for _ in 0..2 {
        let kind = |error: io::Error| error.kind();
        assert_eq!(
            remote.read_at(0, 9).await.map_err(kind),
            Err(io::ErrorKind::NotConnected)
        );
        assert!(!remote.can_stand_in());
        assert_eq!(
            remote.flush().await.map_err(kind),
            Err(io::ErrorKind::NotConnected)
        );
    }
    assert!(remote.is_away() && begun.elapsed() < PATIENCE / 2);
    server.crash();
    let begun = Instant::now();
    while remote.flush().await.is_err() {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(&server.disk.disk().flushed[5..9], b"kept");
    assert_eq!(remote.read_at(5, 4).await.unwrap(), b"kept");
    assert!(!remote.is_away());
}

/// A server that sends anything but replies loses its connection, no more.
#[tokio::test]
async fn a_reply_to_nothing_ends_the_connection() {
    let server = Server::start();
    let listener = TcpListener::bind(ANY_PORT).unwrap();
    let address = listener.local_addr().unwrap();
    let to = server.address;
    let reply = |error: u32, cookie: u64| {
        [
            &0x6744_6698u32.to_be_bytes()[..],
            &error.to_be_bytes(),
            &cookie.to_be_bytes(),
        ]
        .concat()
    };
    // The last is of a server that shuts down.
    let lies: [Vec<u8>; 3] = [vec![7; 16], reply(0, 99), reply(108, 0)];
    std::thread::spawn(move || {
        let mut lies = lies.into_iter();
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(to).unwrap();
            let (mut from, mut back) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || io::copy(&mut from, &mut back));
            let (mut from, mut back) = (server, client);
            let lie = lies.next();
            std::thread::spawn(move || {
                if let Some(lie) = lie {
                    // Greeting and replies of the handshake are passed on.
                    let mut handshake = vec![0; 18];
                    io::Read::read_exact(&mut from, &mut handshake)?;
                    back.write_all(&handshake)?;
                    loop {
                        let mut head = [0; 20];
                        io::Read::read_exact(&mut from, &mut head)?;
                        let len = u32::from_be_bytes(head[16..].try_into().unwrap());
                        let mut data = vec![0; len as usize];
                        io::Read::read_exact(&mut from, &mut data)?;
                        back.write_all(&head)?;
                        back.write_all(&data)?;
                        if head[12..16] == 1u32.to_be_bytes() {
                            break;
                        }
                    }
                    back.write_all(&lie)?;
                    // The client ends the connection.
                    return io::Read::read_to_end(&mut from, &mut Vec::new()).map(drop);
                }
                io::copy(&mut from, &mut back).map(drop)
            });
        }
    });
    let uri = Uri {
        place: Place::Tcp(address.ip().to_string(), address.port()),
        export: String::new(),
    };
    let remote = Remote::connect(uri, PATIENCE).unwrap();
    remote.write_at(1, Bytes::from_static(b"x")).await.unwrap();
    assert_eq!(remote.read_at(0, 3).await.unwrap(), b"\0x\0");
}

#[test]
fn servers_that_are_not_there_or_refuse_are_named() {
    let server = Server::start();
    let mut uri = server.uri();
    uri.export = "other".to_owned();
    let refused = Remote::connect(uri.clone(), PATIENCE).err().unwrap();
    assert!(matches!(refused, HandshakeError::Refused(..)), "{refused}");
    uri.place = Place::Unix("/no/such".into());
    let absent = Remote::connect(uri, PATIENCE).err().unwrap();
    assert!(matches!(absent, HandshakeError::Io(_)), "{absent}");
}
