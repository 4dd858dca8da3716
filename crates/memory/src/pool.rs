//! One mapping of the process's cache memory, cut into segments; some segments are cut further, into pages.
//!
//! The DRAM tier takes whole segments for its items, the index takes pages. Both come from here, so the sum has a
//! hard bound, and neither can starve the other beyond what the engine decides. Memory that was never taken is never
//! touched and costs nothing resident, but for the rest of a huge page where the system has those.

use crate::aligned::back_with_huge_pages;
use locks::Mutex;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Size of a page, in bytes: what the index grows by. Small, since each of many shards has half a page too much on average: where
/// objects are of 35 KB a shard has some 500 of them, which are 5 KB.
pub const PAGE_BYTES: usize = 1024;

/// A segment of a [`SegmentPool`], by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub u32);

struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory; who may touch which part is decided by the pools that hand parts out.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `SegmentPool::new` with this address and length; every user holds an `Arc` of it.
        let _ = unsafe { munmap(self.start.as_ptr().cast::<c_void>(), self.len) };
    }
}

/// Hands out fixed segments of one anonymous mapping.
pub struct SegmentPool {
    mapping: Arc<Mapping>,
    segment_bytes: usize,
    free: Mutex<Vec<SegmentId>>,
    limit: AtomicU32,
    total: usize,
}

impl SegmentPool {
    /// Maps `total_bytes`, rounded down to whole segments of `segment_bytes` (a multiple of [`PAGE_BYTES`]).
    ///
    /// # Errors
    /// What the operating system said.
    pub fn new(total_bytes: usize, segment_bytes: usize) -> std::io::Result<Self> {
        let total = total_bytes.checked_div(segment_bytes).unwrap_or(0);
        Self::with_limit(total, segment_bytes, total)
    }

    /// Maps `total` segments of which only `limit` may be used until [`SegmentPool::raise_limit`].
    ///
    /// # Errors
    /// What the operating system said.
    pub fn with_limit(total: usize, segment_bytes: usize, limit: usize) -> std::io::Result<Self> {
        assert!(segment_bytes > 0 && segment_bytes.is_multiple_of(PAGE_BYTES));
        let len = (total * segment_bytes).max(PAGE_BYTES);
        // SAFETY: a fresh private anonymous mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(std::io::Error::from)?;
        let start = NonNull::new(start.cast::<u8>()).expect("mmap does not return null");
        // SAFETY: the mapping just made.
        unsafe { back_with_huge_pages(start, len) };
        // The lowest numbers are handed out first: what is never taken stays untouched at the end.
        let limit = u32::try_from(limit.min(total)).expect("fewer than 2^32 segments");
        let free = (0..limit).rev().map(SegmentId).collect();
        Ok(Self {
            mapping: Arc::new(Mapping { start, len }),
            segment_bytes,
            free: Mutex::new(free),
            limit: AtomicU32::new(limit),
            total,
        })
    }

    /// Allows one more segment to be used: memory that its former holder gave up. False at the end of the mapping.
    pub fn raise_limit(&self) -> bool {
        let mut free = self.free.lock();
        let limit = self.limit.load(Ordering::Relaxed);
        if limit as usize >= self.total {
            return false;
        }
        self.limit.store(limit + 1, Ordering::Relaxed);
        free.push(SegmentId(limit));
        true
    }

    /// Size of a segment in bytes.
    pub fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    /// Number of segments, free or not.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Number of free segments.
    pub fn free(&self) -> usize {
        self.free.lock().len()
    }

    /// Takes a free segment. Its content is whatever its last user left.
    pub fn take(&self) -> Option<SegmentId> {
        self.free.lock().pop()
    }

    /// Gives a segment back; its user must not touch it any more.
    pub fn give(&self, id: SegmentId) {
        debug_assert!((id.0 as usize) < self.total);
        self.free.lock().push(id);
    }

    /// The start of a segment. Who took the segment may write to its bytes; the same exclusion rules as for
    /// [`crate::Buffer::put`] apply.
    pub fn segment_ptr(&self, id: SegmentId) -> *mut u8 {
        assert!((id.0 as usize) < self.total, "no such segment");
        // SAFETY: inside the mapping (checked).
        unsafe {
            self.mapping
                .start
                .as_ptr()
                .add(id.0 as usize * self.segment_bytes)
        }
    }
}

