//! A file or a block device, through the page cache.

use super::whole::Changes;
use bytes::Bytes;
use pumice_device::{FileOptions, file_behind, holder, mounted_at};
use pumice_volume::{Backing, Extent};
use rustix::fs::{
    FallocateFlags, FlockOperation, Mode as FileMode, OFlags, SeekFrom, XattrFlags, fallocate, fgetxattr,
    flock, fremovexattr, fsetxattr, major, minor, open, seek,
};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, IoSliceMut};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause between two tries to lock a file.
const LOCK_POLL: Duration = Duration::from_millis(10);

/// Zeros that are written at once, if the file system cannot zero a range itself.
const ZEROS_BYTES: usize = 1 << 20;

/// Extended attribute of a backing file: the id of the cache that it was served with last, 0 = none.
const CACHE: &str = "user.pumice.cache";

/// Extended attribute of a backing file, while a cache may have writes that the file lacks: the id of that cache, and its path.
const DIRTY: &str = "user.pumice.dirty";

/// Most bytes of an extended attribute.
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;

/// A cache that may have writes which its backing file lacks.
#[derive(Debug, PartialEq, Eq)]
pub struct DirtyCache {
    /// Its id.
    pub id: u64,
    /// Where it was; empty if the attribute had no room for that.
    pub path: PathBuf,
}

impl DirtyCache {
    fn encode(&self) -> Vec<u8> {
        [&self.id.to_le_bytes(), self.path.as_os_str().as_bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (id, path) = bytes.split_first_chunk()?;
        Some(Self {
            id: u64::from_le_bytes(*id),
            path: OsStr::from_bytes(path).into(),
        })
    }
}

/// An open file or block device, locked for this process. All threads share it.
#[derive(Clone)]
pub struct FileBacking(Arc<Opened>);

struct Opened {
    file: File,
    /// The file behind a loop device, which is locked too.
    behind: Option<File>,
    path: PathBuf,
    size: u64,
    is_block_device: bool,
    changes: Changes,
}

impl FileBacking {
    /// Opens and locks an existing file or block device. Read-only servers share the lock; otherwise it is exclusive.
    ///
    /// # Errors
    /// An error of the system, a lock of another process, neither a file nor a block device, or size 0.
    pub fn open(path: &Path, is_read_only: bool) -> io::Result<Self> {
        let named = |error: io::Error| {
            io::Error::new(
                error.kind(),
                format!("backing device {}: {error}", path.display()),
            )
        };
        let (file, behind) = open_and_lock(path, is_read_only).map_err(named)?;
        let metadata = file.metadata().map_err(named)?;
        let is_block_device = metadata.file_type().is_block_device();
        let size = match is_block_device {
            true => seek(&file, SeekFrom::End(0)).map_err(|error| named(error.into()))?,
            false if metadata.is_file() => metadata.len(),
            false => return Err(named(io::Error::other("it is no file and no block device"))),
        };
        if size == 0 {
            return Err(named(io::Error::other(
                "it is empty: give it the size that the volume is to have",
            )));
        }
        Ok(Self(Arc::new(Opened {
            file,
            behind,
            path: path.to_owned(),
            size,
            is_block_device,
            changes: Changes::default(),
        })))
    }

    /// A hash that identifies it: of the size, and of a file's canonical path and inode number, or of a block device's WWID, serial number
    /// or the like. Whether it is the same after a restart of the machine.
    ///
    /// # Errors
    /// An error of the system.
    pub fn identity(&self) -> io::Result<(u64, bool)> {
        let metadata = self.0.file.metadata()?;
        let (mut text, is_permanent) = match self.0.is_block_device {
            true => {
                let (major, minor) = (major(metadata.rdev()), minor(metadata.rdev()));
                let place = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
                block_device(&place.canonicalize()?)?
            }
            false => {
                let mut text = self.0.path.canonicalize()?.into_os_string().into_encoded_bytes();
                text.extend_from_slice(&metadata.ino().to_le_bytes());
                (text, true)
            }
        };
        text.extend_from_slice(&self.0.size.to_le_bytes());
        Ok((twox_hash::XxHash3_64::oneshot(&text), is_permanent))
    }

