//! Looking up and reading.

use crate::cache::{Cx, Inner, ObjectCache};
use crate::object::{Object, Tier};
use crate::shards::Shard;
use pumice_device::Device;
use pumice_flash::record::is_expired;
use pumice_flash::{Gone, ReadFault, Record, SliceId, Source};
use pumice_index::{KeyHash, Location, Lookup as IndexLookup};
use pumice_memory::Buffer;
use pumice_tier::Queue;

/// Times that a key is looked up for one request, when its mapping changes under the read.
const LOOKUPS_MAX: usize = 3;

/// What can be said of a key without I/O.
pub enum Lookup<B> {
    /// It is in DRAM.
    Hit(Object<B>),
    /// It is in neither tier.
    Miss,
    /// It may be on flash: see [`ObjectCache::finish`].
    Flash(FlashLookup),
}

/// A read that is to be made.
#[derive(Clone, Copy, Debug)]
pub struct FlashLookup {
    hash: KeyHash,
    location: Location,
    sequence: u64,
}

/// What one part of an object was found as.
pub(crate) enum Part<B> {
    Hit(Record<B>, Tier, Place),
    Miss,
    Flash(FlashLookup),
}

/// Where a live copy was seen; conditional changes compare it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nowhere; on flash there was this, which reading showed to be another key's, or nothing.
    Absent(Option<Location>),
    /// In the DRAM tier, with this version.
    Dram(u64),
    /// On flash or in a block buffer, in this life of the block.
    Flash(Location, u64),
}

impl<D: Device + Clone> ObjectCache<D> {
    /// Looks a key up without I/O. A hit counts for eviction.
    pub fn lookup(&self, cx: &Cx<D>, key: &[u8]) -> Lookup<D::Buf> {
        self.flush_if_due(cx);
        match self.inner.part(cx, key, SliceId::Whole, true) {
            Part::Hit(record, tier, place) if record.header().slice == SliceId::Head => {
                // The slices of a large object are fetched one by one, some from flash: the slow path knows how.
                let _ = (tier, place);
                let hash = self.inner.hasher.hash(key, SliceId::Whole);
                Lookup::Flash(FlashLookup {
                    hash,
                    location: Location { offset: 0, len: 0 },
                    sequence: 0,
                })
            }
            Part::Hit(record, tier, _) => Lookup::Hit(Object::whole(record, tier)),
            Part::Miss => Lookup::Miss,
            Part::Flash(flash) => Lookup::Flash(flash),
        }
    }

    /// Reads what [`ObjectCache::lookup`] found may be on flash: one device read, unless the object is large or its block
    /// was reclaimed meanwhile. The object goes to the DRAM tier.
    pub async fn finish(&self, cx: &Cx<D>, key: &[u8], flash: FlashLookup) -> Option<Object<D::Buf>> {
        let found = if flash.location.len == 0 {
            self.fetch(cx, key, SliceId::Whole).await
        } else {
            self.fetch_from(cx, key, SliceId::Whole, flash).await
        };
        let (record, tier, place) = found?;
        self.assemble_object(cx, key, record, tier, place)
            .await
            .map(|(object, _)| object)
    }

    /// Gets an object from whichever tier has it.
    pub async fn get(&self, cx: &Cx<D>, key: &[u8]) -> Option<Object<D::Buf>> {
        match self.lookup(cx, key) {
            Lookup::Hit(object) => Some(object),
            Lookup::Miss => None,
            Lookup::Flash(flash) => self.finish(cx, key, flash).await,
        }
    }

    /// Gets an object and where it was seen, for a conditional change.
    pub(crate) async fn observe(&self, cx: &Cx<D>, key: &[u8]) -> (Option<Object<D::Buf>>, Place) {
        self.flush_if_due(cx);
        // What flash has under these hash bits before looking: if the key turns out to be absent, this was a stranger's.
        let hash = self.inner.hasher.hash(key, SliceId::Whole);
        let before = self.inner.lock(hash).flash.get(hash);
        let Some((record, tier, place)) = self.fetch(cx, key, SliceId::Whole).await else {
            return (None, Place::Absent(before));
        };
        match self.assemble_object(cx, key, record, tier, place).await {
            Some((object, place)) => (Some(object), place),
            None => (None, Place::Absent(before)),
        }
    }

