//! Looking up and reading.

use crate::cache::{Cx, Inner, ObjectCache, ROUNDS, Shard};
use crate::large::LargeLookup;
use crate::object::{Meta, Object, Tier};
use crate::part::PartId;
use pumice_device::Device;
use pumice_flash::{Gone, MappingBytes, Mappings, OpenBlock, ReadFault, Source};
use pumice_index::cascade::Plan;
use pumice_index::{KeyHash, Known, Location, Lookup as IndexLookup, Mapping};
use pumice_memory::{Buffer, SECTOR_BYTES};
use pumice_record::{Record, SliceId};
use pumice_tier::Queue;
use std::sync::atomic::Ordering;

/// Times that the mapping's pages may have moved while they were read.
const MOVES_MAX: usize = 16;

/// What a record is taken for whose mapping is on flash: those that have theirs there are small.
const UNKNOWN_RECORD_BYTES: u32 = 16 << 10;

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
    /// It is a large object, whose slices are to be read: see [`ObjectCache::read_large`].
    Large(LargeLookup<B>),
}

/// What reading flash found.
pub enum Found<B> {
    /// The object.
    Hit(Object<B>),
    /// Nothing, or another key.
    Miss,
    /// A large object, whose slices are to be read: see [`ObjectCache::read_large`].
    Large(LargeLookup<B>),
}

/// A read that is to be made.
#[derive(Clone, Copy, Debug)]
pub struct FlashLookup {
    at: At,
    /// Whether a hit is to leave a trace.
    counts: bool,
}

/// What is known of a read that is to be made.
#[derive(Clone, Copy, Debug)]
enum At {
    /// Where the record is.
    Record(RecordPlace),
    /// Which pages have its mapping, if there is one.
    Mapping(Plan),
}

/// Where a record is, in which life of its block.
#[derive(Clone, Copy, Debug)]
struct RecordPlace {
    hash: KeyHash,
    location: Location,
    sequence: u64,
}

impl FlashLookup {
    /// Bytes to read, less what rounding up to sectors adds. Where the mapping has to be read first, how long the record is is
    /// not known yet: this is then the pages and a record of 16 KiB.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> u32 {
        match self.at {
            At::Record(place) => place.location.len,
            At::Mapping(plan) => plan.pages().len() as u32 * SECTOR_BYTES as u32 + UNKNOWN_RECORD_BYTES,
        }
    }
}

/// A part that was found.
pub(crate) struct Seen<B> {
    pub(crate) record: Record<B>,
    pub(crate) tier: Tier,
    pub(crate) place: Place,
}

impl<B: Buffer> Seen<B> {
    /// Whether it stands in a block buffer: items of the DRAM tier have no sequence.
    pub(crate) fn pins_block(&self) -> bool {
        self.tier == Tier::Dram && self.record.header().sequence != 0
    }

    fn found(self) -> Found<B> {
        if self.record.header().slice != SliceId::Head {
            return Found::Hit(Object::whole(self.record, self.tier));
        }
        LargeLookup::of(self).map_or(Found::Miss, Found::Large)
    }
}

/// What one part of an object was found as.
pub(crate) enum Part<B> {
    Hit(Seen<B>),
    Miss,
    Flash(FlashLookup),
}

impl<B: Buffer> From<Part<B>> for Lookup<B> {
    fn from(part: Part<B>) -> Self {
        match part {
            Part::Hit(seen) => match seen.found() {
                Found::Hit(object) => Lookup::Hit(object),
                Found::Large(large) => Lookup::Large(large),
                Found::Miss => Lookup::Miss,
            },
            Part::Miss => Lookup::Miss,
            Part::Flash(flash) => Lookup::Flash(flash),
        }
    }
}

/// Where a live copy was seen; conditional changes compare it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nowhere.
    Absent {
        /// On flash there was this, in this life of its block, which reading showed to be another key's, or nothing.
        before: Option<(Location, u64)>,
        /// Whether the index could not tell without reading that there is no other mapping.
        was_unknown: bool,
    },
    /// In the DRAM tier, with this version.
    Dram(u64),
    /// On flash or in a block buffer, in this life of the block.
    Flash(Location, u64),
}

