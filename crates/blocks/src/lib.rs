//! What every store on a device stands on: superblock, log ring, blocks with footers, checkpoint chains.
//!
//! This room knows blocks and their generations. It knows no key, no hash, no version and no index: those are the owner's, whose bytes
//! have a place in the superblock, in log records, in footers and in checkpoints. The bytes are described in `docs/formats.md`.

mod block;
mod blocks;
mod budget;
pub mod chain;
mod checkpoint;
mod fence;
pub mod footer;
pub mod geometry;
mod health;
pub mod inspect;
mod journal;
pub mod log;
pub mod open;
mod owner;
mod pool;
pub mod recovery;
pub mod rot;
mod seal;
pub mod superblock;
mod work;

pub use block::{OpenBlock, Prefix, Reserved};
pub use blocks::{BlockCounts, Blocks, Durability, Old, Start, Totals, add};
pub use budget::BudgetLevel;
pub use checkpoint::{Begun, Coverage, StreamWriter, WrittenStream};
pub use fence::IN_A_ROW_MAX;
pub use geometry::{Geometry, GeometryError};
pub use health::DeviceFailure;
pub use journal::Journal;
pub use log::Logged;
pub use open::OpenError;
pub use owner::{Claim, Contents, Owner, SealEnd, Tenant};
pub use pool::{Block, Pool, State};
pub use seal::STEP_BYTES;
pub use superblock::{CheckpointRef, Maker, SlotContent, StoreId, Superblock};
pub use work::{Shared, Task, Work, give_turn, turn_after};
