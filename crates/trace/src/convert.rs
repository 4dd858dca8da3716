//! Writing a trace in another format.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::TraceError;
use crate::format::Format;
use crate::request::{BATCH_REQUESTS, Op, Progress, Request};
use crate::trace::Trace;

/// Bytes of a record of oracle-general, and where in it the next access stands.
const ORACLE_BYTES: usize = 24;
const ORACLE_NEXT: usize = 16;
/// Records of oracle-general that are mended at a time.
const MENDED_RECORDS: usize = 16 * 1024;
/// First line of what a [`Recorder`] writes.
const RECORDED_HEADER: &[u8] = b"time,id,size,op,ttl\n";
/// Bytes of recorded requests that are written at a time.
const RECORDED_BYTES: usize = 64 * 1024;

/// How a trace is written.
#[derive(Debug, Clone, Copy)]
pub struct ConvertOptions {
    /// The format to write.
    pub to: Format,
    /// The size of an object where the trace has none and the format has.
    pub object_size: u64,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Converted {
    /// Requests written.
    pub requests: u64,
    /// Deletes that were left out, since the format has none.
    pub deletes_left_out: u64,
    /// Sets that became plain accesses, since the format has no operations.
    pub sets_without_op: u64,
    /// Requests that have [`object_size`](ConvertOptions::object_size).
    pub without_size: u64,
}

/// Writes `trace` to the file `out`, which must not be there; compressed with zstd if its name ends in `.zst`. Until all is
/// written the file is called `out.part`, and one that fails is removed.
///
/// What each format keeps:
///
/// | format | keeps |
/// |---|---|
/// | `oracle-general` | time in seconds, key, size, and when the object is accessed next; sets become accesses, deletes are left out |
/// | `csv` | all: `time,id,size,op`, without `size` or `op` where the trace has none |
/// | `time-id-size` | time, key, size; sets and deletes as above |
/// | `keys-be-i64` | keys; sets and deletes as above |
///
/// Memory: constant; for oracle-general 19 to 39 bytes per distinct object, half as much again while the table grows.
///
/// # Errors
/// Those of reading the trace, and [`TraceError::NotWritable`], [`Exists`](TraceError::Exists),
/// [`Write`](TraceError::Write), [`DoesNotFit`](TraceError::DoesNotFit).
pub fn convert(
    trace: &Trace,
    out: &Path,
    options: ConvertOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Converted, TraceError> {
    if !Format::WRITABLE.contains(&options.to) {
        return Err(TraceError::NotWritable(options.to));
    }
    if fs::symlink_metadata(out).is_ok() {
        return Err(TraceError::Exists(out.display().to_string()));
    }
    let mut reader = trace.open()?;
    let compressed = out.extension().is_some_and(|extension| extension == "zst");
    let mut part = Part::create(out, ".part")?;
    let mut form = Form {
        to: options.to,
        has_sizes: reader.has_sizes(),
        has_ops: reader.records().have_ops,
        object_size: options.object_size,
        ticks: reader
            .format_name()
            .parse::<Format>()
            .map_or(1, Format::ticks_per_second),
    };
    let mut converted = Converted {
        requests: 0,
        deletes_left_out: 0,
        sets_without_op: 0,
        without_size: 0,
    };
    // Mending goes back over the file, which a compressed one does not allow.
    let mends = options.to == Format::OracleGeneral;
    let mut sink = Sink::new(&part, compressed && !mends)?;
    let mut bytes = Vec::new();
    form.head(&mut bytes);
    let mut batch = Vec::with_capacity(BATCH_REQUESTS);
    while reader.next_batch(&mut batch)? {
        for request in &batch {
            if options.to != Format::Csv {
                match request.op {
                    Op::Get => {}
                    Op::Set => converted.sets_without_op += 1,
                    Op::Delete => {
                        converted.deletes_left_out += 1;
                        continue;
                    }
                }
            }
            converted.requests += 1;
            let needs_size = !matches!(options.to, Format::Csv | Format::KeysBeI64);
            converted.without_size += u64::from(needs_size && request.size.is_none());
            form.write(request, &mut bytes)
                .map_err(|what| TraceError::DoesNotFit {
                    name: trace.name().to_owned(),
                    request: converted.requests + converted.deletes_left_out,
                    what,
                    format: options.to,
                })?;
        }
        sink.write(&bytes).map_err(|error| part.error(error))?;
        bytes.clear();
        progress(reader.progress());
    }
    sink.write(&bytes).map_err(|error| part.error(error))?;
    sink.finish().map_err(|error| part.error(error))?;
    if mends {
        set_next_accesses(&mut part.file).map_err(|error| part.error(error))?;
        if compressed {
            let packed = Part::create(out, ".zst.part")?;
            compress(&mut part.file, &packed).map_err(|error| packed.error(error))?;
            packed.rename(out)?;
            return Ok(converted);
        }
    }
    part.rename(out)?;
    Ok(converted)
}

/// A trace that is written while requests come, in format csv with a column for the time to live: `time,id,size,op,ttl`. Until it is finished the file
/// is called `OUT.part`, and is removed if it is dropped before.
pub struct Recorder {
    out: PathBuf,
    part: Part,
    sink: Sink,
    bytes: Vec<u8>,
}

impl Recorder {
    /// Begins the file `out`, which must not be there; compressed with zstd if its name ends in `.zst`.
    ///
    /// # Errors
    /// [`TraceError::Exists`], [`TraceError::Write`].
    pub fn create(out: &Path) -> Result<Self, TraceError> {
        if fs::symlink_metadata(out).is_ok() {
            return Err(TraceError::Exists(out.display().to_string()));
        }
        let part = Part::create(out, ".part")?;
        let sink = Sink::new(&part, out.extension().is_some_and(|extension| extension == "zst"))?;
        let (out, bytes) = (out.to_owned(), RECORDED_HEADER.to_vec());
        Ok(Self {
            out,
            part,
            sink,
            bytes,
        })
    }

    /// Writes a request; one that sets seconds to live with those, 0 for ever. A size that is not known stays empty.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn write(&mut self, request: &Request, ttl: Option<u64>) -> Result<(), TraceError> {
        let Request {
            time, key, size, op, ..
        } = *request;
        let line = &mut self.bytes;
        let size = number_or_nothing(size);
        let ttl = number_or_nothing(ttl);
        let written = writeln!(line, "{time},{key},{size},{},{ttl}", name_of(op));
        written.map_err(|error| self.part.error(error))?;
        if self.bytes.len() >= RECORDED_BYTES {
            self.sink
                .write(&self.bytes)
                .map_err(|error| self.part.error(error))?;
            self.bytes.clear();
        }
        Ok(())
    }

    /// Ends the file.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn finish(self) -> Result<(), TraceError> {
        let Self {
            out,
            part,
            mut sink,
            bytes,
        } = self;
        sink.write(&bytes).map_err(|error| part.error(error))?;
        sink.finish().map_err(|error| part.error(error))?;
        part.rename(&out)
    }
}