/// What a conditional change reads before it decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reads {
    /// Whether `decide` looks at the value; a large object is otherwise shown without its slices.
    pub value: bool,
    /// The most bytes that may be read at once, so that memory stays bounded.
    pub bytes_max: u64,
}

impl Reads {
    /// Everything, whatever it takes.
    pub const ALL: Self = Self {
        value: true,
        bytes_max: u64::MAX,
    };

    pub(crate) fn check(self, bytes: u64) -> Result<(), u64> {
        if bytes > self.bytes_max {
            Err(bytes)
        } else {
            Ok(())
        }
    }
}

impl<D: Device + Clone> ObjectCache<D> {
    /// Looks a key up without I/O. A hit counts for eviction.
    pub fn lookup(&self, cx: &Cx<D>, key: &[u8]) -> Lookup<D::Buf> {
        self.flush_if_due(cx);
        let found = self.inner.part(cx, &PartId::object(key), true, None);
        self.kick(cx);
        found.into()
    }

    /// As [`ObjectCache::lookup`], but a hit does not count, and what is read from flash stays there. What a large object is made of
    /// counts all the same.
    pub fn peek(&self, cx: &Cx<D>, key: &[u8]) -> Lookup<D::Buf> {
        self.flush_if_due(cx);
        let found = self.inner.part(cx, &PartId::object(key), false, None);
        self.kick(cx);
        match found {
            Part::Flash(flash) => Lookup::Flash(FlashLookup {
                counts: false,
                ..flash
            }),
            found => found.into(),
        }
    }

    /// Reads what [`ObjectCache::lookup`] found may be on flash: one device read, unless its block was reclaimed meanwhile.
    /// The object goes to the DRAM tier, unless [`ObjectCache::peek`] asked.
    pub async fn finish(&self, cx: &Cx<D>, key: &[u8], flash: FlashLookup) -> Found<D::Buf> {
        let seen = self.fetch_from(cx, &PartId::object(key), flash).await;
        seen.map_or(Found::Miss, Seen::found)
    }

    /// Gets an object from whichever tier has it.
    pub async fn get(&self, cx: &Cx<D>, key: &[u8]) -> Option<Object<D::Buf>> {
        let found = match self.lookup(cx, key) {
            Lookup::Hit(object) => Found::Hit(object),
            Lookup::Miss => Found::Miss,
            Lookup::Large(large) => Found::Large(large),
            Lookup::Flash(flash) => self.finish(cx, key, flash).await,
        };
        match found {
            Found::Hit(object) => Some(object),
            Found::Miss => None,
            Found::Large(large) => self.read_large(cx, key, large).await,
        }
    }

    /// Gets an object and where it was seen, for a conditional change.
    ///
    /// # Errors
    /// The bytes that reading it takes, where those are more than allowed.
    pub(crate) async fn observe(
        &self,
        cx: &Cx<D>,
        key: &[u8],
        reads: Reads,
    ) -> Result<(Option<Object<D::Buf>>, Place), u64> {
        self.flush_if_due(cx);
        // What flash has under these hash bits before looking: if the key turns out to be absent, this was a stranger's.
        let part = PartId::object(key);
        let hash = self.inner.hasher.hash(&part);
        let (before, was_unknown) = {
            let shard = self.inner.lock(hash);
            (
                self.inner.place_on_flash(&shard, hash),
                shard.flash.find(hash) == Known::Unknown,
            )
        };
        let found = self.inner.part(cx, &part, true, None);
        self.kick(cx);
        let seen = match found {
            Part::Hit(seen) => Some(seen),
            Part::Miss => None,
            Part::Flash(flash) => {
                reads.check(flash.len().into())?;
                self.fetch_from(cx, &part, flash).await
            }
        };
        let place = seen.as_ref().map(|seen| seen.place);
        let object = match seen.map_or(Found::Miss, Seen::found) {
            Found::Hit(object) => {
                if reads.value {
                    reads.check(object.value_len() as u64)?;
                }
                Some(object).zip(place)
            }
            Found::Large(large) if reads.value => {
                reads.check(large.value_len())?;
                self.large(cx, key).gather(large).await
            }
            Found::Large(large) => large.without_value(),
            Found::Miss => None,
        };
        Ok(match object {
            Some((object, place)) => (Some(object), place),
            None => (None, Place::Absent { before, was_unknown }),
        })
    }

