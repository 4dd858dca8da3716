//! Large objects: a head that describes them, and slices that are records of their own.
//!
//! The slices of one set share a version, which the head names and which is part of their place in the index: a hit is
//! the head and every slice of that set. Sets of one key at once write slices side by side; the head that stands decides,
//! and the loser's slices are removed where its head was seen in time; else they leave when their blocks do. A small value that replaces a large object does not look for its slices: they
//! leave when their block does.

use crate::books::{Books, Line};
use crate::cache::{Cx, Inner, ObjectCache};
use crate::object::{Meta, Object, RejectReason, Tier};
use crate::part::PartId;
use crate::read::{Access, Fetch, Lookup, Next};
use futures_util::StreamExt as _;
use futures_util::stream;
use pumice_device::Device;
use pumice_memory::{Buffer, Payload};
use pumice_record::codec::Fields;
use pumice_record::{HEADER_BYTES_MAX, MANIFEST_BYTES, payload_checksum};
use pumice_record::{Record, RecordParts, SliceId};
use std::pin::pin;

/// The value of a head record: what the object is made of. 20 bytes, little-endian: slices' version (8), length of the
/// value (8), number of slices (4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    version: u64,
    pub(crate) value_len: u64,
    slices: u32,
}

/// How often a part of a large object is tried to be stored, each time after there was room for it.
pub(crate) const ROOM_TRIES_MAX: usize = 64;

/// Slices say in this unit how long the value is that they are part of, where other records have the client's flags.
const LENGTH_UNIT: u64 = 1 << 10;

impl Manifest {
    pub(crate) fn encode(&self) -> [u8; MANIFEST_BYTES] {
        let mut out = [0; MANIFEST_BYTES];
        out[..8].copy_from_slice(&self.version.to_le_bytes());
        out[8..16].copy_from_slice(&self.value_len.to_le_bytes());
        out[16..].copy_from_slice(&self.slices.to_le_bytes());
        out
    }

    /// What a head describes; `None` for other records.
    pub(crate) fn decode<B: Buffer>(head: &Record<B>) -> Option<Self> {
        if head.header().slice != SliceId::Head {
            return None;
        }
        Self::of(head.value())
    }

    fn of(value: Payload<'_>) -> Option<Self> {
        let Payload::Bytes(bytes) = value else {
            return None;
        };
        let mut fields = Fields(bytes);
        Some(Self {
            version: fields.u64()?,
            value_len: fields.u64()?,
            slices: fields.u32()?,
        })
    }
}

impl<B: Buffer> Inner<B> {
    /// Bytes of the object that a record is, or is part of: policies rank objects, not slices.
    pub(crate) fn object_bytes(&self, parts: &RecordParts<'_>) -> u64 {
        self.store().padded_len(parts).max(large_value_len(parts))
    }
}

/// About the length of the value that a slice is part of, or that a head describes; 0 for whole objects.
fn large_value_len(parts: &RecordParts<'_>) -> u64 {
    match parts.slice {
        SliceId::Whole => 0,
        SliceId::Head => Manifest::of(parts.value).map_or(0, |manifest| manifest.value_len),
        SliceId::Part(_) => u64::from(parts.flags) * LENGTH_UNIT,
    }
}

/// The large object of a key, for whoever reads or writes it.
pub(crate) struct Large<'a, D: Device + Clone> {
    cache: &'a ObjectCache<D>,
    cx: &'a Cx<D>,
    key: &'a [u8],
}

