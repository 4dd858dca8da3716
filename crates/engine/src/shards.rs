//! Shards: for a slice of the hash space, the mappings of both tiers behind one lock.

use crate::cache::{Inner, Shard};
use crate::evict::SEGMENTS_FLOOR;
use crate::part::PartId;
use locks::MutexGuard;
use pumice_blocks::BudgetLevel;
use pumice_flash::{CopyMove, Gone, Mappings};
use pumice_index::{IndexShard, KeyHash, Known, Location, Mapping, Survivor};
use pumice_memory::{Buffer, PAGE_BYTES};
use pumice_record::SliceId;
use pumice_tier::Queue;
use std::collections::HashSet;

/// The bits of a flash location that say where, in units from 1 on.
const LOCATION_UNITS: u64 = (1 << 40) - 1;

impl<B: Buffer> Inner<B> {
    pub(crate) fn lock(&self, hash: KeyHash) -> MutexGuard<'_, Shard> {
        // There are sixteen shards at least.
        self.shards[(hash >> self.shard_shift) as usize].0.lock()
    }

    /// Where a copy on flash is, in a form that fits an item's header in DRAM: address in units, and the low bits of its
    /// block's sequence, so that another generation of the block is not taken for the same place.
    pub(crate) fn flash_location(&self, location: Location) -> u64 {
        let sequence = self
            .store
            .get()
            .map_or(0, |store| store.order.sequence_at(location));
        let units = location.offset / self.shape.unit_bytes() + 1;
        sequence << LOCATION_UNITS.count_ones() | units
    }

    /// Where a flash location is; its length is not known. `None` where there is none.
    pub(crate) fn location_of(&self, flash_location: u64) -> Option<Location> {
        let units = (flash_location & LOCATION_UNITS).checked_sub(1)?;
        let offset = units * self.shape.unit_bytes();
        Some(Location { offset, len: 0 })
    }

    /// Whether flash holds the copy that an item's header names.
    pub(crate) fn is_flash_location(&self, shard: &Shard, hash: KeyHash, flash_location: u64) -> bool {
        let Some(location) = self.location_of(flash_location) else {
            return false;
        };
        match shard.flash.find(hash) {
            Known::Live(mapping) => self.flash_location(mapping.location) == flash_location,
            Known::Dead => false,
            // But whatever supersedes it would have removed the item, too.
            Known::Unknown => {
                self.flash_location(location) == flash_location && self.store().holds_objects(location)
            }
        }
    }
}

impl<B: Buffer> Mappings for Inner<B> {
    fn shards(&self) -> usize {
        self.shards.len()
    }

    fn make_room(&self, bytes: usize) {
        // A table is some twelfth larger than its entries.
        let pages = (bytes / 8).saturating_add(bytes).div_ceil(PAGE_BYTES);
        while self.pages.free_pages() < self.pages_low + pages && self.feed_from_free(SEGMENTS_FLOOR) {}
    }

    fn hash_of(&self, key: &[u8], slice: SliceId, version: u64) -> KeyHash {
        self.hasher.hash(&PartId {
            key,
            slice,
            set: version,
        })
    }

    fn identity_bits(&self) -> u32 {
        self.shape.identity_bits()
    }

    fn shard_of(&self, hash: KeyHash) -> usize {
        self.shape.shard_of(hash)
    }

    fn with_shard<R>(&self, shard: usize, f: impl FnOnce(&mut IndexShard) -> R) -> R {
        f(&mut self.shards[shard].0.lock().flash)
    }

    fn drop_copy(&self, hash: KeyHash, own: Mapping, why: Gone) -> bool {
        let location = own.location;
        let mut shard = self.lock(hash);
        let flash_location = self.flash_location(location);
        let gone = match why {
            Gone::Corrupt => match shard.flash.known(hash, location) {
                Known::Live(_) => shard.flash.remove(hash),
                Known::Dead | Known::Unknown => None,
            },
            Gone::Evicted | Gone::Expired | Gone::Lost => {
                let copy = self.store().order.stored_copy(own);
                shard.flash.reclaim(hash, &copy)
            }
        };
        let Some(mapping) = gone else {
            return false;
        };
        if why == Gone::Corrupt {
            self.store().order.forget(Some(hash), mapping);
        } else {
            self.store().order.forget_with_block(hash, mapping);
        }
        if !shard.dram.has_flash_location(&self.tier, hash, flash_location) {
            self.gone(why, u64::from(location.len));
        }
        true
    }

