//! Blocks that are written together, because the drive's erase unit holds several.
//!
//! What is written one after the other shares an erase unit, and the unit is free when the last of it is dead. Under `ripq` blocks that
//! are full at the same time stand all over the queue and die at different times; with four blocks to a unit, written as they come, a drive with a
//! tenth of spare space writes up to 2.9 times what it is sent. The paper has blocks as large as units (FAST '15, section 3), which is the
//! better choice where there are enough of them. Where blocks are smaller, a full one is held in its buffer until as many as fill
//! a unit are near each other in the queue, where they die one after the other, and these are written in a row.
//!
//! Held is at most [`UNITS_HELD_MAX`] units, a sixth of the blocks, and as many buffers as sections leave ([`held_blocks`]): when there are more, those that are
//! nearest to each other go. More would not be better: as long as a block is open or held, the drive keeps what stood in its place before. A held
//! block is like one that is being filled, but that nothing is added to it: its objects are read from the buffer, what dies in it needs no
//! record, and a crash loses it.

use super::{FlashStore, Order, State};
use crate::block::OpenBlock;
use crate::geometry::Geometry;
use crate::layout::{Layout, LayoutOptions};
use crate::queue::Seat;
use crate::recovery::OpenOptions;
use pumice_memory::Buffer;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Blocks of so many units are held at most. On wiki-val with gdsf-3 a drive whose units hold four blocks wrote 1.49 times what was inserted
/// where it was 4, 1.12 times with 6 and with 8, and 3.23 times when none were held.
const UNITS_HELD_MAX: usize = 6;
/// One block in so many may be held.
const BLOCKS_PER_HELD: usize = 6;
/// Blocks are near enough to each other to be written at once where they span so many times the share of the queue that they are of all
/// blocks. With 16 gdsf-3 on a Zipf load wrote 2.1 times instead of 1.5; with 4 somewhat more than with 8 on most traces.
const NEAR: f64 = 8.0;

/// Buffers of blocks that are being filled and written: sections are of alpha to 2 alpha, so there are seldom more than 1.25 / alpha.
pub fn open_buffers(alpha: f64) -> usize {
    (1.25 / alpha).ceil() as usize + 4
}

/// How many full blocks are held at most under a layout, of `blocks` with so many buffers in all, where an erase unit has `unit_bytes` (0: not
/// known) and a block `block_bytes`; 0 where none are, since a unit holds no whole number of them above 1, or there is no choice among
/// fewer than two units of them.
pub fn held_blocks(
    layout: &LayoutOptions,
    unit_bytes: u64,
    block_bytes: u64,
    blocks: u64,
    buffers: usize,
) -> usize {
    if layout.layout != Layout::Ripq || unit_bytes <= block_bytes || !unit_bytes.is_multiple_of(block_bytes) {
        return 0;
    }
    let of_unit = usize::try_from(unit_bytes / block_bytes).unwrap_or(usize::MAX);
    let held = usize::try_from(blocks)
        .map_or(usize::MAX, |blocks| blocks / BLOCKS_PER_HELD)
        .min(buffers.saturating_sub(open_buffers(layout.alpha)))
        .min(of_unit.saturating_mul(UNITS_HELD_MAX));
    if held / 2 < of_unit { 0 } else { held }
}

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
        let (unit, block, all) = (options.erase_unit_bytes, geometry.block_bytes, geometry.blocks);
        let held_max = held_blocks(&options.layout, unit, block, all.into(), options.buffers_max);
        if held_max == 0 {
            if options.layout.layout == Layout::Ripq && unit != 0 && !block.is_multiple_of(unit) {
                tracing::warn!(
                    "blocks of {block} bytes are written as they come, not by erase units of {unit} bytes: neither is a multiple of the other, \
                     or {} buffers and {all} blocks are too few for that",
                    options.buffers_max
                );
            }
            return Self {
                blocks: 1,
                held_max,
                near: 0.0,
            };
        }
        let blocks = unit / block;
        Self {
            blocks: usize::try_from(blocks).expect("at most half of what is held"),
            held_max,
            near: NEAR * blocks as f64 / f64::from(all),
        }
    }
}

