//! Reclaim of blocks: see the text of the module `store`.

use super::{ChunkStore, Spot, Starts};
use crate::buckets::BUCKET_SLOTS;
use crate::keep::{Candidate, choose};
use crate::lba::LbaIndex;
use crate::piece::{Entry, REFERENCE_BYTES};
use crate::place::Place;
use pumice_blocks::footer::Entry as _;
use pumice_blocks::log::Kind;
use pumice_blocks::{State, add, give_turn};
use pumice_device::Device;
use pumice_memory::Buffer;
use std::ops::Range;

/// Buckets visited in one hold of the lock.
const BUCKETS_AT_ONCE: usize = 64;
/// References appended in one hold of the lock.
const REFERENCES_AT_ONCE: usize = 64;
/// Most bytes that a reclaim keeps, in hundredths of its victims' bytes. With 30, blocks of 16 chunks wrote 1.501 bytes for each compressed
/// new byte; with 20, a cache as large as its volume lost a point of hits.
pub(super) const KEPT_PERCENT: u64 = 29;

/// A reclaim remembers at most as many mappings as an eighth of the index's slots. The others are lost, and read again from the volume.
const REMEMBERED_SHARE: usize = 8;
/// What a reference takes of a block: itself, and its entry in the footer.
const REFERENCE_COST: u64 = (REFERENCE_BYTES + Entry::BYTES) as u64;

/// Result of a sweep over the LBA-index for the victims. Memory: 12 bytes a content, 16 to 32 bytes a mapping.
struct Sweep {
    /// By block: a victim's range of `candidates`; empty for others.
    numbers: Vec<Range<u32>>,
    candidates: Vec<Candidate>,
    /// Candidate and address of each mapping to a victim, sorted.
    references: Vec<(u32, u64)>,
    references_max: usize,
    /// Most mappings of a content: their references have at most half of the bytes that are kept. Of a content that most of a volume has, as
    /// zeros, some mappings are kept.
    references_of_content_max: u32,
}

/// Number of the candidate at a place.
fn candidate(numbers: &[Range<u32>], place: Place) -> Option<u32> {
    let range = &numbers[place.block as usize];
    let number = range.start.checked_add(place.number)?;
    range.contains(&number).then_some(number)
}

impl Sweep {
    /// Counts the mappings of a bucket to victims.
    fn count(&mut self, index: &LbaIndex, bucket: usize) {
        let numbers = &self.numbers;
        index.visit(
            bucket,
            |place| !numbers[place.block as usize].is_empty(),
            |slot, age| {
                let number = candidate(numbers, slot.place);
                let is_full = self.references.len() >= self.references_max;
                let Some(number) = number.filter(|_| !is_full) else {
                    return;
                };
                let candidate = &mut self.candidates[number as usize];
                if candidate.references >= self.references_of_content_max {
                    return;
                }
                candidate.refer(age);
                self.references.push((number, slot.address));
            },
        );
    }

    /// The mappings to a candidate.
    fn references(&self, number: u32) -> &[(u32, u64)] {
        let from = self.references.partition_point(|(other, _)| *other < number);
        let to = self.references.partition_point(|(other, _)| *other <= number);
        &self.references[from..to]
    }
}

/// All buckets, in batches.
pub(super) fn batches(buckets: usize) -> impl Iterator<Item = Range<usize>> {
    let starts = (0..buckets).step_by(BUCKETS_AT_ONCE);
    starts.map(move |start| start..(start + BUCKETS_AT_ONCE).min(buckets))
}

impl<B: Buffer> ChunkStore<B> {
    /// Removes all mappings and fingerprints for whose place `is_gone` is true, some buckets in each step of the iterator, whose item is the
    /// number of mappings removed. Cost: a pass over both indexes.
    pub(super) fn forget_places(&self, is_gone: impl Fn(Place) -> bool + Copy) -> impl Iterator<Item = u64> {
        let (lba_buckets, fp_buckets) = self.bucket_counts();
        let mappings = batches(lba_buckets).map(move |batch| {
            let mut maps = self.maps.lock();
            let retain = |bucket| maps.lba.retain(bucket, |place| !is_gone(place)) as u64;
            batch.map(retain).sum()
        });
        let contents = batches(fp_buckets).map(move |batch| {
            let mut maps = self.maps.lock();
            for bucket in batch {
                maps.fp.retain(bucket, |place| !is_gone(place));
            }
            0
        });
        mappings.chain(contents)
    }

    pub(super) fn bucket_counts(&self) -> (usize, usize) {
        let maps = self.maps.lock();
        (maps.lba.buckets(), maps.fp.buckets())
    }

