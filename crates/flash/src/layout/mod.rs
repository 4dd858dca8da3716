//! Layouts: where objects go in blocks, which block a reclaim takes, and which of its objects it keeps.
//!
//! | layout | a new object goes to | the victim | what is kept |
//! |--------|----------------------|------------|--------------|
//! | [`fifo`]  | the one open block | the oldest block | nothing |
//! | [`clock`] | the open block of new objects | the oldest block of new or of kept objects | objects that were asked for since they were written |
//! | [`sipq`]  | the one open block | the oldest block | objects whose keys are in an exact queue in DRAM |
//! | [`ripq`]  | the open block nearest to its priority | the block at the queue's tail | objects that were raised since they were written |
//!
//! A new layout is a file here that implements [`Layout`], a name in [`LayoutName`], and an arm in [`LayoutName::new_layout`],
//! [`LayoutOptions::new`] and [`LayoutOptions::needs`]; nothing else asks which layout it is. (Checkpoints know two shapes of what
//! is kept: [`SavedOrder`], and the queue of keys.)

mod clock;
mod fifo;
mod ground;
mod hashes;
pub(crate) mod options;
pub(crate) mod ripq;
mod seam;
pub(crate) mod sipq;
mod slots;

pub use options::{LayoutError, LayoutName, LayoutNeeds, LayoutOptions, RECLAIM_READ_BYTES, slot_bits};
pub use seam::{Arrival, Rank};
pub use sipq::keys::VIRTUAL_KEY_BYTES;

pub(crate) use ground::{Ground, NotePlace};
pub(crate) use options::note_place;
pub(crate) use seam::{Choice, Fate, Hits, Layout, Placed, SavedOrder, Wants};
pub(crate) use slots::Slots;

use pumice_blocks::Geometry;
use pumice_index::IndexKind;

impl LayoutName {
    /// An empty one, for blocks of this geometry.
    pub(crate) fn new_layout(
        options: &LayoutOptions,
        index: IndexKind,
        geometry: &Geometry,
    ) -> Box<dyn Layout> {
        match options.layout {
            LayoutName::Fifo => Box::new(fifo::Fifo::default()),
            LayoutName::Clock => Box::new(clock::Clock::new(geometry)),
            LayoutName::Sipq => Box::new(sipq::Sipq::new(options, geometry)),
            LayoutName::Ripq => Box::new(ripq::Ripq::new(options, index, geometry)),
        }
    }
}
