//! The cascade index: hot mappings in DRAM, the rest in pages on flash.
//!
//! From Cascade Mapping (Wang and Chen, SoCC '18), with the differences that docs/papers.md lists. The hash space is cut into
//! partitions; each has
//!
//! - **tier 1**, a packed table in DRAM with a CLOCK that counts how often each mapping was asked for;
//! - **tier 2**, the pages that tier 1 wrote out, in order of time, in *generations* of eight. A filter for each generation says
//!   which of its pages may have a tag;
//! - **tier 3**, the *wide table*: pages in the order of tags, and one filter whose ranks name the page.
//!
//! Tier 2 is to tier 3 what the paper's narrow active table is to its wide inactive one: when it has grown to a share of it, the
//! partition is *reorganised*: all its pages are read and merged into a new wide table, without what is void or superseded.
//!
//! # Benefits
//! - About 1.0 to 1.4 bytes of DRAM for a mapping on flash, at about 0.08 reads for a key that is not there and one for a key
//!   that is.
//! - Flash is written in whole pages, and each mapping some three times.
//!
//! # Costs
//! - A mapping that is not in tier 1 costs a read of flash before the read of its object.
//! - What is known without I/O is less: [`CascadeShard::mapping`] knows tier 1 alone.
//!
//! # Which copy counts
//! A newer mapping of a key is never below an older one: tier 1, then pages from the newest to the oldest, then the wide table.
//! What makes a key's older mapping on flash void is a newer one or a *tombstone*, which stays in the tiers as any mapping does.
//! Such an entry is a *shield*: no filter forgets it before a reorganisation has merged it with what it hides. In tier 1 it is none
//! any more when what it hid was forgotten with its block ([`CascadeShard::forget_moved`]).
//!
//! Whether a copy in a block is still the one that counts, DRAM can tell of most without reading: [`CascadeShard::survivor`].

mod answers;
mod counts;
mod demotion;
mod filter;
mod flash_tiers;
mod forget;
mod history;
mod image;
mod lookup;
mod page;
mod partition;
mod plan;
mod reorganise;
#[cfg(test)]
mod tests;
mod tier1;
mod wide;

pub use crate::full::SLOT_BITS;
pub use counts::CascadeCounts;
pub use history::{History, HistoryFilter, SavedHistory};
pub use image::Image;
pub use lookup::Lookup;
pub use page::{PAGE_ENTRIES, PAGE_PAYLOAD_BYTES, PageEntry, PageShape};
pub use partition::{CascadeOptions, CascadeShard};
pub use plan::Plan;
pub use reorganise::{Merged, Reorganisation};

use crate::mapping::Location;

/// The number of a page among all that a [`MapSpace`] has.
pub type PageNumber = u32;

/// The generation of a block, as mappings to it are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// The sequence of the block that stands there; 0 = none.
    Sequence(u64),
    /// It is being reclaimed: mappings to it count for nothing any more, but each will be forgotten in its turn.
    Ending(u64),
}

impl Generation {
    /// The sequence of the block.
    pub fn sequence(self) -> u64 {
        match self {
            Generation::Sequence(sequence) | Generation::Ending(sequence) => sequence,
        }
    }
}

/// Where pages of mappings are kept. Called under a shard's lock: nothing here waits.
pub trait MapSpace: Send + Sync {
    /// Whether the next [`MapSpace::put`] finds room.
    fn has_room(&self) -> bool;

    /// Takes a page, which can be read from now on; `None` where there is no room.
    fn put(&self, payload: &[u8; PAGE_PAYLOAD_BYTES]) -> Option<PageNumber>;

    /// Hears that a partition has `after` bytes of DRAM for what is on flash, and no more `before`.
    fn charge(&self, before: usize, after: usize);

    /// Hears that a partition would like to be reorganised; it may say so more than once.
    fn wants_reorganisation(&self, partition: u32);

    /// Gives a page up.
    fn release(&self, page: PageNumber);

    /// The generation of the block at a location.
    fn generation_at(&self, location: Location) -> Generation;

    /// The lowest sequence that a block with objects may still have.
    fn oldest_generation(&self) -> u64;

    /// The sequence that the next block gets.
    fn next_generation(&self) -> u64;
}
