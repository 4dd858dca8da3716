//! Two streams of blocks under `fifo` with two-phase reclaim: new objects, and those that reclaims keep.
//!
//! What reclaims keep goes to blocks of its own. As long as the blocks of new objects are more than their share of all, the oldest
//! of them is the victim, else the oldest of the kept ones. So what nobody asks for in the time that a small part of the flash
//! takes to fill goes after that time, and does not push out what is asked for; and what is asked for is written again
//! once for each round of the larger part, which is slow. This is S3-FIFO's division (SOSP '23, section 4: a small and a main
//! queue) with blocks in place of objects.
//!
//! S3-FIFO's small queue is a tenth, and a ghost queue in DRAM remembers what left it too early. Here there is no room for
//! such keys, and a tenth is too little for loads whose objects come back late, so the share follows the load: counted are
//! objects that are asked for the first time since they were written while they stand in the last blocks of either stream, which are
//! those that a smaller stream would have let go. The stream whose last blocks have more of them, by weight, grows.

use super::{BlockInfo, FlashStore, Pool, SealedBlock, SlotKind, State, order::POSITION_KEPT};
use crate::block::Stream;
use crate::queue::SavedPlace;
use pumice_memory::Buffer;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// Share of the blocks that is for new objects: at first, and the bounds.
const SHARE_FIRST: f64 = 0.25;
const SHARE_MIN: f64 = 1.0 / 16.0;
const SHARE_MAX: f64 = 0.75;
/// One block in so many is of the last ones of each stream.
const BLOCKS_PER_TAIL: usize = 16;
/// A first hit among the last of the kept objects is worth so many among the new: what was asked for in two places will be again.
/// With 1 the new stream takes half of the flash under a Zipf load, where an eighth has the fewest misses; with 4, a fifth.
const HITS_PER_KEPT_HIT: f64 = 4.0;
/// The share moves by so many blocks for each victim, at most.
const BLOCKS_PER_STEP: f64 = 0.5;

/// How flash is divided between the streams; see the module's text.
#[derive(Debug)]
pub(crate) struct Division {
    /// The part of the sealed blocks that is for new objects.
    share: f64,
    /// First hits in the last blocks of new and of kept objects, of late.
    hits: [f64; 2],
}

/// What a hit looks at, without a lock.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    /// Blocks of the stream with lower sequences are its last.
    below: AtomicU64,
    /// First hits there that were not looked at yet.
    hits: AtomicU64,
}

impl Division {
    /// That of a device on which so many blocks were found to be of new and of kept objects.
    pub(super) fn of(new: usize, kept: usize) -> Self {
        let share = match kept {
            0 => SHARE_FIRST,
            // As it was divided before the restart.
            _ => (new as f64 / (new + kept) as f64).clamp(SHARE_MIN, SHARE_MAX),
        };
        Self {
            share,
            hits: [0.0; 2],
        }
    }

    /// How many of so many sealed blocks are for new objects.
    fn wanted(&self, sealed: usize) -> usize {
        (self.share * sealed as f64) as usize
    }

    /// Takes in first hits per block since the last victim.
    fn follow(&mut self, hits: [f64; 2], blocks: usize) {
        let blocks = blocks as f64;
        let kept = 1.0 - BLOCKS_PER_TAIL as f64 / blocks.max(2.0 * BLOCKS_PER_TAIL as f64);
        for (sum, hits) in self.hits.iter_mut().zip(hits) {
            *sum = *sum * kept + hits;
        }
        let [new, old] = self.hits;
        let old = old * HITS_PER_KEPT_HIT;
        if new + old > 0.0 {
            let step = BLOCKS_PER_STEP / blocks * (new - old) / (new + old);
            self.share = (self.share + step).clamp(SHARE_MIN, SHARE_MAX);
        }
    }
}

/// Tells the stream of each sealed block, that of its trailer or of the checkpoint that knows it, and returns how many are of kept
/// objects.
pub(super) fn restore_kept(blocks: &[BlockInfo], sealed: &[SealedBlock], places: &[SavedPlace]) -> usize {
    let saved: HashSet<u32> = places.iter().filter_map(|place| place.block).collect();
    let mut count = 0;
    for block in sealed {
        let is_kept = match block.position {
            Some(position) => position == POSITION_KEPT,
            None => saved.contains(&block.id),
        };
        blocks[block.id as usize]
            .is_kept
            .store(is_kept, Ordering::Relaxed);
        count += usize::from(is_kept);
    }
    count
}

impl<B: Buffer> FlashStore<B> {
    /// The stream of a record that is about to be appended.
    pub(super) fn stream(&self, is_survivor: bool) -> Stream {
        if is_survivor && self.slot_kind == SlotKind::Hit {
            Stream::Kept
        } else {
            Stream::New
        }
    }

