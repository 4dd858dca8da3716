//! Large objects: a head that describes them, and slices that are records of their own.
//!
//! The slices of one set share a version, which the head names; a hit is the head and every slice with that version.

use crate::cache::{Cx, Inner, ObjectCache};
use crate::object::{Meta, Object, Tier};
use crate::read::Place;
use crate::write::RejectReason;
use pumice_device::Device;
use pumice_flash::codec::Fields;
use pumice_flash::record::payload_checksum;
use pumice_flash::{Record, RecordParts, SliceId};
use pumice_memory::{Buffer, Payload};

/// The value of a head record: what the object is made of. 20 bytes, little-endian: slices' version (8), length of the
/// value (8), number of slices (4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Manifest {
    version: u64,
    value_len: u64,
    slices: u32,
}

const MANIFEST_BYTES: usize = 20;

impl Manifest {
    fn encode(&self) -> [u8; MANIFEST_BYTES] {
        let mut out = [0; MANIFEST_BYTES];
        out[..8].copy_from_slice(&self.version.to_le_bytes());
        out[8..16].copy_from_slice(&self.value_len.to_le_bytes());
        out[16..].copy_from_slice(&self.slices.to_le_bytes());
        out
    }

    fn decode<B: Buffer>(head: &Record<B>) -> Option<Self> {
        let Payload::Bytes(bytes) = head.value() else {
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

impl<D: Device + Clone> ObjectCache<D> {
    /// Stores a large object without waiting: slices for which no buffer is free stay in DRAM, or are refused.
    pub(crate) fn set_large_now(
        &self,
        cx: &Cx<D>,
        key: &[u8],
        value: Payload<'_>,
        meta: Meta,
    ) -> Result<u64, RejectReason> {
        let slices = Slices::new(&self.inner, key, value).inspect_err(|_| self.remove(cx, key))?;
        for slice in slices.parts(key, meta) {
            let hash = self.inner.hasher.hash(key, slice.slice);
            // Without one slice there is no object, and the older one is gone all the same.
            self.publish_slice(cx, hash, slice)
                .inspect_err(|_| self.remove(cx, key))?;
        }
        self.publish_head(cx, key, &slices.manifest.encode(), meta)
    }

    /// Stores a large object, waiting for block buffers between slices.
    pub(crate) async fn set_large_waiting(
        &self,
        cx: &Cx<D>,
        key: &[u8],
        value: Payload<'_>,
        meta: Meta,
    ) -> Result<u64, RejectReason> {
        let head = self
            .write_slices(cx, key, value)
            .await
            .inspect_err(|_| self.remove(cx, key))?;
        self.publish_head(cx, key, &head, meta)
    }

    fn publish_head(&self, cx: &Cx<D>, key: &[u8], head: &[u8], meta: Meta) -> Result<u64, RejectReason> {
        let value = Payload::Bytes(head);
        self.publish(
            cx,
            RecordParts {
                version: 0,
                expiry: meta.expiry,
                flags: meta.flags,
                slice: SliceId::Head,
                key,
                value,
                value_crc: payload_checksum(value),
            },
        )
    }

    /// Writes the slices of a value, waiting for block buffers, and returns the head's value.
    pub(crate) async fn write_slices(
        &self,
        cx: &Cx<D>,
        key: &[u8],
        value: Payload<'_>,
    ) -> Result<Vec<u8>, RejectReason> {
        let slices = Slices::new(&self.inner, key, value)?;
        for slice in slices.parts(key, Meta::default()) {
            self.wait_for_room(cx, slice.encoded_len() as u64).await;
            let hash = self.inner.hasher.hash(key, slice.slice);
            self.publish_slice(cx, hash, slice)?;
            if self.inner.lockstep {
                self.quiesce(cx).await;
            }
        }
        let head = slices.manifest.encode().to_vec();
        self.wait_for_room(
            cx,
            (pumice_flash::record::HEADER_BYTES + key.len() + head.len()) as u64,
        )
        .await;
        Ok(head)
    }

    /// Waits until flash has room for a record of `len` bytes, or until nothing is under way that could make room.
    pub(crate) async fn wait_for_room(&self, cx: &Cx<D>, len: u64) {
        let store = self.inner.store();
        while !store.has_room(len) {
            self.kick(cx);
            if store.is_idle() {
                return;
            }
            store.wait_for_progress().await;
        }
    }

    /// Stores a slice. It keeps the version of its set, which orders it as well as a new one would: log records void what is
    /// *below* a version.
    fn publish_slice(&self, cx: &Cx<D>, hash: u64, parts: RecordParts<'_>) -> Result<(), RejectReason> {
        self.make_room(cx);
        let stored = {
            let mut shard = self.inner.lock(hash);
            self.inner.publish_versioned(cx, &mut shard, hash, parts)
        };
        self.kick(cx);
        stored.map(|_| ())
    }

    /// Completes a hit: a whole object is complete, a large one needs its slices.
    pub(crate) async fn assemble_object(
        &self,
        cx: &Cx<D>,
        key: &[u8],
        head: Record<D::Buf>,
        tier: Tier,
        place: Place,
    ) -> Option<(Object<D::Buf>, Place)> {
        if head.header().slice != SliceId::Head {
            return Some((Object::whole(head, tier), place));
        }
        let manifest = Manifest::decode(&head)?;
        let value_len = usize::try_from(manifest.value_len).ok()?;
        let mut object = Object {
            head,
            parts: Vec::new(),
            value_len,
            tier,
        };
        let mut len = 0;
        for number in 0..u16::try_from(manifest.slices).ok()? {
            let slice = self.fetch(cx, key, SliceId::Part(number)).await;
            let slice = slice.filter(|(record, ..)| record.header().version == manifest.version);
            let Some((record, slice_tier, _)) = slice else {
                // A slice has been evicted: the object is no more.
                self.drop_head(cx, key, place);
                return None;
            };
            if slice_tier == Tier::Flash {
                object.tier = Tier::Flash;
            }
            len += record.header().value_len as usize;
            object.parts.push(record);
        }
        (len == value_len).then_some((object, place))
    }

    /// Removes the head of an object that has lost a slice, if it still is where it was seen.
    fn drop_head(&self, cx: &Cx<D>, key: &[u8], place: Place) {
        let inner = &*self.inner;
        let hash = inner.hasher.hash(key, SliceId::Whole);
        let mut shard = inner.lock(hash);
        if !self.is_still(&shard, hash, key, place) {
            return;
        }
        let version = inner.store().next_version();
        for bytes in inner.clear_key(cx, &mut shard, hash, key, SliceId::Whole, version) {
            inner.books.evicted.add(bytes);
        }
    }

    /// Removes the slices of a deleted object.
    pub(crate) fn delete_slices(&self, cx: &Cx<D>, key: &[u8], object: &Object<D::Buf>) {
        let inner = &*self.inner;
        let Some(manifest) = Some(&object.head)
            .filter(|_| object.is_sliced())
            .and_then(Manifest::decode)
        else {
            return;
        };
        for number in 0..u16::try_from(manifest.slices).unwrap_or(0) {
            let slice = SliceId::Part(number);
            let hash = inner.hasher.hash(key, slice);
            let mut shard = inner.lock(hash);
            let version = inner.store().next_version();
            for bytes in inner.clear_key(cx, &mut shard, hash, key, slice, version) {
                inner.books.deleted.add(bytes);
            }
        }
    }
}

struct Slices<'a> {
    manifest: Manifest,
    value: Payload<'a>,
    slice_bytes: usize,
}

impl<'a> Slices<'a> {
    fn new<B: Buffer>(inner: &Inner<B>, key: &[u8], value: Payload<'a>) -> Result<Self, RejectReason> {
        let slice_bytes = inner.slice_bytes(key);
        let slices = value.len().div_ceil(slice_bytes);
        // Slice numbers have 16 bits, two of whose values are taken.
        if slices > usize::from(u16::MAX) - 2 {
            return Err(RejectReason::TooLarge);
        }
        let manifest = Manifest {
            version: inner.store().next_version(),
            value_len: value.len() as u64,
            slices: u32::try_from(slices).expect("checked above"),
        };
        Ok(Self {
            manifest,
            value,
            slice_bytes,
        })
    }

    fn parts(&self, key: &'a [u8], meta: Meta) -> impl Iterator<Item = RecordParts<'a>> {
        let (value, slice_bytes, version) = (self.value, self.slice_bytes, self.manifest.version);
        (0..self.manifest.slices).map(move |number| {
            let at = number as usize * slice_bytes;
            let part = value.slice(at, slice_bytes.min(value.len() - at));
            RecordParts {
                version,
                // The head's expiry decides, and can be changed alone.
                expiry: 0,
                flags: meta.flags,
                slice: SliceId::Part(u16::try_from(number).expect("checked when the slices were counted")),
                key,
                value: part,
                value_crc: payload_checksum(part),
            }
        })
    }
}
