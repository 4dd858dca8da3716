//! What the store is to `blocks`: its log records, the order of its sealed blocks, its own work.

use super::shape::Room;
use crate::piece::Entry;
use pumice_blocks::log::OwnKind;
use pumice_blocks::{Blocks, Claim, OpenBlock, Owner};
use pumice_memory::Buffer;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Range;

/// One log record voids at most `2^MAX_LEVEL` chunks.
pub(super) const MAX_LEVEL: u16 = 12;
/// The epoch of a start in its versions, from this bit on.
pub(super) const EPOCH_SHIFT: u32 = 40;
/// Number of the log records that make `2^0` chunks clean.
const CLEAN: u16 = 128;

/// A change of an address in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Mappings of the `2^n` chunks from `a * 2^n` on with versions below `b` are void. `n` is in the kind.
    Void(u8),
    /// Region `a` is marked, since the volume is about to be written there: see `store/regions.rs`.
    Mark,
    /// The mark of region `a` is cleared, since the volume was flushed.
    Clear,
    /// Mappings of the `2^n` chunks from `a * 2^n` on with versions below `b` are clean: the volume has their contents, durably.
    Clean(u8),
    /// Block `a` of generation `b` is durable as a whole.
    Written,
}

impl OwnKind for Change {
    fn number(self) -> u16 {
        match self {
            Change::Void(level) => level.into(),
            Change::Mark => 64,
            Change::Clear => 65,
            Change::Written => 66,
            Change::Clean(level) => CLEAN + u16::from(level),
        }
    }

    fn from_number(number: u16) -> Option<Self> {
        match number {
            0..=MAX_LEVEL => Some(Change::Void(number as u8)),
            64 => Some(Change::Mark),
            65 => Some(Change::Clear),
            66 => Some(Change::Written),
            CLEAN.. if number - CLEAN <= MAX_LEVEL => Some(Change::Clean((number - CLEAN) as u8)),
            _ => None,
        }
    }
}

/// Sealed blocks, in the order in which they are reclaimed.
#[derive(Debug, Default)]
pub struct Sealed {
    /// The oldest first.
    pub(super) order: VecDeque<u32>,
    pub(super) is_reclaiming: bool,
    /// A reclaim has failed, because chunks of its victims are dirty: none begins before the next second.
    pub(super) is_paused: bool,
    /// Blocks with lower sequences were sealed when the older, and the newer, of two checkpoints began.
    pub(super) covered: [u64; 2],
}

impl Sealed {
    /// Whether a reclaim of the oldest blocks is due, where so many are free; and whether a dirty chunk may have its mapping in these alone, so
    /// that a checkpoint must come before: each of the two that a start may find must have it too.
    pub(super) fn is_due(&self, free: usize, room: &Room, sequence: impl Fn(u32) -> u64) -> (bool, bool) {
        let is_due = free <= room.spare + 1 && !self.order.is_empty() && !self.is_paused;
        let mut victims = self.order.iter().take(room.batch);
        let is_uncovered = is_due && victims.any(|block| sequence(*block) >= self.covered[0]);
        (is_due, is_uncovered)
    }
}

/// The types of this store. Its own work is a reclaim of some blocks.
pub struct Chunks<B>(PhantomData<B>);

impl<B: Buffer> Owner for Chunks<B> {
    type Buf = B;
    type Kind = Change;
    type Entry = Entry;
    type Tag = ();
    type Info = ();
    type State = Sealed;
    type Task = Vec<u32>;

    fn task_ended(state: &mut Sealed, _: &Vec<u32>) {
        state.is_reclaiming = false;
    }

    fn put_back(state: &mut Sealed, _: Claim, victims: Vec<u32>) -> Option<Vec<u32>> {
        victims
            .into_iter()
            .rev()
            .for_each(|victim| state.order.push_front(victim));
        None
    }
}

/// The blocks of this store.
pub(super) type Base<B> = Blocks<Chunks<B>>;

/// A block of this store that is still a buffer.
pub(super) type Open<B> = OpenBlock<Chunks<B>>;

/// Splits a range of chunks into aligned ranges of `2^level` chunks: (number of the aligned range, level).
pub(super) fn aligned(mut chunks: Range<u64>) -> impl Iterator<Item = (u64, u8)> {
    std::iter::from_fn(move || {
        let len = chunks.end.checked_sub(chunks.start).filter(|len| *len > 0)?;
        let level = chunks
            .start
            .trailing_zeros()
            .min(len.ilog2())
            .min(MAX_LEVEL.into());
        let index = chunks.start >> level;
        chunks.start += 1 << level;
        Some((index, level as u8))
    })
}
