//! A server of the real program on a real file, and a client of it.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// Settings that are the same for all: small blocks, so that little is much.
const FLAGS: &str = "--memcached 127.0.0.1:0 --admin 127.0.0.1:0 --threads 1 --dram 96MiB --flash-size 16MiB --block-size 64KiB \
                     --layout fifo --index full --flash c.flash";

/// A directory for a cache and what it says.
pub fn place() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Runs the program with the words of a line.
pub fn pumice(directory: &Path, line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pumice"))
        .args(line.split_whitespace())
        .current_dir(directory)
        .output()
        .expect("the program was built with this test")
}

/// What a line that succeeds prints.
pub fn said(directory: &Path, line: &str) -> String {
    let output = pumice(directory, line);
    assert_eq!(output.status.code(), Some(0), "{line}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// What the program has printed.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("it prints text")
}

/// A line of the log without its time stamp and level.
pub fn message(line: &str) -> &str {
    let after_time = line.split_once(' ').map_or(line, |(_, rest)| rest.trim_start());
    after_time
        .split_once(' ')
        .map_or(after_time, |(_, message)| message)
}

/// A server that is ready. It is killed where a test ends before it is stopped.
pub struct Server {
    child: Child,
    _stdin: Option<ChildStdin>,
    stderr: std::path::PathBuf,
    pub said: Vec<String>,
    memcached: String,
    admin: String,
}

/// Why a server did not become ready.
#[derive(Debug)]
pub struct Refused {
    pub status: ExitStatus,
    pub stderr: String,
}

impl Server {
    /// Starts a server in `directory`, with the flags that all have less `without` and with `more`.
    pub fn start_with(directory: &Path, without: &[&str], more: &str) -> Result<Self, Refused> {
        let flags: Vec<&str> = FLAGS.split_whitespace().collect();
        let flags = flags
            .chunks(2)
            .filter(|pair| !without.contains(&pair[0]))
            .flatten();
        let stderr = directory.join("stderr");
        let mut child = Command::new(env!("CARGO_BIN_EXE_pumice"))
            .arg("serve")
            .args(flags)
            .args(more.split_whitespace())
            // What tests know is no setting.
            .env_remove("PUMICE_RUNS")
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&stderr).unwrap())
            .spawn()
            .expect("the program was built with this test");
        let said = loop {
            let status = child.try_wait().unwrap();
            let text = std::fs::read_to_string(&stderr).unwrap();
            let whole = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
            let mut lines: Vec<String> = whole.lines().map(|line| message(line).to_owned()).collect();
            if let Some(at) = lines.iter().position(|line| line.starts_with("ready: ")) {
                lines.truncate(at + 1);
                break lines;
            }
            if let Some(status) = status {
                return Err(Refused { status, stderr: text });
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        let ready = said.last().and_then(|line| line.strip_prefix("ready: "));
        let ready = ready.expect("it is the last line");
        let address = |door: &str| {
            let after = ready.split(", ").find_map(|place| place.strip_prefix(door));
            after.expect("it is served").to_owned()
        };
        Ok(Self {
            memcached: address("memcached on "),
            admin: address("admin on "),
            _stdin: child.stdin.take(),
            stderr,
            child,
            said,
        })
    }

    pub fn start(directory: &Path) -> Self {
        Self::start_with(directory, &[], "").unwrap_or_else(|refused| panic!("{refused:?}"))
    }

    pub fn client(&self) -> Client {
        let stream = TcpStream::connect(&self.memcached).unwrap();
        stream.set_nodelay(true).unwrap();
        Client(BufReader::new(stream))
    }

    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// What it has said on stderr so far.
    pub fn stderr(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap()
    }

    /// The answer of the admin door: status and body.
    pub fn admin(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.admin).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let status = reply.split(' ').nth(1).unwrap().parse().unwrap();
        (status, reply.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    /// One of the metrics.
    pub fn figure(&self, name: &str) -> u64 {
        let (_, metrics) = self.admin("/metrics");
        let mut lines = metrics.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in {metrics}"))
    }

    /// Waits until all that was set before is written, with a flush interval of a second: that, a second between two looks, and one more.
    pub fn wait_until_written(&self) {
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(3) || self.figure("pumice_flash_unwritten_seconds") > 0 {
            assert!(
                since.elapsed() < Duration::from_secs(60),
                "something is never written"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A clean stop; its status.
    pub fn stop(self) -> ExitStatus {
        self.stop_and_hear().0
    }

    /// A clean stop; its status, and all that the server has said.
    pub fn stop_and_hear(mut self) -> (ExitStatus, String) {
        rustix::process::kill_process(self.pid(), rustix::process::Signal::TERM).unwrap();
        let status = self.wait();
        (status, self.stderr())
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Whether the line on what was found at the start has these words.
    pub fn recovered(&self, words: &str) -> bool {
        let mut lines = self.said.iter();
        lines.any(|line| line.starts_with("recovered: ") && line.contains(words))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection to memcached's port.
pub struct Client(BufReader<TcpStream>);

impl Client {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub fn ask(&mut self, command: &str) -> String {
        self.0
            .get_mut()
            .write_all(format!("{command}\r\n").as_bytes())
            .unwrap();
        self.line()
    }

    pub fn set(&mut self, key: &str, value: &[u8]) {
        let mut command = format!("set {key} 0 0 {}\r\n", value.len()).into_bytes();
        command.extend_from_slice(value);
        command.extend_from_slice(b"\r\n");
        self.0.get_mut().write_all(&command).unwrap();
        assert_eq!(self.line(), "STORED", "{key}");
    }

    pub fn delete(&mut self, key: &str) -> bool {
        self.ask(&format!("delete {key}")) == "DELETED"
    }

    pub fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        let head = self.ask(&format!("get {key}"));
        if head == "END" {
            return None;
        }
        let len: usize = head.rsplit(' ').next().unwrap().parse().unwrap();
        let mut value = vec![0; len + 2];
        self.0.read_exact(&mut value).unwrap();
        value.truncate(len);
        assert_eq!(self.line(), "END");
        Some(value)
    }

    /// Of many keys those that are there, with their values.
    pub fn get_many(&mut self, keys: &[String]) -> Vec<(String, Vec<u8>)> {
        let mut found = Vec::new();
        let mut head = self.ask(&format!("get {}", keys.join(" ")));
        while head != "END" {
            let mut words = head.split(' ');
            let key = words.nth(1).unwrap().to_owned();
            let len: usize = words.next_back().unwrap().parse().unwrap();
            let mut value = vec![0; len + 2];
            self.0.read_exact(&mut value).unwrap();
            value.truncate(len);
            found.push((key, value));
            head = self.line();
        }
        found
    }

    /// One of memcached's statistics.
    pub fn stat(&mut self, name: &str) -> String {
        let mut found = None;
        let mut line = self.ask("stats");
        while line != "END" {
            found = found.or_else(|| Some(line.strip_prefix("STAT ")?.strip_prefix(name)?.trim().to_owned()));
            line = self.line();
        }
        found.unwrap_or_else(|| panic!("there is no {name}"))
    }
}

/// A value that no other key has.
pub fn value(key: u32, generation: u32) -> Vec<u8> {
    format!("<{key}:{generation}>").repeat(400).into_bytes()
}

pub fn name(key: u32) -> String {
    format!("key-{key}")
}
