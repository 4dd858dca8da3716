//! Setting.

use crate::admission::{Before, marked};
use crate::cache::{Cx, Inner, ObjectCache, Shard};
use crate::config::FlashWrite;
use crate::large::whole_parts;
use crate::object::{Meta, RejectReason};
use crate::part::PartId;
use pumice_device::Device;
use pumice_flash::{Arrival, Coming, LogKind};
use pumice_index::{KeyHash, Mapping, Superseded};
use pumice_memory::{Buffer, Payload};
use pumice_record::{Record, RecordParts, SliceId};
use pumice_tier::Queue;

impl<D: Device + Clone> ObjectCache<D> {
    /// Stores an object, without I/O but for a log append where flash held an older one. Returns its version.
    ///
    /// # Errors
    /// [`RejectReason`]; whatever stood under the key is gone then too, but for a key of bad length.
    pub fn set(&self, cx: &Cx<D>, key: &[u8], value: Payload<'_>, meta: Meta) -> Result<u64, RejectReason> {
        self.flush_if_due(cx);
        self.check(cx, key, value.len())?;
        if self.inner.is_large(key, value.len()) {
            return self.large(cx, key).set_now(value, meta);
        }
        self.publish_part(cx, &PartId::object(key), || whole_parts(key, value, meta))
    }

    /// As [`ObjectCache::set`], but a large object waits for block buffers instead of losing slices.
    ///
    /// # Errors
    /// [`RejectReason`].
    pub async fn store(
        &self,
        cx: &Cx<D>,
        key: &[u8],
        value: Payload<'_>,
        meta: Meta,
    ) -> Result<u64, RejectReason> {
        if !self.inner.is_large(key, value.len()) {
            return self.set(cx, key, value, meta);
        }
        self.flush_if_due(cx);
        self.check(cx, key, value.len())?;
        self.large(cx, key).set_waiting(value, meta).await
    }

    /// Refuses what cannot be stored; the older object goes where the key is good, as memcached has it.
    pub(crate) fn check(&self, cx: &Cx<D>, key: &[u8], len: usize) -> Result<(), RejectReason> {
        let Some(reason) = self.inner.refusal(key, len) else {
            return Ok(());
        };
        if reason == RejectReason::TooLarge {
            self.remove(cx, key);
        }
        Err(reason)
    }

    /// Stores one record in both tiers, in place of whatever is there.
    pub(crate) fn publish(&self, cx: &Cx<D>, parts: RecordParts<'_>) -> Result<u64, RejectReason> {
        self.publish_part(cx, &PartId::of(&parts), || parts)
    }

    /// Stores the record that `parts` makes of a part, as [`ObjectCache::publish`] does.
    fn publish_part<'a>(
        &self,
        cx: &Cx<D>,
        part: &PartId<'_>,
        parts: impl FnOnce() -> RecordParts<'a>,
    ) -> Result<u64, RejectReason> {
        self.make_room(cx);
        let hash = self.inner.hasher.hash(part);
        let stored = {
            let mut shard = self.inner.lock(hash);
            shard.prefetch(hash);
            // The checksum of a value takes as long as memory does.
            let parts = parts();
            self.inner
                .publish_locked(cx, &mut shard, hash, parts, Replaces::All, None)
        };
        self.kick(cx);
        stored
    }

    /// Removes whatever is under the key without looking whether flash holds that very key.
    pub(crate) fn remove(&self, cx: &Cx<D>, key: &[u8]) {
        let part = PartId::object(key);
        let hash = self.inner.hasher.hash(&part);
        let mut shard = self.inner.lock(hash);
        let version = self.inner.store().next_version();
        for bytes in self.inner.clear_part(cx, &mut shard, hash, &part, version) {
            self.inner.books.overwritten.add(bytes);
        }
        drop(shard);
        self.kick(cx);
    }
}

/// What of the object under its key a record replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replaces {
    /// All: it is a new object.
    All,
    /// Flags, expiry and marks: it is no new object for who says what goes to flash. What is on flash may be written there anew as long as the
    /// write budget is not empty.
    Meta,
    /// The same, and the owner's bytes. The older copy on flash is kept until the newer is written, where that can be.
    Head,
}

