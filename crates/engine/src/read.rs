//! Looking up and reading.

use crate::cache::{Cx, Inner, ObjectCache, ROUNDS, Shard};
use crate::large::Manifest;
use crate::object::{Meta, Object, Tier};
use crate::part::PartId;
use locks::MutexGuard;
use pumice_device::Device;
use pumice_flash::{Gone, MappingBytes, Mappings, OpenBlock, ReadFault, Source};
use pumice_index::cascade::Plan;
use pumice_index::{KeyHash, Known, Location, Lookup as IndexLookup, Mapping};
use pumice_memory::{Buffer, SECTOR_BYTES};
use pumice_record::Record;
use std::convert::Infallible;
use std::sync::atomic::Ordering;

/// Times that the mapping's pages may have moved while they were read.
const MOVES_MAX: usize = 16;

/// What a record is taken for whose mapping is on flash: those that have theirs there are small.
const UNKNOWN_RECORD_BYTES: u32 = 16 << 10;

/// Times that a key is looked up for one request, when its mapping changes under the read.
const LOOKUPS_MAX: usize = 3;

/// Whether who looks a key up wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A hit counts for eviction, and what is read from flash goes to the DRAM tier.
    Count,
    /// It leaves no trace; but what a large object is made of counts all the same.
    Peek,
}

/// What can be said of a key at once.
#[derive(Debug)]
pub enum Lookup<B> {
    /// The object, of a large one all but its value; or that neither tier has one.
    Known(Option<Object<B>>),
    /// This has to be read first: see [`ObjectCache::read`].
    Read(Fetch),
}

/// A read that is to be made: of one part of an object, which may be on flash.
#[derive(Debug)]
pub struct Fetch(pub(crate) At);

/// Where a part may be on flash.
#[derive(Clone, Copy, Debug)]
pub(crate) enum At {
    /// There, if its record has the key.
    Record(RecordPlace),
    /// Where these pages say, if they have a mapping.
    Mapping(Plan),
}

/// Where a record is, in which generation of its block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordPlace {
    hash: KeyHash,
    location: Location,
    sequence: u64,
}

impl At {
    /// Bytes to read, less what rounding up to sectors adds. Where the mapping has to be read first, how long the record is is
    /// not known yet: this is then the pages and a record of 16 KiB.
    pub(crate) fn bytes(&self) -> u32 {
        match self {
            At::Record(place) => place.location.len,
            At::Mapping(plan) => plan.pages().len() as u32 * SECTOR_BYTES as u32 + UNKNOWN_RECORD_BYTES,
        }
    }
}

impl Fetch {
    /// Memory that it takes, in bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes() as usize + 2 * SECTOR_BYTES
    }
}

impl<B: Buffer> Lookup<B> {
    /// What a record is that was found.
    fn of(record: Record<B>, tier: Tier, place: Place) -> Self {
        let mut object = Object::whole(record, tier, place);
        if !object.is_large() {
            return Lookup::Known(Some(object));
        }
        let value_len = Manifest::decode(&object.head).map(|manifest| usize::try_from(manifest.value_len));
        let Some(Ok(value_len)) = value_len else {
            return Lookup::Known(None);
        };
        object.value_len = value_len;
        // Reading the slices takes a while, and so may waiting for the memory to do that: nothing of DRAM is pinned meanwhile.
        object.detach();
        Lookup::Known(Some(object))
    }

    /// What a large object is made of; `None` where none was found, or it is not known yet.
    pub(crate) fn manifest(&self) -> Option<Manifest> {
        match self {
            Lookup::Known(Some(object)) => Manifest::decode(&object.head),
            _ => None,
        }
    }
}

/// Who lends memory for what is read. A request holds one permit at a time: it gives that back before it asks for another.
pub trait Permits {
    /// Leave to hold so many bytes until it is dropped.
    type Permit;
    /// Why there will be none.
    type Refusal;

    /// Waits until so many bytes may be held.
    fn take(&mut self, bytes: usize) -> impl Future<Output = Result<Self::Permit, Self::Refusal>>;
}

