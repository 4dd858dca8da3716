//! Why a trace could not be read.

use std::fmt;
use std::io;

use crate::format::Format;

/// How a trace file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    Plain,
    /// Zstandard frames.
    Zstd,
    /// Gzip members.
    Gzip,
    /// Xz streams.
    Xz,
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Compression::Plain => "plain",
            Compression::Zstd => "zstd",
            Compression::Gzip => "gzip",
            Compression::Xz => "xz",
        })
    }
}

/// Why a trace could not be named, opened or read.
///
/// Records are counted from 1 and leave header lines out; offsets are bytes of the decompressed file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file could not be opened.
    #[error("cannot open {name}: {source}")]
    Open {
        /// The file.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// The file could not be read on.
    #[error("{name}: record {record} at byte {offset}: cannot read: {source}")]
    Read {
        /// The file.
        name: String,
        /// The record that was to be read.
        record: u64,
        /// How far reading had come, in decompressed bytes.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The compressed data are broken or end early.
    #[error("{name}: record {record} at byte {offset}: broken {compression} data: {source}")]
    Compressed {
        /// The file.
        name: String,
        /// How it is compressed.
        compression: Compression,
        /// The record that was to be read.
        record: u64,
        /// How far decompression had come, in decompressed bytes.
        offset: u64,
        /// What the decompressor said.
        source: io::Error,
    },
    /// A record is not what the format says.
    #[error("{name}: record {record} at byte {offset}: {what}")]
    Damaged {
        /// The file.
        name: String,
        /// The damaged record.
        record: u64,
        /// Where in it the damage was found, in decompressed bytes from the start of the file.
        offset: u64,
        /// What was expected and what was found.
        what: String,
    },
    /// No format has this name.
    #[error("unknown trace format `{0}` (formats: auto, {list})", list = Format::list())]
    UnknownFormat(String),
    /// The content does not show its format.
    #[error("{name}: {reason}; name its format with --format (formats: {list})", list = Format::list())]
    Undetected {
        /// The file.
        name: String,
        /// What was found instead.
        reason: String,
    },
    /// The description of the columns of a csv file is wrong.
    #[error("bad --columns `{spec}`: {what}")]
    Columns {
        /// The description that was given.
        spec: String,
        /// What is wrong with it.
        what: String,
    },
    /// Format csv was asked for without a description of its columns, for this file.
    #[error("{0}: format csv needs --columns, such as `time=1,id=2,size=3,header=true`")]
    NoColumns(String),
    /// Columns were described for a format that fixes its own.
    #[error("{name}: --columns is for format csv, not for {format}")]
    ColumnsWithout {
        /// The file.
        name: String,
        /// The format that was chosen.
        format: Format,
    },
    /// Requests were to be keyed by a fingerprint that the format does not have.
    #[error("{name}: --key fingerprint is for format fiu, not for {format}")]
    NoFingerprints {
        /// The trace.
        name: String,
        /// Its format, or the kind of generator.
        format: &'static str,
    },
    /// Pages were asked for of a trace without disk requests.
    #[error("{name}: --page-size is for disk requests (formats {list}), not for {format}", list = Format::disk_list())]
    NoPages {
        /// The trace.
        name: String,
        /// Its format, or the kind of generator.
        format: &'static str,
    },
    /// A page cannot have this size.
    #[error("pages have a power of two of bytes from 512 to 1 GiB, not {0}")]
    PageSize(u64),
    /// No key has this name.
    #[error("`{0}`: no such key (object, fingerprint)")]
    UnknownKey(String),
    /// A trace cannot be written in this format.
    #[error("format `{0}` cannot be written (formats that can: {list})", list = Format::writable_list())]
    NotWritable(Format),
    /// The file to be written is there already.
    #[error("{0} is there already; remove it, or write to another name")]
    Exists(String),
    /// The file could not be written.
    #[error("cannot write {name}: {source}")]
    Write {
        /// The file.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// A request has no place in the format that is written.
    #[error("{name}: request {request}: {what} does not fit format {format}; convert to csv instead")]
    DoesNotFit {
        /// The trace that is read.
        name: String,
        /// The request, counted from 1.
        request: u64,
        /// What does not fit.
        what: String,
        /// The format that is written.
        format: Format,
    },
    /// The name of a generator is wrong.
    #[error("bad generator `{spec}`: {what}")]
    Generator {
        /// The name that was given.
        spec: String,
        /// What is wrong with it.
        what: String,
    },
    /// A file with a size distribution could not be understood.
    #[error("size distribution {name}: {what}")]
    Sizes {
        /// The file.
        name: String,
        /// What is wrong with it.
        what: String,
    },
}

impl TraceError {
    /// Whether the input itself is damaged, as opposed to misnamed, unreachable or misdescribed.
    pub fn is_corruption(&self) -> bool {
        matches!(self, TraceError::Damaged { .. } | TraceError::Compressed { .. })
    }

    /// Whether the trace was asked for in a way that cannot be.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            TraceError::Undetected { .. }
                | TraceError::UnknownFormat(_)
                | TraceError::NoColumns(_)
                | TraceError::Columns { .. }
                | TraceError::Generator { .. }
                | TraceError::ColumnsWithout { .. }
                | TraceError::NoFingerprints { .. }
                | TraceError::NoPages { .. }
                | TraceError::PageSize(_)
                | TraceError::UnknownKey(_)
                | TraceError::NotWritable(_)
                | TraceError::Exists(_)
        )
    }
}