    /// Gets one part of an object from whichever tier has it.
    pub(crate) async fn fetch(&self, cx: &Cx<D>, part: &PartId<'_>) -> Option<Seen<D::Buf>> {
        let found = self.inner.part(cx, part, true, None);
        self.kick(cx);
        match found {
            Part::Hit(seen) => Some(seen),
            Part::Miss => None,
            Part::Flash(flash) => self.fetch_from(cx, part, flash).await,
        }
    }

    /// Reads a part that may be on flash: the pages that have its mapping, where DRAM does not know it, then the record. Where the mapping
    /// changes meanwhile the part is looked up again, a few times; then it is a miss.
    pub(crate) async fn fetch_from(
        &self,
        cx: &Cx<D>,
        part: &PartId<'_>,
        mut flash: FlashLookup,
    ) -> Option<Seen<D::Buf>> {
        let inner = &*self.inner;
        let counts = flash.counts;
        // Reads that had to wait for the one before.
        let mut rounds = 0;
        let (mut moves_left, mut lookups_left) = (MOVES_MAX, LOOKUPS_MAX);
        let seen = loop {
            rounds += 1;
            let place = match flash.at {
                At::Record(place) => place,
                At::Mapping(plan) => {
                    match self.read_mapping(cx, part, &plan).await {
                        Part::Hit(seen) => break Some(seen),
                        Part::Miss => break None,
                        Part::Flash(found) => flash = found,
                    }
                    if let At::Mapping(_) = flash.at {
                        // Pages have moved: once more from the start.
                        if moves_left == 0 {
                            break None;
                        }
                        moves_left -= 1;
                    }
                    continue;
                }
            };
            let read = inner
                .store()
                .read_device(&cx.device, place.location, place.sequence);
            match read.await {
                Ok(record) if !part.is(&record) => {
                    inner.store().count_key_mismatch();
                    break None;
                }
                Ok(record) if cx.is_past(record.header().expiry) => {
                    inner.drop_logged(cx, place.hash, place.location, Gone::Expired);
                    break None;
                }
                Ok(record) => {
                    let place = match counts {
                        true => self.promote(cx, place, &record),
                        false => Place::Flash(place.location, place.sequence),
                    };
                    break Some(Seen {
                        record,
                        tier: Tier::Flash,
                        place,
                    });
                }
                Err(ReadFault::Reclaimed) => {}
                // Bytes that make no sense where nothing is mapped any more say nothing.
                Err(_) if !inner.is_current(place) => {}
                Err(ReadFault::Corrupt) => {
                    inner.drop_logged(cx, place.hash, place.location, Gone::Corrupt);
                    break None;
                }
                Err(ReadFault::Device(error)) => {
                    tracing::debug!("reading an object: {error}");
                    inner.drop_logged(cx, place.hash, place.location, Gone::Lost);
                    break None;
                }
            }
            // The device may be out by this: that is to be remembered even if nothing else comes.
            self.kick(cx);
            lookups_left -= 1;
            if lookups_left == 0 {
                break None;
            }
            match inner.part(cx, part, false, None) {
                Part::Hit(seen) => break Some(seen),
                Part::Miss => break None,
                Part::Flash(again) => flash = again,
            }
        };
        inner.rounds[rounds.min(ROUNDS - 1)].fetch_add(1, Ordering::Relaxed);
        // It counted, or is gone, or the device is out.
        self.kick(cx);
        seen
    }

