//! Heap memory aligned for O_DIRECT.

use crate::prefetch::prefetch_from;
use crate::{Buffer, Payload, SECTOR_BYTES};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// What the processor's tables map in one entry, where the system gives such pages. A buffer of at least so much starts at
/// a multiple of it: writing it out then pins a page or two instead of hundreds.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// From payloads of how many bytes on those [put in sequence](Buffer::put_in_sequence) have the place of the next one prefetched,
/// and for how many bytes at most, which is well below a processor's second cache. Values of 1 KiB would cost 1.1 times as much.
const PREFETCH_BYTES_MIN: usize = 3072;
const PREFETCH_BYTES_MAX: usize = 64 << 10;

/// Asks the system to back memory with huge pages. A system that has none, or has turned them off, backs it as ever.
///
/// # Safety
/// The range is memory that the caller owns, of whole pages.
pub(crate) unsafe fn back_with_huge_pages(start: NonNull<u8>, len: usize) {
    // SAFETY: the caller's promise; the advice changes what is behind the addresses, not what is read there.
    let _ = unsafe {
        rustix::mm::madvise(
            start.as_ptr().cast::<std::ffi::c_void>(),
            len,
            rustix::mm::Advice::LinuxHugepage,
        )
    };
}

/// An owned buffer whose start and length are multiples of [`SECTOR_BYTES`].
#[derive(Debug)]
pub struct AlignedBuf {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer owns its memory; writing through `&self` is possible only by the unsafe `put` and `as_mut_ptr`,
// whose contracts forbid concurrent access to the same bytes.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// The pointer to the first byte, for a kernel or device that fills the buffer. Whoever writes through it owes
    /// what [`Buffer::put`] asks for.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// All bytes. The caller must not hold the slice while anyone writes to the buffer; a device hands a buffer out
    /// only after it finished writing.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: start..start + len is one live allocation, initialised (zeroed) when it was made.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// All bytes, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `&mut self` excludes every other access.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Where `at..at + len` begins.
    fn range_start(&self, at: usize, len: usize) -> *mut u8 {
        let end = at.checked_add(len).expect("range fits usize");
        assert!(end <= self.len, "put past the end of a buffer");
        // SAFETY: inside the allocation, or at its end.
        unsafe { self.start.as_ptr().add(at) }
    }

    fn layout(len: usize) -> Layout {
        let align = if len < HUGE_PAGE_BYTES {
            SECTOR_BYTES
        } else {
            HUGE_PAGE_BYTES
        };
        Layout::from_size_align(len, align).expect("buffer lengths are far below isize::MAX")
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: allocated in `with_len` with this very layout.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) }
    }
}

impl Buffer for AlignedBuf {
    fn with_len(len: usize) -> Self {
        assert!(
            len > 0 && len.is_multiple_of(SECTOR_BYTES),
            "buffer length {len} is not a positive multiple of {SECTOR_BYTES}"
        );
        let layout = Self::layout(len);
        // SAFETY: the layout has a size above 0.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout)
        };
        if len >= HUGE_PAGE_BYTES {
            // SAFETY: the allocation just made.
            unsafe { back_with_huge_pages(start, len) };
        }
        Self { start, len }
    }

    fn len(&self) -> usize {
        self.len
    }

    unsafe fn discard(&self) {
        // SAFETY: whole pages of one allocation; after this they read as zero, which is content as good as any. Nobody
        // reads or writes them meanwhile (the caller's promise). An error leaves the memory resident, no more.
        let _ = unsafe {
            rustix::mm::madvise(
                self.start.as_ptr().cast::<std::ffi::c_void>(),
                self.len,
                rustix::mm::Advice::LinuxDontNeed,
            )
        };
    }

    unsafe fn put(&self, at: usize, payload: Payload<'_>) {
        let to = self.range_start(at, payload.len());
        // SAFETY: the range is inside the allocation (checked); nobody else touches it (the caller's promise).
        unsafe {
            match payload {
                Payload::Bytes(bytes) => std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()),
                Payload::Void(len) => std::ptr::write_bytes(to, 0, len),
            }
        }
    }

    unsafe fn put_in_sequence(&self, at: usize, payload: Payload<'_>) {
        let len = payload.len();
        // SAFETY: the caller's promise.
        unsafe { self.put(at, payload) };
        if len >= PREFETCH_BYTES_MIN {
            let next = at + len;
            prefetch_from(
                self.range_start(next, 0),
                len.min(PREFETCH_BYTES_MAX).min(self.len - next),
            );
        }
    }

    fn bytes(&self, at: usize, len: usize) -> Option<&[u8]> {
        let end = at.checked_add(len)?;
        if end > self.len {
            return None;
        }
        // SAFETY: inside the allocation; initialised when it was made; only this part is borrowed, so writers of
        // other parts are no concern.
        Some(unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at), len) })
    }

    fn payload(&self, at: usize, len: usize) -> Option<Payload<'_>> {
        self.bytes(at, len).map(Payload::Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_were_put_are_read_back() {
        let buf = AlignedBuf::with_len(8192);
        // SAFETY: nobody else knows the buffer.
        unsafe { buf.put(4090, Payload::Bytes(b"across a sector")) };
        assert_eq!(buf.bytes(4090, 15), Some(&b"across a sector"[..]));
        assert_eq!(buf.as_mut_ptr().addr() % SECTOR_BYTES, 0);
        assert_eq!(buf.bytes(8190, 3), None);
        assert_eq!(buf.bytes(usize::MAX, 2), None);
    }

    #[test]
    fn what_is_put_in_sequence_touches_nothing_beside_it_up_to_the_end() {
        let bytes: Vec<u8> = (0..9_000_u32).map(|n| (n % 251) as u8 + 1).collect();
        for len in [0, 1, 3071, 3072, 3073, 4096, 8192] {
            for at in [0, 1, 63, 4096, 8192 - len.min(8192)] {
                if at + len > 8192 {
                    continue;
                }
                let buf = AlignedBuf::with_len(8192);
                // SAFETY: nobody else knows the buffer.
                unsafe { buf.put_in_sequence(at, Payload::Bytes(&bytes[..len])) };
                let all = buf.as_slice();
                assert!(all[..at].iter().chain(&all[at + len..]).all(|byte| *byte == 0));
                assert_eq!(all[at..][..len], bytes[..len], "{len} at {at}");
            }
        }
    }
}
