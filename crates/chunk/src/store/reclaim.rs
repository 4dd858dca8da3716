//! Reclaim of blocks: see the text of the module `store`.

use super::ChunkStore;
use super::shape::KEPT_PERCENT;
use crate::keep::{Candidate, choose};
use crate::lba::{LbaIndex, Slot};
use crate::place::Place;
use pumice_blocks::log::Kind;
use pumice_blocks::{State, add, give_turn};
use pumice_device::Device;
use pumice_memory::Buffer;
use std::collections::HashMap;
use std::ops::Range;

/// Buckets whose mappings are moved before other tasks run.
const MOVED_AT_ONCE: usize = 4;
/// If blocks have fewer dirty chunks after they were cleaned, these are locked or cannot be read.
const FEW_DIRTY: usize = 16;
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

impl<B: Buffer> ChunkStore<B> {
    /// Removes all mappings and fingerprints for whose place `is_gone` is true, some buckets in each step of the iterator, whose item is the
    /// number of mappings removed. Cost: a pass over both indexes.
    pub(super) fn forget_places(&self, is_gone: impl Fn(Place) -> bool + Copy) -> impl Iterator<Item = u64> {
        let mappings = self.addresses.batches();
        let mappings = mappings.map(move |batch| self.addresses.forget_places(batch, is_gone));
        let contents = self.fingerprints.lock().batches();
        let contents = contents.map(move |batch| {
            let mut index = self.fingerprints.lock();
            for bucket in batch {
                index.retain(bucket, |place| !is_gone(place));
            }
            0
        });
        mappings.chain(contents)
    }
}

/// A reclaim of some blocks.
pub(super) struct Reclaim<'a, B: Buffer, D> {
    store: &'a ChunkStore<B>,
    device: &'a D,
    victims: &'a [u32],
}

impl<'a, B: Buffer, D: Device<Buf = B>> Reclaim<'a, B, D> {
    pub(super) fn new(store: &'a ChunkStore<B>, device: &'a D, victims: &'a [u32]) -> Self {
        Self {
            store,
            device,
            victims,
        }
    }

