//! Segments of DRAM and the two queues of S3-FIFO.
//!
//! Source: Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023.
//! Differs from the paper: a queue is a list of segments that items are appended to, so an item that stays is copied to
//! the newest segment; sizes are bytes; small is 10 % (paper).
//!
//! # States of a segment
//! `free -> active (small or main) -> queued -> evicting -> free`; while a reader still pins an evicted segment it waits as
//! `pinned`. An item is written under its shard's lock into room that was reserved for it, and is not touched again
//! until no mapping and no reader is left.

use crate::ghost::Ghost;
use locks::Mutex;
use pumice_index::KeyHash;
use pumice_memory::{Buffer, prefetch};
use pumice_record::{Record, RecordParts};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};

/// Items start at multiples of this many bytes.
pub const UNIT_BYTES: u64 = 8;
/// Share of the tier that the small queue may hold before it is evicted from: one tenth.
const SMALL_SHARE: usize = 10;
/// Free segments to keep, so that survivors of an eviction always have a place.
const SPARE_SEGMENTS: usize = 2;

/// The queues of S3-FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// New items; most leave from here.
    Small,
    /// Items that were hit.
    Main,
}

struct Slot<B> {
    buffer: OnceLock<Arc<B>>,
    /// Bytes appended.
    fill: AtomicU32,
    /// Threads between reserving and publishing.
    writers: AtomicU32,
}

#[derive(Default)]
struct Queues {
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    small_active: Option<u32>,
    main_active: Option<u32>,
    free: Vec<u32>,
    pinned: Vec<u32>,
    /// Slots that were given up and whose memory a reader still holds.
    doomed: Vec<u32>,
}

/// The segments; shared by all workers.
pub struct DramTier<B> {
    segment_bytes: usize,
    slots: Vec<Slot<B>>,
    queues: Mutex<Queues>,
    pub(crate) ghost: Mutex<Ghost>,
    free_count: AtomicUsize,
    /// Slots that were given up; changes under the lock of the queues.
    surrendered: AtomicUsize,
}

/// Room for one item. Its segment is not evicted before this is dropped: drop it after the mapping is made.
pub struct Reserved<'a, B> {
    /// Address of the item, in units of [`UNIT_BYTES`].
    pub address: u64,
    slot: &'a Slot<B>,
}

impl<B> Drop for Reserved<'_, B> {
    fn drop(&mut self) {
        self.slot.writers.fetch_sub(1, Ordering::Release);
    }
}

/// A segment that has left its queue, to be emptied by the engine.
pub struct SealedSegment {
    /// The queue that it left.
    pub queue: Queue,
    slot: u32,
}

impl<B: Buffer> DramTier<B> {
    /// A tier of `segments` segments of `segment_bytes`, whose memory is taken as it is first used, with room for so many ghosts.
    pub fn new(segments: usize, segment_bytes: usize, ghosts: usize) -> Self {
        let slots = (0..segments)
            .map(|_| Slot {
                buffer: OnceLock::new(),
                fill: AtomicU32::new(0),
                writers: AtomicU32::new(0),
            })
            .collect();
        let free = (0..u32::try_from(segments).expect("fewer than 2^32 segments"))
            .rev()
            .collect();
        Self {
            segment_bytes,
            slots,
            queues: Mutex::new(Queues {
                free,
                ..Queues::default()
            }),
            ghost: Mutex::new(Ghost::new(ghosts)),
            free_count: AtomicUsize::new(segments),
            surrendered: AtomicUsize::new(0),
        }
    }

    /// Bytes of a segment: the longest item.
    pub fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    /// Addresses are below this.
    pub fn address_end(&self) -> u64 {
        (self.slots.len() * self.segment_bytes) as u64 / UNIT_BYTES
    }

    /// Segments that the tier may use now.
    pub fn segments(&self) -> usize {
        self.slots.len() - self.surrendered.load(Ordering::Relaxed)
    }

    /// Bytes that the tier may use now.
    pub fn budget_bytes(&self) -> u64 {
        (self.segments() * self.segment_bytes) as u64
    }

    /// Bytes of segments that hold items.
    pub fn used_bytes(&self) -> u64 {
        let used = self
            .segments()
            .saturating_sub(self.free_count.load(Ordering::Relaxed));
        (used * self.segment_bytes) as u64
    }

    /// DRAM of the ghost queue, in bytes.
    pub fn ghost_bytes(&self) -> u64 {
        self.ghost.lock().dram_bytes() as u64
    }

    /// Remembers an item that leaves the small queue.
    pub fn remember(&self, hash: KeyHash) {
        self.ghost.lock().insert(hash);
    }

