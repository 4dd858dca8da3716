//! Objects that come in pieces: begun, appended to, finished.
//!
//! What is not finished was never to be seen, and its slices go with the writer; those that a crash leaves are entries like others,
//! which go with their blocks. Who [follows](ObjectWriter::follow) a writer reads while it writes: what it still holds from there, and
//! what has left it from the engine.

use crate::cache::{Cx, ObjectCache};
use crate::large::{Manifest, Slices, whole_parts};
use crate::object::{Meta, Object, Pieces, RejectReason};
use crate::read::Place;
use crate::reader::Broken;
use crate::update::{Change, Outcome, ROUNDS_MAX, Tried};
use crate::write::Replaces;
use locks::Mutex;
use pumice_device::Device;
use pumice_memory::Payload;
use pumice_record::{Record, RecordParts};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// The most bytes that an owner may store beside a value.
pub const HEAD_BYTES_MAX: usize = 8 << 10;
// A start tells the length of a record by these bytes.
const _: () = assert!(
    pumice_record::HEADER_BYTES_MAX + crate::KEY_BYTES_MAX + HEAD_BYTES_MAX
        <= pumice_blocks::recovery::PIECE_HEAD_BYTES_MAX
);

/// An object with bytes of its owner's and a value is one record up to so many bytes of both. Of longer ones the value is a slice, or
/// several, so that the head can be replaced alone for little.
const ONE_RECORD_BYTES: usize = 15 << 10;

/// Bytes that a follower copies from its writer at once.
const COPIED_BYTES: usize = 64 << 10;

/// What is known of an object before its value comes.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewObject<'a> {
    /// Flags, expiry and marks.
    pub meta: Meta,
    /// Bytes of the value, where that is known.
    pub len: Option<u64>,
    /// What the owner stores beside the value, at most [`HEAD_BYTES_MAX`].
    pub head: &'a [u8],
    /// Whether it is kept from flash whatever the rule of admission says.
    pub never_on_flash: bool,
}

/// What a writer and its followers share.
#[derive(Debug, Default)]
struct Window {
    /// The bytes that are no slice yet.
    buffer: Vec<u8>,
    /// Bytes of the value before them.
    start: u64,
    /// Version and length of the slices, once there are any.
    set: Option<(u64, u32)>,
    end: End,
    /// Length of the value, once all has come. While the buffer is being stored it is not here.
    total: u64,
    waiting: Vec<Waker>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    /// There is none yet.
    #[default]
    Open,
    /// All of the value has come.
    Finished,
    /// There will be no object, and not all of its value has come.
    Failed,
}

impl Window {
    fn wake(&mut self) {
        self.waiting.drain(..).for_each(Waker::wake);
    }

    /// What is held from byte `at` of the value on, if anything is.
    fn held(&self, at: u64) -> Option<&[u8]> {
        let at = usize::try_from(at.checked_sub(self.start)?).ok()?;
        self.buffer.get(at..).filter(|held| !held.is_empty())
    }

    /// What a follower at byte `at` reads next; `None` while that has not come.
    fn next<T>(&self, at: u64, held: impl Fn(&[u8]) -> T) -> Option<Result<Next<T>, Broken>> {
        match (self.end, self.held(at), self.set) {
            (End::Failed, ..) => Some(Err(Broken)),
            (_, Some(bytes), _) => Some(Ok(Next::Held(held(bytes)))),
            (_, None, Some(set)) if at < self.start => Some(Ok(Next::Slice(set))),
            (End::Finished, ..) if at == self.total => Some(Ok(Next::End)),
            (End::Finished | End::Open, ..) => None,
        }
    }
}

/// Writes one object, piece by piece. It holds up to 1 MiB of the value, and is to be seen when it is finished. Dropped before, it leaves
/// what stood under the key.
pub struct ObjectWriter<D: Device + Clone> {
    cache: ObjectCache<D>,
    cx: Cx<D>,
    key: Box<[u8]>,
    head: Box<[u8]>,
    meta: Meta,
    len: Option<u64>,
    never_on_flash: bool,
    /// The longest value, in bytes, as far as is known.
    most: u64,
    /// Once it is certain that the object is large.
    slices: Option<Slices>,
    window: Arc<Mutex<Window>>,
    /// Why nothing more can be written.
    failure: Option<RejectReason>,
    is_finished: bool,
}