impl<D: Device + Clone> Large<'_, D> {
    /// Stores a large object without waiting: slices for which no buffer is free stay in DRAM, or are refused.
    pub(crate) fn set_now(&self, value: Payload<'_>, meta: Meta) -> Result<u64, RejectReason> {
        let mut slices = Slices::new(&self.cache.inner, self.key, value)
            .inspect_err(|_| self.cache.remove(self.cx, self.key))?;
        slices.mark = self.mark(&slices, meta.expiry);
        let part = PartId::object(self.key);
        let old = (self.cache.inner)
            .find(self.cx, &part, Access::Peek, None)
            .manifest();
        while let Some(slice) = slices.next(&self.cache.inner) {
            // Without one slice there is no object, and the older one is gone all the same.
            self.cache
                .publish(self.cx, slice)
                .inspect_err(|_| self.give_up(slices.manifest()))?;
        }
        let manifest = slices.manifest();
        let stored = self.cache.publish(
            self.cx,
            head_parts(self.key, Payload::Bytes(&manifest.encode()), meta, slices.mark),
        );
        self.replace_slices(manifest, stored, old)
    }

    /// Stores a large object, waiting for block buffers between slices.
    pub(crate) async fn set_waiting(&self, value: Payload<'_>, meta: Meta) -> Result<u64, RejectReason> {
        let (manifest, mark) = self
            .write_slices(value, meta.expiry)
            .await
            .inspect_err(|_| self.cache.remove(self.cx, self.key))?;
        // As late as can be: of a set that came to its end meanwhile this one replaces the slices.
        let old = self.standing_manifest().await;
        let encoded = manifest.encode();
        let head = head_parts(self.key, Payload::Bytes(&encoded), meta, mark);
        let stored = self
            .when_there_is_room(head, || self.cache.publish(self.cx, head))
            .await;
        self.replace_slices(manifest, stored, old)
    }

    /// What the key's head describes now, if it is a large object's and can be had with little reading.
    async fn standing_manifest(&self) -> Option<Manifest> {
        let part = PartId::object(self.key);
        let found = self.cache.inner.find(self.cx, &part, Access::Peek, None);
        match &found {
            Lookup::Read(Fetch(Next::Part(at))) if at.bytes() > HEAD_BYTES_MAX => None,
            _ => self
                .cache
                .fetch_unless_known(self.cx, part, found)
                .await
                .manifest(),
        }
    }

    /// The head was `stored`, which makes the object visible, or could not be: removes the slices that it has replaced, or its own.
    fn replace_slices(
        &self,
        manifest: Manifest,
        stored: Result<u64, RejectReason>,
        old: Option<Manifest>,
    ) -> Result<u64, RejectReason> {
        if stored.is_err() {
            self.drop_slices(manifest, |books| &books.rejected);
        }
        if let Some(old) = old {
            self.drop_slices(old, |books| &books.overwritten);
        }
        stored
    }

    /// Removes what was written of an object that cannot be stored, and whatever stood under its key.
    fn give_up(&self, manifest: Manifest) {
        self.drop_slices(manifest, |books| &books.rejected);
        self.cache.remove(self.cx, self.key);
    }

    /// The mark of an object that is about to be stored.
    fn mark(&self, slices: &Slices<'_>, expiry: u32) -> u8 {
        let bytes = slices.value.len() as u64;
        (self.cache.inner).mark_of_large(self.cx, self.key, bytes, (slices.version, expiry))
    }

    /// Writes the slices of a value, waiting for block buffers. Where one cannot be stored, none stays. Returns the mark of their head, too.
    ///
    /// # Errors
    /// [`RejectReason`]; what stands under the key is untouched.
    pub(crate) async fn write_slices(
        &self,
        value: Payload<'_>,
        expiry: u32,
    ) -> Result<(Manifest, u8), RejectReason> {
        let mut slices = Slices::new(&self.cache.inner, self.key, value)?;
        slices.mark = self.mark(&slices, expiry);
        while let Some(slice) = slices.next(&self.cache.inner) {
            self.when_there_is_room(slice, || self.cache.publish(self.cx, slice))
                .await
                .inspect_err(|_| self.drop_slices(slices.manifest(), |books| &books.rejected))?;
            if self.cache.inner.lockstep {
                self.cache.quiesce(self.cx).await;
            }
        }
        if slices.mark == 0 {
            self.cache.wait_for_room(self.cx, HEAD_BYTES_MAX.into()).await;
        }
        Ok((slices.manifest(), slices.mark))
    }

    /// Stores a record when there is room on flash, where it is to go there. Others may take that between the look and the append; then
    /// it waits again.
    async fn when_there_is_room<T>(
        &self,
        parts: RecordParts<'_>,
        mut store: impl FnMut() -> Result<T, RejectReason>,
    ) -> Result<T, RejectReason> {
        let mut tries = 0;
        loop {
            if parts.marks & Meta::REFUSED == 0 {
                let len = parts.encoded_len() as u64;
                self.cache.wait_for_room(self.cx, len).await;
            }
            tries += 1;
            let dropped = self.cache.inner.store().dropped_no_block();
            let stored = store();
            // Without room in the index it would be appended in vain each time.
            let was_dropped = self.cache.inner.store().dropped_no_block() > dropped;
            if stored.as_ref().err() != Some(&RejectReason::NoRoom) || !was_dropped || tries == ROOM_TRIES_MAX
            {
                return stored;
            }
        }
    }

    /// Reads the slices of an object of which there is all but the value. `None` where one has been evicted: the object is then no more.
    pub(crate) async fn gather(
        &self,
        mut object: Object<D::Buf>,
        manifest: Manifest,
    ) -> Option<Object<D::Buf>> {
        let place = object.place;
        let slices = u16::try_from(manifest.slices).ok()?;
        let part = |number| PartId::slice(self.key, number, manifest.version);
        let lost = || {
            self.cache
                .remove_if(self.cx, self.key, place, |books| &books.evicted);
            self.drop_slices(manifest, |books| &books.evicted);
        };
        // Asked before the first is read: what has lost a slice is not worth a read.
        if (0..slices.min(SLICES_CHECKED_MAX)).any(|number| self.cache.inner.is_missing(&part(number))) {
            lost();
            return None;
        }
        let is_lockstep = self.cache.inner.lockstep;
        let reads = (0..slices).map(|number| async move {
            // In lockstep what a read brings with it is over before the next, and must not depend on which is done first.
            if is_lockstep {
                self.cache.quiesce(self.cx).await;
            }
            let part = part(number);
            let found = self.cache.lookup(self.cx, part, Access::Count);
            let found = self.cache.fetch_unless_known(self.cx, part, found).await;
            let Lookup::Known(Some(mut slice)) = found else {
                return None;
            };
            // It may wait for those before it, and must not hold a block buffer meanwhile.
            if slice.pins_block() {
                slice.detach();
            }
            Some(slice)
        });
        let at_once = if is_lockstep { 1 } else { SLICE_READS_MAX };
        let mut read = pin!(stream::iter(reads).buffered(at_once));
        let mut len = 0;
        while let Some(slice) = read.next().await {
            let Some(slice) = slice else {
                lost();
                return None;
            };
            if slice.tier == Tier::Flash {
                object.tier = Tier::Flash;
            }
            len += slice.value_len;
            object.parts.push(slice.head);
        }
        (len == object.value_len).then_some(object)
    }

    /// Removes the slices of a set, those that are there.
    pub(crate) fn drop_slices(&self, manifest: Manifest, line: impl Fn(&Books) -> &Line) {
        let inner = &*self.cache.inner;
        for number in 0..u16::try_from(manifest.slices).unwrap_or(0) {
            let part = PartId::slice(self.key, number, manifest.version);
            let hash = inner.hasher.hash(&part);
            let mut shard = inner.lock(hash);
            let version = inner.store().next_version();
            for bytes in inner.clear_part(self.cx, &mut shard, hash, &part, version) {
                line(&inner.books).add(bytes);
            }
        }
        self.cache.kick(self.cx);
    }
}

