//! Opening, locking and reserving a file or block device.

use super::gate::Gate;
use super::holder::{holder, mounted_at};
use super::options::{Engine, FileError, FileOptions};
use super::pool::{Pool, PoolClient};
use super::ring;
use super::window::{Copied, Window};
use crate::{AlignedBuf, Buffer, Overdue, SECTOR_BYTES};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Advice, FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Appends up to this size go through a mapped window: log records, and not superblocks.
const SMALL_APPEND_BYTES: usize = 256;

/// A file with holes is reserved in so many pieces.
const HOLE_STEPS: u64 = 1024;

/// Pause between two tries to lock a file.
const LOCK_POLL: Duration = Duration::from_millis(10);

/// An open file or raw block device, shared by all threads that use it.
///
/// It is held exclusively (`flock` on the descriptor that does the I/O; on a block device, `O_EXCL` as well, which a
/// mounted one refuses) until it and every handle on it are gone. Opening never shortens a file and never overwrites
/// anything: whether its content is ours is for the store to say.
pub struct FileShared {
    path: PathBuf,
    capacity: u64,
    direct: bool,
    engine: Engine,
    /// Dropped before the descriptors: joins its threads.
    pool: Option<Pool>,
    /// Where appends go that may block; `None` for a block device, which no file system freezes. Dropped before the descriptors, too.
    gate: Option<Gate>,
    io: Arc<OwnedFd>,
    /// The file behind a loop device, which is locked too.
    _behind: Option<OwnedFd>,
    log: File,
    /// Where the log was appended to last; `None` where nothing may be mapped.
    window: Option<Mutex<Option<Window>>>,
    answers: Box<Answers>,
}

/// How often turns of any handle found answers of the medium. On a cache line of its own: all threads write to it.
#[derive(Default)]
#[repr(align(64))]
struct Answers(AtomicU64);

impl FileShared {
    /// Opens `path` and makes it ready: locked, of the wanted size, its space reserved. Blocks, for as long as
    /// [`FileOptions::lock_wait`] where another process still holds it.
    ///
    /// Where O_DIRECT or io_uring is refused, or switched off by the options, it warns once for each and goes on
    /// without.
    ///
    /// # Errors
    /// See [`FileError`]. A file that could not grow keeps the length it had.
    pub fn open(path: &Path, options: &FileOptions) -> Result<Self, FileError> {
        let deadline = Instant::now() + options.lock_wait;
        let Locked {
            io,
            mut direct,
            is_block_device,
            behind,
        } = open_locked(path, options, deadline)?;
        let had = length(path, &io, is_block_device)?;
        let capacity = match options.size {
            Some(size) => size,
            None if had == 0 => return Err(FileError::NoSize(path.into())),
            None => had,
        };
        if capacity < SECTOR_BYTES as u64 {
            return Err(FileError::TooSmall {
                path: path.into(),
                wanted: capacity,
            });
        }
        let capacity = capacity - capacity % SECTOR_BYTES as u64;
        if is_block_device {
            if had < capacity {
                return Err(FileError::DeviceTooSmall {
                    path: path.into(),
                    wanted: capacity,
                    has: had,
                });
            }
        } else {
            reserve(path, &io, had, capacity, options.preallocate)?;
        }
        if direct && let Err(source) = try_direct(&io) {
            warn_buffered(path, &source.to_string());
            clear_direct(path, &io)?;
            direct = false;
        }
        let log = open_log(path, &io)?;
        cache_single_pages(&log, direct);
        let gate = (!is_block_device).then(|| {
            let log = log.try_clone()?;
            Gate::new(Box::new(move |bytes, offset| match bytes {
                [] => Ok(rustix::io::pwrite(&log, bytes, offset).map(drop)?),
                bytes => log.write_all_at(bytes, offset),
            }))
        });
        let gate = gate
            .transpose()
            .map_err(|source| failed(path, "start a thread for", source))?;
        let maps = is_block_device || options.preallocate && rewrites_in_place(&log);
        let io = Arc::new(io);
        let refused = if options.io_uring {
            ring::probe().err().map(|error| error.to_string())
        } else {
            Some("switched off".to_owned())
        };
        let pool = match refused {
            None => None,
            Some(why) => {
                tracing::warn!(
                    path = %path.display(),
                    why,
                    "io_uring is not used: I/O runs on {} threads, at a higher cost per request",
                    options.io_threads.max(1)
                );
                let pool = Pool::new(&io, options.io_threads);
                Some(pool.map_err(|source| failed(path, "start I/O threads for", source))?)
            }
        };
        Ok(Self {
            path: path.into(),
            capacity,
            direct,
            engine: if pool.is_some() {
                Engine::Threads
            } else {
                Engine::IoUring
            },
            pool,
            io,
            _behind: behind,
            log,
            gate,
            window: maps.then(|| Mutex::new(None)),
            answers: Box::default(),
        })
    }

