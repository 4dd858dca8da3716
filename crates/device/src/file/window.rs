//! A window of the file's page cache in this process's memory: small appends become copies instead of system calls.
//!
//! What is copied here is in the page cache at once, as after a write: it survives the end of the process, however that
//! comes, and `fsync` makes it survive a power cut. It costs a copy where `pwrite` costs 1 to 2 µs, and a remapping each
//! 64 KiB.
//!
//! Only pages that something is copied to are touched, and none is read ahead: the window may reach beyond the log, to what is written
//! past the page cache, and a page of that which is dirty here would be written over it later.

use super::fault::Watched;
use rustix::fd::AsFd;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::param::page_size;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

/// Bytes of a window, and what it is aligned to in the file: a multiple of every page size.
pub(super) const WINDOW_BYTES: usize = 64 << 10;

/// The part of a file that is mapped.
pub(super) struct Window {
    offset: u64,
    memory: NonNull<u8>,
    /// One bit for each page that was read and made writable.
    pages: u64,
    /// Before the mapping is given back.
    watched: ManuallyDrop<Watched>,
}

/// How a copy into a window ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copied {
    /// It is in the file's page cache.
    Whole,
    /// The window does not hold all of that place, or its pages are not to be had, and nothing was done.
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
        let at = (offset % WINDOW_BYTES as u64) as usize;
        let offset = offset - at as u64;
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
        let mut window = Self {
            offset,
            memory,
            pages: 0,
            watched: ManuallyDrop::new(watched),
        };
        // SAFETY: the range is the mapping that was just made.
        unsafe { madvise(window.memory.as_ptr().cast(), WINDOW_BYTES, Advice::Random) }.ok()?;
        window.populate(at, 1).then_some(window)
    }

    /// Reads the pages of a range of the window and makes them writable, so that a bad sector is found here and not by a
    /// signal; whether that succeeded.
    fn populate(&mut self, at: usize, len: usize) -> bool {
        let page = page_size();
        for number in at / page..(at + len).div_ceil(page) {
            let bit = 1 << number;
            if self.pages & bit != 0 {
                continue;
            }
            // SAFETY: the page is inside the mapping, which is of whole pages.
            let populated = unsafe {
                let start = self.memory.as_ptr().add(number * page);
                madvise(start.cast(), page, Advice::LinuxPopulateWrite)
            };
            if populated.is_err() {
                return false;
            }
            self.pages |= bit;
        }
        true
    }

    /// Copies `bytes` to `offset` in the file, if the window holds all of that.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> Copied {
        let Some(at) = offset
            .checked_sub(self.offset)
            .and_then(|at| usize::try_from(at).ok())
        else {
            return Copied::Elsewhere;
        };
        if at > WINDOW_BYTES || bytes.len() > WINDOW_BYTES - at || !self.populate(at, bytes.len()) {
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

    /// What stands in other pages of a window may be written past the page cache.
    #[test]
    fn pages_that_nothing_is_copied_to_are_not_written_back() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(WINDOW_BYTES as u64).expect("it grows");
        let resident = |window: &Window| -> Vec<bool> {
            let mut pages = vec![0u8; WINDOW_BYTES / page_size()];
            // SAFETY: the mapping is whole, and there is a byte for each of its pages.
            let result =
                unsafe { libc::mincore(window.memory.as_ptr().cast(), WINDOW_BYTES, pages.as_mut_ptr()) };
            assert_eq!(result, 0);
            pages.into_iter().map(|page| page & 1 == 1).collect()
        };
        let at = 2 * page_size() as u64;
        let mut window = Window::map(&file, WINDOW_BYTES as u64, at + 5).expect("it maps");
        assert_eq!(window.write(at + 5, b"here"), Copied::Whole);
        assert_eq!(
            window.write(at + page_size() as u64 - 2, b"and there"),
            Copied::Whole
        );
        let touched: Vec<usize> = (0..)
            .zip(resident(&window))
            .filter_map(|(n, is)| is.then_some(n))
            .collect();
        assert_eq!(touched, [2, 3]);
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
