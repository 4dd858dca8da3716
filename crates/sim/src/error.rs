//! Why a replay could not be done.

use pumice_blocks::{GeometryError, OpenError};
use pumice_trace::TraceError;

/// Why a replay could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// The trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A cache size that cannot be parsed.
    #[error("bad size `{text}`: {what}")]
    Size {
        /// What was given.
        text: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A size in bytes for a cache that is measured in objects.
    #[error("{trace} has no sizes: give the cache as a number of objects or in percent, not `{text}`")]
    SizeInBytes {
        /// The trace.
        trace: String,
        /// What was given.
        text: String,
    },
    /// A cache that can hold nothing.
    #[error("a cache of {text} is 0 {unit} for {trace} (footprint {footprint} {unit}); the smallest is 1")]
    TooSmall {
        /// The trace.
        trace: String,
        /// The size that was given.
        text: String,
        /// The footprint of the trace, 0 if it was not needed.
        footprint: u64,
        /// Bytes or objects.
        unit: &'static str,
    },
    /// A warm-up outside [0, 1).
    #[error("bad warm-up `{0}`: give a fraction from 0 to below 1")]
    Warmup(String),
    /// No such way to treat operations.
    #[error("unknown --ops `{0}` (lookup, as-recorded)")]
    Ops(String),
    /// No such policy for this layout.
    #[error("no policy `{policy}` for layout {layout} (policies: {known})")]
    Policy {
        /// What was given.
        policy: String,
        /// The layout.
        layout: &'static str,
        /// What there is.
        known: String,
    },
    /// A simulated drive cannot be.
    #[error("simulated drive: {0}")]
    Ftl(crate::ftl::FtlError),
    /// The cache could not be opened on the device.
    #[error(transparent)]
    Open(OpenError),
    /// Bytes in a period that are too few for the blocks of the cache.
    #[error("--flash-write-budget: {0}")]
    WriteBudget(pumice_admit::SmallBudget),
    /// Bytes in a period, of a trace in which no time passes.
    #[error("--flash-write-budget: {0} has no times, so it does not say how long a period is")]
    NoTimes(String),
    /// A server would not start with these settings.
    #[error("{0}")]
    Served(String),
    /// The device file could not be opened.
    #[error(transparent)]
    File(pumice_device::FileError),
    /// The device failed.
    #[error("{what}: {source}")]
    DeviceIo {
        /// What was being done.
        what: &'static str,
        /// What the device said.
        source: std::io::Error,
    },
    /// Sizes by rule for this trace, which has sizes.
    #[error("{0} has sizes of its own: leave out --sizes")]
    SizesRecorded(String),
    /// No such cache of chunks.
    #[error("no cache of chunks `{given}` ({known})")]
    ChunkCache {
        /// What was given.
        given: String,
        /// What there is.
        known: String,
    },
    /// No number of addresses.
    #[error("bad number of addresses `{0}`: give a number, or one for each chunk of the cache, such as 4d")]
    Addresses(String),
    /// A trace that does not say what chunks hold.
    #[error("{0} does not say what chunks hold: give a trace in format fiu, or block:…")]
    NoContents(String),
    /// Chunks of another length than the trace has.
    #[error("{trace} has contents of {recorded} bytes: give that as --chunk-size")]
    ChunkBytes {
        /// The trace.
        trace: String,
        /// Its length.
        recorded: u32,
    },
    /// Chunks shorter than a sector.
    #[error("chunks of {0} bytes: the shortest have 512")]
    ShortChunks(u32),
    /// A trace that changed while it was replayed.
    #[error("{0} has changed while it was read")]
    Changed(String),
    /// The store has served what a chunk does not hold.
    #[error("the cache has served another content than chunk {0} holds: that is a bug")]
    Stale(u64),
    /// A trace that must be read twice and cannot.
    #[error("{trace} cannot be read twice, which {reason} needs: give a file")]
    ReadOnce {
        /// The trace.
        trace: String,
        /// What needs a first pass.
        reason: &'static str,
    },
    /// More distinct keys than object numbers.
    #[error("{trace} has more than {limit} distinct keys")]
    TooManyObjects {
        /// The trace.
        trace: String,
        /// The most that can be numbered.
        limit: u32,
    },
}

impl SimError {
    /// The flag whose value alone is at fault, where that is so.
    pub fn flag(&self) -> Option<&'static str> {
        match self {
            SimError::Open(OpenError::Geometry(GeometryError::BlockSize(_))) => Some("--block-size"),
            SimError::Open(OpenError::Geometry(_)) => Some("--flash-size"),
            SimError::Ftl(_) => Some("--superblock"),
            _ => None,
        }
    }

    /// Whether the replay was asked for in a way that cannot be.
    pub fn is_usage(&self) -> bool {
        match self {
            SimError::Trace(error) => error.is_usage(),
            error => matches!(
                error,
                SimError::Size { .. }
                    | SimError::SizeInBytes { .. }
                    | SimError::TooSmall { .. }
                    | SimError::Warmup(_)
                    | SimError::Ops(_)
                    | SimError::Policy { .. }
                    | SimError::SizesRecorded(_)
                    | SimError::Served(_)
                    | SimError::WriteBudget(_)
                    | SimError::NoTimes(_)
                    | SimError::NoContents(_)
                    | SimError::ChunkBytes { .. }
                    | SimError::ShortChunks(_)
                    | SimError::ReadOnce { .. }
            ),
        }
    }
}
