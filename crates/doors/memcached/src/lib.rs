//! The memcached door: Pumice behind the memcached text protocol, classic and meta.
//!
//! [`parse`] turns bytes into commands and knows neither sockets nor the cache; the commands are executed against an
//! object cache and answered as memcached 1.6 answers; [`Door`] listens and serves connections on the workers.
#![forbid(unsafe_code)]

mod auth;
mod budget;
mod config;
mod counters;
mod execute;
mod files;
mod histogram;
pub mod parse;
mod seldom;
mod server;
mod shared;
mod tls;

pub use auth::AuthFile;
pub use budget::BudgetSizes;
pub use config::{DoorConfig, Listen};
pub use counters::{Counters, Counts, DoorStats, Operation, WorkerStats};
pub use files::FileError;
pub use histogram::{Counter, Histogram, HistogramSnapshot};
pub use server::Door;
pub use tls::TlsIdentity;
