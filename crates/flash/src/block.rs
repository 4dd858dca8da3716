//! What DRAM knows of a block of objects.

use crate::footer::Ending;
use crate::layout::Slots;
use locks::Mutex;
use pumice_blocks::footer::Trailer;
use pumice_index::cascade::Generation;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// What a block is filled with, where new objects and those that reclaims keep do not share blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// New objects; under most layouts all.
    New,
    /// Under `clock`: what was asked for while it stood in another block.
    Kept,
}

/// What DRAM knows of a block of objects beside its state.
#[derive(Default)]
pub struct ObjectInfo {
    /// Reclaims begun in this generation: more than one where one was broken off.
    pub(crate) reclaims: AtomicU8,
    /// Bytes of records that are mapped.
    pub(crate) live: AtomicU64,
    /// Bytes of records that were written; 0 while the block is open.
    pub(crate) filled: AtomicU64,
    /// Entries of its footer; 0 while the block is open.
    pub(crate) entries: AtomicU32,
    pub(crate) expiry_max: AtomicU32,
    /// Whether it is being reclaimed, and mappings to it count for nothing any more.
    pub(crate) is_leaving: AtomicBool,
    /// Whether it is of the stream of kept objects.
    pub(crate) is_kept: AtomicBool,
    /// Bytes that each of its objects counts with; 0 = its own.
    pub(crate) mean_len: AtomicU32,
    pub(crate) slots: Mutex<Slots>,
}

pub(crate) type BlockInfo = pumice_blocks::Block<ObjectInfo>;

/// What a mapping on flash is compared with.
pub(crate) fn generation_of(info: &BlockInfo) -> Generation {
    // In this order: a block begins its next generation with both.
    let sequence = info.sequence.load(Ordering::Acquire);
    if info.is_leaving.load(Ordering::Acquire) && sequence != 0 {
        Generation::Ending(sequence)
    } else {
        Generation::Sequence(sequence)
    }
}

/// What recovery knows of a sealed block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SealedBlock {
    pub(crate) id: u32,
    pub(crate) sequence: u64,
    pub(crate) footer_len: u32,
    /// Entries of its footer.
    pub(crate) entries: u32,
    pub(crate) expiry_max: u32,
    /// Where it stood in the queue when it was sealed, in 65,535ths; `None` where a checkpoint knows it in the same generation, and with
    /// it its place.
    pub(crate) position: Option<u16>,
}

impl SealedBlock {
    /// As its trailer has it, of a footer with so many entries.
    pub(crate) fn of(id: u32, trailer: &Trailer, entries: u32) -> Self {
        let Ending { expiry_max, position } = Ending::of(trailer);
        Self {
            id,
            sequence: trailer.sequence,
            footer_len: u32::try_from(trailer.footer_len()).unwrap_or(u32::MAX),
            entries,
            expiry_max,
            position: Some(position),
        }
    }
}
