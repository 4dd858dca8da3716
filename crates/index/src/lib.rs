//! Indexes: which key is where on flash.
//!
//! Two are built: [`full`], every mapping in DRAM, packed into nine or ten bytes, and [`cascade`], hot mappings in DRAM and the
//! rest on flash, at about two. The table of both, [`PackedTable`], also serves the DRAM tier. An index knows hashes and locations;
//! it never sees a key, and does no I/O: where it needs pages of mappings read, it says which.

pub mod cascade;
pub mod full;
mod shard;
mod table;

pub use full::{FullShard, IndexShape, padded_len, unpadded_len};
pub use shard::{Heard, IndexShard, Known, StoredCopy, Superseded, Survivor};
pub use table::{PackedTable, TableFull, TableShape};

/// The hash that stands for a key: XXH3-64, seeded per cache.
pub type KeyHash = u64;

/// The indexes that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum IndexKind {
    /// Every mapping in DRAM.
    #[default]
    Full = 0,
    /// Hot mappings in DRAM, the rest on flash.
    Cascade = 1,
}

impl IndexKind {
    /// Whether DRAM knows every mapping, and so every death: counts of live objects are exact then, else estimates.
    pub fn is_authoritative(self) -> bool {
        match self {
            IndexKind::Full => true,
            IndexKind::Cascade => false,
        }
    }
}

impl std::fmt::Display for IndexKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            IndexKind::Full => "full",
            IndexKind::Cascade => "cascade",
        })
    }
}

/// Where an object's encoded bytes stand on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    /// Byte offset from the start of the device, a multiple of the index's unit.
    pub offset: u64,
    /// Length in bytes, padding included, a multiple of the index's unit.
    pub len: u32,
}

/// Where an object is, and what its layout wants kept with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Where the bytes are.
    pub location: Location,
    /// The layout's note, as many bits as [`IndexShape`] was given; 0 to begin with.
    pub note: u32,
}

/// What an index knows of a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The key, if it is on flash at all, is there: there is one mapping per tag.
    Hit(Mapping),
    /// The key is not on flash.
    Miss,
    /// The mapping itself is on flash: these reads tell more.
    Read(cascade::Plan),
}
