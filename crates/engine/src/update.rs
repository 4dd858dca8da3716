//! Conditional changes: read the live object, decide, and apply the decision only if nothing changed meanwhile.

use crate::books::{Books, Line};
use crate::cache::{Cx, ObjectCache};
use crate::large::{Manifest, ROOM_TRIES_MAX, head_parts};
use crate::object::{Meta, Object};
use crate::part::PartId;
use crate::read::Place;
use crate::shards::Shard;
use crate::write::RejectReason;
use pumice_device::Device;
use pumice_flash::record::payload_checksum;
use pumice_flash::{RecordParts, SliceId};
use pumice_index::KeyHash;
use pumice_memory::Payload;

/// What to do with the object that was found, or not found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Keep,
    /// Store this value.
    Store {
        /// The value.
        value: Vec<u8>,
        /// Flags, expiry and marks.
        meta: Meta,
    },
    /// Keep the value, with other flags, marks and another expiry. Nothing where there was no object.
    SetMeta(Meta),
    /// Delete the object. Nothing where there was none.
    Delete,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing changed.
    Kept,
    /// Stored, with this version.
    Stored {
        /// The new version.
        version: u64,
    },
    /// Deleted.
    Deleted,
    /// Not stored. The older object is gone, but after [`Action::SetMeta`], which then leaves it as it was.
    Rejected(RejectReason),
    /// Nothing changed: 64 times another change came in between. Try again.
    Busy,
    /// Nothing changed: the object takes this many bytes to read, more than [`Reads`] allows.
    NeedsMemory {
        /// Bytes of the value, or of the record on flash.
        bytes: u64,
    },
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

/// Rounds before a conditional change gives way to others: each lost round means that another writer won.
const ROUNDS_MAX: usize = 64;

/// What becomes of the object that stands under a key where neither tier has room for the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Old {
    Stays,
    Goes,
}

/// What came of one try to store a record in the place of what was seen.
enum Tried {
    Done(Outcome),
    /// The key is not as it was seen: nothing was done.
    Changed,
    /// Neither tier has room, and what is there stays: nothing was done.
    NoRoom,
}

impl<D: Device + Clone> ObjectCache<D> {
    /// Reads the live object under `key` (full key verified), lets `decide` choose, and applies that as one step: if another
    /// client changed the object meanwhile, it is read again and `decide` asked again. After 64 lost rounds nothing is
    /// changed and the outcome is [`Outcome::Busy`].
    pub async fn update<F>(&self, cx: &Cx<D>, key: &[u8], reads: Reads, mut decide: F) -> Outcome
    where
        F: FnMut(Option<&Object<D::Buf>>) -> Action,
    {
        if key.is_empty() || key.len() > crate::KEY_BYTES_MAX {
            return Outcome::Rejected(RejectReason::KeyLength);
        }
        for _ in 0..ROUNDS_MAX {
            let (object, place) = match self.observe(cx, key, reads).await {
                Ok(observed) => observed,
                Err(bytes) => return Outcome::NeedsMemory { bytes },
            };
            let outcome = match (decide(object.as_ref()), &object) {
                (Action::Keep, _) | (Action::SetMeta(_), None) => return Outcome::Kept,
                (Action::Delete, None) => self.void_if(cx, key, place),
                (Action::Store { value, meta }, old) => {
                    let old = old.as_ref().and_then(|old| Manifest::decode(&old.head));
                    self.store_if(cx, key, place, &value, meta, old).await
                }
                (Action::SetMeta(meta), Some(object)) => {
                    let parts = crate::cache::Inner::with_meta(&object.head, meta);
                    self.publish_when_room(cx, place, parts, Old::Stays).await
                }
                (Action::Delete, Some(object)) => self.delete_if(cx, key, place, object),
            };
            if let Some(outcome) = outcome {
                return outcome;
            }
        }
        Outcome::Busy
    }

    /// Deletes the object under `key`; whether there was one.
    pub async fn delete(&self, cx: &Cx<D>, key: &[u8]) -> bool {
        let reads = Reads {
            value: false,
            ..Reads::ALL
        };
        self.update(cx, key, reads, |_| Action::Delete).await == Outcome::Deleted
    }

    async fn store_if(
        &self,
        cx: &Cx<D>,
        key: &[u8],
        place: Place,
        value: &[u8],
        meta: Meta,
        old: Option<Manifest>,
    ) -> Option<Outcome> {
        let payload = Payload::Bytes(value);
        if let Err(reason) = self.check(cx, key, value.len()) {
            return Some(Outcome::Rejected(reason));
        }
        let outcome = if self.inner.is_large(key, value.len()) {
            self.store_large_if(cx, key, place, payload, meta).await
        } else {
            let parts = RecordParts {
                version: 0,
                expiry: meta.expiry,
                flags: meta.flags,
                marks: meta.marks,
                slice: SliceId::Whole,
                key,
                value: payload,
                value_crc: payload_checksum(payload),
            };
            self.publish_when_room(cx, place, parts, Old::Goes).await
        };
        if let Some(old) = old.filter(|_| outcome.is_some()) {
            self.drop_slices(cx, key, old, |books| &books.overwritten);
        }
        outcome
    }

