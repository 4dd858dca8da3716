//! The superblock of a device: found, or made.

use crate::open_options::OpenOptions;
use crate::settings::{STORE, Settings};
use pumice_blocks::geometry::SUPERBLOCKS_BYTES;
use pumice_blocks::open::{check_maker, read_superblock};
use pumice_blocks::{BudgetLevel, Geometry, OpenError, Superblock};
use pumice_device::{Device, SECTOR_BYTES};

/// A superblock that is in order, and what it took to get it.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    pub(super) superblock: Superblock,
    pub(super) settings: Settings,
    pub(super) formatted: bool,
}

impl Opened {
    /// The seed of the key hash.
    pub fn hash_seed(&self) -> u64 {
        self.settings.hash_seed
    }

    /// The division of the device.
    pub fn geometry(&self) -> Geometry {
        self.superblock.geometry
    }

    /// The highest Unix time the device has recorded, in seconds.
    pub fn time(&self) -> u32 {
        self.superblock.time
    }
}

/// Reads the superblock, or formats an empty device.
///
/// # Errors
/// [`OpenError`]; the device is then as it was.
pub async fn open_superblock<D: Device>(device: &D, options: &OpenOptions) -> Result<Opened, OpenError> {
    let fresh = || -> Result<Opened, OpenError> {
        let settings = Settings {
            hash_seed: options.random[1],
            layout: options.layout.layout,
            index: options.index,
            budget: BudgetLevel::default(),
        };
        let superblock = Superblock {
            cache_id: options.random[0],
            store: STORE,
            geometry: Geometry::plan(device.capacity(), options.block_bytes)?,
            maker: options.maker,
            time: options.now,
            own: settings.encode(),
            ..Superblock::default()
        };
        Ok(Opened {
            superblock,
            settings,
            formatted: true,
        })
    };
    if options.reformat {
        return fresh();
    }
    if device.capacity() < SUPERBLOCKS_BYTES {
        return fresh();
    }
    let Some(superblock) = read_superblock(device, STORE)? else {
        return fresh();
    };
    check_maker(&superblock, options.maker)?;
    let found = superblock.geometry;
    let usable = device.capacity() / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
    let agree = |what, wanted: &dyn ToString, found: &dyn ToString| {
        let (wanted, found) = (wanted.to_string(), found.to_string());
        match wanted == found {
            true => Ok(()),
            false => Err(OpenError::Disagrees { what, wanted, found }),
        }
    };
    agree("the size of the device", &usable, &found.capacity)?;
    if options.check_block_bytes {
        agree("the block size", &options.block_bytes, &found.block_bytes)?;
    }
    let settings = Settings::decode(&superblock.own).ok_or(OpenError::UnknownSettings)?;
    agree("the layout", &options.layout.layout, &settings.layout)?;
    agree("the index", &options.index, &settings.index)?;
    Ok(Opened {
        superblock,
        settings,
        formatted: false,
    })
}
