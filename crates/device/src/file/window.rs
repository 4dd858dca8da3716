//! A window of the file's page cache in this process's memory: small appends become copies instead of system calls.
//!
//! What is copied here is in the page cache at once, as after a write: it survives the end of the process, however that
//! comes, and `fsync` makes it survive a power cut. It costs a copy where `pwrite` costs 1 to 2 µs, and a remapping each
//! 64 KiB.

use super::fault::Watched;
use rustix::fd::AsFd;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

/// Bytes of a window, and what it is aligned to in the file: a multiple of every page size.
pub(super) const WINDOW_BYTES: usize = 64 << 10;

/// The part of a file that is mapped.
pub(super) struct Window {
    offset: u64,
    memory: NonNull<u8>,
    /// Before the mapping is given back.
    watched: ManuallyDrop<Watched>,
}

/// How a copy into a window ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copied {
    /// It is in the file's page cache.
    Whole,
    /// The window does not hold all of that place, and nothing was done.
    Elsewhere,
    /// The file's pages are not to be had any more: it was cut short, or cannot be read or written.
    Lost,
}

// SAFETY: the memory is reached through `write` alone, which takes `&mut self`.
unsafe impl Send for Window {}

impl Window {
    /// Maps the window that holds `offset` of a file or device of `capacity` bytes; `None` where that ends before the window
    /// does, where its pages cannot be read, or where the system refuses.
    pub(super) fn map(file: impl AsFd, capacity: u64, offset: u64) -> Option<Self> {
        let offset = offset - offset % WINDOW_BYTES as u64;
        // Nothing is mapped beyond the end. A file that somebody cuts short later is found out by the fault.
        if capacity < offset + WINDOW_BYTES as u64 {
            return None;
        }
        // SAFETY: a new mapping at a place that the system chooses touches no memory of ours.
        let memory = unsafe {
            mmap(
                std::ptr::null_mut(),
                WINDOW_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                offset,
            )
        };
        let memory: NonNull<u8> = NonNull::new(memory.ok()?.cast())?;
        let Some(watched) = Watched::new(memory.as_ptr() as usize) else {
            // SAFETY: it was just mapped, and nobody knows of it.
            unsafe { unmap(memory) };
            return None;
        };
        let window = Self {
            offset,
            memory,
            watched: ManuallyDrop::new(watched),
        };
        // SAFETY: the range is the mapping that was just made. Every page is read and made writable now, so that a bad
        // sector is an error here and not the end of the process later.
        unsafe {
            madvise(
                window.memory.as_ptr().cast(),
                WINDOW_BYTES,
                Advice::LinuxPopulateWrite,
            )
        }
        .ok()?;
        Some(window)
    }

    /// Copies `bytes` to `offset` in the file, if the window holds all of that.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> Copied {
        let Some(at) = offset
            .checked_sub(self.offset)
            .and_then(|at| usize::try_from(at).ok())
        else {
            return Copied::Elsewhere;
        };
        if at > WINDOW_BYTES || bytes.len() > WINDOW_BYTES - at {
            return Copied::Elsewhere;
        }
        // SAFETY: the range is inside the mapping, which lives as long as `self`; nobody holds a reference into it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.as_ptr().add(at), bytes.len()) };
        // What is done after an append must not reach memory before it, or a process killed in between could leave the
        // consequence without the record.
        fence(Ordering::SeqCst);
        if self.watched.is_lost() {
            Copied::Lost
        } else {
            Copied::Whole
        }
    }
}

/// # Safety
///
/// `memory` is what [`Window::map`] has mapped, and nobody reaches into it any more.
unsafe fn unmap(memory: NonNull<u8>) {
    // SAFETY: the caller says so; the length is that of every window.
    let unmapped = unsafe { munmap(memory.as_ptr().cast(), WINDOW_BYTES) };
    debug_assert!(unmapped.is_ok(), "a mapping of ours can be given back");
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: both are done here only, and nothing of the window is used afterwards; no reference into it is left.
        unsafe {
            ManuallyDrop::drop(&mut self.watched);
            unmap(self.memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn what_is_copied_is_read_from_the_file_and_nothing_outside_is_touched() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(3 * WINDOW_BYTES as u64).expect("it grows");
        let start = WINDOW_BYTES as u64;
        let mut window = Window::map(&file, 3 * start, start + 5).expect("it maps");
        assert_eq!(window.write(start, b"first"), Copied::Whole);
        assert_eq!(window.write(2 * start - 4, b"last"), Copied::Whole);
        for (at, bytes) in [(2 * start - 3, &b"last"[..]), (start - 1, b"x"), (u64::MAX, b"x")] {
            assert_eq!(window.write(at, bytes), Copied::Elsewhere);
        }
        drop(window);
        let mut found = vec![0; 3 * WINDOW_BYTES];
        file.read_exact_at(&mut found, 0).expect("it reads");
        let mut expected = vec![0; 3 * WINDOW_BYTES];
        expected[WINDOW_BYTES..][..5].copy_from_slice(b"first");
        expected[2 * WINDOW_BYTES - 4..][..4].copy_from_slice(b"last");
        assert!(found == expected);
    }

    /// By default the process would end here.
    #[test]
    fn a_file_that_is_cut_short_under_a_window_is_an_error() {
        let file = tempfile::tempfile().expect("a file");
        let other = tempfile::tempfile().expect("a file");
        for file in [&file, &other] {
            file.set_len(WINDOW_BYTES as u64).expect("it grows");
        }
        let mut kept = Window::map(&other, WINDOW_BYTES as u64, 0).expect("it maps");
        for _ in 0..3 {
            file.set_len(WINDOW_BYTES as u64).expect("it grows");
            let mut window = Window::map(&file, WINDOW_BYTES as u64, 0).expect("it maps");
            assert_eq!(window.write(100, b"before"), Copied::Whole);
            file.set_len(0).expect("it shrinks");
            assert_eq!(window.write(200, b"after"), Copied::Lost);
            assert_eq!(window.write(300, b"later"), Copied::Lost, "it stays so");
        }
        assert_eq!(
            kept.write(0, b"another"),
            Copied::Whole,
            "others are as they were"
        );
    }

    #[test]
    fn nothing_is_mapped_beyond_the_end() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(WINDOW_BYTES as u64 + 100).expect("it grows");
        let len = WINDOW_BYTES as u64 + 100;
        assert!(Window::map(&file, len, 0).is_some());
        assert!(Window::map(&file, len, WINDOW_BYTES as u64).is_none());
        assert!(Window::map(&file, len, 1 << 40).is_none());
        // A capacity that the file does not have is found out by its pages, and not by a signal.
        assert!(Window::map(&file, 1 << 40, 1 << 30).is_none());
    }
}
