//! Values that come in pieces: an object's head first, then its slices as they are asked for.

use crate::cache::{Cx, ObjectCache};
use crate::large::Manifest;
use crate::object::{Object, Pieces, Tier};
use crate::part::PartId;
use crate::read::{Access, Lookup, Place};
use crate::update::Change;
use futures_util::StreamExt as _;
use futures_util::stream;
use pumice_device::Device;
use pumice_memory::Buffer;
use pumice_record::Record;
use std::ops::Range;
use std::pin::pin;

/// Slices of one object that are read at once: enough to keep a device busy, and not so many that others wait long behind them.
const READS_MAX: usize = 8;
/// And their bytes, unless one slice has more.
const READ_BYTES_MAX: usize = 2 << 20;

/// A part of a value is not there any more: its object has been evicted, or replaced. What was given out is right, and not all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the object was evicted while it was read")]
pub struct Broken;

/// Reads the value of an object, or a range of it, piece by piece.
pub struct ObjectReader<D: Device + Clone> {
    cache: ObjectCache<D>,
    cx: Cx<D>,
    key: Box<[u8]>,
    source: Source<D::Buf>,
    /// What is still to be read of the value.
    left: Range<u64>,
    tier: Tier,
}

/// Where a value is.
enum Source<B> {
    Record(Record<B>),
    Slices(Manifest, Place),
}

impl<D: Device + Clone> ObjectCache<D> {
    /// A reader of an object's value. Of a large one there need be all but the value ([`Object::is_large`]).
    pub fn reader(&self, cx: &Cx<D>, key: &[u8], object: &Object<D::Buf>) -> ObjectReader<D> {
        let source = match Manifest::decode(&object.head) {
            Some(manifest) => Source::Slices(manifest, object.place),
            None => Source::Record(object.head.clone()),
        };
        ObjectReader {
            cache: self.clone(),
            cx: cx.clone(),
            key: key.into(),
            source,
            left: 0..object.value_len as u64,
            tier: object.tier,
        }
    }

    /// The most memory that a reader and a writer of a value take together, in bytes.
    pub fn transfer_bytes(&self, key: &[u8]) -> usize {
        let (whole, slice) = (self.inner.whole_bytes(key), self.inner.slice_bytes(key));
        let read = (slice * READS_MAX).min(READ_BYTES_MAX).max(whole);
        read + slice
    }

    /// Reads the slices of a large object. `None` where one has been evicted: the object is then no more.
    pub async fn gather(&self, cx: &Cx<D>, key: &[u8], object: Object<D::Buf>) -> Option<Object<D::Buf>> {
        let manifest = Manifest::decode(&object.head)?;
        self.reader(cx, key, &object)
            .gather(object, 0..manifest.slices())
            .await
    }

    /// Reads the first slices of a large object, as many as a reader would at once. `None` as for [`ObjectCache::gather`].
    pub async fn gather_first(
        &self,
        cx: &Cx<D>,
        key: &[u8],
        object: Object<D::Buf>,
    ) -> Option<Object<D::Buf>> {
        let manifest = Manifest::decode(&object.head)?;
        let reader = self.reader(cx, key, &object);
        let first = reader.next(&manifest);
        reader.gather(object, first).await
    }
}

impl<D: Device + Clone> ObjectReader<D> {
    /// Reads this range of the value alone, as far as the value goes, from its start.
    pub fn range(&mut self, range: Range<u64>) {
        let len = match &self.source {
            Source::Record(record) => record.header().value_len.into(),
            Source::Slices(manifest, _) => manifest.value_len,
        };
        let start = range.start.min(len);
        self.left = start..range.end.clamp(start, len);
    }

    /// Bytes that are still to be read.
    pub fn left(&self) -> u64 {
        self.left.end - self.left.start
    }

    /// Which tier has answered so far: flash, if any of it came from there.
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// Memory that the next [`ObjectReader::read`] takes, in bytes: at most 2 MiB and what rounding costs.
    pub fn next_bytes(&self) -> usize {
        match &self.source {
            Source::Record(record) => record.header().value_len as usize,
            Source::Slices(manifest, _) => {
                let numbers = self.next(manifest);
                numbers.map(|number| manifest.len_of(number)).sum()
            }
        }
    }

    /// Whether all slices seem to be there, as far as that can be said without reading, and of the first 1,024. Where one is missing, the
    /// object is no more.
    pub fn is_whole(&self) -> bool {
        let Source::Slices(manifest, _) = &self.source else {
            return true;
        };
        let is_whole = self.cache.inner.has_first_slices(&self.key, manifest);
        if !is_whole {
            self.lose();
        }
        is_whole
    }