/// Which copies a change logs as void.
#[derive(Clone, Copy)]
enum Voids {
    /// Those below a version.
    Below(u64),
    /// A slice that is about to be stored has a version of its own, which is older, and a record must not void it too. Only a stranger can
    /// have a copy under its hash: what the index does not know of is void below that version, and what came since is noted as unlogged.
    Slice { version: u64, own: u64 },
    /// None yet.
    Later,
}

/// What a part's copies were, after they have become void.
struct Voided {
    /// Address of the item in the DRAM tier, whose table still leads to it.
    dram: Option<u64>,
    /// Bytes of the entries that are gone.
    gone: [Option<u64>; 2],
}

impl<B: Buffer> Inner<B> {
    /// An object that came and was refused: in one step for whoever compares the books.
    pub(crate) fn count_refused(&self, hash: KeyHash, bytes: u64) {
        let _shard = self.lock(hash);
        self.books.offered.add(bytes);
        self.books.rejected.add(bytes);
    }

    /// Why a value of this length cannot be stored, if so; one that is too large is counted.
    pub(crate) fn refusal(&self, key: &[u8], len: usize) -> Option<RejectReason> {
        if key.is_empty() || key.len() > crate::KEY_BYTES_MAX {
            return Some(RejectReason::KeyLength);
        }
        let is_too_large = len > self.item_bytes_max
            || self.is_large(key, len) && len as u64 > self.value_bytes_max(key, false);
        is_too_large.then(|| self.refuse_too_large(key, len as u64))
    }

    /// A value that is longer than the cache takes, or can hold.
    pub(crate) fn refuse_too_large(&self, key: &[u8], len: u64) -> RejectReason {
        self.count_refused(self.hasher.hash(&PartId::object(key)), len);
        RejectReason::TooLarge
    }

    /// The longest value that is one record, for a key of this length.
    pub(crate) fn whole_bytes(&self, key: &[u8]) -> usize {
        let record_max = usize::try_from(self.store().record_max()).expect("at most 1 MiB");
        record_max - pumice_record::HEADER_BYTES_MAX - key.len()
    }

    /// Bytes of a slice of a longer value.
    pub(crate) fn slice_bytes(&self, key: &[u8]) -> usize {
        let slice_max = usize::try_from(self.store().slice_max()).expect("at most 1 MiB");
        slice_max - pumice_record::HEADER_BYTES_MAX - key.len()
    }

    /// Whether records go to flash as they are set.
    pub(crate) fn is_flash_first(&self) -> bool {
        self.flash_write == FlashWrite::Insertion || self.tier.segments() == 0
    }

    pub(crate) fn is_large(&self, key: &[u8], value_len: usize) -> bool {
        value_len > self.whole_bytes(key)
    }

    /// Removes the copies of a part from both tiers and logs what flash held. Returns the bytes of each entry that is
    /// gone: one if both tiers held the same, two if flash held a stranger of the same tag.
    pub(crate) fn clear_part<D: Device<Buf = B>>(
        &self,
        cx: &Cx<D>,
        shard: &mut Shard,
        hash: KeyHash,
        part: &PartId<'_>,
        version: u64,
    ) -> impl Iterator<Item = u64> + use<D, B> {
        let superseded = shard.flash.supersede(hash, None);
        let voided = self.void_part(cx, shard, hash, part, &superseded, Voids::Below(version));
        self.store().order.bury(hash, &superseded);
        if let Some(address) = voided.dram {
            shard.dram.remove(hash, address);
        }
        voided.gone.into_iter().flatten()
    }

    /// Accounts for the copies of a part in both tiers, of which the index has let go with `superseded`, and logs what flash held;
    /// there it counts until the caller says otherwise. The table of the DRAM tier leads to its copy until the caller has put another in
    /// its place, or has taken it out.
    fn void_part<D: Device<Buf = B>>(
        &self,
        cx: &Cx<D>,
        shard: &mut Shard,
        hash: KeyHash,
        part: &PartId<'_>,
        superseded: &Superseded,
        voids: Voids,
    ) -> Voided {
        let flash = superseded.known;
        let dram = shard.dram.find(&self.tier, hash, |record| part.is(record));
        let mut gone = [None; 2];
        let mut same = false;
        if let Some(found) = &dram {
            same = flash.is_some_and(|mapping| self.flash_location(mapping.location) == found.flash_location);
            gone[0] = Some(self.store().padded_len(&found.record.parts()));
        }
        // Before the last object of a block is void, and the block another's.
        let mapped = flash.map(|mapping| (mapping, self.flash_location(mapping.location)));
        let below = match voids {
            Voids::Slice { own, .. } if flash.is_none() => Some(own),
            Voids::Below(version) | Voids::Slice { version, .. } => Some(version),
            Voids::Later => None,
        };
        if let Some(below) = below {
            self.store().log_void(&cx.device, hash, superseded, below);
        }
        if let (Voids::Slice { version, own }, None) = (voids, flash)
            && superseded.may_be_more
            && own < version
        {
            shard.note_unlogged(hash);
        }
        if let Some((mapping, flash_location)) = mapped {
            // A stranger's copy in DRAM outlives its copy on flash, and still counts.
            if !same && !shard.dram.has_flash_location(&self.tier, hash, flash_location) {
                gone[1] = Some(u64::from(mapping.location.len));
            }
        }
        Voided {
            dram: dram.map(|found| found.address),
            gone,
        }
    }

