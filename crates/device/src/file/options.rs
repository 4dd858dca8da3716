//! How a file is opened, and how that can fail.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// How [`FileShared::open`](super::FileShared::open) opens a file or block device.
#[derive(Debug, Clone)]
pub struct FileOptions {
    /// Bytes to use, rounded down to whole sectors. A shorter file grows to it; of a longer one only the first
    /// `size` bytes are used. Default: `None`, the size that the file or block device has.
    pub size: Option<u64>,
    /// Whether a missing file is made. Default: true.
    pub create: bool,
    /// Whether space for the whole size is reserved at once, so that a full disk is found now and not under load.
    /// Without it the file has holes. Default: true.
    pub preallocate: bool,
    /// How long to wait for another process to let go of the file: the ring of a killed process may still be
    /// writing for a moment. Default: 5 s.
    pub lock_wait: Duration,
    /// Whether to go past the page cache (O_DIRECT) where the file system can. Default: true.
    pub direct: bool,
    /// Whether to use io_uring where the kernel allows it. Default: true.
    pub io_uring: bool,
    /// Threads that do the I/O where io_uring is not used, shared by all handles. Default: 16, about what keeps an
    /// NVMe device busy without a thread per request.
    pub io_threads: usize,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            size: None,
            create: true,
            preallocate: true,
            lock_wait: Duration::from_secs(5),
            direct: true,
            io_uring: true,
            io_threads: 16,
        }
    }
}

/// What carries the operations of a [`FileDevice`](super::FileDevice).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// One io_uring per handle.
    IoUring,
    /// Positioned reads and writes on a few threads.
    Threads,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Engine::IoUring => "io_uring",
            Engine::Threads => "threads",
        })
    }
}

/// What may help where space cannot be reserved.
fn remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::FileTooLarge => "raise the limit of a file's size (ulimit -f)",
        _ => "free space on that file system",
    }
}

/// Why a file or block device could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The operating system refused to open it.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// What was to be opened.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A directory, pipe, socket or character device.
    #[error("{} is neither a regular file nor a block device", .0.display())]
    NotAFile(PathBuf),
    /// A block device, or a partition of it, is mounted.
    #[error("{} is mounted at {}; unmount it, or choose another device", path.display(), at.display())]
    Mounted {
        /// The block device.
        path: PathBuf,
        /// Where it is mounted.
        at: PathBuf,
    },
    /// Another process, or another handle in this one, holds it.
    #[error(
        "{} is in use by {holder} (waited {} ms for it); stop that process or choose another path",
        path.display(), waited.as_millis()
    )]
    Locked {
        /// What was to be opened.
        path: PathBuf,
        /// Who holds it, as far as that is known.
        holder: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// No size was asked for, and this file has none.
    #[error("{} is empty and no size was given; say how many bytes to use", .0.display())]
    NoSize(PathBuf),
    /// Less than one sector.
    #[error("{wanted} bytes are too few for {}; at least {} are needed", path.display(), crate::SECTOR_BYTES)]
    TooSmall {
        /// What was to be opened.
        path: PathBuf,
        /// The size asked for, or that it has.
        wanted: u64,
    },
    /// A block device cannot grow.
    #[error("{} has {has} bytes, but {wanted} were asked for; choose at most {has}", path.display())]
    DeviceTooSmall {
        /// The block device.
        path: PathBuf,
        /// The size asked for, in bytes.
        wanted: u64,
        /// The size it has, in bytes.
        has: u64,
    },
    /// The file system has no room.
    #[error(
        "cannot reserve {wanted} bytes for {}: {source}; {} or choose a smaller size",
        path.display(), remedy(source)
    )]
    Reserve {
        /// The file.
        path: PathBuf,
        /// The size asked for, in bytes.
        wanted: u64,
        /// Why not.
        source: io::Error,
    },
    /// Another step failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was being opened.
        path: PathBuf,
        /// What was tried: a verb.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}
