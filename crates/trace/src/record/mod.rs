//! A trace of what a running server is asked for, as it tells that in lines.

mod memcached;
mod pumice;

use crate::{Op, Recorder, Request, TraceError};
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long an address may take to be connected to, and to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How often the time is looked at while nothing comes.
const LOOK: Duration = Duration::from_millis(100);
/// Longest line.
const LINE_BYTES_MAX: usize = 16 * 1024;
/// Longest line of an answer that an error shows.
const ANSWER_BYTES_MAX: usize = 200;

/// Why nothing could be recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// What was given as an address is none.
    #[error("{0}")]
    Address(String),
    /// The server cannot be reached, or does not tell what it is asked for.
    #[error("{0}")]
    Server(String),
    /// The trace cannot be written.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl RecordError {
    /// Whether the recording was asked for in a way that cannot be.
    pub fn is_usage(&self) -> bool {
        match self {
            RecordError::Address(_) => true,
            RecordError::Server(_) => false,
            RecordError::Trace(error) => error.is_usage(),
        }
    }
}

fn server(what: String) -> RecordError {
    RecordError::Server(what)
}

/// A server that has agreed to tell what it is asked for.
pub struct Told {
    address: String,
    lines: Lines,
    by: By,
    one_in: u64,
}

enum By {
    Memcached,
    Pumice,
}

impl Told {
    /// Asks a memcached; `flag` has its address. One key in `one_in` is recorded.
    ///
    /// # Errors
    /// It cannot be reached, or is no memcached that tells its requests.
    pub fn by_memcached(flag: &str, address: &str, one_in: u64) -> Result<Self, RecordError> {
        let lines = memcached::watch(flag, address)?;
        let (address, by) = (address.to_owned(), By::Memcached);
        Ok(Self {
            address,
            lines,
            by,
            one_in,
        })
    }

    /// Asks a Pumice at its admin door, of which `flag` has the address; what it tells has to begin with the line `head`.
    ///
    /// # Errors
    /// It cannot be reached, or is no Pumice that tells its requests so.
    pub fn by_pumice(flag: &str, address: &str, one_in: u64, head: &str) -> Result<Self, RecordError> {
        let lines = pumice::ask(flag, address, one_in, head)?;
        let (address, by) = (address.to_owned(), By::Pumice);
        Ok(Self {
            address,
            lines,
            by,
            one_in,
        })
    }

    /// Writes what it tells to the file `out`, which must not be there, for some seconds or until `stop` is true. Returns lines for people.
    ///
    /// # Errors
    /// The file, a server that speaks something else, and that nothing was asked for.
    pub fn record(self, out: &Path, seconds: u64, stop: &AtomicBool) -> Result<String, RecordError> {
        match self.by {
            By::Memcached => {
                let teller = memcached::Memcached::new(self.one_in);
                self.listen(teller, out, seconds, stop)
            }
            By::Pumice => self.listen(pumice::Pumice, out, seconds, stop),
        }
    }

    fn listen<T: Teller>(
        self,
        mut teller: T,
        out: &Path,
        seconds: u64,
        stop: &AtomicBool,
    ) -> Result<String, RecordError> {
        let address = &self.address;
        let mut lines = self.lines.lines;
        let mut book = Book::new(Recorder::create(out)?);
        let look = lines.get_ref().set_read_timeout(Some(LOOK));
        look.map_err(|error| server(error.to_string()))?;
        let mut heard = Instant::now();
        let deadline = Instant::now() + Duration::from_secs(seconds);
        let mut line = Vec::new();
        let mut ended = String::new();
        while Instant::now() < deadline {
            if stop.load(Ordering::Relaxed) {
                ended = ": ended by a signal".to_owned();
                break;
            }
            let read = match lines.fill_buf() {
                Ok([]) => {
                    ended = format!(": {} closed the connection", T::NAME);
                    break;
                }
                Ok(read) => read,
                Err(error) if is_silence(&error) => {
                    if T::SILENCE.is_some_and(|most| heard.elapsed() > most) {
                        ended = format!(": {} said nothing for {} s", T::NAME, heard.elapsed().as_secs());
                        break;
                    }
                    continue;
                }
                Err(error) => {
                    ended = format!(": the connection ended: {error}");
                    break;
                }
            };
            heard = Instant::now();
            let end = read.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(read.len(), |end| end + 1);
            line.extend_from_slice(&read[..taken]);
            lines.consume(taken);
            if line.len() > LINE_BYTES_MAX {
                return Err(server(format!(
                    "{address}: a line of more than {LINE_BYTES_MAX} bytes: that is no {}",
                    T::NAME
                )));
            }
            if end.is_some() {
                book.hear(&String::from_utf8_lossy(&line), &mut teller)?;
                line.clear();
            }
        }
        let gaps = teller.end(&mut book)?;
        book.finish(address, T::NAME, gaps, self.one_in > 1, &ended)
    }
}

/// What the lines of a kind of server say.
trait Teller {
    /// Its name.
    const NAME: &str;

    /// After how long without a byte it is taken to be gone, if it always says something.
    const SILENCE: Option<Duration>;

    /// Reads a line, and notes the requests that are certain by now. False if the line makes no sense.
    fn hear(&mut self, line: &str, book: &mut Book) -> Result<bool, TraceError>;

    /// Notes the requests that wait for others; returns how many are known not to have been told.
    fn end(&mut self, book: &mut Book) -> Result<u64, TraceError>;
}

fn is_silence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// The lines of an address, of which the first ones have to come until some time.
struct Lines {
    lines: BufReader<TcpStream>,
    until: Instant,
}

