//! The memcached door: Pumice behind memcached's protocols, classic and meta in words, binary in frames.
//!
//! [`parse`] turns bytes into commands and knows neither sockets nor the cache; the commands are executed against an
//! object cache and answered as memcached 1.6 answers; [`Door`] listens and serves connections on the workers.
#![forbid(unsafe_code)]

mod auth;
mod config;
mod counters;
mod execute;
pub mod parse;
mod recording;
mod server;
mod shared;

pub use auth::AuthFile;
pub use config::DoorConfig;
pub use counters::{Counters, Counts, DoorStats, Operation, WorkerStats};
pub use pumice_net::{BudgetSizes, FileError, HistogramSnapshot, Listen, TlsIdentity};
pub use recording::{RECORDING_HEAD, Recording};
pub use server::Door;