impl<D: Device + Clone> ObjectCache<D> {
    /// Whether a value of this length is stored in slices, and so comes and goes in pieces.
    pub fn is_large(&self, key: &[u8], value_len: u64) -> bool {
        value_len > self.inner.whole_bytes(key) as u64
    }

    /// Memory that a writer of a value of this length holds, in bytes.
    pub fn writer_bytes(&self, key: &[u8], value_len: Option<u64>) -> usize {
        let whole = self.inner.whole_bytes(key);
        match value_len {
            Some(len) if self.is_large(key, len) => self.inner.slice_bytes(key),
            Some(len) => len as usize,
            None => whole,
        }
    }

    /// Begins an object whose value comes in pieces.
    ///
    /// # Errors
    /// [`RejectReason`]; what stands under the key is untouched.
    pub fn begin(&self, cx: &Cx<D>, key: &[u8], new: NewObject<'_>) -> Result<ObjectWriter<D>, RejectReason> {
        self.flush_if_due(cx);
        let len = usize::try_from(new.len.unwrap_or(0)).unwrap_or(usize::MAX);
        if let Some(reason) = self.inner.refusal(key, len) {
            return Err(reason);
        }
        if new.head.len() > HEAD_BYTES_MAX || new.head.len() >= self.inner.whole_bytes(key) {
            return Err(RejectReason::Length);
        }
        let mut writer = ObjectWriter {
            cache: self.clone(),
            cx: cx.clone(),
            key: key.into(),
            head: new.head.into(),
            meta: new.meta,
            len: new.len,
            never_on_flash: new.never_on_flash,
            most: self.inner.item_bytes_max as u64,
            slices: None,
            window: Arc::default(),
            failure: None,
            is_finished: false,
        };
        if new.len.is_some_and(|len| len > writer.whole_bytes() as u64) {
            writer.slice(self.inner.slice_bytes(key));
        }
        writer.check_len(new.len.unwrap_or(0))?;
        Ok(writer)
    }

    /// Replaces what the owner has stored beside a value, with flags, expiry and marks, if the object still is the one that was seen; the
    /// value is not written again where it is a large object's, or has more than 15 KiB and was written with a head. [`Outcome::Kept`] where
    /// another change came before.
    ///
    /// If the older was on flash, a crash leaves the one or the other. Until the newer is written there it may leave neither where the older is
    /// evicted meanwhile, the newer is replaced in its turn, the write budget is empty, or, with index `cascade`, the older's mapping was
    /// not in DRAM or a checkpoint comes between.
    pub async fn replace_head(
        &self,
        cx: &Cx<D>,
        mut seen: Object<D::Buf>,
        head: &[u8],
        meta: Meta,
    ) -> Outcome {
        // Whoever waits must not pin what is waited for.
        seen.detach();
        let parts = RecordParts {
            head,
            ..crate::cache::Inner::with_meta(&seen.head, meta)
        };
        if head.len() > HEAD_BYTES_MAX
            || self.inner.store().padded_len(&parts) > self.inner.store().record_max()
        {
            return Outcome::Rejected(RejectReason::Length);
        }
        let change = Change {
            cache: self,
            cx,
            key: parts.key,
            place: seen.place,
        };
        let tried = change.publish_when_room(parts, Replaces::Head).await;
        if let (Tried::Done(Outcome::Rejected(_)), Some(manifest)) = (&tried, Manifest::decode(&seen.head)) {
            self.large(cx, parts.key)
                .drop_slices(manifest, |books| &books.evicted);
        }
        tried.outcome().unwrap_or(Outcome::Kept)
    }
}

impl<D: Device + Clone> ObjectWriter<D> {
    /// The longest value that is one record beside this head.
    fn whole_bytes(&self) -> usize {
        self.cache.inner.whole_bytes(&self.key) - self.head.len()
    }

