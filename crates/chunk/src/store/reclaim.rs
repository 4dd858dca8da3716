//! Reclaim of blocks: see the text of the module `store`.

use super::{ChunkStore, Spot, Starts};
use crate::buckets::BUCKET_SLOTS;
use crate::keep::{Candidate, choose};
use crate::lba::LbaIndex;
use crate::piece::REFERENCE_BYTES;
use crate::place::Place;
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

/// A reclaim remembers at most the mappings of so many slots, one in eight. Mappings beyond that are lost, as if their buckets had evicted
/// them: where most of a volume has one content, as zeros, the memory of a reclaim would exceed the index.
const REMEMBERED_SHARE: usize = 8;

/// Result of a sweep over the LBA-index for the victims. Memory: 8 bytes a content, 16 bytes a mapping.
struct Sweep {
    /// By block: a victim's range of `candidates`; empty for others.
    numbers: Vec<Range<u32>>,
    candidates: Vec<Candidate>,
    /// Candidate and address of each mapping to a victim, sorted.
    references: Vec<(u32, u64)>,
    references_max: usize,
}

/// Number of the candidate at a place.
fn candidate(numbers: &[Range<u32>], place: Place) -> Option<u32> {
    let range = &numbers[place.block as usize];
    let number = range.start.checked_add(place.number)?;
    range.contains(&number).then_some(number)
}

impl Sweep {
    /// Counts the mappings of a bucket to victims. All mappings of a content but one cost a reference if it is kept.
    fn count(&mut self, index: &LbaIndex, bucket: usize) {
        let numbers = &self.numbers;
        index.visit(
            bucket,
            |place| !numbers[place.block as usize].is_empty(),
            |slot, age| {
                if self.references.len() >= self.references_max {
                    return;
                }
                let Some(number) = candidate(numbers, slot.place) else {
                    return;
                };
                let candidate = &mut self.candidates[number as usize];
                if candidate.worth > 0.0 {
                    candidate.bytes = candidate.bytes.saturating_add(REFERENCE_BYTES as u32);
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
        let sweep = self.sweep(victims).await;
        let bytes = victims.len() as u64 * self.base.geometry.block_bytes;
        for number in choose(&sweep.candidates, bytes / 100 * KEPT_PERCENT) {
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

    async fn sweep(&self, victims: &[u32]) -> Sweep {
        let buckets = self.bucket_counts().0;
        let mut sweep = Sweep {
            numbers: vec![0..0; self.base.geometry.blocks as usize],
            candidates: Vec::new(),
            references: Vec::new(),
            references_max: buckets * BUCKET_SLOTS / REMEMBERED_SHARE,
        };
        {
            let maps = self.maps.lock();
            for block in victims.iter().copied() {
                let first = sweep.candidates.len() as u32;
                for number in 0..maps.starts[block as usize].len() {
                    let spot = self.spot(&maps, Place { block, number });
                    let bytes = spot.map_or(0, |spot| spot.len_max as u32);
                    sweep.candidates.push(Candidate { bytes, worth: 0.0 });
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
        let mut moved = None;
        for batch in references.chunks(REFERENCES_AT_ONCE) {
            let mut maps = self.maps.lock();
            for (_, address) in batch {
                if maps.lba.get(*address) != Some(spot.place) {
                    continue;
                }
                let place = match moved {
                    Some(place) => self
                        .append_reference(&mut maps, *address, place, spare)
                        .then_some(place),
                    None => {
                        header.address = *address;
                        moved = self.append_piece(&mut maps, header, &stored, spare);
                        moved
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

    #[test]
    fn mappings_beyond_the_bound_are_not_remembered() {
        let place_bits = PlaceBits::new(2, 2);
        let mut index = LbaIndex::new(100, 100, place_bits, 1).unwrap();
        for address in 0..20 {
            let block = u32::from(address % 2 == 0);
            index.insert(address, Place { block, number: 0 });
        }
        let mut sweep = Sweep {
            numbers: vec![0..1, 0..0],
            candidates: vec![Candidate {
                bytes: 100,
                worth: 0.0,
            }],
            references: Vec::new(),
            references_max: 3,
        };
        sweep.count(&index, 0);
        assert_eq!(sweep.references, [(0, 19), (0, 17), (0, 15)], "the newest");
        assert_eq!(sweep.candidates[0].bytes, 100 + 2 * REFERENCE_BYTES as u32);
    }
}