/// Lends whatever is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unlimited;

impl Permits for Unlimited {
    type Permit = ();
    type Refusal = Infallible;

    async fn take(&mut self, _bytes: usize) -> Result<(), Infallible> {
        Ok(())
    }
}

/// Where a live copy was seen; conditional changes compare it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nowhere.
    Absent {
        /// On flash there was this, in this generation of its block, which reading showed to be another key's, or nothing.
        before: Option<(Location, u64)>,
        /// Whether the index could not tell without reading that there is no other mapping.
        was_unknown: bool,
    },
    /// In the DRAM tier, with this version.
    Dram(u64),
    /// On flash or in a block buffer, in this generation of the block.
    Flash(Location, u64),
}

impl<D: Device + Clone> ObjectCache<D> {
    /// Looks a key up without I/O. Nothing has the empty key.
    pub fn lookup<'a>(&self, cx: &Cx<D>, key: impl Into<PartId<'a>>, access: Access) -> Lookup<D::Buf> {
        let part = key.into();
        if part.key.is_empty() {
            return Lookup::Known(None);
        }
        self.flush_if_due(cx);
        let found = self.inner.find(cx, &part, access, None);
        self.kick(cx);
        found
    }

    /// Makes all reads that lead to an object, each under a permit; with the last, for as long as the object is kept. Of a large object this is all
    /// but the value.
    ///
    /// # Errors
    /// What `permits` say.
    pub async fn read<P: Permits>(
        &self,
        cx: &Cx<D>,
        key: &[u8],
        fetch: Fetch,
        access: Access,
        permits: &mut P,
    ) -> Result<(Option<Object<D::Buf>>, Option<P::Permit>), P::Refusal> {
        let (mut found, mut permit) = (Lookup::Read(fetch), None);
        loop {
            match found {
                Lookup::Known(object) => return Ok((object, permit)),
                Lookup::Read(fetch) => {
                    drop(permit.take());
                    permit = Some(permits.take(fetch.bytes()).await?);
                    found = self.fetch(cx, key, fetch, access).await;
                }
            }
        }
    }

    /// Gets an object from whichever tier has it, with all of its value, whatever memory that takes.
    pub async fn get(&self, cx: &Cx<D>, key: &[u8]) -> Option<Object<D::Buf>> {
        let found = self.lookup(cx, key, Access::Count);
        match self.fetch_unless_known(cx, key, found).await {
            // In memory of its own: most reads do without.
            Lookup::Known(Some(object)) if object.is_large() => Box::pin(self.gather(cx, key, object)).await,
            Lookup::Known(object) => object,
            Lookup::Read(_) => None,
        }
    }

    /// Gets an object, of a large one all but its value, whatever memory that takes: at most a record of 1 MiB.
    pub async fn get_head(&self, cx: &Cx<D>, key: &[u8]) -> Option<Object<D::Buf>> {
        let Ok((object, _)) = self.observe(cx, key, usize::MAX).await else {
            unreachable!("whatever it takes")
        };
        object
    }

    /// Gets an object, of a large one all but its value, and where it was seen, for a conditional change.
    ///
    /// # Errors
    /// The bytes that reading it takes, or its value, where those are more than allowed.
    pub(crate) async fn observe(
        &self,
        cx: &Cx<D>,
        key: &[u8],
        bytes_max: usize,
    ) -> Result<(Option<Object<D::Buf>>, Place), usize> {
        self.flush_if_due(cx);
        // What flash has under these hash bits before looking: if the key turns out to be absent, this was a stranger's.
        let hash = self.inner.hasher.hash(&PartId::object(key));
        let known = self.inner.lock(hash).flash.find(hash);
        let (before, was_unknown) = (self.inner.place_of(known), known == Known::Unknown);
        let found = self.lookup(cx, key, Access::Count);
        if let Lookup::Read(Fetch(at)) = &found
            && at.bytes() as usize > bytes_max
        {
            return Err(at.bytes() as usize);
        }
        let Lookup::Known(object) = self.fetch_unless_known(cx, key, found).await else {
            unreachable!("it has been read")
        };
        if let Some(object) = &object
            && !object.is_large()
            && object.value_len > bytes_max
        {
            return Err(object.value_len);
        }
        let place = match &object {
            Some(object) => object.place,
            None => Place::Absent { before, was_unknown },
        };
        Ok((object, place))
    }

    /// Reads the record that a lookup found may be on flash, where it did; a hit counts.
    pub(crate) async fn fetch_unless_known<'a>(
        &self,
        cx: &Cx<D>,
        key: impl Into<PartId<'a>>,
        found: Lookup<D::Buf>,
    ) -> Lookup<D::Buf> {
        match found {
            Lookup::Read(fetch) => self.fetch(cx, key, fetch, Access::Count).await,
            found => found,
        }
    }

    /// Reads the record that a lookup found may be on flash, with one device read unless its block was reclaimed meanwhile: first the
    /// pages that have its mapping, where DRAM does not know it. Where the mapping changes meanwhile the key is looked up again, a few
    /// times; then it is a miss. The caller has memory for it ([`Fetch::bytes`]).
    pub async fn fetch<'a>(
        &self,
        cx: &Cx<D>,
        key: impl Into<PartId<'a>>,
        fetch: Fetch,
        access: Access,
    ) -> Lookup<D::Buf> {
        let Fetch(mut at) = fetch;
        let part = &key.into();
        let inner = &*self.inner;
        // Reads that had to wait for the one before.
        let mut rounds = 0;
        let (mut moves_left, mut lookups_left) = (MOVES_MAX, LOOKUPS_MAX);
        let found = loop {
            rounds += 1;
            let place = match at {
                At::Record(place) => place,
                At::Mapping(plan) => {
                    match self.read_mapping(cx, part, &plan).await {
                        Lookup::Read(Fetch(next)) => at = next,
                        found => break found,
                    }
                    if let At::Mapping(_) = at {
                        // Pages have moved: once more from the start.
                        if moves_left == 0 {
                            break Lookup::Known(None);
                        }
                        moves_left -= 1;
                    }
                    continue;
                }
            };
            let RecordPlace {
                hash,
                location,
                sequence,
            } = place;
            let gone = match inner.store().read_device(&cx.device, location, sequence).await {
                Ok(record) if !part.is(&record) => {
                    inner.store().count_key_mismatch();
                    break Lookup::Known(None);
                }
                Ok(record) if cx.is_past(record.header().expiry) => Some(Gone::Expired),
                Ok(record) => {
                    let place = match access {
                        Access::Count => self.promote(cx, part, place, &record),
                        Access::Peek => Place::Flash(location, sequence),
                    };
                    break Lookup::of(record, Tier::Flash, place);
                }
                Err(ReadFault::Reclaimed) => None,
                // Bytes that make no sense where nothing is mapped any more say nothing.
                Err(_) if !inner.is_current(place) => None,
                Err(ReadFault::Corrupt) => Some(Gone::Corrupt),
                Err(ReadFault::Device(error)) => {
                    tracing::debug!("reading an object: {error}");
                    Some(Gone::Lost)
                }
            };
            if let Some(why) = gone {
                inner.drop_logged(cx, hash, location, why);
                break Lookup::Known(None);
            }
            // The device may be out by this: that is to be remembered even if nothing else comes.
            self.kick(cx);
            lookups_left -= 1;
            if lookups_left == 0 {
                break Lookup::Known(None);
            }
            match inner.find(cx, part, Access::Peek, None) {
                Lookup::Read(Fetch(again)) => at = again,
                found => break found,
            }
        };
        inner.rounds[rounds.min(ROUNDS - 1)].fetch_add(1, Ordering::Relaxed);
        // It counted, or is gone, or the device is out.
        self.kick(cx);
        found
    }

    /// Reads pages of mappings, and finds the part in what they say.
    async fn read_mapping(&self, cx: &Cx<D>, part: &PartId<'_>, plan: &Plan) -> Lookup<D::Buf> {
        let inner = &*self.inner;
        let pages = match inner.store().mapping_pages() {
            Some(pages) => pages.read(&cx.device, plan.pages()).await,
            None => Vec::new(),
        };
        // Tier 1 learns what was read, and may grow. Sets see to that else, and there may be none.
        inner.make_room(0);
        let found = inner.find(cx, part, Access::Peek, Some((plan, &pages)));
        // What tier 1 has let go for this may have filled a chunk.
        self.kick(cx);
        found
    }

    /// Puts what was read from flash into the DRAM tier, if it is still the live copy and DRAM has none. Never written to
    /// flash again.
    fn promote(&self, cx: &Cx<D>, part: &PartId<'_>, flash: RecordPlace, record: &Record<D::Buf>) -> Place {
        let inner = &*self.inner;
        let RecordPlace {
            hash,
            location,
            sequence,
        } = flash;
        let (place, order) = (Place::Flash(location, sequence), &inner.store().order);
        let mut parts = record.parts();
        if let Some(admit) = &inner.admit {
            admit.note_flash_hit(hash, &parts);
        }
        let has_dram = inner.tier.segments() > 0;
        if has_dram {
            self.make_room(cx);
        } else if !order.wants_hits() {
            return place;
        }
        let mut shard = inner.lock(hash);
        let note = |mapping| order.hit(hash, mapping, || inner.object_bytes(&parts));
        let is_live = order.sequence_at(location) == sequence && shard.flash.hit(hash, location, note);
        if !is_live || !has_dram {
            return place;
        }
        parts.marks |= Meta::USED;
        let (is_same, flash_location) = (
            |item: &Record<D::Buf>| part.is(item),
            inner.flash_location(location),
        );
        match inner
            .tier
            .promote(&mut shard.dram, hash, &parts, flash_location, is_same)
        {
            true => Place::Dram(parts.version),
            false => place,
        }
    }
}

