//! Slices of large objects stand beside each other in the queue.

use super::{Order, OrderState};
use crate::objects::OpenBlock;
use pumice_memory::Buffer;
use pumice_record::{RecordParts, SliceId};
use std::sync::atomic::Ordering;

/// A slice that others of its object are to stand beside. The insertion point that is nearest to their priority may change from one to the
/// next, and an object whose slices leave at different times is lost with the first.
pub(super) struct LastSlice {
    pub(super) key: Vec<u8>,
    /// The version of all slices of its set.
    pub(super) set: u64,
    pub(super) block: u32,
    pub(super) sequence: u64,
}

impl<B: Buffer> Order<B> {
    /// The block of the slice that was written before this record of the same set, if that is the last slice that was written.
    pub(crate) fn beside(
        &self,
        order: &OrderState<B>,
        slice: SliceId,
        version: u64,
        key: &[u8],
    ) -> Option<u32> {
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
    pub(crate) fn note_slice(
        &self,
        order: &mut OrderState<B>,
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