    /// Whether one of the tiers has room for a record, as long as others do not take it.
    pub(crate) fn has_room(&self, parts: &RecordParts<'_>) -> bool {
        self.tier.has_room(parts.dram_len()) || self.store().has_room(parts.encoded_len() as u64)
    }

    /// Stores one record under the shard's lock, with a new version unless it is a slice. `kept`: what flash has of the same object, which is
    /// to be kept until the record is written there.
    pub(crate) fn publish_locked<D: Device<Buf = B>>(
        &self,
        cx: &Cx<D>,
        shard: &mut Shard,
        hash: KeyHash,
        parts: RecordParts<'_>,
        replaces: Replaces,
        kept: Option<Mapping>,
    ) -> Result<u64, RejectReason> {
        let bytes = self.store().padded_len(&parts);
        self.books.offered.add(bytes);
        // A slice keeps the version of its set, and a stranger's may have become higher since.
        let version = self.store().next_version();
        let own = parts.version;
        let (parts, voids) = match parts.slice {
            SliceId::Part(_) => (parts, Voids::Slice { version, own }),
            _ if kept.is_some() => (RecordParts { version, ..parts }, Voids::Later),
            _ => (RecordParts { version, ..parts }, Voids::Below(version)),
        };
        // A write is a hit on what it replaces, as far as flash knows of that.
        let store = self.store();
        shard.dram.prefetch_item(&self.tier, hash);
        let superseded = shard.flash.begin_supersede(hash);
        let object_bytes = self.object_bytes(&parts);
        let part = PartId::of(&parts);
        let is_refused = parts.marks & Meta::REFUSED != 0;
        let voided = self.void_part(cx, shard, hash, &part, &superseded, voids);
        for gone in voided.gone.into_iter().flatten() {
            self.books.overwritten.add(gone);
        }
        let mut former = voided.dram;
        let (mut flash_location, mut rank) = (0, None);
        let queue = match self.tier.segments() {
            0 => Queue::Small,
            _ => self.tier.queue_for(hash),
        };
        let known = Before {
            is_on_flash: superseded.known.is_some(),
            was_hit: queue == Queue::Main,
        };
        // Of large objects DRAM alone could have to let go of more at once than flash has room for.
        let goes_now = self.is_flash_first()
            || parts.slice != SliceId::Whole && replaces != Replaces::Meta
            || replaces == Replaces::Head && known.is_on_flash
            || replaces != Replaces::All && known.is_on_flash && self.admit.is_some();
        let mut is_admitted = match parts.slice {
            _ if is_refused => false,
            _ if kept.is_some() => true,
            _ if replaces != Replaces::All => self.may_write_anew(cx),
            SliceId::Whole if self.is_flash_first() => {
                self.admits(cx, hash, &parts, || known.with_hits(shard, hash, former))
            }
            _ => true,
        };
        let parts = marked(parts, !is_admitted);
        if !is_admitted {
            store.order.bury(hash, &superseded);
        } else if goes_now {
            let over = Coming::Over {
                superseded,
                object_bytes,
            };
            flash_location = self.append_locked(cx, shard, hash, &parts, over);
            if let Some(old) = kept {
                match shard.flash.find(hash).live().filter(|_| flash_location != 0) {
                    Some(new) => store.keep_until_written(hash, version, new.location, old),
                    // Another has taken the room.
                    None => store.log_void(&cx.device, hash, &superseded, version),
                }
            }
        } else {
            rank = Some(store.order.rank_over(hash, &superseded, object_bytes));
        }
        if flash_location == 0 && superseded.known.is_some() {
            shard.flash.end_supersede(hash);
        }
        let in_dram = self.tier.segments() > 0
            && match self.tier.write(queue, &parts, flash_location) {
                Some(reserved) => match former.take() {
                    Some(former) => shard.dram.relocate(hash, former, reserved.address, 0),
                    None => shard.dram.insert(hash, reserved.address).is_ok(),
                },
                None => false,
            };
        // An item that DRAM cannot hold goes to flash whatever the setting.
        if let Some(rank) = rank.filter(|_| !in_dram) {
            is_admitted = parts.slice != SliceId::Whole
                || self.admits(cx, hash, &parts, || known.with_hits(shard, hash, former));
            if is_admitted {
                flash_location = self.append_locked(cx, shard, hash, &parts, rank);
            }
        }
        // What nothing has taken the place of.
        if let Some(address) = former {
            shard.dram.remove(hash, address);
        }
        if in_dram || flash_location != 0 {
            Ok(parts.version)
        } else if !is_admitted && !self.store().is_out() {
            // Refused by both tiers: as good as evicted at once.
            self.books.refused.add(bytes);
            Ok(parts.version)
        } else if self.store().is_out() {
            // Flash would have taken it. Now it is gone as soon as it came, which is no error for the client.
            self.books.evicted.add(bytes);
            Ok(parts.version)
        } else {
            self.books.rejected.add(bytes);
            Err(RejectReason::NoRoom)
        }
    }