    fn move_copy(
        &self,
        hash: KeyHash,
        from: Mapping,
        append: impl FnOnce(Mapping) -> Option<Mapping>,
    ) -> CopyMove {
        let mut shard = self.lock(hash);
        let copy = self.store().order.stored_copy(from);
        let Survivor::Keep(mapping) = shard.flash.survivor(hash, &copy) else {
            return CopyMove::Dead;
        };
        let Some(to) = append(mapping) else {
            return CopyMove::NoRoom;
        };
        let old_flash_location = self.flash_location(from.location);
        let Ok(leaves_mapping) = shard.flash.relocate(hash, from.location, to) else {
            // There is no room for it, and no mapping of the key any more.
            self.store().order.forget(Some(hash), to);
            if !shard
                .dram
                .has_flash_location(&self.tier, hash, old_flash_location)
            {
                self.gone(Gone::Evicted, u64::from(from.location.len));
            }
            return CopyMove::Dead;
        };
        // An item in DRAM names its copy's place in a header that readers may look at: it is written anew.
        if let Some((address, frequency)) = shard.dram.at_flash_location(&self.tier, hash, old_flash_location)
        {
            let (record, _) = self.tier.read(address);
            match self
                .tier
                .write(Queue::Main, &record.parts(), self.flash_location(to.location))
            {
                Some(reserved) => shard.dram.relocate(hash, address, reserved.address, frequency),
                None => shard.dram.remove(hash, address),
            };
        }
        CopyMove::Moved { leaves_mapping }
    }

    fn is_hot(&self, hash: KeyHash, location: Location) -> bool {
        let shard = self.lock(hash);
        shard
            .dram
            .has_flash_location(&self.tier, hash, self.flash_location(location))
    }

    fn may_keep(&self) -> bool {
        self.may_keep_more()
    }

    fn budget(&self) -> Option<BudgetLevel> {
        self.budget_level()
    }

    fn account_rest(&self, objects: u64, bytes: u64) {
        self.books.overwritten.add_many(objects, bytes);
    }

    fn give_up_all(&self) {
        let (mut entries, mut bytes) = (0, 0);
        for shard in &self.shards {
            let mut shard = shard.0.lock();
            let Shard { flash, dram } = &mut *shard;
            let mut flash_locations = HashSet::new();
            dram.for_each(|address| {
                let (record, flash_location) = self.tier.read(address);
                flash_locations.insert(flash_location);
                entries += 1;
                bytes += self.store().padded_len(&record.parts());
            });
            flash.for_each(|mapping| {
                let flash_location = self.flash_location(mapping.location);
                self.store().order.forget(None, mapping);
                if !flash_locations.contains(&flash_location) {
                    self.gone(Gone::Lost, u64::from(mapping.location.len));
                }
            });
            flash.clear();
        }
        if !self.store().is_authoritative() {
            // What DRAM did not know to be on flash: whatever the books have beyond the DRAM tier.
            // They are an estimate, and may have less.
            let (resident, resident_bytes) = self.books.snapshot().resident();
            self.books.lost.add_many(
                resident.saturating_sub(entries),
                resident_bytes.saturating_sub(bytes),
            );
        }
    }

