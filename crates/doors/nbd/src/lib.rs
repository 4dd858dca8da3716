//! The NBD door: block devices served over the Network Block Device protocol.
//!
//! [`protocol`] turns bytes into options, requests and replies, and knows neither sockets nor what is behind an export; [`Export`] is all
//! that the door asks of a block device.
#![forbid(unsafe_code)]

mod export;
pub mod protocol;

pub use export::{Export, ExportError, Extent, Shape};