/// Hands out pages, cut from segments of a [`SegmentPool`].
///
/// Segments that were given over stay with the page pool: the index that grew will grow again.
pub struct PagePool {
    segments: Arc<SegmentPool>,
    free: Mutex<Vec<NonNull<u8>>>,
    free_count: AtomicUsize,
    total_pages: AtomicUsize,
}

// SAFETY: the raw pointers in the free list are memory that nobody uses; handing them between threads is the point.
unsafe impl Send for PagePool {}
// SAFETY: as above; the list is behind a mutex.
unsafe impl Sync for PagePool {}

impl PagePool {
    /// A pool without pages over `segments`.
    pub fn new(segments: Arc<SegmentPool>) -> Arc<Self> {
        Arc::new(Self {
            segments,
            free: Mutex::new(Vec::new()),
            free_count: AtomicUsize::new(0),
            total_pages: AtomicUsize::new(0),
        })
    }

    /// A pool with its own mapping of `bytes`: for tests and for an index that shares memory with nobody.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn standalone(bytes: usize) -> std::io::Result<Arc<Self>> {
        let segments = Arc::new(SegmentPool::new(bytes, PAGE_BYTES)?);
        let pool = Self::new(segments);
        while pool.grow() {}
        Ok(pool)
    }

    /// Moves one free segment over; false where there is none.
    pub fn grow(&self) -> bool {
        let Some(id) = self.segments.take() else {
            return false;
        };
        self.add_segment(id);
        true
    }

    /// Cuts a segment that the caller owns into free pages.
    pub fn add_segment(&self, id: SegmentId) {
        let start = self.segments.segment_ptr(id);
        let count = self.segments.segment_bytes() / PAGE_BYTES;
        let mut free = self.free.lock();
        for page in (0..count).rev() {
            // SAFETY: inside the segment.
            let page = unsafe { start.add(page * PAGE_BYTES) };
            free.push(NonNull::new(page).expect("inside a mapping"));
        }
        self.free_count.store(free.len(), Ordering::Relaxed);
        self.total_pages.fetch_add(count, Ordering::Relaxed);
    }

    /// Free pages.
    pub fn free_pages(&self) -> usize {
        self.free_count.load(Ordering::Relaxed)
    }

    /// Pages in all, free or not.
    pub fn total_pages(&self) -> usize {
        self.total_pages.load(Ordering::Relaxed)
    }

    /// Takes a page, zeroed.
    pub fn take(self: &Arc<Self>) -> Option<Page> {
        let start = {
            let mut free = self.free.lock();
            let start = free.pop()?;
            self.free_count.store(free.len(), Ordering::Relaxed);
            start
        };
        // SAFETY: a whole page that nobody else uses, just taken from the free list.
        unsafe { std::ptr::write_bytes(start.as_ptr(), 0, PAGE_BYTES) };
        Some(Page {
            start,
            pool: Arc::clone(self),
        })
    }
}

/// A page of memory, back in its pool when dropped.
pub struct Page {
    start: NonNull<u8>,
    pool: Arc<PagePool>,
}

// SAFETY: the page is plain memory with one owner.
unsafe impl Send for Page {}
// SAFETY: `&Page` only reads.
unsafe impl Sync for Page {}

impl Page {
    /// The bytes.
    pub fn bytes(&self) -> &[u8; PAGE_BYTES] {
        // SAFETY: a whole initialised page, owned by `self`; the mapping outlives it by the pool's `Arc`.
        unsafe { self.start.cast::<[u8; PAGE_BYTES]>().as_ref() }
    }

    /// The bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8; PAGE_BYTES] {
        // SAFETY: as above, and `&mut self` excludes every other access.
        unsafe { self.start.cast::<[u8; PAGE_BYTES]>().as_mut() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let mut free = self.pool.free.lock();
        free.push(self.start);
        self.pool.free_count.store(free.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_and_pages_come_back() {
        let segments = Arc::new(SegmentPool::new(4 * 16384, 16384).unwrap());
        let pages = PagePool::new(Arc::clone(&segments));
        assert!(pages.take().is_none());
        assert!(pages.grow());
        assert_eq!(segments.free(), 3);
        let mut taken: Vec<Page> = std::iter::from_fn(|| pages.take()).collect();
        assert_eq!(taken.len(), 16384 / PAGE_BYTES);
        taken[0].bytes_mut().fill(7);
        drop(taken);
        assert_eq!(pages.free_pages(), 16384 / PAGE_BYTES);
        assert!(pages.take().unwrap().bytes().iter().all(|b| *b == 0));
        let id = segments.take().unwrap();
        segments.give(id);
        assert_eq!(segments.free(), 3);
    }
}
