//! The cleaner: it writes dirty chunks to the backing device.

use crate::locks::{Held, RangeLocks};
use crate::{Backing, Mode, SPAN_BYTES, Shared, Volume, VolumeError, chunks_of, fills_at_once};
use futures_util::stream::{StreamExt, iter};
use locks::Mutex;
use pumice_blocks::{Work, add};
use pumice_chunk::store::{ChunkStore, Chunks, Copied, Unreadable};
use pumice_device::Device;
use pumice_memory::Buffer;
use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Most bytes of one write of the cleaner.
const GROUP_BYTES: u64 = SPAN_BYTES;
/// Writes of the cleaner under way at once.
const GROUPS_AT_ONCE: usize = 4;
/// Most bytes that the cleaner writes between two flushes of the backing device.
const ROUND_BYTES: u64 = 64 << 20;
/// Seconds without a request after which the cleaner does not wait for chunks to age.
const IDLE_SECS: u32 = 5;

/// When dirty chunks are cleaned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WriteBack {
    /// Seconds from the begin of one pass of the cleaner to the next. A chunk is dirty for at most twice this, and the time of a pass.
    pub age_secs: u32,
    /// Most dirty chunks, as a share of those that the cache holds uncompressed. The cleaner does not wait if there are half as many.
    pub dirty_max: f64,
    /// Most bytes that the cleaner writes in a second, while fewer chunks are dirty than half of the limit; 0 = no limit.
    pub bytes_per_sec: u64,
}

impl Default for WriteBack {
    fn default() -> Self {
        Self {
            age_secs: 30,
            dirty_max: 0.9,
            bytes_per_sec: 0,
        }
    }
}

#[derive(Default)]
struct Pass {
    /// The next address of the pass under way.
    next: Option<u64>,
    /// When the pass under way, the last one, or the volume began, in Unix seconds.
    began: u32,
    /// When the last complete pass began, nothing was dirty, or the volume was opened: what is dirty became so later, or before the start.
    complete: u32,
    /// Requests until the last second that had one, and that second.
    requests: u64,
    busy: u32,
}

/// What all threads share of the cleaner.
pub(crate) struct Cleaning {
    settings: WriteBack,
    pass: Mutex<Pass>,
    /// Held by the round under way: 0 for one of a pass, 1 for one of chunks that are taken first.
    running: RangeLocks,
    /// Chunks that the cleaner writes to the backing device, or that a change goes through to. Acquire it after the lock of the chunks. A write that
    /// makes chunks dirty does not wait for it.
    pub(crate) copying: RangeLocks,
    /// The round under way is to end, and no other begins.
    is_closed: AtomicBool,
    /// Chunks of which a write to the backing device was abandoned: it may still happen, over any later one. They are not cleaned before the next
    /// start.
    abandoned: Mutex<HashSet<u64>>,
    /// Why the last round has failed.
    failure: Mutex<Option<String>>,
    /// Chunks that may still be cleaned in this second.
    allowance: AtomicU64,
}

impl Cleaning {
    /// A cleaner that begins its first pass an age after the Unix time `now` in seconds.
    pub(crate) fn new(settings: WriteBack, now: u32) -> Self {
        Self {
            settings,
            pass: Mutex::new(Pass {
                began: now,
                complete: now,
                ..Pass::default()
            }),
            running: RangeLocks::default(),
            copying: RangeLocks::default(),
            is_closed: AtomicBool::new(false),
            abandoned: Mutex::default(),
            failure: Mutex::default(),
            allowance: AtomicU64::new(u64::MAX),
        }
    }

    /// Begins a round of chunks that are taken before those of a pass; `None` if one is under way, or the cleaner was ended.
    pub(crate) fn begin_wanted(&self) -> Option<Held<&RangeLocks>> {
        self.running.try_lock(1..2).filter(|_| !self.is_closed())
    }

