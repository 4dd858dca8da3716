//! The seam between the store and its layouts: what a layout is asked, what it is told, and what it answers.

use super::ground::Ground;
use super::ripq::queue::SavedPlace;
use super::ripq::ranks::SavedRanks;
use super::sipq::keys::KeyQueue;
use super::slots::Slots;
use crate::block::SealedBlock;
use pumice_blocks::State;
use pumice_index::Mapping;
use pumice_policy::{Hit, Policy, Priority};
use std::collections::VecDeque;

/// Accesses that an object has at least after a hit, whatever the policy counts: one is an object that was never hit.
pub(super) const ACCESSED: u32 = 2;

/// What trailers have as the position of a block of kept objects, under a layout without positions.
pub(super) const POSITION_KEPT: u16 = 0;

/// The priority of an object, and how often it was asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rank {
    pub(super) priority: Priority,
    pub(super) accesses: u32,
}

impl Rank {
    /// For layouts that have no priorities.
    pub(crate) const TOP: Rank = Rank {
        priority: Priority::Relative(1.0),
        accesses: 1,
    };
}

/// How an object comes to flash.
#[derive(Clone, Copy, Debug)]
pub enum Arrival {
    /// Nobody has asked for it yet.
    New,
    /// It was asked for in DRAM.
    Asked,
    /// It replaces another of its key. A write is a hit, too.
    Again {
        /// The hash of the key.
        hash: u64,
        /// Where the other one is, as far as DRAM knows.
        old: Option<Mapping>,
        /// Whether flash may have one that DRAM does not know. It counts as one that was not asked for since it was new.
        may_be_more: bool,
    },
}

/// Where a record goes: to the open block of an insertion point, with a note.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) point: usize,
    /// What is kept of the object to begin with.
    pub(crate) note: u32,
}

/// What a layout asks of the store; it never changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wants {
    pub(crate) hits: Hits,
    /// Whether objects have ranks: it is told of each death.
    pub(crate) ranks: bool,
    /// Whether blocks that are more than half dead are emptied before their turn.
    pub(crate) compaction: bool,
    /// Whether objects that the DRAM tier has, too, are kept.
    pub(crate) dram_hot: bool,
    /// Whether what is kept goes to blocks of its own.
    pub(crate) kept_apart: bool,
    /// Free blocks that reclaims keep ahead of need, at least.
    pub(crate) free_blocks: usize,
    /// Whether its order is lost with a crash, so that a checkpoint is due now and then for its sake.
    pub(crate) checkpoints: bool,
}

/// The hits that a layout is told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Hits {
    #[default]
    None,
    /// Of an object's first hits since it was written: the store sets its note, of one bit, and needs no lock for the others.
    First,
    Every,
}

/// What becomes of the objects of a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// They are dropped.
    Drop,
    /// Those that the layout keeps move to other blocks.
    Move,
}

/// What a layout chooses a victim from.
pub(crate) struct Choice<'a> {
    pub(crate) ground: Ground<'a>,
    /// Blocks that are on the device, the oldest first.
    pub(crate) by_age: &'a VecDeque<u32>,
    pub(crate) free: usize,
    /// Victims before this one in the same piece of work.
    pub(crate) round: usize,
    /// Victims in a row while no new object came in.
    pub(crate) idle: usize,
    /// Whether DRAM or a checkpoint needs the room, whatever is free.
    pub(crate) is_forced: bool,
}

impl Choice<'_> {
    /// Whether a block is still to be had.
    pub(crate) fn may_go(&self, id: u32) -> bool {
        self.ground.blocks[id as usize].state() == State::Sealed
    }

    /// The oldest block.
    pub(crate) fn oldest(&self) -> Option<u32> {
        self.by_age.iter().copied().find(|id| self.may_go(*id))
    }
}