    async fn store_large_if(
        &self,
        cx: &Cx<D>,
        key: &[u8],
        place: Place,
        value: Payload<'_>,
        meta: Meta,
    ) -> Option<Outcome> {
        let manifest = match self.write_slices(cx, key, value).await {
            Ok(manifest) => manifest,
            Err(reason) => {
                // Where it is not what was seen any more, be it only elsewhere, it is looked at again.
                let is_gone = self.remove_if(cx, key, place, |books| &books.overwritten);
                return is_gone.then_some(Outcome::Rejected(reason));
            }
        };
        let encoded = manifest.encode();
        let head = head_parts(key, Payload::Bytes(&encoded), meta);
        let outcome = self.publish_when_room(cx, place, head, Old::Goes).await;
        if !matches!(outcome, Some(Outcome::Stored { .. })) {
            self.drop_slices(cx, key, manifest, |books| &books.rejected);
        }
        outcome
    }

    /// Removes what stands under a key, if that still is what was seen: not what another client has stored meanwhile.
    /// Whether it was.
    pub(crate) fn remove_if(
        &self,
        cx: &Cx<D>,
        key: &[u8],
        place: Place,
        line: impl Fn(&Books) -> &Line,
    ) -> bool {
        let inner = &*self.inner;
        let part = PartId::object(key);
        let hash = inner.hasher.hash(&part);
        let mut shard = inner.lock(hash);
        if !self.is_still(&shard, hash, key, place) {
            return false;
        }
        let version = inner.store().next_version();
        for bytes in inner.clear_part(cx, &mut shard, hash, &part, version) {
            line(&inner.books).add(bytes);
        }
        true
    }

    /// Stores a record if the key still is as it was seen; `None` if not. Where neither tier has room it waits for what is under way
    /// on flash: while all buffers are being written, and readers pin the segments in DRAM or others fill them, that is over soon.
    async fn publish_when_room(
        &self,
        cx: &Cx<D>,
        place: Place,
        parts: RecordParts<'_>,
        old: Old,
    ) -> Option<Outcome> {
        for _ in 0..ROOM_TRIES_MAX {
            match self.publish_if(cx, place, parts, Old::Stays) {
                Tried::Done(outcome) => return Some(outcome),
                Tried::Changed => return None,
                Tried::NoRoom => self.wait_for_room(cx, parts.encoded_len() as u64).await,
            }
        }
        match self.publish_if(cx, place, parts, old) {
            Tried::Done(outcome) => Some(outcome),
            Tried::Changed => None,
            Tried::NoRoom => Some(Outcome::Rejected(RejectReason::NoRoom)),
        }
    }

    fn publish_if(&self, cx: &Cx<D>, place: Place, parts: RecordParts<'_>, old: Old) -> Tried {
        self.make_room(cx);
        let inner = &*self.inner;
        let hash = inner.hasher.hash(&PartId::of(&parts));
        let stored = {
            let mut shard = inner.lock(hash);
            if !self.is_still(&shard, hash, parts.key, place) {
                return Tried::Changed;
            }
            if old == Old::Stays && !inner.has_room(&parts) {
                return Tried::NoRoom;
            }
            inner.publish_locked(cx, &mut shard, hash, parts)
        };
        self.kick(cx);
        Tried::Done(match stored {
            Ok(version) => Outcome::Stored { version },
            Err(reason) => Outcome::Rejected(reason),
        })
    }

    /// A key that was not found is to be gone: where flash may have a copy all the same, one that could not be read or was taken
    /// for another's, it is void from now on. `None` where there is one now.
    fn void_if(&self, cx: &Cx<D>, key: &[u8], place: Place) -> Option<Outcome> {
        let inner = &*self.inner;
        let hash = inner.hasher.hash(&PartId::object(key));
        let mut shard = inner.lock(hash);
        if !self.is_still(&shard, hash, key, place) {
            return None;
        }
        // What is mapped in its place may be another key's that has hidden this one's. It goes, too: nothing would hide it then.
        let may_hide = !shard.flash.is_exact() && shard.flash.get(hash).is_some();
        let is_unmapped = || shard.flash.get(hash).is_none() && inner.store().may_have_unmapped(hash);
        if may_hide || shard.flash.is_unsure(hash) || is_unmapped() {
            let version = inner.store().next_version();
            for bytes in inner.clear_part(cx, &mut shard, hash, &PartId::object(key), version) {
                inner.books.evicted.add(bytes);
            }
        }
        Some(Outcome::Kept)
    }

    fn delete_if(&self, cx: &Cx<D>, key: &[u8], place: Place, object: &Object<D::Buf>) -> Option<Outcome> {
        let inner = &*self.inner;
        let part = PartId::object(key);
        let hash = inner.hasher.hash(&part);
        {
            let mut shard = inner.lock(hash);
            if !self.is_still(&shard, hash, key, place) {
                return None;
            }
            let version = inner.store().next_version();
            for bytes in inner.clear_part(cx, &mut shard, hash, &part, version) {
                inner.books.deleted.add(bytes);
            }
        }
        if let Some(manifest) = Manifest::decode(&object.head) {
            self.drop_slices(cx, key, manifest, |books| &books.deleted);
        }
        self.kick(cx);
        Some(Outcome::Deleted)
    }

    /// Whether the live copy under a key is where it was seen.
    pub(crate) fn is_still(&self, shard: &Shard, hash: KeyHash, key: &[u8], place: Place) -> bool {
        let inner = &*self.inner;
        let part = PartId::object(key);
        let dram = shard.dram.find(&inner.tier, hash, |record| part.is(record));
        let flash = inner.place_on_flash(shard, hash);
        match place {
            // A mapping may be there still: the stranger's that was there before.
            Place::Absent(before) => dram.is_none() && (flash.is_none() || flash == before),
            Place::Dram(version) => match dram {
                Some(found) => found.record.header().version == version,
                // Evicted from DRAM meanwhile, or replaced: only reading can tell.
                None => false,
            },
            Place::Flash(location, sequence) => dram.is_none() && flash == Some((location, sequence)),
        }
    }
}