impl<B: Buffer> Inner<B> {
    /// Where flash has what is known of a hash, and in which generation of its block. Called under the shard's lock.
    pub(crate) fn place_of(&self, known: Known) -> Option<(Location, u64)> {
        let location = known.live()?.location;
        Some((location, self.store().order.sequence_at(location)))
    }

    /// Finds one part of an object without I/O: in the DRAM tier, else where the index says, which is asked what `pages` of a plan say
    /// where they were read. What that may make due is to be kicked.
    pub(crate) fn find<D: Device<Buf = B>>(
        &self,
        cx: &Cx<D>,
        part: &PartId<'_>,
        access: Access,
        pages: Option<(&Plan, &[Option<MappingBytes<B>>])>,
    ) -> Lookup<B> {
        let hash = self.hasher.hash(part);
        let mut shard = self.lock(hash);
        if let Some(found) = shard.dram.find(&self.tier, hash, |record| part.is(record)) {
            if cx.is_past(found.record.header().expiry) {
                self.expire_locked(
                    cx,
                    &mut shard,
                    hash,
                    &found.record,
                    found.flash_location,
                    found.address,
                );
                return Lookup::Known(None);
            }
            if access == Access::Count && found.frequency < pumice_tier::FREQUENCY_MAX {
                shard.dram.hit(hash, found.address);
            }
            drop(shard);
            let used = if found.frequency > 0 { Meta::USED } else { 0 };
            let place = Place::Dram(found.record.header().version);
            return Lookup::of(found.record.marked(used), Tier::Dram, place);
        }
        let known = if let Some((plan, pages)) = pages
            && let Some(index) = shard.flash.cascade()
        {
            let payloads = pages.iter().map(|page| page.as_ref()?.payload());
            index.resolve(hash, plan, payloads)
        } else {
            shard.flash.lookup(hash)
        };
        let at = match known {
            IndexLookup::Miss => return Lookup::Known(None),
            IndexLookup::Read(plan) => At::Mapping(plan),
            IndexLookup::Hit(Mapping { location, .. }) => match self.store().source(location) {
                Source::Memory(block) => {
                    return self.find_in_buffer(cx, shard, part, (hash, location), &block, access);
                }
                Source::Device { sequence } => At::Record(RecordPlace {
                    hash,
                    location,
                    sequence,
                }),
            },
        };
        Lookup::Read(Fetch(at))
    }