    fn sweep(&self, offset: u64, len: u64, why: Gone) -> u64 {
        let mut swept = 0;
        for shard in &self.shards {
            let mut shard = shard.0.lock();
            let Shard { flash, dram } = &mut *shard;
            let mut flash_locations = Vec::new();
            flash.retain(|mapping| {
                let keep = !(offset..offset + len).contains(&mapping.location.offset);
                if !keep {
                    flash_locations.push((self.flash_location(mapping.location), mapping));
                }
                keep
            });
            for (flash_location, mapping) in flash_locations {
                swept += 1;
                self.store().order.forget(None, mapping);
                // The hash is unknown here, so the items in DRAM are asked one by one; this is the rare path.
                let mut in_dram = false;
                dram.for_each(|address| in_dram |= self.tier.read(address).1 == flash_location);
                if !in_dram {
                    self.gone(why, u64::from(mapping.location.len));
                }
            }
        }
        swept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{CASCADE, Rig, VALUE, small};
    use crate::{CacheOptions, FlashWrite, LayoutName, LayoutOptions};
    use pumice_blocks::Durability;
    use pumice_index::Heard;

    /// An object whose mapping is on flash, in a shard whose part in DRAM is full while flash takes no mappings: when it moves, its new
    /// mapping hides the one on flash, and goes in all the same.
    #[test]
    fn an_object_that_moves_keeps_a_mapping_although_its_shard_is_full() {
        for is_in_dram in [false, true] {
            let rig = Rig::new(CacheOptions {
                dram_bytes: 4 << 20,
                flash_write: FlashWrite::Eviction,
                durability: Durability::Off,
                index: CASCADE,
                ..CacheOptions::default()
            });
            let inner = &rig.cache.inner;
            let store = inner.store();
            let evict = |key: &[u8]| rig.evict(key, store.next_version());
            let hash = rig.hash(b"key");
            assert!(evict(b"key"));
            let mapping = inner.lock(hash).flash.find(hash).live();
            let location = mapping.expect("just mapped").location;
            rig.write_open_blocks();
            // Others of its shard, until its mapping goes to flash; then until DRAM takes no more.
            let others = (0u32..).map(|n| n.to_le_bytes());
            let mut others =
                others.filter(|key| inner.shape.shard_of(rig.hash(key)) == inner.shape.shard_of(hash));
            while inner.lock(hash).flash.find(hash) != Known::Unknown {
                assert!(evict(&others.next().expect("there is no end")));
                rig.settle();
            }
            if is_in_dram {
                assert!(rig.get(b"key").is_some());
            }
            let may_be_on_flash = |key: &[u8]| inner.lock(hash).flash.find(rig.hash(key)) == Known::Unknown;
            while others
                .find(|key| !may_be_on_flash(key))
                .is_some_and(|key| evict(&key))
            {}
            // Reading it brought the mapping to DRAM, which let go of it again.
            let known = inner.lock(hash).flash.find(hash);
            assert_eq!(known, Known::Unknown, "in DRAM {is_in_dram}");

            let before = rig.cache.books();
            let from = Mapping { location, note: 0 };
            let mut is_copied = false;
            let moved = inner.move_copy(hash, from, |_| {
                is_copied = true;
                let rank = store
                    .order
                    .rank(pumice_flash::Arrival::New, u64::from(location.len));
                Some(
                    store
                        .append(hash, &small(b"key", store.next_version()), rank)?
                        .mapping,
                )
            });
            assert_eq!(
                (moved, is_copied),
                (CopyMove::Moved { leaves_mapping: true }, true)
            );
            let books = rig.cache.books();
            let evicted = (
                books.evicted.0 - before.evicted.0,
                books.evicted.1 - before.evicted.1,
            );
            let mapped = inner.lock(hash).flash.find(hash).live();
            assert!(mapped.is_some_and(|mapped| mapped.location != location));
            assert_eq!(evicted, (0, 0));
            assert_eq!(rig.get(b"key"), Some(VALUE.to_vec()));
        }
    }

    #[test]
    fn an_object_that_moves_is_evicted_where_dram_has_no_page_for_its_mapping() {
        let rig = Rig::new(CacheOptions {
            dram_bytes: 4 << 20,
            flash_write: FlashWrite::Eviction,
            index: CASCADE,
            ..CacheOptions::default()
        });
        let inner = &rig.cache.inner;
        let store = inner.store();
        let shard = inner.shape.shard_of(rig.hash(b"key"));
        let keys = (0u32..).map(|n| n.to_le_bytes());
        let keys = keys.filter(|key| inner.shape.shard_of(rig.hash(key)) == shard);
        let places: Vec<_> = (keys.take(2_000))
            .filter_map(|key| {
                assert!(rig.evict(&key, store.next_version()));
                let mapping = inner.lock(rig.hash(&key)).flash.find(rig.hash(&key)).live();
                rig.settle();
                Some((key, mapping?.location))
            })
            .collect();
        let _taken: Vec<_> = std::iter::from_fn(|| inner.pages.take()).collect();
        // Each new mapping hides one on flash, and goes in as long as there is room.
        for (key, location) in places {
            let (hash, before) = (rig.hash(&key), rig.cache.books().evicted.0);
            let mut is_copied = false;
            let moved = inner.move_copy(hash, Mapping { location, note: 0 }, |_| {
                let rank = store.order.rank(pumice_flash::Arrival::New, location.len.into());
                let appended = store.append(hash, &small(&key, store.next_version()), rank)?;
                is_copied = true;
                Some(appended.mapping)
            });
            let evicted = rig.cache.books().evicted.0 - before;
            if moved == CopyMove::Dead && is_copied {
                assert_eq!((evicted, inner.lock(hash).flash.find(hash)), (1, Known::Dead));
                return;
            }
            assert_eq!(evicted, 0);
        }
        panic!("there was room for all");
    }

    #[test]
    fn what_a_reorganisation_finds_superseded_is_dead_once_and_only_in_its_own_generation_of_the_block() {
        let rig = Rig::new(CacheOptions {
            layout: LayoutOptions::new(LayoutName::Ripq, None, None, None).unwrap(),
            index: CASCADE,
            ..CacheOptions::default()
        });
        let (order, hash) = (&rig.cache.inner.store().order, rig.hash(b"key"));
        rig.set(b"key", VALUE, 0);
        let mapping = rig.cache.inner.lock(hash).flash.find(hash).live().unwrap();
        let sequence = order.sequence_at(mapping.location);
        let note = |sequence| {
            let bytes = order.note_superseded(mapping, sequence);
            (bytes, order.stored_copy(mapping).heard)
        };
        assert_eq!(note(sequence - 1), (0, Heard::Alive));
        assert_eq!(note(sequence), (mapping.location.len.into(), Heard::Dead));
        assert_eq!(note(sequence), (0, Heard::Dead));
    }
}
