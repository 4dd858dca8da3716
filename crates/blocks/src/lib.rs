//! What every store on a device stands on: superblock, log ring, blocks with footers, checkpoint chains.
//!
//! This room knows blocks and their generations. It knows no key, no hash, no version and no index: those are the owner's, whose bytes
//! have a place in the superblock, in log records, in footers and in checkpoints. The bytes are described in `docs/formats.md`.

pub mod chain;
pub mod footer;
pub mod geometry;
pub mod log;
pub mod open;
pub mod superblock;

pub use geometry::{Geometry, GeometryError};
pub use open::OpenError;
pub use superblock::{CheckpointRef, Maker, SlotContent, Store, Superblock};