    /// From here on the object is large.
    fn slice(&mut self, slice_bytes: usize) {
        let so_far = self.window.lock().buffer.len() as u64;
        let likely_len = self.len.unwrap_or(so_far);
        let large = self.cache.large(&self.cx, &self.key);
        let mut slices = large.slices(likely_len, slice_bytes, self.meta.expiry);
        if self.never_on_flash {
            slices.mark = Meta::REFUSED;
        }
        let is_refused = slices.mark != 0;
        self.most = (self.most).min(self.cache.inner.value_bytes_max(&self.key, is_refused));
        self.window.lock().set = Some((slices.manifest.version, slices.manifest.slice_bytes));
        self.slices = Some(slices);
    }

    /// Refuses a value that is longer than what is to hold it.
    fn check_len(&mut self, len: u64) -> Result<(), RejectReason> {
        if len <= self.most {
            return Ok(());
        }
        let reason = self.cache.inner.refuse_too_large(&self.key, len);
        Err(self.refuse(reason))
    }

    fn refuse(&mut self, reason: RejectReason) -> RejectReason {
        self.failure = Some(reason);
        reason
    }

    /// Bytes appended so far.
    pub fn appended(&self) -> u64 {
        let window = self.window.lock();
        window.start + window.buffer.len() as u64
    }

    /// Appends to the value; waits where flash has no room yet.
    ///
    /// # Errors
    /// [`RejectReason`]: there will be no object, and what stands under the key is untouched. What [`ObjectWriter::appended`] counts is
    /// there for followers until the writer is dropped.
    pub async fn append(&mut self, mut bytes: &[u8]) -> Result<(), RejectReason> {
        if let Some(reason) = self.failure {
            return Err(reason);
        }
        let len = self.appended() + bytes.len() as u64;
        if self.len.is_some_and(|told| len > told) {
            return Err(self.refuse(RejectReason::Length));
        }
        self.check_len(len)?;
        while !bytes.is_empty() {
            let most = match &self.slices {
                Some(slices) => slices.manifest.slice_bytes as usize,
                None => self.whole_bytes(),
            };
            let held = {
                let mut window = self.window.lock();
                let buffer = &mut window.buffer;
                let (now, rest) = bytes.split_at(bytes.len().min(most - buffer.len()));
                let needed = buffer.len() + now.len();
                if needed > buffer.capacity() {
                    let capacity = needed.max(2 * buffer.capacity()).min(most);
                    let more = capacity - buffer.len();
                    buffer.reserve_exact(more);
                }
                buffer.extend_from_slice(now);
                bytes = rest;
                window.wake();
                window.buffer.len()
            };
            if held == most && (self.slices.is_some() || !bytes.is_empty()) {
                if self.slices.is_none() {
                    self.slice(self.cache.inner.slice_bytes(&self.key));
                    self.check_len(len)?;
                }
                self.write(false).await?;
            }
        }
        Ok(())
    }

    /// Writes all whole slices of what is held, and with `all` the rest too.
    async fn write(&mut self, all: bool) -> Result<(), RejectReason> {
        let Some(mut slices) = self.slices else {
            return Ok(());
        };
        let slice_bytes = slices.manifest.slice_bytes as usize;
        let mut held = std::mem::take(&mut self.window.lock().buffer);
        // Whoever drops this while it waits has lost what was held.
        self.failure = Some(RejectReason::Length);
        let (mut at, mut written) = (0, Ok(()));
        while written.is_ok() && (held.len() - at >= slice_bytes || all && at < held.len()) {
            let end = held.len().min(at + slice_bytes);
            if let Some(wait) = self.cache.change_wait(&self.cx) {
                wait.await;
            }
            let piece = Payload::Bytes(&held[at..end]);
            let large = self.cache.large(&self.cx, &self.key);
            // A slice counts before it is stored: what is dropped meanwhile leaves none behind.
            let slice = slices.next(&self.key, piece);
            self.slices = Some(slices);
            written = large.write_slice(slice).await;
            if written.is_ok() {
                at = end;
            }
        }
        held.drain(..at);
        if all {
            // Followers may keep the window for long.
            held.shrink_to_fit();
        }
        let mut window = self.window.lock();
        window.buffer = held;
        window.start += at as u64;
        window.wake();
        drop(window);
        self.failure = written.err();
        written
    }

