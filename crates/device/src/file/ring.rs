//! The io_uring engine.

use super::table::{Request, Table};
use io_uring::{IoUring, opcode, types};
use rustix::fd::{AsRawFd, OwnedFd};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// One handle's ring.
pub(super) struct Ring {
    ring: IoUring,
    file: Arc<OwnedFd>,
}

/// Makes a ring whose completions are worked off when its thread asks for them, not by interrupting it; an older
/// kernel that does not know that gets a plain ring.
fn build(entries: u32) -> io::Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .build(entries)
        .or_else(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => IoUring::new(entries),
            _ => Err(error),
        })
}

/// Whether the kernel lets this process use io_uring, and knows what is needed here.
///
/// # Errors
/// Why not.
pub(super) fn probe() -> io::Result<()> {
    let ring = build(2)?;
    let mut probe = io_uring::Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [opcode::Read::CODE, opcode::Write::CODE, opcode::Fsync::CODE];
    if !needed.iter().all(|code| probe.is_supported(*code)) || !ring.params().is_feature_nodrop() {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this kernel's io_uring is too old",
        ));
    }
    Ok(())
}

impl Ring {
    /// A ring with room for `entries` requests under way.
    pub(super) fn new(file: Arc<OwnedFd>, entries: u32) -> io::Result<Self> {
        Ok(Self {
            ring: build(entries)?,
            file,
        })
    }

    /// Puts everything that may start into the submission queue.
    pub(super) fn queue(&mut self, table: &mut Table) {
        let file = types::Fd(self.file.as_raw_fd());
        let mut queue = self.ring.submission();
        // There is always room: the table has at most as many pieces under way as the ring has entries.
        while !queue.is_full()
            && let Some((key, request)) = table.start_next()
        {
            let entry = match request {
                Request::Read { to, len, offset } => {
                    opcode::Read::new(file, to, length(len)).offset(offset).build()
                }
                Request::Write { from, len, offset } => {
                    opcode::Write::new(file, from, length(len)).offset(offset).build()
                }
                Request::Sync => opcode::Fsync::new(file)
                    .flags(types::FsyncFlags::DATASYNC)
                    .build(),
            };
            // SAFETY: the table keeps the buffer alive and in place until this piece is reported, and `FileDevice`
            // never lets go of the table before. The file is open as long as `self`, and the kernel takes its own
            // reference when the entry is submitted.
            unsafe { queue.push(&entry.user_data(key as u64)) }.expect("just seen that it is not full");
            // The kernel does not say when it hands a request to the device.
            table.begin(key);
        }
    }

    /// Tells the kernel about what was queued and does not look at results.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        retry(|| self.ring.submit())
    }

    /// Submits what was queued, and reports what is done; with `wait`, waits for at least one result.
    pub(super) fn collect(&mut self, table: &mut Table, wait: bool, path: &Path) -> io::Result<()> {
        let wait = wait && self.ring.completion().is_empty();
        let must_enter = {
            let queue = self.ring.submission();
            wait || !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
        };
        if must_enter {
            retry(|| self.ring.submit_and_wait(usize::from(wait)))?;
            // Requests that end while they are submitted may leave their work for a second look.
            if self.ring.submission().taskrun() {
                retry(|| self.ring.submit())?;
            }
        }
        for completion in self.ring.completion() {
            let key = usize::try_from(completion.user_data()).expect("made from a usize");
            table.report(key, completion.result(), path);
        }
        Ok(())
    }

    /// Whether the kernel did not take everything that was queued.
    pub(super) fn has_unsubmitted(&mut self) -> bool {
        !self.ring.submission().is_empty()
    }

    /// Signals `event` when results arrive, from now on.
    pub(super) fn set_event(&self, event: &OwnedFd) -> io::Result<()> {
        self.ring.submitter().register_eventfd(event.as_raw_fd())
    }
}

fn length(len: usize) -> u32 {
    u32::try_from(len).expect("pieces are far below 4 GiB")
}

/// Enters the kernel again where it was interrupted. Where it is out of resources for the moment, what was not
/// submitted stays queued, and the caller looks at results first.
fn retry(mut enter: impl FnMut() -> io::Result<usize>) -> io::Result<()> {
    loop {
        return match enter() {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR) => continue,
                Some(libc::EAGAIN | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        };
    }
}