/// Of `count` positions in a row, which are in order, the first of those that span the least, themselves or with another position, and what
/// they span so; `None` where there are fewer.
fn nearest(positions: &[f64], count: usize, with: Option<f64>) -> Option<(usize, f64)> {
    let spans = positions.windows(count).map(|group| {
        let (lowest, highest) = (group[0], group[count - 1]);
        with.map_or(highest - lowest, |with| highest.max(with) - lowest.min(with))
    });
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
        while let Some((group, span)) = self.next_group(order) {
            if span > near && order.held.len() <= held_max {
                return;
            }
            self.release(order, &group);
        }
    }

    /// Starts writing what is nearest to each other, or all that is held where that is no unit; false where nothing is.
    pub(super) fn release_one(&self, order: &mut Order<B>) -> bool {
        match self.next_group(order) {
            Some((group, _)) => {
                self.release(order, &group);
                true
            }
            None => self.release_all(order),
        }
    }

    /// Starts writing all that is held; false where nothing is.
    pub(super) fn release_all(&self, order: &mut Order<B>) -> bool {
        let held = std::mem::take(&mut order.held);
        let is_any = !held.is_empty();
        held.into_iter().for_each(|block| self.retire(block));
        is_any
    }

    /// As [`FlashStore::release_one`] for who waits for a buffer.
    pub(crate) fn release_held(&self) -> bool {
        self.release_one(&mut self.order.lock())
    }

    /// The held blocks that would be written next, and the part of the queue that they span: those that are nearest to each other; where
    /// others have begun their unit, those that are nearest to where these stood. `None` where fewer are held.
    fn next_group(&self, order: &Order<B>) -> Option<(Vec<u32>, f64)> {
        if self.grouping.blocks == 1 {
            return None;
        }
        let queue = &order.ranked.as_ref()?.queue;
        let mut held: Vec<(f64, u32)> = (order.held.iter())
            .map(|block| (queue.position(Seat::Device(block.id)), block.id))
            .collect();
        held.sort_by(|a, b| a.0.total_cmp(&b.0));
        let positions: Vec<f64> = held.iter().map(|(position, _)| *position).collect();
        let count = self.blocks_to_fill_a_unit();
        let near_to = (count < self.grouping.blocks).then_some(order.group_at);
        let (first, span) = nearest(&positions, count, near_to)?;
        Some((
            held[first..first + count].iter().map(|(_, id)| *id).collect(),
            span,
        ))
    }

    fn release(&self, order: &mut Order<B>, group: &[u32]) {
        for id in group {
            let at = order.held.iter().position(|block| block.id == *id);
            let block = order.held.swap_remove(at.expect("it is held"));
            block.is_grouped.store(true, Ordering::Relaxed);
            if let Some(ranked) = &order.ranked {
                order.group_at = ranked.queue.position(Seat::Device(*id));
            }
            self.retire(block);
        }
    }

    /// How many blocks the next group has: those that still fit the unit that the drive is filling, but for less than a block that is
    /// made up before them ([`crate::align`]).
    fn blocks_to_fill_a_unit(&self) -> usize {
        let block = self.geometry.block_bytes;
        // One that is to be combined with another is not written now.
        let waiting = {
            let structure = self.shared.structure.lock();
            let waiting = structure.to_seal.iter();
            waiting
                .filter(|block| !block.is_merged.load(Ordering::Relaxed))
                .count() as u64
        };
        let before = self.bytes_before() + waiting * block;
        let begun = (before + self.bytes_to_align(before)) / block % self.grouping.blocks as u64;
        self.grouping.blocks - usize::try_from(begun).expect("less than those of a unit")
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
        let first = |count, with| nearest(&positions, count, with).map(|(first, _)| first);
        assert_eq!(first(2, None), Some(2));
        assert_eq!(first(3, None), Some(1));
        assert_eq!(first(4, None), Some(0));
        assert_eq!(first(7, None), None);
        assert_eq!(first(1, Some(0.5)), Some(4));
        assert_eq!(first(2, Some(0.6)), Some(4));
        assert_eq!(nearest(&positions, 2, Some(0.5)).unwrap().1, 0.62 - 0.5);
    }

    #[test]
    fn no_more_is_held_than_there_is_room_for() {
        let layout = LayoutOptions::new(Layout::Ripq, None, Some(0.125), None).unwrap();
        let held = |unit: u64, blocks, buffers| held_blocks(&layout, unit << 20, 4 << 20, blocks, buffers);
        assert_eq!(open_buffers(layout.alpha), 14);
        assert_eq!(held(16, 1_024, 100), 24);
        assert_eq!(held(16, 1_024, 14 + 9), 9);
        assert_eq!(held(16, 1_024, 14 + 7), 0, "no two units of buffers");
        assert_eq!(held(16, 60, 100), 10);
        assert_eq!(held(16, 42, 100), 0, "too few blocks");
        assert_eq!(
            (held(4, 1_024, 100), held(2, 1_024, 100), held(0, 1_024, 100)),
            (0, 0, 0)
        );
        assert_eq!(held(18, 1_024, 100), 0, "no whole number of blocks");
        let fifo = LayoutOptions::default();
        assert_eq!(held_blocks(&fifo, 16 << 20, 4 << 20, 1_024, 100), 0);
    }
}