    /// Whether it was served with another cache, or none, since it was served with this one. False if unknown: on block devices, and on
    /// file systems without extended attributes.
    pub fn has_left(&self, cache: u64) -> bool {
        let mut last = [0; 8];
        let length = fgetxattr(&self.0.file, CACHE, &mut last);
        length == Ok(last.len()) && u64::from_le_bytes(last) != cache
    }

    /// Records durably the cache with which it is served from now on, 0 = none, for [`FileBacking::has_left`].
    pub fn note_cache(&self, cache: u64) {
        // Where it cannot be recorded, `has_left` finds nothing.
        let _ = fsetxattr(&self.0.file, CACHE, &cache.to_le_bytes(), XattrFlags::empty());
        let _ = self.0.file.sync_all();
    }

    /// The cache that may have writes which the file lacks. `None` if unknown: see [`FileBacking::has_left`].
    ///
    /// # Errors
    /// The file system cannot read what it has.
    pub fn dirty_cache(&self) -> io::Result<Option<DirtyCache>> {
        if self.0.is_block_device {
            return Ok(None);
        }
        let mut bytes = vec![0; ATTRIBUTE_BYTES_MAX];
        match fgetxattr(&self.0.file, DIRTY, &mut bytes[..]) {
            Ok(length) => Ok(DirtyCache::decode(&bytes[..length])),
            Err(Errno::IO) => Err(Errno::IO.into()),
            // None, or none that this file system could have.
            Err(_) => Ok(None),
        }
    }

    /// Records durably that a cache may have writes which the file lacks from now on. Where it cannot be recorded it warns, and a start without
    /// that cache is not noticed.
    ///
    /// # Errors
    /// The file cannot be flushed.
    pub fn note_dirty(&self, mut cache: DirtyCache) -> io::Result<()> {
        if self.0.is_block_device {
            return Ok(());
        }
        if self.dirty_cache()?.as_ref() != Some(&cache) {
            let set =
                |cache: &DirtyCache| fsetxattr(&self.0.file, DIRTY, &cache.encode(), XattrFlags::empty());
            let noted = set(&cache).or_else(|_| {
                cache.path = PathBuf::new();
                set(&cache)
            });
            if let Err(error) = noted {
                tracing::warn!(
                    "{}: it cannot have the attribute {DIRTY} ({error}): no start will notice that a cache with writes that it lacks is missing",
                    self.0.path.display()
                );
                return Ok(());
            }
        }
        // An attribute is no data: fdatasync may leave it out.
        self.0.file.sync_all()
    }

    /// Records durably that no cache has writes which the file lacks.
    ///
    /// # Errors
    /// An error of the system.
    pub fn note_clean(&self) -> io::Result<()> {
        if self.dirty_cache()?.is_none() {
            return Ok(());
        }
        fremovexattr(&self.0.file, DIRTY)?;
        self.0.file.sync_all()
    }

    /// Whether `path` is the same file or device, or one of both is the file behind the other.
    pub fn is_at(&self, path: &Path) -> bool {
        let Ok(of) = std::fs::metadata(path) else {
            return false;
        };
        let own = [Some(&self.0.file), self.0.behind.as_ref()];
        let own: Vec<_> = (own.into_iter().flatten())
            .filter_map(|file| file.metadata().ok())
            .collect();
        let behind = file_behind_of(&of).and_then(|file| file.metadata().ok());
        let is_same = |of: &Metadata| own.iter().any(|own| is_same(own, of));
        is_same(&of) || behind.as_ref().is_some_and(is_same)
    }

    /// Runs `act` on a thread that may block.
    async fn run<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Opened) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let opened = Arc::clone(&self.0);
        tokio::task::spawn_blocking(move || act(&opened))
            .await
            .map_err(io::Error::other)?
    }
}

