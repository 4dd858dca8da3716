//! Asking the processor for memory before it is needed.

/// Brings the cache lines of `bytes` closer, where the processor can be asked to; a hint, which changes nothing else.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    prefetch_from(bytes.as_ptr(), bytes.len());
}

/// As [`prefetch`], for `len` bytes from `start` that others may be writing; nothing is read that the program could see, so
/// that any address will do.
#[inline]
pub(crate) fn prefetch_from(start: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..len).step_by(CACHE_LINE_BYTES) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program could see and never faults; SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, len);
}

#[cfg(target_arch = "x86_64")]
const CACHE_LINE_BYTES: usize = 64;