    /// Where a new item goes: one that left the small queue lately to the main queue, the others to the small one.
    pub fn queue_for(&self, hash: KeyHash) -> Queue {
        self.ghost.lock().queue_for(hash)
    }

    /// Whether a segment should be evicted before the next item is written.
    pub fn wants_eviction(&self) -> bool {
        !self.slots.is_empty() && self.free_count.load(Ordering::Relaxed) < SPARE_SEGMENTS
    }

    /// Whether there is a free segment for an item of this length (`RecordParts::dram_len`), without evicting one.
    pub fn has_room(&self, dram_len: usize) -> bool {
        self.segments() > 0 && !self.wants_eviction() && padded(dram_len) <= self.segment_bytes
    }

    /// Takes the segment that is to go: the small queue's oldest while that queue holds more than its share, else the
    /// main queue's. What a reader pins stays: to empty it would free nothing, and all would be emptied in vain as long as
    /// readers keep them. `None` where nothing else is queued.
    pub fn take_victim(&self) -> Option<SealedSegment> {
        let mut queues = self.queues.lock();
        let used = queues.small.len() + queues.main.len();
        let small_first = queues.small.len() * SMALL_SHARE > used || queues.main.is_empty();
        let order = match small_first {
            true => [Queue::Small, Queue::Main],
            false => [Queue::Main, Queue::Small],
        };
        let (queue, slot) = order.into_iter().find_map(|queue| {
            let slots = match queue {
                Queue::Small => &mut queues.small,
                Queue::Main => &mut queues.main,
            };
            let at = slots.iter().position(|slot| self.is_unpinned(*slot))?;
            Some((queue, slots.remove(at)?))
        })?;
        drop(queues);
        // Writers hold no lock that we wait for and copy at most one item: short.
        while self.slots[slot as usize].writers.load(Ordering::Acquire) != 0 {
            std::thread::yield_now();
        }
        Some(SealedSegment { queue, slot })
    }

    /// Takes all segments out of their queues, the active ones too, and those of the main queue last: for a clean stop, when nothing
    /// else runs.
    pub fn take_all(&self) -> Vec<SealedSegment> {
        let mut queues = self.queues.lock();
        let (small, main) = (
            std::mem::take(&mut queues.small),
            std::mem::take(&mut queues.main),
        );
        let small = small.into_iter().chain(queues.small_active.take());
        let main = main.into_iter().chain(queues.main_active.take());
        let of = |queue| move |slot| SealedSegment { queue, slot };
        small
            .map(of(Queue::Small))
            .chain(main.map(of(Queue::Main)))
            .collect()
    }

    /// Calls `visit` with the address and record of each item in the segment, live or not, oldest first. No lock is held.
    pub fn visit(&self, segment: &SealedSegment, mut visit: impl FnMut(u64, &Record<B>, u64)) {
        let slot = segment.slot;
        let Some(buffer) = self.slots[slot as usize].buffer.get() else {
            return;
        };
        let fill = self.slots[slot as usize].fill.load(Ordering::Acquire) as usize;
        let mut at = 0;
        while at < fill {
            let Some((record, flash_location)) = Record::decode_dram(Arc::clone(buffer), at) else {
                debug_assert!(false, "an item of a DRAM segment cannot be read");
                return;
            };
            let len = padded(record.parts().dram_len());
            visit(self.address(slot, at), &record, flash_location);
            at += len;
        }
    }

    /// Gives an emptied segment back. With `surrender` its memory goes to the operating system and the tier stays smaller by
    /// one segment.
    pub fn recycle(&self, segment: SealedSegment, surrender: bool) {
        let mut queues = self.queues.lock();
        if surrender {
            self.surrendered.fetch_add(1, Ordering::Relaxed);
            queues.doomed.push(segment.slot);
        } else {
            queues.pinned.push(segment.slot);
        }
        self.collect_unpinned(&mut queues);
    }

    /// Gives up a segment that holds nothing, if more than `floor` remain and enough stay free; whether it did.
    pub fn surrender_free(&self, floor: usize) -> bool {
        let mut queues = self.queues.lock();
        if self.segments() <= floor || queues.free.len() <= SPARE_SEGMENTS {
            return false;
        }
        let Some(slot) = queues.free.pop() else {
            return false;
        };
        self.surrendered.fetch_add(1, Ordering::Relaxed);
        queues.doomed.push(slot);
        self.collect_unpinned(&mut queues);
        true
    }