    /// Makes the object visible, in place of whatever stands under the key. Returns its version.
    ///
    /// # Errors
    /// [`RejectReason`]; what stood under the key is gone then too, unless the value is not as long as was told.
    pub async fn finish(mut self) -> Result<u64, RejectReason> {
        self.complete().await?;
        let large = self.cache.large(&self.cx, &self.key);
        let stored = match &self.slices {
            Some(slices) => large.set_head(slices, &self.head, self.meta).await,
            None => {
                let held = std::mem::take(&mut self.window.lock().buffer);
                let parts = self.whole(&held, self.meta);
                let stored = large
                    .when_there_is_room(parts, || self.cache.publish(&self.cx, parts))
                    .await;
                self.window.lock().buffer = held;
                stored
            }
        };
        match stored {
            Ok(_) => self.end(End::Finished),
            Err(_) => self.slices = None,
        }
        stored
    }

    /// As [`ObjectWriter::finish`], if `decide` says with which meta, given all but the value of what the key holds; as one step, as
    /// [`ObjectCache::update`]. Where it is not stored, followers read on until the writer is dropped.
    pub async fn finish_if<F>(&mut self, mut decide: F) -> Outcome
    where
        F: FnMut(Option<&Object<D::Buf>>) -> Option<Meta>,
    {
        if let Err(reason) = self.complete().await {
            return Outcome::Rejected(reason);
        }
        for _ in 0..ROUNDS_MAX {
            let Ok((seen, place)) = self.cache.observe(&self.cx, &self.key, usize::MAX).await else {
                unreachable!("whatever it takes")
            };
            let Some(meta) = decide(seen.as_ref()) else {
                return Outcome::Kept;
            };
            let old = seen.and_then(|seen| Manifest::decode(&seen.head));
            match self.publish_if(place, meta).await {
                Tried::Done(outcome) => {
                    if let Some(old) = old {
                        self.cache
                            .large(&self.cx, &self.key)
                            .drop_slices(old, |books| &books.overwritten);
                    }
                    if let Outcome::Stored { .. } = outcome {
                        self.end(End::Finished);
                    }
                    return outcome;
                }
                Tried::Changed => {}
                Tried::Refused(reason) => return Outcome::Rejected(reason),
            }
        }
        Outcome::Busy
    }

    async fn publish_if(&self, place: Place, meta: Meta) -> Tried {
        let change = Change {
            cache: &self.cache,
            cx: &self.cx,
            key: &self.key,
            place,
        };
        if let Some(slices) = &self.slices {
            return change.publish_head(slices, (&*self.head, meta)).await;
        }
        let held = std::mem::take(&mut self.window.lock().buffer);
        let parts = self.whole(&held, meta);
        let tried = change.publish_when_room(parts, Replaces::All).await;
        self.window.lock().buffer = held;
        tried
    }

    /// The one record of an object that is not large.
    fn whole<'a>(&'a self, value: &'a [u8], meta: Meta) -> RecordParts<'a> {
        let parts = whole_parts(&self.key, Payload::Bytes(value), meta);
        RecordParts {
            head: &self.head,
            marks: match self.never_on_flash {
                true => parts.marks | Meta::REFUSED,
                false => parts.marks,
            },
            ..parts
        }
    }

    /// The value is to be as long as was told; all of it but one record is written.
    async fn complete(&mut self) -> Result<(), RejectReason> {
        if let Some(reason) = self.failure {
            return Err(reason);
        }
        let appended = self.appended();
        if self.len.is_some_and(|told| told != appended) {
            return Err(self.refuse(RejectReason::Length));
        }
        self.len = Some(appended);
        let is_apart = !self.head.is_empty() && self.head.len() as u64 + appended > ONE_RECORD_BYTES as u64;
        if self.slices.is_none() && is_apart {
            self.slice(appended as usize);
        }
        self.end_following();
        self.write(true).await?;
        // A flush of all, or the others' objects, may have come over the first slices since.
        if let Some(slices) = &self.slices
            && !self.cache.inner.has_first_slices(&self.key, &slices.manifest)
        {
            return Err(self.refuse(RejectReason::NoRoom));
        }
        Ok(())
    }