    /// Gets one part of an object from whichever tier has it.
    pub(crate) async fn fetch(
        &self,
        cx: &Cx<D>,
        key: &[u8],
        slice: SliceId,
    ) -> Option<(Record<D::Buf>, Tier, Place)> {
        match self.inner.part(cx, key, slice, true) {
            Part::Hit(record, tier, place) => Some((record, tier, place)),
            Part::Miss => None,
            Part::Flash(flash) => self.fetch_from(cx, key, slice, flash).await,
        }
    }

    async fn fetch_from(
        &self,
        cx: &Cx<D>,
        key: &[u8],
        slice: SliceId,
        mut flash: FlashLookup,
    ) -> Option<(Record<D::Buf>, Tier, Place)> {
        let inner = &*self.inner;
        // The mapping may change while the read is under way: look again, a few times, then call it a miss.
        for attempt in 0..LOOKUPS_MAX {
            match inner
                .store()
                .read_device(&cx.device, flash.location, flash.sequence)
                .await
            {
                Ok(record) => {
                    if !is_part(&record, key, slice) {
                        inner.store().count_key_mismatch();
                        return None;
                    }
                    if record.header().is_expired(cx.now()) {
                        inner.drop_logged(cx, flash.hash, flash.location, Gone::Expired);
                        return None;
                    }
                    let place = self.promote(cx, flash, &record);
                    return Some((record, Tier::Flash, place));
                }
                Err(ReadFault::Reclaimed) => {}
                // Bytes that make no sense where nothing is mapped any more say nothing.
                Err(_) if !inner.is_current(flash) => {}
                Err(ReadFault::Corrupt) => {
                    inner.drop_logged(cx, flash.hash, flash.location, Gone::Corrupt);
                    return None;
                }
                Err(ReadFault::Device(error)) => {
                    tracing::debug!("reading an object: {error}");
                    inner.drop_logged(cx, flash.hash, flash.location, Gone::Lost);
                    return None;
                }
            }
            if attempt + 1 < LOOKUPS_MAX {
                match inner.part(cx, key, slice, false) {
                    Part::Hit(record, tier, place) => return Some((record, tier, place)),
                    Part::Miss => return None,
                    Part::Flash(again) => flash = again,
                }
            }
        }
        None
    }

    /// Puts what was read from flash into the DRAM tier, if it is still the live copy and DRAM has none. Never written to
    /// flash again.
    fn promote(&self, cx: &Cx<D>, flash: FlashLookup, record: &Record<D::Buf>) -> Place {
        let inner = &*self.inner;
        let place = Place::Flash(flash.location, flash.sequence);
        if inner.tier.segments() == 0 {
            return place;
        }
        self.make_room(cx);
        let mut shard = inner.lock(flash.hash);
        if !shard.flash.is_live(flash.hash, flash.location)
            || inner.store().sequence_at(flash.location) != flash.sequence
        {
            return place;
        }
        let parts = record.parts();
        if shard
            .dram
            .find(&inner.tier, flash.hash, parts.key, parts.slice)
            .is_some()
        {
            return place;
        }
        let home = inner.home(flash.location);
        let queue = inner.queue_for(flash.hash);
        let Some(reserved) = inner.tier.write(queue, &parts, home) else {
            return place;
        };
        match shard.dram.insert(flash.hash, reserved.address) {
            Ok(()) => Place::Dram(parts.version),
            Err(_) => place,
        }
    }
}

/// Whether a record is the wanted part of the wanted key.
fn is_part<B: Buffer>(record: &Record<B>, key: &[u8], slice: SliceId) -> bool {
    let is_slice = match (record.header().slice, slice) {
        (SliceId::Part(a), SliceId::Part(b)) => a == b,
        (SliceId::Part(_), _) | (_, SliceId::Part(_)) => false,
        _ => true,
    };
    is_slice && record.key() == key
}

