//! Blocks that are written together, because the drive's erase unit holds several.
//!
//! What is written one after the other shares an erase unit, and the unit is free when the last of it is dead. Under `ripq` blocks that
//! are full at the same time stand all over the queue and die at different times; with four blocks to a unit, written as they come, a drive with a
//! tenth of spare space writes 1.4 to 2.9 times what it is sent. The paper has blocks as large as units (FAST '15, section 3), which is the
//! better choice where there are enough of them. Where blocks are smaller, a full one is held in its buffer until as many as fill
//! a unit stand next to each other in the queue, where they die one after the other, and these are written in a row.
//!
//! Held is at most a sixth of the blocks, half of the buffers, and [`UNITS_HELD_MAX`] units: when there are more, those that are nearest
//! to each other go. More would not be better: as long as a block is open or held, the drive keeps what stood in its place before. A held
//! block is like one that is being filled, but that nothing is added to it: its objects are read from the buffer, what dies in it needs no
//! record, and a crash loses it.

use super::{FlashStore, Order, State, add};
use crate::block::OpenBlock;
use crate::geometry::Geometry;
use crate::layout::Layout;
use crate::queue::Seat;
use crate::recovery::OpenOptions;
use pumice_memory::Buffer;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Blocks of so many units are held at most. On wiki-val with gdsf-3 a drive whose units hold four blocks wrote 1.49 times what was inserted
/// where it was 4, 1.12 times with 6 and with 8, and 3.23 times when none were held.
pub const UNITS_HELD_MAX: usize = 6;
/// One block in so many may be held.
const BLOCKS_PER_HELD: usize = 6;
/// One buffer in so many may be a held block's.
const BUFFERS_PER_HELD: usize = 2;
/// Blocks are near enough to each other to be written at once where they span so many times the share of the queue that they are of all
/// blocks. With 16 gdsf-3 on a Zipf load wrote 2.1 times instead of 1.5; with 4 somewhat more than with 8 on most traces.
const NEAR: f64 = 8.0;

/// How full blocks are held; see the module's text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Grouping {
    /// Blocks that fill a unit; 1: none are held.
    pub(crate) blocks: usize,
    held_max: usize,
    /// The part of the queue within which blocks are near each other.
    near: f64,
}

impl Grouping {
    pub(super) fn of(options: &OpenOptions, geometry: &Geometry) -> Self {
        let none = Self {
            blocks: 1,
            held_max: 0,
            near: 0.0,
        };
        let (unit, block) = (options.erase_unit_bytes, geometry.block_bytes);
        if options.layout.layout != Layout::Ripq || unit <= block {
            return none;
        }
        if !unit.is_multiple_of(block) {
            tracing::warn!(
                "blocks of {block} bytes are written as they come: none but whole ones fill an erase unit of {unit} bytes"
            );
            return none;
        }
        let all = geometry.blocks as usize;
        let blocks = usize::try_from(unit / block).unwrap_or(usize::MAX);
        let held_max = (all / BLOCKS_PER_HELD)
            .min(options.buffers_max / BUFFERS_PER_HELD)
            .min(blocks.saturating_mul(UNITS_HELD_MAX));
        // With fewer there is no choice.
        if held_max / 2 < blocks {
            tracing::warn!(
                "blocks are written as they come, not by erase units of {blocks}: that takes {} buffers and {} blocks, and there are {} and {all}",
                2 * blocks * BUFFERS_PER_HELD,
                2 * blocks * BLOCKS_PER_HELD,
                options.buffers_max
            );
            return none;
        }
        Self {
            blocks,
            held_max,
            near: NEAR * blocks as f64 / all as f64,
        }
    }
}

/// The first of the `count` positions, which are in order, that span the least, and what they span; `None` where there are fewer.
fn nearest(positions: &[f64], count: usize) -> Option<(usize, f64)> {
    let spans = positions.windows(count).map(|group| group[count - 1] - group[0]);
    spans.enumerate().min_by(|a, b| a.1.total_cmp(&b.1))
}