    /// Nothing more is appended: followers read to the end of what has been, whatever becomes of the object. What has left the window goes
    /// with the writer of one that is not stored.
    pub fn end_following(&mut self) {
        let mut window = self.window.lock();
        window.end = End::Finished;
        window.total = window.start + window.buffer.len() as u64;
        window.wake();
    }

    /// There will be no object: its slices go, and followers hear of it.
    fn fail(&mut self) {
        if let Some(slices) = self.slices.take() {
            self.cache
                .large(&self.cx, &self.key)
                .drop_slices(slices.manifest, |books| &books.rejected);
        }
        self.end(End::Failed);
    }

    fn end(&mut self, end: End) {
        self.is_finished = true;
        let mut window = self.window.lock();
        let is_whole = window.start + window.buffer.len() as u64 == window.total;
        if window.end == End::Open || !is_whole {
            window.end = end;
            if end == End::Failed {
                window.buffer = Vec::new();
            }
        }
        window.wake();
    }

    /// Lets others read what is written, from the start, while it is.
    pub fn follow(&self) -> Follow {
        Follow {
            key: self.key.clone(),
            window: Arc::clone(&self.window),
        }
    }
}

impl<D: Device + Clone> Drop for ObjectWriter<D> {
    fn drop(&mut self) {
        if !self.is_finished {
            self.fail();
        }
    }
}

/// An object that is being written, for whoever wants to read it, on any thread.
#[derive(Clone, Debug)]
pub struct Follow {
    key: Box<[u8]>,
    window: Arc<Mutex<Window>>,
}

impl Follow {
    /// Reads it, from byte `at` on.
    pub fn reader<D: Device + Clone>(&self, cache: &ObjectCache<D>, cx: &Cx<D>, at: u64) -> Follower<D> {
        Follower {
            cache: cache.clone(),
            cx: cx.clone(),
            follow: self.clone(),
            at,
        }
    }
}

/// Reads an object that is being written.
pub struct Follower<D: Device + Clone> {
    cache: ObjectCache<D>,
    cx: Cx<D>,
    follow: Follow,
    at: u64,
}

impl<D: Device + Clone> Follower<D> {
    /// Memory that the next [`Follower::read`] takes, in bytes, once there is something to read.
    pub fn next_bytes(&self) -> usize {
        let window = self.follow.window.lock();
        match window.set.filter(|_| self.at < window.start) {
            Some((_, slice_bytes)) => slice_bytes as usize,
            None => window
                .held(self.at)
                .map_or(COPIED_BYTES, |held| held.len().min(COPIED_BYTES)),
        }
    }

    /// Bytes that are still to be read, once all have come.
    pub fn left(&self) -> Option<u64> {
        let window = self.follow.window.lock();
        (window.end == End::Finished).then(|| window.total.saturating_sub(self.at))
    }

    /// Waits until there is something to read, or will never be.
    pub async fn ready(&self) {
        let _ = self.next(|_| ()).await;
    }

