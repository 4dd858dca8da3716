//! Opening the flash device: how large it is to be, and what it holds already.

use super::config::ServeConfig;
use crate::usage::usage;
use anyhow::{Context, anyhow};
use pumice::IndexKind;
use pumice_blocks::geometry::SUPERBLOCKS_BYTES;
use pumice_blocks::open::{check_maker, read_superblock};
use pumice_blocks::{Maker, OpenError, StoreId, Superblock};
use pumice_device::{FileDevice, FileError, FileOptions, FileShared, SECTOR_BYTES};
use pumice_flash::{LayoutName, LayoutOptions, STORE, Settings};
use pumice_trace::{Human, Size};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The size of a new file, in bytes.
const DEFAULT_BYTES: u64 = 4 << 30;

/// What the flash device is to be, found out without changing anything.
pub struct Target {
    /// Its size in bytes, in whole sectors.
    pub capacity: u64,
    /// Block size of the cache that is on it; `None` where it is to be formatted.
    pub block_bytes: Option<u64>,
    /// The layout, of the cache that is on it or as the settings say.
    pub layout: LayoutOptions,
    /// Where mappings are, as for the layout; `None` is left to the budget.
    pub index: Option<IndexKind>,
    /// The highest Unix time that the cache on it has recorded, in seconds.
    pub time: u32,
    /// Bytes of the newest checkpoint on it.
    pub checkpoint_bytes: u64,
    /// Whether the last start of the cache on it was to use a performance tier.
    pub has_tier: bool,
}

/// What the path is before it is opened.
pub(super) enum Before {
    Missing,
    File { len: u64 },
    BlockDevice,
}

pub(super) fn before(path: &Path) -> Before {
    // Anything else, and what cannot be looked at, is for the opening to refuse.
    match std::fs::metadata(path) {
        Ok(meta) if meta.file_type().is_block_device() => Before::BlockDevice,
        Ok(meta) if meta.is_file() => Before::File { len: meta.len() },
        _ => Before::Missing,
    }
}

/// Looks at the device that the settings name. A cache that is there keeps its size and its blocks.
///
/// # Errors
/// Usage, where settings and device disagree; otherwise what opening it said, or that it holds something else.
pub fn look(config: &ServeConfig) -> anyhow::Result<Target> {
    let before = before(&config.flash);
    let wanted = wanted_bytes(config, &before)?;
    let is_used = matches!(before, Before::BlockDevice | Before::File { len: 1.. });
    let found = if config.reformat || !is_used {
        None
    } else {
        peek(config, &before)?
    };
    let Some(found) = found else {
        return Ok(Target::empty(config, wanted));
    };
    if config.flash_size.is_some() && wanted != found.capacity {
        return Err(usage(format!(
            "--flash-size is {:#} but {} was made with {:#}; change the setting, or --reformat to erase it",
            Human(wanted),
            config.flash.display(),
            Human(found.capacity),
        )));
    }
    if let Some(wanted) = config.block_size
        && wanted != found.block_bytes
    {
        return Err(usage(format!(
            "--block-size is {} but {} was made with {}; change the setting, or --reformat to erase it",
            Human(wanted),
            config.flash.display(),
            Human(found.block_bytes),
        )));
    }
    let layout = match config.layout {
        wanted if wanted.layout == found.layout => wanted,
        wanted if config.is_layout_given => {
            return Err(usage(format!(
                "--layout is {} but {} was made with {}; change the setting, or --reformat to erase it",
                wanted.layout,
                config.flash.display(),
                found.layout,
            )));
        }
        wanted => {
            if config.is_policy_given {
                tracing::warn!(
                    "{} was made with layout {}, and policy, alpha and theta are taken for {}: they have no effect without --layout {}",
                    config.flash.display(),
                    found.layout,
                    wanted.layout,
                    found.layout,
                );
            }
            LayoutOptions::new(found.layout, None, None, None).expect("defaults go together")
        }
    };
    if let Some(wanted) = config.index
        && wanted != found.index
    {
        return Err(usage(format!(
            "--index is {wanted} but {} was made with {}; change the setting, or --reformat to erase it",
            config.flash.display(),
            found.index,
        )));
    }
    Ok(Target {
        index: Some(found.index),
        capacity: found.capacity,
        block_bytes: Some(found.block_bytes),
        layout,
        time: found.time,
        checkpoint_bytes: found.checkpoint_bytes,
        has_tier: found.has_tier,
    })
}

/// The size in bytes of a new cache with these settings.
///
/// # Errors
/// The file system or the device of which it is a part cannot be looked at.
pub fn size_of_new(config: &ServeConfig) -> anyhow::Result<u64> {
    wanted_bytes(config, &before(&config.flash))
}

impl Target {
    /// A device of so many bytes that is to be formatted.
    pub fn empty(config: &ServeConfig, capacity: u64) -> Self {
        Self {
            capacity,
            block_bytes: None,
            layout: config.layout,
            index: config.index,
            time: 0,
            checkpoint_bytes: 0,
            has_tier: false,
        }
    }

    /// Opens the device, making the file and reserving its space where that is needed.
    ///
    /// # Errors
    /// What opening it said.
    pub fn open(&self, config: &ServeConfig) -> anyhow::Result<(Arc<FileShared>, NewFile)> {
        make_file(&config.flash, self.capacity).context("flash device")
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
pub(super) fn make_file(path: &Path, capacity: u64) -> Result<(Arc<FileShared>, NewFile), FileError> {
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

/// The size that the settings ask for, in bytes and whole sectors.
fn wanted_bytes(config: &ServeConfig, before: &Before) -> anyhow::Result<u64> {
    let bytes = size_at(&config.flash, before, config.flash_size).context("flash device")?;
    Ok(bytes.unwrap_or(DEFAULT_BYTES))
}

/// The size that is asked for, or that is there, in bytes and whole sectors; `None` of a file that is missing or empty, where none was
/// asked for.
pub(super) fn size_at(path: &Path, before: &Before, asked: Option<Size>) -> anyhow::Result<Option<u64>> {
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

pub(super) fn open_file(path: &Path, size: Option<u64>, preallocate: bool) -> Result<FileShared, FileError> {
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

/// A cache that is on the device.
struct Found {
    capacity: u64,
    block_bytes: u64,
    layout: LayoutName,
    index: IndexKind,
    time: u32,
    checkpoint_bytes: u64,
    has_tier: bool,
}

/// Reads the superblock of a store, writing nothing; `None` where the device is empty.
///
/// # Errors
/// Another store or maker is on it, or a file was cut short.
pub(super) fn superblock_at(
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

/// Looks at the cache of objects on a device, writing nothing; `None` where the device is empty.
fn peek(config: &ServeConfig, before: &Before) -> anyhow::Result<Option<Found>> {
    let named = || format!("flash device {}", config.flash.display());
    let Some(superblock) = superblock_at(&config.flash, before, STORE).with_context(named)? else {
        return Ok(None);
    };
    let settings = Settings::decode(&superblock.own)
        .ok_or(OpenError::UnknownSettings)
        .with_context(named)?;
    Ok(Some(Found {
        capacity: superblock.geometry.capacity,
        block_bytes: superblock.geometry.block_bytes,
        layout: settings.layout,
        index: settings.index,
        time: superblock.time,
        checkpoint_bytes: superblock.checkpoints[0].len,
        has_tier: superblock.has_tier,
    }))
}