    fn collect_unpinned(&self, queues: &mut Queues) {
        let mut at = 0;
        while at < queues.pinned.len() {
            if self.is_unpinned(queues.pinned[at]) {
                let slot = queues.pinned.swap_remove(at);
                self.slots[slot as usize].fill.store(0, Ordering::Relaxed);
                queues.free.push(slot);
            } else {
                at += 1;
            }
        }
        queues.doomed.retain(|slot| {
            let gone = self.is_unpinned(*slot);
            if let Some(buffer) = self.slots[*slot as usize].buffer.get().filter(|_| gone) {
                // SAFETY: no mapping leads here any more (the engine emptied it) and no reader pins it.
                unsafe { buffer.discard() };
            }
            !gone
        });
        self.free_count.store(queues.free.len(), Ordering::Relaxed);
    }

    fn is_unpinned(&self, slot: u32) -> bool {
        let unpinned = self.slots[slot as usize]
            .buffer
            .get()
            .is_none_or(|b| Arc::strong_count(b) == 1);
        // Pairs with the release of the last reader's drop: what it read happened before what is written next.
        fence(Ordering::Acquire);
        unpinned
    }

    /// Copies an item into the active segment of `queue`. The caller holds the lock of the item's shard and makes the
    /// mapping before it drops what this returns. `flash_location` says where its copy on flash is. `None` where there is no room.
    pub fn write(
        &self,
        queue: Queue,
        parts: &RecordParts<'_>,
        flash_location: u64,
    ) -> Option<Reserved<'_, B>> {
        let len = padded(parts.dram_len());
        if len > self.segment_bytes {
            return None;
        }
        let (slot, at) = self.reserve(queue, len)?;
        let reserved = Reserved {
            address: self.address(slot, at),
            slot: &self.slots[slot as usize],
        };
        let buffer = reserved
            .slot
            .buffer
            .get_or_init(|| Arc::new(B::with_len(self.segment_bytes)));
        // SAFETY: the range was reserved for this call alone, and nothing reads it before the mapping is made.
        unsafe { parts.put_dram(&**buffer, at, flash_location) };
        Some(reserved)
    }

    fn reserve(&self, queue: Queue, len: usize) -> Option<(u32, usize)> {
        let mut queues = self.queues.lock();
        loop {
            let active = match queue {
                Queue::Small => &mut queues.small_active,
                Queue::Main => &mut queues.main_active,
            };
            let full = match *active {
                Some(slot) => {
                    let info = &self.slots[slot as usize];
                    let at = info.fill.load(Ordering::Relaxed) as usize;
                    if at + len <= self.segment_bytes {
                        info.writers.fetch_add(1, Ordering::Relaxed);
                        let end = u32::try_from(at + len).expect("segments are at most 1 MiB");
                        info.fill.store(end, Ordering::Release);
                        return Some((slot, at));
                    }
                    active.take()
                }
                None => None,
            };
            if let Some(slot) = full {
                match queue {
                    Queue::Small => queues.small.push_back(slot),
                    Queue::Main => queues.main.push_back(slot),
                }
            }
            if queues.free.is_empty() {
                self.collect_unpinned(&mut queues);
            }
            let slot = queues.free.pop()?;
            self.free_count.store(queues.free.len(), Ordering::Relaxed);
            match queue {
                Queue::Small => queues.small_active = Some(slot),
                Queue::Main => queues.main_active = Some(slot),
            }
        }
    }

    fn address(&self, slot: u32, at: usize) -> u64 {
        (u64::from(slot) * self.segment_bytes as u64 + at as u64) / UNIT_BYTES
    }

    /// Asks for the beginning of the item at `address`, which is mapped.
    pub fn prefetch(&self, address: u64) {
        let (slot, at) = self.place(address);
        let buffer = self.slots[slot].buffer.get();
        // The line that its first byte is in. Others may be writing what stands behind it.
        if let Some(first) = buffer.and_then(|buffer| buffer.bytes(at, 1)) {
            prefetch(first);
        }
    }

    fn place(&self, address: u64) -> (usize, usize) {
        let offset = address * UNIT_BYTES;
        let segment_bytes = self.segment_bytes as u64;
        (
            (offset / segment_bytes) as usize,
            (offset % segment_bytes) as usize,
        )
    }

    /// Reads the item at `address`, pinning its segment, and its flash location. The caller holds the lock of the shard that maps it.
    pub fn read(&self, address: u64) -> (Record<B>, u64) {
        let (slot, at) = self.place(address);
        let buffer = self.slots[slot].buffer.get().expect("a mapped item has memory");
        Record::decode_dram(Arc::clone(buffer), at).expect("a mapped item was written whole")
    }
}

/// Length of an item in a segment, padding included.
pub fn padded(encoded_len: usize) -> usize {
    encoded_len.next_multiple_of(UNIT_BYTES as usize)
}
