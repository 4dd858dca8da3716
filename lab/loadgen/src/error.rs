//! Why a run could not be made.

use pumice_trace::TraceError;
use std::io;

/// Why a run could not start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The settings make no sense.
    #[error("{0}")]
    Settings(String),
    /// The keys' source cannot be named, opened or read.
    #[error("--keys: {0}")]
    Keys(#[from] TraceError),
    /// The target is not there, or does not let us in.
    #[error("cannot connect to {target}: {source}")]
    Connect {
        /// The target.
        target: String,
        /// What the system said.
        source: io::Error,
    },
    /// The system refuses what the event loop needs.
    #[error("event loop: {0}")]
    Loop(#[source] io::Error),
}
