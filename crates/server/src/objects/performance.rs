//! The performance tier: whether the device that is to hold it may, and what all workers share of it.

use super::config::ServeConfig;
use super::flash::Target;
use super::worker::ServedCache;
use crate::host::files::{Before, NewFile, before, is_same, make_file, open_file, size_at};
use crate::throttle::Throttling;
use anyhow::{Context, anyhow};
use pumice_blocks::Geometry;
use pumice_console::{Usage, usage};
use pumice_device::{DeviceCounters, FileDevice, FileShared, RealTime, SECTOR_BYTES};
use pumice_nhc::{Division, Found, Start, Tier, format};
use pumice_trace::Human;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The smallest device that is worth it, in blocks. It has a sector beside copies, so of exactly as many there is one copy less.
const BLOCKS_MIN: u64 = 2;

/// A device that may hold the performance tier, found out without changing anything.
pub struct Wanted {
    path: PathBuf,
    division: Division,
    bytes: u64,
    /// The cache whose copies are there, in this arrangement.
    owner: Option<u64>,
    is_new: bool,
}

/// What all workers share of a performance tier.
pub struct Performance {
    /// The device.
    pub shared: Arc<FileShared>,
    /// Which blocks have a copy on it.
    pub tier: Arc<Tier>,
    /// What each worker's handle on it counts.
    pub counters: Vec<Arc<DeviceCounters>>,
    /// How slow the device is to be.
    pub throttling: Throttling,
    owner: Option<u64>,
    /// Its file, if this start has made that.
    pub new_file: NewFile,
}

/// A tier, or why the one that was there before is left out.
pub type OrLeftOut<T> = Result<T, String>;

/// Looks at the device that the settings name, for a cache with blocks of so many bytes; `None` where there is to be no tier.
///
/// # Errors
/// Usage, where the settings make no sense together. And where the tier is new, that the device holds something else or what opening it
/// said; later that is a warning.
pub fn look(
    config: &ServeConfig,
    target: &Target,
    block_bytes: u64,
) -> anyhow::Result<Option<OrLeftOut<Wanted>>> {
    let Some(path) = &config.performance_tier else {
        return Ok(None);
    };
    let is_new = !target.has_tier || config.host.reformat;
    let checked = check(config, target, block_bytes, path, is_new);
    leave_out(is_new, path, checked).map(Some)
}

/// What goes wrong with a tier that was there before costs the tier alone.
fn leave_out<T>(is_new: bool, path: &Path, result: anyhow::Result<T>) -> anyhow::Result<OrLeftOut<T>> {
    match result {
        Ok(found) => Ok(Ok(found)),
        Err(error) if is_new || error.is::<Usage>() => {
            Err(error.context(format!("performance tier {}", path.display())))
        }
        Err(error) => {
            let reason = format!(
                "the performance tier {} is left out, the flash serves everything: {error:#}",
                path.display()
            );
            tracing::warn!("{reason}");
            Ok(Err(reason))
        }
    }
}

fn check(
    config: &ServeConfig,
    target: &Target,
    block_bytes: u64,
    path: &Path,
    is_new: bool,
) -> anyhow::Result<Wanted> {
    if is_same(path, &config.flash) {
        return Err(usage("it is the flash device itself; give another, or none"));
    }
    let before = before(path);
    if matches!(before, Before::Missing) && path.exists() {
        return Err(anyhow!("it is neither a regular file nor a block device"));
    }
    if !is_new && matches!(before, Before::Missing) {
        return Err(anyhow!(
            "it is missing; an empty file there, or a start without --performance-tier, makes a new one possible"
        ));
    }
    let found = match before {
        Before::File { len: 0 } | Before::Missing => Found::Empty,
        Before::File { len } if len < SECTOR_BYTES as u64 => Found::Foreign,
        _ => {
            let shared = Arc::new(open_file(path, None, false)?);
            let device = FileDevice::new(shared, 2)?;
            format::look(&device).context("cannot read its beginning")?
        }
    };
    if found == Found::Foreign {
        return Err(anyhow!(
            "it is not empty and holds no copies of Pumice's; give another, or erase its first MiB yourself"
        ));
    }
    let asked = size_at(path, &before, config.performance_size)?;
    let bytes = match (config.performance_size, found) {
        (None, Found::Copies(copies)) => copies.bytes,
        _ => asked.ok_or_else(|| usage("it is to be made; --performance-size says how large"))?,
    };
    // A size that the device itself says is no mistake of the settings.
    let refuse = |what: String| match config.performance_size {
        Some(_) => usage(format!("--performance-size is {what}")),
        None => anyhow!("its size is {what}; --performance-size says how much of it to use"),
    };
    if bytes > target.capacity {
        return Err(refuse(format!(
            "{:#}, but the flash has {:#}, and of more there can be no copy",
            Human(bytes),
            Human(target.capacity),
        )));
    }
    let geometry = Geometry::plan(target.capacity, block_bytes)?;
    let division = Division {
        offset: geometry.data_offset,
        block_bytes: geometry.block_bytes,
        blocks: geometry.blocks,
    };
    if bytes < BLOCKS_MIN * block_bytes {
        return Err(refuse(format!(
            "{:#}, which is too little: with blocks of {:#} at least {} bytes are needed",
            Human(bytes),
            Human(block_bytes),
            BLOCKS_MIN * block_bytes,
        )));
    }
    if let (Found::Copies(copies), Before::File { len }, false) = (found, &before, is_new)
        && *len < copies.bytes.min(bytes)
    {
        return Err(anyhow!(
            "it has {len} bytes, and was made with {}: it was cut short",
            copies.bytes
        ));
    }
    let owner = match found {
        Found::Copies(copies) if copies.bytes == bytes && copies.block_bytes == block_bytes => {
            Some(copies.owner)
        }
        _ => None,
    };
    Ok(Wanted {
        path: path.to_owned(),
        division,
        bytes,
        owner,
        is_new,
    })
}

impl Wanted {
    /// Opens the device, making the file and reserving its space where that is needed.
    ///
    /// # Errors
    /// Where the tier is new, what opening it said.
    pub fn open(
        &self,
        config: &ServeConfig,
        throttling: Throttling,
    ) -> anyhow::Result<OrLeftOut<Performance>> {
        let opened = make_file(&self.path, self.bytes).map_err(anyhow::Error::from);
        let shared = leave_out(self.is_new, &self.path, opened)?;
        Ok(shared.map(|(shared, new_file)| Performance {
            tier: match config.performance_objective {
                None => Tier::held(self.division, shared.capacity(), 1.0, true),
                Some(objective) => {
                    let time = Arc::new(RealTime::new());
                    Tier::new(self.division, shared.capacity(), objective, time)
                }
            },
            shared,
            counters: (0..config.host.threads).map(|_| Arc::default()).collect(),
            throttling,
            owner: self.owner,
            new_file,
        }))
    }
}

impl Performance {
    /// How the tier of an open cache starts.
    pub fn start(&self, cache: &Arc<ServedCache>) -> Start {
        let known = Arc::clone(cache);
        Start {
            owner: cache.cache_id(),
            makes: self.owner != Some(cache.cache_id()),
            catalog: Box::new(move |last_sector| known.sealed_block(last_sector)),
        }
    }
}
