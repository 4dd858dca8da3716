//! Load splitting: reads of clean chunks that go to the backing device, while the cache device has enough to do.
//!
//! The scheduler of [`pumice_nhc`] says which share of hits the cache device is to answer, and whether misses enter it. Each span of a read is
//! a request to it. A span is read from the backing device if all of its chunks are cached and clean, and none is being written:
//!
//! ```text
//! read 1  note the stamps of the chunks, if all are clean and none is being written      (begin_instead)
//! read 2  read the backing device
//! read 3  give the bytes out, if no stamp has changed; else read the cache               (is_current)
//! ```
//! No reader sees a value and then an older one. A write changes the stamp of its chunks when it begins, before anybody can see the new
//! bytes, and again when it ends, and counts as a writer between. So if read 3 finds the stamps of read 1 and no writer, no write of these chunks
//! was under way at any time from 1 to 3. At 1 the backing device had what the last write has left: a write-through ends after the backing
//! device has its bytes; a written-back chunk is clean only after the cleaner has copied the newest version out. Neither can the cleaner change
//! it meanwhile, as it writes dirty chunks alone. So the bytes are the newest at each moment from 1 to 3. A read of the cache that begins
//! after 3 finds these, or newer ones: a mapping is of the last write, or gone. And a redirected read that begins after a read of the cache has
//! seen the bytes of a write under way finds the chunk dirty, or the writer, at 1.
//!
//! A backing device that has lost a write which it had answered is not read so ([`Backing::can_stand_in`]).
//!
//! A change that fails and may still happen keeps its writer for ever, and a chunk whose copy by the cleaner may still happen stays dirty: neither
//! is redirected.
//!
//! # What the cleaner does for it
//!
//! A dirty chunk is read from the cache alone. In write-back the chunks that are read most would soon all be dirty, where they are written
//! now and then. So a read of the cache that finds a dirty chunk notes it, and the cleaner takes chunks that were noted before those of its
//! pass: the sooner, the more often they are read. Also where redirecting was found to make no difference: with few clean chunks a trial finds
//! none. The share that is to be redirected does not count, or the scheduler would change what it measures. Where redirecting was found
//! worse, nothing is noted.

use crate::clean::Cleaner;
use crate::{Backing, Mode, Shared, Volume, VolumeCounts, VolumeError, chunks_of};
use locks::Mutex;
use pumice_blocks::add;
use pumice_chunk::store::ChunkStore;
use pumice_device::Device;
use pumice_memory::Buffer;
use pumice_nhc::{Part, Request, Side, Split};
use std::cell::Cell;
use std::collections::HashSet;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A handle asks the scheduler once in so many requests.
const REQUESTS_AT_ONCE: u32 = 32;
/// The cleaner takes noted chunks when there are so many, and in each second.
const WANTED_AT_ONCE: usize = 64;
/// Most chunks that are noted.
const WANTED_MAX: usize = 4 * WANTED_AT_ONCE;

/// What all threads share of the split of a volume.
#[derive(Default)]
pub(crate) struct SplitState {
    /// `None`: reads are not split.
    split: Option<Arc<Split>>,
    /// Dirty chunks that the cleaner is to take first.
    wanted: Mutex<HashSet<u64>>,
    /// The cleaner takes them, or has failed in this second.
    is_busy: AtomicBool,
    movable: Mutex<Movable>,
}

/// How many hits could be redirected.
#[derive(Default)]
struct Movable {
    /// Totals when the last second ended.
    before: VolumeCounts,
    /// The share in the last second that had hits.
    share: Option<f64>,
}

/// One handle's part in a split.
pub(crate) struct Splitting {
    part: Rc<Part>,
    /// Requests since the scheduler was asked.
    requests: Cell<u32>,
    /// Dirty chunks that are read are to be cleaned.
    wants_clean: Cell<bool>,
}

/// From where a span was read.
#[derive(Default)]
pub(crate) struct Served {
    /// Chunks that the cache device has answered.
    pub(crate) hits: u64,
    /// Those of them that were dirty.
    pub(crate) dirty: Vec<u64>,
    /// Whether the backing device was read.
    pub(crate) has_missed: bool,
}

