//! The pool: which block is free, which is on its way to the device, and the buffers.
//!
//! # States of a block
//!
//! ```text
//! free --open--> active --full--> sealing --written--> sealed --victim--> reclaiming --> free
//!                                    \
//!                                     `--not written--.
//! free --checkpoint--> checkpoint --superseded--> free |
//! free --lent--> lent --not wanted any more--> free    |
//! bad <--not written once more-------------------- free
//! ```
//!
//! From `sealing` on a block counts as flash: what dies in it goes through the log. The state changes before the block is composed,
//! and a thread that logs a death reads the state under a lock of the owner's that composing takes too: so a death is dropped from the
//! footer, or logged, or both.

use crate::block::OpenBlock;
use crate::owner::Owner;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::task::Waker;

/// State of a block; see the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Nothing of value.
    Free = 0,
    /// Being filled.
    Active,
    /// Full, and on its way to the device.
    Sealing,
    /// On the device, with its footer.
    Sealed,
    /// Being emptied.
    Reclaiming,
    /// Part of a checkpoint.
    Checkpoint,
    /// The owner's, for something else than entries with footers.
    Lent,
    /// Not used any more: its writes failed.
    Bad,
}

impl State {
    /// Whether the block's bytes are in a buffer.
    pub fn is_open(self) -> bool {
        matches!(self, State::Active | State::Sealing)
    }

    fn from_u8(value: u8) -> Self {
        match value {
            0 => State::Free,
            1 => State::Active,
            2 => State::Sealing,
            3 => State::Sealed,
            4 => State::Reclaiming,
            5 => State::Checkpoint,
            6 => State::Lent,
            _ => State::Bad,
        }
    }
}

/// Writes of a block that fail in a row before it is not used any more.
pub(crate) const FAILURES_MAX: u8 = 2;

/// What DRAM knows of a block: by default of a free one, of no generation.
#[derive(Default)]
pub struct Block<I> {
    state: AtomicU8,
    /// Writes that failed since the last one that did not.
    failures: AtomicU8,
    /// Of an open block, bytes from its start that a start may find although there is no footer: deaths there are logged.
    pub prefix_end: AtomicU32,
    /// Length of footer and trailer of a sealed block.
    pub footer_len: AtomicU32,
    /// Sequence of this generation; 0 where no generation counts.
    pub sequence: AtomicU64,
    /// The owner's.
    pub own: I,
}

impl<I> Block<I> {
    /// Its state.
    pub fn state(&self) -> State {
        State::from_u8(self.state.load(Ordering::Acquire))
    }

    /// Changes its state.
    pub fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Notes how a write of this block ended.
    pub fn note_write(&self, succeeded: bool) {
        let failures = self.failures.load(Ordering::Relaxed);
        let failures = if succeeded { 0 } else { failures.saturating_add(1) };
        self.failures.store(failures, Ordering::Relaxed);
    }

    /// Whether its writes fail again and again.
    pub(crate) fn is_bad(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= FAILURES_MAX
    }
}

/// A block with what its owner knows of it, read as one.
impl<I> std::ops::Deref for Block<I> {
    type Target = I;

    fn deref(&self) -> &I {
        &self.own
    }
}

/// All that changes under one lock, the owner's part included.
pub struct Pool<O: Owner> {
    /// Free blocks; the first is used next.
    pub free: VecDeque<u32>,
    /// Full blocks whose writing has not begun.
    pub to_seal: VecDeque<Arc<OpenBlock<O>>>,
    /// Active blocks whose beginnings are to be written.
    pub(crate) to_flush: Vec<Arc<OpenBlock<O>>>,
    /// Numbers of those whose beginnings are being written.
    pub(crate) flushing: Vec<u32>,
    /// Blocks that are being written.
    pub sealing: usize,
    /// Buffers that no block has. A reader may still have one.
    pub(crate) buffers: Vec<Arc<O::Buf>>,
    /// Buffers that there are.
    pub(crate) buffers_made: usize,
    /// The sequence of the next generation of any block.
    pub next_sequence: u64,
    /// A checkpoint is being written.
    pub checkpointing: bool,
    /// Pieces of background work under way.
    pub in_flight: usize,
    /// Pieces of background work so far.
    pub(crate) claims: u64,
    /// Blocks of the newest checkpoint, and of the one before.
    pub checkpoint_blocks: [Vec<u32>; 2],
    /// Blocks of the checkpoint before those, until the superblock that does not name it is safe.
    pub checkpoint_dropped: Vec<u32>,
    pub(crate) waiters: Vec<Waker>,
    /// The owner's.
    pub own: O::State,
}

impl<O: Owner> Pool<O> {
    pub(crate) fn new(
        free: VecDeque<u32>,
        next_sequence: u64,
        checkpoint_blocks: [Vec<u32>; 2],
        own: O::State,
    ) -> Self {
        Self {
            free,
            to_seal: VecDeque::new(),
            to_flush: Vec::new(),
            flushing: Vec::new(),
            sealing: 0,
            buffers: Vec::new(),
            buffers_made: 0,
            next_sequence,
            checkpointing: false,
            in_flight: 0,
            claims: 0,
            checkpoint_blocks,
            checkpoint_dropped: Vec::new(),
            waiters: Vec::new(),
            own,
        }
    }

    /// Takes the next free block, and the sequence of its new generation.
    pub fn take_free(&mut self) -> Option<(u32, u64)> {
        let id = self.free.pop_front()?;
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        Some((id, sequence))
    }

    /// Whether the beginning of a block is being written, or is due.
    pub(crate) fn is_flushing(&self, block: u32) -> bool {
        self.flushing.contains(&block) || self.to_flush.iter().any(|due| due.id == block)
    }

    /// Pieces of background work that have ended.
    pub(crate) fn ended(&self) -> u64 {
        self.claims - self.in_flight as u64
    }
}
