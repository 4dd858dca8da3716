//! Memory that the kernel receives into: a ring of buffers that it takes in turn, for all connections of a ring.

use io_uring::IoUring;
use io_uring::types::BufRingEntry;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

/// The only group of buffers of a ring.
pub const GROUP: u16 = 0;
/// What all buffers of a thread take at most, as long as that leaves [`COUNT_MIN`] of them.
const BYTES_MAX: usize = 16 << 20;
const COUNT_MIN: usize = 16;
const COUNT_MAX: usize = 4096;
/// Buffers begin this much further apart than their size, so that their first lines do not share a set of the cache.
const STAGGER_BYTES: usize = 5 * 64;
const PAGE_BYTES: usize = 4096;

/// The buffers, and the ring by which they are given to the kernel.
pub struct ReceiveBuffers {
    entries: NonNull<BufRingEntry>,
    entries_layout: Layout,
    memory: NonNull<u8>,
    memory_layout: Layout,
    count: u16,
    size: usize,
    tail: u16,
}

// SAFETY: the memory belongs to this value alone; nothing about it is tied to a thread.
unsafe impl Send for ReceiveBuffers {}

impl ReceiveBuffers {
    /// Two buffers of `size` bytes for each connection, within bounds; none is given to a kernel yet.
    pub fn new(connections: usize, size: usize) -> Self {
        let most = (BYTES_MAX / size).clamp(COUNT_MIN, COUNT_MAX);
        let count = (connections * 2)
            .clamp(COUNT_MIN, most)
            .next_power_of_two()
            .min(COUNT_MAX);
        let stride = size + STAGGER_BYTES;
        let layout = |bytes| Layout::from_size_align(bytes, PAGE_BYTES).expect("a few megabytes");
        let (entries_layout, memory_layout) =
            (layout(count * size_of::<BufRingEntry>()), layout(count * stride));
        ReceiveBuffers {
            entries: zeroed(entries_layout).cast(),
            entries_layout,
            memory: zeroed(memory_layout),
            memory_layout,
            count: u16::try_from(count).expect("at most COUNT_MAX"),
            size,
            tail: 0,
        }
    }

    /// Gives all buffers to the kernel.
    ///
    /// # Safety
    /// The ring must be gone, with everything that receives, before this value is dropped.
    pub unsafe fn register(&mut self, ring: &IoUring) -> io::Result<()> {
        let address = self.entries.as_ptr() as u64;
        // SAFETY: the ring of entries is as long as said, zeroed, aligned to a page, and by the caller's promise
        // outlives the registration.
        unsafe {
            ring.submitter()
                .register_buf_ring_with_flags(address, self.count, GROUP, 0)?
        };
        for buffer in 0..self.count {
            self.give(buffer);
        }
        Ok(())
    }

    /// What was received into a buffer: `len` bytes, as the completion says that also named the buffer.
    ///
    /// # Safety
    /// The kernel has named this buffer in a completion, and it has not been given back since.
    pub unsafe fn received(&self, buffer: u16, len: usize) -> &[u8] {
        assert!(buffer < self.count && len <= self.size);
        // SAFETY: within the memory, which is initialised from the start; between its completion and `give`, which
        // needs `&mut self`, the kernel does not write to the buffer.
        unsafe { std::slice::from_raw_parts(self.start(buffer), len) }
    }

    /// Gives a buffer to the kernel, which may write to it from then on.
    pub fn give(&mut self, buffer: u16) {
        assert!(buffer < self.count);
        let place = usize::from(self.tail & (self.count - 1));
        // SAFETY: `place` is below the count of entries. The kernel reads only entries before the tail, which this
        // one is not: at most `count` buffers are ever given. The fields that are set do not cover the tail, which
        // shares the first entry.
        let entry = unsafe { &mut *self.entries.as_ptr().add(place) };
        entry.set_addr(self.start(buffer) as u64);
        entry.set_len(self.size as u32);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the pointer is to the first entry; the tail is an aligned 16-bit number in it that the kernel only
        // reads, and that nobody else writes.
        unsafe {
            let tail = BufRingEntry::tail(self.entries.as_ptr()).cast_mut();
            AtomicU16::from_ptr(tail).store(self.tail, Ordering::Release);
        }
    }

    fn start(&self, buffer: u16) -> *mut u8 {
        // SAFETY: callers have checked that `buffer` is below the count, and the memory has that many strides.
        unsafe {
            self.memory
                .as_ptr()
                .add(usize::from(buffer) * (self.size + STAGGER_BYTES))
        }
    }
}

impl Drop for ReceiveBuffers {
    fn drop(&mut self) {
        // SAFETY: both were allocated with these layouts; by the promise of `register` no kernel uses them any more.
        unsafe {
            dealloc(self.entries.as_ptr().cast(), self.entries_layout);
            dealloc(self.memory.as_ptr(), self.memory_layout);
        }
    }
}

fn zeroed(layout: Layout) -> NonNull<u8> {
    assert!(layout.size() > 0);
    // SAFETY: the size is not 0.
    NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout))
}
