//! The access log: a line for each answered request, in a file. Who answers never waits for the file: lines gather in a buffer, which a
//! thread writes; what the buffer cannot hold is dropped and counted.
//!
//! A line has the request line, referrer and agent of the client, and none of its other fields: no `Authorization`, no `Cookie`. In URLs the
//! values of query fields that a rule hides are `***`.
//!
//! Before each write the thread looks whether the path still names its file, and opens it anew if not: a log is rotated by moving it away.

use crate::syntax::format_date;
use http::Version;
use locks::{Condvar, Mutex};
use pumice_net::Seldom;
use serde::Serialize;
use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes of lines that may wait; as many again are being written.
const BUFFER_BYTES: usize = 1 << 20;

/// How long lines gather before they are written together.
const GATHER: Duration = Duration::from_millis(10);

/// How long the end waits for the file.
const LAST_WRITE: Duration = Duration::from_secs(1);

/// What stands for a hidden value.
const HIDDEN: &[u8] = b"***";

/// Where the log is.
#[derive(Clone, Debug)]
pub struct AccessLogConfig {
    /// Its file, made if it is missing, else continued.
    pub path: PathBuf,
    /// How a line is written.
    pub format: AccessLogFormat,
}

/// How a line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// As nginx's `combined`, then what the cache did, in quotes, and how many seconds it took.
    Combined,
    /// A JSON object.
    Json,
}

/// A format that is none.
#[derive(Debug, thiserror::Error)]
#[error("expected combined or json")]
pub struct BadFormat;

impl FromStr for AccessLogFormat {
    type Err = BadFormat;

    fn from_str(name: &str) -> Result<Self, BadFormat> {
        match name {
            "combined" => Ok(Self::Combined),
            "json" => Ok(Self::Json),
            _ => Err(BadFormat),
        }
    }
}

/// An answered request.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// `None` over a unix socket.
    pub client: Option<IpAddr>,
    /// When it came.
    pub time: SystemTime,
    /// From its head to the answer's last byte.
    pub duration: Duration,
    /// Its method.
    pub method: &'a str,
    /// The host that it is for.
    pub host: &'a str,
    /// Path and query, as they came.
    pub target: &'a str,
    /// Of the request.
    pub version: Version,
    /// Of the answer.
    pub status: u16,
    /// Of the answer's body, sent.
    pub bytes: u64,
    /// As it came.
    pub referer: Option<&'a [u8]>,
    /// As it came.
    pub user_agent: Option<&'a [u8]>,
    /// What the cache did.
    pub cache: &'a str,
}

/// The log, shared by all threads.
pub struct AccessLog {
    shared: Arc<Shared>,
    format: AccessLogFormat,
    hidden: Vec<String>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    dropped: Arc<AtomicU64>,
}

#[derive(Default)]
struct Queue {
    lines: Vec<u8>,
    is_closing: bool,
    /// The thread has written all, and ended.
    is_over: bool,
}

impl AccessLog {
    /// Opens the file. Query fields named in `hidden` keep their names alone.
    ///
    /// # Errors
    ///
    /// That of the system, with the path.
    pub fn open(config: &AccessLogConfig, hidden: Vec<String>) -> io::Result<Self> {
        let path = config.path.clone();
        let named = |error: io::Error| {
            io::Error::new(
                error.kind(),
                format!("access log {}: {error}", config.path.display()),
            )
        };
        let mut sink = Sink {
            path,
            file: None,
            is_torn: false,
        };
        sink.file().map_err(named)?;
        let shared = Arc::<Shared>::default();
        let its = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("access-log".to_owned());
        thread.spawn(move || its.run(sink)).map_err(named)?;
        Ok(Self {
            shared,
            format: config.format,
            hidden,
        })
    }

