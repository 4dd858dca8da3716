//! Conditional changes: read the live object, decide, and apply the decision only if nothing changed meanwhile.

use crate::books::{Books, Line};
use crate::cache::{Cx, ObjectCache, Shard};
use crate::large::{Large, Manifest, Slices, head_parts, whole_parts};
use crate::object::{Meta, Object, RejectReason};
use crate::part::PartId;
use crate::read::{Permits, Place, Unlimited};
use crate::write::Replaces;
use pumice_device::Device;
use pumice_index::{KeyHash, Known, Mapping};
use pumice_memory::Payload;
use pumice_record::RecordParts;

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
    /// Not stored. The older object stays as it was, unless another thread took the last room in the very moment, or the index has
    /// none; then it is gone.
    Rejected(RejectReason),
    /// Nothing changed: 64 times another change came in between. Try again.
    Busy,
}

/// Rounds before a conditional change gives way to others: each lost round means that another writer won.
pub(crate) const ROUNDS_MAX: usize = 64;

/// How often a conditional change waits for flash to finish something, at most: each time that others have taken the room again, they
/// have stored something.
const WAITS_MAX: usize = 1024;

/// What a conditional change may read, and values have, under its first permit.
const SMALL_BYTES: usize = 16 << 10;

/// What came of one try to store a record in the place of what was seen.
pub(crate) enum Tried {
    /// What stood there is gone, even if the outcome is [`Outcome::Rejected`].
    Done(Outcome),
    /// The key is not as it was seen: nothing was done.
    Changed,
    /// It cannot be stored: nothing was done.
    Refused(RejectReason),
}

impl Tried {
    /// The outcome; `None` where the key is to be looked at again.
    pub(crate) fn outcome(self) -> Option<Outcome> {
        match self {
            Tried::Done(outcome) => Some(outcome),
            Tried::Changed => None,
            Tried::Refused(reason) => Some(Outcome::Rejected(reason)),
        }
    }
}

impl<D: Device + Clone> ObjectCache<D> {
    /// Reads the live object under `key` (full key verified), lets `decide` choose, and applies that as one step: if another
    /// client changed the object meanwhile, it is read again and `decide` asked again. After 64 lost rounds nothing is
    /// changed and the outcome is [`Outcome::Busy`]. Where neither tier has room it waits for what flash is writing. Of a large object
    /// `decide` sees all but the value.
    pub async fn update<F>(&self, cx: &Cx<D>, key: &[u8], decide: F) -> Outcome
    where
        F: FnMut(Option<&Object<D::Buf>>) -> Action,
    {
        let Ok((outcome, ())) = self.update_within(cx, key, &mut Unlimited, decide).await;
        outcome
    }

    /// As [`ObjectCache::update`], what is read under a permit, which is returned: for as long as the object that `decide` saw is kept.
    ///
    /// # Errors
    /// What `permits` say.
    pub async fn update_within<P: Permits, F>(
        &self,
        cx: &Cx<D>,
        key: &[u8],
        permits: &mut P,
        mut decide: F,
    ) -> Result<(Outcome, P::Permit), P::Refusal>
    where
        F: FnMut(Option<&Object<D::Buf>>) -> Action,
    {
        let mut bytes = SMALL_BYTES;
        loop {
            let permit = permits.take(bytes).await?;
            match self.update_reading(cx, key, bytes, &mut decide).await {
                Ok(outcome) => return Ok((outcome, permit)),
                // Whoever waits for one permit holds no other.
                Err(needed) => bytes = needed,
            }
        }
    }

