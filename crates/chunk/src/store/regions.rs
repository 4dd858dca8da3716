//! Which parts of the volume may have lost writes after a power cut.
//!
//! The volume may lose what was written to it and not flushed, and then has older bytes than the cache has, or than somebody has read. A
//! *region* is marked, and the mark is durable, before the volume is written there; the mark is cleared when the volume was flushed
//! after its last write. After a power cut nothing that is cached of a marked region counts. So one flush of the cache device stands for
//! many writes, whose own records need none.

use std::collections::BTreeSet;
use std::ops::Range;

/// The most regions of a volume.
const REGIONS_MAX: u64 = 4096;
/// The fewest chunks of a region, as a power of two.
const SHIFT_MIN: u32 = 6;
/// Turns of [`Regions::quiet`] that a region is left alone after a write: it is likely to be written again.
const QUIET_TURNS: u32 = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Mark {
    #[default]
    None,
    /// Its record is in the log.
    Logged,
    Durable,
}

#[derive(Clone, Copy, Debug, Default)]
struct Region {
    mark: Mark,
    /// Writes under way.
    writers: u32,
    /// The turn of the last write.
    touched: u32,
    /// Writes that have begun, modulo 2^32.
    begun: u32,
}

/// All regions of a volume.
#[derive(Debug)]
pub(super) struct Regions {
    shift: u32,
    regions: Box<[Region]>,
    turn: u32,
}

/// Regions that can be cleared once the volume is flushed, unless somebody writes there before.
#[derive(Debug, Default)]
pub struct Quiet(Vec<(u32, u32)>);

impl Quiet {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Regions {
    /// Of a volume of so many chunks.
    pub(super) fn new(chunks: u64) -> Self {
        let shift = Self::shift_of(chunks);
        let count = (chunks >> shift) as usize + 1;
        Self {
            shift,
            regions: vec![Region::default(); count].into(),
            turn: 0,
        }
    }

    fn shift_of(chunks: u64) -> u32 {
        let mut shift = SHIFT_MIN;
        while chunks >> shift >= REGIONS_MAX {
            shift += 1;
        }
        shift
    }

    /// Those that chunks lie in.
    pub(super) fn of(&self, chunks: &Range<u64>) -> Range<usize> {
        match chunks.is_empty() {
            true => 0..0,
            false => (chunks.start >> self.shift) as usize..((chunks.end - 1) >> self.shift) as usize + 1,
        }
    }

    /// A write begins; `log` records a mark.
    pub(super) fn begin(&mut self, regions: Range<usize>, mut log: impl FnMut(u64)) {
        for number in regions {
            let region = &mut self.regions[number];
            region.writers += 1;
            region.begun = region.begun.wrapping_add(1);
            region.touched = self.turn;
            if region.mark == Mark::None {
                region.mark = Mark::Logged;
                log(number as u64);
            }
        }
    }

    /// A write ends.
    pub(super) fn end(&mut self, regions: Range<usize>) {
        for region in &mut self.regions[regions] {
            region.writers -= 1;
            region.touched = self.turn;
        }
    }

    /// Whether the marks of regions are durable.
    pub(super) fn are_durable(&self, regions: Range<usize>) -> bool {
        self.regions[regions]
            .iter()
            .all(|region| region.mark == Mark::Durable)
    }

    /// What was logged is durable.
    pub(super) fn made_durable(&mut self, regions: Range<usize>) {
        for region in &mut self.regions[regions] {
            region.mark = region.mark.max(Mark::Logged);
            if region.mark == Mark::Logged {
                region.mark = Mark::Durable;
            }
        }
    }

    /// Marked regions in which no write is under way; unless `all`, nor was for a while. A turn passes.
    pub(super) fn quiet(&mut self, all: bool) -> Quiet {
        self.turn = self.turn.wrapping_add(1);
        let is_quiet = |region: &Region| {
            let rested = self.turn.wrapping_sub(region.touched) >= QUIET_TURNS;
            region.mark > Mark::None && region.writers == 0 && (all || rested)
        };
        let numbered = (0u32..).zip(&self.regions);
        let quiet = numbered.filter(|(_, region)| is_quiet(region));
        Quiet(quiet.map(|(number, region)| (number, region.begun)).collect())
    }

    /// The volume was flushed since: takes the marks away where no write has begun.
    pub(super) fn clear(&mut self, quiet: &Quiet, mut log: impl FnMut(u64)) {
        for (number, begun) in &quiet.0 {
            let region = &mut self.regions[*number as usize];
            if region.begun == *begun && region.mark > Mark::None {
                region.mark = Mark::None;
                log(u64::from(*number));
            }
        }
    }

    /// Chunks of marked regions, in ranges of at most `most`, of a volume of `chunks`.
    pub(super) fn marked_chunks(&self, chunks: u64, most: u64) -> Vec<Range<u64>> {
        let ranges = self.marked().flat_map(|region| {
            let start = u64::from(region) << self.shift;
            let end = (start + (1 << self.shift)).min(chunks);
            let starts = (start..end).step_by(most as usize);
            starts.map(move |start| start..(start + most).min(end))
        });
        ranges.collect()
    }

    /// Marked regions.
    pub(super) fn marked(&self) -> impl Iterator<Item = u32> {
        let marked = (0u32..).zip(&self.regions);
        marked
            .filter(|(_, region)| region.mark > Mark::None)
            .map(|(number, _)| number)
    }
}

/// Marks that a start finds.
#[derive(Debug, Default)]
pub(super) struct Marked(BTreeSet<u64>);

impl Marked {
    pub(super) fn set(&mut self, region: u64, is_marked: bool) {
        match is_marked {
            true => self.0.insert(region),
            false => self.0.remove(&region),
        };
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a chunk of a volume of `chunks` lies in a marked region.
    pub(super) fn has(&self, chunks: u64, address: u64) -> bool {
        !self.0.is_empty() && self.0.contains(&(address >> Regions::shift_of(chunks)))
    }
}
