//! Large objects: a head that describes them, and slices that are records of their own, all but the last of one length: which one
//! has byte n is n / `slice_bytes`.
//!
//! The slices of one set share a version, which the head names and which is part of their place in the index: a hit is
//! the head and every slice of that set. Sets of one key at once write slices side by side; the head that stands decides,
//! and the loser's slices are removed where its head was seen in time; else they leave when their blocks do. A small value that replaces a
//! large object does not look for its slices: they leave when their block does.

use crate::books::{Books, Line};
use crate::cache::{Cx, Inner, ObjectCache};
use crate::object::{Meta, RejectReason};
use crate::part::PartId;
use crate::read::{Access, Fetch, Lookup};
use pumice_device::Device;
use pumice_memory::{Buffer, Payload};
use pumice_record::codec::Fields;
use pumice_record::{MANIFEST_BYTES, Record, RecordParts, SliceId, payload_checksum};
use std::ops::Range;
use std::task::Poll;

/// The value of a head record: what the object is made of. 20 bytes, little-endian: slices' version (8), length of the
/// value (8), length of each slice but the last (4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) version: u64,
    pub(crate) value_len: u64,
    pub(crate) slice_bytes: u32,
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
        out[16..].copy_from_slice(&self.slice_bytes.to_le_bytes());
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
        let manifest = Self {
            version: fields.u64()?,
            value_len: fields.u64()?,
            slice_bytes: fields.u32()?,
        };
        let slices = manifest.value_len.checked_div(manifest.slice_bytes.into())?;
        (slices < SLICES_MAX).then_some(manifest)
    }

    /// The number of slices.
    pub(crate) fn slices(&self) -> u32 {
        u32::try_from(self.value_len.div_ceil(self.slice_bytes.into()))
            .expect("checked when it was read, or made")
    }

    /// Length of a slice.
    pub(crate) fn len_of(&self, number: u32) -> usize {
        let at = u64::from(number) * u64::from(self.slice_bytes);
        self.value_len.saturating_sub(at).min(self.slice_bytes.into()) as usize
    }
}

impl<B: Buffer> Inner<B> {
    /// Whether the slices of a set seem to be there, as far as that can be said without reading, and of the first 1,024: those that leave
    /// flash before the others.
    pub(crate) fn has_first_slices(&self, key: &[u8], manifest: &Manifest) -> bool {
        let mut first = 0..manifest.slices().min(SLICES_AT_ONCE);
        first.all(|number| !self.is_missing(&PartId::slice(key, number, manifest.version)))
    }

