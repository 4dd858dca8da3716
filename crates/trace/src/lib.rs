//! Workload traces: streaming readers of recorded requests, and seeded generators with the same interface.
//!
//! A [`Trace`] names a file or a generator and can be opened any number of times; what it opens is a
//! [`RequestReader`], which hands out [`Request`]s by the batch in constant memory. Files may be plain or compressed
//! with zstd, gzip or xz; the compression is found by magic bytes and the format by content ([`Format`]), never by
//! the file's name. A damaged trace ends in an error that names file, record and byte offset.
//!
//! Readers apply no replay semantics: what a size of 0, a changed size or a delete means is for the replay; but a size that a request does not record
//! is looked for in those that follow. A [`Summary`] has the
//! figures of a trace, and [`convert()`] writes it in another format. [`Told`] records one of what a running server is asked for.
#![forbid(unsafe_code)]

mod columns;
mod convert;
mod detect;
mod error;
mod fields;
mod format;
mod formats;
mod generator;
mod input;
mod next_sizes;
mod record;
mod records;
mod request;
mod size;
mod sizes;
mod summary;
mod text;
mod trace;
mod window;
mod zipf;

pub use columns::{Column, Columns};
pub use convert::{ConvertOptions, Converted, Recorder, convert};
pub use error::{Compression, TraceError};
pub use format::{Format, TraceKey};
pub use generator::{GeneratedRequests, Generator};
pub use record::{RecordError, Told};
pub use request::{
    BATCH_REQUESTS, DiskRequests, OBJECT_BYTES, Op, Progress, Records, Request, RequestReader, SIZE_REQUESTS,
};
pub use size::{Human, Size, bytes};
pub use sizes::SizeDistribution;
pub use summary::{ObjectSizes, Summary};
pub use trace::{Trace, TraceOptions};
pub use zipf::Zipf;

#[cfg(test)]
mod testing;