/// Whether it is the same file or block device.
fn is_same(one: &Metadata, other: &Metadata) -> bool {
    match one.file_type().is_block_device() {
        true => one.rdev() == other.rdev() && other.file_type().is_block_device(),
        false => (one.dev(), one.ino()) == (other.dev(), other.ino()),
    }
}

/// The file behind a loop device.
fn file_behind_of(metadata: &Metadata) -> Option<File> {
    let is_block_device = metadata.file_type().is_block_device();
    is_block_device
        .then(|| file_behind(metadata.rdev()))
        .flatten()
        .map(File::from)
}

/// A time in half a word, not 0.
fn half(secs: i64, nanoseconds: i64) -> u64 {
    let text = [secs.to_le_bytes(), nanoseconds.to_le_bytes()].concat();
    (twox_hash::XxHash3_64::oneshot(&text) >> 32).max(1)
}

/// Opens and locks a file or a block device. Retries for some seconds while another process has it, which may be ending. A FIFO does not
/// block it.
fn open_and_lock(path: &Path, is_read_only: bool) -> io::Result<(File, Option<File>)> {
    let (access, lock) = match is_read_only {
        true => (OFlags::RDONLY, FlockOperation::NonBlockingLockShared),
        false => (OFlags::RDWR, FlockOperation::NonBlockingLockExclusive),
    };
    let mut flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK;
    // On a block device EXCL fails if it is mounted.
    let is_block_device = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    flags.set(OFlags::EXCL, is_block_device);
    let wait = FileOptions::default().lock_wait;
    let deadline = Instant::now() + wait;
    let mut is_waiting = false;
    loop {
        let opened = open(path, flags, FileMode::empty()).and_then(|file| {
            flock(&file, lock)?;
            let file = File::from(file);
            let behind = file
                .metadata()
                .ok()
                .and_then(|metadata| file_behind_of(&metadata));
            behind.as_ref().map_or(Ok(()), |behind| flock(behind, lock))?;
            Ok((file, behind))
        });
        let error = match opened {
            Ok(opened) => return Ok(opened),
            Err(Errno::INTR) => continue,
            Err(error) => error,
        };
        let held = rustix::fs::stat(path).ok();
        let reason = match error {
            Errno::WOULDBLOCK => {
                let holder = held.map_or_else(|| "another process".to_owned(), |held| holder(&held));
                format!("{holder} serves it")
            }
            Errno::BUSY => match held.and_then(|held| mounted_at(held.st_rdev)) {
                Some(at) => {
                    let mounted = format!("it is mounted at {}; unmount it", at.display());
                    return Err(io::Error::other(mounted));
                }
                None => "another program has it".to_owned(),
            },
            error => return Err(error.into()),
        };
        if Instant::now() >= deadline {
            return Err(io::Error::other(reason));
        }
        if !std::mem::replace(&mut is_waiting, true) {
            let (path, secs) = (path.display(), wait.as_secs());
            tracing::info!("backing device {path}: {reason}: waits up to {secs} s for it");
        }
        std::thread::sleep(LOCK_POLL);
    }
}

/// The identity of a block device by its directory in `/sys/devices`: partition number, and the first of WWID, serial number, dm UUID or
/// loop file that it has. Whether it is permanent: otherwise it ends when the device is removed or the machine restarts.
fn block_device(directory: &Path) -> io::Result<(Vec<u8>, bool)> {
    let value = |directory: &Path, name: &str| {
        let text = std::fs::read(directory.join(name)).ok()?;
        let text = text.trim_ascii();
        (!text.is_empty()).then(|| [name.as_bytes(), b"=", text, b"\n"].concat())
    };
    let partition = value(directory, "partition");
    let whole = match &partition {
        Some(_) => directory.parent().unwrap_or(directory),
        None => directory,
    };
    let mut text = partition.unwrap_or_default();
    let names = [
        "dm/uuid",
        "wwid",
        "device/wwid",
        "serial",
        "device/serial",
        "loop/backing_file",
    ];
    if let Some(found) = names.iter().find_map(|name| value(whole, name)) {
        text.extend(found);
        return Ok((text, true));
    }
    text.extend(std::fs::read("/proc/sys/kernel/random/boot_id")?);
    text.extend(value(whole, "diskseq").unwrap_or_default());
    text.extend(directory.as_os_str().as_encoded_bytes());
    Ok((text, false))
}