    /// What was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size in bytes, a multiple of [`SECTOR_BYTES`].
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Whether nothing was ever written to the sector at `offset`, reserved or not.
    pub(super) fn is_hole(&self, offset: u64) -> bool {
        match rustix::fs::seek(&self.io, SeekFrom::Data(offset)) {
            Ok(data) => data > offset,
            // None up to the end.
            Err(error) => error == Errno::NXIO,
        }
    }

    /// Whether reads and writes go past the page cache (O_DIRECT).
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// What carries the operations of every handle.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// The descriptor for reads and writes.
    pub(super) fn io(&self) -> &Arc<OwnedFd> {
        &self.io
    }

    /// The medium has answered something.
    pub(super) fn note_answer(&self) {
        self.answers.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Grows where the medium has answered anyone.
    pub(super) fn answers(&self) -> u64 {
        self.answers.0.load(Ordering::Relaxed)
    }

    /// From now on the medium of new handles answers nothing.
    #[cfg(test)]
    pub(super) fn hang(&mut self) {
        self.pool = Some(Pool::without_threads());
    }

    /// A connection to the I/O threads, if they are the engine.
    pub(super) fn connect_pool(&self) -> Option<PoolClient> {
        self.pool.as_ref().map(Pool::connect)
    }

    /// Keeps log appends from blocking.
    pub(super) fn gate(&self) -> Option<&Gate> {
        self.gate.as_ref()
    }

    /// Writes to the page cache: small pieces by a copy into a mapped window of it, where that can be had and does not block.
    pub(super) fn append_log(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let is_small = bytes.len() <= SMALL_APPEND_BYTES;
        if let Some(gate) = &self.gate
            && !(is_small && gate.is_open())
        {
            return gate
                .append(offset, bytes)
                .map_err(|error| match Overdue::is(&error) {
                    true => error,
                    false => self.log_failed("append", offset, bytes.len(), &error),
                });
        }
        if is_small {
            match self.append_mapped(offset, bytes) {
                Copied::Whole => return Ok(()),
                Copied::Elsewhere => {}
                Copied::Lost => {
                    let error = io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the file was cut short, or its pages cannot be had any more",
                    );
                    return Err(self.log_failed("append", offset, bytes.len(), &error));
                }
            }
        }
        self.log
            .write_all_at(bytes, offset)
            .map_err(|error| self.log_failed("append", offset, bytes.len(), &error))
    }

    fn append_mapped(&self, offset: u64, bytes: &[u8]) -> Copied {
        let Some(window) = &self.window else {
            return Copied::Elsewhere;
        };
        let mut window = window.lock().unwrap_or_else(PoisonError::into_inner);
        let write = |window: &mut Option<Window>| {
            let copied = window.as_mut().map(|window| window.write(offset, bytes));
            copied.unwrap_or(Copied::Elsewhere)
        };
        let copied = write(&mut window);
        if copied != Copied::Elsewhere {
            return copied;
        }
        *window = None;
        *window = Window::map(&self.log, self.capacity, offset);
        write(&mut window)
    }

    /// Reads through the page cache.
    pub(super) fn read_log(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let len = out.len();
        self.log
            .read_exact_at(out, offset)
            .map_err(|error| self.log_failed("read", offset, len, &error))
    }

    fn log_failed(&self, what: &str, offset: u64, len: usize, error: &io::Error) -> io::Error {
        let path = self.path.display();
        io::Error::new(
            error.kind(),
            format!("log {what} of {len} bytes at {offset} of {path} failed: {error}"),
        )
    }
}

impl AsFd for FileShared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.io.as_fd()
    }
}

fn failed(path: &Path, action: &'static str, source: impl Into<io::Error>) -> FileError {
    FileError::Io {
        path: path.into(),
        action,
        source: source.into(),
    }
}

fn warn_buffered(path: &Path, why: &str) {
    tracing::warn!(
        path = %path.display(),
        why,
        "O_DIRECT is not used: I/O goes through the page cache, which takes memory beyond the budget"
    );
}