impl Lines {
    /// Connects to the address of `flag`, of which there is an example, and asks.
    fn ask(flag: &str, example: &str, address: &str, question: &str) -> Result<Self, RecordError> {
        let until = Instant::now() + ANSWER;
        let resolved = address.to_socket_addrs().map_err(|error| {
            RecordError::Address(format!(
                "{flag} `{address}`: {error}; expected an address such as {example}"
            ))
        })?;
        let mut last = None;
        let connected = resolved.into_iter().find_map(|address| {
            TcpStream::connect_timeout(&address, left(until).unwrap_or(LOOK))
                .map_err(|error| last = Some(error))
                .ok()
        });
        let mut stream = connected.ok_or_else(|| match last {
            Some(error) => server(format!("{address}: cannot connect: {error}")),
            None => server(format!("{address}: the name has no address")),
        })?;
        let limited = stream.set_write_timeout(Some(ANSWER));
        let asked = limited.and_then(|()| stream.write_all(question.as_bytes()));
        asked.map_err(|error| server(format!("{address}: asking for its requests: {error}")))?;
        let lines = BufReader::with_capacity(1 << 20, stream);
        Ok(Self { lines, until })
    }

    /// A line of an answer, without its end; none where the connection is closed.
    fn answer(&mut self) -> io::Result<Option<String>> {
        let mut line = Vec::new();
        while line.len() < ANSWER_BYTES_MAX && line.last() != Some(&b'\n') {
            let late = || io::Error::new(ErrorKind::TimedOut, "it takes too long");
            let left = left(self.until).ok_or_else(late)?;
            self.lines.get_ref().set_read_timeout(Some(left))?;
            // By bytes: there are few, and what follows the line stays.
            match self.lines.fill_buf() {
                Ok([]) => break,
                Ok([byte, ..]) => line.push(*byte),
                Err(error) if is_silence(&error) => continue,
                Err(error) => return Err(error),
            }
            self.lines.consume(1);
        }
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        Ok((!line.is_empty()).then_some(text))
    }
}

/// The time until then, if there is any.
fn left(until: Instant) -> Option<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left)
}

/// A recording, and what is to be said of it.
struct Book {
    recorder: Recorder,
    heard: Heard,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Heard {
    gets: u64,
    sets: u64,
    touches: u64,
    deletes: u64,
    /// Requests of keys that are not in the sample.
    others: u64,
    /// What the server says that it has left out.
    skipped: u64,
    /// Lines that make no sense.
    unknown: u64,
}

impl Book {
    fn new(recorder: Recorder) -> Self {
        Self {
            recorder,
            heard: Heard::default(),
        }
    }

    fn hear(&mut self, line: &str, teller: &mut impl Teller) -> Result<(), TraceError> {
        let line = line.trim_end();
        if let Some(skipped) = line.strip_prefix("skipped=") {
            let skipped = skipped.parse().unwrap_or(1);
            self.heard.skipped = self.heard.skipped.saturating_add(skipped);
        } else if !teller.hear(line, self)? {
            self.heard.unknown += 1;
        }
        Ok(())
    }

    /// Writes a request, and counts it as what it is in the trace.
    fn write(&mut self, request: &Request, ttl: Option<u64>) -> Result<(), TraceError> {
        match request.op {
            Op::Get => self.heard.gets += 1,
            Op::Set => self.heard.sets += 1,
            Op::Delete => self.heard.deletes += 1,
        }
        self.recorder.write(request, ttl)
    }

    fn finish(
        self,
        address: &str,
        name: &str,
        gaps: u64,
        is_sample: bool,
        ended: &str,
    ) -> Result<String, RecordError> {
        let Heard {
            gets,
            sets,
            touches,
            deletes,
            others,
            skipped,
            unknown,
        } = self.heard;
        if gets + sets + touches + deletes == 0 {
            return Err(server(match others {
                0 => format!("{address}: it was asked for nothing{ended}"),
                _ => format!("{address}: none of {others} requests were of keys in the sample{ended}"),
            }));
        }
        self.recorder.finish()?;
        let mut kinds = vec![format!("{gets} gets"), format!("{sets} sets")];
        kinds.extend((touches > 0).then(|| format!("{touches} touches")));
        kinds.extend((deletes > 0).then(|| format!("{deletes} deletes")));
        let last = kinds.pop().unwrap_or_default();
        let mut text = format!("{} and {last}{ended}", kinds.join(", "));
        for (count, what) in [
            (gaps, "requests were not told (gaps of gid)".to_owned()),
            (
                skipped,
                format!("requests were left out by {name}: they came faster than they could be told (skipped)"),
            ),
            (
                if is_sample { others } else { 0 },
                "requests were of keys that are not in the sample: sizes and money that `advise` finds are of that part of the keys".to_owned(),
            ),
            (unknown, "lines made no sense".to_owned()),
        ] {
            if count > 0 {
                text = format!("{text}\nnote: {count} {what}");
            }
        }
        Ok(text)
    }
}

#[cfg(test)]
mod testing {
    use super::*;

    /// What is counted of some lines, and written to the trace.
    pub(super) fn heard(lines: &[&str], mut teller: impl Teller) -> (Heard, u64, Vec<String>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.csv");
        let mut book = Book::new(Recorder::create(&path).unwrap());
        lines
            .iter()
            .for_each(|line| book.hear(line, &mut teller).unwrap());
        let gaps = teller.end(&mut book).unwrap();
        book.recorder.finish().unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let mut lines = text.lines().map(str::to_owned);
        assert_eq!(lines.next().unwrap(), "time,id,size,op,ttl");
        (book.heard, gaps, lines.collect())
    }
}
