//! Marks of regions whose writes a power cut may undo.
//!
//! A power cut may undo writes of the volume that were not flushed. The volume then has older bytes than the cache has. So a *region* is
//! marked durably before the volume is written there, and the mark is cleared after a flush of the volume that follows the last write.
//! After a power cut nothing cached of a marked region counts. One flush of the cache device serves all writes to a marked region: their
//! own log records need none.
//!
//! ```text
//! None --write begins--> Logged --commit (flush of the cache device)--> Durable --volume flushed, no write since `quiet`--> None
//! ```

use locks::Mutex;
use std::ops::Range;

/// The most regions of a volume.
const REGIONS_MAX: u64 = 4096;
/// The fewest chunks of a region, as a power of two.
const SHIFT_MIN: u32 = 6;
/// A region without writes since so many calls of [`Regions::quiet`] is quiet: the next write is likely to come later.
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
    /// The value of `turn` at the last write.
    touched: u32,
    /// Number of writes begun, modulo 2^32.
    begun: u32,
}

/// All regions of a volume. They have a lock of their own; marks are made and cleared under that of the addresses too, under which the log
/// has their order.
#[derive(Debug)]
pub(super) struct Regions {
    shift: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    regions: Box<[Region]>,
    turn: u32,
}

/// Regions that may be cleared after a flush of the volume, if no write begins there before. With the number of writes begun.
#[derive(Debug, Default)]
pub struct Quiet(Vec<(u32, u32)>);

impl Quiet {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Regions {
    /// Regions of a volume of `chunks`, none marked.
    pub(super) fn new(chunks: u64) -> Self {
        Self {
            shift: Self::shift_of(chunks),
            state: Mutex::new(State {
                regions: vec![Region::default(); Self::count(chunks) as usize].into(),
                turn: 0,
            }),
        }
    }

    /// Regions of a volume of so many chunks.
    pub(super) fn count(chunks: u64) -> u64 {
        (chunks >> Self::shift_of(chunks)) + 1
    }

    fn shift_of(chunks: u64) -> u32 {
        let mut shift = SHIFT_MIN;
        while chunks >> shift >= REGIONS_MAX {
            shift += 1;
        }
        shift
    }

    /// The regions of a range of chunks.
    pub(super) fn of(&self, chunks: &Range<u64>) -> Range<usize> {
        match chunks.is_empty() {
            true => 0..0,
            false => (chunks.start >> self.shift) as usize..((chunks.end - 1) >> self.shift) as usize + 1,
        }
    }

    /// Notes that a write begins; calls `log` for each region to be marked, which says whether it was recorded.
    pub(super) fn begin(&self, regions: Range<usize>, mut log: impl FnMut(u64) -> bool) {
        let mut state = self.state.lock();
        let turn = state.turn;
        for number in regions {
            let region = &mut state.regions[number];
            region.writers += 1;
            region.begun = region.begun.wrapping_add(1);
            region.touched = turn;
            if region.mark == Mark::None && log(number as u64) {
                region.mark = Mark::Logged;
            }
        }
    }

    /// Notes that a write ends.
    pub(super) fn end(&self, regions: Range<usize>) {
        let mut state = self.state.lock();
        let turn = state.turn;
        for region in &mut state.regions[regions] {
            region.writers -= 1;
            region.touched = turn;
        }
    }

    /// Whether the marks of regions are durable.
    pub(super) fn are_durable(&self, regions: Range<usize>) -> bool {
        let state = self.state.lock();
        let mut regions = state.regions[regions].iter();
        regions.all(|region| region.mark == Mark::Durable)
    }

    /// Notes that the logged marks of regions are durable.
    pub(super) fn made_durable(&self, regions: Range<usize>) {
        for region in &mut self.state.lock().regions[regions] {
            region.mark = region.mark.max(Mark::Logged);
            if region.mark == Mark::Logged {
                region.mark = Mark::Durable;
            }
        }
    }

    /// Marked regions without a write under way; unless `all`, only those without a write since the previous call.
    pub(super) fn quiet(&self, all: bool) -> Quiet {
        let mut state = self.state.lock();
        state.turn = state.turn.wrapping_add(1);
        let is_quiet = |region: &Region| {
            let rested = state.turn.wrapping_sub(region.touched) >= QUIET_TURNS;
            region.mark > Mark::None && region.writers == 0 && (all || rested)
        };
        let numbered = (0u32..).zip(&state.regions);
        let quiet = numbered.filter(|(_, region)| is_quiet(region));
        Quiet(quiet.map(|(number, region)| (number, region.begun)).collect())
    }

    /// Clears the marks of regions in which no write has begun since `quiet`; calls `log` for each. The volume was flushed meanwhile.
    pub(super) fn clear(&self, quiet: &Quiet, mut log: impl FnMut(u64)) {
        let mut state = self.state.lock();
        for (number, begun) in &quiet.0 {
            let region = &mut state.regions[*number as usize];
            if region.begun == *begun && region.mark > Mark::None {
                region.mark = Mark::None;
                log(u64::from(*number));
            }
        }
    }

    /// Marked regions.
    pub(super) fn marked(&self) -> Vec<u32> {
        let state = self.state.lock();
        let marked = (0u32..).zip(&state.regions);
        let marked = marked.filter(|(_, region)| region.mark > Mark::None);
        marked.map(|(number, _)| number).collect()
    }
}

/// The region of a chunk in a volume of `chunks`.
pub(super) fn region_of(chunks: u64, address: u64) -> u64 {
    address >> Regions::shift_of(chunks)
}