impl Splitting {
    pub(crate) fn new(split: &Arc<Split>) -> Self {
        Self {
            part: Rc::new(Part::new(split)),
            requests: Cell::new(0),
            wants_clean: Cell::new(false),
        }
    }

    /// A request of a client.
    pub(crate) fn begin(&self) -> Request {
        self.part.begin()
    }

    /// A request was answered by a device: lets the scheduler decide now and then.
    fn note_end(&self) {
        let requests = self.requests.get() + 1;
        self.requests.set(requests % REQUESTS_AT_ONCE);
        if requests >= REQUESTS_AT_ONCE {
            let split = self.part.split();
            split.look();
            self.wants_clean.set(split.wants_movable());
        }
    }

    fn end_read(&self, request: Request, side: Side) {
        request.end_read(side);
        self.note_end();
    }

    /// A write was answered.
    pub(crate) fn end_write(&self, request: Request) {
        request.end_write();
        self.note_end();
    }
}

impl<B: Buffer> Shared<B> {
    /// Reads of cached chunks, and whether missing ones are cached, are decided by `split` from now on. Nothing is without a cache.
    pub fn split_reads(&mut self, split: Arc<Split>) {
        self.split.split = Some(split).filter(|_| self.store.is_some());
    }

    /// How reads are split; `None` if they are not.
    pub fn split(&self) -> Option<&Arc<Split>> {
        self.split.split.as_ref()
    }

    /// The share of the cache's hits, those in DRAM apart, that were of clean chunks, so that they could be redirected: in the last second that
    /// had hits; 1 before that.
    pub fn movable_share(&self) -> f64 {
        self.split.movable.lock().share.unwrap_or(1.0)
    }

    fn note_movable(&self) {
        let counts = self.counters.snapshot();
        let mut movable = self.split.movable.lock();
        let hits = |counts: &VolumeCounts| counts.read_hits + counts.read_redirected;
        let all = hits(&counts).saturating_sub(hits(&movable.before));
        let dirty = counts.read_dirty_hits - movable.before.read_dirty_hits;
        if all > 0 {
            movable.share = Some(all.saturating_sub(dirty) as f64 / all as f64);
        }
        movable.before = counts;
    }
}

impl<D: Device, K: Backing> Volume<D, K> {
    /// Whether misses enter the cache.
    pub(crate) fn admits_misses(&self) -> bool {
        let splitting = self.0.splitting.as_ref();
        splitting.is_none_or(|splitting| splitting.part.split().switch().data_admit())
    }

    /// Reads a span from the cache, or from the backing device.
    pub(crate) async fn read_span(
        &self,
        offset: u64,
        out: &mut [u8],
        is_scan: bool,
        must_fill: bool,
    ) -> Result<(), VolumeError> {
        let (Some(splitting), Some((store, _))) = (&self.0.splitting, self.cache()) else {
            let read = self.read_cached(offset, out, is_scan, must_fill);
            return read.await.map(drop);
        };
        let request = splitting.begin();
        let drawn = splitting.part.draw();
        if drawn == Side::Lower && self.redirect(store, offset, out).await {
            splitting.part.hit();
            splitting.end_read(request, Side::Lower);
            return Ok(());
        }
        let served = self.read_cached(offset, out, is_scan, must_fill).await?;
        if !served.dirty.is_empty()
            && splitting.wants_clean.get()
            && let Some(cleaner) = self.cleaner()
        {
            cleaner.want(&served.dirty);
        }
        match served {
            Served { has_missed: true, .. } => {
                // What passes the cache by could never have hit.
                if !is_scan {
                    splitting.part.miss();
                }
                splitting.end_read(request, Side::Lower);
            }
            Served { hits: 1.., .. } => {
                splitting.part.hit();
                splitting.end_read(request, Side::Upper);
            }
            // DRAM has answered: no request to a device.
            _ => drop(request),
        }
        Ok(())
    }

