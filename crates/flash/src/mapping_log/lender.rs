//! Who lends blocks to the log: first the start that reads what a device holds, then the store.

use locks::Mutex;
use pumice_index::cascade::Generation;
use std::collections::VecDeque;

/// Lends blocks, and knows how old the blocks of a device are.
pub(crate) trait Lender: Send + Sync {
    /// Lends a free block with a sequence of its own, which tells the pages of this generation from older ones on it.
    fn lend(&self) -> Option<(u32, u64)>;

    /// The sequence that a block of pages was lent with.
    fn lent_sequence(&self, block: u32) -> Option<u64>;

    /// What a mapping to a block of objects is compared with.
    fn generation_of(&self, block: u32) -> Generation;

    /// The sequence of the next block that is lent or opened.
    fn next_sequence(&self) -> u64;

    /// There is a chunk to write, a partition to reorganise, or a block to take back.
    fn note_work(&self);
}

/// Blocks that a start lends.
pub(crate) struct Borrowed {
    pub(crate) free: VecDeque<u32>,
    /// The sequence of each block that holds pages.
    pub(crate) generations: Vec<u64>,
    /// The next sequence.
    pub(crate) next: u64,
}

/// A start, before there is a store.
pub(super) struct StartLender {
    /// The sequence of each block of objects, 0 where it counts for nothing.
    pub(super) sequences: Box<[u64]>,
    pub(super) borrowed: Mutex<Borrowed>,
}

impl Lender for StartLender {
    fn lend(&self) -> Option<(u32, u64)> {
        let mut borrowed = self.borrowed.lock();
        let id = borrowed.free.pop_front()?;
        let sequence = borrowed.next;
        borrowed.next += 1;
        borrowed.generations[id as usize] = sequence;
        Some((id, sequence))
    }

    fn lent_sequence(&self, block: u32) -> Option<u64> {
        self.borrowed.lock().generations.get(block as usize).copied()
    }

    fn generation_of(&self, block: u32) -> Generation {
        Generation::Sequence(self.sequences[block as usize])
    }

    fn next_sequence(&self) -> u64 {
        self.borrowed.lock().next
    }

    /// It writes what is full by itself.
    fn note_work(&self) {}
}
