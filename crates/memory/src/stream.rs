//! Copying past the processor's caches, to memory that nobody reads soon.

/// From how many bytes on a copy goes past the caches. Sets of 1 KiB cost 1.1 times as much that way, of 2 KiB the same, of 4 KiB
/// 0.8 and of 16 KiB 0.5 times (measured with `bench/inprocess pumice-fill --size`).
pub(crate) const STREAM_BYTES_MIN: usize = 3072;

/// Copies `bytes` to `to`. What was copied is in memory, not in a cache, where the processor has stores for that: the lines that are
/// overwritten are not read first, and what the caches held stays. Any thread that learns of the copy afterwards sees all of it.
///
/// # Safety
/// `to..to + bytes.len()` is valid for writes, and nobody else reads or writes it during the call.
pub(crate) unsafe fn copy(bytes: &[u8], to: *mut u8) {
    // SAFETY: the caller's promise; `bytes` is a live borrow, so the two do not overlap.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if bytes.len() >= STREAM_BYTES_MIN {
            return copy_lines(bytes, to);
        }
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
    }
}

#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// # Safety
/// As for [`copy`].
#[cfg(target_arch = "x86_64")]
unsafe fn copy_lines(bytes: &[u8], to: *mut u8) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    let head = to.align_offset(LINE_BYTES).min(bytes.len());
    let (head, rest) = bytes.split_at(head);
    let mut lines = rest.chunks_exact(LINE_BYTES);
    // SAFETY: every store is inside the caller's range, one after the other: the head, whole lines, the tail. Those of lines are to
    // addresses aligned to 64, as `head` ends at one; the loads need no alignment and read one chunk. SSE2 is part of x86-64. The
    // fence orders these stores, which are weakly ordered, before all that this thread stores later, such as what tells of the copy.
    unsafe {
        std::ptr::copy_nonoverlapping(head.as_ptr(), to, head.len());
        let mut at = to.add(head.len());
        for line in &mut lines {
            let (from, line): (*const __m128i, *mut __m128i) = (line.as_ptr().cast(), at.cast());
            let parts = [0, 1, 2, 3].map(|part| _mm_loadu_si128(from.add(part)));
            for (part, bytes) in parts.into_iter().enumerate() {
                _mm_stream_si128(line.add(part), bytes);
            }
            at = at.add(LINE_BYTES);
        }
        _mm_sfence();
        let tail = lines.remainder();
        std::ptr::copy_nonoverlapping(tail.as_ptr(), at, tail.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_whole_and_touches_nothing_beside_it_wherever_it_begins() {
        let bytes: Vec<u8> = (0..9_000_u32).map(|n| (n % 251) as u8 + 1).collect();
        for len in [0, 1, 65, 3071, 3072, 3073, 3135, 3136, 4096, 8_900] {
            for at in (0..130).step_by(13) {
                let mut to = vec![0; at + len + 70];
                // SAFETY: inside the vector, which nobody else has.
                unsafe { copy(&bytes[at % 7..][..len], to.as_mut_ptr().add(at)) };
                assert!(to[..at].iter().chain(&to[at + len..]).all(|byte| *byte == 0));
                assert_eq!(to[at..][..len], bytes[at % 7..][..len], "{len} at {at}");
            }
        }
    }
}
