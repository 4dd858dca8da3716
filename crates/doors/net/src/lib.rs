//! What all doors share: listening sockets, connections and their end at a shutdown; TLS; memory budgets; a progress timer; histograms of
//! latency. It knows no protocol and no cache.
#![forbid(unsafe_code)]

mod accept;
mod budget;
mod files;
mod floor;
mod histogram;
mod progress;
mod seldom;
mod stream;
mod tls;

pub use budget::{Budget, BudgetSizes, Budgets, Lane, SMALL_BYTES, Share};
pub use files::{FileError, read_bounded};
pub use floor::{Arrived, Connections, Floor, FloorConfig, Guard, Listen, Refused, Stop};
pub use histogram::{Counter, Histogram, HistogramSnapshot};
pub use progress::{Late, Progress};
pub use seldom::Seldom;
pub use stream::Stream;
pub use tls::TlsIdentity;