    /// Adds a line, or counts it as dropped.
    pub fn write(&self, entry: &Entry<'_>) {
        let line = match self.format {
            AccessLogFormat::Combined => self.combined(entry),
            AccessLogFormat::Json => self.json(entry),
        };
        let mut queue = self.shared.queue.lock();
        if queue.lines.len() + line.len() > BUFFER_BYTES {
            drop(queue);
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let is_first = queue.lines.is_empty();
        queue.lines.extend(line);
        drop(queue);
        if is_first {
            self.shared.changed.notify_all();
        }
    }

    /// Lines that were not written: the file took none, or not as many as came.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// What counts them.
    pub(crate) fn dropped_cell(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.shared.dropped)
    }

    fn combined(&self, entry: &Entry<'_>) -> Vec<u8> {
        // Day, month, year and time of `Sun, 06 Nov 1994 08:49:37 GMT`.
        let date = format_date(secs(entry.time));
        let (day, month, year, time) = (&date[5..7], &date[8..11], &date[12..16], &date[17..25]);
        let mut line = format!(
            "{} - - [{day}/{month}/{year}:{time} +0000] \"",
            client(entry.client)
        )
        .into_bytes();
        escape(&mut line, entry.method.as_bytes());
        line.push(b' ');
        escape(&mut line, &self.hide(entry.target.as_bytes()));
        line.extend(format!(" {:?}\" {} {}", entry.version, entry.status, entry.bytes).into_bytes());
        for text in [entry.referer, entry.user_agent, Some(entry.cache.as_bytes())] {
            line.extend(b" \"");
            escape(&mut line, &self.hide(text.unwrap_or(b"-")));
            line.push(b'"');
        }
        line.extend(format!(" {:.6}\n", entry.duration.as_secs_f64()).into_bytes());
        line
    }

    fn json(&self, entry: &Entry<'_>) -> Vec<u8> {
        #[derive(Serialize)]
        struct Line<'a> {
            time: String,
            client: String,
            method: &'a str,
            host: &'a str,
            target: &'a str,
            version: String,
            status: u16,
            bytes: u64,
            #[serde(skip_serializing_if = "Option::is_none")]
            referer: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            user_agent: Option<&'a str>,
            cache: &'a str,
            seconds: f64,
        }
        let date = format_date(secs(entry.time));
        let month = 1 + "JanFebMarAprMayJunJulAugSepOctNovDec"
            .find(&date[8..11])
            .unwrap_or(0)
            / 3;
        let millis = entry
            .time
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .subsec_millis();
        let (target, referer) = (
            self.hide(entry.target.as_bytes()),
            entry.referer.map(|text| self.hide(text)),
        );
        let referer = referer.as_deref().map(String::from_utf8_lossy);
        let user_agent = entry.user_agent.map(String::from_utf8_lossy);
        let mut line = serde_json::to_vec(&Line {
            time: format!(
                "{}-{month:02}-{}T{}.{millis:03}Z",
                &date[12..16],
                &date[5..7],
                &date[17..25]
            ),
            client: client(entry.client),
            method: entry.method,
            host: entry.host,
            target: &String::from_utf8_lossy(&target),
            version: format!("{:?}", entry.version),
            status: entry.status,
            bytes: entry.bytes,
            referer: referer.as_deref(),
            user_agent: user_agent.as_deref(),
            cache: entry.cache,
            seconds: entry.duration.as_micros() as f64 / 1e6,
        })
        .unwrap_or_default();
        line.push(b'\n');
        line
    }

    /// The URL without the values of hidden query fields.
    fn hide<'t>(&self, url: &'t [u8]) -> Cow<'t, [u8]> {
        let Some(at) = url
            .iter()
            .position(|byte| *byte == b'?')
            .filter(|_| !self.hidden.is_empty())
        else {
            return Cow::Borrowed(url);
        };
        let mut shown = url[..=at].to_vec();
        for field in url[at + 1..].split_inclusive(|byte| matches!(byte, b'&' | b';')) {
            let name = field
                .split(|byte| matches!(byte, b'=' | b'&' | b';'))
                .next()
                .unwrap_or_default();
            let decoded = decode(name);
            if self.hidden.iter().any(|hidden| hidden.as_bytes() == decoded) {
                shown.extend(name);
                shown.push(b'=');
                shown.extend(HIDDEN);
                shown.extend(field.last().filter(|byte| matches!(byte, b'&' | b';')));
            } else {
                shown.extend(field);
            }
        }
        Cow::Owned(shown)
    }
}

