//! `pumice trace record`: the requests of a running server, as it tells them in lines.

mod memcached;
mod pumice;

use crate::replay::trace_error;
use crate::usage::usage;
use anyhow::{Context, anyhow};
use clap::Args;
use pumice_trace::{Op, Recorder, Request};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// How long an address may take to be connected to, and to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How often the time is looked at while nothing comes.
const LOOK: Duration = Duration::from_millis(100);
/// Longest line.
const LINE_BYTES_MAX: usize = 16 * 1024;
/// Longest line of an answer that an error shows.
const ANSWER_BYTES_MAX: usize = 200;

/// Flags of `trace record`.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("server").args(["memcached", "admin"]).required(true))]
pub struct RecordArgs {
    /// The file to write, which must not be there; compressed with zstd if its name ends in .zst
    #[arg(value_name = "OUT")]
    out: PathBuf,

    /// The memcached to listen to, such as 127.0.0.1:11211 (1.6.10 or newer)
    #[arg(long, value_name = "ADDR")]
    memcached: Option<String>,

    /// In place of --memcached, the admin door of the Pumice to listen to, such as 127.0.0.1:11250
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,

    /// Seconds to listen for; SIGINT and SIGTERM end it before that
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=2_678_400))]
    seconds: u64,

    /// Record one key in R, as 1/R
    #[arg(long, value_name = "1/R", default_value = "1/1", value_parser = share)]
    sample: u64,
}

/// R of `1/R`.
fn share(text: &str) -> Result<u64, String> {
    let one_in = text.strip_prefix("1/").and_then(|rest| rest.parse().ok());
    let one_in = one_in.filter(|one_in| (1..=1_000_000).contains(one_in));
    one_in.ok_or_else(|| "expected 1/R, where R is from 1 to 1000000".to_owned())
}

/// What the lines of a kind of server say.
trait Teller {
    /// Its name.
    const NAME: &str;

    /// After how long without a byte it is taken to be gone, if it always says something.
    const SILENCE: Option<Duration>;

    /// Reads a line, and notes the requests that are certain by now. False if the line makes no sense.
    fn hear(&mut self, line: &str, book: &mut Book) -> anyhow::Result<bool>;

    /// Notes the requests that wait for others; returns how many are known not to have been told.
    fn end(&mut self, book: &mut Book) -> anyhow::Result<u64>;
}

/// Listens, and writes what it hears. Returns a line for people.
///
/// # Errors
/// Usage, or why nothing can be heard.
pub fn run(args: &RecordArgs) -> anyhow::Result<String> {
    match (&args.memcached, &args.admin) {
        (Some(address), _) => {
            let lines = memcached::watch(address)?;
            listen(args, address, lines, memcached::Memcached::new(args.sample))
        }
        (None, address) => {
            let address = address.as_deref().unwrap_or_default();
            let lines = pumice::ask(address, args.sample)?;
            listen(args, address, lines, pumice::Pumice)
        }
    }
}

fn listen<T: Teller>(
    args: &RecordArgs,
    address: &str,
    Lines { mut lines, .. }: Lines,
    mut teller: T,
) -> anyhow::Result<String> {
    // From here on a signal ends the recording, not the program.
    let stop = until_signal()?;
    let mut book = Book::new(Recorder::create(&args.out).map_err(trace_error)?);
    lines.get_ref().set_read_timeout(Some(LOOK))?;
    let mut heard = Instant::now();
    let deadline = Instant::now() + Duration::from_secs(args.seconds);
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
            return Err(anyhow!(
                "{address}: a line of more than {LINE_BYTES_MAX} bytes: that is no {}",
                T::NAME
            ));
        }
        if end.is_some() {
            book.hear(&String::from_utf8_lossy(&line), &mut teller)?;
            line.clear();
        }
    }
    let gaps = teller.end(&mut book)?;
    book.finish(address, T::NAME, gaps, args.sample > 1, &ended)
}

fn is_silence(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// Turns true at the first SIGINT or SIGTERM.
fn until_signal() -> anyhow::Result<Arc<AtomicBool>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start an event loop")?;
    let listen = |kind| {
        let _inside = runtime.enter();
        signal(kind).context("cannot listen for signals")
    };
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        told.store(true, Ordering::Relaxed);
    });
    Ok(stop)
}

/// The lines of an address, of which the first ones have to come until some time.
struct Lines {
    lines: BufReader<TcpStream>,
    until: Instant,
}

impl Lines {
    /// Connects to the address of `flag`, of which there is an example, and asks.
    fn ask(flag: &str, example: &str, address: &str, question: &str) -> anyhow::Result<Self> {
        let until = Instant::now() + ANSWER;
        let resolved = address.to_socket_addrs().map_err(|error| {
            usage(format!(
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
            Some(error) => anyhow!("{address}: cannot connect: {error}"),
            None => anyhow!("{address}: the name has no address"),
        })?;
        let asked = || format!("{address}: asking for its requests");
        stream.set_write_timeout(Some(ANSWER)).with_context(asked)?;
        stream.write_all(question.as_bytes()).with_context(asked)?;
        let lines = BufReader::with_capacity(1 << 20, stream);
        Ok(Self { lines, until })
    }

    /// A line of an answer, without its end; none where the connection is closed.
    fn answer(&mut self) -> std::io::Result<Option<String>> {
        let mut line = Vec::new();
        while line.len() < ANSWER_BYTES_MAX && line.last() != Some(&b'\n') {
            let late = || std::io::Error::new(ErrorKind::TimedOut, "it takes too long");
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

    fn hear(&mut self, line: &str, teller: &mut impl Teller) -> anyhow::Result<()> {
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
    fn write(&mut self, request: &Request, ttl: Option<u64>) -> anyhow::Result<()> {
        match request.op {
            Op::Get => self.heard.gets += 1,
            Op::Set => self.heard.sets += 1,
            Op::Delete => self.heard.deletes += 1,
        }
        self.recorder.write(request, ttl).map_err(trace_error)
    }

    fn finish(
        self,
        address: &str,
        name: &str,
        gaps: u64,
        is_sample: bool,
        ended: &str,
    ) -> anyhow::Result<String> {
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
            return Err(anyhow!(match others {
                0 => format!("{address}: it was asked for nothing{ended}"),
                _ => format!("{address}: none of {others} requests were of keys in the sample{ended}"),
            }));
        }
        self.recorder.finish().map_err(trace_error)?;
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
