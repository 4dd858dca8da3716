//! The admin door: metrics, health and statistics over HTTP.
//!
//! | path | answer |
//! | --- | --- |
//! | `/metrics` | every figure in Prometheus' text format, or as OpenMetrics if that is asked for |
//! | `/stats` | the same figures as JSON |
//! | `/healthz` | 200 while the process runs |
//! | `/readyz` | 200 while requests are served, 503 before and after; on a second line what is missing, as the flash device, or how far the start is |
//! | `/books` | counts what is resident, entry by entry, and compares it with the books: 200 if they balance, 500 if not, 503 if something came or went meanwhile or there is no cache yet. Costly |
//! | `/requests?sample=R` | lines about requests as they come, of one key in R, until either side ends it; 409 while somebody else has them, 404 where there are none |
//!
//! The door knows neither the cache nor other doors: whoever runs it gives a [`Source`] of plain [`Figures`]. It should
//! run on a thread of its own, so that a scrape slows no worker.
#![forbid(unsafe_code)]

mod figures;
mod metrics;
mod process;
mod requests;
mod server;

pub use figures::{BookLine, BooksFault, Figures, Group, Latency, NotRecorded, Requests, Source};
pub use process::process;
pub use pumice_world::{Figure, Kind};
pub use server::serve;
