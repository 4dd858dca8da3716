//! Reclaim of blocks: see the text of the module `store`.

use super::{ChunkStore, Starts};
use crate::keep::{Candidate, choose};
use crate::lba::LbaIndex;
use crate::place::Place;
use pumice_blocks::log::Kind;
use pumice_blocks::{State, add, give_turn};
use pumice_device::Device;
use pumice_memory::Buffer;
use std::collections::HashMap;
use std::ops::Range;

/// Buckets visited in one hold of the lock.
const BUCKETS_AT_ONCE: usize = 64;
/// Buckets whose mappings are moved before other tasks run.
const MOVED_AT_ONCE: usize = 4;
/// If blocks have fewer dirty chunks after they were cleaned, these are locked or cannot be read.
const FEW_DIRTY: usize = 16;
/// Most bytes that a reclaim keeps, in hundredths of its victims' bytes, without references. With 30, blocks of 16 chunks wrote 1.501 bytes
/// for each compressed new byte; with 20, a cache as large as its volume lost a point of hits.
pub(super) const KEPT_PERCENT: u64 = 29;
/// Room for the references of what is kept, in hundredths of the victims' bytes.
pub(super) const REFERENCES_PERCENT: usize = 5;

/// Result of a sweep over the LBA-index for the victims. Memory: 16 bytes a content.
struct Sweep {
    /// By block: a victim's range of `candidates`; empty for others.
    numbers: Vec<Range<u32>>,
    candidates: Vec<Candidate>,
    /// By candidate: an address mapped to it, if its worth is above 0.
    addresses: Vec<u64>,
}

impl Sweep {
    /// Number of the candidate at a place.
    fn candidate(&self, place: Place) -> Option<u32> {
        let range = &self.numbers[place.block as usize];
        let number = range.start.checked_add(place.number)?;
        range.contains(&number).then_some(number)
    }

    fn is_victim(&self, block: u32) -> bool {
        !self.numbers[block as usize].is_empty()
    }

    /// Counts the mappings of a bucket to victims.
    fn count(&mut self, index: &LbaIndex, bucket: usize) {
        let mut found = Vec::new();
        index.visit(
            bucket,
            |place| self.is_victim(place.block),
            |slot, age| {
                found.extend(
                    self.candidate(slot.place)
                        .map(|number| (number, slot.address, age)),
                )
            },
        );
        for (number, address, age) in found {
            self.candidates[number as usize].refer(age);
            self.addresses[number as usize] = address;
        }
    }
}

