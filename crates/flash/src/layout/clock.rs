//! `clock`: an object that was asked for since it was written is written again when its block goes, to one of two streams of blocks: new
//! objects, and those that reclaims keep. One bit is kept of each object.
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

use super::ground::{Ground, NotePlace};
use super::ripq::queue::SavedPlace;
use super::seam::{Choice, Fate, Hits, Layout, POSITION_KEPT, Placed, SavedOrder, Wants};
use crate::block::{BlockInfo, SealedBlock};
use pumice_blocks::{Geometry, State};
use pumice_index::Mapping;
use std::collections::HashSet;
use std::sync::atomic::Ordering;

/// So few free blocks are too few to wait for the copies of kept objects.
const FREE_CRITICAL: usize = 2;
/// After so many victims in one piece of work the next ones are of new objects, of which fewer stay; after twice as many they go whole.
const ROUNDS_MAX: usize = 4;
/// A device of fewer blocks has one free block less ahead of need: it needs them for objects.
const SMALL_BLOCKS: u32 = 32;

/// The insertion point of what is kept; 0 is that of new objects.
const KEPT: usize = 1;

/// The note of an object that was asked for since it was written.
const HIT: u32 = 1;

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
struct Division {
    /// The part of the sealed blocks that is for new objects.
    share: f64,
    /// First hits in the last blocks of new and of kept objects, of late.
    hits: [f64; 2],
}

/// First hits in the last blocks of a stream.
#[derive(Debug, Default)]
struct Tail {
    /// Blocks of the stream with lower sequences are its last.
    below: u64,
    /// First hits there that were not looked at yet.
    hits: u64,
}