    /// The blocks of kept objects, as a checkpoint has them.
    pub(crate) fn save_kept(&self) -> Vec<SavedPlace> {
        let is_kept =
            |info: &BlockInfo| info.state() == State::Sealed && info.is_kept.load(Ordering::Relaxed);
        let numbered = (0..).zip(&*self.blocks);
        numbered
            .filter(|(_, info)| is_kept(info))
            .map(|(id, _)| SavedPlace {
                starts_section: false,
                block: Some(id),
                mark: 0,
            })
            .collect()
    }

    /// Sealed blocks of kept objects.
    pub fn kept_blocks(&self) -> usize {
        self.save_kept().len()
    }

    /// An object was asked for, for the first time since it was written.
    pub(super) fn note_first_hit(&self, block: u32) {
        let info = &self.blocks[block as usize];
        let tail = &self.tails[usize::from(info.is_kept.load(Ordering::Relaxed))];
        if info.sequence.load(Ordering::Relaxed) < tail.below.load(Ordering::Relaxed) {
            tail.hits.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The victim under a layout without sections, of the sealed blocks that may go. `is_kept_spared`: it is to make room whatever
    /// is in it, and new objects are worth least.
    pub(crate) fn lowest_of_streams(
        &self,
        pool: &Pool<B>,
        is_kept_spared: bool,
        may_go: impl Fn(&u32) -> bool,
    ) -> Option<u32> {
        let queue = &pool.own.queue;
        if self.slot_kind != SlotKind::Hit {
            return queue.iter().copied().find(may_go);
        }
        let is_kept = |id: &u32| self.blocks[*id as usize].is_kept.load(Ordering::Relaxed);
        let first = |stream: bool| {
            queue
                .iter()
                .copied()
                .find(|id| is_kept(id) == stream && may_go(id))
        };
        let enough = pool.own.division.wanted(queue.len()) + 1;
        let is_new_above = || queue.iter().filter(|id| !is_kept(id)).take(enough).count() >= enough;
        if is_kept_spared || is_new_above() {
            first(false).or_else(|| first(true))
        } else {
            first(true).or_else(|| first(false))
        }
    }

    /// A victim is about to be chosen: which stream is worth more is counted.
    pub(crate) fn follow_load(&self, pool: &mut Pool<B>) {
        if self.slot_kind != SlotKind::Hit {
            return;
        }
        let tail_blocks = (self.blocks.len() / BLOCKS_PER_TAIL).max(1);
        let mut hits = [0.0; 2];
        for (stream, tail) in self.tails.iter().enumerate() {
            let is_of =
                |id: &&u32| usize::from(self.blocks[**id as usize].is_kept.load(Ordering::Relaxed)) == stream;
            let last = pool.own.queue.iter().filter(is_of).take(tail_blocks);
            let (len, newest) = last.fold((0, None), |(len, _), id| (len + 1, Some(*id)));
            hits[stream] = tail.hits.swap(0, Ordering::Relaxed) as f64 / f64::from(len.max(1));
            let below = newest.map_or(0, |id| {
                self.blocks[id as usize].sequence.load(Ordering::Relaxed) + 1
            });
            tail.below.store(below, Ordering::Relaxed);
        }
        pool.own.division.follow(hits, self.blocks.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_new_objects_follows_where_first_hits_are() {
        let blocks = 1000;
        let mut division = Division::of(0, 0);
        assert_eq!(division.wanted(blocks), 250);
        assert_eq!(division.wanted(7), 1, "of few");
        assert_eq!(Division::of(500, 500).wanted(blocks), 500, "as it was");
        assert_eq!(
            Division::of(50, 50).wanted(blocks),
            500,
            "as it was when half was filled"
        );
        assert_eq!(
            Division::of(990, 5).wanted(blocks),
            750,
            "as it was, within the bounds"
        );
        assert_eq!(Division::of(990, 0).wanted(blocks), 250, "nothing was divided");
        let mut follow = |hits: [f64; 2], victims: usize| {
            for _ in 0..victims {
                division.follow(hits, blocks);
            }
            division.share * blocks as f64
        };
        assert_eq!(follow([0.0, 0.0], 100), 250.0, "nothing is known");
        assert!(
            (follow([4.0, 1.0], 100) - 250.0).abs() < 1e-6,
            "both are worth the same"
        );
        assert!(
            (follow([1.0, 0.0], 5000) - 750.0).abs() < 1e-6,
            "at most three quarters"
        );
        assert!(
            (follow([0.0, 1.0], 5000) - 62.5).abs() < 1e-6,
            "at least a sixteenth"
        );
        let before = follow([0.0, 1.0], 1);
        let after = follow([8.0, 1.0], 200);
        assert!(
            before < after && after < before + 100.0,
            "{before} to {after}: by steps"
        );
    }
}