/// What a checkpoint keeps of a layout, beside the notes of objects and the queue of keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SavedOrder {
    /// Under `ripq` the queue from its tail; under `clock` the blocks of kept objects; else empty.
    pub(crate) places: Vec<SavedPlace>,
    pub(crate) ranks: SavedRanks,
}

/// Where objects go in blocks, and which of them a reclaim keeps. The store calls it under one lock, and does all I/O itself: a layout
/// knows numbers of blocks, mappings and notes, and is told of each change in the order of changes.
///
/// The smallest one is `fifo`: one insertion point, and the oldest block is the victim.
pub(crate) trait Layout: Send {
    /// What it asks of the store.
    fn wants(&self) -> Wants {
        Wants::default()
    }

    // Placing.

    /// The rank of an object of so many bytes, all slices together, that is about to come.
    fn rank(&self, _ground: Ground<'_>, _arrival: Arrival, _object_bytes: u64) -> Rank {
        Rank::TOP
    }

    /// The insertion point for a record of this rank; that of `beside`, the block with the slice before it, where there is one.
    fn point(&self, _rank: Rank, _beside: Option<u32>) -> usize {
        0
    }

    /// A record of `len` bytes is about to be appended: where.
    fn insert(&mut self, hash: u64, len: u64, rank: Rank, beside: Option<u32>) -> Placed {
        let _ = (hash, len);
        Placed {
            point: self.point(rank, beside),
            note: 0,
        }
    }

    /// The copy of an object that a reclaim keeps, mapped to `from`, is about to be appended: where, and whether it was raised since it
    /// was written.
    fn insert_again(&self, _ground: Ground<'_>, _from: Mapping) -> (Placed, bool) {
        (Placed::default(), true)
    }

    /// Insertion points: 0 and up.
    fn points(&self) -> usize {
        1
    }

    /// The open block of an insertion point.
    fn open_block(&self, point: usize) -> Option<u32>;

    /// An insertion point, which had none, got an open block. `is_full`: few blocks are left free.
    fn opened(&mut self, point: usize, block: u32, is_full: bool);

    /// An open block gets no object any more. `fill`: the bytes of objects that it had, and how many blocks can be full of objects at
    /// once; `None` at a stop.
    fn closed(&mut self, block: u32, fill: Option<(usize, &dyn Fn() -> usize)>);

    /// Whether an open block of an insertion point, which the record of a slice went to, is where slices after it find the point.
    fn is_at(&self, _block: u32, _point: usize) -> bool {
        false
    }

    /// A record of `len` bytes was appended to a block.
    fn appended(&mut self, _block: u32, _len: u64) {}

    /// An insertion point without an open block may get one whose own insertion point is no more; whether it did.
    fn adopts(&mut self, _point: usize) -> bool {
        false
    }

    /// The last step of each change: insertion points come and go.
    fn rebalance(&mut self) {}

    // What happens to objects.

    /// An object of so many bytes, all slices together, was asked for: the note that its mapping is to have, and whether it was raised, so
    /// that it is to be written again.
    fn hit(&mut self, _ground: Ground<'_>, _hash: u64, mapping: Mapping, _object_bytes: u64) -> (u32, bool) {
        (mapping.note, false)
    }

    /// The object of a mapping counts no more. `hash` is `None` if the object moved, or if a reorganisation found the copy superseded.
    /// False where it did not count before.
    fn died(&mut self, _ground: Ground<'_>, _hash: Option<u64>, _mapping: Mapping) -> bool {
        true
    }

    /// Whether a note says that an object is dead.
    fn is_dead(&self, _ground: Ground<'_>, _mapping: Mapping) -> bool {
        false
    }

    /// Whatever was mapped under a key is void.
    fn forget_key(&mut self, _hash: u64) {}

    /// All objects are void.
    fn forget_all(&mut self) {}

    // Reclaim.