    /// Reads pages of mappings, and finds the part in what they say.
    async fn read_mapping(&self, cx: &Cx<D>, part: &PartId<'_>, plan: &Plan) -> Part<D::Buf> {
        let inner = &*self.inner;
        let pages = match inner.store().mapping_pages() {
            Some(pages) => pages.read(&cx.device, plan.pages()).await,
            None => Vec::new(),
        };
        // Tier 1 learns what was read, and may grow. Sets see to that else, and there may be none.
        inner.make_room(0);
        let found = inner.part(cx, part, false, Some((plan, &pages)));
        // What tier 1 has let go for this may have filled a chunk.
        self.kick(cx);
        found
    }

    /// Puts what was read from flash into the DRAM tier, if it is still the live copy and DRAM has none. Never written to
    /// flash again.
    fn promote(&self, cx: &Cx<D>, flash: RecordPlace, record: &Record<D::Buf>) -> Place {
        let inner = &*self.inner;
        let place = Place::Flash(flash.location, flash.sequence);
        inner.note_flash_hit(flash.hash, &record.parts());
        let has_dram = inner.tier.segments() > 0;
        if has_dram {
            self.make_room(cx);
        } else if !inner.ranks_hits() {
            return place;
        }
        let mut shard = inner.lock(flash.hash);
        if !shard.flash.is_live(flash.hash, flash.location)
            || inner.store().order.sequence_at(flash.location) != flash.sequence
        {
            return place;
        }
        if inner.ranks_hits() {
            inner.count_hit(&mut shard, flash.hash, inner.object_bytes(&record.parts()));
        }
        if !has_dram {
            return place;
        }
        let mut parts = record.parts();
        parts.marks |= Meta::USED;
        let part = PartId::of(&parts);
        if shard
            .dram
            .find(&inner.tier, flash.hash, |found| part.is(found))
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

impl<B: Buffer> Inner<B> {
    /// Where flash has a mapping under a hash, and in which life of its block.
    pub(crate) fn place_on_flash(&self, shard: &Shard, hash: KeyHash) -> Option<(Location, u64)> {
        let location = shard.flash.get(hash)?;
        Some((location, self.store().order.sequence_at(location)))
    }

    /// Finds one part of an object without I/O: in the DRAM tier, else where the index says, which is asked what `pages` of a plan say
    /// where they were read. What that may make due is to be kicked.
    pub(crate) fn part<D: Device<Buf = B>>(
        &self,
        cx: &Cx<D>,
        part: &PartId<'_>,
        count: bool,
        pages: Option<(&Plan, &[Option<MappingBytes<B>>])>,
    ) -> Part<B> {
        let hash = self.hasher.hash(part);
        let mut shard = self.lock(hash);
        if let Some(found) = shard.dram.find(&self.tier, hash, |record| part.is(record)) {
            if cx.is_past(found.record.header().expiry) {
                self.expire_locked(cx, &mut shard, hash, &found.record, found.home, found.address);
                return Part::Miss;
            }
            if count && found.frequency < pumice_tier::FREQUENCY_MAX {
                shard.dram.hit(hash, found.address);
            }
            let version = found.record.header().version;
            let used = if found.frequency > 0 { Meta::USED } else { 0 };
            return Part::Hit(Seen {
                record: found.record.marked(used),
                tier: Tier::Dram,
                place: Place::Dram(version),
            });
        }
        let known = match pages {
            None => shard.flash.lookup(hash),
            Some((plan, pages)) => {
                let payloads = pages.iter().map(|page| page.as_ref()?.payload());
                shard.flash.resolve(hash, plan, payloads)
            }
        };
        let at = match known {
            IndexLookup::Miss => return Part::Miss,
            IndexLookup::Read(plan) => At::Mapping(plan),
            IndexLookup::Hit(Mapping { location, .. }) => match self.store().source(location) {
                Source::Memory(block) => {
                    return self.part_in_buffer(cx, &mut shard, part, (hash, location), &block, count);
                }
                Source::Device { sequence } => At::Record(RecordPlace {
                    hash,
                    location,
                    sequence,
                }),
            },
        };
        Part::Flash(FlashLookup { at, counts: true })
    }

    /// Whether it is certain, without I/O, that a part is in neither tier. Leaves no trace.
    pub(crate) fn is_missing(&self, part: &PartId<'_>) -> bool {
        let hash = self.hasher.hash(part);
        let shard = self.lock(hash);
        let dram = shard.dram.find(&self.tier, hash, |record| part.is(record));
        dram.is_none() && matches!(shard.flash.peek(hash), IndexLookup::Miss)
    }

    /// Finds one part in the buffer of a block that is not written yet, under the shard's lock.
    fn part_in_buffer<D: Device<Buf = B>>(
        &self,
        cx: &Cx<D>,
        shard: &mut Shard,
        part: &PartId<'_>,
        (hash, location): (KeyHash, Location),
        block: &OpenBlock<B>,
        count: bool,
    ) -> Part<B> {
        let Some(record) = self.store().read_memory(block, location) else {
            return Part::Miss;
        };
        if !part.is(&record) {
            self.store().count_key_mismatch();
            return Part::Miss;
        }
        if cx.is_past(record.header().expiry) {
            self.invalidate_locked(cx, shard, hash, location);
            self.books.expired.add(u64::from(location.len));
            return Part::Miss;
        }
        let place = Place::Flash(location, self.store().order.sequence_at(location));
        if count {
            self.note_flash_hit(hash, &record.parts());
            if self.ranks_hits() {
                self.count_hit(shard, hash, self.object_bytes(&record.parts()));
            }
        }
        Part::Hit(Seen {
            record,
            tier: Tier::Dram,
            place,
        })
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
        // What is mapped elsewhere is another key's.
        if self.is_home(shard, hash, home) || shard.flash.get(hash).is_none() {
            self.void_mapped(cx, shard, hash);
        }
        self.books.expired.add(self.store().padded_len(&record.parts()));
    }

    /// Whether a lookup's mapping still stands, in the same life of its block.
    fn is_current(&self, flash: RecordPlace) -> bool {
        let shard = self.lock(flash.hash);
        shard.flash.is_live(flash.hash, flash.location)
            && self.store().order.sequence_at(flash.location) == flash.sequence
    }

    /// Removes the mapping of a copy that could not be read, and logs that: the next read might succeed, and a copy
    /// that was given up must not come back.
    fn drop_logged<D: Device<Buf = B>>(&self, cx: &Cx<D>, hash: KeyHash, location: Location, why: Gone) {
        let mut shard = self.lock(hash);
        if !shard.flash.is_live(hash, location) {
            return;
        }
        let home = self.home(location);
        self.invalidate_locked(cx, &mut shard, hash, location);
        if !shard.dram.has_home(&self.tier, hash, home) {
            self.gone(why, u64::from(location.len));
        }
    }

    /// Removes a mapping, and logs that.
    fn invalidate_locked<D: Device<Buf = B>>(
        &self,
        cx: &Cx<D>,
        shard: &mut Shard,
        hash: KeyHash,
        location: Location,
    ) {
        if shard.flash.is_live(hash, location) {
            self.void_mapped(cx, shard, hash);
        }
    }

    /// Removes whatever is mapped, and logs that.
    fn void_mapped<D: Device<Buf = B>>(&self, cx: &Cx<D>, shard: &mut Shard, hash: KeyHash) {
        let version = self.store().next_version();
        let superseded = shard.flash.supersede(hash, None);
        self.store().invalidate(&cx.device, hash, &superseded, version);
    }

    /// Whether the flash layout wants to know of hits.
    fn ranks_hits(&self) -> bool {
        self.store().order.wants_hits()
    }

    /// Tells the flash layout that an object of this size was used, or a part of one.
    pub(crate) fn count_hit(&self, shard: &mut Shard, hash: KeyHash, object_bytes: u64) {
        if let Some(mapping) = shard.flash.mapping(hash) {
            let note = self.store().order.hit(hash, mapping, object_bytes);
            if note != mapping.note {
                shard.flash.set_note(hash, mapping.location, note);
            }
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

#[cfg(test)]
mod tests;
