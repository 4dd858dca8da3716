//! Opening the flash device: how large it is to be, and what it holds already.

use super::config::ServeConfig;
use crate::host::files::{Before, NewFile, agree, before, make_file, size_at, superblock_at};
use anyhow::Context;
use pumice::IndexKind;
use pumice_blocks::{OpenError, Superblock};
use pumice_device::FileShared;
use pumice_flash::{LayoutOptions, STORE, Settings};
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
    let found = match config.host.reformat || !is_used {
        true => None,
        false => peek(config, &before)?,
    };
    let Some((superblock, made)) = found else {
        return Ok(Target::empty(config, wanted));
    };
    let (geometry, path) = (&superblock.geometry, &config.flash);
    let sizes = (config.flash_size.map(|_| Human(wanted)), Human(geometry.capacity));
    agree("--flash-size", sizes, path, "erase")?;
    let blocks = (config.block_size.map(Human), Human(geometry.block_bytes));
    agree("--block-size", blocks, path, "erase")?;
    let asked = config.is_layout_given.then_some(config.layout.layout);
    agree("--layout", (asked, made.layout), path, "erase")?;
    agree("--index", (config.index, made.index), path, "erase")?;
    let layout = match config.layout {
        wanted if wanted.layout == made.layout => wanted,
        wanted => {
            if config.is_policy_given {
                tracing::warn!(
                    "{} was made with layout {}, and policy, alpha and theta are taken for {}: they have no effect without --layout {}",
                    path.display(),
                    made.layout,
                    wanted.layout,
                    made.layout,
                );
            }
            LayoutOptions::new(made.layout, None, None, None).expect("defaults go together")
        }
    };
    Ok(Target {
        index: Some(made.index),
        capacity: geometry.capacity,
        block_bytes: Some(geometry.block_bytes),
        layout,
        time: superblock.time,
        checkpoint_bytes: superblock.checkpoints[0].len,
        has_tier: superblock.has_tier,
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

/// Looks at the cache of objects on a device, writing nothing; `None` where the device is empty.
fn peek(config: &ServeConfig, before: &Before) -> anyhow::Result<Option<(Superblock, Settings)>> {
    let look = || {
        let Some(superblock) = superblock_at(&config.flash, before, STORE)? else {
            return Ok(None);
        };
        let settings = Settings::decode(&superblock.own).ok_or(OpenError::UnknownSettings)?;
        anyhow::Ok(Some((superblock, settings)))
    };
    look().with_context(|| format!("flash device {}", config.flash.display()))
}