    /// Chunks that are not cleaned before the next start.
    pub(crate) fn abandoned(&self) -> locks::MutexGuard<'_, HashSet<u64>> {
        self.abandoned.lock()
    }

    /// Whether no round is to begin.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Takes so many chunks from what may be cleaned in this second, or what is left.
    pub(crate) fn allowed(&self, chunks: usize) -> usize {
        let take = |left: u64| Some(left.saturating_sub(chunks as u64));
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let left = self.allowance.fetch_update(set, fetch, take).unwrap_or(0);
        usize::try_from(left).unwrap_or(usize::MAX).min(chunks)
    }

    /// Gives back what was taken and is not cleaned.
    fn give_back(&self, chunks: usize) {
        let give = |left: u64| Some(left.saturating_add(chunks as u64));
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let _ = self.allowance.fetch_update(set, fetch, give);
    }
}

/// Splits addresses, which are in order, into runs of neighbours of at most `most`.
fn groups(addresses: &[u64], most: u64) -> Vec<Range<u64>> {
    let mut groups: Vec<Range<u64>> = Vec::new();
    for address in addresses {
        match groups.last_mut() {
            Some(last) if last.end == *address && last.end - last.start < most => last.end += 1,
            _ => groups.push(*address..address + 1),
        }
    }
    groups
}

/// Neighbouring contents of dirty chunks.
struct Run {
    /// Of the first byte, in the volume.
    offset: u64,
    bytes: Vec<u8>,
    copied: Vec<Copied>,
}

/// A write of the cleaner that the backing device may be carrying out.
struct Copying<'a, B: Buffer> {
    shared: &'a Shared<B>,
    chunks: Range<u64>,
}

impl<B: Buffer> Drop for Copying<'_, B> {
    fn drop(&mut self) {
        self.shared.abandon(self.chunks.clone());
    }
}

impl<B: Buffer> Shared<B> {
    /// Notes that a change of the backing device may still happen.
    pub(crate) fn abandon(&self, chunks: Range<u64>) {
        self.abandoned.fetch_add(1, Ordering::AcqRel);
        if self.store.as_ref().is_some_and(ChunkStore::keeps) {
            self.cleaning.abandoned.lock().extend(chunks);
        }
    }

    /// Number of dirty chunks, and an upper bound of the age of the oldest in seconds, at a Unix time in seconds.
    pub fn dirty(&self, now: u32) -> (u64, u32) {
        let dirty = self.store.as_ref().map_or(0, ChunkStore::dirty);
        let complete = self.cleaning.pass.lock().complete;
        let age = if dirty == 0 {
            0
        } else {
            now.saturating_sub(complete)
        };
        (dirty, age)
    }

    /// Chunks that may become dirty before writes go through.
    fn dirty_max(&self) -> u64 {
        let most = self.store.as_ref().map_or(0, |store| {
            let chunks = store.bytes() / u64::from(store.shape().chunk_bytes);
            chunks.min(store.shape().mappings)
        });
        ((most as f64 * self.cleaning.settings.dirty_max) as u64).max(1)
    }

    /// Whether a write may make chunks dirty.
    pub(crate) fn may_dirty(&self) -> bool {
        let may_dirty = |store: &ChunkStore<B>| store.failure().is_none() && store.dirty() < self.dirty_max();
        self.mode == Mode::WriteBack && self.store.as_ref().is_some_and(may_dirty)
    }

    /// Why the last round of the cleaner has failed, if chunks are dirty since.
    pub fn cleaner_failure(&self) -> Option<String> {
        let failure = self.cleaning.failure.lock().clone();
        failure.filter(|_| self.store.as_ref().is_some_and(|store| store.dirty() > 0))
    }
}

impl<D: Device, K: Backing> Volume<D, K> {
    /// Number of dirty chunks, and an upper bound of the age of the oldest in seconds.
    pub fn dirty(&self) -> (u64, u32) {
        self.shared().dirty(self.now_secs())
    }

    /// Cleans all dirty chunks.
    ///
    /// # Errors
    /// [`VolumeError`]: some stay dirty.
    pub async fn drain(&self) -> Result<(), VolumeError> {
        match self.cleaner() {
            Some(cleaner) => cleaner.drain().await,
            None => Ok(()),
        }
    }

    /// Lets the cleaner end its round early, and begin no other.
    pub fn stop_cleaner(&self) {
        self.shared().cleaning.is_closed.store(true, Ordering::Release);
    }