    /// Whether it is certain, without I/O, that a part is in neither tier. Leaves no trace.
    pub(crate) fn is_missing(&self, part: &PartId<'_>) -> bool {
        let hash = self.hasher.hash(part);
        let shard = self.lock(hash);
        let dram = shard.dram.find(&self.tier, hash, |record| part.is(record));
        dram.is_none() && shard.flash.find(hash) == Known::Dead
    }

    /// Finds one part in the buffer of a block that is not written yet, under the shard's lock.
    fn find_in_buffer<D: Device<Buf = B>>(
        &self,
        cx: &Cx<D>,
        mut shard: MutexGuard<'_, Shard>,
        part: &PartId<'_>,
        (hash, location): (KeyHash, Location),
        block: &OpenBlock<B>,
        access: Access,
    ) -> Lookup<B> {
        let Some(record) = self.store().read_memory(block, location) else {
            return Lookup::Known(None);
        };
        if !part.is(&record) {
            self.store().count_key_mismatch();
            return Lookup::Known(None);
        }
        if cx.is_past(record.header().expiry) {
            self.invalidate_locked(cx, &mut shard, hash, location);
            self.books.expired.add(u64::from(location.len));
            return Lookup::Known(None);
        }
        let place = Place::Flash(location, self.store().order.sequence_at(location));
        if access == Access::Count {
            let parts = record.parts();
            if let Some(admit) = &self.admit {
                admit.note_flash_hit(hash, &parts);
            }
            let bytes = || self.object_bytes(&parts);
            (shard.flash).hit(hash, location, |mapping| {
                self.store().order.hit(hash, mapping, bytes)
            });
        }
        drop(shard);
        Lookup::of(record, Tier::Dram, place)
    }

