//! Which blocks are copied: those that are read most, by counts that fade.

use super::table::Table;

/// Reads of an average block between two choices.
pub const READS_A_ROUND: u64 = 8;
/// What of a count is left at the next choice: an average block counts with some 80 reads.
const FADES_TO: f32 = 0.9;
/// A block takes the place of another where their counts differ by so many standard errors each: what differs by chance does not swap.
const ERRORS: f32 = 2.0;

#[derive(Clone, Copy, Default)]
struct Heat {
    /// The number of reads. Each round takes it times [`FADES_TO`] before it adds its own.
    reads: f32,
    /// The number of rounds, faded in the same way: `reads / rounds` is the reads of a round, also after few rounds.
    rounds: f32,
    version: u32,
}

impl Heat {
    fn error(&self) -> f32 {
        ERRORS * (self.reads + 1.0).sqrt()
    }

    /// The least rate that is likely.
    fn low(&self) -> f32 {
        (self.reads - self.error()) / self.rounds
    }

    /// The highest rate that is likely.
    fn high(&self) -> f32 {
        (self.reads + self.error()) / self.rounds
    }
}

/// A block that is to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub block: u32,
    pub place: u32,
    /// The block whose copy is there.
    pub instead_of: Option<u32>,
}

/// One owner at a time; see [`Tier::is_copying`](super::Tier).
pub struct Chooser {
    heats: Vec<Heat>,
    /// Whose copy a place has, or had.
    owners: Vec<Option<u32>>,
}

impl Chooser {
    pub fn new(blocks: u32, places: u32) -> Self {
        Self {
            heats: vec![Heat::default(); blocks as usize],
            owners: vec![None; places as usize],
        }
    }

    pub fn set_owner(&mut self, place: u32, block: u32) {
        self.owners[place as usize] = Some(block);
    }

    /// Ends a round of counting. Returns what is to be copied, the most read first, at most `most` blocks.
    pub fn round(&mut self, table: &Table, most: u64) -> Vec<Choice> {
        for (block, heat) in (0..).zip(&mut self.heats) {
            let (reads, version) = (table.take_reads(block), table.version(block));
            if version == heat.version {
                heat.reads = heat.reads * FADES_TO + reads as f32;
                heat.rounds = heat.rounds * FADES_TO + 1.0;
            } else {
                // Another content: of whom these reads were nobody knows.
                *heat = Heat {
                    version,
                    ..Heat::default()
                };
            }
        }
        let heats = &self.heats;
        let of = |block: u32| heats[block as usize];
        let mut wanted: Vec<u32> = (0..heats.len() as u32)
            .filter(|block| of(*block).low() > 0.0 && table.begin_copy(*block).is_some())
            .collect();
        wanted.sort_by(|a, b| of(*b).low().total_cmp(&of(*a).low()));
        let mut free = Vec::new();
        let mut taken = Vec::new();
        for (place, owner) in (0..).zip(&mut self.owners) {
            match *owner {
                Some(block) if table.place(block) == Some(place) => taken.push((place, block)),
                _ => {
                    *owner = None;
                    if !table.is_pinned(place) {
                        free.push(place);
                    }
                }
            }
        }
        taken.sort_by(|(_, a), (_, b)| of(*a).high().total_cmp(&of(*b).high()));
        let mut taken = taken.into_iter();
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let choices = wanted.into_iter().take(most).map_while(|block| {
            if let Some(place) = free.pop() {
                let instead_of = None;
                return Some(Choice {
                    block,
                    place,
                    instead_of,
                });
            }
            let (place, coldest) = taken.next()?;
            (of(block).low() > of(coldest).high()).then_some(Choice {
                block,
                place,
                instead_of: Some(coldest),
            })
        });
        choices.collect()
    }
}
