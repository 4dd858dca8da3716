//! Opening the flash device: how large it is to be, and what it holds already.

use super::config::ServeConfig;
use crate::host::files::{Before, NewFile, before, make_file, size_at, superblock_at};
use crate::usage::usage;
use anyhow::Context;
use pumice::IndexKind;
use pumice_blocks::OpenError;
use pumice_device::FileShared;
use pumice_flash::{LayoutName, LayoutOptions, STORE, Settings};
use pumice_trace::Human;
use std::sync::Arc;

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

/// Looks at the device that the settings name. A cache that is there keeps its size and its blocks.
///
/// # Errors
/// Usage, where settings and device disagree; otherwise what opening it said, or that it holds something else.
pub fn look(config: &ServeConfig) -> anyhow::Result<Target> {
    let before = before(&config.flash);
    let wanted = wanted_bytes(config, &before)?;
    let is_used = matches!(before, Before::BlockDevice | Before::File { len: 1.. });
    let found = if config.host.reformat || !is_used {
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

/// The size that the settings ask for, in bytes and whole sectors.
fn wanted_bytes(config: &ServeConfig, before: &Before) -> anyhow::Result<u64> {
    let bytes = size_at(&config.flash, before, config.flash_size).context("flash device")?;
    Ok(bytes.unwrap_or(DEFAULT_BYTES))
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
