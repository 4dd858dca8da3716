//! Conditional changes: read the live object, decide, and apply the decision only if nothing changed meanwhile.

use crate::cache::{Cx, ObjectCache};
use crate::object::{Meta, Object};
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
        /// Flags and expiry.
        meta: Meta,
    },
    /// Keep the value, with other flags and another expiry. Nothing where there was no object.
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
    /// Not stored; the older object is gone.
    Rejected(RejectReason),
}

/// Rounds before a conditional change gives way to others: each lost round means that another writer won.
const ROUNDS_MAX: usize = 64;

impl<D: Device + Clone> ObjectCache<D> {
    /// Reads the live object under `key` (full key verified), lets `decide` choose, and applies that as one step: if another
    /// client changed the object meanwhile, it is read again and `decide` asked again. After 64 lost rounds nothing is
    /// changed and the outcome is [`Outcome::Rejected`].
    pub async fn update<F>(&self, cx: &Cx<D>, key: &[u8], mut decide: F) -> Outcome
    where
        F: FnMut(Option<&Object<D::Buf>>) -> Action,
    {
        if key.is_empty() || key.len() > crate::KEY_BYTES_MAX {
            return Outcome::Rejected(RejectReason::KeyLength);
        }
        for _ in 0..ROUNDS_MAX {
            let (object, place) = self.observe(cx, key).await;
            let outcome = match (decide(object.as_ref()), &object) {
                (Action::Keep, _) | (Action::SetMeta(_) | Action::Delete, None) => return Outcome::Kept,
                (Action::Store { value, meta }, _) => self.store_if(cx, key, place, &value, meta).await,
                (Action::SetMeta(meta), Some(object)) => {
                    let parts = crate::cache::Inner::with_meta(&object.head, meta);
                    self.publish_if(cx, place, parts)
                }
                (Action::Delete, Some(object)) => self.delete_if(cx, key, place, object),
            };
            if let Some(outcome) = outcome {
                return outcome;
            }
        }
        Outcome::Rejected(RejectReason::NoRoom)
    }

    /// Deletes the object under `key`; whether there was one.
    pub async fn delete(&self, cx: &Cx<D>, key: &[u8]) -> bool {
        self.update(cx, key, |_| Action::Delete).await == Outcome::Deleted
    }

    async fn store_if(
        &self,
        cx: &Cx<D>,
        key: &[u8],
        place: Place,
        value: &[u8],
        meta: Meta,
    ) -> Option<Outcome> {
        let payload = Payload::Bytes(value);
        if let Err(reason) = self.check(cx, key, value.len()) {
            return Some(Outcome::Rejected(reason));
        }
        let head;
        let (slice, payload) = if self.inner.is_large(key, value.len()) {
            head = match self.write_slices(cx, key, payload).await {
                Ok(head) => head,
                Err(reason) => {
                    self.remove(cx, key);
                    return Some(Outcome::Rejected(reason));
                }
            };
            (SliceId::Head, Payload::Bytes(&head[..]))
        } else {
            (SliceId::Whole, payload)
        };
        let parts = RecordParts {
            version: 0,
            expiry: meta.expiry,
            flags: meta.flags,
            slice,
            key,
            value: payload,
            value_crc: payload_checksum(payload),
        };
        self.publish_if(cx, place, parts)
    }

    /// Stores a record if the key still is as it was seen; `None` if not.
    fn publish_if(&self, cx: &Cx<D>, place: Place, parts: RecordParts<'_>) -> Option<Outcome> {
        self.make_room(cx);
        let inner = &*self.inner;
        let hash = inner.hasher.hash(parts.key, parts.slice);
        let stored = {
            let mut shard = inner.lock(hash);
            if !self.is_still(&shard, hash, parts.key, place) {
                return None;
            }
            inner.publish_locked(cx, &mut shard, hash, parts)
        };
        self.kick(cx);
        Some(match stored {
            Ok(version) => Outcome::Stored { version },
            Err(reason) => Outcome::Rejected(reason),
        })
    }

    fn delete_if(&self, cx: &Cx<D>, key: &[u8], place: Place, object: &Object<D::Buf>) -> Option<Outcome> {
        let inner = &*self.inner;
        let hash = inner.hasher.hash(key, SliceId::Whole);
        {
            let mut shard = inner.lock(hash);
            if !self.is_still(&shard, hash, key, place) {
                return None;
            }
            let version = inner.store().next_version();
            for bytes in inner.clear_key(cx, &mut shard, hash, key, SliceId::Whole, version) {
                inner.books.deleted.add(bytes);
            }
        }
        self.delete_slices(cx, key, object);
        self.kick(cx);
        Some(Outcome::Deleted)
    }

    /// Whether the live copy under a key is where it was seen.
    pub(crate) fn is_still(&self, shard: &Shard, hash: KeyHash, key: &[u8], place: Place) -> bool {
        let inner = &*self.inner;
        let dram = shard.dram.find(&inner.tier, hash, key, SliceId::Whole);
        let flash = shard.flash.get(hash);
        match place {
            // A mapping may be there still: the stranger's that was there before.
            Place::Absent(before) => dram.is_none() && (flash.is_none() || flash == before),
            Place::Dram(version) => match dram {
                Some(found) => found.record.header().version == version,
                // Evicted from DRAM meanwhile, or replaced: only reading can tell.
                None => false,
            },
            Place::Flash(location, sequence) => {
                dram.is_none() && flash == Some(location) && inner.store().sequence_at(location) == sequence
            }
        }
    }
}