    /// Appends a record to flash and maps it; 0 where there is no room for either, else its flash location. What it takes the place of is void already, and
    /// logged.
    pub(crate) fn append_locked<D: Device<Buf = B>>(
        &self,
        cx: &Cx<D>,
        shard: &mut Shard,
        hash: KeyHash,
        parts: &RecordParts<'_>,
        coming: impl Into<Coming>,
    ) -> u64 {
        let Some(appended) = self.store().append(hash, parts, coming) else {
            return 0;
        };
        if shard.flash.supersede(hash, Some(appended.mapping)).is_mapped {
            return self.flash_location(appended.mapping.location);
        }
        // Nothing maps what was appended, and no start may find it.
        let store = self.store();
        store.append_log(&cx.device, LogKind::Invalidate, hash, store.next_version());
        store.order.forget(Some(hash), appended.mapping);
        0
    }

    /// As [`Inner::append_locked`] for a new object that DRAM has held alone, where it `was_hit` or was not. Where flash may have a
    /// copy of another key of the same tag, of which DRAM knows nothing, this takes its place.
    pub(crate) fn append_from_dram<D: Device<Buf = B>>(
        &self,
        cx: &Cx<D>,
        shard: &mut Shard,
        hash: KeyHash,
        parts: &RecordParts<'_>,
        was_hit: bool,
    ) -> u64 {
        if shard.may_be_more(hash) {
            // A record would void this copy too.
            shard.note_unlogged(hash);
        }
        let arrival = if was_hit { Arrival::Asked } else { Arrival::New };
        let rank = self.store().order.rank(arrival, self.object_bytes(parts));
        self.append_locked(cx, shard, hash, &marked(*parts, false), rank)
    }

