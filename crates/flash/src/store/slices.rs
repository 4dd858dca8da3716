//! Slices of large objects: they fill blocks to the end, and stand beside each other in the queue.

use super::{FlashStore, Order};
use crate::block::OpenBlock;
use crate::layout::Rank;
use pumice_index::unpadded_len;
use pumice_memory::Buffer;
use pumice_record::{RecordParts, SliceId};
use std::sync::atomic::Ordering;

/// A slice that others of its object are to stand beside. The insertion point that is nearest to their priority may change from one to the
/// next, and an object whose slices leave at different times is lost with the first.
pub(crate) struct LastSlice {
    pub(crate) key: Vec<u8>,
    /// The version of all slices of its set.
    pub(crate) set: u64,
    pub(crate) block: u32,
    pub(crate) sequence: u64,
}

impl<B: Buffer> FlashStore<B> {
    /// How long the next slice of an object may be, in bytes, to go into the block that is open for it; `None` where there is none.
    /// The slices of its set have this rank and `version`, and some may be written.
    pub fn room_left(&self, rank: Rank, slice: SliceId, version: u64, key: &[u8]) -> Option<u64> {
        let order = self.order.lock();
        let beside = self.beside(&order, slice, version, key);
        let room = order.at(order.layout.point(rank, beside))?.room() as u64;
        Some(unpadded_len(room, self.unit_bytes))
    }

    /// The block of the slice that was written before this record of the same set, if that is the last slice that was written.
    pub(super) fn beside(&self, order: &Order<B>, slice: SliceId, version: u64, key: &[u8]) -> Option<u32> {
        let last = order.last_slice.as_ref()?;
        let is_next = match slice {
            SliceId::Whole | SliceId::Part(0) => false,
            SliceId::Part(_) => last.set == version,
            SliceId::Head => last.key == key,
        };
        let sequence = self.blocks[last.block as usize].sequence.load(Ordering::Relaxed);
        (is_next && sequence == last.sequence).then_some(last.block)
    }

    /// Remembers where a slice went that was to go to this insertion point. Where it found room only elsewhere, those before it say more.
    pub(super) fn note_slice(
        &self,
        order: &mut Order<B>,
        point: usize,
        parts: &RecordParts<'_>,
        block: &OpenBlock<B>,
    ) {
        match parts.slice {
            SliceId::Whole => {}
            // The head comes last. It may be written again, much later, at a rank of its own.
            SliceId::Head => order.last_slice = None,
            SliceId::Part(_) => {
                let is_there = order.layout.is_at(block.id, point);
                let last = order.last_slice.take_if(|last| last.set == parts.version);
                order.last_slice = if is_there {
                    Some(LastSlice {
                        key: last.map_or_else(|| parts.key.to_vec(), |last| last.key),
                        set: parts.version,
                        block: block.id,
                        sequence: block.sequence,
                    })
                } else {
                    last
                };
            }
        }
    }
}