    /// The next victim, of blocks that are sealed, and what becomes of its objects.
    fn victim(&mut self, choice: &Choice<'_>) -> Option<(u32, Fate)>;

    /// Sealed blocks from the first that is to go.
    fn sealed(&self, ground: Ground<'_>, by_age: &VecDeque<u32>) -> Vec<u32> {
        let _ = ground;
        by_age.iter().copied().collect()
    }

    /// A block with objects was made free: the device is full.
    fn note_full(&mut self) {}

    /// Whether a reclaim keeps an object of a victim, `is_tail` where that is the next victim and not one that is mostly dead.
    fn keeps(&self, _ground: Ground<'_>, _hash: u64, _mapping: Mapping, _is_tail: bool) -> bool {
        false
    }

    /// Nothing of a block counts any more. `entries`: lengths of its objects by number, where they are known. False where the layout
    /// had to guess one.
    fn emptied(&mut self, _ground: Ground<'_>, _block: u32, _slots: &Slots, _lens: Option<&[u32]>) -> bool {
        true
    }

    /// A block leaves the order.
    fn freed(&mut self, _block: u32) {}

    // Checkpoints and starts.

    /// Where a block stands in the order, in 65,535ths from the tail, for its trailer.
    fn trailer_position(&self, _ground: Ground<'_>, _block: u32) -> u16 {
        u16::MAX
    }

    /// What a checkpoint keeps.
    fn save(&self, _ground: Ground<'_>) -> SavedOrder {
        SavedOrder::default()
    }

    /// Takes up what a checkpoint kept, of these blocks, in order of sequence.
    fn restore(&mut self, _ground: Ground<'_>, _sealed: &[SealedBlock], _saved: SavedOrder) {}

    /// A start has found a mapping, and DRAM knows all: the note that it is to have.
    fn found(&mut self, _ground: Ground<'_>, mapping: Mapping) -> u32 {
        mapping.note
    }

    /// A start has found a sealed block of `filled` bytes, whose mappings are on flash: the bytes that count.
    fn found_block(&mut self, _ground: Ground<'_>, _block: u32, _slots: &mut Slots, filled: u64) -> u64 {
        filled
    }

    /// A start has found all. `is_full`: few blocks are left free.
    fn settle(&mut self, _is_full: bool) {}

    /// Keys whose ranks are kept one by one, to be compared with the index now and then.
    fn sampled_keys(&self) -> Vec<u64> {
        Vec::new()
    }

    /// Those that are not mapped were forgotten.
    fn pruned(&mut self) {}

    /// The exact queue of keys, of a layout that has one.
    fn keys(&self) -> Option<&KeyQueue> {
        None
    }

    /// See [`Layout::keys`].
    fn keys_mut(&mut self) -> Option<&mut KeyQueue> {
        None
    }

    // Figures and checks.

    /// Where an object stands in the order, in [0, 1].
    fn position(&self, _ground: Ground<'_>, _mapping: Mapping) -> Option<f64> {
        None
    }

    /// DRAM of its own tables, in bytes.
    fn dram_bytes(&self) -> u64 {
        0
    }

    /// Bytes of all objects that count, where it counts them.
    ///
    /// # Panics
    /// Where what it counts does not agree.
    fn check(&self, _ground: Ground<'_>) -> Option<u64> {
        None
    }

    /// Compares what counts where with all mappings there are.
    ///
    /// # Panics
    /// Where they do not agree.
    fn check_seats(&self, _ground: Ground<'_>, _mappings: &mut dyn Iterator<Item = Mapping>) {}

    /// Objects raised that were not written again yet when the store was opened.
    fn raised_at_start(&self) -> u64 {
        0
    }
}

/// The rank of an object after a hit, that stands at a position or is about to be inserted there.
pub(super) fn rank_after(policy: &dyn Policy, hit: &Hit, otherwise: impl FnOnce() -> Priority) -> Rank {
    let priority = policy.on_hit(hit).unwrap_or_else(otherwise);
    Rank {
        // A hit never makes an object fall.
        priority: priority.at_least(hit.position),
        accesses: hit.accesses.max(ACCESSED),
    }
}