    /// The same, where no more than so many bytes may be read.
    ///
    /// # Errors
    /// What the object takes that is there now.
    async fn update_reading<F>(
        &self,
        cx: &Cx<D>,
        key: &[u8],
        bytes_max: usize,
        mut decide: F,
    ) -> Result<Outcome, usize>
    where
        F: FnMut(Option<&Object<D::Buf>>) -> Action,
    {
        if key.is_empty() || key.len() > crate::KEY_BYTES_MAX {
            return Ok(Outcome::Rejected(RejectReason::KeyLength));
        }
        let mut is_detached = false;
        for _ in 0..ROUNDS_MAX {
            let (mut object, place) = self.observe(cx, key, bytes_max).await?;
            if let Some(object) = object.as_mut().filter(|_| is_detached) {
                object.detach();
            }
            let change = Change {
                cache: self,
                cx,
                key,
                place,
            };
            let outcome = match (decide(object.as_ref()), object) {
                (Action::Keep, _) | (Action::SetMeta(_), None) => return Ok(Outcome::Kept),
                (Action::Delete, None) => change.void(),
                (Action::Store { value, meta }, old) => {
                    // Of the object nothing else is needed, and it would pin memory while this waits.
                    let old = old.and_then(|old| Manifest::decode(&old.head));
                    change.store(&value, meta, old).await
                }
                (Action::SetMeta(meta), Some(object)) => {
                    let parts = crate::cache::Inner::with_meta(&object.head, meta);
                    let tried = match change.publish(parts, Replaces::Meta) {
                        // Whoever waits must not pin what is waited for, nor what `decide` may have cloned.
                        Tried::Refused(_) if !is_detached => {
                            is_detached = true;
                            continue;
                        }
                        Tried::Refused(_) => change.publish_when_room(parts, Replaces::Meta).await,
                        tried => tried,
                    };
                    if let (Tried::Done(Outcome::Rejected(_)), Some(manifest)) =
                        (&tried, Manifest::decode(&object.head))
                    {
                        change.large().drop_slices(manifest, |books| &books.evicted);
                    }
                    tried.outcome()
                }
                (Action::Delete, Some(object)) => change.delete(&object),
            };
            if let Some(outcome) = outcome {
                return Ok(outcome);
            }
        }
        Ok(Outcome::Busy)
    }

    /// Deletes the object under `key`; whether there was one.
    pub async fn delete(&self, cx: &Cx<D>, key: &[u8]) -> bool {
        self.update(cx, key, |_| Action::Delete).await == Outcome::Deleted
    }
}

/// A change of a key's object that is made if the object still is where it was seen.
pub(crate) struct Change<'a, D: Device + Clone> {
    pub(crate) cache: &'a ObjectCache<D>,
    pub(crate) cx: &'a Cx<D>,
    pub(crate) key: &'a [u8],
    pub(crate) place: Place,
}

