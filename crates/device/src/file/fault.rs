//! What becomes of a fault in a mapped window.
//!
//! A mapped page that cannot be had (the file was cut short, its medium failed, its file system has become read-only) is a SIGBUS for
//! whoever touches it, and by default the end of the process. A server is to go on without its device. So there is a
//! handler that puts plain memory in the window's place: the copy goes on into that, and who made it sees afterwards that the window is
//! lost. Any other SIGBUS goes where it would have gone.
//!
//! A signal handler is one for the process, and so is what it looks at: the only state here that is not some value's.

use super::window::WINDOW_BYTES;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Windows that can be watched at the same time. A file beyond that has none.
const WATCHED_MAX: usize = 64;

struct Slot {
    /// Where the window begins; 0 = free.
    start: AtomicUsize,
    is_lost: AtomicBool,
}

static SLOTS: [Slot; WATCHED_MAX] = [const {
    Slot {
        start: AtomicUsize::new(0),
        is_lost: AtomicBool::new(false),
    }
}; WATCHED_MAX];

/// What handled the signal before; `None` where no handler could be installed.
static BEFORE: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// A window that is watched until this is dropped, which must be before it is unmapped.
pub(super) struct Watched(&'static Slot);

impl Watched {
    /// Watches the window that is mapped at `start`; `None` where that is not possible.
    pub(super) fn new(start: usize) -> Option<Self> {
        BEFORE.get_or_init(install).as_ref()?;
        let slot = SLOTS.iter().find(|slot| {
            let claimed = slot
                .start
                .compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed);
            claimed.is_ok()
        })?;
        slot.is_lost.store(false, Ordering::Release);
        Some(Self(slot))
    }

    /// Whether there was a fault: what was copied since then, or before it on the same page, may not be in the file.
    pub(super) fn is_lost(&self) -> bool {
        self.0.is_lost.load(Ordering::Acquire)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.start.store(0, Ordering::Release);
    }
}

fn install() -> Option<libc::sigaction> {
    // SAFETY: both are plain structures for which zeros are a value; the handler has the signature that SA_SIGINFO asks for, and does
    // nothing but what a handler may.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        (libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before) == 0).then_some(before)
    }
}

/// Async-signal-safe: atomics and system calls only.
extern "C" fn on_fault(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the system gives a pointer to what it says of the signal, and SIGBUS has an address. The mapping that is replaced is a
    // window: it is watched, so it is mapped, by us alone, and whoever writes to it does so through a raw pointer and finds memory there
    // before and after.
    unsafe {
        let at = (*info).si_addr() as usize;
        for slot in &SLOTS {
            let start = slot.start.load(Ordering::Acquire);
            if start == 0 || !(start..start + WINDOW_BYTES).contains(&at) {
                continue;
            }
            let errno = *libc::__errno_location();
            let replaced = libc::mmap(
                start as *mut libc::c_void,
                WINDOW_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            );
            *libc::__errno_location() = errno;
            if replaced != libc::MAP_FAILED {
                slot.is_lost.store(true, Ordering::Release);
                return;
            }
        }
        // Not ours. It happens again at once, and meets what would have met it.
        if let Some(Some(before)) = BEFORE.get() {
            libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut());
        }
    }
}
