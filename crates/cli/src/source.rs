//! The trace that a command reads.

use crate::replay::trace_error;
use clap::Args;
use pumice_console::{complain, usage};
use pumice_trace::{Columns, Format, Trace, TraceKey, TraceOptions, bytes};
use std::ffi::OsString;

/// Flags that say which trace to read, and how.
#[derive(Args, Clone, Debug)]
pub struct Source {
    /// A trace file (plain, zstd, gzip or xz), or a generator such as
    /// zipf:keys=1000000,theta=0.9,requests=10000000,seed=42 (zipf, uniform, hotspot, normal, latest, block)
    #[arg(value_name = "TRACE")]
    trace: OsString,

    /// The trace's format; auto goes by content, and refuses a file that does not show one, or could have two
    #[arg(long, value_name = "NAME", default_value = "auto")]
    format: String,

    /// Columns of format csv, such as time=1,id=2,size=3,header=true
    #[arg(long, value_name = "SPEC")]
    columns: Option<Columns>,

    /// What stands for the object: object (the key or address), or fingerprint (the content, in format fiu: a content-addressed
    /// cache)
    #[arg(long, value_name = "object|fingerprint", default_value = "object")]
    key: String,

    /// Split disk requests into pages of so many bytes, each an object (a power of two from 512). Without it vscsi, blkreplay, mqsim and fiu
    /// have pages of 4KiB, and requests of the other formats are whole
    #[arg(long, value_name = "SIZE", value_parser = bytes::<u64>, conflicts_with = "key")]
    page_size: Option<u64>,
}

impl Source {
    /// Doubts a format aloud under which nearly every access is of an object that is new: a wrong one makes that of any bytes.
    pub fn doubt(&self, accesses: u64, new: u64) {
        let is_file = !pumice_trace::Generator::is_generator_name(&self.trace.to_string_lossy());
        if is_file && accesses >= 1000 && new > accesses / 100 * 95 {
            complain(format_args!(
                "pumice: note: {new} of {accesses} accesses are of an object that is new, or not there any more; is --format the right one?"
            ));
        }
    }

    /// Opens it.
    ///
    /// # Errors
    /// Usage, or why it cannot be read.
    pub fn trace(&self) -> anyhow::Result<Trace> {
        let options = TraceOptions {
            format: Format::parse_or_auto(&self.format).map_err(trace_error)?,
            columns: self.columns.clone(),
        };
        let key: TraceKey = match self.page_size {
            Some(page_bytes) => TraceKey::Pages(page_bytes),
            None => self
                .key
                .parse()
                .map_err(|error| usage(format!("--key {error}")))?,
        };
        Ok(Trace::new(&self.trace, options)
            .map_err(trace_error)?
            .with_key(key))
    }
}