    /// Removes an expired item from both tiers. What flash held is logged: after a crash the clock may show an earlier time,
    /// and a later set found nothing to log.
    fn expire_locked<D: Device<Buf = B>>(
        &self,
        cx: &Cx<D>,
        shard: &mut Shard,
        hash: KeyHash,
        record: &Record<B>,
        flash_location: u64,
        address: u64,
    ) {
        shard.dram.remove(hash, address);
        // What is mapped elsewhere is another key's.
        if self.is_flash_location(shard, hash, flash_location) || shard.flash.find(hash).live().is_none() {
            self.void_mapped(cx, shard, hash);
        }
        self.books.expired.add(self.store().padded_len(&record.parts()));
    }

    /// Whether a lookup's mapping still stands, in the same generation of its block.
    fn is_current(&self, flash: RecordPlace) -> bool {
        let shard = self.lock(flash.hash);
        shard.flash.known(flash.hash, flash.location).live().is_some()
            && self.store().order.sequence_at(flash.location) == flash.sequence
    }

    /// Removes the mapping of a copy that could not be read, and logs that: the next read might succeed, and a copy
    /// that was given up must not come back.
    fn drop_logged<D: Device<Buf = B>>(&self, cx: &Cx<D>, hash: KeyHash, location: Location, why: Gone) {
        let mut shard = self.lock(hash);
        if shard.flash.known(hash, location).live().is_none() {
            return;
        }
        let flash_location = self.flash_location(location);
        self.invalidate_locked(cx, &mut shard, hash, location);
        if !shard.dram.has_flash_location(&self.tier, hash, flash_location) {
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
        if shard.flash.known(hash, location).live().is_some() {
            self.void_mapped(cx, shard, hash);
        }
    }

    /// Removes whatever is mapped, and logs that.
    fn void_mapped<D: Device<Buf = B>>(&self, cx: &Cx<D>, shard: &mut Shard, hash: KeyHash) {
        let version = self.store().next_version();
        let superseded = shard.flash.supersede(hash, None);
        self.store().invalidate(&cx.device, hash, &superseded, version);
    }
}

#[cfg(test)]
mod tests;