/// What was opened for I/O and locked.
struct Locked {
    io: OwnedFd,
    direct: bool,
    is_block_device: bool,
    behind: Option<OwnedFd>,
}

/// Opens `path` for I/O and takes its lock.
fn open_locked(path: &Path, options: &FileOptions, deadline: Instant) -> Result<Locked, FileError> {
    let open_error = |source: Errno| FileError::Open {
        path: path.into(),
        source: source.into(),
    };
    // Waits for a moment; whoever has it is named first, and where the time is over.
    let mut is_waiting = false;
    let mut wait = |held: &Stat| {
        if Instant::now() >= deadline {
            return Err(FileError::Locked {
                path: path.into(),
                holder: holder(held),
                waited: options.lock_wait,
            });
        }
        if !std::mem::replace(&mut is_waiting, true) {
            let secs = options.lock_wait.as_secs();
            tracing::info!(
                "{} is in use by {}: waits up to {secs} s for it",
                path.display(),
                holder(held)
            );
        }
        std::thread::sleep(LOCK_POLL);
        Ok(())
    };
    let before = rustix::fs::stat(path)
        .ok()
        .filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice);
    let is_block_device = before.is_some();
    let mut flags = OFlags::RDWR | OFlags::CLOEXEC;
    // On a block device, O_EXCL (without O_CREAT) means: not mounted and not held by anyone else.
    flags.set(OFlags::EXCL, is_block_device);
    flags.set(OFlags::CREATE, options.create && !is_block_device);
    flags.set(OFlags::DIRECT, options.direct);
    if !options.direct {
        warn_buffered(path, "switched off");
    }
    let io = loop {
        match rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(io) => break io,
            Err(Errno::INTR) => {}
            Err(Errno::INVAL) if flags.contains(OFlags::DIRECT) => {
                warn_buffered(path, "the file system refuses it (EINVAL)");
                flags.remove(OFlags::DIRECT);
            }
            Err(error) => match &before {
                Some(before) if error == Errno::BUSY => match mounted_at(before.st_rdev) {
                    Some(at) => {
                        return Err(FileError::Mounted {
                            path: path.into(),
                            at,
                        });
                    }
                    None => wait(before)?,
                },
                _ => return Err(open_error(error)),
            },
        }
    };
    let stat = rustix::fs::fstat(&io).map_err(open_error)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind != FileType::RegularFile && kind != FileType::BlockDevice {
        return Err(FileError::NotAFile(path.into()));
    }
    let mut lock = |file: &OwnedFd| loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => wait(&rustix::fs::fstat(file).map_err(open_error)?)?,
            Err(error) => return Err(failed(path, "lock", error)),
        }
    };
    lock(&io)?;
    let is_block_device = kind == FileType::BlockDevice;
    let behind = is_block_device.then(|| file_behind(stat.st_rdev)).flatten();
    if let Some(behind) = &behind {
        lock(behind)?;
    }
    Ok(Locked {
        io,
        direct: flags.contains(OFlags::DIRECT),
        is_block_device,
        behind,
    })
}

/// The file behind a loop device, by the device's number, as far as that can be told; of a partition none, as others may use its neighbours. Who
/// uses one of the two locks both, to keep others from both.
pub fn file_behind(device: u64) -> Option<OwnedFd> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let path = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/loop/backing_file")).ok()?;
    rustix::fs::open(
        path.trim_end_matches('\n'),
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()
}

