//! Indexes: which key is where on flash.
//!
//! Two are built: [`full`], every mapping in DRAM, packed into nine or ten bytes, and [`cascade`], hot mappings in DRAM and the
//! rest on flash, at about two. The table of both, [`PackedTable`], also serves the DRAM tier. An index knows hashes and locations;
//! it never sees a key, and does no I/O: where it needs pages of mappings read, it says which.

pub mod cascade;
pub mod full;
mod mapping;
mod shard;
mod table;

pub use cascade::Lookup;
pub use full::{FullShard, IndexShape, UNITS_MAX, padded_len, unpadded_len};
pub use mapping::{KeyHash, Location, Mapping};
pub use shard::{Heard, IndexShard, IndexSize, Known, StoredCopy, Superseded, Survivor};
pub use table::{PackedTable, TableFull, TableShape};

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
    /// All that are built.
    pub const ALL: [IndexKind; 2] = [IndexKind::Full, IndexKind::Cascade];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            IndexKind::Full => "full",
            IndexKind::Cascade => "cascade",
        }
    }

    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// All names, for a message.
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// The kind of this number, as superblocks have it.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// Bits of note beside each location, under a layout that keeps so many of an object where all mappings are in DRAM.
    pub fn note_bits(self, of_layout: u32) -> u32 {
        if self.is_authoritative() {
            of_layout
        } else {
            IndexShape::CASCADE_NOTE_BITS
        }
    }

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
        f.write_str(self.name())
    }
}