    /// What comes next, once it has come, with what `held` makes of the bytes that the writer holds.
    async fn next<T>(&self, held: impl Fn(&[u8]) -> T) -> Result<Next<T>, Broken> {
        poll_fn(|context| {
            let mut window = self.follow.window.lock();
            if let Some(next) = window.next(self.at, &held) {
                return Poll::Ready(next);
            }
            let waker = context.waker();
            if !window.waiting.iter().any(|waiting| waiting.will_wake(waker)) {
                window.waiting.push(waker.clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Reads what comes next, at most a slice: waits for it where it has not been appended yet. `None` at the end of a finished object.
    ///
    /// # Errors
    /// [`Broken`]: the writer has failed, or what has left it is not there any more.
    pub async fn read(&mut self) -> Result<Option<Pieces<D::Buf>>, Broken> {
        let copied = |held: &[u8]| {
            let held = &held[..held.len().min(COPIED_BYTES)];
            Record::of(&whole_parts(
                &self.follow.key,
                Payload::Bytes(held),
                Meta::default(),
            ))
        };
        let (record, skip) = match self.next(copied).await? {
            Next::End => return Ok(None),
            Next::Held(record) => (record, 0),
            Next::Slice((set, slice_bytes)) => {
                let slice_bytes = u64::from(slice_bytes);
                let number = u32::try_from(self.at / slice_bytes).map_err(|_| Broken)?;
                let read = self.cache.slice(&self.cx, &self.follow.key, set, number).await;
                // Who reads what has left the window is slow, and must not hold memory of the DRAM tier meanwhile.
                let mut slice = read.ok_or(Broken)?;
                slice.detach();
                (slice.head, self.at % slice_bytes)
            }
        };
        let len = u64::from(record.header().value_len)
            .checked_sub(skip)
            .ok_or(Broken)?;
        self.at += len;
        Ok(Some(Pieces {
            records: vec![record],
            skip: skip as usize,
            len: len as usize,
        }))
    }
}

/// What a follower reads next.
enum Next<T> {
    Held(T),
    Slice((u64, u32)),
    End,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{CASCADE, Rig, run};
    use crate::{CacheOptions, FlashWrite, HashLimit, IndexOptions};
    use pumice_device::MemMedium;

    fn replace(rig: &Rig, head: &[u8]) {
        let seen = run(&rig.executor, rig.cache.get_head(&rig.cx, b"key")).expect("it is there");
        let meta = seen.meta();
        let replaced = run(&rig.executor, rig.cache.replace_head(&rig.cx, seen, head, meta));
        assert!(matches!(replaced, Outcome::Stored { .. }), "{replaced:?}");
    }

    fn checkpoint(rig: &Rig) {
        let inner = &*rig.cache.inner;
        let written = inner
            .store()
            .checkpoint(&rig.cx.device, inner, rig.cx.now(), false);
        run(&rig.executor, written).expect("the device works");
    }

    #[test]
    fn the_older_head_is_void_as_soon_as_the_newer_is_written() {
        let rig = Rig::new(CacheOptions::default());
        rig.set(b"key", b"value", 0);
        rig.write_open_blocks();
        let records = || rig.cache.stats().blocks.log_records;
        let before = records();
        replace(&rig, b"new");
        assert_eq!(records(), before);
        rig.write_open_blocks();
        assert_eq!(records(), before + 1);
        rig.set(b"other", b"value", 0);
        rig.write_open_blocks();
        assert_eq!(records(), before + 1, "once");
    }

    #[test]
    fn what_flash_has_of_a_stranger_is_void_as_soon_as_a_head_is_replaced() {
        let options = CacheOptions {
            dram_bytes: 4 << 20,
            flash_write: FlashWrite::Eviction,
            hash_limit: HashLimit(8),
            ..CacheOptions::default()
        };
        let medium = Arc::new(MemMedium::new(16 << 20));
        let rig = Rig::open(&medium, options);
        // The index knows eight bits.
        let tag = |key: &[u8]| rig.hash(key) >> 56;
        let keys = (0u32..).map(|n| n.to_le_bytes());
        let stranger = keys.into_iter().find(|other| tag(other) == tag(b"key")).unwrap();
        rig.set(b"key", b"value", 0);
        assert!(rig.evict(&stranger, rig.cache.inner.store().next_version()));
        rig.write_open_blocks();
        let flash = rig.locate(&stranger).and_then(|located| located.flash);
        assert!(flash.is_some_and(|copy| copy.written));
        replace(&rig, b"new");
        assert!(!run(&rig.executor, rig.cache.delete(&rig.cx, &stranger)));
        drop(rig);
        let rig = Rig::open(&medium, options);
        assert_eq!(rig.get(&stranger), None);
    }

    /// What happens between the replacing of a head and a crash, and what is there afterwards.
    #[test]
    fn the_older_head_is_kept_until_the_newer_is_written_and_never_comes_back_after() {
        type Step = fn(&Rig);
        let nothing: Step = |_| {};
        let written: Step = |rig| rig.write_open_blocks();
        let prefix: Step = |rig| {
            rig.clock.advance_secs(10);
            rig.cache.tick(&rig.cx);
            rig.settle();
        };
        let again: Step = |rig| replace(rig, b"newest");
        let deleted: Step = |rig| assert!(run(&rig.executor, rig.cache.delete(&rig.cx, b"key")));
        let set: Step = |rig| {
            rig.set(b"key", b"newer, in a buffer", 0);
        };
        let flushed: Step = |rig| rig.cache.flush_all(&rig.cx, None);
        let (old, new, newest) = (Some(&b"old"[..]), Some(&b"new"[..]), Some(&b"newest"[..]));
        let cases: &[(&[Step], Option<&[u8]>)] = &[
            (&[nothing], old),
            (&[checkpoint], old),
            (&[again], None),
            (&[again, checkpoint], None),
            (&[prefix], new),
            (&[prefix, again], new),
            (&[prefix, again, prefix], newest),
            (&[again, prefix], newest),
            (&[prefix, again, deleted], None),
            (&[written], new),
            (&[written, checkpoint], new),
            (&[checkpoint, written], new),
            (&[written, again], new),
            (&[written, again, checkpoint], new),
            (&[again, written], newest),
            (&[checkpoint, again, checkpoint, written, checkpoint], newest),
            (&[deleted], None),
            (&[checkpoint, deleted], None),
            (&[again, deleted, checkpoint], None),
            (&[written, deleted], None),
            (&[set], None),
            (&[again, set], None),
            (&[flushed], None),
            (&[flushed, checkpoint], None),
        ];
        for len in [500, 60_000] {
            for (dram_bytes, index, flash_write) in [
                (0, IndexOptions::Full, FlashWrite::Insertion),
                (4 << 20, IndexOptions::Full, FlashWrite::Insertion),
                (4 << 20, IndexOptions::Full, FlashWrite::Eviction),
                (4 << 20, CASCADE, FlashWrite::Insertion),
            ] {
                for (number, (steps, expected)) in cases.iter().enumerate() {
                    let is_full = index.kind().is_authoritative();
                    let has_checkpoint = steps
                        .iter()
                        .any(|step| std::ptr::fn_addr_eq(*step, checkpoint as Step));
                    if !is_full && has_checkpoint {
                        continue;
                    }
                    let options = CacheOptions {
                        dram_bytes,
                        index,
                        flash_write,
                        flush_interval_secs: 3,
                        ..CacheOptions::default()
                    };
                    let medium = Arc::new(MemMedium::new(16 << 20));
                    let rig = Rig::open(&medium, options);
                    let value: Vec<u8> = (0..len).map(|at| (at / 100) as u8).collect();
                    let new = NewObject {
                        head: b"old",
                        ..NewObject::default()
                    };
                    let mut writer = rig.cache.begin(&rig.cx, b"key", new).expect("it is short");
                    run(&rig.executor, writer.append(&value)).expect("there is room");
                    run(&rig.executor, writer.finish()).expect("there is room");
                    if flash_write == FlashWrite::Eviction {
                        // As a stop does.
                        run(&rig.executor, rig.cache.flush_dram(&rig.cx));
                    }
                    rig.write_open_blocks();
                    replace(&rig, b"new");
                    steps.iter().for_each(|step| step(&rig));
                    rig.settle();
                    rig.cache.check_books().expect("they are right");
                    drop(rig);
                    let rig = Rig::open(&medium, options);
                    let found = run(&rig.executor, rig.cache.get(&rig.cx, b"key"));
                    let what =
                        format!("case {number}, {len} bytes, {dram_bytes}, {index:?}, {flash_write:?}");
                    assert_eq!(found.as_ref().map(|found| found.head()), *expected, "{what}");
                    assert!(found.is_none_or(|found| found.to_vec() == value), "{what}");
                }
            }
        }
    }
}
