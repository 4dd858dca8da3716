//! What a power cut takes: writes and appends that were completed and not flushed.

use pumice_device::ChunkMap;
use pumice_device::SECTOR_BYTES;
use pumice_world::Random;
use std::collections::BTreeMap;

const PAGE_BYTES: u64 = SECTOR_BYTES as u64;

/// Writes and appends since the last flush, in the order in which they were applied.
#[derive(Debug, Default)]
pub(super) struct Unflushed(Vec<Change>);

#[derive(Debug)]
struct Change {
    offset: u64,
    old: Vec<u8>,
    new: Vec<u8>,
    is_append: bool,
}

impl Unflushed {
    /// Notes a change that is about to be made.
    pub(super) fn note(&mut self, content: &ChunkMap, offset: u64, new: &[u8], is_append: bool) {
        let mut old = vec![0; new.len()];
        content.read(offset, &mut old);
        let new = new.to_vec();
        self.0.push(Change {
            offset,
            old,
            new,
            is_append,
        });
    }

    /// Everything up to now is durable.
    pub(super) fn flush(&mut self) {
        self.0.clear();
    }

    /// Keeps a choice of the changes and undoes the others; returns how many were lost in whole or in part. Of appends, which go
    /// through pages of the page cache, each page keeps a first part, since a page that is written has all that it had by then; pages
    /// are written in any order. Of a write all, nothing, or a scattered choice of its sectors is kept.
    pub(super) fn lose(&mut self, content: &mut ChunkMap, rng: &mut Random) -> u64 {
        let changes = std::mem::take(&mut self.0);
        for change in changes.iter().rev() {
            content.write(change.offset, &change.old);
        }
        let mut left: BTreeMap<u64, u64> = BTreeMap::new();
        for change in changes.iter().filter(|change| change.is_append) {
            *left.entry(change.offset / PAGE_BYTES).or_default() += 1;
        }
        for count in left.values_mut() {
            *count = rng.below(*count + 1);
        }
        let mut lost = 0;
        for change in &changes {
            let kept = if change.is_append {
                let left = left
                    .get_mut(&(change.offset / PAGE_BYTES))
                    .expect("counted above");
                let is_kept = *left > 0;
                *left = left.saturating_sub(1);
                if is_kept { Kept::All } else { Kept::Nothing }
            } else {
                match rng.below(3) {
                    0 => Kept::All,
                    1 => Kept::Nothing,
                    _ => Kept::SomeSectors,
                }
            };
            lost += u64::from(!matches!(kept, Kept::All));
            match kept {
                Kept::All => content.write(change.offset, &change.new),
                Kept::Nothing => {}
                Kept::SomeSectors => {
                    for (index, sector) in change.new.chunks(SECTOR_BYTES).enumerate() {
                        if rng.below(2) == 0 {
                            content.write(change.offset + (index * SECTOR_BYTES) as u64, sector);
                        }
                    }
                }
            }
        }
        lost
    }
}

enum Kept {
    All,
    Nothing,
    SomeSectors,
}
