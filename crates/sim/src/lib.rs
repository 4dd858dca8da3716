//! Replays of traces: what a cache of some size, layout and policy would have done with a recorded workload.
//!
//! [`replay_exact`] runs a policy in its exact form, the yardstick for everything else; [`replay_flash`] runs the engine that
//! serves, on a simulated or a real device; [`replay_chunks`] runs caches of a volume's chunks. What any replay needs stands apart from it: the
//! semantics of requests ([`ReplayRules`], [`Accesses`]), sizes ([`CacheSize`]), counting after a warm-up ([`Counts`]) and the [`Report`].
#![forbid(unsafe_code)]

mod accesses;
mod chunk;
mod counts;
mod error;
mod exact;
mod flash;
mod ftl;
mod objects;
mod prepare;
mod report;
mod rules;
mod size;
mod spared;

// What the options of a replay are made of.
pub use pumice::{IndexKind, IndexOptions, Rule};
pub use pumice_device::{Profile, duration};
pub use pumice_flash::{LayoutName, LayoutOptions};

pub use accesses::{Access, Accesses, Survey, WithoutSize};
pub use chunk::{Addresses, ChunkCacheName, ChunkOptions, ChunkReport, replay_chunks};
pub use counts::Counts;
pub use error::SimError;
pub use exact::{ExactOptions, replay_exact};
pub use flash::{AsServed, FlashOptions, ReplayDevice, Timed, replay_flash};
pub use ftl::{EraseSpread, Ftl, FtlCounts, FtlDevice, FtlError, FtlOptions};
pub use objects::ObjectNumbers;
pub use prepare::{Prepared, ReplayProgress, prepare};
pub use report::{Report, Settings};
pub use rules::{MissingSizes, OpsMode, ReplayRules, Unit, Warmup};
pub use size::CacheSize;
