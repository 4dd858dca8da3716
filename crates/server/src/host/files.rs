//! Files and block devices that a start looks at, makes and opens.

use anyhow::{Context, anyhow};
use pumice_blocks::geometry::SUPERBLOCKS_BYTES;
use pumice_blocks::open::{check_maker, read_superblock};
use pumice_blocks::{Maker, OpenError, StoreId, Superblock};
use pumice_console::usage;
use pumice_device::{FileDevice, FileError, FileOptions, FileShared, SECTOR_BYTES};
use pumice_trace::Size;
use std::fmt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the path is before it is opened.
pub(crate) enum Before {
    /// Missing, or neither a file nor a block device.
    Missing,
    File {
        len: u64,
    },
    BlockDevice,
}

pub(crate) fn before(path: &Path) -> Before {
    // Anything else, and what cannot be looked at, is for the opening to refuse.
    match std::fs::metadata(path) {
        Ok(meta) if meta.file_type().is_block_device() => Before::BlockDevice,
        Ok(meta) if meta.is_file() => Before::File { len: meta.len() },
        _ => Before::Missing,
    }
}

/// A file that a start may have made. It is removed again with this value, unless the start got so far that it keeps the file.
pub struct NewFile {
    path: PathBuf,
    is_kept: AtomicBool,
}

impl NewFile {
    /// Lets the file be.
    pub fn keep(&self) {
        self.is_kept.store(true, Ordering::Relaxed);
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        let is_file = || std::fs::symlink_metadata(&self.path).is_ok_and(|found| found.is_file());
        if !*self.is_kept.get_mut() && is_file() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Opens a device that is to have `capacity` bytes, making the file and reserving its space where that is needed.
pub(crate) fn make_file(path: &Path, capacity: u64) -> Result<(Arc<FileShared>, NewFile), FileError> {
    let new = NewFile {
        path: path.to_owned(),
        is_kept: AtomicBool::new(std::fs::symlink_metadata(path).is_ok()),
    };
    let opened = open_file(path, Some(capacity), true).inspect_err(|error| {
        // Another server has made it meanwhile.
        if matches!(error, FileError::Locked { .. }) {
            new.keep();
        }
    });
    Ok((Arc::new(opened?), new))
}

/// The size that is asked for, or that is there, in bytes and whole sectors; `None` of a file that is missing or empty, where none was
/// asked for.
pub(crate) fn size_at(path: &Path, before: &Before, asked: Option<Size>) -> anyhow::Result<Option<u64>> {
    let whole = || -> anyhow::Result<u64> {
        if let Before::BlockDevice = before {
            return Ok(open_file(path, None, false)?.capacity());
        }
        let directory = directory_of(path);
        let stat = rustix::fs::statvfs(directory).with_context(|| {
            format!(
                "cannot find the size of the file system of {}",
                directory.display()
            )
        })?;
        Ok(stat.f_blocks.saturating_mul(stat.f_frsize))
    };
    let bytes = match (asked, before) {
        (Some(share @ Size::Share(_)), _) => share.of(whole()?),
        (Some(size), _) => size.of(0),
        (None, Before::BlockDevice) => whole()?,
        (None, Before::File { len: len @ 1.. }) => *len,
        (None, _) => return Ok(None),
    };
    // What is too little is named as it was given.
    Ok(Some(match bytes < SECTOR_BYTES as u64 {
        true => bytes,
        false => bytes / SECTOR_BYTES as u64 * SECTOR_BYTES as u64,
    }))
}

pub(crate) fn open_file(path: &Path, size: Option<u64>, preallocate: bool) -> Result<FileShared, FileError> {
    let options = FileOptions {
        size,
        preallocate,
        ..FileOptions::default()
    };
    FileShared::open(path, &options)
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Reads the superblock of a store, writing nothing; `None` where the device is empty.
///
/// # Errors
/// Another store or maker is on it, or a file was cut short.
pub(crate) fn superblock_at(
    path: &Path,
    before: &Before,
    store: StoreId,
) -> anyhow::Result<Option<Superblock>> {
    if let Before::File { len } = before
        && *len < SUPERBLOCKS_BYTES
    {
        return Err(OpenError::Foreign.into());
    }
    let shared = Arc::new(open_file(path, None, false)?);
    let device = FileDevice::new(shared, 2)?;
    let Some(superblock) = read_superblock(&device, store)? else {
        return Ok(None);
    };
    check_maker(&superblock, Maker::Serve)?;
    let capacity = superblock.geometry.capacity;
    if let Before::File { len } = before
        && *len < capacity
    {
        return Err(anyhow!(
            "it has {len} bytes, and the cache on it {capacity}: it was cut short or is an incomplete copy; \
             --reformat makes an empty cache of it"
        ));
    }
    Ok(Some(superblock))
}

/// Whether two paths name one file or block device.
pub(crate) fn is_same(a: &Path, b: &Path) -> bool {
    match (std::fs::metadata(a), std::fs::metadata(b)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()) || (a.rdev() != 0 && a.rdev() == b.rdev()),
        // Of files that are still to be made the directory is there.
        (Err(_), Err(_)) => {
            let whole = |path: &Path| {
                Some((
                    directory_of(path).canonicalize().ok()?,
                    path.file_name()?.to_owned(),
                ))
            };
            a == b || whole(a).is_some_and(|a| Some(a) == whole(b))
        }
        _ => false,
    }
}

/// Refuses a setting that differs from what the cache on a device was made with; `remedy` is what --reformat would do to it.
///
/// # Errors
/// Usage, naming both.
pub(crate) fn agree<T: PartialEq + fmt::Display>(
    setting: &str,
    (wanted, made): (Option<T>, T),
    path: &Path,
    remedy: &str,
) -> anyhow::Result<()> {
    match wanted {
        Some(wanted) if wanted != made => Err(usage(format!(
            "{setting} is {wanted:#} but {} was made with {made:#}; change the setting, or --reformat to {remedy} it",
            path.display(),
        ))),
        _ => Ok(()),
    }
}
