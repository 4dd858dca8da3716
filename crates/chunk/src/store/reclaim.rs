//! Reclaim of blocks: see the text of the module `store`.

use super::{ChunkStore, Spot, Starts};
use crate::keep::{Candidate, choose};
use crate::place::Place;
use pumice_blocks::log::Kind;
use pumice_blocks::{State, add};
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

/// Result of a sweep over the LBA-index for the victims. Memory: 8 bytes a content, 16 bytes a mapping.
struct Sweep {
    /// By block: a victim's range of `candidates`; empty for others.
    numbers: Vec<Range<u32>>,
    candidates: Vec<Candidate>,
    /// Candidate and address of each mapping to a victim, sorted.
    references: Vec<(u32, u64)>,
}

impl Sweep {
    fn candidate(&self, place: Place) -> Option<u32> {
        let range = &self.numbers[place.block as usize];
        let number = range.start.checked_add(place.number)?;
        range.contains(&number).then_some(number)
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
    /// Removes all mappings and fingerprints for whose place `is_gone` is true. Cost: a pass over both indexes.
    pub(super) fn forget_places(&self, is_gone: impl Fn(Place) -> bool) {
        let (lba_buckets, fp_buckets) = self.bucket_counts();
        for batch in batches(lba_buckets) {
            let mut maps = self.maps.lock();
            for bucket in batch {
                maps.lba.retain(bucket, |slot| !is_gone(slot.place));
            }
        }
        for batch in batches(fp_buckets) {
            let mut maps = self.maps.lock();
            for bucket in batch {
                maps.fp.retain(bucket, |place| !is_gone(place));
            }
        }
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
        let sweep = self.sweep(victims);
        let bytes = victims.len() as u64 * self.base.geometry.block_bytes;
        for number in choose(&sweep.candidates, bytes / 100 * KEPT_PERCENT) {
            self.keep(device, &sweep, victims, number as u32).await;
        }
        let before = self.maps.lock().lba.len();
        self.forget_places(|place| !sweep.numbers[place.block as usize].is_empty());
        let after = self.maps.lock().lba.len();
        add(&self.counters.reclaimed_mappings, before.saturating_sub(after));
        for victim in victims {
            let sequence = self.sequence(*victim);
            self.log(device, Kind::Reclaim, u64::from(*victim), sequence);
            self.maps.lock().starts[*victim as usize] = Starts::None;
            self.count(&self.counters.reclaimed_blocks);
            self.base.shared.change(|pool| self.base.give_back(pool, *victim));
        }
    }

    fn sweep(&self, victims: &[u32]) -> Sweep {
        let mut sweep = Sweep {
            numbers: vec![0..0; self.base.geometry.blocks as usize],
            candidates: Vec::new(),
            references: Vec::new(),
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
        for batch in batches(self.bucket_counts().0) {
            let maps = self.maps.lock();
            for bucket in batch {
                maps.lba.visit(bucket, |slot, age| {
                    if let Some(number) = sweep.candidate(slot.place) {
                        sweep.candidates[number as usize].refer(age);
                        sweep.references.push((number, slot.address));
                    }
                });
            }
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
