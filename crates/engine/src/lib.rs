//! The engine: an object cache on DRAM and flash.
//!
//! [`ObjectCache`] joins the DRAM tier, the index and the flash store. It names no runtime and starts no thread: its
//! futures run wherever the caller polls them, over the [`Cx`] of that thread.
//!
//! ```
//! use pumice::{CacheOptions, Cx, Meta, ObjectCache};
//! use pumice_device::{MemDevice, MemMedium, Payload};
//! use pumice_world::{Executor, ManualClock};
//! use std::{rc::Rc, sync::Arc};
//!
//! let executor = Executor::new();
//! let device = MemDevice::new(Arc::new(MemMedium::new(16 << 20)));
//! let cx = Cx::new(device, Arc::new(ManualClock::new(1_000)), Rc::new(executor.spawner()));
//! let options = CacheOptions { dram_bytes: 4 << 20, ..CacheOptions::default() };
//! let result: Result<(), std::convert::Infallible> = executor.block_on(
//!     async {
//!         let (cache, _) = ObjectCache::open(&cx, options).await.expect("an empty device opens");
//!         cache.set(&cx, b"key", Payload::Bytes(b"value"), Meta::default()).expect("there is room");
//!         let hit = cache.get(&cx, b"key").await.expect("just set");
//!         assert_eq!(hit.to_vec(), b"value");
//!     },
//!     || Ok(()),
//! );
//! # result.unwrap();
//! ```

mod admission;
mod admit;
mod books;
mod cache;
mod config;
mod evict;
mod large;
mod list;
mod locate;
mod object;
mod part;
mod plan;
mod read;
mod reader;
mod shards;
mod stats;
#[cfg(test)]
mod testing;
mod update;
mod write;
mod writer;

pub use books::{Books, BooksFault, BooksSnapshot, LeftBehind};
pub use cache::{Cx, ObjectCache};
pub use config::{CacheOptions, FlashWrite, IndexOptions};
pub use list::{Listed, Listing};
pub use locate::{FlashCopy, KnownObject, Located};
pub use object::{Meta, Object, Pieces, RejectReason, Tier};
pub use part::HashLimit;
pub use plan::{Budget, IndexChoice, MemoryPlan};
pub use pumice_admit::{AdmissionFigures, AdmissionOptions, Rule, WriteBudget};
pub use pumice_blocks::Maker;
pub use pumice_blocks::{DeviceFailure, Durability};
pub use pumice_flash::{FlashCounts, LayoutError, LayoutName, LayoutOptions, Recovered};
pub use pumice_index::IndexKind;
pub use pumice_index::cascade::CascadeOptions;
pub use read::{Access, Fetch, Lookup, Permits, Unlimited};
pub use reader::{Broken, ObjectReader};
pub use stats::{DeviceReads, Stats};
pub use update::{Action, Outcome};
pub use writer::{Follow, Follower, HEAD_BYTES_MAX, NewObject, ObjectWriter};

/// The longest key, in bytes, as memcached has it.
pub const KEY_BYTES_MAX: usize = 250;