impl<D: Device + Clone> ObjectCache<D> {
    /// The large object of a key.
    pub(crate) fn large<'a>(&'a self, cx: &'a Cx<D>, key: &'a [u8]) -> Large<'a, D> {
        Large { cache: self, cx, key }
    }

    /// Waits until flash has room for a record of `len` bytes, or until nothing is under way that could make room.
    pub(crate) async fn wait_for_room(&self, cx: &Cx<D>, len: u64) {
        while !self.inner.store().has_room(len) && self.wait_for_progress(cx).await {}
    }

    /// Waits until flash has finished something; false where nothing is under way that could make room.
    pub(crate) async fn wait_for_progress(&self, cx: &Cx<D>) -> bool {
        let store = self.inner.store();
        self.kick(cx);
        if store.is_idle() {
            let makes_way = store.make_way();
            self.kick(cx);
            // Others may have begun something since.
            if !makes_way && store.is_idle() {
                return false;
            }
        }
        store.wait_for_progress().await;
        true
    }
}

/// Slices of one object that are read at once: enough to keep a device busy, and not so many that others wait long behind them.
const SLICE_READS_MAX: usize = 4;
/// Slices of an object that are looked for before it is read, so that the event loop does not stand still for one of very many.
const SLICES_CHECKED_MAX: u16 = 1024;

/// The longest head record: header, key and manifest, rounded up as blocks do.
const HEAD_BYTES_MAX: u32 = 512;

/// The record of an object that is one record.
pub(crate) fn whole_parts<'a>(key: &'a [u8], value: Payload<'a>, meta: Meta) -> RecordParts<'a> {
    RecordParts {
        version: 0,
        expiry: meta.expiry,
        flags: meta.flags,
        marks: meta.marks,
        slice: SliceId::Whole,
        key,
        value,
        value_crc: payload_checksum(value),
    }
}