    /// Frees the blocks, or puts all of them back, if a chunk in them is dirty. Returns those that it could not free for another
    /// reason. If the future is dropped, the next reclaim takes them.
    pub(super) async fn run(self) -> Vec<u32> {
        let (store, device, victims) = (self.store, self.device, self.victims);
        store.appender.retire(&store.addresses.lock(), victims);
        let left = store.addresses.dirty_in(victims, FEW_DIRTY).await.len();
        if left > 0 {
            self.keep_blocks(victims);
            let mut pool = store.base.shared.pool.lock();
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
        let kept_bytes = victims.len() as u64 * store.base.geometry.block_bytes / 100 * KEPT_PERCENT;
        let sweep = self.sweep().await;
        let mut moved = HashMap::new();
        for number in choose(&sweep.candidates, kept_bytes) {
            if !store.may_keep() {
                break;
            }
            let place = self.keep(&sweep, number as u32).await;
            moved.extend(place.map(|place| (number as u32, place)));
        }
        let buckets = store.addresses.lock().index.buckets();
        for start in (0..buckets).step_by(MOVED_AT_ONCE) {
            for bucket in start..(start + MOVED_AT_ONCE).min(buckets) {
                self.move_mappings(&sweep, &moved, bucket);
            }
            give_turn().await;
        }
        for mappings in store.forget_places(|place| sweep.is_victim(place.block)) {
            add(&store.counters.reclaimed_mappings, mappings);
            give_turn().await;
        }
        // A victim may have the last durable content of a chunk that was written since.
        if store.keeps && store.persist(device).await.is_err() {
            store.pause_reclaims();
            return self.keep_blocks(victims);
        }
        let appender = &store.appender;
        let is_logged = |victim: &u32| {
            appender.log(
                device,
                Kind::Reclaim,
                u64::from(*victim),
                appender.sequence(*victim),
            )
        };
        let logged = victims.iter().take_while(|victim| is_logged(victim)).count();
        let (freed, kept) = victims.split_at(logged);
        if !kept.is_empty() {
            store.pause_reclaims();
        }
        if store.keeps && store.base.journal.commit(device).await.is_err() {
            return self.keep_blocks(victims);
        }
        for victim in freed {
            appender.forget(*victim);
            add(&store.counters.reclaimed_blocks, 1);
            store
                .base
                .shared
                .change(|pool| store.base.give_back(pool, *victim));
        }
        self.keep_blocks(kept)
    }

    fn keep_blocks(&self, victims: &[u32]) -> Vec<u32> {
        for victim in victims {
            self.store.base.blocks[*victim as usize].set_state(State::Sealed);
        }
        victims.to_vec()
    }

    async fn sweep(&self) -> Sweep {
        let store = self.store;
        let mut sweep = Sweep {
            numbers: vec![0..0; store.base.geometry.blocks as usize],
            candidates: Vec::new(),
            addresses: Vec::new(),
        };
        for block in self.victims.iter().copied() {
            let first = sweep.candidates.len() as u32;
            for number in 0..store.appender.contents_of(block) {
                let spot = store.appender.spot(Place { block, number });
                let bytes = spot.map_or(0, |spot| spot.len_max as u32);
                sweep.candidates.push(Candidate { bytes, worth: 0.0 });
            }
            sweep.numbers[block as usize] = first..sweep.candidates.len() as u32;
        }
        sweep.addresses = vec![0; sweep.candidates.len()];
        for batch in store.addresses.batches() {
            {
                let mapped = store.addresses.lock();
                for bucket in batch {
                    sweep.count(&mapped.index, bucket);
                }
            }
            give_turn().await;
        }
        sweep
    }

    /// Appends a candidate's content to an open block, and moves one mapping there. Returns the new place; `None` if the content cannot be
    /// read or the device has no room.
    async fn keep(&self, sweep: &Sweep, number: u32) -> Option<Moved> {
        let (store, victims) = (self.store, self.victims);
        let at = victims.partition_point(|victim| sweep.numbers[*victim as usize].end <= number);
        let block = victims.get(at).copied()?;
        let old = Place {
            block,
            number: number - sweep.numbers[block as usize].start,
        };
        let spot = store.appender.spot(old)?;
        let (mut header, stored) = spot.fetch_stored(&store.base, self.device).await?;
        header.address = sweep.addresses[number as usize];
        // Chunks of victims are clean.
        header.is_dirty = false;
        header.spare_units = 0;
        let mut mapped = store.addresses.lock();
        // Not if the chunk was written meanwhile.
        let slot = mapped.index.get(header.address);
        let is_mapped = slot.is_some_and(|slot| slot.place == old);
        header.version = if is_mapped { mapped.next_version() } else { 0 };
        let new = store.appender.content(header, &stored, store.room.checkpoint)?;
        // Other chunks follow.
        store.appender.share(new);
        store.fingerprints.lock().insert(header.fingerprint.hash(), new);
        mapped.index.replace(header.address, old, new);
        add(&store.counters.moved_contents, 1);
        add(&store.counters.moved_flash_bytes, header.piece_len() as u64);
        Some((new, store.appender.sequence(new.block)))
    }

    /// Moves the mappings of a bucket to contents that were appended anew. Others stay.
    fn move_mappings(&self, sweep: &Sweep, moved: &HashMap<u32, Moved>, bucket: usize) {
        let (store, appender) = (self.store, &self.store.appender);
        let mut mapped = store.addresses.lock();
        let mut found = Vec::new();
        mapped.index.visit(
            bucket,
            |place| sweep.is_victim(place.block),
            |slot, _| {
                let new = sweep.candidate(slot.place).and_then(|number| moved.get(&number));
                found.extend(new.map(|new| (slot, *new)));
            },
        );
        for (old, (place, sequence)) in found {
            let (slot, version) = (Slot { place, ..old }, mapped.next_version());
            // Meanwhile the new block may have failed to be written.
            if appender.is_source(place.block, sequence)
                && appender.reference(slot, version, store.room.checkpoint)
            {
                mapped.index.replace(old.address, old.place, place);
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