    /// The longest value that one of the tiers can hold whole, in slices as long as they may be, in bytes: what flash has room for, or all of
    /// DRAM if that is more; DRAM alone where it `is_refused` by flash. Without either it goes as it comes, whatever its length.
    pub(crate) fn value_bytes_max(&self, key: &[u8], is_refused: bool) -> u64 {
        let store = self.store();
        let on_flash = match is_refused || store.is_out() {
            true => 0,
            false => store.slices_max() * self.slice_bytes(key) as u64,
        };
        match on_flash.max(self.tier.budget_bytes()) {
            0 => u64::MAX,
            most => most,
        }
    }

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
        let mut slices = self.slices_of(value, meta.expiry);
        let part = PartId::object(self.key);
        let old = (self.cache.inner)
            .find(self.cx, &part, Access::Peek, None)
            .manifest();
        for piece in pieces(value, slices.manifest.slice_bytes) {
            // Without one slice there is no object, and the older one is gone all the same.
            self.cache
                .publish(self.cx, slices.next(self.key, piece))
                .inspect_err(|_| self.give_up(slices.manifest))?;
        }
        let encoded = slices.manifest.encode();
        let head = head_parts(self.key, b"", Payload::Bytes(&encoded), meta, slices.mark);
        let stored = self.cache.publish(self.cx, head);
        self.replace_slices(slices.manifest, stored, old)
    }

    /// Stores a large object, waiting for block buffers between slices.
    pub(crate) async fn set_waiting(&self, value: Payload<'_>, meta: Meta) -> Result<u64, RejectReason> {
        let slices = self
            .write_slices(value, meta.expiry)
            .await
            .inspect_err(|_| self.cache.remove(self.cx, self.key))?;
        self.set_head(&slices, b"", meta).await
    }

    /// Stores the head of a large object whose slices are written: from here on it is to be seen, or its slices are gone, and what stood
    /// under the key.
    pub(crate) async fn set_head(
        &self,
        slices: &Slices,
        owned: &[u8],
        meta: Meta,
    ) -> Result<u64, RejectReason> {
        self.wait_for_head_room(slices).await;
        // As late as can be: of a set that came to its end meanwhile this one replaces the slices.
        let old = self.standing_manifest().await;
        let encoded = slices.manifest.encode();
        let head = head_parts(self.key, owned, Payload::Bytes(&encoded), meta, slices.mark);
        let stored = self
            .when_there_is_room(head, || self.cache.publish(self.cx, head))
            .await;
        self.replace_slices(slices.manifest, stored, old)
    }

    /// What the key's head describes now, if it is a large object's and can be had with little reading.
    pub(crate) async fn standing_manifest(&self) -> Option<Manifest> {
        let part = PartId::object(self.key);
        let found = self.cache.inner.find(self.cx, &part, Access::Peek, None);
        match &found {
            Lookup::Read(Fetch(at)) if at.bytes() > HEAD_RECORD_MAX => None,
            _ => self
                .cache
                .fetch_unless_known(self.cx, part, found)
                .await
                .manifest(),
        }
    }

    /// The head was `stored`, which makes the object visible, or could not be: removes the slices that it has replaced, or its own.
    pub(crate) fn replace_slices(
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

    /// The slices of a value of about this length, of which there is none yet; admission is asked about all of it.
    pub(crate) fn slices(&self, value_len: u64, slice_bytes: usize, expiry: u32) -> Slices {
        let inner = &*self.cache.inner;
        let mut slices = Slices::new(inner.store().next_version(), slice_bytes, value_len);
        slices.mark = inner.mark_of_large(self.cx, self.key, value_len, (slices.manifest.version, expiry));
        slices
    }

    /// The same of a whole value, with which slices are as long as those of others.
    fn slices_of(&self, value: Payload<'_>, expiry: u32) -> Slices {
        let slice_bytes = self.cache.inner.slice_bytes(self.key);
        self.slices(value.len() as u64, slice_bytes, expiry)
    }

    /// Writes the slices of a value, waiting for block buffers. Where one cannot be stored, none stays.
    ///
    /// # Errors
    /// [`RejectReason`]; what stands under the key is untouched.
    pub(crate) async fn write_slices(&self, value: Payload<'_>, expiry: u32) -> Result<Slices, RejectReason> {
        let mut slices = self.slices_of(value, expiry);
        for piece in pieces(value, slices.manifest.slice_bytes) {
            self.write_slice(slices.next(self.key, piece))
                .await
                .inspect_err(|_| self.drop_slices(slices.manifest, |books| &books.rejected))?;
        }
        Ok(slices)
    }

    /// Writes a slice, waiting for a block buffer.
    pub(crate) async fn write_slice(&self, slice: RecordParts<'_>) -> Result<(), RejectReason> {
        self.when_there_is_room(slice, || self.cache.publish(self.cx, slice))
            .await?;
        if self.cache.inner.lockstep {
            self.cache.quiesce(self.cx).await;
        }
        Ok(())
    }

    /// Waits for room for a head behind these slices, where it is to go to flash.
    pub(crate) async fn wait_for_head_room(&self, slices: &Slices) {
        if slices.mark == 0 {
            self.cache.wait_for_room(self.cx, HEAD_RECORD_MAX.into()).await;
        }
    }

    /// Stores a record when there is room on flash, where it is to go there. Others may take that between the look and the append; then
    /// it waits again.
    pub(crate) async fn when_there_is_room<T>(
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

    /// Removes the slices of a set, those that are there. Of very many the first at once, and the others in the background, so that the event
    /// loop does not stand still and the log keeps room.
    pub(crate) fn drop_slices(&self, manifest: Manifest, line: impl Fn(&Books) -> &Line + 'static) {
        let slices = manifest.slices();
        let now = slices.min(SLICES_AT_ONCE);
        self.drop_some(manifest, 0..now, &line);
        if now == slices {
            return;
        }
        let (cache, cx, key) = (self.cache.clone(), self.cx.clone(), self.key.to_vec());
        self.cx.spawner.spawn(Box::pin(async move {
            let large = cache.large(&cx, &key);
            let mut from = now;
            while from < slices {
                if let Some(wait) = cache.change_wait(&cx) {
                    wait.await;
                }
                let to = slices.min(from + SLICES_AT_ONCE);
                large.drop_some(manifest, from..to, &line);
                from = to;
                // Others have their turn.
                let mut is_woken = false;
                std::future::poll_fn(|context| {
                    if std::mem::replace(&mut is_woken, true) {
                        return Poll::Ready(());
                    }
                    context.waker().wake_by_ref();
                    Poll::Pending
                })
                .await;
            }
        }));
    }

    fn drop_some(&self, manifest: Manifest, numbers: Range<u32>, line: &impl Fn(&Books) -> &Line) {
        let inner = &*self.cache.inner;
        for number in numbers {
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

/// Slices of an object that are asked about, or removed, in one go, so that the event loop does not stand still for one of very many.
const SLICES_AT_ONCE: u32 = 1024;

/// The longest head record: header, key, the owner's bytes and manifest, rounded up as blocks do.
const HEAD_RECORD_MAX: u32 = 512 + crate::HEAD_BYTES_MAX as u32;

/// The record of an object that is one record.
pub(crate) fn whole_parts<'a>(key: &'a [u8], value: Payload<'a>, meta: Meta) -> RecordParts<'a> {
    RecordParts {
        version: 0,
        expiry: meta.expiry,
        flags: meta.flags,
        marks: meta.marks & !Meta::REFUSED,
        slice: SliceId::Whole,
        key,
        head: b"",
        value,
        value_crc: payload_checksum(value),
    }
}

/// The record of a head, with bytes of the owner's.
pub(crate) fn head_parts<'a>(
    key: &'a [u8],
    owned: &'a [u8],
    manifest: Payload<'a>,
    meta: Meta,
    mark: u8,
) -> RecordParts<'a> {
    RecordParts {
        slice: SliceId::Head,
        marks: meta.marks & !Meta::REFUSED | mark,
        head: owned,
        ..whole_parts(key, manifest, meta)
    }
}

/// No value has as many slices.
const SLICES_MAX: u64 = 1 << 24;
/// The longest value, in bytes: slices have more than 3 KiB, also in blocks of 64 KiB, the smallest that there are.
pub(crate) const VALUE_BYTES_MAX: usize = (3 << 10) * (SLICES_MAX as usize - 1);

/// A value in pieces of a slice each.
fn pieces(value: Payload<'_>, slice_bytes: u32) -> impl Iterator<Item = Payload<'_>> {
    let starts = (0..value.len()).step_by(slice_bytes as usize);
    starts.map(move |at| value.slice(at, (value.len() - at).min(slice_bytes as usize)))
}

/// The slices of one set, as far as there are any.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slices {
    /// What a head says of them; as long as the value is not whole, it is of those that there are.
    pub(crate) manifest: Manifest,
    /// [`Meta::REFUSED`], or nothing.
    pub(crate) mark: u8,
    /// About how long the whole value will be.
    likely_len: u64,
}

impl Slices {
    fn new(version: u64, slice_bytes: usize, likely_len: u64) -> Self {
        Self {
            manifest: Manifest {
                version,
                value_len: 0,
                slice_bytes: u32::try_from(slice_bytes).expect("at most 1 MiB"),
            },
            mark: 0,
            likely_len,
        }
    }

    /// The record of the next slice, which counts from now on; all are as long as they may be, but the last.
    pub(crate) fn next<'a>(&mut self, key: &'a [u8], value: Payload<'a>) -> RecordParts<'a> {
        let number = self.manifest.slices();
        self.manifest.value_len += value.len() as u64;
        let likely_len = self.likely_len.max(self.manifest.value_len);
        RecordParts {
            version: self.manifest.version,
            // The head's expiry and flags are the object's, and can be changed alone.
            expiry: 0,
            flags: u32::try_from(likely_len.div_ceil(LENGTH_UNIT)).unwrap_or(u32::MAX),
            marks: self.mark,
            slice: SliceId::Part(number),
            key,
            head: b"",
            value,
            value_crc: payload_checksum(value),
        }
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
        assert!(manifest.slices() > 10);
        let last = PartId::slice(b"key", manifest.slices() - 1, manifest.version);
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

    #[test]
    fn head_and_slices_know_how_long_the_whole_value_is() {
        let value = vec![7; 2_500_000];
        let mut slices = Slices::new(5, 1_000_000, 2_500_000);
        let cut = pieces(Payload::Bytes(&value), 1_000_000);
        let parts: Vec<_> = cut.map(|piece| slices.next(b"key", piece)).collect();
        let lens: Vec<usize> = parts.iter().map(|parts| parts.value.len()).collect();
        assert_eq!(lens, [1_000_000, 1_000_000, 500_000]);
        let lens_told: Vec<usize> = (0..4).map(|number| slices.manifest.len_of(number)).collect();
        assert_eq!(lens_told, [1_000_000, 1_000_000, 500_000, 0]);
        let numbers = parts.iter().map(|parts| parts.slice);
        assert!(numbers.eq((0..3).map(SliceId::Part)));
        for parts in &parts {
            let len = large_value_len(parts);
            assert!((2_500_000..2_500_000 + LENGTH_UNIT).contains(&len), "{len}");
        }
        let manifest = slices.manifest.encode();
        let head = head_parts(b"key", b"", Payload::Bytes(&manifest), Meta::default(), 0);
        assert_eq!(large_value_len(&head), 2_500_000);
        let whole = RecordParts {
            slice: SliceId::Whole,
            ..head
        };
        assert_eq!(large_value_len(&whole), 0);
        // A damaged head counts by its own length.
        let damaged = head_parts(b"key", b"", Payload::Bytes(&manifest[1..]), Meta::default(), 0);
        assert_eq!(large_value_len(&damaged), 0);
    }

    #[test]
    fn a_manifest_without_a_length_of_slices_or_with_too_many_is_none() {
        let of = |value_len, slice_bytes| {
            let manifest = Manifest {
                version: 1,
                value_len,
                slice_bytes,
            };
            Manifest::of(Payload::Bytes(&manifest.encode()))
        };
        assert_eq!(of(1 << 40, 0), None);
        assert_eq!(of(u64::MAX, 1 << 20), None);
        assert_eq!(
            of(1 << 39, 1 << 16).map(|manifest| manifest.slices()),
            Some(1 << 23)
        );
    }
}