fn number_or_nothing(number: Option<u64>) -> String {
    number.map_or_else(String::new, |number| number.to_string())
}

fn name_of(op: Op) -> &'static str {
    match op {
        Op::Get => "get",
        Op::Set => "set",
        Op::Delete => "delete",
    }
}

/// A file that is removed again unless it is renamed.
struct Part {
    path: PathBuf,
    file: File,
    kept: bool,
}

impl Part {
    fn create(out: &Path, suffix: &str) -> Result<Self, TraceError> {
        let mut name = OsString::from(out);
        name.push(suffix);
        let path = PathBuf::from(name);
        let options = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path);
        match options {
            Ok(file) => Ok(Part {
                path,
                file,
                kept: false,
            }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(TraceError::Exists(path.display().to_string()))
            }
            Err(source) => Err(TraceError::Write {
                name: path.display().to_string(),
                source,
            }),
        }
    }

    fn error(&self, source: io::Error) -> TraceError {
        TraceError::Write {
            name: self.path.display().to_string(),
            source,
        }
    }

    fn rename(mut self, out: &Path) -> Result<(), TraceError> {
        fs::rename(&self.path, out).map_err(|error| self.error(error))?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.kept {
            // What cannot be removed stays under a name that says that it is a part.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Where bytes go.
enum Sink {
    Plain(BufWriter<File>),
    Zstd(Box<zstd::stream::write::Encoder<'static, BufWriter<File>>>),
}

impl Sink {
    fn new(part: &Part, compressed: bool) -> Result<Self, TraceError> {
        let open = || {
            let file = BufWriter::new(part.file.try_clone()?);
            Ok(if compressed {
                Sink::Zstd(Box::new(zstd::stream::write::Encoder::new(
                    file,
                    zstd::DEFAULT_COMPRESSION_LEVEL,
                )?))
            } else {
                Sink::Plain(file)
            })
        };
        open().map_err(|error| part.error(error))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Sink::Plain(file) => file.write_all(bytes),
            Sink::Zstd(encoder) => encoder.write_all(bytes),
        }
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Sink::Plain(mut file) => file.flush(),
            Sink::Zstd(encoder) => encoder.finish()?.flush(),
        }
    }
}

/// How requests look in a format.
struct Form {
    to: Format,
    has_sizes: bool,
    has_ops: bool,
    object_size: u64,
    /// Units of time in a second.
    ticks: u64,
}

impl Form {
    fn head(&self, out: &mut Vec<u8>) {
        if self.to == Format::Csv {
            out.extend(b"time,id");
            out.extend_from_slice(if self.has_sizes { b",size" } else { b"" });
            out.extend_from_slice(if self.has_ops { b",op" } else { b"" });
            out.push(b'\n');
        }
    }

    /// Writes a request, or says what of it does not fit.
    fn write(&mut self, request: &Request, out: &mut Vec<u8>) -> Result<(), String> {
        let size = request.size.unwrap_or(self.object_size);
        let Request { key, time, .. } = *request;
        match self.to {
            Format::OracleGeneral => {
                let time = u32::try_from(time / self.ticks).map_err(|_| format!("time {time}"))?;
                let size = u32::try_from(size).map_err(|_| format!("size {size}"))?;
                out.extend(time.to_le_bytes());
                out.extend(key.to_le_bytes());
                out.extend(size.to_le_bytes());
                out.extend((-1i64).to_le_bytes());
            }
            Format::KeysBeI64 => out.extend(key.to_be_bytes()),
            Format::Csv => {
                let mut line = format!("{time},{key}");
                if self.has_sizes {
                    // What found nothing is known by that.
                    let size = request.size.filter(|_| !request.is_miss);
                    line += &format!(",{}", number_or_nothing(size));
                }
                if self.has_ops {
                    line += &format!(",{}", name_of(request.op));
                }
                writeln!(out, "{line}").map_err(|error| error.to_string())?;
            }
            _ => writeln!(out, "{time} {key} {size}").map_err(|error| error.to_string())?,
        }
        Ok(())
    }
}

/// Sets the next access of every record: the number, from 1, of the next record with the same key, or -1. Goes backwards, so
/// that a key's next access is known when its record is reached.
fn set_next_accesses(file: &mut File) -> io::Result<()> {
    let records = file.seek(SeekFrom::End(0))? / ORACLE_BYTES as u64;
    let mut seen: HashMap<u64, u64> = HashMap::new();
    let mut buffer = vec![0; MENDED_RECORDS * ORACLE_BYTES];
    let mut end = records;
    while end > 0 {
        let start = end.saturating_sub(MENDED_RECORDS as u64);
        let bytes = &mut buffer[..(end - start) as usize * ORACLE_BYTES];
        file.seek(SeekFrom::Start(start * ORACLE_BYTES as u64))?;
        file.read_exact(bytes)?;
        for (at, record) in bytes.chunks_exact_mut(ORACLE_BYTES).enumerate().rev() {
            let number = start + at as u64 + 1;
            let key = u64::from_le_bytes(crate::records::bytes_at(record, 4));
            if let Some(next) = seen.insert(key, number) {
                record[ORACLE_NEXT..].copy_from_slice(&next.to_le_bytes());
            }
        }
        file.seek(SeekFrom::Start(start * ORACLE_BYTES as u64))?;
        file.write_all(bytes)?;
        end = start;
    }
    Ok(())
}

/// Compresses a whole file into another.
fn compress(from: &mut File, to: &Part) -> io::Result<()> {
    from.seek(SeekFrom::Start(0))?;
    let mut packed = BufWriter::new(to.file.try_clone()?);
    zstd::stream::copy_encode(BufReader::new(from), &mut packed, zstd::DEFAULT_COMPRESSION_LEVEL)?;
    packed.flush()
}
