//! The superblock of a device: found, or made.

use super::{OpenError, OpenOptions, device_error};
use crate::geometry::{Geometry, SUPERBLOCKS_BYTES};
use crate::superblock::{Maker, SlotContent, Superblock};
use pumice_device::{Device, SECTOR_BYTES};

/// A superblock that is in order, and what it took to get it.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    pub(super) superblock: Superblock,
    pub(super) formatted: bool,
}

impl Opened {
    /// The seed of the key hash.
    pub fn hash_seed(&self) -> u64 {
        self.superblock.hash_seed
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
        let superblock = Superblock {
            cache_id: options.random[0],
            hash_seed: options.random[1],
            geometry: Geometry::plan(device.capacity(), options.block_bytes)?,
            layout: options.layout.layout,
            index: options.index,
            maker: options.maker,
            time: options.now,
            ..Superblock::default()
        };
        Ok(Opened {
            superblock,
            formatted: true,
        })
    };
    if options.reformat {
        return fresh();
    }
    if device.capacity() < SUPERBLOCKS_BYTES {
        return fresh();
    }
    let Some(superblock) = read_superblock(device)? else {
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
    agree("the layout", &options.layout.layout, &superblock.layout)?;
    agree("the index", &options.index, &superblock.index)?;
    Ok(Opened {
        superblock,
        formatted: false,
    })
}

/// Whether a cache is one of `wanted`'s.
///
/// # Errors
/// [`OpenError::OtherMaker`], where it is not.
pub fn check_maker(superblock: &Superblock, wanted: Maker) -> Result<(), OpenError> {
    match superblock.maker {
        found if found == wanted => Ok(()),
        found => Err(OpenError::OtherMaker { found, wanted }),
    }
}

/// Reads the superblock that counts, writing nothing; `None` where the device is empty.
///
/// # Errors
/// [`OpenError`], where there is something else, or another format.
pub fn read_superblock<D: Device>(device: &D) -> Result<Option<Superblock>, OpenError> {
    if device.capacity() < SUPERBLOCKS_BYTES {
        return Err(OpenError::Foreign);
    }
    let mut slots = [SlotContent::Empty; 2];
    for (at, slot) in (0u64..).zip(&mut slots) {
        let mut sector = vec![0; SECTOR_BYTES];
        device
            .read_log(at * SECTOR_BYTES as u64, &mut sector)
            .map_err(device_error("reading the superblock"))?;
        *slot = Superblock::decode(&sector);
    }
    // Also where the other copy is of this format: a program of another version has begun to write here, and only it knows
    // what it did.
    if let Some(format) = slots.iter().find_map(|slot| match slot {
        SlotContent::OtherFormat(format) => Some(*format),
        _ => None,
    }) {
        return Err(OpenError::OtherFormat(format));
    }
    let valid = slots.iter().filter_map(|slot| match slot {
        SlotContent::Valid(superblock) => Some(*superblock),
        _ => None,
    });
    if let Some(newest) = valid.max_by_key(|superblock| superblock.generation) {
        if slots.iter().any(|slot| !matches!(slot, SlotContent::Valid(_))) && newest.generation > 1 {
            tracing::warn!(
                "one of the two superblocks is damaged: the other one counts, and both are written anew"
            );
        }
        return Ok(Some(newest));
    }
    if slots.contains(&SlotContent::Foreign) {
        return Err(OpenError::Foreign);
    }
    if slots.contains(&SlotContent::Damaged) && !slots.contains(&SlotContent::Empty) {
        return Err(OpenError::Damaged);
    }
    // Empty, or a format that never got past its first superblock.
    if slots.contains(&SlotContent::Damaged) || is_blank(device)? {
        return Ok(None);
    }
    Err(OpenError::Foreign)
}

/// Whether the device's first MiB is zero, as in a new file: a device without our superblock that holds anything else
/// is somebody's.
fn is_blank<D: Device>(device: &D) -> Result<bool, OpenError> {
    let len = device.capacity().min(1 << 20) as usize / SECTOR_BYTES * SECTOR_BYTES;
    let mut bytes = vec![0; len];
    device
        .read_log(0, &mut bytes)
        .map_err(device_error("reading the device's start"))?;
    Ok(bytes.iter().all(|b| *b == 0))
}