    /// The cleaner, if there is a cache.
    pub(crate) fn cleaner(&self) -> Option<Cleaner<'_, D, K>> {
        let (store, device) = self.cache()?;
        Some(Cleaner {
            volume: self,
            shared: self.shared(),
            store,
            device,
        })
    }
}

/// One thread's handle on the cleaner of a volume.
pub(crate) struct Cleaner<'a, D: Device, K> {
    pub(crate) volume: &'a Volume<D, K>,
    pub(crate) shared: &'a Shared<D::Buf>,
    store: &'a ChunkStore<D::Buf>,
    device: &'a D,
}

impl<D: Device, K: Backing> Cleaner<'_, D, K> {
    /// Cleans the dirty chunks of a range whose two locks the caller holds.
    pub(crate) async fn clean_range(&self, chunks: Range<u64>) -> Result<(), VolumeError> {
        let (store, device) = (self.store, self.device);
        // A chunk may stay dirty, if another that shares its stamp is written meanwhile.
        loop {
            let dirty = store.dirty_among(chunks.clone());
            if dirty.is_empty() {
                return Ok(());
            }
            let mut copied = Vec::new();
            for group in groups(&dirty, GROUP_BYTES / u64::from(store.shape().chunk_bytes)) {
                let (mut some, failed) = self.copy_out(group).await;
                if let Some(error) = failed {
                    store.addresses().forget_copies(&copied);
                    store.addresses().forget_copies(&some);
                    return Err(error);
                }
                copied.append(&mut some);
            }
            self.volume.flush_backing(true).await?;
            let cleaned = self.volume.working(store.made_clean(device, &copied, true)).await;
            let cleaned = cleaned.map_err(VolumeError::Cache)?;
            add(&self.shared.counters.cleaned_chunks, cleaned);
        }
    }

    /// Writes the dirty chunks of a run to the backing device. The caller holds their lock of copies. Returns those that were written, and the first error.
    async fn copy_out(&self, chunks: Range<u64>) -> (Vec<Copied>, Option<VolumeError>) {
        let (store, device) = (self.store, self.device);
        let chunk_bytes = u64::from(store.shape().chunk_bytes);
        let reads = chunks.clone().map(|chunk| async move {
            if self.shared.cleaning.abandoned.lock().contains(&chunk) {
                let what =
                    "an earlier write of this chunk may still happen; it is written after the next start";
                return (chunk, Err(VolumeError::Backing(io::Error::other(what))));
            }
            (chunk, store.read_dirty(device, chunk).await.map_err(Into::into))
        });
        let read: Vec<_> = iter(reads).buffered(fills_at_once(chunk_bytes)).collect().await;
        let (mut runs, mut failed): (Vec<Run>, _) = (Vec::new(), None);
        for (chunk, read) in read {
            let (part, copied) = match read {
                Ok(Some(read)) => read,
                Ok(None) => continue,
                Err(error) => {
                    failed.get_or_insert(error);
                    continue;
                }
            };
            let start = chunk * chunk_bytes + u64::from(part.start);
            match runs.last_mut() {
                Some(run) if run.offset + run.bytes.len() as u64 == start => {
                    run.bytes.extend_from_slice(&part.bytes);
                    run.copied.push(copied);
                }
                _ => runs.push(Run {
                    offset: start,
                    bytes: part.bytes,
                    copied: vec![copied],
                }),
            }
        }
        if runs.is_empty() {
            return (Vec::new(), failed);
        }
        // A crash must not leave an older copy beside what the backing device has from here on.
        if let Err(error) = self.volume.working(store.persist_of(device, &chunks)).await {
            runs.iter()
                .for_each(|run| store.addresses().forget_copies(&run.copied));
            return (Vec::new(), Some(VolumeError::Cache(error)));
        }
        let mut all = Vec::new();
        for Run {
            offset,
            bytes,
            mut copied,
        } in runs
        {
            match self.copy_run(chunk_bytes, offset, bytes).await {
                Ok(()) => all.append(&mut copied),
                Err(error) => {
                    store.addresses().forget_copies(&copied);
                    failed.get_or_insert(error);
                }
            }
        }
        (all, failed)
    }

    async fn copy_run(&self, chunk_bytes: u64, offset: u64, bytes: Vec<u8>) -> Result<(), VolumeError> {
        let len = bytes.len() as u64;
        let counters = &self.shared.counters;
        let copying = Copying {
            shared: self.shared,
            chunks: chunks_of(chunk_bytes, offset, len),
        };
        let written = self.volume.backing().write_at(offset, bytes.into()).await;
        let may_happen = written.as_ref().err();
        if !may_happen.is_some_and(|error| self.volume.backing().may_change_later(error)) {
            std::mem::forget(copying);
        }
        written.map_err(VolumeError::Backing)?;
        add(&counters.backing_written_bytes, len);
        add(&counters.cleaned_bytes, len);
        Ok(())
    }

    /// Cleans chunks, given in order of address. A chunk that a client writes meanwhile stays dirty. With `may_wait` it waits for locked chunks,
    /// otherwise it skips them. Returns the number of cleaned chunks, and the first error.
    pub(crate) async fn clean(&self, addresses: &[u64], may_wait: bool) -> (u64, Option<VolumeError>) {
        let (store, device) = (self.store, self.device);
        let chunk_bytes = u64::from(store.shape().chunk_bytes);
        let locks = &self.shared.cleaning.copying;
        let (mut all, mut failed) = (0, None);
        for addresses in addresses.chunks(self.addresses_at_once()) {
            if may_wait {
                if !self.volume.working(store.wait_for_log(1)).await {
                    let what = "its log is full, and no checkpoint can be written";
                    return (all, failed.or(Some(VolumeError::Cache(io::Error::other(what)))));
                }
            } else if store.is_log_short() {
                break;
            }
            let groups = groups(addresses, GROUP_BYTES / chunk_bytes);
            let copies = groups.into_iter().map(|group| async {
                let held = match may_wait {
                    true => Some(locks.lock(group.clone()).await),
                    false => locks.try_lock(group.clone()),
                };
                match held {
                    Some(_) => self.copy_out(group).await,
                    None => (Vec::new(), None),
                }
            });
            // To their end, also after one has failed: a write that is dropped may happen after the lock is released.
            let copies: Vec<_> = iter(copies).buffered(GROUPS_AT_ONCE).collect().await;
            let mut copied = Vec::new();
            for (mut some, error) in copies {
                copied.append(&mut some);
                failed = failed.or(error);
            }
            let cleaned = match self.volume.flush_backing(true).await {
                Ok(()) => {
                    let made = self
                        .volume
                        .working(store.made_clean(device, &copied, may_wait))
                        .await;
                    made.map_err(VolumeError::Cache)
                }
                Err(error) => Err(error),
            };
            match cleaned {
                Ok(cleaned) => {
                    add(&self.shared.counters.cleaned_chunks, cleaned);
                    all += cleaned;
                }
                Err(error) => {
                    store.addresses().forget_copies(&copied);
                    return (all, failed.or(Some(error)));
                }
            }
        }
        (all, failed)
    }

    /// Cleans chunks that must be clean before a piece of work of the cache, a round of them. It waits for nobody who may wait for that work:
    /// for no lock of a range, and not for the log.
    pub(crate) async fn clean_for(&self, work: &Work<Chunks<D::Buf>>) {
        let store = self.store;
        if store.dirty() == 0 {
            return;
        }
        let dirty = store.dirty_in_work(work, self.addresses_at_once()).await;
        if dirty.is_empty() {
            return;
        }
        let (cleaned, failed) = match self.shared.mode {
            Mode::ReadOnly => (0, None),
            _ => self.clean(&dirty, false).await,
        };
        if let Some(error) = failed {
            self.note_failure(&error);
        }
        // The checkpoint that a short log needs comes before the next try.
        if cleaned == 0 && !store.is_log_short() {
            store.pause_reclaims();
        }
    }

    pub(crate) fn note_failure(&self, error: &VolumeError) {
        add(&self.shared.counters.clean_failures, 1);
        tracing::warn!("the cleaner: {error}");
        *self.shared.cleaning.failure.lock() = Some(error.to_string());
    }

    async fn drain(&self) -> Result<(), VolumeError> {
        let store = self.store;
        let (mut from, mut cleaned) = (0, 0);
        while store.dirty() > 0 && self.shared.mode != Mode::ReadOnly {
            let dirty = store.addresses().dirty_from(from, self.addresses_at_once()).await;
            if let Some(last) = dirty.last() {
                let (some, failed) = self.clean(&dirty, true).await;
                if let Some(error) = failed {
                    return Err(error);
                }
                (from, cleaned) = (last + 1, cleaned + some);
            } else if cleaned > 0 {
                // Once more, for what was written meanwhile.
                (from, cleaned) = (0, 0);
            } else {
                return Err(Unreadable.into());
            }
        }
        Ok(())
    }

    /// Waits for the round under way.
    pub(crate) async fn ended(&self) {
        self.shared.cleaning.running.lock(0..2).await;
    }

    fn addresses_at_once(&self) -> usize {
        (ROUND_BYTES / u64::from(self.store.shape().chunk_bytes)) as usize
    }

    /// Begins a round of the cleaner if one is due.
    pub(crate) fn tick(&self) {
        let store = self.store;
        let (shared, cleaner) = (self.shared, &self.shared.cleaning);
        let (now, dirty) = (self.volume.now_secs(), store.dirty());
        let counts = shared.counts();
        let requests = counts.read_chunks + counts.write_chunks + counts.zeroed_chunks;
        let is_urgent = dirty > shared.dirty_max() / 2;
        let allowance = match cleaner.settings.bytes_per_sec {
            bytes if bytes > 0 && !is_urgent => (bytes / u64::from(store.shape().chunk_bytes)).max(1),
            _ => u64::MAX,
        };
        cleaner.allowance.store(allowance, Ordering::Relaxed);
        let is_due = {
            let mut pass = cleaner.pass.lock();
            if requests != pass.requests {
                (pass.requests, pass.busy) = (requests, now);
            }
            if dirty == 0 {
                (pass.next, pass.complete) = (None, now);
            }
            let is_old = now.saturating_sub(pass.began) >= cleaner.settings.age_secs;
            let idle_secs = now.saturating_sub(pass.busy.max(pass.began));
            let is_idle = idle_secs >= IDLE_SECS;
            let is_due = pass.next.is_some() || is_old || is_idle || is_urgent;
            if is_due && pass.next.is_none() && dirty > 0 {
                (pass.next, pass.began) = (Some(0), now);
            }
            is_due && dirty > 0
        };
        if !is_due || shared.mode == Mode::ReadOnly {
            return;
        }
        let this = self.volume.clone();
        self.volume.spawn(async move {
            if let Some(cleaner) = this.cleaner()
                && let Some(_running) = cleaner.shared.cleaning.running.try_lock(0..1)
            {
                cleaner.round().await;
            }
        });
    }

    /// Cleans what of the pass under way may be cleaned in this second.
    async fn round(&self) {
        let cleaner = &self.shared.cleaning;
        while !cleaner.is_closed() {
            let Some(from) = cleaner.pass.lock().next else {
                return;
            };
            let most = cleaner.allowed(self.addresses_at_once());
            if most == 0 {
                return;
            }
            let dirty = self.store.addresses().dirty_from(from, most).await;
            cleaner.give_back(most - dirty.len());
            let (cleaned, failed) = self.clean(&dirty, true).await;
            if failed.is_none() && cleaned > 0 {
                *cleaner.failure.lock() = None;
            }
            let mut pass = cleaner.pass.lock();
            match dirty.last() {
                // What has failed is tried again in the next pass.
                Some(last) => pass.next = Some(last + 1),
                None => {
                    pass.next = None;
                    pass.complete = pass.began;
                }
            }
            drop(pass);
            if let Some(error) = failed {
                // Not before the next second.
                return self.note_failure(&error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_written_together() {
        assert_eq!(groups(&[], 4), []);
        assert_eq!(groups(&[3, 4, 5, 9, 10], 4), [3..6, 9..11]);
        assert_eq!(groups(&[0, 1, 2, 3, 4, 5], 4), [0..4, 4..6]);
    }
}