impl Opened {
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let range = offset..offset + data.len() as u64;
        let write = || self.file.write_all_at(data, offset);
        self.changes.change(&range, write)
    }

    fn zero(&self, offset: u64, len: u64, may_punch: bool) -> io::Result<()> {
        let zero = || self.zero_unguarded(offset, len, may_punch);
        self.changes.change(&(offset..offset + len), zero)
    }

    fn zero_unguarded(&self, mut offset: u64, len: u64, may_punch: bool) -> io::Result<()> {
        let how = match may_punch {
            true => FallocateFlags::PUNCH_HOLE,
            false => FallocateFlags::ZERO_RANGE,
        };
        match fallocate(&self.file, how | FallocateFlags::KEEP_SIZE, offset, len) {
            // The file system does not support it, or the range is not aligned to a block device's sectors.
            Err(Errno::OPNOTSUPP | Errno::INVAL) => {}
            done => return Ok(done?),
        }
        let zeros = vec![0; ZEROS_BYTES.min(usize::try_from(len).unwrap_or(usize::MAX))];
        let end = offset + len;
        while offset < end {
            let part = (zeros.len() as u64).min(end - offset);
            self.file.write_all_at(&zeros[..part as usize], offset)?;
            offset += part;
        }
        Ok(())
    }

    fn extents(&self, offset: u64, len: u64, most: usize) -> io::Result<Vec<Extent>> {
        let (mut at, end) = (offset, offset + len);
        let mut extents = Vec::new();
        while at < end && extents.len() < most {
            let data = match self.is_block_device {
                true => at,
                false => match seek(&self.file, SeekFrom::Data(at)) {
                    Ok(data) => data.min(end),
                    // A hole up to the end of the file.
                    Err(Errno::NXIO) => end,
                    Err(_) => at,
                },
            };
            if data > at {
                extents.push(Extent {
                    length: data - at,
                    is_hole: true,
                });
                at = data;
                continue;
            }
            let hole = match self.is_block_device {
                true => end,
                false => seek(&self.file, SeekFrom::Hole(at)).unwrap_or(end).min(end),
            };
            // At least a byte, in case the file changes meanwhile.
            let hole = hole.max(at + 1);
            extents.push(Extent {
                length: hole - at,
                is_hole: false,
            });
            at = hole;
        }
        Ok(extents)
    }
}

impl Backing for FileBacking {
    fn size(&self) -> u64 {
        self.0.size
    }

    fn modified(&self) -> io::Result<u64> {
        if self.0.is_block_device {
            return Ok(0);
        }
        // A power cut may not undo a time that is noted.
        self.0.file.sync_all()?;
        let metadata = self.0.file.metadata()?;
        let content = half(metadata.mtime(), metadata.mtime_nsec());
        // No program can set it, so it tells of a file that was put back with its old time.
        let status = half(metadata.ctime(), metadata.ctime_nsec());
        Ok(content << 32 | status)
    }