impl<B: Buffer> Inner<B> {
    /// Finds one part of an object without I/O.
    pub(crate) fn part<D: Device<Buf = B>>(
        &self,
        cx: &Cx<D>,
        key: &[u8],
        slice: SliceId,
        count: bool,
    ) -> Part<B> {
        let hash = self.hasher.hash(key, slice);
        let mut shard = self.lock(hash);
        if let Some(found) = shard.dram.find(&self.tier, hash, key, slice) {
            if found.record.header().is_expired(cx.now()) {
                self.expire_locked(cx, &mut shard, hash, &found.record, found.home, found.address);
                return Part::Miss;
            }
            if count && found.frequency < pumice_tier::FREQUENCY_MAX {
                shard.dram.hit(hash, found.address);
            }
            let version = found.record.header().version;
            return Part::Hit(found.record, Tier::Dram, Place::Dram(version));
        }
        let location = match shard.flash.lookup(hash) {
            IndexLookup::Hit(candidates) => candidates.first(),
            IndexLookup::Miss => return Part::Miss,
            IndexLookup::Read(plan) => match plan {},
        };
        match self.store().source(location) {
            Source::Device { sequence } => Part::Flash(FlashLookup {
                hash,
                location,
                sequence,
            }),
            Source::Memory(block) => {
                let Some(record) = self.store().read_memory(&block, location) else {
                    return Part::Miss;
                };
                if !is_part(&record, key, slice) {
                    self.store().count_key_mismatch();
                    return Part::Miss;
                }
                if is_expired(record.header().expiry, cx.now()) {
                    let version = self.store().next_version();
                    self.store().invalidate(&cx.device, hash, location, version);
                    shard.flash.remove_at(hash, location);
                    self.books.expired.add(u64::from(location.len));
                    return Part::Miss;
                }
                // A reader that is slow to take its answer must not hold a block buffer: there are few.
                let place = Place::Flash(location, self.store().sequence_at(location));
                Part::Hit(record.detached(), Tier::Dram, place)
            }
        }
    }

    /// Removes an expired item from both tiers. What flash held is logged: after a crash the clock may show an earlier time,
    /// and a later set found nothing to log.
    fn expire_locked<D: Device<Buf = B>>(
        &self,
        cx: &Cx<D>,
        shard: &mut Shard,
        hash: KeyHash,
        record: &Record<B>,
        home: u64,
        address: u64,
    ) {
        shard.dram.remove(hash, address);
        if self.is_home(shard, hash, home)
            && let Some(location) = shard.flash.remove(hash)
        {
            let version = self.store().next_version();
            self.store().invalidate(&cx.device, hash, location, version);
        }
        self.books.expired.add(self.store().padded_len(&record.parts()));
    }

    /// Whether a lookup's mapping still stands, in the same life of its block.
    fn is_current(&self, flash: FlashLookup) -> bool {
        let shard = self.lock(flash.hash);
        shard.flash.is_live(flash.hash, flash.location)
            && self.store().sequence_at(flash.location) == flash.sequence
    }

    /// Removes the mapping of a copy that could not be read, and logs that: the next read might succeed, and a copy
    /// that was given up must not come back.
    fn drop_logged<D: Device<Buf = B>>(&self, cx: &Cx<D>, hash: KeyHash, location: Location, why: Gone) {
        let mut shard = self.lock(hash);
        if !shard.flash.is_live(hash, location) {
            return;
        }
        let home = self.home(location);
        self.store()
            .invalidate(&cx.device, hash, location, self.store().next_version());
        shard.flash.remove_at(hash, location);
        if !shard.dram.has_home(&self.tier, hash, home) {
            self.gone(why, u64::from(location.len));
        }
    }

    /// New items start in the small queue, those that were there lately in the main queue.
    pub(crate) fn queue_for(&self, hash: KeyHash) -> Queue {
        if self.ghost.lock().remove(hash) {
            Queue::Main
        } else {
            Queue::Small
        }
    }
}