impl Division {
    /// That of a device on which so many blocks were found to be of new and of kept objects.
    fn of(new: usize, kept: usize) -> Self {
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

/// The two streams.
pub(super) struct Clock {
    /// The open block of each insertion point.
    open: [Option<u32>; 2],
    division: Division,
    tails: [Tail; 2],
    free_blocks: usize,
}

fn is_kept(info: &BlockInfo) -> bool {
    info.is_kept.load(Ordering::Relaxed)
}

impl Clock {
    pub(super) fn new(geometry: &Geometry) -> Self {
        Self {
            open: [None; 2],
            division: Division::of(0, 0),
            tails: Default::default(),
            free_blocks: FREE_CRITICAL + if geometry.blocks < SMALL_BLOCKS { 1 } else { 2 },
        }
    }

    /// The oldest block of the stream that has more than its share. `is_kept_spared`: new objects are worth least.
    fn oldest(&self, choice: &Choice<'_>, is_kept_spared: bool) -> Option<u32> {
        let is_kept = |id: &u32| is_kept(&choice.ground.blocks[*id as usize]);
        let first = |stream: bool| {
            let mut blocks = choice.by_age.iter().copied();
            blocks.find(|id| is_kept(id) == stream && choice.may_go(*id))
        };
        let enough = self.division.wanted(choice.by_age.len()) + 1;
        let is_new_above = || {
            let new = choice.by_age.iter().filter(|id| !is_kept(id));
            new.take(enough).count() >= enough
        };
        if is_kept_spared || is_new_above() {
            first(false).or_else(|| first(true))
        } else {
            first(true).or_else(|| first(false))
        }
    }

    /// Counts which stream is worth more.
    fn follow_load(&mut self, choice: &Choice<'_>) {
        let blocks = choice.ground.blocks;
        let tail_blocks = (blocks.len() / BLOCKS_PER_TAIL).max(1);
        let mut hits = [0.0; 2];
        for (stream, tail) in self.tails.iter_mut().enumerate() {
            let is_of = |id: &&u32| usize::from(is_kept(&blocks[**id as usize])) == stream;
            let last = choice.by_age.iter().filter(is_of).take(tail_blocks);
            let (len, newest) = last.fold((0, None), |(len, _), id| (len + 1, Some(*id)));
            hits[stream] = std::mem::take(&mut tail.hits) as f64 / f64::from(len.max(1));
            tail.below = newest.map_or(0, |id| blocks[id as usize].sequence.load(Ordering::Relaxed) + 1);
        }
        self.division.follow(hits, blocks.len());
    }
}

impl Layout for Clock {
    fn wants(&self) -> Wants {
        Wants {
            hits: Hits::First,
            dram_hot: true,
            kept_apart: true,
            // A reclaim that moves objects needs free blocks when it begins, and the moved objects may open a block.
            free_blocks: self.free_blocks,
            ..Wants::default()
        }
    }

    fn insert_again(&self, _ground: Ground<'_>, _from: Mapping) -> (Placed, bool) {
        (Placed { point: KEPT, note: 0 }, true)
    }

    fn points(&self) -> usize {
        self.open.len()
    }

    fn open_block(&self, point: usize) -> Option<u32> {
        self.open[point]
    }

    fn opened(&mut self, point: usize, block: u32, _is_full: bool) {
        self.open[point] = Some(block);
    }

    fn closed(&mut self, block: u32, _fill: Option<(usize, &dyn Fn() -> usize)>) {
        self.open
            .iter_mut()
            .filter(|open| **open == Some(block))
            .for_each(|open| *open = None);
    }

    /// Of an object that was not asked for before.
    fn hit(&mut self, ground: Ground<'_>, _hash: u64, mapping: Mapping, _object_bytes: u64) -> (u32, bool) {
        let info = &ground.blocks[ground.block_of(mapping.location) as usize];
        let tail = &mut self.tails[usize::from(is_kept(info))];
        tail.hits += u64::from(info.sequence.load(Ordering::Relaxed) < tail.below);
        (ground.set_note(mapping, HIT), false)
    }

    fn keeps(&self, ground: Ground<'_>, _hash: u64, mapping: Mapping, _is_tail: bool) -> bool {
        ground.note(mapping) == Some(HIT)
    }

    fn victim(&mut self, choice: &Choice<'_>) -> Option<(u32, Fate)> {
        self.follow_load(choice);
        let round = if choice.is_forced {
            choice.round.max(ROUNDS_MAX)
        } else {
            choice.round
        };
        let fate = if round < 2 * ROUNDS_MAX && choice.free >= FREE_CRITICAL {
            Fate::Move
        } else {
            Fate::Drop
        };
        let id = self.oldest(choice, fate == Fate::Drop || round >= ROUNDS_MAX)?;
        Some((id, fate))
    }

    fn trailer_position(&self, ground: Ground<'_>, block: u32) -> u16 {
        if is_kept(&ground.blocks[block as usize]) {
            POSITION_KEPT
        } else {
            u16::MAX
        }
    }

    /// The blocks of kept objects.
    fn save(&self, ground: Ground<'_>) -> SavedOrder {
        let numbered = (0..).zip(ground.blocks);
        let kept = numbered.filter(|(_, info)| info.state() == State::Sealed && is_kept(info));
        SavedOrder {
            places: kept
                .map(|(id, _)| SavedPlace {
                    starts_section: false,
                    block: Some(id),
                    mark: 0,
                })
                .collect(),
            ..SavedOrder::default()
        }
    }

    /// The stream of each sealed block is that of its trailer, or of the checkpoint that knows it.
    fn restore(&mut self, ground: Ground<'_>, sealed: &[SealedBlock], saved: SavedOrder) {
        let saved: HashSet<u32> = saved.places.iter().filter_map(|place| place.block).collect();
        let mut kept = 0;
        for block in sealed {
            let is_kept = match block.position {
                Some(position) => position == POSITION_KEPT,
                None => saved.contains(&block.id),
            };
            let info = &ground.blocks[block.id as usize];
            info.is_kept.store(is_kept, Ordering::Relaxed);
            kept += usize::from(is_kept);
        }
        self.division = Division::of(sealed.len() - kept, kept);
    }

    fn found(&mut self, ground: Ground<'_>, mapping: Mapping) -> u32 {
        match ground.notes {
            NotePlace::Mapping => mapping.note & HIT,
            NotePlace::Nowhere | NotePlace::Slot => mapping.note,
        }
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
