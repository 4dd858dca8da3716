//! The NBD door: block devices served over the Network Block Device protocol.
//!
//! [`protocol`] turns bytes into options, requests and replies; it knows neither sockets nor devices. [`Export`] is the trait of a block
//! device. [`Door`] listens, and serves connections on the workers.
#![forbid(unsafe_code)]

mod config;
mod counters;
mod export;
pub mod protocol;
mod server;

pub use config::{ConfigError, DoorConfig, ExportName};
pub use counters::{Counters, Counts, DoorStats, Operation};
pub use export::{Export, ExportError, Extent, SPAN_BYTES, Shape};
pub use pumice_net::{HistogramSnapshot, Listen};
pub use server::Door;