    async fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let range = offset..offset + len as u64;
        let ended = self.0.changes.ended(&range);
        // Bytes in the page cache are read without another thread.
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let here = preadv2(&self.0.file, &mut slices, offset, ReadWriteFlags::NOWAIT).unwrap_or(0);
        if here == len && self.0.changes.was_whole(&range, ended) {
            return Ok(bytes);
        }
        self.run(move |opened| {
            let Opened { file, changes, .. } = opened;
            file.read_exact_at(&mut bytes[here..], offset + here as u64)?;
            if !changes.was_whole(&range, ended) {
                changes.unchanged(&range, || file.read_exact_at(&mut bytes, offset))?;
            }
            Ok(bytes)
        })
        .await
    }

    async fn write_at(&self, offset: u64, data: Bytes) -> io::Result<()> {
        self.run(move |opened| opened.write(offset, &data)).await
    }

    async fn zero(&self, offset: u64, len: u64, may_punch: bool) -> io::Result<()> {
        self.run(move |opened| opened.zero(offset, len, may_punch)).await
    }

    async fn flush(&self) -> io::Result<()> {
        self.run(|opened| opened.file.sync_data()).await
    }

    async fn extents(&self, offset: u64, len: u64, most: usize) -> io::Result<Vec<Extent>> {
        self.run(move |opened| opened.extents(offset, len, most)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(bytes: &[u8]) -> (tempfile::NamedTempFile, FileBacking) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let backing = FileBacking::open(file.path(), false).unwrap();
        (file, backing)
    }

    #[tokio::test]
    async fn bytes_of_any_range_are_written_read_and_zeroed() {
        let (file, backing) = opened(&[1; 20_000]);
        assert_eq!(backing.size(), 20_000);
        backing
            .write_at(511, Bytes::from_static(&[2; 513]))
            .await
            .unwrap();
        backing.zero(4096, 4096, true).await.unwrap();
        backing.zero(10_001, 3, false).await.unwrap();
        backing.flush().await.unwrap();
        let mut expected = vec![1; 20_000];
        expected[511..1024].fill(2);
        expected[4096..8192].fill(0);
        expected[10_001..10_004].fill(0);
        assert_eq!(backing.read_at(0, 20_000).await.unwrap(), expected);
        assert_eq!(backing.read_at(10_000, 5).await.unwrap(), [1, 0, 0, 0, 1]);
        assert_eq!(std::fs::read(file.path()).unwrap(), expected);
        assert!(backing.read_at(19_999, 2).await.is_err());
    }

    /// The page cache alone gives some ten mixed sectors in a thousand reads.
    #[tokio::test]
    async fn a_sector_that_is_read_while_it_changes_is_old_or_new() {
        const LEN: usize = 4096;
        let (_file, backing) = opened(&[1; LEN]);
        let opened = Arc::clone(&backing.0);
        let changing = std::thread::spawn(move || {
            for change in 0..4000_u32 {
                let done = match change % 4 {
                    0 => opened.write(0, &[1; LEN]),
                    1 => opened.zero(512, LEN as u64 - 512, false),
                    2 => opened.write(0, &[2; LEN]),
                    _ => opened.zero(512, LEN as u64 - 512, true),
                };
                done.unwrap();
            }
        });
        while !changing.is_finished() {
            let bytes = backing.read_at(0, LEN).await.unwrap();
            for sector in bytes.chunks(512) {
                assert!(sector.iter().all(|byte| *byte == sector[0]), "{sector:?}");
            }
        }
        changing.join().unwrap();
    }

    #[tokio::test]
    async fn extents_cover_a_range_in_order() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let backing = FileBacking::open(file.path(), false).unwrap();
        backing
            .write_at(256 << 10, Bytes::from_static(&[1; 4096]))
            .await
            .unwrap();
        for (offset, len) in [
            (0, 1 << 20),
            (1, 300 << 10),
            (257 << 10, 1),
            ((256 << 10) + 5, 700 << 10),
        ] {
            let extents = backing.extents(offset, len, 100).await.unwrap();
            let (mut at, end) = (offset, offset + len);
            for extent in extents {
                assert!(extent.length > 0 && at < end);
                let has_data = at < 260 << 10 && at + extent.length > 256 << 10;
                assert!(!(has_data && extent.is_hole), "{at}: {extent:?}");
                at += extent.length;
            }
            assert_eq!(at, end);
        }
        // What the file system says of a file of which nothing was written.
        let first = backing.extents(0, 1 << 20, 1).await.unwrap();
        assert_eq!(first.len(), 1);
        backing.zero(0, 1 << 20, true).await.unwrap();
        assert_eq!(backing.read_at(256 << 10, 4096).await.unwrap(), [0; 4096]);
    }

    #[test]
    fn a_file_knows_the_cache_that_has_what_it_lacks() {
        let (file, backing) = opened(&[1; 512]);
        if fsetxattr(&backing.0.file, "user.test", b"", XattrFlags::empty()).is_err() {
            return println!("the file system of {} has no attributes", file.path().display());
        }
        assert_eq!(backing.dirty_cache().unwrap(), None);
        backing.note_clean().unwrap();
        // A file system may have no room for the longest path.
        for (id, path) in [(7, "/fast/cache".to_owned()), (8, "/long".repeat(800))] {
            let cache = || DirtyCache {
                id,
                path: PathBuf::from(&path),
            };
            backing.note_dirty(cache()).unwrap();
            backing.note_dirty(cache()).unwrap();
            let found = backing.dirty_cache().unwrap().unwrap();
            let is_short = id == 7;
            assert!(
                found == cache() || !is_short && found.id == id && found.path == Path::new(""),
                "{found:?}"
            );
        }
        drop(backing);
        let backing = FileBacking::open(file.path(), true).unwrap();
        assert_eq!(backing.dirty_cache().unwrap().unwrap().id, 8);
        backing.note_clean().unwrap();
        assert_eq!(backing.dirty_cache().unwrap(), None);
        fsetxattr(&backing.0.file, DIRTY, b"short", XattrFlags::empty()).unwrap();
        assert_eq!(backing.dirty_cache().unwrap(), None, "not Pumice's");
    }

    #[test]
    fn a_file_that_was_put_back_with_its_old_time_has_changed() {
        let (file, backing) = opened(&[1; 512]);
        let changed = file.as_file().metadata().unwrap().modified().unwrap();
        let before = backing.modified().unwrap();
        assert_eq!(backing.modified().unwrap(), before);
        let begun = Instant::now();
        let after = loop {
            // The clock of a file system may stand for some milliseconds.
            file.as_file().set_modified(changed).unwrap();
            match backing.modified().unwrap() {
                same if same == before => assert!(begun.elapsed() < Duration::from_secs(20)),
                after => break after,
            }
        };
        assert_eq!(after >> 32, before >> 32, "the time of its bytes");
        file.as_file()
            .set_modified(changed + Duration::from_nanos(1))
            .unwrap();
        assert_ne!(backing.modified().unwrap() >> 32, before >> 32);
    }

    #[test]
    fn a_block_device_is_known_by_what_it_has_for_good() {
        let root = tempfile::tempdir().unwrap();
        let make = |place: &str, text: &str| {
            let path = root.path().join(place);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let known = |place: &str| block_device(&root.path().join(place)).unwrap();
        make("sda/device/wwid", "naa.1\n");
        make("sda/sda1/partition", "1\n");
        make("sda/sda2/partition", "2\n");
        make("sdb/device/wwid", "naa.1\n");
        make("sdc/device/wwid", "naa.2\n");
        make("sdd/serial", "\n");
        make("sde/diskseq", "9\n");
        assert_eq!(known("sda"), known("sdb"), "another name after a restart");
        let others = ["sda", "sda/sda1", "sda/sda2", "sdc", "sdd", "sde"].map(known);
        for (at, one) in others.iter().enumerate() {
            assert!(!others[..at].contains(one), "{at}");
        }
        make("sde/diskseq", "10\n");
        assert_ne!(known("sde"), others[5], "another medium in the same drive");
    }

    #[test]
    fn nothing_is_served_twice_or_without_a_size() {
        let (file, _backing) = opened(&[1; 512]);
        let error = |path: &Path, is_read_only| {
            let refused = FileBacking::open(path, is_read_only).err().expect("refused");
            format!("{refused:#}")
        };
        let own = format!("process {} (", std::process::id());
        assert!(error(file.path(), false).contains(&own));
        let empty = tempfile::NamedTempFile::new().unwrap();
        assert!(error(empty.path(), false).contains("empty"));
        assert!(error(Path::new("/dev/null"), false).contains("no file"));
        assert!(error(Path::new("/no/such"), false).contains("/no/such"));
    }
}