/// The record of a head.
pub(crate) fn head_parts<'a>(key: &'a [u8], manifest: Payload<'a>, meta: Meta, mark: u8) -> RecordParts<'a> {
    RecordParts {
        slice: SliceId::Head,
        marks: meta.marks & !Meta::REFUSED | mark,
        ..whole_parts(key, manifest, meta)
    }
}

/// Slice numbers have 16 bits, two of whose values are taken.
const SLICES_MAX: usize = u16::MAX as usize - 2;
/// What is left at the end of a block is filled with a shorter slice where it is at least this share of the block: less is not worth
/// another read of each hit.
const FILLED_SHARE: u64 = 64;

/// A value that is being cut.
///
/// All slices but the last are as long as records may be, or fill the block that new objects go to: at the end of each block a quarter
/// of it could stay empty otherwise (an eighth of all that is written, on average).
struct Slices<'a> {
    key: &'a [u8],
    value: Payload<'a>,
    version: u64,
    slice_bytes: usize,
    /// [`Meta::REFUSED`], or nothing.
    mark: u8,
    /// What was cut so far, in bytes and slices.
    at: usize,
    number: u16,
}

impl<'a> Slices<'a> {
    fn new<B: Buffer>(inner: &Inner<B>, key: &'a [u8], value: Payload<'a>) -> Result<Self, RejectReason> {
        let slice_bytes = inner.slice_bytes(key);
        if value.len().div_ceil(slice_bytes) > SLICES_MAX {
            return Err(RejectReason::TooLarge);
        }
        Ok(Self {
            key,
            value,
            version: inner.store().next_version(),
            slice_bytes,
            mark: 0,
            at: 0,
            number: 0,
        })
    }

    /// What a head says of the slices so far.
    fn manifest(&self) -> Manifest {
        Manifest {
            version: self.version,
            value_len: self.value.len() as u64,
            slices: self.number.into(),
        }
    }