impl<'a, D: Device + Clone> Change<'a, D> {
    pub(crate) fn large(&self) -> Large<'a, D> {
        self.cache.large(self.cx, self.key)
    }

    async fn store(&self, value: &[u8], meta: Meta, old: Option<Manifest>) -> Option<Outcome> {
        let payload = Payload::Bytes(value);
        if let Some(reason) = self.cache.inner.refusal(self.key, value.len()) {
            return Some(Outcome::Rejected(reason));
        }
        let tried = if self.cache.inner.is_large(self.key, value.len()) {
            self.store_large(payload, meta).await
        } else {
            self.publish_when_room(whole_parts(self.key, payload, meta), Replaces::All)
                .await
        };
        if let Some(old) = old.filter(|_| matches!(tried, Tried::Done(_))) {
            self.large().drop_slices(old, |books| &books.overwritten);
        }
        tried.outcome()
    }

    async fn store_large(&self, value: Payload<'_>, meta: Meta) -> Tried {
        let slices = match self.large().write_slices(value, meta.expiry).await {
            Ok(written) => written,
            Err(reason) => return Tried::Refused(reason),
        };
        let tried = self.publish_head(&slices, (b"", meta)).await;
        if !matches!(tried, Tried::Done(Outcome::Stored { .. })) {
            self.large().drop_slices(slices.manifest, |books| &books.rejected);
        }
        tried
    }

    /// Stores the head of a large object, with an owner's bytes, if the key still is as it was seen.
    pub(crate) async fn publish_head(&self, slices: &Slices, (owned, meta): (&[u8], Meta)) -> Tried {
        self.large().wait_for_head_room(slices).await;
        let encoded = slices.manifest.encode();
        let head = head_parts(self.key, owned, Payload::Bytes(&encoded), meta, slices.mark);
        self.publish_when_room(head, Replaces::All).await
    }

    /// Removes what stands under a key, if that still is what was seen: not what another client has stored meanwhile.
    /// Whether it was.
    pub(crate) fn remove(&self, line: impl Fn(&Books) -> &Line) -> bool {
        let inner = &*self.cache.inner;
        let part = PartId::object(self.key);
        let hash = inner.hasher.hash(&part);
        let mut shard = inner.lock(hash);
        if !self.is_still(&shard, hash) {
            return false;
        }
        let version = inner.store().next_version();
        for bytes in inner.clear_part(self.cx, &mut shard, hash, &part, version) {
            line(&inner.books).add(bytes);
        }
        drop(shard);
        self.cache.kick(self.cx);
        true
    }

    /// Stores a record if the key still is as it was seen. Where neither tier has room it waits for what is under way on flash: while all
    /// buffers are being written, and readers pin the segments in DRAM or others fill them, that is over soon. The caller pins no memory
    /// of either tier.
    pub(crate) async fn publish_when_room(&self, parts: RecordParts<'_>, replaces: Replaces) -> Tried {
        let inner = &*self.cache.inner;
        let mut waits = 0;
        loop {
            let refused = match self.publish(parts, replaces) {
                Tried::Refused(reason) => Tried::Refused(reason),
                tried => return tried,
            };
            if waits == WAITS_MAX || !self.cache.wait_for_progress(self.cx).await {
                let hash = inner.hasher.hash(&PartId::of(&parts));
                inner.count_refused(hash, inner.store().padded_len(&parts));
                return refused;
            }
            waits += 1;
        }
    }

    /// Stores a record if the key still is as it was seen, and a tier has room.
    fn publish(&self, parts: RecordParts<'_>, replaces: Replaces) -> Tried {
        self.cache.make_room(self.cx);
        let inner = &*self.cache.inner;
        let hash = inner.hasher.hash(&PartId::of(&parts));
        let stored = {
            let mut shard = inner.lock(hash);
            if !self.is_still(&shard, hash) {
                return Tried::Changed;
            }
            let kept = match replaces {
                Replaces::Head => self.kept(&shard, hash, &parts),
                _ => None,
            };
            let has_room = match kept {
                Some(_) => inner.store().has_room(parts.encoded_len() as u64),
                None => inner.has_room(&parts),
            };
            if !has_room {
                return Tried::Refused(RejectReason::NoRoom);
            }
            inner.publish_locked(self.cx, &mut shard, hash, parts, replaces, kept)
        };
        self.cache.kick(self.cx);
        Tried::Done(match stored {
            Ok(version) => Outcome::Stored { version },
            Err(reason) => Outcome::Rejected(reason),
        })
    }

    /// The copy on flash, of what was seen and still is there, that is to be kept until this record of the same object is written there.
    fn kept(&self, shard: &Shard, hash: KeyHash, parts: &RecordParts<'_>) -> Option<Mapping> {
        let inner = &*self.cache.inner;
        if parts.marks & Meta::REFUSED != 0 || !inner.may_write_anew(self.cx) {
            return None;
        }
        let old = shard.flash.find(hash).live()?;
        // What is mapped may be a stranger's.
        let is_own = match self.place {
            Place::Absent { .. } => false,
            Place::Flash(..) => true,
            Place::Dram(_) => {
                let part = PartId::of(parts);
                let found = shard.dram.find(&inner.tier, hash, |record| part.is(record))?;
                found.flash_location == inner.flash_location(old.location)
            }
        };
        (is_own && inner.store().may_be_kept(old.location)).then_some(old)
    }

    /// A key that was not found is to be gone: where flash may have a copy all the same, one that could not be read or was taken
    /// for another's, it is void from now on. `None` where there is one now.
    fn void(&self) -> Option<Outcome> {
        let inner = &*self.cache.inner;
        let hash = inner.hasher.hash(&PartId::object(self.key));
        let mut shard = inner.lock(hash);
        if !self.is_still(&shard, hash) {
            return None;
        }
        // What is mapped in its place may be another key's that has hidden this one's. It goes, too: nothing would hide it then.
        if shard.may_be_more(hash) {
            let version = inner.store().next_version();
            for bytes in inner.clear_part(self.cx, &mut shard, hash, &PartId::object(self.key), version) {
                inner.books.evicted.add(bytes);
            }
        }
        drop(shard);
        self.cache.kick(self.cx);
        Some(Outcome::Kept)
    }

    fn delete(&self, object: &Object<D::Buf>) -> Option<Outcome> {
        if !self.remove(|books| &books.deleted) {
            return None;
        }
        if let Some(manifest) = Manifest::decode(&object.head) {
            self.large().drop_slices(manifest, |books| &books.deleted);
        }
        Some(Outcome::Deleted)
    }

    /// Whether the live copy under a key is where it was seen.
    pub(crate) fn is_still(&self, shard: &Shard, hash: KeyHash) -> bool {
        let inner = &*self.cache.inner;
        let part = PartId::object(self.key);
        let dram = shard.dram.find(&inner.tier, hash, |record| part.is(record));
        let known = shard.flash.find(hash);
        let flash = inner.place_of(known);
        match self.place {
            // A mapping may be there still: the stranger's that was there before. One that has left DRAM since it was made is not seen,
            // but then a filter tells of it.
            Place::Absent { before, was_unknown } => {
                dram.is_none()
                    && (flash.is_none() || flash == before)
                    && (was_unknown || known != Known::Unknown)
            }
            Place::Dram(version) => match dram {
                Some(found) => found.record.header().version == version,
                // Evicted from DRAM meanwhile, or replaced: only reading can tell.
                None => false,
            },
            Place::Flash(location, sequence) => dram.is_none() && flash == Some((location, sequence)),
        }
    }
}