fn length(path: &Path, io: &OwnedFd, is_block_device: bool) -> Result<u64, FileError> {
    if is_block_device {
        return rustix::fs::seek(io, SeekFrom::End(0))
            .map_err(|error| failed(path, "find the size of", error));
    }
    let stat = rustix::fs::fstat(io).map_err(|error| failed(path, "find the size of", error))?;
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

/// Makes the file at least `wanted` bytes long, with space for all of them unless it may have holes.
fn reserve(path: &Path, io: &OwnedFd, had: u64, wanted: u64, preallocate: bool) -> Result<(), FileError> {
    let error = |source: Errno| FileError::Reserve {
        path: path.into(),
        wanted,
        source: source.into(),
    };
    if !preallocate {
        return if had < wanted {
            rustix::fs::ftruncate(io, wanted).map_err(error)
        } else {
            Ok(())
        };
    }
    // Where it cannot work, say so before the disk is filled in vain.
    let stat = rustix::fs::fstat(io).map_err(error)?;
    let room = rustix::fs::fstatvfs(io).map_err(error)?;
    let allocated = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
    if wanted.saturating_sub(allocated) > room.f_bfree.saturating_mul(room.f_frsize) {
        return Err(error(Errno::NOSPC));
    }
    let result = if allocated < had {
        // There are holes. By pieces, as XFS wants as much free space as is asked for, however much of it is allocated.
        let step = (wanted / HOLE_STEPS).max(1 << 20);
        (0..wanted.div_ceil(step)).try_for_each(|n| allocate(io, had, n * step, step.min(wanted - n * step)))
    } else if had < wanted {
        allocate(io, had, had, wanted - had)
    } else {
        Ok(())
    };
    result.map_err(|source| {
        // Give back what was reserved before the end was reached.
        let _ = rustix::fs::ftruncate(io, had.max(u64::try_from(stat.st_size).unwrap_or(0)));
        error(source)
    })
}

/// Reserves `len` bytes from `from` on of a file that had `had`.
fn allocate(io: &OwnedFd, had: u64, from: u64, len: u64) -> Result<(), Errno> {
    loop {
        match rustix::fs::fallocate(io, FallocateFlags::empty(), from, len) {
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP) if from + len <= had => return Ok(()),
            Err(Errno::OPNOTSUPP) => return fill_with_zeros(io, had.max(from), from + len),
            result => return result,
        }
    }
}

/// Reserves space behind the end of a file on a file system without fallocate.
fn fill_with_zeros(io: &OwnedFd, mut from: u64, to: u64) -> Result<(), Errno> {
    let zeros = AlignedBuf::with_len(1 << 20);
    // O_DIRECT wants whole sectors: a partial one at the end is made whole by a hole first.
    if !from.is_multiple_of(SECTOR_BYTES as u64) {
        from = from.next_multiple_of(SECTOR_BYTES as u64).min(to);
        rustix::fs::ftruncate(io, from)?;
    }
    while from < to {
        let len = (to - from).min(zeros.len() as u64) as usize;
        match rustix::io::pwrite(io, &zeros.as_slice()[..len], from) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(written) => from += written as u64,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether O_DIRECT with our alignment works: some file systems only say so when they are asked to read.
fn try_direct(io: &OwnedFd) -> Result<(), Errno> {
    let mut sector = AlignedBuf::with_len(SECTOR_BYTES);
    match rustix::io::pread(io, sector.as_mut_slice(), 0) {
        Err(error @ (Errno::INVAL | Errno::OPNOTSUPP)) => Err(error),
        _ => Ok(()),
    }
}

fn clear_direct(path: &Path, io: &OwnedFd) -> Result<(), FileError> {
    let flags = rustix::fs::fcntl_getfl(io).map_err(|error| failed(path, "read the flags of", error))?;
    rustix::fs::fcntl_setfl(io, flags - OFlags::DIRECT)
        .map_err(|error| failed(path, "set the flags of", error))
}

/// Whether a file system writes reserved bytes where they are, so that a page of them can always be written: one that
/// copies on write may have no room left, and would end the process for it.
fn rewrites_in_place(file: &File) -> bool {
    const EXT: i64 = 0xEF53;
    const XFS: i64 = 0x5846_5342;
    const TMPFS: i64 = 0x0102_1994;
    rustix::fs::fstatfs(file).is_ok_and(|stat| [EXT, XFS, TMPFS].contains(&stat.f_type))
}

/// Has the page cache hold the log in single pages. Read ahead, or written in large pieces, it may be in pieces of 1 MiB and more, and each
/// flush of one log record would write such a piece as a whole. Nothing fails without.
fn cache_single_pages(log: &File, direct: bool) {
    let advise = |advice| {
        let advised = rustix::fs::fadvise(log, 0, None, advice);
        advised.unwrap_or_else(|error| tracing::debug!("advice on the page cache: {error}"));
    };
    advise(Advice::Random);
    if direct {
        // What others left there; without O_DIRECT it is of use.
        advise(Advice::DontNeed);
    }
}

/// Opens the same file once more, through the page cache.
fn open_log(path: &Path, io: &OwnedFd) -> Result<File, FileError> {
    let log = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|source| {
        FileError::Open {
            path: path.into(),
            source: source.into(),
        }
    })?;
    let identity = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
    match (identity(io), identity(&log)) {
        (Ok(one), Ok(other)) if one == other => Ok(log.into()),
        _ => Err(failed(
            path,
            "open",
            io::Error::other("the file was replaced while it was opened"),
        )),
    }
}
