//! Slices of large objects: they fill blocks to the end, and stand beside each other in the queue.

use super::{FlashStore, Order, Rank};
use crate::block::{OpenBlock, Stream};
use crate::queue::Seat;
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
        let section = order.ranked.as_ref().map_or(0, |ranked| {
            let beside = self.section_beside(&order, slice, version, key);
            beside.unwrap_or_else(|| ranked.queue.insertion_section(ranked.position(rank.priority())))
        });
        let room = order.active(section, Stream::New)?.room() as u64;
        Some(unpadded_len(room, self.unit_bytes))
    }

    /// The section of the slices that were written before this record of the same set, if they are the last slices that were written.
    pub(super) fn section_beside(
        &self,
        order: &Order<B>,
        slice: SliceId,
        version: u64,
        key: &[u8],
    ) -> Option<usize> {
        let last = order.last_slice.as_ref()?;
        let is_next = match slice {
            SliceId::Whole | SliceId::Part(0) => false,
            SliceId::Part(_) => last.set == version,
            SliceId::Head => last.key == key,
        };
        let sequence = self.blocks[last.block as usize].sequence.load(Ordering::Relaxed);
        let queue = &order.ranked.as_ref()?.queue;
        let stands = is_next && sequence == last.sequence && queue.has_block(last.block);
        // By its place: when it was sealed the border of its section may have gone below it.
        stands.then(|| queue.insertion_section(queue.position(Seat::Device(last.block))))
    }

    /// Remembers where a slice went that was to go to this section. Where it found room only elsewhere, those before it say more.
    pub(super) fn note_slice(
        &self,
        order: &mut Order<B>,
        section: usize,
        parts: &RecordParts<'_>,
        block: &OpenBlock<B>,
    ) {
        let Some(ranked) = &order.ranked else { return };
        match parts.slice {
            SliceId::Whole => {}
            // The head comes last. It may be written again, much later, at a rank of its own.
            SliceId::Head => order.last_slice = None,
            SliceId::Part(_) => {
                let is_there = ranked.queue.section_of(Seat::Device(block.id)) == section;
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