    /// Reads a span from the backing device, if the cache has all of its chunks clean. False: nothing was read that counts.
    async fn redirect(&self, store: &ChunkStore<D::Buf>, offset: u64, out: &mut [u8]) -> bool {
        let chunks = chunks_of(store.shape().chunk_bytes.into(), offset, out.len() as u64);
        let count = chunks.end - chunks.start;
        if !self.0.backing.can_stand_in() {
            return false;
        }
        let Some(tickets) = store.addresses().begin_instead(chunks.clone()) else {
            return false;
        };
        let dram = &self.0.shared.dram;
        if dram.is_on() && chunks.clone().all(|chunk| dram.has(chunk)) {
            return false;
        }
        // Whatever goes wrong, the cache has the bytes.
        let Ok(bytes) = self.read_backing(offset, out.len()).await else {
            return false;
        };
        if !self.0.backing.can_stand_in()
            || !tickets.iter().all(|ticket| store.addresses().is_current(ticket))
        {
            return false;
        }
        out.copy_from_slice(&bytes);
        let counters = &self.0.shared.counters;
        add(&counters.read_chunks, count);
        add(&counters.read_redirected, count);
        chunks.for_each(|chunk| self.0.shared.note_hit(chunk));
        true
    }

    /// Reads wanted bytes of chunks that are not cached, and does not cache them, but in DRAM.
    pub(crate) async fn read_around(
        &self,
        chunk_bytes: u64,
        chunks: Range<u64>,
        wanted: Range<u64>,
        is_scan: bool,
    ) -> Result<Vec<u8>, VolumeError> {
        let (dram, len) = (&self.0.shared.dram, (wanted.end - wanted.start) as usize);
        let Some((store, _)) = self.cache().filter(|_| dram.is_on()) else {
            return self.read_backing(wanted.start, len).await;
        };
        let Ok((tickets, bytes)) = self.read_whole(store, chunk_bytes, chunks.clone()).await else {
            // The bad sector may lie beside the wanted bytes: read these alone.
            return self.read_backing(wanted.start, len).await;
        };
        let first = chunks.start * chunk_bytes;
        for ((address, chunk), ticket) in chunks.zip(bytes.chunks(chunk_bytes as usize)).zip(tickets) {
            self.keep_in_dram(address, chunk, is_scan, &ticket);
        }
        Ok(bytes[(wanted.start - first) as usize..][..len].to_vec())
    }
}

impl<D: Device, K: Backing> Cleaner<'_, D, K> {
    /// Notes dirty chunks that were read.
    fn want(&self, chunks: &[u64]) {
        let state = &self.shared.split;
        if self.shared.mode == Mode::ReadOnly {
            return;
        }
        let is_due = {
            let abandoned = self.shared.cleaning.abandoned();
            let mut wanted = state.wanted.lock();
            for chunk in chunks {
                if wanted.len() < WANTED_MAX && !abandoned.contains(chunk) {
                    wanted.insert(*chunk);
                }
            }
            wanted.len() >= WANTED_AT_ONCE
        };
        if is_due && !state.is_busy.swap(true, Ordering::AcqRel) {
            self.clean_wanted();
        }
    }

    /// A second has passed: the cleaner takes what was noted, however little that is.
    pub(crate) fn tick_wanted(&self) {
        let state = &self.shared.split;
        self.shared.note_movable();
        if !state.wanted.lock().is_empty() {
            state.is_busy.store(true, Ordering::Release);
            self.clean_wanted();
        }
    }

    /// Begins to clean what was noted, and goes on as long as much is.
    fn clean_wanted(&self) {
        let this = self.volume.clone();
        self.volume.spawn(async move {
            let Some(cleaner) = this.cleaner() else { return };
            let shared = cleaner.shared;
            let Some(running) = shared.cleaning.begin_wanted() else {
                return;
            };
            loop {
                let mut wanted: Vec<u64> = shared.split.wanted.lock().drain().collect();
                wanted.sort_unstable();
                let later = wanted.split_off(shared.cleaning.allowed(wanted.len()));
                shared.split.wanted.lock().extend(&later);
                if let (_, Some(error)) = cleaner.clean(&wanted, true).await {
                    // It tries again in the next second.
                    return cleaner.note_failure(&error);
                }
                let is_more = shared.split.wanted.lock().len() >= WANTED_AT_ONCE;
                if !is_more || !later.is_empty() || shared.cleaning.is_closed() {
                    break;
                }
            }
            drop(running);
            shared.split.is_busy.store(false, Ordering::Release);
        });
    }
}