    /// The next slice, made to fit where it will go.
    fn next<B: Buffer>(&mut self, inner: &Inner<B>) -> Option<RecordParts<'a>> {
        let goes_to_flash = inner.is_flash_first() && self.mark == 0;
        let room = goes_to_flash.then(|| {
            let rank = inner
                .store()
                .order
                .rank(pumice_flash::Arrival::New, self.value.len() as u64);
            inner
                .store()
                .room_left(rank, SliceId::Part(self.number), self.version, self.key)
        });
        self.cut(room.flatten(), inner.store().geometry.block_bytes / FILLED_SHARE)
    }

    /// The next slice, for a block with room for a record of so many bytes; `None` at the end of the value.
    fn cut(&mut self, room: Option<u64>, room_min: u64) -> Option<RecordParts<'a>> {
        let left = self.value.len() - self.at;
        if left == 0 {
            return None;
        }
        let whole = self.slice_bytes.min(left);
        let overhead = HEADER_BYTES_MAX + self.key.len();
        // The slices that a shorter one costs must find numbers, too.
        let has_numbers = usize::from(self.number) + left.div_ceil(self.slice_bytes) < SLICES_MAX;
        let fitting = room
            .filter(|room| has_numbers && *room >= room_min)
            .and_then(|room| usize::try_from(room).ok()?.checked_sub(overhead))
            .filter(|fitting| (1..whole).contains(fitting))
            // What would be left over is worth no read either.
            .filter(|fitting| (left - fitting) as u64 >= room_min);
        let part = self.value.slice(self.at, fitting.unwrap_or(whole));
        let number = self.number;
        self.at += part.len();
        self.number += 1;
        Some(RecordParts {
            version: self.version,
            // The head's expiry and flags are the object's, and can be changed alone.
            expiry: 0,
            flags: u32::try_from((self.value.len() as u64).div_ceil(LENGTH_UNIT)).unwrap_or(u32::MAX),
            marks: self.mark,
            slice: SliceId::Part(number),
            key: self.key,
            value: part,
            value_crc: payload_checksum(part),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CacheOptions;
    use crate::testing::{Rig, run};
    use pumice_device::MemMedium;
    use std::sync::Arc;

    #[test]
    fn of_an_object_without_its_last_slice_no_other_is_read() {
        let options = CacheOptions {
            dram_bytes: 0,
            block_bytes: Some(64 << 10),
            ..CacheOptions::default()
        };
        let rig = Rig::open(&Arc::new(MemMedium::new(4 << 20)), options);
        let Rig {
            executor, cx, cache, ..
        } = &rig;
        let store = cache.store(cx, b"key", Payload::Bytes(&[7; 300_000]), Meta::default());
        assert!(run(executor, store).is_ok());
        rig.write_open_blocks();
        let reads = || cache.stats().flash.record_reads;
        let found = cache.lookup(cx, b"key", Access::Count);
        assert!(found.manifest().is_none(), "it stands on flash");
        let head = run(executor, cache.fetch_unless_known(cx, b"key", found));
        let manifest = head.manifest().expect("it is a head");
        assert!(manifest.slices > 10);
        let last = PartId::slice(b"key", (manifest.slices - 1) as u16, manifest.version);
        let hash = cache.inner.hasher.hash(&last);
        let mut shard = cache.inner.lock(hash);
        let version = cache.inner.store().next_version();
        cache
            .inner
            .clear_part(cx, &mut shard, hash, &last, version)
            .for_each(|bytes| cache.inner.books.evicted.add(bytes));
        drop(shard);
        let before = reads();
        assert_eq!(rig.get(b"key"), None);
        assert_eq!(reads() - before, 1, "the head");
        assert_eq!(cache.books().resident(), (0, 0));
    }

    fn of(value: &[u8], slice_bytes: usize) -> Slices<'_> {
        Slices {
            mark: 0,
            key: b"key",
            value: Payload::Bytes(value),
            version: 5,
            slice_bytes,
            at: 0,
            number: 0,
        }
    }

    #[test]
    fn slices_fill_what_room_there_is_and_are_the_value() {
        let value: Vec<u8> = (0..10_000u32).map(|at| at as u8).collect();
        let mut slices = of(&value, 4_000);
        let overhead = (HEADER_BYTES_MAX + 3) as u64;
        // Room for all of it, for less, for too little, for just the least, for the header alone, and no block.
        let rooms = [
            Some(9_000),
            Some(1_500),
            Some(99),
            Some(100),
            Some(overhead),
            None,
        ];
        let mut rooms = rooms.into_iter();
        let parts: Vec<_> = std::iter::from_fn(|| slices.cut(rooms.next().flatten(), 100)).collect();
        let lens: Vec<usize> = parts.iter().map(|parts| parts.value.len()).collect();
        assert_eq!(
            lens,
            [
                4_000,
                1_500 - overhead as usize,
                4_000,
                100 - overhead as usize,
                480
            ]
        );
        let numbers = parts.iter().map(|parts| parts.slice);
        assert!(numbers.eq((0..5).map(SliceId::Part)));
        let whole: Vec<u8> = parts.iter().flat_map(|parts| bytes(parts)).copied().collect();
        assert_eq!(whole, value);
        assert_eq!(slices.manifest().slices, 5);
    }

    fn bytes<'a>(parts: &RecordParts<'a>) -> &'a [u8] {
        match parts.value {
            Payload::Bytes(bytes) => bytes,
            Payload::Void(_) => panic!("real bytes"),
        }
    }

    #[test]
    fn a_value_never_has_more_slices_than_there_are_numbers() {
        let value = vec![7; SLICES_MAX * 10 - 5];
        let mut slices = of(&value, 10);
        let room = (HEADER_BYTES_MAX + 3 + 1) as u64;
        while slices.cut(Some(room), 1).is_some() {}
        assert_eq!(slices.manifest().slices as usize, SLICES_MAX);
        assert_eq!(slices.at, value.len());
    }

    #[test]
    fn head_and_slices_know_how_long_the_whole_value_is() {
        let value = vec![7; 2_500_000];
        let mut slices = of(&value, 1_000_000);
        let parts: Vec<_> = std::iter::from_fn(|| slices.cut(None, 1)).collect();
        let lens: Vec<usize> = parts.iter().map(|parts| parts.value.len()).collect();
        assert_eq!(lens, [1_000_000, 1_000_000, 500_000]);
        for parts in &parts {
            let len = large_value_len(parts);
            assert!((2_500_000..2_500_000 + LENGTH_UNIT).contains(&len), "{len}");
        }
        let manifest = slices.manifest().encode();
        let head = head_parts(b"key", Payload::Bytes(&manifest), Meta::default(), 0);
        assert_eq!(large_value_len(&head), 2_500_000);
        let whole = RecordParts {
            slice: SliceId::Whole,
            ..head
        };
        assert_eq!(large_value_len(&whole), 0);
        // A damaged head counts by its own length.
        let damaged = head_parts(b"key", Payload::Bytes(&manifest[1..]), Meta::default(), 0);
        assert_eq!(large_value_len(&damaged), 0);
    }
}
