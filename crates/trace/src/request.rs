//! What a trace is made of, and the interface of everything that yields it.

use crate::error::TraceError;

/// How many requests a reader puts into one batch: few enough that a batch stays in the first-level cache.
pub const BATCH_REQUESTS: usize = 512;

/// Bytes of an object of which nobody says how large it is.
pub const OBJECT_BYTES: u64 = 4 << 10;

/// So many requests on, a size is looked for that a request does not record.
pub const SIZE_REQUESTS: usize = 64 * 1024;

/// What a request does to its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Reads the object. Traces without operations have only these.
    Get,
    /// Writes the whole object.
    Set,
    /// Removes the object.
    Delete,
}

/// One request of a trace, as recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The object's key. Numbers stand for themselves (negative ones in two's complement); text is hashed with
    /// XXH3-64, seed 0.
    pub key: u64,
    /// Size of the object in bytes as this request records it; where it records none, the next that a request of the same key does, if that is one of
    /// the next [`SIZE_REQUESTS`]. `None` where there is neither, and where the trace has no sizes.
    pub size: Option<u64>,
    /// Time in the trace's own unit, fractions dropped; 0 where the trace has no times.
    pub time: u64,
    /// What the request does.
    pub op: Op,
    /// Whether this is a get that found nothing when it was recorded, so that the trace has the set that followed.
    pub is_miss: bool,
    /// What the object holds, of a read, or afterwards, of a write: equal numbers are equal contents. `None` where the trace does not say.
    pub content: Option<u64>,
}

impl Request {
    /// A get of nothing yet, to be filled in.
    pub const BLANK: Request = Request {
        key: 0,
        size: None,
        time: 0,
        op: Op::Get,
        is_miss: false,
        content: None,
    };

    /// The same with the size that its record has, in a format with operations: what found nothing has no size, or one of 0 bytes.
    pub(crate) fn with_size(self, size: Option<u64>) -> Self {
        let is_miss = self.op == Op::Get && size.is_none_or(|size| size == 0);
        Self {
            size: size.filter(|_| !is_miss),
            is_miss,
            ..self
        }
    }
}

/// A reader's next batch, as [`RequestReader::next_batch`] has it: `read` fills it; after `ended` or an error there is none.
pub(crate) fn next_batch<R>(
    reader: &mut R,
    out: &mut Vec<Request>,
    ended: fn(&mut R) -> &mut bool,
    read: fn(&mut R, &mut Vec<Request>) -> Result<(), TraceError>,
) -> Result<bool, TraceError> {
    out.clear();
    if *ended(reader) {
        return Ok(false);
    }
    if let Err(error) = read(reader, out) {
        *ended(reader) = true;
        return Err(error);
    }
    Ok(!out.is_empty())
}

/// How far a reader has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Bytes of the (compressed) file consumed, or requests generated.
    pub done: u64,
    /// Length of the file in bytes, or requests to generate; 0 where it is not known (a pipe).
    pub total: u64,
}

impl Progress {
    /// The part that is done, in [0, 1]; 0 where the total is not known.
    pub fn fraction(self) -> f64 {
        if self.total == 0 {
            0.0
        } else {
            (self.done as f64 / self.total as f64).min(1.0)
        }
    }
}

/// What the records read so far say that their requests do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Records {
    /// How many there were: lines or binary records, headers left out; a generator's requests.
    pub count: u64,
    /// Whether records say what they do: read or write.
    pub have_ops: bool,
    /// Requests without a size of their own, deletes left out, where the trace has sizes.
    pub without_size: u64,
    /// The disk requests, in formats with addresses and lengths, whose records are split into pages.
    pub disk: Option<DiskRequests>,
}

/// Disk requests before they are split into pages. There is one for each record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskRequests {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Requests that write.
    pub writes: u64,
    /// Bytes of all requests.
    pub bytes: u64,
    /// Bytes of those that write.
    pub bytes_written: u64,
    /// Requests that do not start and end at the edge of a page.
    pub unaligned: u64,
}

/// A source of requests, read once from start to end.
///
/// # Contract
///
/// Requests come in the order of the trace. Memory is bounded whatever the input. After the end, and after an error,
/// [`next_batch`](RequestReader::next_batch) returns `Ok(false)` for good.
pub trait RequestReader: Send {
    /// Replaces the content of `out` with the next requests: at least one, and about [`BATCH_REQUESTS`], or none at
    /// the end of the trace. Returns whether there were any.
    ///
    /// # Errors
    /// A [`TraceError`] for input that cannot be read or is damaged; `out` then holds the good requests since the
    /// last batch.
    fn next_batch(&mut self, out: &mut Vec<Request>) -> Result<bool, TraceError>;

    /// Whether the trace has sizes; a request may have none even so ([`Records::without_size`]).
    fn has_sizes(&self) -> bool;

    /// Name of the format or generator, after detection.
    fn format_name(&self) -> &'static str;

    /// What the records say that were read so far; all of them after the end. Cheap.
    fn records(&self) -> Records;

    /// How far the reader has come. Cheap.
    fn progress(&self) -> Progress;
}