impl Drop for AccessLog {
    /// Waits until all lines are written, unless that takes too long.
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.is_closing = true;
        self.shared.changed.notify_all();
        self.shared
            .changed
            .wait_while_for(&mut queue, |queue| !queue.is_over, LAST_WRITE);
    }
}

impl Shared {
    fn run(&self, mut sink: Sink) {
        let said = Seldom::default();
        let mut lines = Vec::new();
        loop {
            lines.clear();
            let mut queue = self.queue.lock();
            self.changed
                .wait_while(&mut queue, |queue| queue.lines.is_empty() && !queue.is_closing);
            if !queue.is_closing {
                self.changed
                    .wait_while_for(&mut queue, |queue| !queue.is_closing, GATHER);
            }
            std::mem::swap(&mut queue.lines, &mut lines);
            drop(queue);
            if let Err((error, written)) = sink.append(&lines) {
                let lost = lines[written..].iter().filter(|byte| **byte == b'\n').count();
                self.dropped.fetch_add(lost as u64, Ordering::Relaxed);
                if said.is_due() {
                    let path = sink.path.display();
                    tracing::warn!(%path, %error, lost, "the access log cannot be written; said once a minute");
                }
            }
            let mut queue = self.queue.lock();
            if queue.is_closing && queue.lines.is_empty() {
                queue.is_over = true;
                self.changed.notify_all();
                return;
            }
        }
    }
}

/// The file.
struct Sink {
    path: PathBuf,
    file: Option<File>,
    /// It ends within a line.
    is_torn: bool,
}

impl Sink {
    /// The file that the path names, opened if need be.
    fn file(&mut self) -> io::Result<&mut File> {
        let same = |file: &File| {
            let (here, there) = (file.metadata().ok()?, self.path.metadata().ok()?);
            Some((here.dev(), here.ino()) == (there.dev(), there.ino()))
        };
        if self.file.as_ref().and_then(same) != Some(true) {
            self.file = None;
            let file = OpenOptions::new()
                .append(true)
                .create(true)
                .mode(0o640)
                .open(&self.path)?;
            self.is_torn &= file.metadata()?.len() > 0;
            self.file = Some(file);
        }
        Ok(self.file.as_mut().expect("it is open"))
    }

    /// Writes lines; an error says how many bytes of them came before.
    fn append(&mut self, lines: &[u8]) -> Result<(), (io::Error, usize)> {
        let mut written = 0;
        let mut append = || -> io::Result<()> {
            self.file()?;
            let file = self.file.as_mut().expect("it is open");
            if self.is_torn {
                file.write_all(b"\n")?;
                self.is_torn = false;
            }
            while written < lines.len() {
                match file.write(&lines[written..]) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(bytes) => written += bytes,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        };
        let appended = append();
        if let Some(last) = lines[..written].last() {
            self.is_torn = *last != b'\n';
        }
        appended.map_err(|error| (error, written))
    }
}

fn secs(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn client(address: Option<IpAddr>) -> String {
    address.map_or_else(|| "unix:".to_owned(), |address| address.to_string())
}

/// As nginx does: what could end a quoted text or a line, and all that is not ASCII, as `\xHH`.
fn escape(line: &mut Vec<u8>, text: &[u8]) {
    for &byte in text {
        match byte {
            b'"' | b'\\' | 0..b' ' | 0x7f.. => line.extend(format!("\\x{byte:02X}").into_bytes()),
            _ => line.push(byte),
        }
    }
}

/// The bytes that a name in a query stands for.
fn decode(name: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(name.len());
    let mut rest = name;
    while let [first, behind @ ..] = rest {
        let hex = behind
            .get(..2)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let coded = hex
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .filter(|_| *first == b'%');
        decoded.push(coded.unwrap_or(*first));
        rest = if coded.is_some() { &behind[2..] } else { behind };
    }
    decoded
}
