//! Formats in which a header names the columns, in any order: `meta-kv`, `meta-block`, `wiki-tsv` and `nasa-tsv`. Every record is one
//! request, but in `nasa-tsv`, where some are none.

use crate::fields::{Fault, Field, Fields, Header};
use crate::request::{Op, Request};
use crate::text::LineParser;

#[cfg(test)]
mod tests;

/// A column: its name in the header, and that of its fields in messages.
type Column = (&'static str, &'static str);
/// Reads a field that says what the request does.
type OpOf = fn(Field<'_>) -> Result<Op, Fault>;
/// Whether a line is a record.
type IsRecord = fn(&[u8]) -> bool;
/// A column by its name, and what it has in records that count.
type Counts = (&'static str, &'static [&'static [u8]]);

/// Columns of this kind that a format may have.
const COUNTS: usize = 2;

/// One of the formats.
pub(crate) struct Form {
    delimiter: u8,
    time: Column,
    /// Whether there must be times.
    needs_time: bool,
    key: Column,
    key_of: fn(Field<'_>) -> Result<u64, Fault>,
    size: Column,
    size_of: fn(Field<'_>) -> Result<Option<u64>, Fault>,
    /// Records that have something else in one of these columns are no requests.
    counts: [Option<Counts>; COUNTS],
    op: Option<(Column, OpOf)>,
    /// Names that tell its header from others, beside those.
    telling: &'static [&'static str],
    /// In formats that may have no header: whether the first line is a record, and where the columns are then.
    headless: Option<(IsRecord, Places)>,
    /// Whether a line has as many fields as there are columns; else those behind the last that counts are ignored.
    is_exact: bool,
}

/// `meta-kv`: kvcache of Meta. The key is text and is hashed, the size is that of the value. `GET` and `GET_LEASE` are gets, `SET`
/// and `SET_LEASE` sets. A record is one request whatever its `op_count`.
pub(crate) static META_KV: Form = Form {
    key: ("key", "key"),
    size: ("size", "size"),
    op: Some((("op", "op"), |field| match field.bytes {
        b"GET" | b"GET_LEASE" => Ok(Op::Get),
        b"SET" | b"SET_LEASE" => Ok(Op::Set),
        b"DELETE" => Ok(Op::Delete),
        _ => Err(field.fault("GET, GET_LEASE, SET, SET_LEASE or DELETE")),
    })),
    telling: &["key_size", "op_count"],
    ..META_BLOCK
};

/// `meta-block`: Meta's block storage Tectonic. The key is the block's id, which is text and is hashed, the size that of the I/O
/// whatever its offset. `getChunkData…` are gets, `putChunk…` sets.
pub(crate) const META_BLOCK: Form = Form {
    delimiter: b',',
    time: ("op_time", "op_time"),
    needs_time: false,
    key: ("block_id", "block_id"),
    key_of: |field| field.text_key(),
    size: ("io_size", "io_size"),
    size_of: |field| field.unsigned().map(Some),
    counts: [None; COUNTS],
    op: Some((("op_name", "op_name"), |field| {
        if field.bytes.starts_with(b"getChunkData") {
            Ok(Op::Get)
        } else if field.bytes.starts_with(b"putChunk") {
            Ok(Op::Set)
        } else {
            Err(field.fault("getChunkData... or putChunk..."))
        }
    })),
    telling: &[],
    headless: None,
    is_exact: true,
};

/// `wiki-tsv`: the Wikimedia Foundation's caching data set. The key is a signed 64-bit hash. Without a header the columns are time,
/// key, size and time to the first byte. Every record is a get.
pub(crate) static WIKI_TSV: Form = Form {
    delimiter: b'\t',
    time: ("relative_unix", "time"),
    needs_time: true,
    key: ("hashed_host_path_query", "key"),
    key_of: |field| field.integer_key(),
    size: ("response_size", "size"),
    size_of: |field| field.unsigned().map(Some),
    counts: [None; COUNTS],
    op: None,
    telling: &[],
    headless: Some((
        |line| line.first().is_some_and(u8::is_ascii_digit),
        Places::of(0, 1, 2, 4),
    )),
    is_exact: true,
};

/// `nasa-tsv`: the HTTP logs of NASA's Kennedy Space Center (1995): `host logname time method url response bytes`, also without a
/// header. The key is the URL, which is text and is hashed; the size is the bytes of the reply, and not known where there were none (`-`, 0 or
/// nothing). A record is a get if a cache could have served it: method GET, and the response 200 (OK) or 304 (not modified).
pub(crate) static NASA_TSV: Form = Form {
    delimiter: b'\t',
    time: ("time", "time"),
    needs_time: true,
    key: ("url", "url"),
    key_of: |field| field.text_key(),
    size: ("bytes", "bytes"),
    size_of: |field| match field.bytes {
        b"" | b"-" => Ok(None),
        _ => Ok(Some(field.unsigned()?).filter(|bytes| *bytes > 0)),
    },
    counts: [Some(("method", &[b"GET"])), Some(("response", &[b"200", b"304"]))],
    op: None,
    telling: &["host"],
    headless: Some((
        |line| !NASA_TSV.names_columns(line),
        Places {
            counts: [Some(3), Some(5)],
            ..Places::of(2, 4, 6, 7)
        },
    )),
    is_exact: false,
};

impl Form {
    /// Whether a line is the header of this format.
    pub(crate) fn is_header(&self, line: &[u8]) -> bool {
        self.names_columns(line) && Header::of(line, self.delimiter).has_all(self.telling)
    }

    /// Whether a line names all columns that there must be.
    fn names_columns(&self, line: &[u8]) -> bool {
        self.places(line).is_ok()
    }

    /// Where the columns are by the header.
    fn places(&self, header: &[u8]) -> Result<Places, Fault> {
        let header = Header::of(header, self.delimiter);
        let time = match self.needs_time {
            true => Some(header.required(self.time.0)?),
            false => header.column(self.time.0),
        };
        let key = header.required(self.key.0)?;
        let op = self.op.map(|((name, _), _)| header.required(name)).transpose()?;
        let size = header.required(self.size.0)?;
        let mut counts = [None; COUNTS];
        for (place, column) in counts.iter_mut().zip(self.counts) {
            *place = column.map(|(name, _)| header.required(name)).transpose()?;
        }
        let others = [time, Some(key), op, Some(size)];
        let last = others.into_iter().chain(counts).flatten().max();
        let columns = match self.is_exact {
            true => header.len(),
            false => last.map_or(0, |last| last + 1),
        };
        Ok(Places {
            time,
            key,
            size,
            op,
            counts,
            columns,
        })
    }
}

/// Where columns are, from 0, and how many are looked at.
#[derive(Clone, Copy)]
struct Places {
    time: Option<usize>,
    key: usize,
    size: usize,
    op: Option<usize>,
    counts: [Option<usize>; COUNTS],
    columns: usize,
}

impl Places {
    const fn of(time: usize, key: usize, size: usize, columns: usize) -> Self {
        Self {
            time: Some(time),
            key,
            size,
            op: None,
            counts: [None; COUNTS],
            columns,
        }
    }
}

/// Reads lines of one of the formats.
pub(crate) struct Headed {
    form: &'static Form,
    places: Places,
}

impl Headed {
    pub(crate) fn new(form: &'static Form) -> Self {
        // Before the first line is read, which is the header where they are not these.
        let places = form.headless.map_or(Places::of(0, 0, 0, 0), |(_, places)| places);
        Self { form, places }
    }
}

impl LineParser for Headed {
    fn has_ops(&self) -> bool {
        self.form.op.is_some()
    }

    fn header(&mut self, line: &[u8]) -> Result<bool, Fault> {
        if self.form.headless.is_some_and(|(is_record, _)| is_record(line)) {
            return Ok(false);
        }
        self.places = self.form.places(line)?;
        Ok(true)
    }

    fn line(&mut self, line: &[u8], out: &mut Vec<Request>) -> Result<(), Fault> {
        let Self { form, places } = self;
        let (mut request, mut size) = (Request::BLANK, None);
        let mut counts = true;
        let mut fields = Fields::delimited(line, form.delimiter);
        for column in 0..places.columns {
            if column == places.key {
                request.key = (form.key_of)(fields.required(form.key.1)?)?;
            } else if column == places.size {
                size = (form.size_of)(fields.required(form.size.1)?)?;
            } else if Some(column) == places.time {
                request.time = fields.required(form.time.1)?.time()?;
            } else if let Some(((_, name), op_of)) = form.op
                && Some(column) == places.op
            {
                request.op = op_of(fields.required(name)?)?;
            } else {
                let field = fields.required("last column")?;
                let wanted = form.counts.iter().flatten().zip(places.counts);
                counts &= wanted
                    .filter(|(_, place)| *place == Some(column))
                    .all(|((_, values), _)| values.contains(&field.bytes));
            }
        }
        if form.is_exact {
            fields.finish()?;
        }
        if counts {
            out.push(match form.op {
                Some(_) => request.with_size(size),
                None => Request { size, ..request },
            });
        }
        Ok(())
    }
}