impl<B: Buffer> FlashStore<B> {
    /// A full block is written now, or held until those that it is to be written with are full.
    pub(super) fn retire_or_hold(&self, order: &mut Order<B>, block: Arc<OpenBlock<B>>) {
        if self.grouping.blocks == 1 {
            self.retire(block);
        } else {
            order.held.push(block);
        }
    }

    /// A block that was to be combined with another, and was not, is held as a full one: it is a mere buffer again.
    pub(crate) fn hold_again(&self, block: &Arc<OpenBlock<B>>) {
        let mut order = self.order.lock();
        block.is_merged.store(false, Ordering::Relaxed);
        if self.mapping_log.get().is_none() {
            block.sealing_position.store(u64::MAX, Ordering::Release);
        }
        self.blocks[block.id as usize].set_state(State::Active);
        order.held.push(Arc::clone(block));
        self.release_groups(&mut order);
    }

    /// Writes what is near enough to each other, and where more is held than may be, what is nearest.
    pub(super) fn release_groups(&self, order: &mut Order<B>) {
        let Grouping { held_max, near, .. } = self.grouping;
        if self.grouping.blocks == 1 {
            return;
        }
        loop {
            let blocks = self.blocks_to_fill_a_unit();
            let Some(ranked) = &order.ranked else { return };
            let queue = &ranked.queue;
            let mut positions: Vec<(f64, u32)> = (order.held.iter())
                .map(|block| (queue.position(Seat::Device(block.id)), block.id))
                .collect();
            positions.sort_by(|a, b| a.0.total_cmp(&b.0));
            let ordered: Vec<f64> = positions.iter().map(|(position, _)| *position).collect();
            let Some((first, span)) = nearest(&ordered, blocks) else {
                return;
            };
            if span > near && order.held.len() <= held_max {
                return;
            }
            let group = &positions[first..first + blocks];
            add(&self.counters.grouped_blocks, blocks as u64);
            for (at, (_, id)) in group.iter().enumerate() {
                let held = order.held.iter().position(|block| block.id == *id);
                let block = order.held.swap_remove(held.expect("it was found there"));
                block.starts_unit.store(at == 0, Ordering::Relaxed);
                self.retire(block);
            }
        }
    }

    /// How many blocks the next group has: those that still fit the unit that the drive is filling, but for less than a block that is
    /// made up before them ([`crate::align`]).
    fn blocks_to_fill_a_unit(&self) -> usize {
        let waiting = self.shared.structure.lock().to_seal.len() as u64;
        let (unit, block) = (self.erase_unit_bytes, self.geometry.block_bytes);
        let shift = (self.bytes_before() + waiting * block) % unit;
        let left = if self.is_aligned(shift) {
            unit
        } else {
            unit - shift
        };
        match left / block {
            0 => self.grouping.blocks,
            blocks => usize::try_from(blocks).expect("at most those of a group"),
        }
    }

    /// Starts writing all that is held; false where nothing is.
    pub(super) fn release_all(&self, order: &mut Order<B>) -> bool {
        let held = std::mem::take(&mut order.held);
        let is_any = !held.is_empty();
        held.into_iter().for_each(|block| self.retire(block));
        is_any
    }

    /// As [`FlashStore::release_all`] for who waits for a buffer.
    pub(crate) fn release_held(&self) -> bool {
        self.release_all(&mut self.order.lock())
    }

    /// Full blocks that wait for others to be written with.
    pub fn held_blocks(&self) -> usize {
        self.order.lock().held.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_go_together_that_span_the_least() {
        let positions = [0.1, 0.3, 0.35, 0.36, 0.6, 0.62];
        assert_eq!(nearest(&positions, 1).map(|(first, _)| first), Some(0));
        assert_eq!(nearest(&positions, 2).map(|(first, _)| first), Some(2));
        assert_eq!(nearest(&positions, 3).map(|(first, _)| first), Some(1));
        assert_eq!(nearest(&positions, 4).map(|(first, _)| first), Some(0));
        assert_eq!(nearest(&positions, 7), None);
    }
}