/// Where a content was appended anew: the place, and the sequence of its block then.
type Moved = (Place, u64);

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

    /// Maps no further duplicates to blocks.
    pub(super) fn retire(&self, victims: &[u32]) {
        // Duplicates are mapped under this lock.
        let _maps = self.maps.lock();
        for victim in victims {
            self.base.blocks[*victim as usize].set_state(State::Reclaiming);
        }
    }

    /// Frees the blocks `victims`, or puts all of them back, if a chunk in them is dirty. Returns those that it could not free for another
    /// reason. If the future is dropped, the next reclaim takes them.
    pub(super) async fn reclaim<D: Device<Buf = B>>(&self, device: &D, victims: &[u32]) -> Vec<u32> {
        self.retire(victims);
        let left = self.dirty_in(victims, FEW_DIRTY).await.len();
        if left > 0 {
            self.keep_blocks(victims);
            let mut pool = self.base.shared.pool.lock();
            match left < FEW_DIRTY || pool.own.is_paused {
                // They are in use: others may be free sooner.
                true => pool.own.order.extend(victims),
                // They are cleaned in several rounds.
                false => victims
                    .iter()
                    .rev()
                    .for_each(|block| pool.own.order.push_front(*block)),
            }
            return Vec::new();
        }
        let kept_bytes = victims.len() as u64 * self.base.geometry.block_bytes / 100 * KEPT_PERCENT;
        let sweep = self.sweep(victims).await;
        let mut moved = HashMap::new();
        for number in choose(&sweep.candidates, kept_bytes) {
            if !self.may_keep() {
                break;
            }
            let place = self.keep(device, &sweep, victims, number as u32).await;
            moved.extend(place.map(|place| (number as u32, place)));
        }
        let buckets = self.bucket_counts().0;
        for start in (0..buckets).step_by(MOVED_AT_ONCE) {
            for bucket in start..(start + MOVED_AT_ONCE).min(buckets) {
                self.move_mappings(&sweep, &moved, bucket);
            }
            give_turn().await;
        }
        for mappings in self.forget_places(|place| sweep.is_victim(place.block)) {
            add(&self.counters.reclaimed_mappings, mappings);
            give_turn().await;
        }
        // A victim may have the last durable content of a chunk that was written since.
        if self.keeps && self.persist(device).await.is_err() {
            self.pause_reclaims();
            return self.keep_blocks(victims);
        }
        let is_logged =
            |victim: &u32| self.log(device, Kind::Reclaim, u64::from(*victim), self.sequence(*victim));
        let logged = victims.iter().take_while(|victim| is_logged(victim)).count();
        let (freed, kept) = victims.split_at(logged);
        if !kept.is_empty() {
            self.pause_reclaims();
        }
        if self.keeps && self.base.commit(device).await.is_err() {
            return self.keep_blocks(victims);
        }
        for victim in freed {
            self.maps.lock().starts[*victim as usize] = Starts::None;
            self.count(&self.counters.reclaimed_blocks);
            self.base.shared.change(|pool| self.base.give_back(pool, *victim));
        }
        self.keep_blocks(kept)
    }

    fn keep_blocks(&self, victims: &[u32]) -> Vec<u32> {
        for victim in victims {
            self.base.blocks[*victim as usize].set_state(State::Sealed);
        }
        victims.to_vec()
    }

    async fn sweep(&self, victims: &[u32]) -> Sweep {
        let buckets = self.bucket_counts().0;
        let mut sweep = Sweep {
            numbers: vec![0..0; self.base.geometry.blocks as usize],
            candidates: Vec::new(),
            addresses: Vec::new(),
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
        sweep.addresses = vec![0; sweep.candidates.len()];
        for batch in batches(buckets) {
            {
                let maps = self.maps.lock();
                for bucket in batch {
                    sweep.count(&maps.lba, bucket);
                }
            }
            give_turn().await;
        }
        sweep
    }

    /// Appends a candidate's content to an open block, and moves one mapping there. Returns the new place; `None` if the content cannot be
    /// read or the device has no room.
    async fn keep<D: Device<Buf = B>>(
        &self,
        device: &D,
        sweep: &Sweep,
        victims: &[u32],
        number: u32,
    ) -> Option<Moved> {
        let at = victims.partition_point(|victim| sweep.numbers[*victim as usize].end <= number);
        let block = victims.get(at).copied()?;
        let old = Place {
            block,
            number: number - sweep.numbers[block as usize].start,
        };
        let spot = self.spot(&self.maps.lock(), old)?;
        let (mut header, stored) = self.fetch_stored(device, &spot).await?;
        header.address = sweep.addresses[number as usize];
        // Chunks of victims are clean.
        header.is_dirty = false;
        header.spare_units = 0;
        let mut maps = self.maps.lock();
        // Not if the chunk was written meanwhile.
        let mapped = maps.lba.get(header.address).map(|slot| slot.place);
        let is_mapped = mapped == Some(old);
        let new = self.append_piece(&mut maps, header, &stored, is_mapped, self.kept_free())?;
        // Other chunks follow.
        maps.starts[new.block as usize].share(new.number);
        maps.lba.replace(header.address, old, new);
        self.count(&self.counters.moved_contents);
        add(&self.counters.moved_flash_bytes, header.piece_len() as u64);
        Some((new, self.sequence(new.block)))
    }

    /// Blocks for a checkpoint, which stay free.
    fn kept_free(&self) -> usize {
        self.shape.checkpoint_blocks(&self.base.geometry)
    }

    /// Moves the mappings of a bucket to contents that were appended anew. Others stay.
    fn move_mappings(&self, sweep: &Sweep, moved: &HashMap<u32, Moved>, bucket: usize) {
        let mut maps = self.maps.lock();
        let mut found = Vec::new();
        maps.lba.visit(
            bucket,
            |place| sweep.is_victim(place.block),
            |slot, _| {
                let new = sweep.candidate(slot.place).and_then(|number| moved.get(&number));
                found.extend(new.map(|new| (slot, *new)));
            },
        );
        for (slot, (new, sequence)) in found {
            // Meanwhile the new block may have failed to be written.
            if self.counts_as_source(new.block, sequence)
                && self.append_reference(&mut maps, slot.address, new, slot.is_dirty, self.kept_free())
            {
                maps.lba.replace(slot.address, slot.place, new);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::PlaceBits;

    #[test]
    fn a_sweep_counts_the_mappings_to_victims() {
        let mut index = LbaIndex::new(100, 100, PlaceBits::new(3, 2), 1).unwrap();
        for address in 0..20 {
            let block = [0, 2, 1, 2][address as usize % 4];
            index.insert(address, Place { block, number: 0 }, false);
        }
        let mut sweep = Sweep {
            numbers: vec![0..1, 1..2, 0..0],
            candidates: vec![Candidate::default(); 2],
            addresses: vec![0; 2],
        };
        sweep.count(&index, 0);
        assert_eq!(sweep.addresses, [0, 2]);
        // The newest of 20 is 19.
        let mut expected = [Candidate::default(); 2];
        for address in (0..20).rev().step_by(2).map(|odd| odd - 1) {
            expected[address / 2 % 2].refer((19 - address) as f32 / 20.0);
        }
        assert_eq!(sweep.candidates, expected);
    }
}