    /// Frees the blocks `victims`. If the future is dropped, the next reclaim takes them.
    pub(super) async fn reclaim<D: Device<Buf = B>>(&self, device: &D, victims: &[u32]) {
        {
            // Duplicates are mapped under this lock: none is mapped to a victim from here on.
            let _maps = self.maps.lock();
            for victim in victims {
                self.base.blocks[*victim as usize].set_state(State::Reclaiming);
            }
        }
        let kept_bytes = victims.len() as u64 * self.base.geometry.block_bytes / 100 * KEPT_PERCENT;
        let sweep = self.sweep(victims, kept_bytes).await;
        for number in choose(&sweep.candidates, kept_bytes) {
            self.keep(device, &sweep, victims, number as u32).await;
        }
        let is_gone = |place: Place| !sweep.numbers[place.block as usize].is_empty();
        for mappings in self.forget_places(is_gone) {
            add(&self.counters.reclaimed_mappings, mappings);
            give_turn().await;
        }
        for victim in victims {
            let sequence = self.sequence(*victim);
            self.log(device, Kind::Reclaim, u64::from(*victim), sequence);
            self.maps.lock().starts[*victim as usize] = Starts::None;
            self.count(&self.counters.reclaimed_blocks);
            self.base.shared.change(|pool| self.base.give_back(pool, *victim));
        }
    }

    async fn sweep(&self, victims: &[u32], kept_bytes: u64) -> Sweep {
        let buckets = self.bucket_counts().0;
        let mut sweep = Sweep {
            numbers: vec![0..0; self.base.geometry.blocks as usize],
            candidates: Vec::new(),
            references: Vec::new(),
            references_max: buckets * BUCKET_SLOTS / REMEMBERED_SHARE,
            references_of_content_max: u32::try_from(1 + kept_bytes / 2 / REFERENCE_COST).unwrap_or(u32::MAX),
        };
        {
            let maps = self.maps.lock();
            for block in victims.iter().copied() {
                let first = sweep.candidates.len() as u32;
                for number in 0..maps.starts[block as usize].len() {
                    let spot = self.spot(&maps, Place { block, number });
                    let bytes = spot.map_or(0, |spot| spot.len_max as u32);
                    sweep.candidates.push(Candidate::new(bytes));
                }
                sweep.numbers[block as usize] = first..sweep.candidates.len() as u32;
            }
        }
        for batch in batches(buckets) {
            {
                let maps = self.maps.lock();
                for bucket in batch {
                    sweep.count(&maps.lba, bucket);
                }
            }
            give_turn().await;
        }
        sweep.references.sort_unstable();
        sweep
    }

    /// Appends a candidate's content anew, and moves its mappings to the new place.
    async fn keep<D: Device<Buf = B>>(&self, device: &D, sweep: &Sweep, victims: &[u32], number: u32) {
        let at = victims.partition_point(|victim| sweep.numbers[*victim as usize].end <= number);
        let Some(block) = victims.get(at).copied() else {
            return;
        };
        let place = Place {
            block,
            number: number - sweep.numbers[block as usize].start,
        };
        let spot = self.spot(&self.maps.lock(), place);
        if let Some(spot) = spot {
            self.keep_content(device, &spot, sweep.references(number)).await;
        }
    }

    async fn keep_content<D: Device<Buf = B>>(&self, device: &D, spot: &Spot<B>, references: &[(u32, u64)]) {
        let Some((mut header, stored)) = self.fetch_stored(device, spot).await else {
            return;
        };
        // Blocks for a checkpoint stay free.
        let spare = self.shape.checkpoint_blocks(&self.base.geometry);
        let mut moved: Option<(Place, u64)> = None;
        for batch in references.chunks(REFERENCES_AT_ONCE) {
            let mut maps = self.maps.lock();
            // Meanwhile the new block may have failed to be written.
            if moved.is_some_and(|(place, sequence)| !self.counts_as_source(place.block, sequence)) {
                return;
            }
            for (_, address) in batch {
                if maps.lba.get(*address) != Some(spot.place) {
                    continue;
                }
                let place = match moved {
                    Some((place, _)) => self
                        .append_reference(&mut maps, *address, place, spare)
                        .then_some(place),
                    None => {
                        header.address = *address;
                        let place = self.append_piece(&mut maps, header, &stored, spare);
                        moved = place.map(|place| (place, self.sequence(place.block)));
                        place
                    }
                };
                let Some(place) = place else { return };
                maps.lba.replace(*address, spot.place, place);
            }
        }
        if moved.is_some() {
            self.count(&self.counters.moved_contents);
            add(&self.counters.moved_flash_bytes, header.piece_len() as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::PlaceBits;

    /// Mappings of addresses 0 to 19: of the even ones every other to a content of block 0 and of block 1; the odd ones elsewhere.
    fn swept(references_max: usize, references_of_content_max: u32) -> Vec<(u32, u64)> {
        let mut index = LbaIndex::new(100, 100, PlaceBits::new(3, 2), 1).unwrap();
        for address in 0..20 {
            let block = [0, 2, 1, 2][address as usize % 4];
            index.insert(address, Place { block, number: 0 });
        }
        let mut sweep = Sweep {
            numbers: vec![0..1, 1..2, 0..0],
            candidates: vec![Candidate::new(100); 2],
            references: Vec::new(),
            references_max,
            references_of_content_max,
        };
        sweep.count(&index, 0);
        sweep.references
    }

    #[test]
    fn a_sweep_remembers_the_newest_mappings() {
        assert_eq!(swept(3, u32::MAX), [(1, 18), (0, 16), (1, 14)]);
        assert_eq!(
            swept(100, 2),
            [(1, 18), (0, 16), (1, 14), (0, 12)],
            "of each content"
        );
        assert_eq!(swept(100, u32::MAX).len(), 10);
    }
}