    /// The object with these slices of it; `None` where one has been evicted.
    async fn gather(mut self, mut object: Object<D::Buf>, numbers: Range<u32>) -> Option<Object<D::Buf>> {
        let manifest = Manifest::decode(&object.head).filter(|_| self.is_whole())?;
        object.parts = self.slices(manifest, numbers).await.ok()?;
        object.tier = self.tier;
        Some(object)
    }

    /// The slices that are read next.
    fn next(&self, manifest: &Manifest) -> Range<u32> {
        let slice_bytes = u64::from(manifest.slice_bytes);
        let first = self.left.start / slice_bytes;
        let end = self.left.end.div_ceil(slice_bytes);
        let at_once = (READ_BYTES_MAX as u64 / slice_bytes).clamp(1, READS_MAX as u64);
        let number = |n: u64| u32::try_from(n).expect("a manifest has no more");
        number(first)..number(end.min(first + at_once))
    }

    /// Reads what comes next, a few slices at once; `None` at the end.
    ///
    /// # Errors
    /// [`Broken`].
    pub async fn read(&mut self) -> Result<Option<Pieces<D::Buf>>, Broken> {
        if self.left.is_empty() {
            return Ok(None);
        }
        let (records, skip, len) = match &self.source {
            Source::Record(record) => (vec![record.clone()], self.left.start, self.left()),
            Source::Slices(manifest, _) => {
                let (manifest, numbers) = (*manifest, self.next(manifest));
                let slice_bytes = u64::from(manifest.slice_bytes);
                let skip = self.left.start % slice_bytes;
                let there = u64::from(numbers.end) * slice_bytes - self.left.start;
                let len = there.min(self.left());
                (self.slices(manifest, numbers).await?, skip, len)
            }
        };
        self.left.start += len;
        Ok(Some(Pieces {
            records,
            skip: skip as usize,
            len: len as usize,
        }))
    }

    /// Reads some slices, several at once.
    async fn slices(
        &mut self,
        manifest: Manifest,
        numbers: Range<u32>,
    ) -> Result<Vec<Record<D::Buf>>, Broken> {
        let (cache, cx, key) = (&self.cache, &self.cx, &self.key);
        let is_lockstep = cache.inner.lockstep;
        let mut tier = self.tier;
        let mut records = Vec::with_capacity(numbers.len());
        let mut numbers = numbers.peekable();
        // What is at hand needs no futures.
        while let Some(number) = numbers.peek().filter(|_| !is_lockstep) {
            let part = PartId::slice(key, *number, manifest.version);
            match cache.lookup(cx, part, Access::Count) {
                Lookup::Known(Some(slice)) if slice.value_len == manifest.len_of(*number) => {
                    records.push(unpinned(slice).head);
                    numbers.next();
                }
                _ => break,
            }
        }
        if numbers.peek().is_some() {
            let reads = numbers.map(|number| async move {
                // In lockstep what a read brings with it is over before the next, and must not depend on which is done first.
                if is_lockstep {
                    cache.quiesce(cx).await;
                }
                let read = cache.slice(cx, key, manifest.version, number).await?;
                (read.value_len == manifest.len_of(number)).then_some(read)
            });
            let at_once = if is_lockstep { 1 } else { READS_MAX };
            let mut reads = pin!(stream::iter(reads).buffered(at_once));
            while let Some(read) = reads.next().await {
                let Some(slice) = read else {
                    records.clear();
                    break;
                };
                if slice.tier == Tier::Flash {
                    tier = Tier::Flash;
                }
                records.push(slice.head);
            }
        }
        self.tier = tier;
        if records.is_empty() {
            self.lose();
            return Err(Broken);
        }
        Ok(records)
    }

    /// Removes an object that has lost a slice.
    fn lose(&self) {
        if let Source::Slices(manifest, place) = self.source {
            let (cache, cx) = (&self.cache, &self.cx);
            let change = Change {
                cache,
                cx,
                key: &self.key,
                place,
            };
            // Else another has, or the head has gone to the other tier: the next reader sees it there.
            if change.remove(|books| &books.evicted) {
                change.large().drop_slices(manifest, |books| &books.evicted);
            }
        }
    }
}

impl<D: Device + Clone> ObjectCache<D> {
    /// Reads one slice of a set.
    pub(crate) async fn slice(
        &self,
        cx: &Cx<D>,
        key: &[u8],
        set: u64,
        number: u32,
    ) -> Option<Object<D::Buf>> {
        let part = PartId::slice(key, number, set);
        let found = self.lookup(cx, part, Access::Count);
        let found = self.fetch_unless_known(cx, part, found).await;
        let Lookup::Known(Some(slice)) = found else {
            return None;
        };
        Some(unpinned(slice))
    }
}

/// A slice may wait for those before it, and must not hold a block buffer meanwhile.
fn unpinned<B: Buffer>(mut slice: Object<B>) -> Object<B> {
    if slice.pins_block() {
        slice.detach();
    }
    slice
}