    /// A record's parts with another expiry, other flags and marks.
    pub(crate) fn with_meta<'a>(record: &'a Record<B>, meta: Meta) -> RecordParts<'a> {
        // A head stays where its slices are.
        let refused = record.header().marks & Meta::REFUSED;
        RecordParts {
            expiry: meta.expiry,
            flags: meta.flags,
            marks: meta.marks & !Meta::REFUSED | refused,
            ..record.parts()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{CASCADE, Rig, VALUE, run, small};
    use crate::update::Change;
    use crate::{CacheOptions, HashLimit, LayoutName, LayoutOptions};
    use pumice_device::MemMedium;
    use pumice_flash::{Gone, Mappings};
    use pumice_index::Known;
    use std::sync::Arc;

    #[test]
    fn a_crash_leaves_large_objects_whole_whatever_the_filters_took_their_slices_for() {
        let options = CacheOptions {
            dram_bytes: 0,
            index: CASCADE,
            ..CacheOptions::default()
        };
        let medium = Arc::new(MemMedium::new(16 << 20));
        let rig = Rig::open(&medium, options);
        let (small, large) = (
            |n: u32| format!("small-{n}").into_bytes(),
            |n: u32| format!("large-{n}").into_bytes(),
        );
        let value = vec![7; 100_000];
        let mut unknown = 0usize;
        for n in 0..60 {
            for m in 0..40 {
                rig.set(&small(n * 40 + m), VALUE, 0);
                if m % 10 == 0 {
                    rig.settle();
                }
            }
            let key = large(n);
            let inner = &rig.cache.inner;
            // The version that its slices will have.
            let version = inner.store().next_version() + 1;
            let is_unknown = |number| {
                let slice = inner.hasher.hash(&PartId::slice(&key, number, version));
                inner.lock(slice).flash.find(slice) == Known::Unknown
            };
            unknown += (0..5).filter(|number| is_unknown(*number)).count();
            let stored = (rig.cache).store(&rig.cx, &key, Payload::Bytes(&value), crate::Meta::default());
            assert!(run(&rig.executor, stored).is_ok());
            rig.settle();
        }
        rig.write_open_blocks();
        println!("{unknown} of 300 slices may be on flash already, says the index");
        assert!(unknown > 10, "{unknown}");
        assert_eq!(rig.cache.stats().flash.reclaimed_blocks, 0);
        drop(rig);
        let rig = Rig::open(&medium, options);
        let lost: Vec<u32> = (0..60)
            .filter(|n| rig.get(&large(*n)).as_ref() != Some(&value))
            .collect();
        assert_eq!(lost, [0; 0], "all stood in blocks that were written");
    }

    #[test]
    fn a_copy_that_an_evicted_stranger_hid_is_void_once_its_key_is_set_again() {
        let options = CacheOptions {
            dram_bytes: 4 << 20,
            flash_write: FlashWrite::Eviction,
            hash_limit: HashLimit(8),
            index: CASCADE,
            ..CacheOptions::default()
        };
        for is_deleted in [false, true] {
            let medium = Arc::new(MemMedium::new(16 << 20));
            let rig = Rig::open(&medium, options);
            let keys = |n: u32| format!("key-{n}").into_bytes();
            let key = keys(0);
            // Of these tests' hashes the upper eight bits count, and the lower ones, which the index does not know.
            let tag = |key: &[u8]| rig.hash(key) >> 56;
            let stranger = (1..).map(keys).find(|other| tag(other) == tag(&key)).unwrap();
            // One of each other tag.
            let mut tags = std::collections::HashSet::from([tag(&key)]);
            let others: Vec<_> = (1..400)
                .map(keys)
                .filter(|other| tags.insert(tag(other)))
                .collect();
            let inner = &rig.cache.inner;
            let own = rig.hash(&key);

            // The stranger was set first.
            let version = || inner.store().next_version();
            let former = version();
            assert!(rig.evict(&key, version()));
            rig.write_open_blocks();
            assert!(others.iter().all(|other| rig.evict(other, version())));
            rig.settle();
            let find = |hash| inner.lock(hash).flash.find(hash);
            assert_eq!(find(own), Known::Unknown, "its mapping is on flash");
            assert!(rig.evict(&stranger, former));
            let place = rig.hash(&stranger);
            let mapping = inner.lock(place).flash.find(place).live().expect("just mapped");
            assert!(inner.drop_copy(place, mapping, Gone::Evicted));
            assert_eq!(find(own), Known::Dead, "nothing leads to it");
            let may_have = |key: &[u8]| inner.lock(rig.hash(key)).may_be_more(rig.hash(key));
            assert!(may_have(&key));
            // DRAM alone has this, or nothing.
            if is_deleted {
                run(&rig.executor, rig.cache.delete(&rig.cx, &key));
            } else {
                rig.set(&key, b"newer", 0);
            }
            drop(rig);
            let rig = Rig::open(&medium, options);
            assert_eq!(rig.get(&key), None, "deleted {is_deleted}");
        }
    }

    #[test]
    fn a_copy_that_is_newer_than_the_set_of_the_slice_that_hid_it_is_void_once_its_key_is_deleted() {
        let options = CacheOptions {
            dram_bytes: 4 << 20,
            flash_write: FlashWrite::Eviction,
            hash_limit: HashLimit(8),
            index: CASCADE,
            ..CacheOptions::default()
        };
        let medium = Arc::new(MemMedium::new(16 << 20));
        let rig = Rig::open(&medium, options);
        let inner = &rig.cache.inner;
        let version = || inner.store().next_version();
        let (key, set) = (b"key", version());
        let own = rig.hash(key);
        assert!(rig.evict(key, version()));
        rig.write_open_blocks();
        let mut others = (0u32..).map(|n| n.to_le_bytes());
        while inner.lock(own).flash.find(own) != Known::Unknown {
            let other = others.find(|other| rig.hash(other) >> 56 != own >> 56).unwrap();
            assert!(rig.evict(&other, version()));
            rig.settle();
        }
        let slice_of = |large: &[u8]| inner.hasher.hash(&PartId::slice(large, 0, set));
        let mut names = (0u32..).map(|n| n.to_le_bytes());
        let large = names.find(|large| slice_of(large) >> 56 == own >> 56).unwrap();
        let parts = RecordParts {
            slice: SliceId::Part(0),
            ..small(&large, set)
        };
        let place = slice_of(&large);
        let stored = inner.publish_locked(&rig.cx, &mut inner.lock(place), place, parts, Replaces::All, None);
        assert_eq!(stored, Ok(set));
        run(&rig.executor, rig.cache.delete(&rig.cx, key));
        drop(rig);
        let rig = Rig::open(&medium, options);
        assert_eq!(rig.get(key), None);
    }

    #[test]
    fn a_key_that_was_absent_is_not_still_absent_once_it_is_on_flash_alone() {
        let options = CacheOptions {
            dram_bytes: 4 << 20,
            flash_write: FlashWrite::Eviction,
            index: CASCADE,
            ..CacheOptions::default()
        };
        let rig = Rig::new(options);
        let inner = &rig.cache.inner;
        let absent = |key: &[u8]| {
            let (object, place) =
                run(&rig.executor, rig.cache.observe(&rig.cx, key, usize::MAX)).expect("no bound");
            assert!(object.is_none());
            place
        };
        let is_still = |key: &[u8], place| {
            let hash = rig.hash(key);
            let (cache, cx) = (&rig.cache, &rig.cx);
            Change {
                cache,
                cx,
                key,
                place,
            }
            .is_still(&inner.lock(hash), hash)
        };
        let (keys, never): (Vec<_>, Vec<_>) = (0..100u32)
            .map(|n| (format!("key-{n}").into_bytes(), format!("never-{n}").into_bytes()))
            .unzip();
        let places: Vec<_> = keys.iter().map(|key| absent(key)).collect();
        let places_never: Vec<_> = never.iter().map(|key| absent(key)).collect();
        let others: Vec<_> = (0..2_000u32).map(|n| format!("other-{n}").into_bytes()).collect();
        for (at, key) in keys.iter().chain(&others).enumerate() {
            assert!(rig.evict(key, inner.store().next_version()));
            if at % 25 == 0 {
                rig.settle();
            }
        }
        rig.write_open_blocks();
        let mut unmapped = 0;
        for (key, place) in keys.iter().zip(places) {
            let own = rig.hash(key);
            unmapped += usize::from(inner.lock(own).flash.find(own).live().is_none());
            assert!(!is_still(key, place));
        }
        assert!(unmapped > 50, "{unmapped} mappings have left DRAM");
        // But for what filters take for something that is there.
        let still = never.iter().zip(places_never);
        let still = still.filter(|(key, place)| is_still(key, *place)).count();
        assert!(still > 80, "{still} of what was never set");
    }

    #[test]
    fn a_key_whose_copy_on_flash_is_void_leaves_the_queue_although_its_mapping_is_not_in_dram() {
        let rig = Rig::new(CacheOptions {
            dram_bytes: 4 << 20,
            flash_write: FlashWrite::Eviction,
            layout: LayoutOptions::new(LayoutName::Sipq, None, None, None).unwrap(),
            index: CASCADE,
            ..CacheOptions::default()
        });
        let (inner, hash) = (&rig.cache.inner, rig.hash(b"key"));
        let is_queued = || inner.store().order.virtual_keys().contains(&hash);
        assert!(rig.evict(b"key", inner.store().next_version()) && is_queued());
        let mut others = (0u32..).map(|n| n.to_le_bytes());
        while inner.lock(hash).flash.find(hash) != Known::Unknown {
            assert!(rig.evict(&others.next().unwrap(), inner.store().next_version()));
            rig.settle();
        }
        assert!(is_queued());
        rig.set(b"key", b"newer", 0);
        assert!(!is_queued(), "DRAM alone has it");
    }
}
