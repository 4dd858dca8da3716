//! Volumes over NBD: the real program on real files, and a client that writes and reads every byte itself.

use crate::common::{message, place};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

struct Server {
    child: Child,
    directory: std::path::PathBuf,
    said: Vec<String>,
}

/// What the program says with these flags, as far as to its readiness or its end.
fn start(directory: &Path, flags: &str) -> Result<Server, String> {
    let stderr = directory.join("stderr");
    let mut child = Command::new(env!("CARGO_BIN_EXE_pumice"))
        .args(
            "serve --threads 2 --dram 96MiB --admin 127.0.0.1:0 --nbd unix:socket --backing disk".split(' '),
        )
        .args(flags.split_whitespace())
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&stderr).unwrap())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    loop {
        let status = child.try_wait().unwrap();
        let text = std::fs::read_to_string(&stderr).unwrap();
        if status.is_some() {
            return Err(text);
        }
        let said: Vec<String> = text.lines().map(|line| message(line).to_owned()).collect();
        if text.ends_with('\n') && said.iter().any(|line| line.starts_with("ready: ")) {
            return Ok(Server {
                child,
                directory: directory.to_owned(),
                said,
            });
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{text}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Server {
    fn has_said(&self, words: &str) -> bool {
        self.said.iter().any(|line| line.contains(words))
    }

    /// The answer of the admin door.
    fn admin(&self, path: &str) -> String {
        let ready = self.said.iter().find(|line| line.starts_with("ready: ")).unwrap();
        let address = ready.rsplit("admin on ").next().unwrap();
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    fn client(&self) -> Client {
        let mut socket = UnixStream::connect(self.directory.join("socket")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.read_exact(&mut [0; 18]).unwrap();
        // No zeroes; then the export by its name.
        socket
            .write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x04disk")
            .unwrap();
        socket.read_exact(&mut [0; 10]).unwrap();
        Client(socket)
    }

    fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that speaks simple replies.
struct Client(UnixStream);

impl Client {
    /// Sends a request with its data; returns the error, and what was read.
    fn ask(&mut self, kind: u8, flags: u8, offset: u64, length: u32, data: &[u8]) -> (u32, Vec<u8>) {
        let mut request = vec![0x25, 0x60, 0x95, 0x13, 0, flags, 0, kind, 0, 0, 0, 0, 0, 0, 0, 9];
        request.extend_from_slice(&offset.to_be_bytes());
        request.extend_from_slice(&length.to_be_bytes());
        request.extend_from_slice(data);
        self.0.write_all(&request).unwrap();
        let mut head = [0; 16];
        self.0.read_exact(&mut head).unwrap();
        let error = u32::from_be_bytes(head[4..8].try_into().unwrap());
        let mut read = vec![
            0;
            if kind == 0 && error == 0 {
                length as usize
            } else {
                0
            }
        ];
        self.0.read_exact(&mut read).unwrap();
        (error, read)
    }

    fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        let (error, read) = self.ask(0, 0, offset, length, b"");
        assert_eq!(error, 0);
        read
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> u32 {
        self.ask(1, 0, offset, u32::try_from(data.len()).unwrap(), data).0
    }
}

fn disk(directory: &Path, bytes: u64) {
    let file = std::fs::File::create(directory.join("disk")).unwrap();
    file.set_len(bytes).unwrap();
}

const CACHE: &str = "--cache cache --cache-size 16MiB";

/// Bytes that differ from chunk to chunk.
fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at / 4096 * 7 + at % 251) as u8 ^ seed)
        .collect()
}

#[test]
fn what_was_written_is_there_after_a_kill_and_in_the_backing_file() {
    let place = place();
    let directory = place.path();
    disk(directory, 8 * MIB + 513);
    let server = start(directory, CACHE).unwrap_or_else(|said| panic!("{said}"));
    assert!(server.has_said("a new cache"));
    let mut client = server.client();
    let mut expected = vec![0; (8 * MIB + 513) as usize];
    for (offset, length) in [(511, 513), (MIB, 3 << 20), (8 * MIB + 5, 508), (MIB + 7, 1)] {
        let data = pattern(offset as u8, length);
        assert_eq!(client.write(offset, &data), 0);
        expected[offset as usize..offset as usize + length].copy_from_slice(&data);
    }
    // TRIM, and FLUSH.
    assert_eq!(client.ask(4, 0, 2 * MIB, 8192, b"").0, 0);
    expected[2 << 20..(2 << 20) + 8192].fill(0);
    assert_eq!(client.ask(3, 0, 0, 0, b"").0, 0);
    let whole = u32::try_from(expected.len()).unwrap();
    assert!(client.read(0, whole) == expected);
    let metrics = server.admin("/metrics");
    for line in [
        "pumice_nbd_trims_total{volume=\"disk\"} 1",
        "pumice_nbd_writes_total{volume=\"disk\"} 4",
        "pumice_volume_backing_flushes_total{volume=\"disk\"} 1",
        "pumice_chunk_failed{volume=\"disk\"} 0",
        "pumice_nbd_connections 1",
        "pumice_nbd_latency_seconds_count{operation=\"write\",volume=\"disk\"} 4",
        "pumice_blocks_log_failures_total{volume=\"disk\"} 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    assert!(
        server
            .admin("/stats")
            .contains("\"volumes\":{\"disk\":{\"nbd\":{\"sessions\":1,")
    );
    assert!(server.admin("/books").starts_with("HTTP/1.1 200"));
    assert!(server.admin("/readyz").starts_with("HTTP/1.1 200"));
    server.kill();
    assert!(std::fs::read(directory.join("disk")).unwrap() == expected);

    let server = start(directory, CACHE).unwrap_or_else(|said| panic!("{said}"));
    assert!(server.has_said("the cache that was there"), "{:?}", server.said);
    let mut client = server.client();
    assert!(client.read(0, whole) == expected);
    // Whoever changed the file beside the cache would not be seen: the cache answers.
    server.stop();
    let server = start(directory, CACHE).unwrap_or_else(|said| panic!("{said}"));
    assert!(server.has_said("the cache that was there"), "{:?}", server.said);
    assert!(server.client().read(0, whole) == expected);
    server.stop();
    // Changed while it was not served.
    expected[100..104].copy_from_slice(b"else");
    std::fs::write(directory.join("disk"), &expected).unwrap();
    let server = start(directory, CACHE).unwrap_or_else(|said| panic!("{said}"));
    assert!(server.has_said("forgotten"), "{:?}", server.said);
    assert!(server.client().read(0, whole) == expected);
}

#[test]
fn a_mode_is_changed_by_a_restart() {
    let place = place();
    let directory = place.path();
    disk(directory, 4 * MIB);
    let started = |mode: &str| {
        let flags = format!("{CACHE} --mode {mode}");
        start(directory, &flags).unwrap_or_else(|said| panic!("{said}"))
    };
    let server = started("write-through");
    assert_eq!(server.client().write(0, &pattern(1, 1 << 20)), 0);
    server.stop();
    let server = started("read-only");
    let mut client = server.client();
    assert!(client.read(0, 1 << 20) == pattern(1, 1 << 20));
    for (kind, data) in [(1, &b"data"[..]), (4, b""), (6, b"")] {
        assert_eq!(client.ask(kind, 0, 0, 4, data).0, 1, "EPERM");
    }
    server.stop();
    let server = started("pass-through");
    assert_eq!(server.client().write(5, b"passed through"), 0);
    server.kill();
    let server = started("write-around");
    assert!(server.has_said("forgotten"), "{:?}", server.said);
    let mut client = server.client();
    assert_eq!(client.read(5, 14), b"passed through");
    assert_eq!(client.write(7, b"around"), 0);
    assert_eq!(client.read(5, 14), b"paaroundhrough");
}

#[test]
fn what_would_cost_data_is_refused_with_advice() {
    let place = place();
    let directory = place.path();
    disk(directory, 4 * MIB);
    std::fs::hard_link(directory.join("disk"), directory.join("link")).unwrap();
    std::fs::write(directory.join("foreign"), vec![7; 16 << 20]).unwrap();
    let refused = |flags: &str, words: &str| {
        let said = start(directory, flags).err().expect("refused");
        assert!(said.contains(words), "{flags}: {said}");
    };
    refused("--cache link --cache-size 16MiB", "would overwrite it");
    refused("--cache foreign", "not");
    refused("--cache nosuch", "--cache-size");
    refused("--cache cache --cache-size 64KiB", "cache of disk");
    refused("--cache cache --cache-size 1GiB --dram 24MiB", "--dram");
    assert!(!directory.join("cache").exists());
    assert_eq!(
        std::fs::read(directory.join("foreign")).unwrap(),
        vec![7; 16 << 20]
    );
    let _server = start(directory, CACHE).unwrap_or_else(|said| panic!("{said}"));
    refused(
        "--nbd unix:other --cache second --cache-size 16MiB",
        "(pumice) serves it",
    );
    assert!(!directory.join("second").exists());
}

#[test]
fn reformat_makes_an_empty_cache_of_another_shape() {
    let place = place();
    let directory = place.path();
    disk(directory, 4 * MIB);
    let server = start(directory, CACHE).unwrap_or_else(|said| panic!("{said}"));
    assert_eq!(server.client().write(0, b"data"), 0);
    server.stop();
    let other = format!("{CACHE} --chunk-size 8KiB");
    let said = start(directory, &other).err().expect("refused");
    assert!(said.contains("--reformat"), "{said}");
    let server = start(directory, &format!("{other} --reformat")).unwrap_or_else(|said| panic!("{said}"));
    assert!(server.has_said("a new cache") && server.has_said("chunks of 8 KiB"));
    assert_eq!(server.client().read(0, 4), b"data");
}

#[test]
fn a_cache_that_was_cut_short_is_refused_and_left_alone() {
    let place = place();
    let directory = place.path();
    disk(directory, 4 * MIB);
    let server = start(directory, CACHE).unwrap_or_else(|said| panic!("{said}"));
    assert_eq!(server.client().write(0, b"data"), 0);
    server.stop();
    let cache = std::fs::File::options().write(true).open(directory.join("cache"));
    let cache = cache.unwrap();
    cache.set_len(10 * MIB).unwrap();
    for flags in [CACHE, "--cache cache", "--cache cache --cache-size 10MiB"] {
        let said = start(directory, flags).err().expect("refused");
        assert!(said.contains("cut short"), "{flags}: {said}");
    }
    assert_eq!(cache.metadata().unwrap().len(), 10 * MIB);
    let server = start(directory, &format!("{CACHE} --reformat")).unwrap_or_else(|said| panic!("{said}"));
    assert!(server.has_said("a new cache"));
}
